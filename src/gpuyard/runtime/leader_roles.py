"""Roles of the leader election: the process that leads one does the work of its loops."""

BOOKINGS = "bookings"
"""The leader for bookings also runs GPUs' health, scrubs and agents."""
RUNNERS = "runners"
