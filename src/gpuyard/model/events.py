"""The kinds of events with their texts, from which mails are made, and which webhooks can subscribe to."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EventKind:
    """A kind of event of a booking, a server, a budget or a month's use."""

    says: str
    subject: str
    """The end of a mail's subject for events of a booking; the whole subject for others."""
    to_do: str = ""
    """What the receiver can do; with ``{id}`` of the booking and ``{offer_until}``."""


EVENTS = {
    "booking.requested": EventKind(
        "A booking waits for approval.",
        "waits for approval",
    ),
    "booking.confirmed": EventKind(
        "A booking was made, approved, or an offer accepted.",
        "is confirmed",
        "There is nothing to do now. When it begins, start a server with a flavor of its pool.",
    ),
    "booking.changed": EventKind(
        "Time, number or comment of a booking was changed.",
        "was changed",
    ),
    "booking.waiting": EventKind(
        "A booking is on the waitlist.",
        "is on the waitlist",
        "You are told when GPUs become free. To leave the waitlist: gpuyard booking cancel {id}",
    ),
    "booking.offered": EventKind(
        "GPUs are kept for a booking on the waitlist; it must be accepted in time.",
        "is offered to you: accept it in time",
        "To take the GPUs: gpuyard booking accept {id}\nTo let others have them: gpuyard booking cancel "
        "{id}\nWhen you do neither until {offer_until}, they are offered to the next.",
    ),
    "booking.cancelled": EventKind(
        "A booking was cancelled or declined.",
        "was cancelled",
    ),
    "booking.expired": EventKind(
        "A booking was not approved or accepted in time.",
        "has expired",
    ),
    "booking.started": EventKind(
        "A booking began: its owner can start servers now.",
        "has begun",
        "Start your server now. A booking without a server may be released for others after a while. When "
        "you need it no longer: gpuyard booking end {id}",
    ),
    "booking.delayed": EventKind(
        "A booking began, but not all of its GPUs are free yet.",
        "has begun, but a GPU is late",
        "The GPU is being freed. There is nothing to do: you are told when it is yours.",
    ),
    "booking.ending": EventKind(
        "A booking ends soon.",
        "ends soon",
        "Save your work, and delete or shelve your servers before the end. To ask for more time: gpuyard "
        "booking extend {id} +4h",
    ),
    "booking.ended": EventKind(
        "A booking ended: servers must give its GPUs back.",
        "is over",
        "Delete or shelve your servers now: a server that keeps a GPU without a booking is reclaimed.",
    ),
    "booking.no_show": EventKind(
        "A booking was released because no server came.",
        "was released",
        "No server came, so its GPUs are free for others. Book again when you need them.",
    ),
    "booking.trouble": EventKind(
        "A GPU of a booking went bad, and no other one is free.",
        "has lost a GPU",
        "Another time or another pool may be free: gpuyard booking edit {id} --help",
    ),
    "booking.maintenance": EventKind(
        "The host of a booking's GPU is to be maintained, and no other GPU is free then.",
        "has a GPU on a host that is to be maintained",
        "Save your work and delete or shelve your servers before. Another time or another pool may be free: gpuyard "
        "booking edit {id} --help",
    ),
    "reclaim.warned": EventKind(
        "A server keeps a GPU without a booking, and will be reclaimed.",
        "A server of yours will be reclaimed",
        "Delete or shelve the server, or book a GPU for it.",
    ),
    "server.fault": EventKind(
        "A GPU of a server went bad.",
        "A GPU of a server of yours may be faulty",
        "Save what you need. To have another GPU, delete or shelve the server and start it again: it gets another one, "
        "if one is free. If it works for you, go on: nothing is taken from you.",
    ),
    "server.idle": EventKind(
        "A server does nothing with its GPUs.",
        "A server of yours does nothing with its GPU",
        "Use it, or give its GPU back: delete or shelve the server, and end its booking where it has one. Others can "
        "have the GPU then.",
    ),
    "budget.near": EventKind(
        "A project has used much of its budget.",
        "The budget of a project is nearly used up",
        "When it is used up, the project cannot book until the next period, or until what it has used counts less. To "
        "see what used it: gpuyard usage report --by user",
    ),
    "usage.month": EventKind(
        "A month is over, and this is what the GPUs were used for.",
        "What the GPUs were used for last month",
        "To see more of it: gpuyard usage report --by project --by pool",
    ),
    "reclaim.done": EventKind(
        "A server was reclaimed.",
        "A server of yours was reclaimed",
    ),
}


def event_kind(name: str) -> EventKind:
    """Return the kind of an event; for a name that only a later version knows, a kind with that name as its texts."""
    return EVENTS.get(name, EventKind(name, name))
