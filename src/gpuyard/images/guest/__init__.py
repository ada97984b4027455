"""Programs that run in servers of built images."""
