"""The agent that reports the GPUs of a server from inside: one file of the standard library's Python, and its unit."""
