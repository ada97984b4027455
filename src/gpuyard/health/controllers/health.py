"""The loop of health: turns observations, servers and elapsed time into states of GPUs, and wakes the booking loop.

A GPU's state is in the store, and nowhere else: the booking loop reads there which GPUs nobody is to get, takes
bookings off them and holds them in Placement. So there is no step between the two that a kill could lose. A run first
observes the signals of a new snapshot of the cloud, then plans and writes until no GPU was changed by others meanwhile,
and then tells the booking loop and the owners of servers.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import partial
from time import monotonic

from gpuyard.bookings.controllers.bookings import BookingController, CloudObservation
from gpuyard.bookings.controllers.enforce import Enforcer
from gpuyard.bookings.enforcement import SeenProvider
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.cloud_signals import CloudSignals
from gpuyard.health.controllers.acceptance import OpenedAcceptance, acceptance_loop, open_acceptance
from gpuyard.health.controllers.agent_controller import AgentController, agents_loop, open_agents
from gpuyard.health.controllers.faults import FaultTeller
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.controllers.maintenance import MaintenanceService, maintenance_loop
from gpuyard.health.controllers.scrubs import ScrubController, ScrubService, clean_providers, scrubs_loop
from gpuyard.health.limits import SitePlace
from gpuyard.health.maintenance import works
from gpuyard.health.planner import (
    LATELY,
    QUIET,
    Circumstances,
    GpuObservation,
    HealthPlan,
    plan_health,
)
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.model.errors import GpuyardError
from gpuyard.model.gpu import Gpu, provider_name
from gpuyard.model.world import Snapshot
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.host_maintenance import MaintenanceCloud
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.runtime.wake_signal import WakeSignal
from gpuyard.site.compile import CompiledSite
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.objects import bookings_mark

LOG = logging.getLogger(__name__)
ROUNDS = 6
"""Most times that one run plans anew: somebody may write a GPU at the same moment."""
OLD = timedelta(minutes=1)
"""The age up to which a snapshot of the cloud is taken for the present."""
PRUNE_EVERY = timedelta(hours=1)


class HealthError(GpuyardError):
    """A run of the loop left something undone; the message says what."""


class HealthController:
    """Keeps the states of one site's GPUs. One run at a time; of several processes on one database the leader of
    bookings runs it."""

    def __init__(
        self,
        compiled: CompiledSite,
        service: HealthService,
        ledger: Ledger,
        bookings: BookingController,
        enforcer: Enforcer,
        now: Callable[[], datetime],
    ) -> None:
        """`bookings`: the booking loop, whose snapshots of the cloud are used here, too."""
        self._service, self._store, self._rules = service, service.store, service.rules
        self._loans = ledger.loans
        self._leadership, self._bookings, self._enforcer, self._now = ledger.upkeep.leadership, bookings, enforcer, now
        self.places = site_places(compiled)
        self._classes = {gpu.provider_name: gpu.resource_class for gpu in compiled.gpus}
        self._signals = CloudSignals(service.verdicts)
        self._judged: CloudObservation | None = None
        self._noted: dict[tuple[str, str], datetime] = {}
        self._told: Mapping[tuple[str, str], str] | None = None
        self._pruned: datetime | None = None
        runners = compiled.site.runners.project if compiled.site.runners else ""
        self._faults = FaultTeller(
            service.store, ledger, bookings.overstays.addresses, bookings.bookings_of, runners, now, service.verdicts
        )
        self.kept_back_changed = WakeSignal()
        """Sent when other GPUs are kept back than before."""
        self.asked: tuple[str, ...] = ()
        """GPUs for which a person must decide, as of the last run."""

    def run(self) -> float | None:
        """Plan and write the states that are due. Returns the seconds until the next suspicion ends; None: no GPU is
        suspect."""
        if not self._leadership.is_leader(BOOKINGS):
            return None
        observation = self._fresh_observation()
        if observation is not None and observation is not self._judged:
            self._store.observe(self._signals.look(self.places, observation.snapshot, self._service.uses()))
            self._judged = observation
        for _ in range(ROUNDS):
            plan = self._plan(observation)
            written = self._write(plan)
            if written:
                break
        else:
            raise HealthError(f"after {ROUNDS} looks somebody else still changes the same GPUs")
        self.asked = plan.asked
        records = self._store.gpus()
        self._tell()
        if observation is not None:
            self._generations(records, observation)
        self._prune()
        if observation is not None:
            self._faults.tell(records, observation.snapshot)
        ends = [record.until for record in records if record.until is not None]
        return max(0.0, (min(ends) - self._now()).total_seconds()) if ends else None

    def _fresh_observation(self) -> CloudObservation | None:
        """None when nothing is known that is true now."""
        observation = self._bookings.observation
        return observation if observation is not None and self._now() - observation.snapshot.taken_at <= OLD else None

    def _plan(self, observation: CloudObservation | None) -> HealthPlan:
        now = self._now()
        self._noted = {key: at for key, at in self._noted.items() if timedelta(0) <= now - at < QUIET}
        suspected = self._store.became(HealthState.SUSPECT, now - LATELY)
        records = self._store.gpus()
        known_names = {gpu.name for gpu in records}
        around = Circumstances(
            now,
            gpu_observations(self.places, observation) if observation is not None else {},
            observation.snapshot.taken_at if observation is not None else None,
            self._store.heard(),
            {f"{host}/{address}": count for (host, address), count in suspected.items()},
            self._noted,
            works(self._service.maintenances.open()),
            self._lent(records),
            {
                place.name: last.after
                for place in self.places if place.name not in known_names
                for last in self._store.events(place.host, place.address, limit=1)
            },
        )  # fmt: skip
        return plan_health(self.places, records, self._store.open_observations(), self._rules, around)

    def _lent(self, records: Sequence[GpuHealth]) -> frozenset[str]:
        """Of those that are to be accepted: while they are lent for that, their servers come and go."""
        waiting = (record.name for record in records if record.state is HealthState.TO_ACCEPT)
        return frozenset(name for name in waiting if self._loans.of(name) is not None)

    def _write(self, plan: HealthPlan) -> bool:
        """Return whether all of it could be: what was changed meanwhile is planned again."""
        self._store.settle(plan.settles)
        all_of_it = True
        for change in plan.changes:
            if change.gone:
                written = self._store.forget(change.gpu, *change.events)
            else:
                written = self._store.put(change.gpu, *change.events, settles=change.settles)
            all_of_it &= written
            for event in change.events if written else ():
                if event.before is event.after and event.signal:
                    self._noted[change.gpu.name, event.signal] = event.time
                LOG.info("GPU %s: %s: %s %s", change.gpu.name, event.after.value, event.cause, event.evidence)
        return all_of_it

    def _tell(self) -> None:
        """Send `kept_back_changed` when other GPUs are kept back than at the last run."""
        back = self._service.kept_back()
        if self._told != back:
            news = sorted(f"{host}/{address}" for host, address in back.keys() ^ (self._told or {}).keys())
            self._told = back
            self.kept_back_changed(f"other GPUs are kept back: {', '.join(news[:3])}")

    def _generations(self, records: list[GpuHealth], observation: CloudObservation) -> None:
        """Of GPUs that Nova keeps reserved after a use: they are released in this very generation, or not at all. One
        call for each, once."""
        providers, once = observation.snapshot.providers, {place.name for place in self.places if place.once}
        news = {
            name: record
            for record in records
            if record.state is HealthState.RETURNED and record.generation is None and record.name in once
            and (name := provider_name(record.host, record.address)) in providers and name in self._classes
        }  # fmt: skip
        if not news:
            return
        seen_providers = self._enforcer.look({name: (providers[name].id, self._classes[name]) for name in news})
        for name, record in news.items():
            if name in seen_providers and seen_providers[name].reserved:
                self._store.put(replace(record, generation=seen_providers[name].generation))

    def _prune(self) -> None:
        now = self._now()
        if self._pruned is None or now - self._pruned > PRUNE_EVERY:
            self._store.prune(now)
            self._pruned = now


@dataclass(frozen=True)
class Watched:
    """The health of a site's GPUs, with its controllers, and the bookings that follow it."""

    services: HealthServices
    controller: HealthController
    bookings: BookingController
    scrubs: ScrubController
    scrub_desk: ScrubService
    """The service from which hosts fetch scrub orders."""
    maintenance: MaintenanceService
    agents: AgentController | None
    """None: the site does not ask guests how their GPUs are."""
    acceptance: OpenedAcceptance | None
    """None: the site has no project for servers that accept GPUs."""
    holds_changed: WakeSignal = field(default_factory=WakeSignal)
    """Sent when other GPUs are kept back than before, and those are held: to wake who has servers on them."""

    @property
    def service(self) -> HealthService:
        """The service of GPUs."""
        return self.services.gpus

    def loops(self, period: float, bookings: Loop) -> Iterator[Loop]:
        """Yield all loops of health, each `period` seconds apart. `bookings`: the booking loop, which they wake."""
        yield self.loop(period, bookings)
        yield self.scrubs_loop(period, bookings)
        yield self.maintenance_loop(period)
        if self.agents is not None:
            yield agents_loop(self.agents)
        if self.acceptance is not None:
            loop = acceptance_loop(self.acceptance.controller, period)
            self.acceptance.service.wake.listen(loop.wake)
            yield loop

    def loop(self, period: float, bookings: Loop) -> Loop:
        """Return the loop of health; it and the booking loop wake each other."""
        loop = health_loop(self.controller, period)
        self.service.wake.listen(loop.wake)
        self.controller.kept_back_changed.listen(partial(self._hold_others, bookings))
        self.bookings.observed.listen(loop.wake)
        return loop

    def _hold_others(self, bookings: Loop, reason: str) -> None:
        """Hold the GPUs that are kept back now, before anybody is woken who could give them away."""
        try:
            self.bookings.hold_at_once()
        except GpuyardError as error:
            LOG.info("%s: %s; the loop of bookings does it", reason, error)
        bookings.wake(reason)
        self.holds_changed(reason)

    def maintenance_loop(self, period: float) -> Loop:
        """Return the loop of maintenances. A change there wakes the one of health, which tells the one of bookings."""
        return maintenance_loop(self.maintenance, period)

    def scrubs_loop(self, period: float, bookings: Loop) -> Loop:
        """Return the loop of scrubs. A GPU that came back clean wakes the one of bookings, which releases it."""
        self.scrub_desk.cleaned.listen(bookings.wake)
        return scrubs_loop(self.scrubs, period)

    def close(self) -> None:
        """Write what agents have said since the last time."""
        if self.agents is not None:
            self.agents.close()


