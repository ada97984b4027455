"""One file per step, each named by its number."""
