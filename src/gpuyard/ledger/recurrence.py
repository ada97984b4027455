"""Recurring bookings: an iCalendar rule (RFC 5545 RRULE) becomes single bookings of one series.

The rule is reckoned in local time, so that "Mondays at nine" stays at nine when clocks change.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dateutil.rrule import rrule, rrulestr

from gpuyard.model.booking import Ask, Reason

MOST = 60
"""Bookings of one series."""


def expand(ask: Ask, rule: str, zone: str) -> list[Ask] | Reason:
    """One ask for each time that the rule names, the first one being the ask itself; or what is wrong with the rule.

    All last as long as the first one does on the clock: a night in which clocks change is an hour longer or shorter.
    """
    try:
        local = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return Reason("repeat", f"there is no time zone {zone!r}; name one as in 'Europe/Rome'")
    text = rule.strip().removeprefix("RRULE:").upper()
    if "COUNT=" not in text and "UNTIL=" not in text:
        return Reason("repeat", f"{rule!r} never ends; add COUNT= or UNTIL=, as in FREQ=WEEKLY;COUNT=4")
    if "\n" in text or "FREQ=" not in text or any(f"FREQ={unit}" in text for unit in ("SECONDLY", "MINUTELY")):
        return Reason("repeat", f"{rule!r} is no rule for bookings; write one as in FREQ=WEEKLY;COUNT=4")
    first, last = (moment.astimezone(local).replace(tzinfo=None) for moment in (ask.start, ask.end))
    try:
        times = _times(text, first, local)
        begins = [time for _, time in zip(range(MOST + 1), times, strict=False)]
    except (ValueError, TypeError, KeyError, OverflowError) as error:
        return Reason("repeat", f"{rule!r} is no rule of iCalendar ({error}); write one as in FREQ=WEEKLY;COUNT=4")
    if len(begins) > MOST:
        return Reason("repeat", f"{rule!r} makes more than {MOST} bookings; make fewer at a time")
    if not begins or begins[0] != first:
        return Reason("repeat", f"the first booking, {first:%a %Y-%m-%d %H:%M}, is not one that {rule!r} names")
    length = last - first
    return [
        replace(
            ask,
            start=begin.replace(tzinfo=local).astimezone(UTC),
            end=(begin + length).replace(tzinfo=local).astimezone(UTC),
        )
        for begin in begins
    ]


def _times(text: str, first: datetime, local: ZoneInfo) -> Iterator[datetime]:
    """Local times, without a zone. UNTIL is in UTC in rules that have a Z there, and local in others."""
    parts = dict(part.split("=", 1) for part in text.split(";") if part)
    until = parts.get("UNTIL", "")
    if until.endswith("Z"):
        limit = datetime.strptime(until, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC).astimezone(local)
        parts["UNTIL"] = limit.strftime("%Y%m%dT%H%M%S")
    rule = rrulestr(";".join(f"{key}={value}" for key, value in parts.items()), dtstart=first)
    assert isinstance(rule, rrule)
    yield from rule
