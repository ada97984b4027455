"""Prepares GPUs for the table of all of them, the page of one, and that of a host. Pure. What health says of a GPU,
its card and serial number included, is prepared by health/web/health_presenter.py."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from urllib.parse import urlencode

from gpuyard.bookings.web.booking_documents import BookingRow
from gpuyard.health.records import HostContact
from gpuyard.inventory.web.api import GpuFilter
from gpuyard.inventory.web.presenter import MEANINGS, GpuBox, Marks, Since, gpu_boxes, gpu_href, host_href, since
from gpuyard.model.booking import BookingKind
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.model.host import HostFacts
from gpuyard.model.text import counted
from gpuyard.model.world import HostService

PAGE = 100
"""GPUs on one page of the table."""
KINDS = {BookingKind.HOLD: "hold", BookingKind.RUNNER: "runner", BookingKind.LOAN: "loan"}
NOT_KNOWN = "not known"


@dataclass(frozen=True)
class GpuTable:
    gpus: Sequence[GpuBox]
    count: str
    """``12 GPUs``: all that match."""
    hosts: Mapping[str, str]
    """Name of a host -> its page."""
    csv: str
    before: str
    after: str
    """Addresses of the pages around this one; empty at the ends."""
    place: str
    """``101 to 200``; empty when all are shown."""


def gpu_table(
    statuses: Sequence[GpuStatus], gpu_filter: GpuFilter, page: int, now: datetime, marks: Marks | None
) -> GpuTable:
    """Return one page of the table. `statuses`: GPUs that match, as the visitor may see them. `page`: from 1 on."""
    pages = max(1, -(-len(statuses) // PAGE))
    page = min(page, pages)
    shown = statuses[(page - 1) * PAGE : page * PAGE]
    filters = [
        (name, str(getattr(value, "value", value)))
        for name in ("pool", "state", "host")
        for value in getattr(gpu_filter, name)
    ]
    filters += [("q", gpu_filter.q)] if gpu_filter.q else []

    def at(number: int) -> str:
        query = urlencode([*filters, *([("page", number)] if number > 1 else [])])
        return f"gpus?{query}" if query else "gpus"

    return GpuTable(
        gpus=gpu_boxes(shown, now, marks),
        count=counted(len(statuses), "GPU"),
        hosts={status.gpu.host: host_href(status.gpu.host) for status in shown},
        csv=f"v1/gpus?{urlencode([*filters, ('format', 'csv')])}",
        before=at(page - 1) if page > 1 else "",
        after=at(page + 1) if page < pages else "",
        place=f"{(page - 1) * PAGE + 1} to {(page - 1) * PAGE + len(shown)}" if pages > 1 else "",
    )


@dataclass(frozen=True)
class SlotMate:
    """Another GPU of the slot."""

    href: str
    name: str
    role: str
    state: str


@dataclass(frozen=True)
class BookingLine:
    """A booking, hold, lease or loan that keeps a GPU for a time."""

    colour: str
    what: str
    who: str
    comment: str
    start: Since
    end: Since
    on: bool


@dataclass(frozen=True)
class GpuFacts:
    """The facts of a GPU besides its health."""

    box: GpuBox
    host: str
    host_href: str
    pool: str
    meaning: str
    """Meaning of its state."""
    facts: Sequence[tuple[str, str]]
    neighbours: Sequence[SlotMate]
    bookings: Sequence[BookingLine]


def gpu_facts(
    status: GpuStatus, slot: Iterable[GpuStatus], bookings: Sequence[BookingRow], now: datetime, marks: Marks | None
) -> GpuFacts:
    """Return the facts of a GPU. `slot`: the GPUs of its IOMMU group, as the visitor may see them. `bookings`: of it,
    by start."""
    gpu = status.gpu
    (box,) = gpu_boxes([status], now, marks)
    return GpuFacts(
        box=box,
        host=gpu.host,
        host_href=host_href(gpu.host),
        pool=gpu.pool,
        meaning=MEANINGS[status.state],
        facts=[(name, value) for name, value in _hardware(gpu) if value],
        neighbours=[
            SlotMate(gpu_href(mate.gpu.host, mate.gpu.address), mate.gpu.address, mate.gpu.role.value, mate.state.value)
            for mate in slot
            if mate.gpu.address != gpu.address
        ],
        bookings=[_booking(booking, now) for booking in bookings],
    )


def _hardware(gpu: Gpu) -> list[tuple[str, str]]:
    group = "none: the IOMMU is off" if gpu.group is None else str(gpu.group)
    role = {
        GpuRole.LONE: "alone in its group",
        GpuRole.LEADER: f"leader of set {gpu.set_letter}: a server has it alone, or with its peers",
        GpuRole.PEER: f"peer in set {gpu.set_letter}: a server has it with its leader only",
    }[gpu.role]
    return [
        ("Model", gpu.model), ("PCI id", gpu.ids), ("IOMMU group", group), ("In its group", role),
        ("NUMA node", "" if gpu.numa_node is None else str(gpu.numa_node)),
        ("Class in Placement", gpu.resource_class), ("Cannot be given", gpu.blocked),
    ]  # fmt: skip


def _booking(booking: BookingRow, now: datetime) -> BookingLine:
    on = booking.start <= now
    return BookingLine(
        colour="held" if booking.kind is BookingKind.HOLD else "claimed" if on else "booked",
        what=KINDS.get(booking.kind, "booking"),
        who=" in ".join(filter(None, (booking.user, booking.project))),
        comment=booking.comment,
        start=since(booking.start, now),
        end=since(booking.end, now),
        on=on,
    )


@dataclass(frozen=True)
class GpuSeen:
    """The last report of a host about one of its GPUs."""

    address: str
    driver: str
    link: str
    power: str
    errors: str
    card: str
    drift: Sequence[str]
    """Differences from what the site expects."""


@dataclass(frozen=True)
class HostSaid:
    """The last report of a host, for operators."""

    heard: Since | None
    facts: Sequence[tuple[str, str]]
    gpus: Sequence[GpuSeen]
    drift: Sequence[str]


def service_line(service: HostService | None, *, details: bool) -> tuple[str, str]:
    """Return the state of a host's nova-compute in words, and the state of a GPU whose colour that has. `details`: also
    why it is so."""
    if service is None:
        return NOT_KNOWN, "lost"
    if service.silent:
        return f"{NOT_KNOWN}: its cell of Nova does not answer", "lost"
    why = f": {service.disabled_reason}" if service.disabled_reason and details else ""
    if not service.up:
        return f"down{' (forced)' if service.forced_down else ''}{why}", "blocked"
    return (f"up, but disabled{why}", "held") if not service.enabled else ("up", "free")


def host_seen(gpus: Sequence[Gpu], facts: HostFacts | None, word: HostContact | None, now: datetime) -> HostSaid:
    """Return the last report of a host, and how it differs from the site file. `facts`: as recorded for the site file;
    `word`: the report."""
    look = json.loads(word.look) if word is not None and word.look else {}
    versions: dict[str, str] = {name: str(look.get(name, "")) for name in ("kernel", "firmware", "qemu")}
    recorded = facts.kernel if facts else ""
    drift = []
    if versions["kernel"] and recorded and versions["kernel"] != recorded:
        drift.append(f"it runs kernel {versions['kernel']}; the site file was recorded with {recorded}")
    shown = [("Kernel", versions["kernel"] or (f"{recorded} (as recorded)" if recorded else "")),
             ("Firmware", versions["firmware"]), ("QEMU", versions["qemu"]), *_machine(facts)]  # fmt: skip
    by_address = {str(entry.get("address")): entry for entry in look.get("gpus", ())}
    return HostSaid(
        heard=since(word.heard, now) if word else None,
        facts=[(name, value) for name, value in shown if value],
        gpus=[_gpu_seen(gpu, by_address[gpu.address]) for gpu in gpus if gpu.address in by_address],
        drift=[
            *drift,
            *(f"it says nothing of GPU {gpu.address}" for gpu in gpus if look and gpu.address not in by_address),
        ],
    )


def _machine(facts: HostFacts | None) -> list[tuple[str, str]]:
    if facts is None:
        return []
    memory = f"{facts.memory_mib / 1024:.0f} GiB" if facts.memory_mib else ""
    nodes = f"{facts.numa_nodes} NUMA nodes" if facts.numa_nodes > 1 else ""
    cpus = counted(facts.cpus, "CPU") if facts.cpus else ""
    return [("CPUs", ", ".join(filter(None, (facts.cpu_model, cpus, nodes)))), ("Memory", memory),
            ("Kernel command line", facts.command_line)]  # fmt: skip


def _gpu_seen(gpu: Gpu, look: Mapping[str, object]) -> GpuSeen:
    raw = look.get("link")
    link = raw if isinstance(raw, dict) else {}
    width, most, speed = link.get("width") or 0, link.get("max_width") or 0, link.get("speed") or 0
    aer = look.get("aer")
    errors = ", ".join(f"{count} {kind}" for kind, count in aer.items() if count) if isinstance(aer, dict) else ""
    drift = []
    if not look.get("present", True):
        drift.append("it is gone from the bus")
    elif look.get("ids") and look["ids"] != gpu.ids:
        drift.append(f"it is a {look['ids']}, and the site expects {gpu.ids}")
    elif look.get("group") is not None and gpu.group is not None and look["group"] != gpu.group:
        drift.append(f"it is in IOMMU group {look['group']}, and the site expects {gpu.group}")
    if most and width and width < most:
        drift.append(f"its link has {width} of {most} lanes")
    return GpuSeen(
        address=gpu.address,
        driver=str(look.get("driver") or ""),
        link=f"{speed:g} GT/s x{width}" if width else "",
        power=str(look.get("power") or ""),
        errors=errors,
        card=str(look.get("serial") or ""),
        drift=drift,
    )


SEVERITIES = {
    Severity.ALARM: "blocked", Severity.ERROR: "blocked", Severity.WARNING: "held", Severity.UNKNOWN: "lost",
    Severity.NOTE: "booked", Severity.OK: "free",
}  # fmt: skip
"""Severity of a finding -> state of a GPU whose colour it has."""


@dataclass(frozen=True)
class CheckRow:
    """The result of one check of a host."""

    severity: str
    colour: str
    name: str
    says: str
    remedy: str


def check_rows(findings: Iterable[Finding]) -> list[CheckRow]:
    return [
        CheckRow(finding.severity.value, SEVERITIES[finding.severity], finding.code, finding.reason, finding.remedy)
        for finding in findings
    ]


def free_of(statuses: Sequence[GpuStatus]) -> str:
    """Count the free GPUs: ``3 free of 8``."""
    return f"{sum(status.state is GpuState.FREE for status in statuses)} free of {len(statuses)}"
