"""The state of every GPU of a site, each with its reason, from what the site expects and what is seen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpuyard.model.gpu import Claim, Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.model.world import Snapshot


def gpu_statuses(gpus: Sequence[Gpu], snapshot: Snapshot) -> list[GpuStatus]:
    """One status per GPU, in the order given."""
    leaders = {(gpu.host, gpu.pool, gpu.set_letter): gpu for gpu in gpus if gpu.role is GpuRole.LEADER}
    alone = {gpu: _alone(gpu, snapshot) for gpu in gpus}
    return [_with_leader(alone[gpu], leaders, alone) if gpu.role is GpuRole.PEER else alone[gpu] for gpu in gpus]


def _alone(gpu: Gpu, snapshot: Snapshot) -> GpuStatus:
    """The state of a GPU without a look at the others of its group."""
    name = gpu.provider_name
    if gpu.blocked:
        return GpuStatus(gpu, GpuState.BLOCKED, gpu.blocked)
    if name in snapshot.holders:
        return _claimed(gpu, snapshot)
    if name not in snapshot.providers:
        return GpuStatus(gpu, GpuState.LOST, _why_lost(gpu, snapshot))
    if name in snapshot.reserved:
        return GpuStatus(gpu, GpuState.HELD, "reserved in Placement: maintenance, quarantine or scrub")
    if name not in snapshot.allocatable:
        return GpuStatus(gpu, GpuState.BLOCKED, snapshot.unexplained.get(name, "Placement does not give it away"))
    closed = _host_closed(gpu, snapshot)
    if closed:
        return GpuStatus(gpu, GpuState.BLOCKED, closed)
    if gpu.pool in snapshot.roomy_hosts and gpu.host not in snapshot.roomy_hosts[gpu.pool]:
        reason = f"{gpu.host} has no CPU, RAM or disk left for any flavor of pool {gpu.pool}"
        return GpuStatus(gpu, GpuState.STRANDED, reason)
    return GpuStatus(gpu, GpuState.FREE)


def _claimed(gpu: Gpu, snapshot: Snapshot) -> GpuStatus:
    holder = snapshot.holders[gpu.provider_name]
    server = snapshot.servers.get(holder)
    if server is None:
        claim = Claim(holder, "", "", "", "")
        reason = f"allocated to {holder}, which is no server with GPUs: just created, migrating, or left behind"
        return GpuStatus(gpu, GpuState.CLAIMED, reason, claim)
    since = server.launched or server.created
    claim = Claim(server.id, server.name, server.status, server.project, server.user, since)
    reason = "" if server.status == "ACTIVE" else f"server is {server.status} and keeps its GPU"
    return GpuStatus(gpu, GpuState.CLAIMED, reason, claim)


def _why_lost(gpu: Gpu, snapshot: Snapshot) -> str:
    if gpu.host not in snapshot.providers:
        return f"no nova-compute has reported host {gpu.host} to Placement"
    return f"nova-compute on {gpu.host} does not report {gpu.address}: is the site's device_spec deployed there?"


def _host_closed(gpu: Gpu, snapshot: Snapshot) -> str:
    service = snapshot.services.get(gpu.host)
    if service is None:
        return f"host {gpu.host} has no nova-compute service"
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
    other = alone[leader]
    who = f"taken by server {other.claim.server_name or other.claim.server_id}" if other.claim else other.state.value
    return GpuStatus(gpu, GpuState.STRANDED, f"its leader {leader.address} is {who}")
