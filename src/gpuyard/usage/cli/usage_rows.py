"""What GPUs were used for, as rows of a list. Amounts are GPU-hours with two decimals; those of the API are seconds."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time
from gpuyard.model.errors import UsageError

if TYPE_CHECKING:
    from gpuyard.client.client import Client

Row = Mapping[str, Any]

BY = ("project", "user", "pool", "host", "repository", "tariff", "day", "month")
AMOUNTS = (
    "used", "booked_use", "runner_use", "unbooked_use", "starting", "booked_unused", "idle", "held", "lost", "unseen",
    "total",
)  # fmt: skip
BUDGETS = ("Project", "Until", "Limit", "Carried", "Used", "Booked", "Left", "Percent")
INTERVALS = (
    "Start", "End", "Seconds", "Host", "Address", "Pool", "State", "Use", "Project", "User", "Server", "Booking",
    "Kind", "Flavor", "Repository", "Exact",
)  # fmt: skip


def title(name: str) -> str:
    """``booked_use`` -> ``Booked use``."""
    return name.replace("_", " ").capitalize()


def usage_columns(by: Sequence[str]) -> tuple[str, ...]:
    return (*map(title, by), *map(title, AMOUNTS), "Cost")


def usage_row(line: Row, by: Sequence[str]) -> dict[str, Any]:
    """A project, user or repository is empty where there was none."""
    words = {title(name): line[name] for name in by}
    return {**words, **{title(name): _hours(line[name]) for name in AMOUNTS}, "Cost": line["cost"]}


def total_row(line: Row, by: Sequence[str]) -> dict[str, Any]:
    words = {title(name): "All" if place == 0 else "" for place, name in enumerate(by)}
    return {**usage_row({**line, **dict.fromkeys(by, "")}, by), **words}


def budget_row(line: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Until: of the period; of a budget with a half-life there is none."""
    amounts = {name: _hours(line[name.lower()]) for name in ("Limit", "Carried", "Used", "Booked", "Left")}
    until = show_api_time(line["end"], zone) if line["end"] else ""
    return {"Project": line["project"], "Until": until, **amounts, "Percent": line["percent"]}


def interval_row(line: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Exact: whether start and end are Nova's own times, or a booking's: ``both``, ``start``, ``end`` or none."""
    exact = [name for name in ("start", "end") if line[f"exact_{name}"]]
    return {
        **{name: line[name.lower()] for name in INTERVALS if name.lower() in line},
        "Start": show_api_time(line["start"], zone),
        "End": show_api_time(line["end"], zone),
        "Server": line["server_name"] or line["server"],
        "Exact": "both" if len(exact) == 2 else "".join(exact),
    }


def exported(client: Client, days: Mapping[str, str], whose: Mapping[str, str]) -> Iterator[Row]:
    """`intervals` of what was asked for: `days_of` these, or what the portal takes for them."""
    if len(days) < 2:  # the portal knows which day it is at the site
        shown = client.usage({**days, "pool": whose.get("pool", "")})
        days = {"from": shown["from"], "to": shown["to"]}
    return intervals(client, date.fromisoformat(days["from"]), date.fromisoformat(days["to"]), whose)


def intervals(client: Client, first: date, end: date, query: Mapping[str, object]) -> Iterator[Row]:
    """Those of the days [first, end), asked for day by day; each is cut at midnight."""
    while first < end:
        following = first + timedelta(days=1)
        yield from client.usage_intervals({**query, "from": first, "to": following})
        first = following


def days_of(month: str, first: str, end: str) -> dict[str, str]:
    """What to ask for: a month (``2026-11``), or days. Raises UsageError."""
    if month and (first or end):
        raise UsageError("--month is a whole month; leave it out, or --from and --to")
    if not month:
        return {name: str(_day(name, text)) for name, text in (("from", first), ("to", end)) if text}
    start = _day("month", f"{month}-01")
    return {"from": str(start), "to": str((start + timedelta(days=32)).replace(day=1))}


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        shown = "2026-11" if name == "month" else "2026-11-23"
        raise UsageError(
            f"--{name} {text.removesuffix('-01') if name == 'month' else text!r}: write it as in {shown}"
        ) from None


def _hours(seconds: int) -> str:
    return f"{seconds / 3600:.2f}"
