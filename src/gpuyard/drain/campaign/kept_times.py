"""Reads the portal's bookings and holds as times in which GPUs are kept."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from gpuyard.client.client import Client
from gpuyard.client.rows import keepings
from gpuyard.drain.facts import KeptTime
from gpuyard.model.booking import BookingKind
from gpuyard.model.gpu import LedgerWords, provider_name

STATES = ("confirmed", "offered", "active")
"""States of bookings that have GPUs."""


def keepings_at(client: Client) -> tuple[tuple[KeptTime, ...], LedgerWords]:
    """Read both from the portal, as one observation."""
    return kept_times(client.bookings(state=list(STATES))), keepings(client.gpus())


def kept_times(rows: Iterable[Mapping[str, Any]]) -> tuple[KeptTime, ...]:
    return tuple(_kept_time(row) for row in rows if row["gpu_names"])


def _kept_time(row: Mapping[str, Any]) -> KeptTime:
    kind = BookingKind(row["kind"])
    gpus = (name.rpartition("/") for name in row["gpu_names"])
    return KeptTime(
        row["id"], kind, frozenset(provider_name(host, address) for host, _, address in gpus),
        datetime.fromisoformat(row["start"]), datetime.fromisoformat(row["end"]),
        row["comment"] if kind is BookingKind.HOLD else f"{row['user']} ({row['project']})", bool(row["gpu"]),
    )  # fmt: skip
