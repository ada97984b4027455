"""`gpuyard serve`: makes a process of a site file, and makes it anew when the file changes."""
