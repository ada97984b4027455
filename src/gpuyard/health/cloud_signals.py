"""Derives the signals of source NOVA by comparing successive snapshots of Nova and Placement.

Three things are judged: a provider that was there and is gone; servers that failed to start on a GPU one after the
other, as long as Nova does not blame the request; and a server that is ACTIVE while no process on its host has its GPU
open. Nova's own records lag behind the host, so the first and the last must last, and failures must add up, to the
thresholds of `verdicts.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.health.limits import SitePlace
from gpuyard.health.records import Observation
from gpuyard.health.verdicts import BUILT_IN, SignalVerdict, SignalVerdicts
from gpuyard.model.gpu import provider_name
from gpuyard.model.signals import SIGNALS
from gpuyard.model.world import Server, Snapshot

PATIENCE = SIGNALS["no-provider"].lasts
"""For how long a provider must have been gone: a nova-compute that restarts reports it again."""
FRESH = timedelta(minutes=2)
"""The age up to which a host's report says something of now."""
LASTS = SIGNALS["gone-under"].lasts
"""For how long a server must have been ACTIVE while no process had its GPU open. After a power-off inside the guest, or
a reboot of the host, Nova says ACTIVE until it compares power states, every 600 s unless `sync_power_state_interval` is
set (nova 34.0.0, nova/conf/compute.py). `launched_at` does not help: starting, resuming and rebooting leave it."""
TRIES = SIGNALS["creates-fail"].count
"""Servers that failed on one GPU, one after the other, where no site file says otherwise; so are the times above."""
PROJECTS = 2
"""Projects of these servers, at least: one project can fail as often as it likes by one broken image."""
FAILURES = 100
"""Of one GPU that are remembered."""
REMEMBERED = 10_000
"""Servers that are being made, at most."""
ABORTED = "Build of instance "
"""Begins the faults of builds that Nova does not try on another host either, since image, flavor, volume or network is
at fault (nova 34.0.0: nova/exception.py, BuildAbortException; nova/compute/manager.py, `_build_and_run_instance`)."""


@dataclass(frozen=True)
class HostUse:
    """Whether a GPU is open on its host."""

    seen: datetime
    in_use: bool
    since: datetime | None = None
    """When it was first said so, without a word to the contrary until `seen`; None: with `seen`."""

    def then(self, moment: datetime, in_use: bool) -> HostUse:
        """Return the use after the host's next report."""
        return HostUse(moment, in_use, (self.since or self.seen) if in_use is self.in_use else moment)


@dataclass(frozen=True)
class FailedStart:
    """A server that failed to start on a GPU."""

    server: str
    project: str
    names_gpu: bool
    """Its fault has the GPU's address in it, as QEMU and libvirt put it there."""


