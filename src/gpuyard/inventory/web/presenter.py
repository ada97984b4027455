"""Prepares a view of the inventory for the map: rows, words, counts. Pure; templates decide nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from urllib.parse import urlencode

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.model.gpu import Claim, GpuRole, GpuState, GpuStatus
from gpuyard.model.moments import iso_text, second_text

DENSE_ABOVE = 48
"""GPUs of a site above which the map is drawn smaller, and hosts as blocks instead of rows."""
WIDEST = 8
"""Columns that a host may take at most."""
WIDEST_DENSE = 4

MEANINGS = {
    GpuState.FREE: "Can be had right now.",
    GpuState.CLAIMED: "A server holds it, running or shut off.",
    GpuState.BOOKED: "Kept for a booking that starts soon or has no server yet.",
    GpuState.HELD: "Kept out of scheduling: maintenance, quarantine or scrub.",
    GpuState.STRANDED: "Free, but cannot be had: its leader is taken, or its host has no room left.",
    GpuState.BLOCKED: "Its host is not ready to give it away.",
    GpuState.LOST: "The site expects it, the cloud does not have it.",
}


@dataclass(frozen=True)
class Since:
    """A moment as pages show it."""

    iso: str
    exact: str
    """For the tooltip, in UTC."""
    duration: str
    """Time since then, in one unit: ``5 h``."""


@dataclass(frozen=True)
class ClaimRow:
    server: str
    server_id: str
    status: str
    """Status of the server; empty when it is ACTIVE, which goes without saying."""
    project: str
    user: str
    since: Since | None


@dataclass(frozen=True)
class GpuBox:
    id: str
    name: str
    """For people who do not see where on the map it is: host and address."""
    state: str
    domain: str
    """The PCI domain with its colon, which is nearly always the same; and the rest of the address."""
    address: str
    model: str
    numa: str
    role: str
    """``leader`` or ``peer``; empty for a lone GPU."""
    claim: ClaimRow | None
    reason: str
    host: str
    href: str
    """Of its page."""
    mark: str = ""
    """The problem with it, in a word or two; empty: none."""


@dataclass(frozen=True)
class SlotBox:
    label: str
    shape: str
    """``lone``, ``pair`` or ``set``."""
    span: int
    """Columns."""
    gpus: tuple[GpuBox, ...]


@dataclass(frozen=True)
class HostSection:
    id: str
    name: str
    href: str
    """Of its page."""
    free: int
    total: int
    models: str
    alike: bool
    """All its GPUs are of one model."""
    span: int
    """Columns."""
    slots: tuple[SlotBox, ...]


@dataclass(frozen=True)
class StateCount:
    state: str
    count: int
    offset: int
    """GPUs before these in the bar."""


@dataclass(frozen=True)
class PoolCard:
    id: str
    name: str
    models: str
    free: int
    total: int
    parts: tuple[StateCount, ...]
    """States that occur, in the order of GpuState."""


@dataclass(frozen=True)
class MapPage:
    """The whole map."""

    generation: int
    dense: bool
    pools: tuple[PoolCard, ...]
    hosts: tuple[HostSection, ...]


@dataclass(frozen=True)
class Meaning:
    state: str
    text: str


LEGEND = tuple(Meaning(state.value, text) for state, text in MEANINGS.items())


Marks = Mapping[tuple[str, str], str]
"""(host, address) -> the problem with the GPU, in a word or two; every GPU whose health is followed."""


def present(view: InventoryView, now: datetime, marks: Marks | None = None) -> MapPage:
    """Return the map of a view. `now` is what durations are counted to; `marks`: where the health of GPUs is
    followed."""
    dense = len(view.statuses) > DENSE_ABOVE
    hosts = _grouped(view.statuses, lambda status: status.gpu.host)
    return MapPage(
        generation=view.generation,
        dense=dense,
        pools=tuple(pool_cards(view.statuses)),
        hosts=tuple(_host(name, members, dense, now, marks) for name, members in hosts),
    )


def gpu_boxes(statuses: Iterable[GpuStatus], now: datetime, marks: Marks | None = None) -> list[GpuBox]:
    """Return single GPUs, as `present` has them among the others."""
    return [_gpu(status, now, marks) for status in statuses]


def pool_cards(statuses: Sequence[GpuStatus]) -> list[PoolCard]:
    """Return one card per pool, in the order in which pools first come."""
    cards = []
    for name, members in by_pool(statuses):
        parts: list[StateCount] = []
        for state, count in count_states(status.state for status in members).items():
            if count:
                parts.append(StateCount(state.value, count, sum(part.count for part in parts)))
        models = ", ".join(sorted({status.gpu.model for status in members}))
        cards.append(PoolCard(f"pool-{name}", name, models, _free(members), len(members), tuple(parts)))
    return cards


def by_pool(statuses: Iterable[GpuStatus]) -> list[tuple[str, list[GpuStatus]]]:
    """Return the GPUs of each pool; pools in the order in which they first come."""
    return _grouped(statuses, lambda status: status.gpu.pool)


def count_states(states: Iterable[GpuState]) -> dict[GpuState, int]:
    """Count the GPUs in each state; every state is there."""
    counts = dict.fromkeys(GpuState, 0)
    for state in states:
        counts[state] += 1
    return counts


def duration(seconds: float) -> str:
    """Format seconds as ``5 h``: whole minutes, then hours from 1 h on, then days from 48 h on. live.js counts on in
    the same way."""
    minutes = max(1, int(seconds // 60))
    if minutes < 60:
        return f"{minutes} min"
    hours = minutes // 60
    return f"{hours} h" if hours < 48 else f"{hours // 24} d"


def lasted(seconds: float) -> str:
    """Format a time that is over, which may be short: ``40 s``, ``12 min``."""
    return f"{seconds:.0f} s" if seconds < 120 else duration(seconds)


def clock_time(moment: datetime, now: datetime) -> str:
    """Format a moment as ``12:03:10 UTC``, with the date when that is not today's."""
    moment, now = moment.astimezone(UTC), now.astimezone(UTC)
    same_day = moment.date() == now.date()
    return moment.strftime("%H:%M:%S UTC") if same_day else second_text(moment)


