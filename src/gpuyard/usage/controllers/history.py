"""The loop of history: turns observations of the cloud and Nova's records into intervals, and days that are over into
sums.

It takes the observation that the loop of bookings made. Each observation is one transaction on what the last one left,
and each day is one, so that a kill between any two steps loses nothing and counts nothing twice: the next run does what
is missing. An observation whose clock differs from the cloud's by more than LATE is not written, since history would be
dated wrongly by it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from gpuyard.bookings.controllers.bookings import BookingController, CloudObservation
from gpuyard.bookings.errors import NoBookingError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.booking import Booking
from gpuyard.model.errors import GpuyardError
from gpuyard.model.gpu import is_unit, provider_name
from gpuyard.model.moments import second_text
from gpuyard.model.world import Snapshot
from gpuyard.openstack.api import CloudApi
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.site.compile import CompiledSite
from gpuyard.site.history_rules import KEEP
from gpuyard.usage.controllers.accounting import site_clock
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.rolling import forget, sum_up
from gpuyard.usage.lives import whole
from gpuyard.usage.read_lives import LifeReader, pools_by_alias
from gpuyard.usage.recorder import GAP, HAD, LATE, WITH_SERVER, CloudSeen, GpuKey, HistoryWrites, floor_of, plan_look
from gpuyard.usage.records import Extent, Interval, TrackState
from gpuyard.usage.store import HistoryStore, Which
from gpuyard.usage.tracks import tracks_of

PAGE = 1000
PRUNE_EVERY = timedelta(hours=1)
DAYS_AT_ONCE = 7
"""Days that one run sums up at most: observations must not wait for all of a year."""


class HistoryError(GpuyardError):
    """A run of the loop could not write what it saw; the message says why."""


class HistoryController:
    """Records the history of one site. One run at a time; of several processes on one database the one that leads the
    loop of bookings does it."""

    def __init__(
        self,
        store: HistoryStore,
        lives: LifeReader,
        bookings: BookingController,
        ledger: Ledger,
        compiled: CompiledSite,
        now: Callable[[], datetime],
    ) -> None:
        """`now`: UTC."""
        self._store = store
        self._lives, self._bookings, self._ledger, self._compiled = lives, bookings, ledger, compiled
        self._now = now
        self._keep = compiled.site.history.keep if compiled.site.history else KEEP
        self._zone = ledger.book.zone
        self._tariffs = site_clock(compiled.site).parts
        self.history = History(store, self._zone, self._tariffs)
        """The history, for those who show it."""
        self._open: tuple[datetime, dict[GpuKey, Interval]] | None = None
        """Intervals that go on, as of an observation that was written; they need not be read again for the next one."""
        self._unplaced: frozenset[str] = frozenset()
        """Servers that used GPUs up to the last observation, of which it is not known which: Nova is moving them."""
        self._done: datetime | None = None
        self._pruned: datetime | None = None

    def run(self) -> None:
        """Write the latest observation, and do what it makes due. Raises what went wrong; then nothing of that was
        written."""
        if not self._ledger.upkeep.leadership.is_leader(BOOKINGS):
            return
        observation = self._bookings.observation
        if observation is not None and observation.words is not None and observation.snapshot.taken_at != self._done:
            self.look(observation)
            self._done = observation.snapshot.taken_at
        sum_up(self._store, self._zone, self._tariffs, DAYS_AT_ONCE)
        self._prune()

    def look(self, observation: CloudObservation) -> bool:
        """Write what was observed. False when another process has written a later observation. Raises HistoryError when
        the clock has gone back, or the cloud shows another time."""
        _same_time(observation.snapshot)
        extent, taken = self._store.seen(), whole(observation.snapshot.taken_at)
        if extent is not None and taken <= extent.until:
            self._open = None  # it may be taken back, to when this one looked last
            if extent.until - taken > GAP:  # less is another process's last look
                raise HistoryError(
                    f"the clock says {second_text(taken)}, and history goes until {second_text(extent.until)}: nothing "
                    "is added to it until then; if this host's clock is right, it was wrong when that was written: "
                    "'gpuyard usage repair' takes it back"
                )
            return False
        open = self._goes_on(extent)
        plan = plan_look(open.values(), extent, self._seen(observation, taken, extent, open.values()))
        if plan is None:
            return False
        if not self._store.write(extent.until if extent else None, taken, plan.settled, plan.ends, plan.adds):
            self._open = None
            return False
        self._open = taken, applied(open, plan)
        self._unplaced = frozenset(
            interval.tenure.server for interval in plan.adds if not interval.address and interval.end == taken
        )
        return True

    def _goes_on(self, extent: Extent | None) -> dict[GpuKey, Interval]:
        if self._open is not None and extent is not None and self._open[0] == extent.until:
            return self._open[1]
        return {(interval.host, interval.address, interval.pool): interval for interval in self._store.open()}

    def _seen(
        self, observation: CloudObservation, taken: datetime, extent: Extent | None, open: Iterable[Interval]
    ) -> CloudSeen:
        """What Nova remembers is read after the look, so that what has ended since the last one is in the one or the
        other."""
        snapshot, ledger = observation.snapshot, observation.ledger
        statuses = gpu_statuses(self._compiled.gpus, snapshot, observation.words or {})
        tracks = tracks_of(statuses, snapshot, ledger)
        if extent is None:
            return CloudSeen(taken, tracks)
        floor = floor_of(extent)
        claims = {interval.tenure.server for interval in open if interval.state in WITH_SERVER}
        had = {interval.tenure.server for interval in open if interval.state is TrackState.CLAIMED}
        shown = {track.tenure.server for track in tracks.values() if track.state is TrackState.CLAIMED}
        new = shown - had
        # Those that are being moved, also when Nova has not touched them for long; not all of a cell that is silent.
        silent = bool(snapshot.silent_hosts)
        lost = set() if silent else (had | self._unplaced) - shown
        lives = self._lives.read(floor, taken, claims, new | lost)
        begins = {id: extent.first if id in new else floor for id in lives}
        recorded = {id: self._store.intervals(begin, taken, Which(server=id)) for id, begin in begins.items()}
        bookings_by_id = dict(ledger.bookings) | {booking.id: booking for booking in self._had(floor, taken)}
        for id in {interval.tenure.booking for interval in open} - bookings_by_id.keys() - {""}:
            bookings_by_id |= self._one(id)
        return CloudSeen(
            taken, tracks, frozenset(snapshot.servers), lives, recorded, tuple(bookings_by_id.values()), not silent
        )

    def _had(self, start: datetime, end: datetime) -> Iterable[Booking]:
        """Bookings that were on in [start, end)."""
        query, marker = Query(states=HAD, start=start, end=end), ""
        while page := self._ledger.find(query, PAGE, marker):
            yield from page
            if len(page) < PAGE:
                return
            marker = page[-1].id

    def _one(self, id: str) -> dict[str, Booking]:
        try:
            return {id: self._ledger.get(id)}
        except NoBookingError:
            return {}

    def _prune(self) -> None:
        """Intervals are kept for as long as the site says, counted from the last look: a clock alone, which may be
        wrong, makes nothing old."""
        now = self._now()
        if self._pruned is not None and timedelta(0) <= now - self._pruned < PRUNE_EVERY:
            return
        self._pruned, extent = now, self._store.seen()
        if extent is not None:
            forget(self._store, self._zone, min(now, extent.until) - self._keep)


def _same_time(snapshot: Snapshot) -> None:
    """A look by a clock that is wrong would be dated wrongly, and one that is ahead would end history until then: it is
    none. Raises HistoryError."""
    clock, taken = snapshot.clock, snapshot.taken_at
    if clock is not None and abs(taken - clock) > LATE:
        raise HistoryError(
            f"this host's clock says {second_text(taken)}, and the cloud's {second_text(clock)}: nothing is added to "
            f"history while they are more than {LATE // timedelta(minutes=1)} minutes apart; set the one that is wrong"
        )


def applied(open: dict[GpuKey, Interval], plan: HistoryWrites) -> dict[GpuKey, Interval]:
    """Return the intervals that go on after a plan was written."""
    left = {key: interval for key, interval in open.items() if key not in plan.ends} if plan.ends else dict(open)
    return left | {
        (interval.host, interval.address, interval.pool): interval for interval in plan.adds if interval.end is None
    }


def last_seated(store: HistoryStore) -> dict[str, str]:
    """Return the server on each unit at the last observation: the first one after a restart begins with it."""
    on_units = [interval for interval in store.open() if interval.state in WITH_SERVER and is_unit(interval.address)]
    return {provider_name(interval.host, interval.address): interval.tenure.server for interval in on_units}


def open_history(
    compiled: CompiledSite, api: CloudApi, ledger: Ledger, bookings: BookingController, now: Callable[[], datetime]
) -> HistoryController:
    """Open the history of a site that has bookings, in their database. Raises StoreError."""
    reader = LifeReader(api, pools_by_alias(compiled))
    return HistoryController(HistoryStore(ledger.database), reader, bookings, ledger, compiled, now)


def history_loop(controller: HistoryController, period: float) -> Loop:
    """Return a loop named ``history`` that runs every `period` seconds."""
    return Loop("history", "Writes who has which GPU from when to when, and sums up days.", period, controller.run)
