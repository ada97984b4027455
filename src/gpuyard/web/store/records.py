"""Rows of the portal's tables, as plain data; times are UTC."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime


@dataclass(frozen=True)
class Feed:
    """A calendar that anybody with its secret address can read."""

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
    """Time when it was last read, to the hour."""


@dataclass(frozen=True)
class Session:
    """A person's login to the portal."""

    digest: str
    """SHA-256 of the cookie, in hex."""
    user_id: str
    user: str
    project_id: str
    """The project that is looked at."""
    csrf: str
    created: datetime
    expires: datetime
    """Its end, put off with every use, until `latest`."""
    latest: datetime
    sealed_token: str = field(default="", repr=False)
    """The person's Keystone token, encrypted with the cookie (sealed_tokens.py); empty where the site keeps none."""