class CloudSignals:
    """Compares each snapshot of the cloud with those before. Its memory is lost with the process, which costs time
    only: a signal comes later, and none is made up."""

    def __init__(self, verdicts: SignalVerdicts = BUILT_IN) -> None:
        """`verdicts`: thresholds."""
        self._verdicts = verdicts
        self._had: set[str] = set()
        """Providers that were seen."""
        self._gone: dict[str, datetime] = {}
        self._making: dict[str, frozenset[str]] = {}
        """Server that is being made -> its GPUs' providers."""
        self._failed: dict[str, list[FailedStart]] = {}
        """Provider -> servers that failed there since the last one that did not."""
        self._active: dict[str, tuple[str, datetime]] = {}
        """Server with a GPU -> the host on which it was ACTIVE, with nothing going on, at every look since when."""

    def look(self, places: Iterable[SitePlace], snapshot: Snapshot, uses: Mapping[str, HostUse]) -> list[Observation]:
        """Return the signals of a snapshot. `uses`: by names of GPUs, as far as their hosts have reported. A failure is
        returned once; what lasts is returned at every call."""
        by_provider = {provider_name(place.host, place.address): place for place in places}
        observations = [
            *self._providers(by_provider, snapshot),
            *self._creates(by_provider, snapshot),
            *self._gone_under(by_provider, snapshot, uses),
        ]
        return observations

    def _providers(self, places: Mapping[str, SitePlace], snapshot: Snapshot) -> Iterable[Observation]:
        now, providers = snapshot.taken_at, snapshot.providers.keys()
        for name, place in places.items():
            if name in providers:
                self._had.add(name)
                self._gone.pop(name, None)
            elif name in self._had and _host_answers(place.host, snapshot):
                since = self._gone[name] = min(self._gone.get(name, now), now)  # the clock may go back
                if now - since >= self._verdict(place, "no-provider").lasts:
                    yield _saw(place, "no-provider", now, f"no provider {name} since {since:%Y-%m-%d %H:%M:%S} UTC")
            else:
                self._gone.pop(name, None)  # nobody knows: its host does not answer, or it was never there

    def _creates(self, places: Mapping[str, SitePlace], snapshot: Snapshot) -> Iterator[Observation]:
        building: dict[str, set[str]] = {}
        for name, id in snapshot.holders.items():
            server = snapshot.servers.get(id)
            if name not in places or server is None:
                continue
            if server.status == "BUILD":
                building.setdefault(id, set()).add(name)
            elif server.status == "ACTIVE":
                self._failed.pop(name, None)
        for id, names in building.items():
            if id in self._making or len(self._making) < REMEMBERED:
                self._making[id] = frozenset(names)
        for id, gpus in list(self._making.items()):
            server = snapshot.servers.get(id)
            if server is not None and server.status == "BUILD":
                continue
            del self._making[id]
            # One that was deleted while it was made says nothing.
            if server is not None and server.status == "ERROR" and server.launched is None:
                for name in sorted(gpus & places.keys()):
                    yield from self._start_failed(
                        places[name], name, server, alone=len(gpus) == 1, now=snapshot.taken_at
                    )

    def _start_failed(
        self, place: SitePlace, name: str, server: Server, *, alone: bool, now: datetime
    ) -> Iterator[Observation]:
        names_gpu = place.address in server.fault.lower()
        if server.fault.startswith(ABORTED) or not (alone or names_gpu):
            return
        failed = self._failed.setdefault(name, [])
        failed.append(FailedStart(server.id, server.project_id or server.project, names_gpu))
        del failed[:-FAILURES]
        projects = {failure.project for failure in failed}
        tries = min(self._verdict(place, "creates-fail").count, FAILURES)
        last = failed[-tries:]
        if len(failed) >= tries and (len(projects) >= PROJECTS or all(failure.names_gpu for failure in last)):
            del self._failed[name]
            yield _saw(place, "creates-fail", now, f"servers {', '.join(failure.server for failure in last)}")

    def _gone_under(
        self, places: Mapping[str, SitePlace], snapshot: Snapshot, uses: Mapping[str, HostUse]
    ) -> Iterator[Observation]:
        now = snapshot.taken_at
        active = dict(_undisturbed(snapshot))
        still_active = {
            id: entry for id, entry in self._active.items() if active.get(id) == entry[0] and entry[1] <= now
        }
        self._active = {id: still_active.get(id, (host, now)) for id, host in active.items()}
        for name, id in snapshot.holders.items():
            place = places.get(name)
            use = uses.get(place.name) if place is not None else None
            if place is None or use is None or use.in_use or active.get(id) != place.host:
                continue
            since = max(use.since or use.seen, self._active[id][1])
            if use.seen - since >= self._verdict(place, "gone-under").lasts and now - use.seen < FRESH:
                text = f"server {id} has been ACTIVE since {since:%H:%M:%S} UTC at least, and no process has it open"
                yield _saw(place, "gone-under", now, text)

    def _verdict(self, place: SitePlace, code: str) -> SignalVerdict:
        return self._verdicts.of(code, place.name, place.pool)


def _undisturbed(snapshot: Snapshot) -> Iterator[tuple[str, str]]:
    """Servers with GPUs that are ACTIVE with nothing going on, and their hosts, where nova-compute keeps that true."""
    for id in set(snapshot.holders.values()):
        server = snapshot.servers.get(id)
        if server is None or server.status != "ACTIVE" or server.task or server.host is None:
            continue
        if _host_answers(server.host, snapshot):
            yield id, server.host


def _host_answers(host: str, snapshot: Snapshot) -> bool:
    service = snapshot.services.get(host)
    return host in snapshot.providers and service is not None and service.up


def _saw(place: SitePlace, code: str, now: datetime, evidence: str) -> Observation:
    return Observation(place.host, place.address, code, now, evidence)
