"""Answers how many servers could be started now, for all who ask, from one shared read of the cloud.

A read is used for at least 10 seconds, and for three times as long as it took, so that a slow cloud is not kept busy;
bookings are used for 2 seconds. When the cloud cannot be asked again, the last answer is given with the problem.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Generic, Protocol, TypeVar

from gpuyard.bookings.lasting import AHEAD, PoolAhead, begins_next, spans
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.diagnosis.capacity.answer import NOTHING_AHEAD, Ahead
from gpuyard.diagnosis.capacity.facts import CloudResources
from gpuyard.diagnosis.capacity.reckon import Bootable, Reckoning
from gpuyard.diagnosis.why.facts import Asker
from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.model.booking import Booking
from gpuyard.model.booking_life import TAKES_LANES
from gpuyard.model.gpu import GpuState
from gpuyard.openstack.errors import CloudError

LOG = logging.getLogger(__name__)
FRESH = timedelta(seconds=10)
"""The time for which a read of the cloud, or of a project, is used without another one."""
SOON = timedelta(seconds=2)
"""The same for bookings."""
REST = 3.0
"""And at least this many times as long as the look took: a slow cloud is not kept busy by being asked."""
MOST_PROJECTS, MOST_RECKONINGS = 500, 16
PAGE = 1000

T = TypeVar("T")


class AsksCapacity(Protocol):
    """The reader of the cloud: `diagnosis/capacity/read.py`. Both methods raise CloudError."""

    def read(self, now: datetime) -> CloudResources: ...

    def limits(self, asker: Asker, resources: Iterable[str]) -> Asker: ...


@dataclass(frozen=True)
class BootableNow:
    """The answers for a project."""

    taken_at: datetime
    """When the cloud was looked at; the oldest of what is in it."""
    flavors: tuple[tuple[Bootable, Ahead], ...]
    problem: str = ""
    """Why it is not newer, when the cloud could not be asked again."""


class CapacityService:
    """Keeps reads and answers. Safe to use from several threads."""

    def __init__(self, reader: AsksCapacity, now: Callable[[], datetime], ledger: Ledger | None = None) -> None:
        """`ledger`: where GPUs can be booked; then answers have an end, too."""
        self._reader, self._now, self._ledger = reader, now, ledger
        self._room = _Kept[CloudResources](now)
        self._askers: OrderedDict[str, _Kept[Asker]] = OrderedDict()
        self._reckonings: OrderedDict[Hashable, Reckoning] = OrderedDict()
        self._pools: dict[str, tuple[int, datetime, PoolAhead]] = {}
        """With the generation of the view, and when they were read."""
        self._lock = threading.Lock()

    def told(self, view: InventoryView, asker: Asker | None, seen_as: Hashable = ()) -> BootableNow:
        """Return the answers for a project (its limits may be missing), or for nobody: then no limits are applied.
        `view`: the GPUs in the words that the visitor may see; `seen_as`: a key that is the same for all who see the
        same words. Raises CloudError when the cloud cannot be asked and nothing is known."""
        taken, resources, problem = self._room.get(lambda: self._reader.read(self._now()))
        reckoning = self._reckoning(resources, view, seen_as)
        if asker is not None:
            cache, who = self._kept(asker.id), asker
            at, asker, wrong = cache.get(lambda: self._reader.limits(who, reckoning.resources))
            taken, problem = min(taken, at), problem or wrong
        bootables = reckoning.all_of(asker)
        ahead = [self._ahead_of(bootable, view, asker.id if asker else "") for bootable in bootables]
        return BootableNow(taken, tuple(zip(bootables, ahead, strict=True)), problem)

    def _kept(self, project: str) -> _Kept[Asker]:
        with self._lock:
            cache = self._askers.setdefault(project, _Kept(self._now))
            self._askers.move_to_end(project)
            while len(self._askers) > MOST_PROJECTS:
                self._askers.popitem(last=False)
            return cache

    def _reckoning(self, resources: CloudResources, view: InventoryView, seen_as: Hashable) -> Reckoning:
        key = resources.taken_at, view.generation, seen_as
        with self._lock:
            if key not in self._reckonings:
                statuses = {status.gpu.provider_name: status for status in view.statuses}
                self._reckonings[key] = Reckoning(resources, statuses)
            self._reckonings.move_to_end(key)
            while len(self._reckonings) > MOST_RECKONINGS:
                self._reckonings.popitem(last=False)
            return self._reckonings[key]

    # Until when.

    def _pool(self, ledger: Ledger, pool: str, view: InventoryView, now: datetime) -> PoolAhead:
        """Bookings are read for all who ask within a moment."""
        with self._lock:
            cached = self._pools.get(pool)
        if cached is not None and cached[0] == view.generation and cached[1] <= now < cached[1] + SOON:
            return cached[2]
        fresh = pool_ahead(ledger, pool, view, now)
        with self._lock:
            self._pools[pool] = view.generation, now, fresh
        return fresh

    def _ahead_of(self, bootable: Bootable, view: InventoryView, project_id: str) -> Ahead:
        ledger, now = self._ledger, self._now()
        if ledger is None or bootable.pool not in ledger.book.pools:
            return NOTHING_AHEAD
        pool = self._pool(ledger, bootable.pool, view, now)
        coming = begins_next(pool.bookings, project_id) if project_id else None
        free_spans = spans(pool, project_id, bootable.now, bootable.gpus, bootable.whole, now) if bootable.now else ()
        return Ahead(free_spans, coming)


def pool_ahead(ledger: Ledger, pool: str, view: InventoryView, now: datetime) -> PoolAhead:
    """Return the bookings and states of a pool's GPUs from now on."""
    lanes = ledger.lanes(pool)
    states = {(status.gpu.host, status.gpu.address): status.state for status in view.statuses}

    def on(state: GpuState) -> frozenset[int]:
        return frozenset(lane.id for lane in lanes if any(states.get((lane.host, a)) is state for a in lane.addresses))

    query = Query(pool=pool, states=TAKES_LANES, start=now, end=now + AHEAD)
    busy = on(GpuState.CLAIMED)
    return PoolAhead(
        lanes,
        _all(ledger, query),
        lambda project: ledger.book.rules_of(pool, project).hold,
        busy,
        on(GpuState.FREE) - busy,
    )


