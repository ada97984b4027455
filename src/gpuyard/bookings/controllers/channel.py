"""What a message is, and what tells it: mail.py and webhooks.py are channels, messages.py carries events to them."""

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
"""Before the kinds of the ledger's events, where programs get them beside those of others."""


GIVE_UP = timedelta(days=7)
"""What could not be told to people for so long is not news any more."""


class NotNowError(GpuyardError):
    """This message could not be told, and may be later."""


class ChannelDownError(GpuyardError):
    """Nothing can be told on this channel now."""


class NeverError(GpuyardError):
    """This message cannot be told to this receiver, however often it is tried."""


@dataclass(frozen=True)
class Message:
    """An event, with what there is to say about it."""

    event: Event
    site: str
    booking: Booking | None = None
    """As it is now; None for what concerns no booking."""
    gpus: tuple[str, ...] = ()
    """``host/address`` of the booking's GPUs."""


class Channel(Protocol):
    """A way to tell. Methods are called by one thread at a time."""

    @property
    def name(self) -> str:
        """What the store knows it by; has no secrets."""

    @property
    def batch(self) -> int:
        """How many messages it can surely try within a minute."""

    @property
    def patience(self) -> timedelta | None:
        """An event that could not be told for so long is given up; None: never."""

    def wants(self, event: Event) -> bool:
        """Whether the event is for it; others count as told."""

    def open(self) -> AbstractContextManager[Callable[[Message], None]]:
        """A sender for some messages, which raises NotNowError, NeverError or ChannelDownError; the last one also
        when it is opened."""
