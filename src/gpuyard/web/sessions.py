"""Sessions of people who are logged in. The cookie is a random number of 256 bits; the store has only its digest, so
that a reader of the database cannot act as anybody. How long they last is set in settings.py."""

from __future__ import annotations

import hashlib
import re
import secrets
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from gpuyard.web.open_streams import OpenStreams
from gpuyard.web.sealed_tokens import seal, unseal
from gpuyard.web.store import PortalStore, Session

COOKIE = re.compile(r"[A-Za-z0-9_-]{43}")
LATEST = datetime.max.replace(tzinfo=UTC)
PRUNE_EVERY = timedelta(minutes=10)


def digest_of(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()


def new_secret() -> str:
    """Return a random secret of 43 characters, 256 bits."""
    return secrets.token_urlsafe(32)


class Sessions:
    """Sessions of one store. Safe to use from several threads, and from several processes on one store."""

    def __init__(self, store: PortalStore, now: Callable[[], datetime], longest: timedelta, idle: timedelta) -> None:
        self._store, self._now, self._longest, self._idle = store, now, longest, idle
        self._pruned: datetime | None = None
        self.streams = OpenStreams()

    def begin(
        self, user_id: str, user: str, project_id: str, until: datetime | None = None, token: str = ""
    ) -> tuple[str, Session]:
        """Return the cookie of a new session, and the session; it ends at the latest `until`. `token`: the person's
        Keystone token, which is kept encrypted; empty: none is kept."""
        now = self._now()
        if self._pruned is None or now - self._pruned >= PRUNE_EVERY:
            self._pruned = now
            self._store.prune(now)
        cookie = new_secret()
        latest = min(now + self._longest, until or LATEST)
        expires = min(now + self._idle, latest)
        session = Session(
            digest_of(cookie),
            user_id,
            user,
            project_id,
            new_secret(),
            now,
            expires,
            latest,
            seal(token, cookie) if token else "",
        )
        self._store.put_session(session)
        return cookie, session

    def find(self, cookie: str, used: bool = True) -> Session | None:
        """Return the session of a cookie, whose end is put off if it was `used`; None when there is none (any more)."""
        if not COOKIE.fullmatch(cookie):
            return None
        now = self._now()
        session = self._store.get_session(digest_of(cookie), now)
        if session is None or now >= session.latest:
            return None
        expires = min(now + self._idle, session.latest)
        # Written every now and then: reading a page should not write.
        if used and expires - session.expires >= self._idle / 20:
            return replace(session, expires=expires) if self._store.put_off(session.digest, expires) else None
        return session

    def token(self, cookie: str) -> str:
        """Return the Keystone token that the session of a cookie keeps; empty when it keeps none, or there is none."""
        session = self.find(cookie, used=False)
        return unseal(session.sealed_token, cookie) if session else ""

    def use_login(self, audit_id: str, expires: datetime) -> bool:
        """Record that a token of single sign-on begins a session; return whether it is the first time. `audit_id`:
        Keystone's of the token, since the token itself can be spelled in several ways."""
        return self._store.use_login(digest_of(audit_id), expires)

    def switch(self, session: Session, project_id: str) -> Session:
        """Switch a session to another project."""
        self._store.switch(session.digest, project_id)
        return replace(session, project_id=project_id)

    def end(self, cookie: str) -> None:
        """Log out the session of a cookie, and end its streams."""
        if COOKIE.fullmatch(cookie):
            self._store.delete_session(digest_of(cookie))
            self.streams.check(digest_of(cookie))

    def end_all(self, user_id: str, until: datetime | None = None) -> int:
        """Log out all sessions of a user, or those that began until then, and end their streams; return how many."""
        ended = self._store.delete_sessions(user_id, until)
        self.streams.check(user_id)
        return ended
