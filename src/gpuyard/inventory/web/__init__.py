"""The API, presenters and metrics of the inventory in the portal."""
