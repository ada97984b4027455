"""The kinds of events, each with what it means. Messages, webhooks and docs/reference are made from this table."""

from __future__ import annotations

EVENTS = {
    "booking.requested": "A booking waits for approval.",
    "booking.confirmed": "A booking was made, approved, or an offer accepted.",
    "booking.changed": "Time, number or comment of a booking was changed.",
    "booking.waiting": "A booking is on the waitlist.",
    "booking.offered": "GPUs are kept for a booking on the waitlist; it must be accepted in time.",
    "booking.cancelled": "A booking was cancelled or declined.",
    "booking.expired": "A booking was not approved or accepted in time.",
    "booking.started": "A booking began: its owner can start servers now.",
    "booking.delayed": "A booking began, but not all of its GPUs are free yet.",
    "booking.ending": "A booking ends soon.",
    "booking.ended": "A booking ended: servers must give its GPUs back.",
    "booking.no_show": "A booking was released because no server came.",
    "booking.trouble": "A GPU of a booking went bad, and no other one is free.",
    "reclaim.warned": "A server keeps a GPU without a booking, and will be reclaimed.",
    "reclaim.done": "A server was reclaimed.",
}
