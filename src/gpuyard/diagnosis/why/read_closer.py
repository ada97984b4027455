"""Reads details of the hosts that nearly fit for ``gpuyard gpu why``: their resources, and who holds them.

It is the second round after read.py, and reads eight hosts at most, those nearest to fitting.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime

from gpuyard.diagnosis.why.facts import ComputeNode, Device, HostAnswer, HostStock, RequestFacts, RunningServer
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.gpu import Gpu, GpuStatus, LedgerWords
from gpuyard.model.world import HostService, Provider, Snapshot
from gpuyard.nova.alias import Alias
from gpuyard.nova.request import Request, request_of
from gpuyard.openstack.gpus import see_gpus
from gpuyard.openstack.reader import Names, Reader
from gpuyard.openstack.rows import ServerRow

LOOK_CLOSER = 8
"""Hosts that are looked at."""


class CloserReader:
    """Reads the facts that the first round left open, of a few hosts."""

    def __init__(
        self,
        cloud: Reader,
        aliases: Mapping[str, Alias],
        gpus: Sequence[Gpu],
        providers: Mapping[str, Provider],
        allocatable: frozenset[str],
        asker: tuple[str, str] | None,
        words: LedgerWords | None,
    ) -> None:
        """`gpus` are the site's of the pools that are asked, `providers` all by name, `allocatable` the names of GPUs
        that can be had; `asker` is the id and the name of a project that is known already."""
        self._cloud = cloud
        self._aliases = aliases
        self._gpus = gpus
        self._providers = providers
        self._allocatable = allocatable
        self._words = words
        self._names = Names({("project", asker[0]): asker[1]} if asker else {})

    def look(self, facts: RequestFacts, request: Request, answers: Sequence[HostAnswer]) -> RequestFacts:
        """Return the facts with numbers, servers and holders of the hosts that are nearest to having room."""
        # Nova lists no server of a cell that is silent, so nothing more can be known of hosts there.
        silent = {host.name for host in facts.hosts if host.silent}
        short = [a for a in answers if any(cause.code in ("gpu", "room") for cause in a.causes)]
        heard = [answer for answer in short if answer.host not in silent]
        chosen = {answer.host for answer in sorted(heard, key=_distance)[:LOOK_CLOSER]}
        later = {h.name: self._cloud.later(self._servers_on, h) for h in facts.hosts if h.name in chosen}
        stocks = {h.name: self._rooms(facts, request, h) for h in facts.hosts if h.name in chosen}
        rows = {name: result.result() for name, result in later.items()}
        statuses = self._statuses(facts, rows, [gpu for gpu in self._gpus if gpu.host in chosen])
        self._learn(row for servers in rows.values() for row in servers)
        return replace(
            facts,
            hosts=tuple(
                replace(host, rooms=stocks[host.name](), servers=tuple(map(self._running, rows[host.name])))
                if host.name in chosen
                else host
                for host in facts.hosts
            ),
            devices=tuple(self._known(device, statuses, facts) for device in facts.devices),
            ledger_known=self._words is not None,
        )

    def _servers_on(self, host: ComputeNode) -> Sequence[ServerRow]:
        return self._cloud.servers(host=host.service_host) if host.has_service else ()

    def _rooms(
        self, facts: RequestFacts, request: Request, host: ComputeNode
    ) -> Callable[[], dict[str, HostStock | None]]:
        """Starts to read what the host has of the classes that it is short of; call the result for it."""
        short = [
            name for name, amount in request.amounts.items() if host.provider not in facts.able.get((name, amount), ())
        ]
        if not short:
            return dict
        stock = self._cloud.later(self._cloud.stock, host.provider)
        usages = self._cloud.later(self._cloud.usages, host.provider)

        def result() -> dict[str, HostStock | None]:
            has, used = stock.result(), usages.result()
            return {
                name: HostStock(**vars(has[name]), used=used.get(name, 0)) if name in has else None for name in short
            }

        return result

    def _statuses(
        self, facts: RequestFacts, rows: Mapping[str, Sequence[ServerRow]], gpus: Sequence[Gpu]
    ) -> dict[str, GpuStatus]:
        """The state of every GPU of the hosts that are looked at, by its provider's name."""
        missing = any(
            not gpu.blocked and gpu.provider_name in self._providers.keys() - self._allocatable for gpu in gpus
        )
        servers = {row.id: row for on_host in rows.values() for row in on_host if row.asks_devices}
        allocations = self._cloud.each(self._cloud.allocations, servers if missing else ())
        gpus_seen = see_gpus(self._cloud, gpus, self._providers, self._allocatable, allocations)
        holding = [row for row in servers.values() if row.id in gpus_seen.holders.values()]
        self._names.learn(self._cloud, {row.user for row in holding}, {row.project for row in holding})
        snapshot = Snapshot(
            taken_at=datetime.now(UTC),
            providers=self._providers,
            roomy_hosts={},
            servers={row.id: row.named(*self._names.owners(row)) for row in servers.values()},
            services={
                host.service_host: HostService(
                    host.service_host, host.up, host.enabled, host.disabled_reason, silent=host.silent
                )
                for host in facts.hosts
            },
            **vars(gpus_seen),
        )
        return {status.gpu.provider_name: status for status in gpu_statuses(gpus, snapshot, self._words or {})}

    def _learn(self, rows: Iterable[ServerRow]) -> None:
        """The names of the servers' projects."""
        self._names.learn(self._cloud, projects={row.project for row in rows})

    def _running(self, row: ServerRow) -> RunningServer:
        request = request_of(row.flavor, self._aliases)
        project, user = self._names.owners(row)
        user = "" if user == row.user else user  # it was not asked for
        counted = request.counted(True)
        return RunningServer(row.id, row.name, row.status, project, user, request.amounts, row.project, counted)

    def _known(self, device: Device, statuses: Mapping[str, GpuStatus], facts: RequestFacts) -> Device:
        """A device with its state, where it was looked at closer and cannot be had."""
        status = statuses.get(device.provider)
        if status is None or device.state != "taken":
            return device
        claim = status.claim
        reason, state = status.reason, status.state.value
        if claim is not None and claim.server_name:
            reason = f"is held by server {claim.server_name} (project {claim.project}, user {claim.user})"
        elif claim is None and device.provider in self._allocatable:
            state = "blocked"
            reason = f"has no trait {', '.join(sorted(device.traits))} in Placement: deploy the site's Nova options"
        gpu = status.gpu
        stranded = tuple(
            other.address
            for other in self._gpus
            if gpu.set_letter
            and other is not gpu
            and (other.host, other.pool, other.set_letter) == (gpu.host, gpu.pool, gpu.set_letter)
            and other.provider_name in self._allocatable
        )
        server = claim.server_id if claim else ""
        return replace(
            device, state=state, reason=reason, server=server, stranded=stranded, booking=status.booking,
            orphan=claim is not None and not claim.server_name,
        )  # fmt: skip


def _distance(answer: HostAnswer) -> tuple[int, int]:
    """Hosts that only lack what can be freed come first, those with fewer causes before others."""
    return sum(cause.code not in ("gpu", "room") for cause in answer.causes), len(answer.causes)
