"""Converts moments to and from a database's whole seconds since 1970."""

from __future__ import annotations

from datetime import UTC, datetime


def seconds(moment: datetime) -> int:
    """Return the seconds since 1970, rounded towards zero. Raises ValueError when the moment has no time zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment} has no time zone")
    return int(moment.timestamp())


def maybe_seconds(moment: datetime | None) -> int | None:
    return None if moment is None else seconds(moment)


def moment(number: int) -> datetime:
    return datetime.fromtimestamp(number, UTC)


def maybe_moment(number: int | None) -> datetime | None:
    return None if number is None else moment(number)
