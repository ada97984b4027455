"""Cache of Keystone's answers about people, tokens and logins, each kept for a minute.

A role that is taken away or a user who is disabled has no access a minute later. When Keystone cannot be asked, its
last answer holds for four hours: bookings go on while it is away. Requests without a known answer fail at once while it
is away: one of them asks it now and then, and the others do not wait.
"""

from __future__ import annotations

import hashlib
import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Generic, TypeVar

from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import Account, Login, People, TokenFacts

FRESH = 60.0
"""Seconds that an answer of Keystone's is used without asking again."""
OUTAGE = 4 * 3600.0
"""Seconds that it is used when Keystone cannot be asked."""
AGAIN = 20.0
"""Seconds after which a Keystone that could not be asked is asked again."""
PATIENCE = 5.0
"""Seconds to wait for another thread's question when an older answer is there: Keystone may have stopped answering."""
SERVER_ERROR, GATEWAY = 500, (502, 503, 504)
MOST = 10_000
"""Answers of each kind that are kept."""

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class _Line:
    """To Keystone."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._down_until = 0.0
        """0: the last question was answered."""
        self._lock = threading.Lock()

    @property
    def down(self) -> bool:
        return self._clock() < self._down_until

    def up(self) -> None:
        """It has answered somebody else."""
        self._down_until = 0.0

    def ask(self, question: Callable[[], T]) -> T:
        """Raises CloudError: what the question raises, or at once while the line is down."""
        with self._lock:
            if self.down:
                raise CloudError("Keystone could not be asked a moment ago; it is asked again in a while")
            if self._down_until:  # one tries whether it is back; the others do not wait for that
                self._down_until = self._clock() + AGAIN
        down = False
        try:
            return question()
        except CloudError as error:
            down = error.status is None or error.status in GATEWAY
            raise
        finally:
            self._down_until = self._clock() + AGAIN if down else 0.0


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
            entry = self._kept.setdefault(key, _Kept())
            self._kept.move_to_end(key)
            while len(self._kept) > MOST:
                self._kept.popitem(last=False)
        if not entry.lock.acquire(timeout=-1 if entry.asked is None else PATIENCE):
            return entry.answer
        try:
            return self._answer(entry, question)
        except CloudError:
            if entry.asked is None:  # or questions without an answer would push out answers
                self.forget(key)
            raise
        finally:
            entry.lock.release()

    def knows(self, key: str) -> bool:
        """Return whether the last answer was somebody, and not that there is nobody. Asks nothing."""
        with self._lock:
            entry = self._kept.get(key)
            return entry is not None and entry.answer is not None

    def _answer(self, entry: _Kept[T], question: str) -> T | None:
        now = self._clock()
        age = None if entry.asked is None else now - entry.asked
        if age is not None and (age < FRESH or (age < OUTAGE and self._line.down)):
            return entry.answer
        try:
            entry.answer = self._line.ask(lambda: self._ask(question))
        except CloudError as error:
            # Not for an answer that says no: somebody could send what gets one, and keep his old roles by it.
            if age is None or age >= OUTAGE or (error.status is not None and error.status < SERVER_ERROR):
                raise
            LOG.warning("what Keystone said %d s ago still holds: %s", age, error)
        else:
            entry.asked = now
        return entry.answer

    def forget(self, key: str) -> None:
        with self._lock:
            self._kept.pop(key, None)


class Directory:
    """Cached questions to Keystone. Safe to use from several threads. Methods raise CloudError when Keystone cannot be
    asked and nothing is known."""

    def __init__(self, people: People, clock: Callable[[], float] = time.monotonic) -> None:
        self.people = people
        # Of their own: what strangers send must not decide whether others are asked about.
        self._of_accounts, self._of_tokens, self._of_logins = _Line(clock), _Line(clock), _Line(clock)
        self._accounts: _Answers[Account] = _Answers(people.account, clock, self._of_accounts)
        self._revoked: _Answers[Mapping[str, datetime]] = _Answers(lambda _: people.revoked(), clock, self._of_accounts)
        self._tokens: _Answers[TokenFacts] = _Answers(people.token, clock, self._of_tokens)

    def log_in(self, user: str, password: str, domain: str) -> Login:
        """Check a password. Raises LoginRefusedError."""
        return self._of_logins.ask(lambda: self.people.log_in(user, password, domain))

    def login_token(self, token: str) -> TokenFacts | None:
        """Return the facts of a token as `token` does, but ask Keystone each time."""
        return self._of_logins.ask(lambda: self.people.token(token))

    def spend(self, token: str) -> bool:
        """Spend a token, so that it opens no second session; False when it was no longer valid."""
        self._tokens.forget(_key(token))
        return self._of_logins.ask(lambda: self.people.spend(token))

    def account(self, user_id: str) -> Account | None:
        """Return the account of a user; None when the user may not log in."""
        return self._accounts.get(user_id, user_id)

    def revoked(self, user_id: str) -> datetime | None:
        """Return the time until which the user's logins are revoked; None: none are."""
        return (self._revoked.get("", "") or {}).get(user_id)

    def token(self, token: str) -> TokenFacts | None:
        """Return the facts of a token; None when it is not valid. Callers compare `expires` with the time."""
        return self._tokens.get(_key(token), token)

    def knows_token(self, token: str) -> bool:
        """Return whether it was valid when Keystone was asked last. Asks nothing."""
        return self._tokens.knows(_key(token))

    def logged_in(self, user_id: str) -> None:
        """Ask Keystone for the account the next time: the user has just logged in there, so it answers."""
        self._of_accounts.up()
        self._accounts.forget(user_id)


def _key(token: str) -> str:
    """Its digest: what may be in memory for hours is no token."""
    return hashlib.sha256(token.encode()).hexdigest()
