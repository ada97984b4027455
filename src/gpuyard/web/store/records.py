"""What the portal keeps. Plain data; times are UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True)
class Feed:
    """A calendar that can be read by whoever knows its secret address."""

    digest: str
    """SHA-256 of the secret, in hex; the secret itself is not kept."""
    scope: str
    """``user``, ``pool`` or ``gpu``."""
    target: str
    """The user's id, the pool's name, or ``host/address``."""
    owner: str
    """Id of the user who made it."""
    created: datetime
    expires: datetime
    used: datetime | None = None
    """When it was last read, to the hour."""


@dataclass(frozen=True)
class Session:
    """Somebody logged in to the portal."""

    digest: str
    """SHA-256 of the cookie, in hex."""
    user_id: str
    user: str
    project_id: str
    """The project that is looked at."""
    csrf: str
    created: datetime
    expires: datetime
    """Put off with every use, until `latest`."""
    latest: datetime
