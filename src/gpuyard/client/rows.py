"""Rows of the API as rows of a list: which columns, and what stands in them. The same for every command line."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time

Row = Mapping[str, Any]

BOOKINGS = ("ID", "State", "Pool", "GPUs", "Start", "End", "User", "Project", "Comment")
BOOKING = (
    "ID", "Kind", "State", "Reason", "Pool", "GPUs", "Same group", "Same host", "GPU", "On", "Start", "End", "User",
    "Project", "Comment", "Series", "Offered until", "Open until", "Override", "Server came", "Created", "Changed",
    "Version",
)  # fmt: skip
HOLDS = ("ID", "GPU", "Start", "End", "User", "Comment")
WAITLIST = ("Place", "ID", "State", "Pool", "GPUs", "Start", "End", "Offered until", "User", "Project", "Comment")
FEEDS = ("ID", "Scope", "Target", "Created")
AUDIT = ("At", "Actor", "Action", "Target", "Rule", "Text")
GPUS = ("State", "Host", "Address", "Pool", "Model", "Server", "Project", "User", "Reason")
TIMES = {"start", "end", "offer_until", "open_until", "claimed", "created", "changed"}
NAMES = {
    "ID": "id", "Kind": "kind", "State": "state", "Reason": "reason", "Pool": "pool", "GPUs": "gpus",
    "Same group": "same_group", "Same host": "same_host", "GPU": "gpu", "On": "gpu_names", "Start": "start",
    "End": "end", "User": "user", "Project": "project", "Comment": "comment", "Series": "series",
    "Offered until": "offer_until", "Open until": "open_until", "Override": "override", "Server came": "claimed",
    "Created": "created", "Changed": "changed", "Version": "version",
}  # fmt: skip


def booking_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Every column of a booking; times in the zone, with its offset."""
    return {column: _value(row, name, zone) for column, name in NAMES.items()}


def _value(row: Row, name: str, zone: ZoneInfo) -> Any:
    value = row.get(name)
    if name in TIMES:
        return show_api_time(value, zone)
    return " ".join(map(str, value)) if isinstance(value, list) else value


def hold_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    found = booking_row(row, zone)
    return {**found, "GPU": found["On"] or found["GPU"]}


def waitlist_rows(rows: Sequence[Row], zone: ZoneInfo) -> list[dict[str, Any]]:
    """Pool by pool: those with an offer, then those who wait, in their order as far as the API shows it.

    Those whose rules give them priority come earlier than their place here says.
    """
    places: dict[object, int] = {}
    found = []
    for row in sorted(rows, key=lambda row: (row["pool"], row["state"] != "offered", row["created"], row["id"])):
        waits = row["state"] == "waiting"
        places[row["pool"]] = places.get(row["pool"], 0) + waits
        found.append({"Place": places[row["pool"]] if waits else "", **booking_row(row, zone)})
    return found


def feed_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    id = row.get("id") or row.get("digest")
    return {"ID": id, "Scope": row.get("scope"), "Target": row.get("target"),
            "Created": show_api_time(row.get("created"), zone)}  # fmt: skip


def audit_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    return {"At": show_api_time(row.get("at"), zone), **{name: row.get(name.lower(), "") for name in AUDIT[1:]}}


def gpu_row(row: Row) -> dict[str, Any]:
    """A GPU of /v1/gpus."""
    server = row.get("server") or {}
    return {
        **{name: row.get(name.lower()) or "" for name in GPUS},
        "Server": server.get("name") or server.get("id") or "",
    }


DURATIONS = {"longest", "ahead", "notice", "no_show", "offer", "hold", "window", "end_soon", "grace"}
NONE = {"no_show": "never", "gpu_hours_per_month": "any number", "users": "everybody with the role member"}


def rule_rows(rules: Row) -> list[dict[str, Any]]:
    """Rules, one to a row, in the words of the site file."""
    return [{"Rule": name, "Value": _rule(name, value)} for name, value in rules.items()]


def _rule(name: str, value: Any) -> Any:
    if value is None:
        return NONE.get(name, "none")
    if name in DURATIONS:
        return lasting(int(value))
    if name == "quiet_hours":
        return ", ".join(f"{_clock(one['start_minute'])}-{_clock(one['end_minute'])}" for one in value) or "none"
    return ", ".join(value) if isinstance(value, list) else value


def lasting(seconds: int) -> str:
    """``15 days``, ``90 min``: the largest unit that it is a whole number of."""
    for unit, length in (("days", 86400), ("h", 3600), ("min", 60)):
        if seconds and seconds % length == 0:
            number = seconds // length
            return f"{number} {'day' if unit == 'days' and number == 1 else unit}"
    return f"{seconds} s" if seconds else "0 min"


def _clock(minute: int) -> str:
    return f"{minute // 60:02}:{minute % 60:02}"
