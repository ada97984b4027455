"""What runs in servers of built images."""
