"""The API, pages and metrics about usage."""
