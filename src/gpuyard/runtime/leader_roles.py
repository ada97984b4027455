"""Names of the turns of the leader election: the process that has one does its loops' work."""

BOOKINGS = "bookings"
"""The leader for bookings also runs GPUs' health, scrubs and agents."""
RUNNERS = "runners"
