"""The interface of channels that deliver the ledger's events: messages, errors, and the `Channel` protocol.

`notifications/mail.py`, `notifications/webhooks.py` and `enforcement_service.py` are channels;
`notifications/delivery.py` carries events to them. The error that a channel raises decides what becomes of a message:
it is tried again (NotNowError), the whole channel waits (ChannelDownError), or the message is given up (NeverError).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import timedelta
from typing import Protocol

from gpuyard.bookings.records import Event
from gpuyard.model.booking import Booking
from gpuyard.model.errors import GpuyardError

PREFIX = "gpu."
"""Prefix of the ledger's event kinds where programs get them beside those of other services."""


GIVE_UP = timedelta(days=7)
"""An event that could not be delivered to people for so long is no news any more."""


class NotNowError(GpuyardError):
    """Raised when this message could not be delivered now, and may be later."""


class ChannelDownError(GpuyardError):
    """Raised when nothing can be delivered on this channel now."""


class NeverError(GpuyardError):
    """Raised when this message cannot be delivered to this receiver, however often it is tried."""


@dataclass(frozen=True)
class Message:
    """An event with the booking and the GPUs that it concerns."""

    event: Event
    site: str
    booking: Booking | None = None
    """As it is now; None for what concerns no booking."""
    gpus: tuple[str, ...] = ()
    """``host/address`` of the booking's GPUs."""


class Channel(Protocol):
    """A way to deliver events. Methods are called by one thread at a time."""

    @property
    def name(self) -> str:
        """The name by which the store knows it; has no secrets."""

    @property
    def batch(self) -> int:
        """Number of messages that it can surely try within a minute."""

    @property
    def patience(self) -> timedelta | None:
        """Time for which an event is tried before it is given up; None: for ever."""

    def wants(self, event: Event) -> bool:
        """Return whether the event is for it; others count as delivered."""

    def open(self) -> AbstractContextManager[Callable[[Message], None]]:
        """Return a sender for some messages, which raises NotNowError, NeverError or ChannelDownError; the last one
        also when it is opened."""
