"""Delivers mails and webhooks about what happened to bookings and GPUs.

Each event is delivered at least once to every channel, those of one booking in their order; one that cannot be
delivered is retried later and later, and given up in the end.
"""
