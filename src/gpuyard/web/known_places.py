"""Records the places from which users have logged in, in the database: all portals on it share them, and they survive a
restart."""

from __future__ import annotations

import hashlib
import logging
import time
from collections.abc import Callable
from datetime import datetime
from functools import lru_cache

from gpuyard.database.errors import StoreError
from gpuyard.web.store import PortalStore

ROUNDS = 50_000
"""Rounds of a place's hash: a hundredth of a second. A cookie has 256 bits, an IPv4 address 32; with one round, a
reader of the database could try all addresses in no time."""
AGAIN = 20.0
"""Seconds after which a database that could not be read is asked again: no login attempt waits for it."""
LOG = logging.getLogger(__name__)


class KnownPlaces:
    """Known places of users. Safe to use from several threads. Never raises: a password can be tried without them."""

    def __init__(
        self, store: PortalStore, now: Callable[[], datetime], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._now, self._clock = store, now, clock
        self._away_until = float("-inf")

    def has(self, user: str, place: str) -> bool:
        """Return whether somebody has logged in as a user from a place; no while the database cannot be read."""
        if self._clock() < self._away_until:
            return False
        try:
            return self._store.knows_place(digest_of_place(user, place), self._now())
        except StoreError as error:
            self._away_until = self._clock() + AGAIN
            LOG.warning("from where users have logged in cannot be read, so all places count as new: %s", error)
            return False

    def add(self, user: str, place: str, user_id: str) -> None:
        """Record that somebody has logged in as a user from a place. `user_id`: the user's id, since Keystone may
        accept many spellings of one name."""
        try:
            self._store.note_place(digest_of_place(user, place), user_id, self._now())
        except StoreError as error:
            LOG.warning("from where a user has logged in cannot be kept: %s", error)


@lru_cache(maxsize=1000)
def digest_of_place(user: str, place: str) -> str:
    salt = hashlib.sha256(user.encode()).digest()
    return hashlib.pbkdf2_hmac("sha256", place.encode(), salt, ROUNDS).hex()
