"""Jobs and runners of the API as rows of a list, and one of them by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time
from gpuyard.runners.records import DONE, JobState

if TYPE_CHECKING:
    from gpuyard.client.client import Client

Row = Mapping[str, Any]

RECENT = 100
"""Jobs that are over, and runners that have ended, in a list of all."""
RUNNERS = ("Name", "State", "Repository", "Job", "Pool", "GPUs", "Since", "Cause")
JOBS = ("ID", "State", "Repository", "Name", "Pool", "Position", "Queued", "Start", "Runner", "Reason")
EVENTS = ("At", "Runner", "Text")
TIMES = frozenset({"queued", "started", "completed", "created", "online", "busy", "until", "ended", "at"})


def runner_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Since: when it got its job, or ended, or, before that, when it came online or was asked for."""
    since = next((row[name] for name in ("ended", "busy", "online") if row[name]), row["created"])
    return {
        **{name: row[name.lower()] for name in RUNNERS if name.lower() in row},
        "Since": show_api_time(since, zone),
        "Cause": row["cause"] or "",
    }


def job_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Start: of a job that waits, when it starts at the latest, as far as can be said. Position: none for one that has
    a runner already."""
    place = row["place"] or {}
    return {
        **{name: row[name.lower()] for name in JOBS if name.lower() in row},
        "Pool": place.get("pool", ""),
        "Position": place.get("position") or "",
        "Queued": show_api_time(row["queued"], zone),
        "Start": show_api_time(row["started"] or place.get("start"), zone),
        "Reason": place.get("reason") or row["reason"] or row["conclusion"],
    }


def listed_jobs(client: Client, repository: str, all_: bool, zone: ZoneInfo) -> list[dict[str, Any]]:
    """Rows of the jobs that are not over, of one repository or of all; with `all_` also of the last that are."""
    queue = [row for row in client.queue() if repository in ("", row["repository"])]
    others = client.jobs(sorted(state.value for state in set(JobState) - DONE), repository)
    if all_:
        others += client.jobs(sorted(state.value for state in DONE), repository, RECENT)
    return job_rows(queue, others, zone)


def job_rows(queue: Sequence[Row], others: Sequence[Row], zone: ZoneInfo) -> list[dict[str, Any]]:
    """Those that run first, then the queue in its order, then all others as they come."""
    ids = {row["id"] for row in queue}
    left = [row for row in others if row["id"] not in ids]
    running = [row for row in left if row["state"] == "running"]
    return [job_row(row, zone) for row in (*running, *queue, *(row for row in left if row["state"] != "running"))]


def event_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    return {"At": show_api_time(row["at"], zone), "Runner": row["runner"], "Text": row["text"]}


def fields(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """A job or a runner by itself, under the names of the API, for people: no lists of rows, a place spread out."""
    flat = {name: value for name, value in row.items() if name not in ("place", "runners", "events")}
    if "place" in row:
        place = row["place"] or {}
        flat |= {"pool": place.get("pool", ""), "position": place.get("position") or ""}
        flat |= {"waits": place.get("reason", ""), "starts_by": show_api_time(place.get("start"), zone)}
    if "runners" in row:
        flat["runners"] = [runner["name"] for runner in row["runners"]]
    return {name: _shown(name, value, zone) for name, value in flat.items()}


def _shown(name: str, value: Any, zone: ZoneInfo) -> Any:
    if name in TIMES:
        return show_api_time(value, zone)
    return " ".join(map(str, value)) if isinstance(value, list) else value
