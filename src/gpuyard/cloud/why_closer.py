"""The closer look of ``gpuyard gpu why``: what hosts that nearly fit have, and who holds it. See why_facts.py."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.ledger.state import gpu_statuses
from gpuyard.model.gpu import Gpu, GpuStatus
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.site.why.facts import AskedFlavor, Device, Facts, HostAnswer, HostFacts, Room, RunningServer
from gpuyard.site.why.request import ALIAS_SPEC, Alias, Request, request_of

LOOK_CLOSER = 8
"""Hosts that are looked at."""
PAGE = 1000
NOT_FOUND = 404


class CloserLook:
    """Reads what the first round left open, of a few hosts."""

    def __init__(
        self,
        api: CloudApi,
        threads: ThreadPoolExecutor,
        aliases: Mapping[str, Alias],
        gpus: Sequence[Gpu],
        providers: Mapping[str, Provider],
        allocatable: frozenset[str],
        asker: tuple[str, str] | None,
    ) -> None:
        """`gpus` are the site's of the pools that are asked, `providers` all by name, `allocatable` the names of GPUs
        that can be had; `asker` is the id and the name of a project that is known already."""
        self._api = api
        self._threads = threads
        self._aliases = aliases
        self._gpus = gpus
        self._providers = providers
        self._allocatable = allocatable
        self._names: dict[tuple[str, str], str] = {("project", asker[0]): asker[1]} if asker else {}

    def look(self, facts: Facts, request: Request, answers: Sequence[HostAnswer]) -> Facts:
        """The facts with numbers, servers and holders of the hosts that are nearest to having room."""
        short = [a for a in answers if any(cause.kind in ("gpu", "room") for cause in a.causes)]
        chosen = {a.host for a in sorted(short, key=_distance)[:LOOK_CLOSER]}
        later = {h.name: self._threads.submit(self._servers_on, h) for h in facts.hosts if h.name in chosen}
        rooms = {h.name: self._rooms(facts, request, h) for h in facts.hosts if h.name in chosen}
        rows = {name: result.result() for name, result in later.items()}
        statuses = self._statuses(facts, rows, [gpu for gpu in self._gpus if gpu.host in chosen])
        self._learn(row for servers in rows.values() for row in servers)
        return replace(
            facts,
            hosts=tuple(
                replace(host, rooms=rooms[host.name](), servers=tuple(map(self._running, rows[host.name])))
                if host.name in chosen
                else host
                for host in facts.hosts
            ),
            devices=tuple(self._known(device, statuses, facts) for device in facts.devices),
        )

    def _servers_on(self, host: HostFacts) -> list[dict[str, Any]]:
        query = {"all_tenants": 1, "host": host.service_host, "limit": PAGE}
        return list(self._api.pages("compute", "/servers/detail", "servers", **query)) if host.has_service else []

    def _rooms(self, facts: Facts, request: Request, host: HostFacts) -> Callable[[], dict[str, Room | None]]:
        """Starts to read what the host has of the classes that it is short of; call the result for it."""
        short = [
            name for name, amount in request.amounts.items() if host.provider not in facts.able.get((name, amount), ())
        ]
        if not short:
            return dict
        base = f"/resource_providers/{host.provider}"
        inventories = self._threads.submit(self._api.get, "placement", f"{base}/inventories")
        usages = self._threads.submit(self._api.get, "placement", f"{base}/usages")

        def result() -> dict[str, Room | None]:
            has, used = inventories.result()["inventories"], usages.result()["usages"]
            return {name: _room(has[name], used.get(name, 0)) if name in has else None for name in short}

        return result

    def _statuses(
        self, facts: Facts, rows: Mapping[str, Sequence[Mapping[str, Any]]], gpus: Sequence[Gpu]
    ) -> dict[str, GpuStatus]:
        """The state of every GPU of the hosts that are looked at, by its provider's name."""
        servers = [row for on_host in rows.values() for row in on_host if ALIAS_SPEC in row["flavor"]["extra_specs"]]
        missing = [
            gpu for gpu in gpus
            if not gpu.blocked and gpu.provider_name in self._providers and gpu.provider_name not in self._allocatable
        ]  # fmt: skip
        names = {provider.id: provider.name for provider in self._providers.values()}
        held = self._threads.map(self._held_by, [row["id"] for row in servers] if missing else [])
        holders = {
            names[provider]: row["id"]
            for row, ids in zip(servers if missing else (), held, strict=True)
            for provider in ids
            if provider in names
        }
        odd = [gpu for gpu in missing if gpu.provider_name not in holders]
        answers = dict(zip((gpu.provider_name for gpu in odd), self._threads.map(self._why_not, odd), strict=True))
        holders |= {name: text for name, (kind, text) in answers.items() if kind == "consumer"}
        self._learn_users(row for row in servers if row["id"] in holders.values())
        snapshot = Snapshot(
            taken_at=datetime.now(UTC),
            providers=self._providers,
            allocatable=self._allocatable,
            holders=holders,
            reserved=frozenset(name for name, (kind, _) in answers.items() if kind == "reserved"),
            roomy_hosts={},
            servers={row["id"]: self._server(row) for row in servers},
            services={
                h.service_host: HostService(h.service_host, h.up, h.enabled, h.disabled_reason) for h in facts.hosts
            },
            unexplained={name: text for name, (kind, text) in answers.items() if kind == "odd"},
        )
        return {status.gpu.provider_name: status for status in gpu_statuses(gpus, snapshot)}

    def _held_by(self, server: str) -> frozenset[str]:
        return frozenset(self._api.get("placement", f"/allocations/{server}")["allocations"])

    def _why_not(self, gpu: Gpu) -> tuple[str, str]:
        """Why a GPU can neither be had nor is held by a server of its host."""
        base = f"/resource_providers/{self._providers[gpu.provider_name].id}"
        inventories = self._api.get("placement", f"{base}/inventories")["inventories"]
        mine = inventories.get(gpu.resource_class)
        if mine is None:
            seen = ", ".join(sorted(inventories)) or "nothing"
            return "odd", f"Placement has it as {seen}, not as {gpu.resource_class}: deploy the site's Nova options"
        if mine["reserved"] >= mine["total"]:
            return "reserved", ""
        consumers = self._api.get("placement", f"{base}/allocations")["allocations"]
        return ("consumer", sorted(consumers)[0]) if consumers else ("freed", "")

    def _learn(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """The names of the servers' projects."""
        unknown = {("project", row["tenant_id"]) for row in rows} - self._names.keys()
        list(self._threads.map(self._learn_name, sorted(unknown)))

    def _learn_users(self, rows: Iterable[Mapping[str, Any]]) -> None:
        rows = list(rows)
        unknown = {("user", row["user_id"]) for row in rows} | {("project", row["tenant_id"]) for row in rows}
        list(self._threads.map(self._learn_name, sorted(unknown - self._names.keys())))

    def _learn_name(self, key: tuple[str, str]) -> None:
        kind, identity = key
        try:
            self._names[key] = self._api.get("identity", f"/{kind}s/{identity}")[kind]["name"]
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise
            self._names[key] = identity

    def _server(self, row: Mapping[str, Any]) -> Server:
        return Server(
            id=row["id"],
            name=row["name"],
            status=row["status"],
            host=row["OS-EXT-SRV-ATTR:host"],
            project=self._names.get(("project", row["tenant_id"]), row["tenant_id"]),
            user=self._names.get(("user", row["user_id"]), row["user_id"]),
            flavor=row["flavor"]["original_name"],
        )

    def _running(self, row: Mapping[str, Any]) -> RunningServer:
        asked = request_of(
            flavor_of({"id": "", "name": row["flavor"]["original_name"], **row["flavor"]}), self._aliases
        )
        project = self._names.get(("project", row["tenant_id"]), row["tenant_id"])
        user = self._names.get(("user", row["user_id"]), "")
        counted = asked.counted(True)
        return RunningServer(
            row["id"], row["name"], row["status"], project, user, asked.amounts, row["tenant_id"], counted
        )

    def _known(self, device: Device, statuses: Mapping[str, GpuStatus], facts: Facts) -> Device:
        """A device with its state, where it was looked at closer and cannot be had."""
        status = statuses.get(device.provider)
        if status is None or device.state != "taken":
            return device
        claim = status.claim
        reason, state = status.reason, status.state.value
        if claim is not None and claim.server_name:
            reason = f"is held by server {claim.server_name} (project {claim.project}, user {claim.user})"
        elif claim is not None:
            state = "orphan"
        elif device.provider in self._allocatable:
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
        return replace(device, state=state, reason=reason, server=server, stranded=stranded)


def _room(row: Mapping[str, Any], used: int) -> Room:
    return Room(row["total"], row["reserved"], row["allocation_ratio"], row["max_unit"], used)


def flavor_of(row: Mapping[str, Any]) -> AskedFlavor:
    """A flavor as its list has it, or as a server carries it."""
    return AskedFlavor(
        id=row["id"],
        name=row["name"],
        vcpus=row["vcpus"],
        ram=row["ram"],
        disk=row["disk"],
        ephemeral=row["ephemeral"] if "ephemeral" in row else row["OS-FLV-EXT-DATA:ephemeral"],
        swap=row["swap"] or 0,
        extra_specs=row["extra_specs"],
    )


def _distance(answer: HostAnswer) -> tuple[int, int]:
    """Hosts that only lack what can be freed come first, those with fewer causes before others."""
    return sum(cause.kind not in ("gpu", "room") for cause in answer.causes), len(answer.causes)
