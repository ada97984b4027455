"""Builds, checks and publishes images of servers: from a definition in the site file to a disk that boots, was checked,
and is in Glance."""
