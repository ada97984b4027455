"""The health of GPUs as rows of a list, and one of them by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time

Row = Mapping[str, Any]

HEALTH = ("State", "Host", "Address", "Pool", "Since", "Cause", "Heard", "Bad", "Keeper", "Card")
RECORD = ("Time", "State", "Cause", "Signal", "By", "Evidence")
REPAIRS = ("State", "GPU", "Pool", "Since", "Cause", "Keeper", "Bad", "Tried", "Advice")
TRIES = ("State", "GPU", "Pool", "Since", "Cause", "Driver", "Server")
REPEATS = ("Name", "Failures", "MTBF h", "Latest", "Signals", "GPUs")
TIMES = frozenset({"since", "heard", "until", "accepted"})


def health_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Heard: when its host was last heard from, and whether that is too long ago."""
    return {
        **{name: _shown(row, name.lower(), zone) for name in HEALTH},
        "State": state(row),
        "Cause": row["question"] or row["cause"],
        "Heard": heard(row, zone),
    }


def state(row: Row) -> str:
    state = f"{row['state']}, decide" if row["asked"] else str(row["state"])
    on_trial = row.get("trial_state")  # older portals have none
    return f"{state} (on trial: {on_trial})" if on_trial else state


def heard(row: Row, zone: ZoneInfo) -> str:
    if row["heard"] is None:
        return "never"
    since = show_api_time(row["heard"], zone)
    return f"not since {since}" if row["silent"] else since


def health_fields(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """One GPU, under the names of the API."""
    between = {"may": " ", "overruled": "; "}
    return {name: between[name].join(row[name]) if name in between else _shown(row, name, zone) for name in row}


def record_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """State: what it became; of a note nothing."""
    became = row["after"] if row["after"] != row["before"] else ""
    return {
        "Time": show_api_time(row["time"], zone),
        "State": became,
        "Cause": row["cause"],
        "Signal": row["signal"],
        "By": row["by"] or row["source"] or "gpuyard",
        "Evidence": row["evidence"],
    }


def try_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """GPU: all of its group, where there are several."""
    return {
        "State": row["state"],
        "GPU": " ".join(f"{row['host']}/{address}" for address in row["gpus"]),
        "Pool": row["pool"],
        "Since": show_api_time(row["since"], zone),
        "Cause": row["cause"],
        "Driver": row["driver"],
        "Server": row["server"],
    }


def repair_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Tried: the last thing that was noted or decided since it went bad."""
    gpu, tried = row["gpu"], row["tried"]
    return {
        **{name: _shown(gpu, name.lower(), zone) for name in REPAIRS if name.lower() in gpu},
        "GPU": f"{gpu['host']}/{gpu['address']}",
        "State": state(gpu),
        "Cause": gpu["question"] or gpu["cause"],
        "Tried": tried[0]["cause"] if len(tried) > 1 else "",
    }


def loan_lines(lent: Row, gpu: str, zone: ZoneInfo) -> list[str]:
    """How a member of the project starts a server on a GPU that is lent."""
    loan = lent["loan"]
    opened = show_api_time(loan["open_until"], zone) if loan["open_until"] else "then"
    return [
        f"GPU {gpu} is lent to project {loan['project']} until {show_api_time(loan['end'], zone)}.",
        f"In some seconds, and until {opened}, each of its members can start a server. It gets this very GPU:",
        f"  {loan['command'] or 'no flavor of the pool fits it: see gpuyard site plan'}",
        f"Until it is there all others of pool {loan['pool']} are held.",
        f"Later again: gpuyard booking open {loan['id']}. Its end: gpuyard gpu repair return {gpu}",
    ]


def repeat_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    return {
        "Name": row["name"],
        "Failures": row["failures"],
        "MTBF h": "" if row["mtbf_hours"] is None else row["mtbf_hours"],
        "Latest": show_api_time(row["latest"], zone),
        "Signals": " ".join(row["signals"]),
        "GPUs": " ".join(row["gpus"]),
    }


def _shown(row: Row, name: str, zone: ZoneInfo) -> Any:
    return show_api_time(row[name], zone) if name in TIMES else row[name]
