"""The API, pages and feeds of bookings."""