def open_health(
    compiled: CompiledSite, rules: SiteHealth, api: CloudApi, ledger: Ledger, taker: SnapshotTaker,
    now: Callable[[], datetime], steady: Callable[[], float] = monotonic, portal: str = "",
) -> Watched:  # fmt: skip
    """Return the health of a site that has it; its tables are in the ledger's database. `now` is UTC and may jump,
    `steady` only goes forward. `portal`: its address for guests, for a site that asks them. Raises StoreError,
    UsageError."""
    service = HealthService(HealthStore(ledger.database), ledger, rules, now)
    store = service.store

    def snapshot() -> Snapshot | None:
        return bookings.observation.snapshot if bookings.observation else None

    agents = open_agents(service, ledger, compiled.gpus, api, snapshot, portal, now) if rules.agent else None
    bookings = BookingController(
        api,
        compiled,
        ledger,
        taker,
        now,
        service.kept_back,
        lambda: clean_providers(store.gpus([HealthState.CHECKED, HealthState.TO_ACCEPT])),
        steady,
        agents.service.idle_servers if agents else frozenset,
    )
    enforcer = Enforcer(api, bookings_mark(compiled.site.site))
    once = {name for name, pool in compiled.site.pools.items() if pool.one_time_use}

    def look(gpus: Sequence[Gpu]) -> Mapping[str, SeenProvider]:
        providers = bookings.observation.snapshot.providers if bookings.observation else {}
        gpus_by_provider = {gpu.provider_name: gpu for gpu in gpus if gpu.provider_name in providers}
        return enforcer.look({name: (providers[name].id, gpu.resource_class) for name, gpu in gpus_by_provider.items()})

    def is_given_on(gpu: Gpu) -> bool:
        provider = bookings.observation.snapshot.providers.get(gpu.provider_name) if bookings.observation else None
        return provider is not None and enforcer.is_given_on_as_it_is(provider.id)

    controller = HealthController(compiled, service, ledger, bookings, enforcer, now)
    scrub_desk = ScrubService(service, ledger, compiled.gpus, once)
    maintenance = MaintenanceService(
        service, ledger, compiled.gpus, lambda: bookings.observation, MaintenanceCloud(api)
    )
    acceptance = open_acceptance(compiled, api, service, ledger, lambda: bookings.observation, now)
    scrubs = ScrubController(service, ledger, compiled.gpus, once, look, is_given_on)
    services = HealthServices(service, maintenance, scrub_desk, acceptance.service if acceptance else None)
    return Watched(services, controller, bookings, scrubs, scrub_desk, maintenance, agents, acceptance)


