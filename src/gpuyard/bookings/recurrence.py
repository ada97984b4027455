"""Expands recurring bookings: an iCalendar rule (RFC 5545 RRULE) becomes single bookings of one series.

The rule is reckoned in local time, so that "Mondays at nine" stays at nine when clocks change. It must end, names only
the parts in PARTS, and makes at most MOST bookings, none later than REACH after the first.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import islice
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from dateutil.rrule import rrule, rrulestr

from gpuyard.model.booking import Ask, Reason

MOST = 60
"""Bookings of one series."""
REACH = timedelta(days=2 * 366)
"""How far ahead a rule is followed."""
PARTS = {
    "FREQ": re.compile(r"DAILY|WEEKLY|MONTHLY"),
    "INTERVAL": re.compile(r"[1-9]\d{0,2}"),
    "COUNT": re.compile(r"[1-9]\d{0,4}"),
    "UNTIL": re.compile(r"\d{8}(T\d{6}Z?)?"),
    "BYDAY": re.compile(r"[+-]?[1-5]?(MO|TU|WE|TH|FR|SA|SU)(,[+-]?[1-5]?(MO|TU|WE|TH|FR|SA|SU)){0,6}"),
    "BYMONTHDAY": re.compile(r"-?([1-9]|[12]\d|3[01])(,-?([1-9]|[12]\d|3[01])){0,30}"),
    "WKST": re.compile(r"MO|TU|WE|TH|FR|SA|SU"),
}
"""The parts that a rule may have. More of iCalendar can keep a processor busy for ever, and nobody books by it."""


def expand(ask: Ask, rule: str, zone: str) -> list[Ask] | Reason:
    """Return one ask for each time that the rule names, the first one being the ask itself; or what is wrong with the
    rule.

    All last as long as the first one does on the clock: a night in which clocks change is an hour longer or shorter.
    """
    try:
        local = ZoneInfo(zone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        return Reason("repeat", f"there is no time zone {zone!r}; name one as in 'Europe/Rome'")
    parts = _parts(rule)
    if isinstance(parts, Reason):
        return parts
    first, last = (moment.astimezone(local).replace(tzinfo=None) for moment in (ask.start, ask.end))
    try:
        begins = _times(parts, first, local)
    except (ValueError, TypeError, OverflowError) as error:
        return Reason("repeat", f"{rule!r} is no rule of iCalendar ({error}); write one as in FREQ=WEEKLY;COUNT=4")
    if len(begins) > MOST:
        return Reason("repeat", f"{rule!r} makes more than {MOST} bookings; make fewer at a time")
    if not begins or begins[0] != first:
        return Reason("repeat", f"the first booking, {first:%a %Y-%m-%d %H:%M}, is not one that {rule!r} names")
    if len(begins) < int(parts.get("COUNT", "0")):
        return Reason("repeat", f"{rule!r} reaches further than {REACH.days} days ahead; book fewer")
    length = last - first
    others = [
        replace(
            ask,
            start=begin.replace(tzinfo=local).astimezone(UTC),
            end=(begin + length).replace(tzinfo=local).astimezone(UTC),
        )
        for begin in begins[1:]
    ]
    return [ask, *others]


def _parts(rule: str) -> dict[str, str] | Reason:
    """The rule, taken apart, with nothing in it that is not in PARTS."""
    example = "write one as in FREQ=WEEKLY;COUNT=4"
    parts: dict[str, str] = {}
    for part in rule.strip().upper().removeprefix("RRULE:").split(";"):
        name, _, value = part.partition("=")
        if name not in PARTS or name in parts or not PARTS[name].fullmatch(value):
            allowed = ", ".join(PARTS)
            return Reason("repeat", f"{part!r} is not a way to repeat a booking; {example} (the parts are {allowed})")
        parts[name] = value
    if "FREQ" not in parts:
        return Reason("repeat", f"{rule!r} has no FREQ; {example}")
    if ("COUNT" in parts) == ("UNTIL" in parts):
        return Reason("repeat", f"{rule!r} must end: add either COUNT= or UNTIL=, as in FREQ=WEEKLY;COUNT=4")
    return parts


def _times(parts: Mapping[str, str], first: datetime, local: ZoneInfo) -> list[datetime]:
    """Local times, without a zone. UNTIL is in UTC in rules that have a Z there, and local in others."""
    limit = first + REACH
    until = parts.get("UNTIL", "")
    if until:
        form = "%Y%m%dT%H%M%SZ" if until.endswith("Z") else "%Y%m%dT%H%M%S" if "T" in until else "%Y%m%d"
        until_time = datetime.strptime(until, form)  # noqa: DTZ007 - local times, as in a rule
        if until.endswith("Z"):
            until_time = until_time.replace(tzinfo=UTC).astimezone(local).replace(tzinfo=None)
        limit = min(limit, until_time if "T" in until else until_time + timedelta(days=1, seconds=-1))
    rest = ";".join(f"{name}={value}" for name, value in parts.items() if name not in ("COUNT", "UNTIL"))
    rule = rrulestr(f"{rest};UNTIL={limit:%Y%m%dT%H%M%S}", dtstart=first)
    assert isinstance(rule, rrule)
    return list(islice(rule, min(int(parts.get("COUNT", MOST + 1)), MOST + 1)))
