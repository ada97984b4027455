"""The roles of the leader election. The leader of a role runs its loops."""

BOOKINGS = "bookings"
"""The leader of bookings also runs GPUs' health, scrubs and agents."""
RUNNERS = "runners"
