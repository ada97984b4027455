"""Pages that show several capabilities at once: the map, one GPU, my GPUs, a project, the overview, the status."""
