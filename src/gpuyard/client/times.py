"""Parses times as people type them. Pure, but for `local_zone`, which asks the machine.

Accepted are

- ``now``, and ``+3d`` or ``+4h`` from another time;
- ``today`` and ``tomorrow``, with or without a time of day: ``tomorrow 9:00``;
- a day of the week or a time of day, ``friday``, ``fri 9:00``, ``17:00``: the next one after now, or after a start;
- ISO 8601: ``2026-12-01T14:00+01:00``, or without an offset, ``2026-12-01 14:00``, in a time zone.

A day without a time of day is its first moment. A local time that clocks skip or show twice is an error that names the
readings.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from zoneinfo import ZoneInfo

from gpuyard.model.errors import UsageError

RELATIVE = re.compile(r"^\+\s*(\d{1,6})\s*([a-z]+)$")
ABSOLUTE = re.compile(
    r"^(\d{4}-\d{2}-\d{2})(?:[T ](\d{1,2}:\d{2}(?::\d{2})?))?\s*(Z|UTC|[+-]\d{2}:?\d{2})?$", re.IGNORECASE
)
WEEKDAYS = {
    name: number
    for number, day in enumerate(("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"))
    for name in (day, day[:3])
}
SPOKEN = re.compile(rf"^(today|tomorrow|{'|'.join(WEEKDAYS)})?(?:(?:^| +)([0-9]{{1,2}}:[0-9]{{2}}))?$")
UNITS = {
    **dict.fromkeys(("m", "min", "minute", "minutes"), timedelta(minutes=1)),
    **dict.fromkeys(("h", "hour", "hours"), timedelta(hours=1)),
    **dict.fromkeys(("d", "day", "days"), timedelta(days=1)),
    **dict.fromkeys(("w", "week", "weeks"), timedelta(weeks=1)),
}
DAY = timedelta(days=1)
HOW = "write it as in 'tomorrow 9:00', 'friday', '17:00', '+4h', 'now', '2026-12-01 14:00' or '2026-12-01T14:00+01:00'"


def parse_time(text: str, zone: ZoneInfo, now: datetime, base: datetime | None = None) -> datetime:
    """Return a time in UTC, in whole seconds. ``+...``, days of the week and times of day count from `base`, or from
    `now`. Raises UsageError."""
    words = text.strip()
    if words.lower() == "now":
        return now.astimezone(UTC).replace(microsecond=0)
    if match := RELATIVE.match(words.lower()):
        return later(base or now, int(match.group(1)), match.group(2), zone, text)
    if words and (match := SPOKEN.match(words.lower())):
        return _spoken(match.group(1) or "", match.group(2) or "", zone, now, base or now, text)
    match = ABSOLUTE.match(words)
    if not match:
        raise UsageError(f"{text!r} is not a time; {HOW}")
    day, clock, offset = match.groups()
    try:
        naive = datetime.fromisoformat(f"{day}T{(clock or '00:00').rjust(5, '0') if clock else '00:00'}")
        if not offset:
            return localize(naive, zone)
        sign = "+00:00" if offset.upper() in ("Z", "UTC") else offset
        return datetime.fromisoformat(f"{naive.isoformat()}{sign}").astimezone(UTC)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is not a time: {error}; {HOW}") from None


def _spoken(day: str, clock: str, zone: ZoneInfo, now: datetime, base: datetime, text: str) -> datetime:
    """Return the time that a day and a time of day name; one of both may be missing. Raises UsageError."""
    counts_from = now if day in ("today", "tomorrow") else base
    local = counts_from.astimezone(zone).replace(tzinfo=None, fold=0)
    try:
        hours, minutes = (int(number) for number in (clock or "0:00").split(":"))
        first = local.replace(hour=hours, minute=minutes, second=0, microsecond=0)
        if day in ("today", "tomorrow"):
            return localize(first + (DAY if day == "tomorrow" else timedelta()), zone)
        first += (WEEKDAYS[day] - first.weekday()) % 7 * DAY if day else timedelta()
        if first <= local:
            first += 7 * DAY if day else DAY
        return localize(first, zone)
    except (ValueError, OverflowError) as error:
        raise UsageError(f"{text!r} is not a time: {error}; {HOW}") from None


def later(base: datetime, number: int, unit: str, zone: ZoneInfo, text: str) -> datetime:
    """Add a length to a time: days and weeks keep the time of day in the zone, also when clocks change; hours and
    minutes are exact. Raises UsageError."""
    if unit not in UNITS:
        raise UsageError(f"{text!r} is not a time: no unit {unit!r}; there are min, h, d and w, as in '+4h'")
    span = number * UNITS[unit]
    start = base.astimezone(UTC).replace(microsecond=0)
    try:
        if UNITS[unit] < DAY:
            return start + span
        return localize(start.astimezone(zone).replace(tzinfo=None, fold=0) + span, zone)
    except OverflowError:
        raise UsageError(f"{text!r} is too far away; {HOW}") from None


def localize(naive: datetime, zone: ZoneInfo) -> datetime:
    """Return a local time in UTC. Raises UsageError when clocks in the zone skip it, or show it twice."""
    first, second = (naive.replace(tzinfo=zone, fold=fold) for fold in (0, 1))
    if first.utcoffset() == second.utcoffset():
        return first.astimezone(UTC)
    readings = sorted((moment.astimezone(UTC).astimezone(zone) for moment in (first, second)), key=datetime.timestamp)
    shown = " or ".join(repr(show_time(reading, zone)) for reading in readings)
    what = "comes twice" if first.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == naive else "does not exist"
    raise UsageError(f"{naive.isoformat(' ', 'minutes')} {what} in {zone.key}, where clocks change; say {shown}")


def show_time(time: datetime, zone: ZoneInfo) -> str:
    """Format as ``2026-12-01T14:00:00+01:00``, with Z for UTC."""
    return time.astimezone(zone).isoformat(timespec="seconds").replace("+00:00", "Z")


def show_api_time(text: object, zone: ZoneInfo) -> str:
    """Format a time of the API, in a zone; "" for none."""
    return show_time(datetime.fromisoformat(str(text)), zone) if text else ""


def find_zone(name: str) -> ZoneInfo:
    """Return a time zone by its name. Raises UsageError."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError):  # ZoneInfoNotFoundError is a KeyError
        pass
    except KeyError:
        pass
    raise UsageError(f"there is no time zone {name!r}; name one as in 'Europe/Rome' or 'UTC' with --timezone")


def local_zone(localtime: Path = Path("/etc/localtime")) -> ZoneInfo:
    """Return the machine's time zone: TZ, or where /etc/localtime points; UTC when neither says. Raises UsageError for
    an unknown TZ."""
    if named := os.environ.get("TZ", "").lstrip(":"):
        return find_zone(named)
    _, separator, name = os.path.realpath(localtime).partition("/zoneinfo/")
    try:
        return find_zone(name) if separator else ZoneInfo("UTC")
    except UsageError:
        return ZoneInfo("UTC")