def _all(ledger: Ledger, query: Query) -> Sequence[Booking]:
    bookings: list[Booking] = []
    while True:
        page = ledger.find(query, PAGE, bookings[-1].id if bookings else "")
        bookings += page
        if len(page) < PAGE:
            return bookings


class _Kept(Generic[T]):
    """One answer of the cloud, asked again when it is old; where that fails, the last one, and why."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._lock = threading.Lock()
        self._answer: tuple[datetime, T] | None = None
        self._again = now()
        self._problem = ""

    def get(self, ask: Callable[[], T]) -> tuple[datetime, T, str]:
        """Return when the cloud was asked, the answer, and why it is no newer one. While somebody asks anew others get
        the last one: all who look would else wait for a slow cloud, and nobody be left to answer anything. Raises
        CloudError when there is none."""
        answer = self._answer
        if not self._lock.acquire(blocking=answer is None):
            assert answer is not None
            return *answer, self._problem
        try:
            now = self._now()
            if self._answer is not None and self._answer[0] <= now < self._again:  # the clock may have gone back since
                return *self._answer, self._problem
            try:
                self._answer, self._problem = (now, ask()), ""
            except CloudError as error:
                if self._answer is None:
                    raise
                LOG.warning("what could be started now is what it was at %s: %s", self._answer[0], error)
                self._problem = "the cloud could not be asked again"
            took = self._now() - now
            self._again = now + max(FRESH, took * REST)
            return *self._answer, self._problem
        finally:
            self._lock.release()
