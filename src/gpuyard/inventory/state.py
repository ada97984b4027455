"""Decides the state of every GPU of a site, each with its reason, from the site file and a snapshot. Pure.

The first that holds decides: blocked by the site; claimed by a server; lost, where Placement does not have it; blocked,
where it still counts for a server that has left; held or booked, where it is reserved; blocked, where Placement does
not give it away or its host is closed; booked by the ledger; stranded, where its host has no room for any flavor; else
free. A free peer whose leader cannot be had is stranded, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane
from gpuyard.model.gpu import FOREIGN, Claim, Gpu, GpuKind, GpuRole, GpuState, GpuStatus, Keeping, LedgerWords
from gpuyard.model.moments import minute_text
from gpuyard.model.world import Snapshot

NOTHING: LedgerWords = {}
NOTHING_BACK: Mapping[int, str] = {}
RUNNER, LENT = "runner ", "lent to project "
"""Beginnings of the reason of a GPU with a lease, and of one with a loan."""


def ledger_words(
    gpus: Iterable[Gpu],
    lanes: Iterable[Lane],
    bookings: Iterable[Booking],
    held_lanes: Mapping[int, str],
    kept_back: Mapping[int, str] = NOTHING_BACK,
) -> LedgerWords:
    """Return what to say of GPUs whose lanes are booked or held now. `held_lanes`: lanes that are held in Placement,
    each with why; `kept_back`: those with which something is wrong, which is said whatever else there is to say."""
    names = {(gpu.host, gpu.address): gpu.provider_name for gpu in gpus}
    of_lane = {
        lane.id: [names[lane.host, address] for address in lane.addresses if (lane.host, address) in names]
        for lane in lanes
    }
    keepings = {
        name: Keeping(GpuState.BOOKED, why) for lane, why in held_lanes.items() for name in of_lane.get(lane, ())
    }
    # Holds last: a GPU that has both is held.
    for booking in sorted(bookings, key=lambda candidate: candidate.kind is BookingKind.HOLD):
        active = booking.state is BookingState.ACTIVE
        provider_names = [
            name for lane in booking.lanes if active or lane in held_lanes for name in of_lane.get(lane, ())
        ]
        if booking.kind is BookingKind.HOLD:
            comment = f": {booking.ask.comment}" if booking.ask.comment else ""
            what = f"held by {booking.user} until {minute_text(booking.ask.end)}{comment}"
            keeping = Keeping(GpuState.HELD, what, booking.id)
        elif booking.kind is BookingKind.LOAN:
            what = f"{LENT}{booking.project} until {minute_text(booking.ask.end)}: {booking.ask.comment}"
            keeping = Keeping(GpuState.BOOKED, what, booking.id)
        elif booking.kind is BookingKind.RUNNER:
            whose = booking.ask.comment.removeprefix(RUNNER) or booking.server
            what = f"{RUNNER}{whose} until {minute_text(booking.ask.end)}"
            keeping = Keeping(GpuState.BOOKED, what, booking.id)
        else:
            when = f"until {minute_text(booking.ask.end)}" if active else f"from {minute_text(booking.ask.start)}"
            keeping = Keeping(GpuState.BOOKED, f"booked by {booking.user} ({booking.project}) {when}", booking.id)
        keepings |= dict.fromkeys(provider_names, keeping)
    wrong = {name: Keeping(GpuState.HELD, why) for lane, why in kept_back.items() for name in of_lane.get(lane, ())}
    # One that is lent is its project's, whatever is wrong with it: also while it is released for a server.
    lent = {
        name: replace(keepings[name], reason=f"{keepings[name].reason}; {keeping.reason}")
        for name, keeping in wrong.items()
        if name in keepings and keepings[name].reason.startswith(LENT)
    }
    return keepings | wrong | lent


def gpu_statuses(gpus: Sequence[Gpu], snapshot: Snapshot, words: LedgerWords = NOTHING) -> list[GpuStatus]:
    """Return one status per GPU, in the order given. `words`: what the ledger says, where GPUs can be booked."""
    leaders = {(gpu.host, gpu.pool, gpu.set_letter): gpu for gpu in gpus if gpu.role is GpuRole.LEADER}
    alone = {gpu: _alone(gpu, snapshot, words) for gpu in gpus}
    return [_with_leader(alone[gpu], leaders, alone) if gpu.role is GpuRole.PEER else alone[gpu] for gpu in gpus]


def _alone(gpu: Gpu, snapshot: Snapshot, words: LedgerWords) -> GpuStatus:
    """The state of a GPU without a look at the others of its group."""
    name = gpu.provider_name
    if gpu.blocked:
        return GpuStatus(gpu, GpuState.BLOCKED, gpu.blocked)
    if name in snapshot.holders:
        return _claimed(gpu, snapshot, words.get(name))
    if name not in snapshot.providers:
        return GpuStatus(gpu, GpuState.LOST, _why_lost(gpu, snapshot))
    if name in snapshot.left_behind:
        return GpuStatus(gpu, GpuState.BLOCKED, _why_left_behind(gpu, snapshot))
    keeping = words.get(name)
    if name in snapshot.reserved and keeping is not None:
        return GpuStatus(gpu, keeping.state, keeping.reason, booking=keeping.booking)
    if name in snapshot.reserved:
        return GpuStatus(gpu, GpuState.HELD, FOREIGN)
    if name not in snapshot.allocatable:
        return GpuStatus(gpu, GpuState.BLOCKED, snapshot.unexplained.get(name, "Placement does not give it away"))
    closed = _host_closed(gpu, snapshot)
    if closed:
        return GpuStatus(gpu, GpuState.BLOCKED, closed)
    if keeping is not None and keeping.state is GpuState.BOOKED:
        return GpuStatus(gpu, keeping.state, keeping.reason, booking=keeping.booking)
    if gpu.pool in snapshot.roomy_hosts and gpu.host not in snapshot.roomy_hosts[gpu.pool]:
        reason = f"{gpu.host} has no CPU, RAM or disk left for any flavor of pool {gpu.pool}"
        return GpuStatus(gpu, GpuState.STRANDED, reason)
    return GpuStatus(gpu, GpuState.FREE)


def _claimed(gpu: Gpu, snapshot: Snapshot, keeping: Keeping | None) -> GpuStatus:
    holder = snapshot.holders[gpu.provider_name]
    server = snapshot.servers.get(holder)
    if server is None:
        claim = Claim(holder, "", "", "", "")
        reason = f"allocated to {holder}, which is no server with GPUs: just created, migrating, or left behind"
        return GpuStatus(gpu, GpuState.CLAIMED, reason, claim)
    since = server.launched or server.created
    claim = Claim(
        server.id, server.name, server.status, server.project, server.user, since, server.project_id, server.user_id
    )  # fmt: skip
    if server.status == "ACTIVE" and keeping is not None and keeping.reason.startswith(RUNNER):
        return GpuStatus(gpu, GpuState.CLAIMED, keeping.reason, claim, booking=keeping.booking)
    if keeping is not None and keeping.reason.startswith(LENT):
        return GpuStatus(gpu, GpuState.CLAIMED, keeping.reason, claim, booking=keeping.booking)
    if keeping is not None and keeping.state is GpuState.HELD and not keeping.booking:  # its owner is to see it now
        return GpuStatus(gpu, GpuState.CLAIMED, f"{keeping.reason}; it is kept back when its server ends", claim)
    reason = "" if server.status == "ACTIVE" else f"server is {server.status} and keeps its GPU"
    return GpuStatus(gpu, GpuState.CLAIMED, reason, claim)


def _why_lost(gpu: Gpu, snapshot: Snapshot) -> str:
    if gpu.host not in snapshot.providers:
        return f"no nova-compute has reported host {gpu.host} to Placement"
    if gpu.provider in snapshot.providers:
        return f"nova-compute on {gpu.host} offers fewer units of {gpu.device} than were recorded"
    what = "list of mdev types" if gpu.kind is GpuKind.VGPU else "device_spec"
    return f"nova-compute on {gpu.host} does not report {gpu.device}: is the site's {what} deployed there?"


def _why_left_behind(gpu: Gpu, snapshot: Snapshot) -> str:
    server = snapshot.servers[snapshot.left_behind[gpu.provider_name]]
    if server.host == gpu.host:
        return (
            f"counted for server {server.name} ({server.id}) by Placement, beyond what its flavor {server.flavor} asks "
            f"for: Nova leaves that when it moves a server; gpuyard host leftovers {gpu.host} --clean puts it right"
        )
    return (
        f"left behind by server {server.name} ({server.id}), which is on {server.host} now: Placement gives it to "
        f"nobody until nova-compute on {gpu.host} starts, or gpuyard host leftovers {gpu.host} --clean"
    )


def _host_closed(gpu: Gpu, snapshot: Snapshot) -> str:
    service = snapshot.services.get(gpu.host)
    if service is None:
        return f"host {gpu.host} has no nova-compute service"
    if service.silent:
        return service.unheard
    if not service.enabled:
        because = f": {service.disabled_reason}" if service.disabled_reason else ""
        return f"nova-compute on {gpu.host} is disabled{because}"
    return "" if service.up else f"nova-compute on {gpu.host} is down"


def _with_leader(
    status: GpuStatus, leaders: Mapping[tuple[str, str, str | None], Gpu], alone: Mapping[Gpu, GpuStatus]
) -> GpuStatus:
    """A free peer can only be had together with its leader, so it is stranded when the leader cannot be had."""
    gpu = status.gpu
    leader = leaders.get((gpu.host, gpu.pool, gpu.set_letter))
    if status.state is not GpuState.FREE or leader is None or alone[leader].state is GpuState.FREE:
        return status
    leader_status = alone[leader]
    who = (
        f"taken by server {leader_status.claim.server_name or leader_status.claim.server_id}"
        if leader_status.claim
        else leader_status.state.value
    )
    return GpuStatus(gpu, GpuState.STRANDED, f"its leader {leader.address} is {who}")
