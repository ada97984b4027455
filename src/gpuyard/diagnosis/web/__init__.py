"""The API, pages and metrics about diagnosis."""
