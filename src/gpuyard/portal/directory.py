"""What Keystone says of people, kept for a minute.

A role that is taken away or a user who is disabled is without access a minute later. When Keystone cannot be asked,
what it said last holds for some hours: bookings go on while it is away.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from gpuyard.cloud.errors import CloudError
from gpuyard.cloud.people import Account, People, TokenFacts

FRESH = 60.0
"""Seconds that an answer of Keystone's is used without asking again."""
OUTAGE = 4 * 3600.0
"""Seconds that it is used when Keystone cannot be asked."""
AGAIN = 20.0
"""Seconds after which a Keystone that could not be asked is asked again."""
PATIENCE = 5.0
"""Seconds to wait for somebody else's question when an older answer is there: Keystone may have stopped answering."""
SERVER_ERROR, GATEWAY = 500, (502, 503, 504)
MOST = 10_000
"""Answers of each kind that are kept."""

LOG = logging.getLogger(__name__)
T = TypeVar("T")


@dataclass
class _Line:
    """To Keystone."""

    down_until: float = 0.0


@dataclass
class _Kept(Generic[T]):
    lock: threading.Lock = field(default_factory=threading.Lock)
    asked: float | None = None
    """When Keystone answered; None: never."""
    answer: T | None = None


class _Answers(Generic[T]):
    """Answers by key; one question at a time for each."""

    def __init__(self, ask: Callable[[str], T | None], clock: Callable[[], float], line: _Line) -> None:
        self._ask, self._clock, self._line = ask, clock, line
        self._kept: OrderedDict[str, _Kept[T]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: str, question: str) -> T | None:
        with self._lock:
            kept = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        if not kept.lock.acquire(timeout=-1 if kept.asked is None else PATIENCE):
            return kept.answer
        try:
            return self._answer(kept, question)
        finally:
            kept.lock.release()

    def _answer(self, kept: _Kept[T], question: str) -> T | None:
        now = self._clock()
        age = None if kept.asked is None else now - kept.asked
        if age is not None and (age < FRESH or (age < OUTAGE and now < self._line.down_until)):
            return kept.answer
        try:
            kept.answer = self._ask(question)
        except CloudError as error:
            # Not for an answer that says no: somebody could send what gets one, and keep his old roles by it.
            if error.status is None or error.status in GATEWAY:
                self._line.down_until = self._clock() + AGAIN
            if age is None or age >= OUTAGE or (error.status is not None and error.status < SERVER_ERROR):
                raise
            LOG.warning("what Keystone said %d s ago still holds: %s", age, error)
        else:
            kept.asked = now
        return kept.answer

    def forget(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)


class Directory:
    """Safe to use from several threads. Methods raise CloudError when Keystone cannot be asked and nothing is known."""

    def __init__(self, people: People, clock: Callable[[], float] = time.monotonic) -> None:
        self.people = people
        self._accounts: _Answers[Account] = _Answers(people.account, clock, _Line())
        self._tokens: _Answers[TokenFacts] = _Answers(people.token, clock, _Line())

    def account(self, user_id: str) -> Account | None:
        """None when the user may not log in."""
        return self._accounts.get(user_id, user_id)

    def token(self, token: str) -> TokenFacts | None:
        """None when it is not valid. Whoever asks compares `expires` with the time."""
        # By its digest: what may be in memory for hours is no token.
        return self._tokens.get(hashlib.sha256(token.encode()).hexdigest(), token)

    def forget(self, user_id: str) -> None:
        """Ask Keystone the next time: the user has just logged in."""
        self._accounts.forget(user_id)
