"""Semantics of Nova and Placement, and how they differ between releases.

Option names, renames and values (`release.py`, `options.py`), the files that a service reads (`ini.py`,
`config.py`), PCI aliases and device specs, server and migration statuses. A new release or a renamed option is a
change in here alone. Nothing in this package asks a cloud.
"""
