"""Turns of loops: of several processes on one database the one that has it does the work."""

BOOKINGS = "bookings"
"""Who keeps the bookings keeps GPUs' health, scrubs and agents, too."""
RUNNERS = "runners"
