"""The API, pages and metrics about health."""
