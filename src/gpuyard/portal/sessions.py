"""Who is logged in. The cookie is a random number of 256 bits; the store has its digest, so that whoever reads the
database cannot be anybody."""

from __future__ import annotations

import hashlib
import re
import secrets
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.ledger.records import Session
from gpuyard.ledger.store import Store

COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
PRUNE_EVERY = timedelta(minutes=10)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    """43 characters, 256 bits."""
    return secrets.token_urlsafe(32)


class Sessions:
    """Safe to use from several threads, and from several processes on one store."""

    def __init__(self, store: Store, now: Callable[[], datetime], longest: timedelta, idle: timedelta) -> None:
        self._store, self._now, self._longest, self._idle = store, now, longest, idle
        self._pruned: datetime | None = None
        # So that putting off the end of a session does not bring back one that ends at the same moment.
        self._writing = threading.Lock()

    def begin(self, user_id: str, user: str, project_id: str) -> tuple[str, Session]:
        """The cookie of a new session, and the session."""
        now = self._now()
        if self._pruned is None or now - self._pruned >= PRUNE_EVERY:
            self._pruned = now
            self._store.prune_sessions(now)
        cookie = new_secret()
        expires = now + min(self._idle, self._longest)
        session = Session(digest_of(cookie), user_id, user, project_id, new_secret(), now, expires)
        self._store.put_session(session)
        return cookie, session

    def find(self, cookie: str, used: bool = True) -> Session | None:
        """The session of a cookie, whose end is put off if it was `used`; None when there is none (any more)."""
        if not COOKIE.fullmatch(cookie):
            return None
        now = self._now()
        session = self._store.get_session(digest_of(cookie), now)
        if session is None or now >= session.created + self._longest:
            return None
        expires = min(now + self._idle, session.created + self._longest)
        # Written every now and then: reading a page should not write.
        if used and expires - session.expires >= self._idle / 20:
            return self._put_off(session, expires)
        return session

    def _put_off(self, session: Session, expires: datetime) -> Session | None:
        with self._writing:
            current = self._store.get_session(session.digest, self._now())
            if current is None:
                return None
            later = replace(current, expires=expires)
            self._store.put_session(later)
            return later

    def switch(self, session: Session, project_id: str) -> Session:
        """Look at another project."""
        with self._writing:
            switched = replace(session, project_id=project_id)
            if self._store.get_session(session.digest, self._now()) is not None:
                self._store.put_session(switched)
            return switched

    def end(self, cookie: str) -> None:
        if COOKIE.fullmatch(cookie):
            with self._writing:
                self._store.delete_session(digest_of(cookie))

    def end_all(self, user_id: str) -> None:
        """All of a user: one that Keystone does not let in any more."""
        with self._writing:
            self._store.delete_sessions(user_id)
