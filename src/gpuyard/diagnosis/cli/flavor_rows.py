"""Flavors, and how many servers of each could be started now: rows of /v1/flavors as the command lines show them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time
from gpuyard.model.errors import UsageError

FLAVORS = ("Flavor", "Now", "Until", "Pool", "GPUs", "vCPUs", "RAM", "Disk", "Answer")


def flavor_row(row: Mapping[str, Any], zone: ZoneInfo) -> dict[str, Any]:
    """RAM is in MiB, disk (both together) in GiB; Until is when the first of them would have to go."""
    return {
        "Flavor": row["name"],
        "Now": row["now"],
        "Until": show_api_time(row["until"], zone) or None,
        "Pool": row["pool"] or None,
        "GPUs": row["gpus"],
        "vCPUs": row["vcpus"],
        "RAM": row["ram"],
        "Disk": row["disk"] + row["ephemeral"],
        "Answer": row["answer"],
    }


def flavor_fields(row: Mapping[str, Any], zone: ZoneInfo) -> dict[str, Any]:
    """One flavor by itself: names of the API, and what are lists there as lines."""
    lines = {
        "spans": [
            f"{span['servers']} {_until(span, zone)}" + (f" (booking {span['booking']})" if span["booking"] else "")
            for span in row["spans"]
        ],
        "where": [f"{place['host']}: {place['servers']}" for place in row["where"]],
        "causes": [f"{cause['code']}: {cause['reason']} -> {cause['remedy']}" for cause in row["causes"]],
        "others": [rest_words(rest) for rest in row["others"]],
        "next_booking": next_words(row["next_booking"], zone),
    }
    plain = {name: value for name, value in row.items() if name not in lines}
    return {
        **plain,
        "until": show_api_time(row["until"], zone) or None,
        **{name: "; ".join(value) if isinstance(value, list) else value for name, value in lines.items()},
        "doubts": "; ".join(row["doubts"]),
    }


def _until(span: Mapping[str, Any], zone: ZoneInfo) -> str:
    return f"until {show_api_time(span['until'], zone)}" if span["until"] else "with no end in sight"


def rest_words(row: Mapping[str, Any]) -> str:
    """``3 GPUs on gpu-01, gpu-02: claimed: servers have them``."""
    some = [f"{row['gpus']} GPU{'' if row['gpus'] == 1 else 's'}"] if row["gpus"] else []
    more = row["host_count"] - len(row["hosts"])
    hosts = [f"on {', '.join(row['hosts'])}" + (f" and {more} more" if more else "")] if row["hosts"] else []
    return ": ".join([" ".join([*some, *hosts])] * bool(some or hosts) + [row["code"], row["reason"]])


def next_words(row: Mapping[str, Any] | None, zone: ZoneInfo) -> str:
    """Of the project's next booking; empty when there is none."""
    if row is None:
        return ""
    return f"{row['gpus']} from {show_api_time(row['start'], zone)} (booking {row['id']})"


def find_flavor(rows: Iterable[Mapping[str, Any]], name: str) -> Mapping[str, Any]:
    """By its name, or its id. Raises UsageError."""
    rows = list(rows)
    for key in ("name", "id"):
        for row in rows:
            if row[key] == name:
                return row
    raise UsageError(f"there is no flavor {name!r}, or the project does not see it; 'gpuyard flavor list' has those")