def _grouped(statuses: Iterable[GpuStatus], key: Callable[[GpuStatus], str]) -> list[tuple[str, list[GpuStatus]]]:
    """By key; keys and members stay in the order in which the site file has them."""
    groups: dict[str, list[GpuStatus]] = {}
    for status in statuses:
        groups.setdefault(key(status), []).append(status)
    return list(groups.items())


def _free(statuses: Iterable[GpuStatus]) -> int:
    return sum(status.state is GpuState.FREE for status in statuses)


def _host(name: str, statuses: list[GpuStatus], dense: bool, now: datetime, marks: Marks | None) -> HostSection:
    slots = tuple(_slot(members, now, marks) for members in _slots(statuses))
    span = min(len(statuses), WIDEST_DENSE if dense else WIDEST)
    models = sorted({status.gpu.model for status in statuses})
    return HostSection(
        id=f"host-{name}",
        name=name,
        href=host_href(name),
        free=_free(statuses),
        total=len(statuses),
        models=", ".join(models),
        alike=len(models) == 1,
        span=span,
        slots=slots,
    )


def _slots(statuses: Iterable[GpuStatus]) -> list[list[GpuStatus]]:
    """The GPUs of each IOMMU group, the leader first; groups by the address of their first GPU.

    A GPU without a group number (the IOMMU is off) stands alone: nothing is known of what it shares.
    """
    groups: dict[object, list[GpuStatus]] = {}
    for status in sorted(statuses, key=lambda status: (status.gpu.role is GpuRole.PEER, status.gpu.place)):
        own = status.gpu.address if status.gpu.group is None else status.gpu.group
        groups.setdefault(own, []).append(status)
    return sorted(groups.values(), key=lambda members: members[0].gpu.place)


def _slot(statuses: list[GpuStatus], now: datetime, marks: Marks | None) -> SlotBox:
    first, size = statuses[0].gpu, len(statuses)
    label = "no IOMMU group" if first.group is None else f"IOMMU group {first.group}"
    if first.is_unit:
        label = f"share of {first.device}"
    shape = "lone" if size == 1 else "pair" if size == 2 else "set"
    if shape != "lone":
        kind = "pair" if shape == "pair" else f"set of {size}"
        label = f"{label} · {kind} {first.set_letter or ''}".rstrip()
    return SlotBox(label, shape, min(size, WIDEST), tuple(_gpu(status, now, marks) for status in statuses))


def host_href(host: str) -> str:
    """Return the relative address of the page of a host."""
    return f"host?{urlencode({'name': host})}"


def gpu_href(host: str, address: str) -> str:
    """Return the relative address of the page of one GPU."""
    return f"gpu?{urlencode({'name': f'{host}/{address}'}, safe='/:')}"


def _gpu(status: GpuStatus, now: datetime, marks: Marks | None) -> GpuBox:
    gpu = status.gpu
    domain, colon, address = gpu.address.partition(":")
    return GpuBox(
        id=f"gpu-{gpu.host}-{gpu.address}",
        name=f"{gpu.address} on {gpu.host}",
        state=status.state.value,
        domain=domain + colon,
        address=address,
        model=gpu.model,
        numa="" if gpu.numa_node is None else f"NUMA {gpu.numa_node}",
        role="" if gpu.role is GpuRole.LONE else gpu.role.value,
        claim=_claim(status.claim, now) if status.claim else None,
        reason=status.reason,
        host=gpu.host,
        href=gpu_href(gpu.host, gpu.address),
        mark=(marks or {}).get((gpu.host, gpu.address), ""),
    )


def _claim(claim: Claim, now: datetime) -> ClaimRow:
    return ClaimRow(
        server=claim.server_name or claim.server_id,
        server_id=claim.server_id,
        status="" if claim.server_status == "ACTIVE" else claim.server_status,
        project=claim.project,
        user=claim.user,
        since=since(claim.since, now) if claim.since else None,
    )


def since(moment: datetime, now: datetime) -> Since:
    moment = moment.astimezone(UTC)
    return Since(
        iso=iso_text(moment),
        exact=second_text(moment),
        duration=duration((now - moment).total_seconds()),
    )
