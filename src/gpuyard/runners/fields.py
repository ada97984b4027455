"""Tolerant readers for fields of JSON that others wrote: return the expected type or an empty value. Pure.

Nothing in here raises but `document`; text is cut to a length, and has no control characters.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from gpuyard.model.text import printable

NOTHING: Mapping[str, Any] = {}
MOST_LABELS = 100
LONGEST_LABEL = 256
BIGGEST = 2**63 - 1
SANE_YEARS = range(2000, 2200)
"""Go's zero time is in the year 1, and nobody shall reckon with the year 9999."""
REPOSITORY = re.compile(r"[A-Za-z0-9_-]{1,100}/[A-Za-z0-9._-]{1,100}")
NAME = re.compile(r"[A-Za-z0-9_.-]{1,100}")
BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def document(body: bytes) -> Any:
    """Parse a body of JSON. Raises ValueError, whatever is wrong with it."""
    try:
        return json.loads(body.removeprefix(BYTE_ORDER_MARK))
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def row(value: Any, key: str = "") -> Mapping[str, Any]:
    """Return an object, or the object that it has as `key`; empty when there is none."""
    if key:
        value = row(value).get(key)
    return value if isinstance(value, dict) else NOTHING


def rows(value: Any, key: str = "", most: int = 1000) -> list[Mapping[str, Any]]:
    """Return the objects of a list, or of the list that an object has as `key`."""
    if key:
        value = row(value).get(key)
    return [item for item in value[:most] if isinstance(item, dict)] if isinstance(value, list) else []


def text(data: Mapping[str, Any], key: str, most: int = 1000) -> str:
    """Return the text of a key; empty when there is none."""
    value = data.get(key)
    return printable(value[:most]) if isinstance(value, str) else ""


def whole(data: Mapping[str, Any], key: str) -> int:
    """Return a whole number from 0 to 2**63-1; 0 when there is none."""
    value = data.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= BIGGEST else 0


def truth(data: Mapping[str, Any], key: str) -> bool:
    return data.get(key) is True


def texts(data: Mapping[str, Any], key: str) -> tuple[str, ...]:
    """Return the texts of a list, at most as many and as long as labels are; of objects their ``name``."""
    value = data.get(key)
    if not isinstance(value, list):
        return ()
    names = (text(item, "name") if isinstance(item, dict) else item for item in value[:MOST_LABELS])
    return tuple(printable(name[:LONGEST_LABEL]) for name in names if isinstance(name, str) and name)


def moment(data: Mapping[str, Any], key: str) -> datetime | None:
    """Return a time given as ISO 8601, in UTC and whole seconds, as the store keeps it: a time that is reported again
    must not look new. None when there is none, and for a year outside SANE_YEARS."""
    value = data.get(key)
    if not isinstance(value, str) or len(value) > 40:
        return None
    try:
        parsed = datetime.fromisoformat(value)
        parsed = parsed.replace(tzinfo=UTC) if parsed.tzinfo is None else parsed.astimezone(UTC)
    except (ValueError, OverflowError):
        return None
    return parsed.replace(microsecond=0) if parsed.year in SANE_YEARS else None


def repository(data: Mapping[str, Any], key: str) -> str:
    """Return ``owner/name``; empty when the value is not of that form."""
    value = data.get(key)
    if not isinstance(value, str) or not REPOSITORY.fullmatch(value) or value.rpartition("/")[2] in {".", ".."}:
        return ""
    return value
