"""What people type on a command line, as the API wants it; and what the API suggests, as a command to type."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.errors import ApiRefusedError
from gpuyard.client.times import parse_time, show_api_time
from gpuyard.model.booking_life import OPEN
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.moments import iso_text

PROGRAM = "gpuyard booking create"


@dataclass(frozen=True)
class BookingArguments:
    """An ask as it was typed."""

    pool: str = ""
    start: str = "now"
    end: str = ""
    gpus: int = 1
    same_group: bool = False
    same_host: bool = False
    gpu: str = ""
    comment: str = ""
    waitlist: bool = False
    override: bool = False
    repeat: str = ""
    project: str = ""
    user: str = ""
    shared: bool = False


def ask_body(words: BookingArguments, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """The body of POST /v1/bookings and of its check. Raises UsageError."""
    start = parse_time(words.start, zone, now)
    end = parse_time(words.end, zone, now, start)
    if end <= start:
        raise UsageError(f"--end {words.end!r} is not after --start {words.start!r}")
    body: dict[str, Any] = {
        "pool": words.pool,
        "start": iso_text(start),
        "end": iso_text(end),
        "gpus": words.gpus,
        "same_group": words.same_group,
        "same_host": words.same_host,
        "gpu": words.gpu,
        "comment": words.comment,
        "wait": words.waitlist,
        "override": words.override,
    }
    body |= {name: value for name in ("project", "user", "shared") if (value := getattr(words, name))}
    if words.repeat:
        body |= {"repeat": words.repeat, "timezone": zone.key}
    return body


def edit_body(row: Mapping[str, Any], zone: ZoneInfo, now: datetime, **changes: Any) -> dict[str, Any]:
    """The body of PATCH: only what changes. ``+...`` in an end counts from the start, as it will be."""
    body = {name: value for name, value in changes.items() if value is not None and name not in ("start", "end")}
    start = datetime.fromisoformat(str(row["start"]))
    if changes.get("start") is not None:
        start = parse_time(changes["start"], zone, now)
        body["start"] = iso_text(start)
    if changes.get("end") is not None:
        body["end"] = iso_text(parse_time(changes["end"], zone, now, start))
    if not body:
        raise UsageError("nothing to change is named; see --help")
    return body


def extend_body(row: Mapping[str, Any], until: str, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """The body of extend: ``+...`` counts from the end as it is. Raises UsageError when that is not later."""
    end = datetime.fromisoformat(str(row["end"]))
    new_end = parse_time(until, zone, now, end)
    if new_end <= end:
        raise UsageError(f"{until!r} is not after its end, {show_api_time(row['end'], zone)}; 'edit' makes it shorter")
    return {"end": iso_text(new_end)}


def list_query(
    zone: ZoneInfo,
    now: datetime,
    *,
    first: str = "",
    last: str = "",
    everything: bool = False,
    mine: bool = False,
    pool: str = "",
    project: str = "",
    user: str = "",
    states: Sequence[str] = (),
) -> dict[str, Any]:
    """The query of GET /v1/bookings: what is not over, unless `first`, `states` or `everything` is said."""
    begin = parse_time(first, zone, now) if first else None
    if not (first or states or everything):
        states = sorted(state.value for state in OPEN)
    until = parse_time(last, zone, now, begin) if last else None
    return {
        "mine": "true" if mine else "",
        "pool": pool,
        "project": project,
        "user": user,
        "state": list(states),
        "kind": "booking",
        "from": iso_text(begin) if begin else "",
        "to": iso_text(until) if until else "",
    }


def audit_query(zone: ZoneInfo, now: datetime, *, first: str = "", last: str = "", **more: object) -> dict[str, Any]:
    """The query of GET /v1/audit. Raises UsageError."""
    begin = parse_time(first, zone, now) if first else None
    until = parse_time(last, zone, now, begin) if last else None
    return {**more, "from": iso_text(begin) if begin else "", "to": iso_text(until) if until else ""}


def hold_body(
    start: str, end: str, comment: str, zone: ZoneInfo, now: datetime, repeat: str = "", **what: Sequence[str]
) -> dict[str, Any]:
    """The body of POST /v1/holds; `what`: ``gpus``, ``hosts``, ``pools``. Raises UsageError."""
    begin = parse_time(start, zone, now)
    until = parse_time(end, zone, now, begin)
    if until <= begin:
        raise UsageError(f"--end {end!r} is not after --start {start!r}")
    body: dict[str, Any] = {name: list(names) for name, names in what.items() if names}
    if not body:
        raise UsageError("nothing to hold is named: name GPUs, or --host or --pool")
    body |= {"start": iso_text(begin), "end": iso_text(until), "comment": comment}
    return {**body, "repeat": repeat, "timezone": zone.key} if repeat else body


def back_body(gpus: Sequence[str], back: str, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """The body of POST /v1/troubles. Raises UsageError."""
    return {"gpus": list(gpus), "back": iso_text(parse_time(back, zone, now)) if back else None}


def maintenance_body(start: str, end: str, comment: str, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """The body of POST /v1/maintenances, but for the host. Raises UsageError."""
    begin = parse_time(start, zone, now)
    until = parse_time(end, zone, now, begin)
    if until <= begin:
        raise UsageError(f"--end {end!r} is not after --start {start!r}")
    return {"start": iso_text(begin), "end": iso_text(until), "comment": comment}


def servers_of_maintenance(row: Mapping[str, Any], names: Sequence[str]) -> list[str]:
    """Ids of the servers of a maintenance by names or ids; all that are there when none is given. Raises UsageError for
    a name that no server there has, or more than one."""
    if not row["servers_known"]:
        raise UsageError(f"it is not known at the moment which servers are on {row['host']}; try again in a minute")
    if not names and not row["servers"]:
        raise UsageError(f"no server is on {row['host']}, so none needs to be allowed to go down")
    server_ids = []
    for name in names:
        ids = [server["id"] for server in row["servers"] if name in (server["id"], server["name"])]
        if len(ids) != 1:
            why = f"{len(ids)} servers are called {name}: name one by its id" if ids else f"no server is called {name}"
            listing = ", ".join(f"{server['name']} ({server['id']})" for server in row["servers"]) or "none"
            raise UsageError(f"host {row['host']}: {why}; there are {listing}")
        server_ids += ids
    return server_ids or [server["id"] for server in row["servers"]]


def time_body(end: str, zone: ZoneInfo, now: datetime) -> dict[str, Any]:
    """``end``; ``+...`` counts from now. Raises UsageError."""
    return {"end": iso_text(parse_time(end, zone, now))}


def lasting_minutes(lasting: str, zone: ZoneInfo) -> int:
    """``4h``, ``3d``: how long from now on. Raises UsageError."""
    now = datetime.now(zone)
    return int((parse_time(f"+{lasting.lstrip('+')}", zone, now) - now).total_seconds() / 60 + 0.5)


def refusal(error: ApiRefusedError, program: str, zone: ZoneInfo) -> BlockedError:
    """The refusal with its alternatives as commands that can be pasted. `program`: ``gpuyard booking create``."""
    lines = [str(error), *suggestions(error.alternatives, program, zone)]
    return BlockedError("\n".join(lines))


def suggestions(alternatives: Any, program: str, zone: ZoneInfo) -> list[str]:
    """Lines for people; empty when there is nothing near."""
    lines = []
    for alternative in alternatives or ():
        ask = alternative.get("ask")
        lines.append(f"  possible: {alternative.get('text', '')}")
        if isinstance(ask, dict):
            lines.append(f"    {command(ask, program, zone)}")
    return lines


def first_possible(ask: Mapping[str, Any], answer: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """The ask itself when it fits, or the same for as long at a later time; None when there is no such time."""
    if answer["fits"]:
        return ask
    same = ("pool", "gpus", "same_group", "same_host", "gpu")
    for alternative in answer.get("alternatives") or ():
        suggested_ask = alternative.get("ask") or {}
        if all(suggested_ask.get(name) == ask[name] for name in same) and _lasts(suggested_ask) == _lasts(ask):
            return dict(suggested_ask)
    return None


def _lasts(ask: Mapping[str, Any]) -> timedelta:
    return datetime.fromisoformat(str(ask["end"])) - datetime.fromisoformat(str(ask["start"]))


def command(ask: Mapping[str, Any], program: str, zone: ZoneInfo) -> str:
    """``gpuyard booking create --pool t4 --start ... --end ...``"""
    words = [*program.split(), "--pool", str(ask["pool"])]
    words += ["--start", show_api_time(ask["start"], zone), "--end", show_api_time(ask["end"], zone)]
    if int(ask.get("gpus", 1)) != 1:
        words += ["--gpus", str(ask["gpus"])]
    words += [f"--{name.replace('_', '-')}" for name in ("same_group", "same_host") if ask.get(name)]
    for name in ("gpu", "comment"):
        words += [f"--{name}", str(ask[name])] if ask.get(name) else []
    return shlex.join(words)


@contextmanager
def suggesting(zone: ZoneInfo) -> Iterator[None]:
    """A refusal also says what would be possible, as commands."""

    try:
        yield
    except ApiRefusedError as error:
        raise refusal(error, PROGRAM, zone) from None
