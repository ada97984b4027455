"""Formats answers as rows, the same for the API, the pages and the command lines; keys are only ever added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from gpuyard.bookings.lasting import Span
from gpuyard.bookings.policy import spell
from gpuyard.diagnosis.capacity.reckon import Bootable
from gpuyard.model.booking import Booking

MOST_HOSTS = 50
"""Hosts that are named of one flavor, and of one reason."""
MOST_KINDS = 3
"""Reasons that a line names beside the first."""


@dataclass(frozen=True)
class Ahead:
    """The ledger's part of an answer, where GPUs can be booked and it can be asked."""

    spans: tuple[Span, ...] = ()
    coming: Booking | None = None
    """The project's next booking of the pool that has not begun."""


NOTHING_AHEAD = Ahead()


def row_of(bootable: Bootable, ahead: Ahead = NOTHING_AHEAD) -> dict[str, Any]:
    """Return the row of one flavor. Times are datetimes, RAM is in MiB, disks in GiB."""
    flavor, coming = bootable.flavor, ahead.coming
    return {
        "name": flavor.name,
        "id": flavor.id,
        "pool": bootable.pool,
        "gpus": bootable.gpus,
        "vcpus": flavor.vcpus,
        "ram": flavor.ram,
        "disk": flavor.disk,
        "ephemeral": flavor.ephemeral,
        "public": flavor.public,
        "now": bootable.now,
        "until": min((span.until for span in ahead.spans if span.until), default=None),
        "spans": [{"servers": s.servers, "until": s.until, "booking": s.booking or None} for s in ahead.spans],
        "answer": answer(bootable, ahead),
        "where": [{"host": host, "servers": bootable.where[host]} for host in _fullest(bootable.where)],
        "hosts": len(bootable.where),
        "causes": [{"code": cause.code, "reason": cause.reason, "remedy": cause.remedy} for cause in bootable.causes],
        "others": [
            {
                "code": rest.code,
                "reason": rest.reason,
                "gpus": rest.gpus,
                "hosts": list(rest.hosts[:MOST_HOSTS]),
                "host_count": len(rest.hosts),
            }
            for rest in bootable.others
        ],
        "doubts": list(bootable.doubts),
        "next_booking": None
        if coming is None
        else {"id": coming.id, "start": coming.ask.start, "end": coming.ask.end, "gpus": coming.ask.gpus},
    }


def _fullest(where: Mapping[str, int]) -> list[str]:
    """The hosts that would take most."""
    return sorted(where, key=lambda host: (-where[host], host))[:MOST_HOSTS]


def answer(bootable: Bootable, ahead: Ahead = NOTHING_AHEAD) -> str:
    """Return the answer in one line: ``2 now, until Fri 2026-11-27 08:00 UTC``, or ``none now: `` and the nearest
    reason."""
    if bootable.now is None:
        return f"not known: {bootable.doubts[-1]}"
    if not bootable.now:
        return f"none now: {_why(bootable)}{_next(ahead.coming)}"
    return f"{bootable.now} now{_until(ahead.spans)}"


def _until(spans: Sequence[Span]) -> str:
    ends = {span.until for span in spans}
    if ends <= {None}:
        return ""
    if len(ends) == 1:
        return f", until {_moment(spans[0].until)}"
    return ": " + ", ".join(f"{span.servers} {_end(span)}" for span in spans)


def _end(span: Span) -> str:
    return f"until {_moment(span.until)}" if span.until else "with no end in sight"


def _moment(time: datetime | None) -> str:
    return spell(time) if time else ""


def _why(bootable: Bootable) -> str:
    if bootable.causes:
        return str(bootable.causes[0].payload["short"] or bootable.causes[0].reason)
    if not bootable.others:
        return "no host has such GPUs" if bootable.gpus else "no host takes it"
    first, *more = bootable.others
    if not bootable.gpus:
        return first.reason
    some = f"{first.gpus} GPU{'' if first.gpus == 1 else 's'} {first.code} ({first.reason})"
    return ", ".join([some, *(f"{rest.gpus} {rest.code}" for rest in more[:MOST_KINDS])])


def _next(coming: Booking | None) -> str:
    return f"; booking {coming.id} begins {spell(coming.ask.start)}" if coming else ""
