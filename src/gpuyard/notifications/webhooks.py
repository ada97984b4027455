"""Webhooks: sends each event as one signed POST of JSON.

Only a 2xx answer counts as delivered; redirects are not followed.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any
from urllib.parse import urlsplit

from gpuyard import installed_version
from gpuyard.bookings.controllers.channel import GIVE_UP, PREFIX, ChannelDownError, Message, NotNowError
from gpuyard.bookings.records import Event
from gpuyard.model.booking import Booking
from gpuyard.model.errors import UsageError
from gpuyard.model.moments import iso_text
from gpuyard.runtime.http import HttpClient, HttpClientError
from gpuyard.site.booking_rules import Webhook

TIMEOUT = 10.0
"""Seconds for all of one exchange: a receiver that sends a byte now and then would otherwise keep the loop for ever."""
MOST_ANSWER = 1 << 20
"""Bytes of an answer, of which only the status is used."""


class WebhookChannel:
    """The channel of one webhook's receiver."""

    batch = 5
    """Each may take TIMEOUT, and the store keeps a batch for one process for a minute."""
    patience: timedelta | None = GIVE_UP

    def __init__(self, hook: Webhook, environment: Mapping[str, str]) -> None:
        """Raises UsageError without a secret: an unsigned message could be anybody's."""
        parts = urlsplit(hook.url)
        if not parts.hostname or parts.username or parts.password:
            raise UsageError(f"webhook {parts.hostname or hook.url}: the address needs a host, and no user before it")
        digest = hashlib.sha256(hook.url.encode()).hexdigest()[:8]
        self.name = f"webhook {parts.hostname} {digest}"  # addresses of webhooks are often secrets themselves
        self._secret = environment.get(hook.secret_variable, "").encode()
        if not self._secret:
            raise UsageError(
                f"webhook at {parts.hostname}: the environment has no {hook.secret_variable}, which is the key that "
                "its messages are signed with; set it, or name another one as secret_variable"
            )
        self._url = hook.url
        self._kinds = frozenset(hook.events)
        self._wire = HttpClient()

    def wants(self, event: Event) -> bool:
        return not self._kinds or event.kind in self._kinds

    @contextmanager
    def open(self) -> Iterator[Callable[[Message], None]]:
        yield self._send

    def _send(self, message: Message) -> None:
        body = json.dumps(document(message), separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"gpuyard/{installed_version()}",
            "X-Gpuyard-Event": PREFIX + message.event.kind,
            "X-Gpuyard-Delivery": str(message.event.id),
            "X-Gpuyard-Signature-256": signature(self._secret, body),
        }
        try:
            answer = self._wire.exchange(
                "POST", self._url, headers, body, read=TIMEOUT, total=TIMEOUT, most=MOST_ANSWER
            )
        except HttpClientError as error:
            raise ChannelDownError(f"no answer: {error}") from None
        if not 200 <= answer.status < 300:  # a redirect, too: the site names no other address
            raise NotNowError(f"the answer is {answer.status}")


def signature(secret: bytes, body: bytes) -> str:
    """Return ``sha256=...``: the HMAC of the body as it is sent, in hex."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def document(message: Message) -> dict[str, Any]:
    """Return the document that is posted; fields are only ever added."""
    event = message.event
    return {
        "id": event.id,
        "kind": PREFIX + event.kind,
        "at": iso_text(event.at),
        "site": message.site,
        "user_id": event.user_id,
        "booking": _booking(message.booking, message.gpus) if message.booking else None,
        "details": dict(event.details),
    }


def _booking(booking: Booking, gpus: tuple[str, ...]) -> dict[str, Any]:
    ask = booking.ask
    return {
        "id": booking.id,
        "kind": booking.kind.value,
        "state": booking.state.value,
        "reason": booking.reason,
        "pool": ask.pool,
        "gpus": ask.gpus,
        "gpu_names": list(gpus),
        "start": iso_text(ask.start),
        "end": iso_text(ask.end),
        "user_id": booking.user_id,
        "user": booking.user,
        "project_id": booking.project_id,
        "project": booking.project,
        "comment": ask.comment,
        "series": booking.series,
        "offer_until": iso_text(booking.offer_until) if booking.offer_until else None,
        "version": booking.version,
    }
