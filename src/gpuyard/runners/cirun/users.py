"""Reads lists of users that a policy names by URL.

They are read as files of repositories, through GitHub's API and with gpuyard's own credentials there. A URL that leads
anywhere else is not followed: whoever writes `.access.yml` must not choose whom gpuyard's server talks to.
"""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from gpuyard.runners.facts import TextFile

MOST_CHARACTERS = 1 << 20
MOST_USERS = 20_000
MOST_PARTS = 30
GITHUB_COM = "https://github.com"
RAW = "https://raw.githubusercontent.com"
NAME = re.compile(r"[A-Za-z0-9._-]{1,100}")


def source_of(url: str, github: str = GITHUB_COM) -> TextFile | None:
    """Return the file that a URL means: ``https://raw.githubusercontent.com/OWNER/NAME/REF/PATH``, or at the same
    GitHub ``/OWNER/NAME/raw/REF/PATH`` or ``/blob/``. None for any other. `github` is where the policy's organisation
    is."""
    try:
        parts = urlsplit(url.strip())
        steps = [unquote(step) for step in parts.path.split("/")[1:]]
    except ValueError:
        return None
    if len(steps) > MOST_PARTS or not all(_harmless(step) for step in steps):
        return None
    server = f"{parts.scheme}://{parts.netloc}"
    if github == GITHUB_COM and server == RAW:
        owner, name, *rest = steps if len(steps) >= 4 else ("", "")
    elif server == github and len(steps) >= 5 and steps[2] in ("raw", "blob"):
        owner, name, rest = steps[0], steps[1], steps[3:]
    else:
        return None
    if rest[:2] == ["refs", "heads"] or rest[:2] == ["refs", "tags"]:
        rest = rest[2:]
    if len(rest) < 2 or not NAME.fullmatch(owner) or not NAME.fullmatch(name):
        return None
    return TextFile(f"{owner}/{name}", rest[0], "/".join(rest[1:]))


def _harmless(step: str) -> bool:
    return bool(step) and step not in (".", "..") and step.isprintable() and not set(step) & set("/\\?#%")


def read_users(text: str) -> frozenset[str] | None:
    """Parse a list of users, and return logins in lower case: of ``{"users": [{"github": LOGIN, "id": NUMBER}, ...]}``,
    or of a list of such entries or of logins. None when it is nothing of the kind."""
    if len(text) > MOST_CHARACTERS:
        return None
    try:
        data: Any = json.loads(text)
    except (ValueError, RecursionError):
        return None
    entries = data.get("users") if isinstance(data, dict) else data
    if not isinstance(entries, list) or len(entries) > MOST_USERS:
        return None
    named = (entry.get("github") or entry.get("login") if isinstance(entry, dict) else entry for entry in entries)
    return frozenset(login.strip().lower() for login in named if isinstance(login, str) and login.strip())
