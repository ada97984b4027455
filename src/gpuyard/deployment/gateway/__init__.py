"""A public machine in front of a cloud that nobody outside reaches: its configuration, made of the site file. Pure."""
