"""Generates the configuration of a public machine in front of a cloud that nobody outside reaches, from the site file.
Pure."""
