"""Files that travel into a runner's server: scripts and units, and the check of the rules for its job."""
