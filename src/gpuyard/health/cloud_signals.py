"""What Nova and Placement say of GPUs without saying it: signals of source NOVA."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.health.planner import SitePlace
from gpuyard.health.records import Observation
from gpuyard.model.gpu import provider_name
from gpuyard.model.world import Snapshot

PATIENCE = timedelta(minutes=5)
"""For how long a provider must have been gone: a nova-compute that restarts reports it again."""
SETTLED = timedelta(minutes=2)
"""So long after its start, at least, a server has its GPU open on its host."""
TRIES = 3
"""Servers that failed on one GPU, one after the other."""
REMEMBERED = 10_000
"""Servers that are being made, at most."""


@dataclass(frozen=True)
class HostUse:
    """Whether a GPU is open on its host."""

    seen: datetime
    in_use: bool


class CloudSignals:
    """Compares each look at the cloud with those before. What is remembered is lost with the process, and that costs
    time: nothing is seen that was not."""

    def __init__(self) -> None:
        self._had: set[str] = set()
        """Providers that were seen."""
        self._gone: dict[str, datetime] = {}
        self._making: dict[str, str] = {}
        """Server that is being made -> its GPU's provider."""
        self._failed: dict[str, list[str]] = {}
        """Provider -> servers that failed there since the last one that did not."""

    def look(self, places: Iterable[SitePlace], snapshot: Snapshot, uses: Mapping[str, HostUse]) -> list[Observation]:
        """`uses`: by the names of GPUs, as far as their hosts have said. Each failure is said once, what lasts is said
        at every look."""
        by_provider = {provider_name(one.host, one.address): one for one in places}
        found = [
            *self._providers(by_provider, snapshot),
            *self._creates(by_provider, snapshot),
            *_gone_under(by_provider, snapshot, uses),
        ]
        return found

    def _providers(self, places: Mapping[str, SitePlace], snapshot: Snapshot) -> Iterable[Observation]:
        now, there = snapshot.taken_at, snapshot.providers.keys()
        for name, place in places.items():
            if name in there:
                self._had.add(name)
                self._gone.pop(name, None)
            elif name in self._had and _host_answers(place.host, snapshot):
                since = self._gone[name] = min(self._gone.get(name, now), now)  # the clock may go back
                if now - since >= PATIENCE:
                    yield _saw(place, "no-provider", now, f"no provider {name} since {since:%Y-%m-%d %H:%M:%S} UTC")
            else:
                self._gone.pop(name, None)  # nobody knows: its whole host is out of sight

    def _creates(self, places: Mapping[str, SitePlace], snapshot: Snapshot) -> Iterable[Observation]:
        for name, id in snapshot.holders.items():
            server = snapshot.servers.get(id)
            if name not in places or server is None:
                continue
            if server.status == "BUILD" and len(self._making) < REMEMBERED:
                self._making[id] = name
            elif server.status == "ACTIVE":
                self._failed.pop(name, None)
        for id, name in list(self._making.items()):
            server = snapshot.servers.get(id)
            if server is not None and server.status == "BUILD":
                continue
            del self._making[id]
            if server is None or server.status != "ERROR" or server.launched is not None or name not in places:
                continue  # deleted while it was made: that says nothing
            failed = self._failed.setdefault(name, [])
            failed.append(id)
            if len(failed) >= TRIES:
                del self._failed[name]
                yield _saw(places[name], "creates-fail", snapshot.taken_at, f"servers {', '.join(failed)}")


def _gone_under(
    places: Mapping[str, SitePlace], snapshot: Snapshot, uses: Mapping[str, HostUse]
) -> Iterable[Observation]:
    for name, id in snapshot.holders.items():
        place, server = places.get(name), snapshot.servers.get(id)
        if place is None or server is None or server.status != "ACTIVE" or server.task:
            continue
        use, started = uses.get(place.name), server.launched
        if use is None or use.in_use or started is None:
            continue
        # What its host said must be of this server's time, not of the moment before it.
        if server.host == place.host and use.seen - started >= SETTLED and snapshot.taken_at - use.seen < SETTLED:
            yield _saw(place, "gone-under", snapshot.taken_at, f"server {id} is ACTIVE, and no process has it open")


def _host_answers(host: str, snapshot: Snapshot) -> bool:
    service = snapshot.services.get(host)
    return host in snapshot.providers and service is not None and service.up


def _saw(place: SitePlace, code: str, now: datetime, evidence: str) -> Observation:
    return Observation(place.host, place.address, code, now, evidence)
