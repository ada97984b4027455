"""Places from which users have logged in, in the database: all portals on it know them, and a restart forgets none."""

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
"""Of the hash of a place: a hundredth of a second. A cookie has 256 bits, an address of IPv4 has 32, and with one round
whoever reads the database would have tried them all in no time."""
AGAIN = 20.0
"""Seconds after which a database that could not be read is asked again: nobody who tries passwords waits for it."""
LOG = logging.getLogger(__name__)


class KnownPlaces:
    """Safe to use from several threads. Never raises: a password can be tried without what is known here."""

    def __init__(
        self, store: PortalStore, now: Callable[[], datetime], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._now, self._clock = store, now, clock
        self._away_until = float("-inf")

    def has(self, user: str, place: str) -> bool:
        """Whether somebody has logged in as a user from a place; no while the database cannot be read."""
        if self._clock() < self._away_until:
            return False
        try:
            return self._store.knows_place(digest_of_place(user, place), self._now())
        except StoreError as error:
            self._away_until = self._clock() + AGAIN
            LOG.warning("from where users have logged in cannot be read, so all places count as new: %s", error)
            return False

    def add(self, user: str, place: str, user_id: str) -> None:
        """Note that somebody has logged in as a user from a place. `user_id`: whose name that is; Keystone may take
        many spellings of one."""
        try:
            self._store.note_place(digest_of_place(user, place), user_id, self._now())
        except StoreError as error:
            LOG.warning("from where a user has logged in cannot be kept: %s", error)


@lru_cache(maxsize=1000)
def digest_of_place(user: str, place: str) -> str:
    salt = hashlib.sha256(user.encode()).digest()
    return hashlib.pbkdf2_hmac("sha256", place.encode(), salt, ROUNDS).hex()
