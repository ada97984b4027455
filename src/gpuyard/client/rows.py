"""Turns rows of the API into rows of a list, with columns that are the same for every command line."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import timedelta
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time
from gpuyard.model.booking import RULES, QuietHours, rule_text
from gpuyard.model.gpu import FOREIGN, GpuState, Keeping, LedgerWords, provider_name

Row = Mapping[str, Any]

BOOKINGS = ("ID", "State", "Pool", "GPUs", "Start", "End", "User", "Project", "Comment")
HOLDS = ("ID", "GPU", "Start", "End", "User", "Comment")
WAITLIST = ("Place", "ID", "State", "Pool", "GPUs", "Start", "End", "Offered until", "User", "Project", "Comment")
FEEDS = ("ID", "Scope", "Target", "Owner", "Created", "Used", "Expires")
SESSIONS = ("User", "Begun", "Expires", "Latest")
AUDIT = ("At", "Actor", "Action", "Target", "Rule", "Text")
GPUS = (
    "State", "Host", "Address", "Group", "Slot", "Pool", "Model", "NUMA", "Server", "Project", "User", "Since",
    "Booking", "Reason",
)  # fmt: skip
TIMES = {"start", "end", "offer_until", "open_until", "claimed", "usable_since", "created", "changed"}
TIMES |= {"begun", "expires", "latest", "used"}
NAMES = {
    "ID": "id", "Kind": "kind", "State": "state", "Reason": "reason", "Pool": "pool", "GPUs": "gpus",
    "Same group": "same_group", "Same host": "same_host", "Shared": "shared", "GPU": "gpu", "On": "gpu_names",
    "Start": "start",
    "End": "end", "User": "user", "Project": "project", "Comment": "comment", "Series": "series",
    "Offered until": "offer_until", "Open until": "open_until", "Override": "override", "Server came": "claimed",
    "Usable since": "usable_since", "Trouble": "trouble",
    "Created": "created", "Changed": "changed", "Version": "version", "You may": "may",
    "Flavors": "flavors", "To start a server": "command",
}  # fmt: skip


def booking_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Return a booking as a row of a list; times in the zone, with its offset."""
    return {column: _value(row, name, zone) for column, name in NAMES.items()}


def booking_fields(row: Row, zone: ZoneInfo, use: Row | None = None) -> dict[str, Any]:
    """Return a booking by itself: its fields have the names of the API, as in every ``openstack ... show``. `use`: what
    its GPUs do, where that may be shown."""
    fields = {name: _value(row, name, zone) for name in NAMES.values()}
    return fields if use is None else {**fields, "use": use_words(use, zone)}


def use_words(use: Row, zone: ZoneInfo) -> str:
    """Return what the GPUs of a booking do, in words; what is unknown is said to be so."""
    now = "not known now" if use["lately"] is None else f"{use['lately']} % in the last {use['minutes']} min"
    words = (
        [now] if use["whole"] is None else [now, f"{use['whole']} % since it has a server, of {use['hours']} h heard"]
    )
    if use["idle_since"]:
        words.append(f"idle since {show_api_time(use['idle_since'], zone)}")
    return "; ".join(words)


def _value(row: Row, name: str, zone: ZoneInfo) -> Any:
    value = row.get(name)
    if name in TIMES:
        return show_api_time(value, zone)
    return " ".join(map(str, value)) if isinstance(value, list) else value


def hold_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    fields = booking_row(row, zone)
    return {**fields, "GPU": fields["On"] or fields["GPU"]}


def waitlist_rows(rows: Sequence[Row], zone: ZoneInfo) -> list[dict[str, Any]]:
    """Return the waitlist pool by pool: those with an offer, then those who wait, in their order as far as the API
    shows it.

    Those whose rules give them priority come earlier than their place here says.
    """
    places: dict[object, int] = {}
    waitlist = []
    for row in sorted(rows, key=lambda row: (row["pool"], row["state"] != "offered", row["created"], row["id"])):
        waits = row["state"] == "waiting"
        places[row["pool"]] = places.get(row["pool"], 0) + waits
        waitlist.append({"Place": places[row["pool"]] if waits else "", **booking_row(row, zone)})
    return waitlist


def feed_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    return _shown(row, FEEDS, zone)


def session_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    return _shown(row, SESSIONS, zone)


def _shown(row: Row, columns: Sequence[str], zone: ZoneInfo) -> dict[str, Any]:
    return {column: _value(row, column.lower(), zone) for column in columns}


def audit_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    return {"At": show_api_time(row.get("at"), zone), **{name: row.get(name.lower(), "") for name in AUDIT[1:]}}


def gpu_row(row: Row) -> dict[str, Any]:
    """Return a GPU of /v1/gpus as a row. Since is UTC."""
    server = row["server"]
    return {
        **{name: row[name.lower()] for name in GPUS if name.lower() in row},
        "Slot": f"{row['role']} {row['set']}" if row["set"] else row["role"],
        "NUMA": row["numa_node"],
        "Server": (server["name"] or server["id"]) if server else None,
        "Since": show_api_time(row["since"], ZoneInfo("UTC")) or None,
        "Booking": row.get("booking"),
    }


def keepings(rows: Iterable[Row]) -> LedgerWords:
    """Return the ledger's records of GPUs, from rows of /v1/gpus; without what others hold. One that is held without a
    booking is out of use for its health."""
    return {
        provider_name(row["host"], row["address"]): Keeping(GpuState(row["state"]), row["reason"], row["booking"] or "")
        for row in rows
        if row["state"] == GpuState.BOOKED.value
        or (row["state"] == GpuState.HELD.value and (row["booking"] or row["reason"] != FOREIGN))
    }


RULE = ("Rule", "Value", "From")


def rule_rows(rules: Row) -> list[dict[str, Any]]:
    """Return rules, one to a row, in words, and what states each."""
    values = {key: rules[key] for key in rules if key != "origins"}
    return [
        dict(zip(RULE, (key, _rule(key, value), _origin(rules, key)), strict=True)) for key, value in values.items()
    ]


def _origin(rules: Row, key: str) -> str:
    return str(rules.get("origins", {}).get(key, "default")) if key in RULES else ""


def _rule(key: str, value: Any) -> Any:
    if key not in RULES:
        return value
    if key == "quiet_hours":
        value = tuple(QuietHours(**hours) for hours in value)
    elif value is not None and isinstance(RULES[key].default, timedelta):
        value = timedelta(seconds=value)
    elif isinstance(value, int):
        return value
    return rule_text(key, frozenset(value) if isinstance(value, list) else value)
