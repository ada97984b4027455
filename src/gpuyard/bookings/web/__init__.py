"""The API, pages and feeds of bookings in the portal."""
