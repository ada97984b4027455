"""`gpuyard serve`: builds a process from a site file, and a new one when the file changes."""
