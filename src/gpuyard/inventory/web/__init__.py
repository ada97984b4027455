"""The API, pages and metrics about inventory."""
