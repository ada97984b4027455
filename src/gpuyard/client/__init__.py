"""What command lines share: they ask a portal's API for bookings, and say what it answers."""
