"""The API, charts and metrics of usage in the portal."""
