"""What travels into a runner's server: scripts and units, and the rules that its job is held against."""