def site_places(compiled: CompiledSite) -> tuple[SitePlace, ...]:
    """Return the GPUs that a site gives away whole: those of which something can be said, and on which a server can be
    put."""
    once = {name for name, pool in compiled.site.pools.items() if pool.one_time_use}
    return tuple(
        SitePlace(
            gpu.host, gpu.address, gpu.pool,
            f"{gpu.host} {gpu.address if gpu.group is None else gpu.group} {gpu.pool}", gpu.pool in once,
        )
        for gpu in compiled.gpus
        if not gpu.blocked and not gpu.is_unit
    )  # fmt: skip


def gpu_observations(places: tuple[SitePlace, ...], observation: CloudObservation) -> dict[str, GpuObservation]:
    """Return the use of GPUs by name. Left out are those that Placement does not have; those that an evacuated server
    left behind, whose guest may still be there: their use is over when nova-compute there says so; and those whose host
    is in a cell of Nova that does not answer."""
    snapshot, silent, observations_by_gpu = observation.snapshot, observation.snapshot.silent_hosts, {}
    for place in places:
        name = provider_name(place.host, place.address)
        if name in snapshot.providers and name not in snapshot.left_behind and place.host not in silent:
            reserved = name in snapshot.reserved and name not in observation.ours
            holder = snapshot.holders.get(name, "")
            observations_by_gpu[place.name] = GpuObservation(
                holder, reserved, bool(holder) and holder not in snapshot.servers
            )
    return observations_by_gpu


def health_loop(controller: HealthController, period: float) -> Loop:
    """Return the loop ``health`` that runs every `period` seconds, and at once when it is woken: something was
    observed, somebody has decided, the cloud was looked at."""
    return Loop(
        "health", "Follows each GPU from one server to the next, and keeps bad ones back.", period, controller.run
    )
