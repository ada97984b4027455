"""Authenticates hosts and guests by tokens of one purpose. No person has such a token, and nobody logs in here."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request

from gpuyard.database.errors import StoreError
from gpuyard.health.records import HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.tokens import digest_of
from gpuyard.web.problems import Refusal, unavailable
from gpuyard.web.token_bucket import RateLimit
from gpuyard.web.unknown_callers import UnknownCallerThrottle


class MachineTokens:
    """The tokens of one purpose. Made once for it. Safe to use from several threads."""

    def __init__(
        self,
        store: HealthStore,
        purpose: str,
        now: Callable[[], datetime],
        gateways: Sequence[str] = (),
        most: int = 60,
        every: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`most`: requests that one token may send at once, and `every` so many seconds one more."""
        self._store, self._purpose, self._now = store, purpose, now
        self._uses = RateLimit(most, every, clock)
        self._strangers = UnknownCallerThrottle(gateways, clock)

    def admit(self, request: Request, subject: str) -> HealthToken:
        """Return the token of a request. All who have none that is good for this purpose and subject, and has not
        expired, get the same answer. Raises Refusal, StoreError."""
        origin = self._strangers.origin(request)
        _refuse_when(origin.wait())
        scheme, _, text = request.headers.get("authorization", "").partition(" ")
        digest = digest_of(text.strip())
        token = self._store.token(digest) if scheme.lower() == "bearer" else None
        if token is None or (token.purpose, token.subject) != (self._purpose, subject) or self._over(token):
            origin.take()
            raise Refusal(
                401, "unauthorized", f"This needs a token for {self._purpose} of {subject}, as a bearer token.",
                headers={"WWW-Authenticate": "Bearer"},
            )  # fmt: skip
        _refuse_when(self._uses.take(digest))
        return token

    async def admit_at_once(self, request: Request, subject: str) -> HealthToken:
        """Admit in a thread, before the body is read. Raises Refusal."""
        try:
            return await run_in_threadpool(self.admit, request, subject)
        except StoreError as error:
            raise unavailable(error) from None

    def _over(self, token: HealthToken) -> bool:
        return token.expires is not None and token.expires <= self._now()


def _refuse_when(seconds: int) -> None:
    if seconds:
        raise Refusal(429, "too_many", f"Too many requests; try again in {seconds} s.", retry_after=seconds)
