"""Reads bodies of requests within limits: bytes of each, bytes of all that are in memory at once and of those that one
client sends, and seconds.

A client chooses how long a body says it is and how slowly it comes. Without the second limit, many clients that send
slowly fill the memory; without the third, a few of them hold the second for ever. So callers ask for a token first
where they can, and only then read the body. And a known client has a share only, or some hundred connections of one
would keep out all others.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from starlette.requests import HTTPConnection
from starlette.types import Receive

from gpuyard.web.problems import Refusal

SHARES = 16
"""Parts of which one client may have one: it takes as many clients to keep out the others."""


class BoundedBodies:
    """The bodies of one kind of request. Made once per app, and used in its event loop."""

    def __init__(self, most: int, at_once: int, within: float = 10.0) -> None:
        """Allow `most` bytes for a body and `at_once` for all bodies together, and `within` seconds for one to come."""
        self.most, self.at_once, self.within = most, at_once, within
        self._held = 0
        self._held_by: Counter[str] = Counter()

    @asynccontextmanager
    async def read(self, request: HTTPConnection, receive: Receive, client: str = "") -> AsyncIterator[bytes]:
        """Read a body, which counts for as long as the block lasts. `client`: the one that has a share of all bodies;
        empty for those that are limited elsewhere. Raises Refusal 400 (no length, or cut off), 408 (too slow), 413
        (too long) or 503 (too many at once)."""
        size = self._length(request)
        its = self._held_by[client] + size if client else 0
        if self._held + size > self.at_once or its > max(self.most, self.at_once // SHARES):
            raise Refusal(503, "busy", "Too much is being read; try again in a while.", retry_after=10)
        self._held += size
        self._held_by[client] += size
        try:
            try:
                async with asyncio.timeout(self.within):
                    body = await self._read(receive, size)
            except TimeoutError:
                raise Refusal(408, "too_slow", f"The body of the request has {self.within:.0f} s to come.") from None
            yield body
        finally:
            self._held -= size
            self._held_by[client] -= size
            if not self._held_by[client]:
                del self._held_by[client]

    def _length(self, request: HTTPConnection) -> int:
        """Return how many bytes the body may have."""
        text = request.headers.get("content-length", str(self.most))
        if not text.isdecimal() or len(text) > 15:
            raise Refusal(400, "bad_request", "The length of the body is no number.")
        if int(text) > self.most:
            raise self._too_long()
        return int(text)

    async def _read(self, receive: Receive, size: int) -> bytes:
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise Refusal(400, "bad_request", "The body of the request is not whole.")
            body += message.get("body", b"")
            if len(body) > size:
                raise self._too_long()
            if not message.get("more_body", False):
                return bytes(body)

    def _too_long(self) -> Refusal:
        return Refusal(413, "too_long", f"The body of the request may have {self.most} bytes.")
