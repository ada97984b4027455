"""Webhooks: each event as one signed POST of JSON. Only a 2xx answer counts as told; redirects are not followed."""

from __future__ import annotations

import hashlib
import hmac
import http.client
import json
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from gpuyard import __version__
from gpuyard.keeper.channel import GIVE_UP, PREFIX, ChannelDownError, Message, NotNowError
from gpuyard.ledger.records import Event
from gpuyard.model.booking import Booking
from gpuyard.model.errors import UsageError
from gpuyard.site.booking_rules import Webhook

TIMEOUT = 10
"""Seconds for one answer."""


class WebhookChannel:
    """One receiver."""

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
        self._opener = urllib.request.build_opener(_NoRedirect)

    def wants(self, event: Event) -> bool:
        return not self._kinds or event.kind in self._kinds

    @contextmanager
    def open(self) -> Iterator[Callable[[Message], None]]:
        yield self._send

    def _send(self, message: Message) -> None:
        body = json.dumps(document(message), separators=(",", ":")).encode()
        headers = {
            "Content-Type": "application/json",
            "User-Agent": f"gpuyard/{__version__}",
            "X-Gpuyard-Event": PREFIX + message.event.kind,
            "X-Gpuyard-Delivery": str(message.event.id),
            "X-Gpuyard-Signature-256": signature(self._secret, body),
        }
        request = urllib.request.Request(self._url, body, headers, method="POST")
        try:
            with self._opener.open(request, timeout=TIMEOUT) as answer:
                status = answer.status
        except urllib.error.HTTPError as error:
            error.close()
            status = error.code
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            raise ChannelDownError(f"no answer: {reason or type(error).__name__}") from None
        if not 200 <= status < 300:
            raise NotNowError(f"the answer is {status}")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirect is an answer like any other: what is told is not carried to addresses that the site does not name."""

    def redirect_request(self, *args: Any, **keywords: Any) -> None:
        return None


def signature(secret: bytes, body: bytes) -> str:
    """``sha256=...``: the HMAC of the body as it is sent, in hex."""
    return "sha256=" + hmac.new(secret, body, hashlib.sha256).hexdigest()


def document(message: Message) -> dict[str, Any]:
    """What is posted; fields are only ever added."""
    event = message.event
    return {
        "id": event.id,
        "kind": PREFIX + event.kind,
        "at": _utc(event.at),
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
        "start": _utc(ask.start),
        "end": _utc(ask.end),
        "user_id": booking.user_id,
        "user": booking.user,
        "project_id": booking.project_id,
        "project": booking.project,
        "comment": ask.comment,
        "series": booking.series,
        "offer_until": _utc(booking.offer_until) if booking.offer_until else None,
        "version": booking.version,
    }


def _utc(moment: datetime) -> str:
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
