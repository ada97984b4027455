"""Maintenances of hosts as rows of a list, and one of them by itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from zoneinfo import ZoneInfo

from gpuyard.client.times import show_api_time

Row = Mapping[str, Any]

MAINTENANCES = ("Host", "State", "Start", "End", "Comment", "By", "Used by", "Problems")
TIMES = ("since", "start", "end", "begun", "done")


def maintenance_row(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """Used by: servers that are there now, and bookings that keep a GPU there in its time."""
    return {
        "Host": row["host"],
        "State": row["state"],
        "Start": show_api_time(row["start"], zone),
        "End": show_api_time(row["end"], zone),
        "Comment": row["comment"],
        "By": row["by"],
        "Used by": "; ".join(
            [*map(_server, row["servers"]), *(_booking(booking, zone) for booking in row["bookings"])]
        ),
        "Problems": "; ".join(row["problems"]),
    }


def maintenance_fields(row: Row, zone: ZoneInfo) -> dict[str, Any]:
    """One of them, under the names of the API."""
    shown = {name: show_api_time(row[name], zone) if name in TIMES and row[name] else row[name] for name in row}
    return {
        **shown,
        "problems": "\n".join(row["problems"]),
        "servers": "\n".join(map(_server, row["servers"])),
        "bookings": "\n".join(_booking(booking, zone) for booking in row["bookings"]),
        "may": " ".join(row["may"]),
    }


def _server(row: Row) -> str:
    of = f" of {row['user']} ({row['project']})" if row["user"] else ""
    return f"server {row['name']}{of}{', which may go down' if row.get('may_go_down') else ''}"


def _booking(row: Row, zone: ZoneInfo) -> str:
    return f"{row['kind']} {row['id']} of {row['user']} until {show_api_time(row['end'], zone)}"
