"""The booking loop, and what acts for it on OpenStack and on services outside."""
