"""Serves scrub orders for single-use GPUs to hosts, and follows the GPUs until they are released.

The service speaks with hosts, and the loop looks at Placement and at the time. Both work on what the store has: every
step is written there before anything follows from it, so that after a kill the next run goes on. The release itself is
the ledger's: its enforcement takes a clean GPU's reservation off, or over where somebody has booked it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from uuid import uuid4

from gpuyard.bookings.enforcement import SeenProvider
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.pool_view import read_memory
from gpuyard.bookings.records import Query
from gpuyard.health import scrubbing
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.scrubbing import ScrubPast, ScrubVerdict, past_of
from gpuyard.health.store import HealthStore
from gpuyard.model.booking import BookingKind
from gpuyard.model.booking_life import TAKES_LANES
from gpuyard.model.gpu import Gpu, provider_name
from gpuyard.model.scrub import ScrubOrder, ScrubResult
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.runtime.wake_signal import WakeSignal

LOG = logging.getLogger(__name__)
EVENTS = 200
"""Lines of a GPU's record that are read: more than there are of one scrub after the other."""
NEVER = 2**62


class ScrubService:
    """Exchanges orders and results with hosts. Safe to use from several threads, and from several processes on one
    database."""

    def __init__(
        self,
        service: HealthService,
        ledger: Ledger,
        gpus: Sequence[Gpu],
        once: Collection[str],
        new_id: Callable[[], str] = lambda: uuid4().hex,
    ) -> None:
        """`gpus`: all of the site. `once`: pools whose GPUs are used once."""
        self._service, self._store, self._ledger = service, service.store, ledger
        self._rules, self._new_id = service.rules.scrub, new_id
        self.cleaned = WakeSignal()
        """Sent when a GPU has come back clean: somebody may wait for it."""
        self._slots, self.pools = slots_of(gpus), frozenset(once)
        self.hosts = frozenset(gpu.host for gpu in gpus)

    def exchange(self, host: str, results: Sequence[ScrubResult]) -> list[ScrubOrder]:
        """Take a host's results, and return its open orders. Durable when this returns; the same results once more
        change nothing. Raises StoreError."""
        for result in results:
            self._take(host, result)
        gpus = self._store.gpus(host=host)
        if orders := scrubbing.open_orders(host, gpus):
            return orders
        return self._order(host, gpus)

    def _take(self, host: str, result: ScrubResult) -> None:
        for gpu in self._store.gpus(host=host):
            if gpu.order != result.order:
                continue
            to_accept = past(self._store, gpu).to_accept
            verdict = scrubbing.judged(gpu, result, self._service.now(), to_accept=to_accept)
            if verdict is None:
                continue
            LOG.info("scrub of GPU %s: %s %s", gpu.name, result.outcome.value, result.reason)
            write(self._service, verdict)
            if verdict.gpu.state in (HealthState.CHECKED, HealthState.TO_ACCEPT):
                self.cleaned(f"GPU {gpu.name} came back clean")

    def _order(self, host: str, gpus: Sequence[GpuHealth]) -> list[ScrubOrder]:
        once = [gpu for gpu in gpus if gpu.host == host and gpu.pool in self.pools]
        if host in self._service.worked_on():  # it may go down at any moment
            return []
        if not any(gpu.state is HealthState.RETURNED for gpu in once):
            return []
        now = self._service.now()
        needed = self._needed()
        chosen = scrubbing.order_for(
            host, once, self._slots, lambda gpu: past(self._store, gpu), self._rules, now,
            lambda gpu: (needed.get(gpu.name, NEVER),),
        )  # fmt: skip
        order = self._new_id()
        for gpu in chosen:
            self._store.put(*scrubbing.ordered(gpu, order, now))
        return scrubbing.open_orders(host, self._store.gpus(host=host))

    def _needed(self) -> Mapping[str, int]:
        """GPU -> when somebody has booked it from, as seconds since 1970."""
        names = {lane.id: [f"{lane.host}/{address}" for address in lane.addresses] for lane in self._ledger.lanes()}
        starts_by_gpu: dict[str, int] = {}
        kinds = frozenset({BookingKind.BOOKING, BookingKind.RUNNER})
        for booking in self._ledger.find(Query(kinds=kinds, states=TAKES_LANES)):
            for name in (name for lane in booking.lanes for name in names.get(lane, ())):
                starts_by_gpu[name] = min(starts_by_gpu.get(name, NEVER), int(booking.ask.start.timestamp()))
        return starts_by_gpu


AdoptionFacts = Callable[[Sequence[Gpu]], Mapping[str, SeenProvider]]
"""GPUs -> their providers by name, as Placement has them now; those that are not known are left out."""


