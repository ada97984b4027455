"""Wiring of serving processes: what is made of a site file, in which order, and what happens when the file changes."""
