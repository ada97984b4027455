"""Readers of the files that repositories and organisations write: `.cirun.yml`, `.cirun.global.yml`, `.access.yml`,
lists of users."""
