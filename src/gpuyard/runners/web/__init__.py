"""The API, pages and metrics about runners."""
