"""What runs in servers that say how their GPUs are: one file of the standard library's Python, and its systemd unit."""