class ScrubController:
    """The loop of one site. Of several processes on one database the leader of bookings runs it."""

    def __init__(
        self,
        service: HealthService,
        ledger: Ledger,
        gpus: Sequence[Gpu],
        once: Collection[str],
        look: AdoptionFacts,
        is_given_on: Callable[[Gpu], bool],
    ) -> None:
        """`gpus` and `once` as of ScrubService. `is_given_on` returns whether nobody has a GPU, and Nova does not
        reserve it when somebody gets it."""
        self._service, self._store, self._ledger, self._look = service, service.store, ledger, look
        self._is_given_on = is_given_on
        self._rules = service.rules.scrub
        self._once = {(gpu.host, gpu.address): gpu for gpu in gpus if gpu.pool in once}
        self._started = service.now()
        self._resumed: dict[str, datetime] = {}
        """Host -> when somebody was last seen to work on it: since then it could answer."""

    def run(self) -> None:
        """Follow time, and the providers of returned and clean GPUs in Placement. Raises CloudError, StoreError."""
        if not self._ledger.upkeep.leadership.is_leader(BOOKINGS):
            return
        now = self._service.now()
        self._resumed |= dict.fromkeys(self._service.worked_on(), now)
        for gpu in self._mine():
            if self._resumed.get(gpu.host) != now:
                self._follow_time(gpu, now)
        waiting = [gpu for gpu in self._mine() if gpu.state is HealthState.RETURNED or is_clean(gpu)]
        seen_providers = self._look([self._once[gpu.host, gpu.address] for gpu in waiting]) if waiting else {}
        for gpu in waiting:
            provider = seen_providers.get(provider_name(gpu.host, gpu.address))
            if provider is not None:
                self._follow_provider(gpu, provider, now)

    def _mine(self) -> list[GpuHealth]:
        return [gpu for gpu in self._store.gpus() if (gpu.host, gpu.address) in self._once]

    def _follow_time(self, gpu: GpuHealth, now: datetime) -> None:
        if gpu.state not in (HealthState.SCRUBBING, HealthState.RETURNED):
            return
        if gpu.since > now:  # the clock has gone back since
            self._store.put(scrubbing.begun(gpu, now))
            return
        if verdict := scrubbing.overdue(gpu, self._rules, now):
            write(self._service, verdict)
        elif lost := scrubbing.given_up(gpu, past(self._store, gpu), self._rules, self._since(gpu), now):
            self._service.observe([lost])

    def _since(self, gpu: GpuHealth) -> datetime:
        return max(self._started, self._resumed.get(gpu.host, self._started))

    def _follow_provider(self, gpu: GpuHealth, provider: SeenProvider, now: datetime) -> None:
        holds = read_memory(self._ledger.upkeep.records.values(gpu.pool)).holds
        ours = holds.get(provider_name(gpu.host, gpu.address)) == provider.generation
        if gpu.state is HealthState.TO_ACCEPT and (ours or not provider.reserved):
            self._store.put(replace(gpu, generation=None))  # it is kept back as any other that is to be accepted
            return
        never_reserved = gpu.state is HealthState.RETURNED and gpu.generation is None and not provider.reserved
        if never_reserved and self._is_given_on(self._once[gpu.host, gpu.address]):
            self._service.observe([scrubbing.not_reserved(gpu, now)])  # before the rest: made twice it is one
        to_accept = gpu.state is HealthState.RETURNED and past(self._store, gpu).to_accept
        change = scrubbing.released(gpu, provider.reserved, provider.generation, ours, now, to_accept=to_accept)
        if change and self._store.put(*change):
            self._service.wake(f"GPU {gpu.name} is {change[0].state.value}")


def slots_of(gpus: Iterable[Gpu]) -> list[frozenset[str]]:
    """Return names of GPUs that share an IOMMU group; a GPU whose group is not known is alone."""
    names_by_slot: dict[tuple[str, int | str], set[str]] = {}
    for gpu in gpus:
        group = gpu.address if gpu.group is None else gpu.group
        names_by_slot.setdefault((gpu.host, group), set()).add(f"{gpu.host}/{gpu.address}")
    return [frozenset(names) for names in names_by_slot.values()]


def is_clean(gpu: GpuHealth) -> bool:
    """Return whether it came back clean, and Nova's reservation is still on it: to be taken off, or, of one that is to
    be accepted first, to be taken over."""
    return gpu.generation is not None and gpu.state in (HealthState.CHECKED, HealthState.TO_ACCEPT)


def clean_providers(gpus: Iterable[GpuHealth]) -> dict[str, int]:
    """Return the providers of clean GPUs: name -> the generation in which it may be released, or held."""
    return {
        provider_name(gpu.host, gpu.address): gpu.generation
        for gpu in gpus
        if gpu.generation is not None and is_clean(gpu)
    }


def past(store: HealthStore, gpu: GpuHealth) -> ScrubPast:
    return past_of(store.events(gpu.host, gpu.address, limit=EVENTS))


def write(service: HealthService, verdict: ScrubVerdict) -> None:
    """Write a verdict. A GPU that somebody else has changed meanwhile stays as it is: the result, or the next run,
    comes again."""
    if verdict.observation is not None:
        service.observe([verdict.observation])
    service.store.put(verdict.gpu, verdict.event)


def scrubs_loop(controller: ScrubController, period: float) -> Loop:
    """Return the loop ``scrubs`` that runs every `period` seconds, and at once when it is woken."""
    return Loop(
        "scrubs", "Follows GPUs that are reset between two servers until they are released.", period, controller.run
    )
