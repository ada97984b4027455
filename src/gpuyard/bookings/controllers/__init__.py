"""The loop that reconciles bookings with the cloud, and what acts for it on OpenStack and on services outside."""
