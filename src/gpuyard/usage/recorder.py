"""Plans what an observation of the cloud adds to history: which intervals end, and which begin. Pure.

An observation shows what is, and Nova's own records tell when it became so. Where they do not, a change is taken to
have been when it was seen, as long as the observation before was not long ago; else nothing is known of the time
between, and that is what is written. A server's use goes by Nova's records alone: what of it is on no interval of a GPU
is added without an address, as many times as the flavor that it had then has GPUs; nothing where nobody can tell which
flavor that was. docs/adr/0034 says why it is so.

A server that Nova moves or resizes keeps what it had until that is done; what it is about to get is nobody's use. Of
two moves since the last observation the first one ends what it had then, and the last one begins what it has now.

A server that a lease is for draws on it until it is gone, also when the lease ends before: all of it is a runner's.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from gpuyard.bookings.matching import LET_IN, may_use
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.usage.lives import FlavorSpan, ServerLife, Span, cut, flavor_spans, moves, use_spans, whole, without
from gpuyard.usage.records import NOBODY, Extent, Interval, Tenure, TrackState

GAP = timedelta(seconds=60)
"""Observations that are further apart leave time of which nothing is known but by Nova's records."""
LATE = timedelta(minutes=5)
"""Delay with which something may come to be known by Nova's records: what it takes to commit, and clocks that
differ."""
WITH_SERVER = frozenset({TrackState.CLAIMED, TrackState.STARTING})
HAD = frozenset({BookingState.CONFIRMED, BookingState.ACTIVE, BookingState.ENDED})
RUNNER_OF = " of "
"""Separates the repository in the comment of a runner's lease, ``runner NAME of owner/name``."""
GpuKey = tuple[str, str, str]
"""Host, address and pool."""


@dataclass(frozen=True)
class Track:
    """A GPU as one observation saw it."""

    state: TrackState
    tenure: Tenure = NOBODY
    launched: datetime | None = None
    """When its server was launched the last time."""


@dataclass(frozen=True)
class CloudSeen:
    """One observation of the cloud, and what Nova remembers of the time before it."""

    taken: datetime
    tracks: Mapping[GpuKey, Track]
    """Tracks of every GPU of the site."""
    named: frozenset[str] = frozenset()
    """Ids of servers with GPUs that Nova lists."""
    lives: Mapping[str, ServerLife] = field(default_factory=dict)
    """By id: servers that have changed since `LATE` before the last observation that was whole, or that had no GPU
    then."""
    recorded: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    """By id of a server in `lives`: intervals of it that have ended since then; of one that had no GPU at the last
    observation all of its intervals."""
    bookings: Sequence[Booking] = ()
    """Bookings that were on since the last observation."""
    whole: bool = True
    """No cell of Nova was silent."""


@dataclass(frozen=True)
class HistoryWrites:
    """The writes of one observation, for `HistoryStore.write`."""

    settled: datetime
    ends: Mapping[GpuKey, tuple[datetime, bool]]
    adds: tuple[Interval, ...]


@dataclass(frozen=True)
class _Mark:
    """From `start` on a GPU was in this state."""

    start: datetime
    exact: bool
    track: Track


def plan_look(open: Iterable[Interval], extent: Extent | None, observed: CloudSeen) -> HistoryWrites | None:
    """Plan the writes of an observation. `open`: intervals that go on as of the last one. None when it is no later than
    the last one: the clock has gone back, or another process has written a later one."""
    if extent is not None and whole(observed.taken) <= extent.until:
        return None
    return _Planner(
        {(interval.host, interval.address, interval.pool): interval for interval in open}, extent, observed
    ).plan()


def floor_of(extent: Extent) -> datetime:
    """Return the moment before which history does not change any more."""
    return max(extent.first, extent.settled - LATE)


def repository_of(booking: Booking) -> str:
    return booking.ask.comment.partition(RUNNER_OF)[2] if booking.kind is BookingKind.RUNNER else ""


class _Planner:
    def __init__(self, open: Mapping[GpuKey, Interval], extent: Extent | None, observed: CloudSeen) -> None:
        self._open, self._seen = open, observed
        self._now = whole(observed.taken)
        self._last = extent.until if extent else self._now
        self._floor = floor_of(extent) if extent else self._now
        self._gap = self._now - self._last > GAP
        self._extent = extent
        self._bookings = {booking.id: booking for booking in observed.bookings}
        self._leases = {
            (lease.project_id, lease.server): lease
            for lease in sorted(observed.bookings, key=lambda booking: booking.ask.start)
            if lease.kind is BookingKind.RUNNER and lease.state in HAD
        }
        before = [*(interval for of in observed.recorded.values() for interval in of), *open.values()]
        self._on_lease = {
            interval.tenure.server: interval.tenure
            for interval in before
            if interval.tenure.server and is_runners(interval.tenure)
        }
        self._uses = {id: cut_open(use_spans(life), self._now) for id, life in observed.lives.items()}
        self._tracks = {key: self._until_moved(key, self._leased(track)) for key, track in observed.tracks.items()}
        self._sees = Counter(
            track.tenure.server for track in self._tracks.values() if track.state is TrackState.CLAIMED
        )
        self._since: dict[str, datetime] = {}
        for interval in open.values():
            if interval.state in WITH_SERVER:
                self._since[interval.tenure.server] = max(
                    interval.start, self._since.get(interval.tenure.server, interval.start)
                )
        self._had = Counter(
            interval.tenure.server for interval in open.values() if interval.state is TrackState.CLAIMED
        )

    def plan(self) -> HistoryWrites:
        ends: dict[GpuKey, tuple[datetime, bool]] = {}
        adds: list[Interval] = []
        used: defaultdict[str, list[Interval]] = defaultdict(list)
        fresh: set[str] = set()
        for key in self._open.keys() | self._tracks.keys():
            old, new = self._open.get(key), self._tracks.get(key)
            if old is None:
                if new is not None:
                    adds.append(_interval(key, _Mark(self._now, False, new), None))
                    fresh.add(new.tenure.server)
                continue
            marks = self._marks(key, old, new) if new is not None else self._leaves(old)
            intervals = _pieces(key, old, marks, goes_on=new is not None)
            if marks:
                ends[key] = marks[0].start, marks[0].exact
                adds += intervals[1:]
            for interval in intervals:
                if interval.state is TrackState.CLAIMED:
                    used[interval.tenure.server].append(interval)
        adds += [interval for id in self._uses.keys() - fresh for interval in self._unseen_use(id, used[id])]
        settled = self._now if self._seen.whole or self._extent is None else self._extent.settled
        return HistoryWrites(
            settled, ends, tuple(interval for interval in adds if interval.end is None or interval.start < interval.end)
        )

    # One GPU.

    def _leased(self, track: Track) -> Track:
        """As it was seen, with the lease that is for its server, which may be over."""
        own = self._still_on_lease(track.tenure)
        if track.state not in WITH_SERVER or not own.server_name or is_runners(track.tenure):
            return track
        lease = None if is_runners(own) else self._leases.get((own.project_id, own.server_name))
        return replace(track, tenure=with_booking(own, lease) if lease else own)

    def _until_moved(self, key: GpuKey, track: Track) -> Track:
        """As it was seen; but what a server is about to get is not its yet, as long as Nova has not written that it is
        there."""
        life, old = self._seen.lives.get(track.tenure.server), self._open.get(key)
        if track.state is not TrackState.CLAIMED or life is None or not life.is_moving:
            return track
        had = old is not None and old.state is TrackState.CLAIMED and old.tenure.server == life.server.id
        return track if had else replace(track, state=TrackState.STARTING)

    def _marks(self, key: GpuKey, old: Interval, new: Track) -> list[_Mark]:
        """What follows on `old`, in order; nothing when it goes on."""
        server = old.tenure.server if old.state in WITH_SERVER else ""
        if server and new.state in WITH_SERVER and new.tenure.server == server:
            return self._same_server(old, new)
        if old.state is TrackState.CLAIMED and self._stays(old, new):
            return []
        if not self._gap and (old.state, old.tenure) == (new.state, new.tenure):
            return []
        if self._never_left(key, old, new):
            return self._parts(None, new, old.start, exact=False)
        if self._gap or old.state in WITH_SERVER or new.state in WITH_SERVER:
            return self._another(old, new, self._end_of(old), self._begin_of(new))
        return [_Mark(*self._by_ledger(old, new), new)]

    def _by_ledger(self, old: Interval, new: Track) -> tuple[datetime, bool]:
        """When a GPU that no server has or had became what it is, and whether that is so by a booking: then it is when
        the one that keeps it now begins, or else when the one that kept it was over."""
        begins = self._begins(new.tenure) if new.state is TrackState.BOOKED else None
        ends = self._ends(old.tenure) if old.state is TrackState.BOOKED else None
        low = max(self._last, old.start)
        known_time = next((time for time in (begins, ends) if time is not None and low < time <= self._now), None)
        return known_time or self._now, known_time is not None

    def _another(self, old: Interval, new: Track, end: datetime | None, begin: datetime | None) -> list[_Mark]:
        """`end`, `begin`: when the old server went and the new one came, where that is known."""
        fallback = min(self._last, begin or self._last) if self._gap else begin or self._now
        first = max(end or fallback, old.start)
        if begin is None and (self._gap or end is None or new.state is TrackState.CLAIMED):
            begins, exact = self._now, False
        else:
            begins, exact = max(begin or first, first), True
        marks = self._end_marks(old, first)
        if first < begins:
            marks.append(_Mark(first, end is not None, Track(TrackState.UNSEEN)))
        if new.state is TrackState.CLAIMED:
            return marks + self._parts(None, new, begins, exact=exact)
        return [*marks, _Mark(begins, exact, new)]

    def _leaves(self, old: Interval) -> list[_Mark]:
        """The site has the GPU no more."""
        end = self._end_of(old)
        return [
            _Mark(
                max(old.start, end or (self._last if self._gap else self._now)),
                end is not None,
                Track(TrackState.UNSEEN),
            )
        ]

    def _same_server(self, old: Interval, new: Track) -> list[_Mark]:
        server = old.tenure.server
        spans = self._uses.get(server)
        if old.state is TrackState.STARTING:
            begin = self._begin_of(new)
            if new.state is TrackState.CLAIMED:
                begins = max(begin or self._now, old.start)
                return self._parts(None, new, begins, exact=begin is not None)
            return [] if old.tenure == new.tenure else [_Mark(self._now, False, new)]
        life = self._seen.lives.get(server)
        end = self._left(life, old) if life else None
        if end is None:  # also where Nova does not name it for now
            before = Track(TrackState.CLAIMED, old.tenure)
            return [] if new.state is not TrackState.CLAIMED else self._parts(before, new, self._last, exact=True)
        if new.state is TrackState.CLAIMED and (not spans or spans[-1][1] < self._now):
            return []  # it has gone since the look, and the next one sees that
        return self._another(old, new, end, self._begin_of(new))

    def _stays(self, old: Interval, new: Track) -> bool:
        """Return whether a server whose GPU seems to be somebody else's, or nobody's, has it all the same: Nova says
        that it is there, and Placement tells of fewer GPUs than it has; or Nova does not tell of it for now."""
        if new.state is TrackState.CLAIMED:
            return False
        server = old.tenure.server
        fewer = self._sees[server] < self._had[server]
        life = self._seen.lives.get(server)
        if life is not None:
            is_present = bool(self._uses[server]) and self._uses[server][-1][1] == self._now
            if not is_present or self._left(life, old) is not None:  # it may be there again, on any GPU
                return False
            return life.is_moving or (fewer and self._sees[server] < life.gpus)
        return fewer and (server in self._seen.named or not self._seen.whole)

    def _never_left(self, key: GpuKey, old: Interval, new: Track) -> bool:
        """Return whether the server that has a GPU had it before what the last looks saw there, and by Nova's records
        all the time since: Nova and Placement have both left it out for a while."""
        life = self._seen.lives.get(new.tenure.server) if new.state is TrackState.CLAIMED else None
        if life is None or old.state in WITH_SERVER:
            return False
        lost = (
            interval for interval in self._seen.recorded.get(life.server.id, ())
            if (interval.host, interval.address, interval.pool) == key
            and interval.end == old.start and interval.state is TrackState.CLAIMED
        )  # fmt: skip
        throughout = any(start < old.start and end == self._now for start, end in self._uses[life.server.id])
        return throughout and any(lost) and all(time < old.start for time in moves(life))

    def _end_of(self, old: Interval) -> datetime | None:
        """When the server of an interval had its GPU no more, by Nova's records."""
        life = self._seen.lives.get(old.tenure.server) if old.state in WITH_SERVER else None
        return self._left(life, old) if life else None

    def _left(self, life: ServerLife, old: Interval) -> datetime | None:
        """When a server no longer had the GPU of an interval: it gave all back, or went on with others."""
        ended = self._ended(life)
        moved = self._moves(life, old)[:1]
        return min([*moved, *([] if ended is None else [ended])], default=None)

    def _begin_of(self, new: Track) -> datetime | None:
        """When the server of a GPU got it, by Nova's records."""
        if new.state is not TrackState.CLAIMED:
            return None
        life = self._seen.lives.get(new.tenure.server)
        if life is not None and self._had[life.server.id] and self._ended(life) is None:
            return max(self._moves(life), default=None)
        launched = [whole(new.launched)] if new.launched else []
        begins = sorted([*(start for start, _ in self._uses[life.server.id]), *moves(life)]) if life else launched
        late = [time for time in begins if self._floor < time <= self._now]
        ended = [
            interval.end
            for interval in self._seen.recorded.get(new.tenure.server, ())
            if interval.end and interval.state is TrackState.CLAIMED
        ]
        return max(late[-1], *ended) if late and ended else late[-1] if late else None  # no second twice

    def _ended(self, life: ServerLife) -> datetime | None:
        """When it gave all its GPUs back the first time since it has had those that it had at the last look."""
        low = max(self._floor, self._since.get(life.server.id, self._floor))
        ends = [end for _, end in self._uses[life.server.id] if low <= end < self._now]
        if life.terminated is not None and low <= whole(life.terminated) <= self._now:
            ends.append(whole(life.terminated))
        return min(ends, default=None)

    def _moves(self, life: ServerLife, old: Interval | None = None) -> list[datetime]:
        """When it went on with other GPUs, since the last look and since it has that of `old`, in order. One moment for
        all of them, so that no second counts twice."""
        done = [time for time in moves(life) if self._last <= time <= self._now]
        return done if old is None else [time for time in done if time > old.start]

    # Bookings.

    def _end_marks(self, old: Interval, end: datetime) -> list[_Mark]:
        """That a server went on without its booking before it ended."""
        over = self._ends(old.tenure) if old.state is TrackState.CLAIMED and not is_runners(old.tenure) else None
        if over is None or not max(self._floor, old.start) < over < end:
            return []
        return [_Mark(over, True, Track(TrackState.CLAIMED, unbooked(old.tenure)))]

    def _parts(self, before: Track | None, after: Track, low: datetime, *, exact: bool) -> list[_Mark]:
        """Marks of one server from `low` until now: it drew on the booking of `before`, draws on that of `after`."""
        if before is not None and before.tenure == after.tenure:
            return []
        begins = self._begins(after.tenure)
        if before is None:
            if begins is None or not low < begins <= self._now:
                return [_Mark(low, exact, after)]
            return [_Mark(low, exact, replace(after, tenure=unbooked(after.tenure))), _Mark(begins, True, after)]
        if before.tenure.booking == after.tenure.booking:
            return [_Mark(self._now, False, after)]
        ends = self._ends(before.tenure)
        over = ends if ends is not None and low < ends <= self._now else None
        on = begins if begins is not None and low < begins <= self._now else None
        first = over or on or self._now
        then = max(first, on or first)
        marks = [_Mark(then, bool(over or on), after)]
        return (
            [_Mark(first, True, Track(TrackState.CLAIMED, unbooked(after.tenure))), *marks] if first < then else marks
        )

    def _still_on_lease(self, own: Tenure) -> Tenure:
        """A server's tenure, with the lease that history has of it."""
        leased = self._on_lease.get(own.server)
        return replace(own, booking=leased.booking, kind=leased.kind, repository=leased.repository) if leased else own

    def _ends(self, tenure: Tenure) -> datetime | None:
        booking = self._bookings.get(tenure.booking)
        return end_of(booking) if booking else None

    def _begins(self, tenure: Tenure) -> datetime | None:
        booking = self._bookings.get(tenure.booking)
        return whole(booking.ask.start) if booking else None

    # Servers.

    def _unseen_use(self, id: str, used: Sequence[Interval]) -> list[Interval]:
        """What of a server's use is on no GPU that was looked at."""
        life, server = self._seen.lives[id], self._seen.lives[id].server
        ended = [
            interval
            for interval in self._seen.recorded.get(id, ())
            if interval.end is not None and interval.state is TrackState.CLAIMED
        ]
        intervals = [*used, *ended]
        spans = [(interval.start, interval.end or self._now) for interval in intervals]
        own = Tenure("", "", "", id, server.name, server.user_id, server.user, server.project_id, server.project)
        unseen = []
        for flavor in flavor_spans(
            life, [(*span, interval.pool) for span, interval in zip(spans, intervals, strict=True)]
        ):
            tenure = replace(own, flavor=server.flavor) if flavor.end is None else own
            for low, high in self._with_flavor(life, flavor):
                host = self._host_of(life, intervals, low, high)
                for first, then, missing in fewer_than(flavor.gpus or 0, low, high, spans):
                    for start, end, drawn in self._drawn(life, tenure, flavor.pool, first, then):
                        interval = Interval(host, "", flavor.pool, TrackState.CLAIMED, start, end, drawn, True, True)
                        unseen += [interval] * missing
        return unseen

    def _with_flavor(self, life: ServerLife, flavor: FlavorSpan) -> list[tuple[datetime, datetime]]:
        """When it used the GPUs of a flavor, since what does not change any more, cut where it was moved."""
        if not flavor.gpus:
            return []
        parts = cut(self._uses[life.server.id], max(self._floor, flavor.start), flavor.end or self._now)
        bounds = [self._floor, *(time for time in moves(life) if self._floor < time < self._now), self._now]
        return [part for low, high in pairwise(bounds) for part in cut(parts, low, high)]

    def _host_of(self, life: ServerLife, intervals: Iterable[Interval], start: datetime, end: datetime) -> str:
        """Where a server was in [start, end), in which it was not moved: where it was seen between its moves, or where
        it is now. Empty where neither tells."""
        turns = sorted([*moves(life), *(time for span in self._uses[life.server.id] for time in span)])
        low = max((time for time in turns if time <= start), default=start)
        high = min((time for time in turns if end <= time), default=self._now)
        hosts = [
            interval.host
            for interval in intervals
            if interval.host and interval.start < high and low < (interval.end or self._now)
        ]
        if hosts:
            return hosts[0]
        went_on = [*moves(life), *(first for first, _ in self._uses[life.server.id])]
        return "" if life.is_moving or max(went_on, default=start) > start else life.server.host or ""

    def _drawn(
        self, life: ServerLife, own: Tenure, pool: str, low: datetime, high: datetime
    ) -> list[tuple[datetime, datetime, Tenure]]:
        """A time of a server that nobody saw, by the booking that it may have drawn on."""
        own = self._still_on_lease(own)
        if is_runners(own):
            return [(low, high, own)]
        mine = [booking for booking in self._seen.bookings if booking.state in HAD and _may_be_for(life, pool, booking)]
        left, parts = [(low, high)], []
        for booking in sorted(mine, key=lambda b: (b.kind is not BookingKind.RUNNER, b.shared, b.ask.start, b.id)):
            over = high if booking.kind is BookingKind.RUNNER else end_of(booking)
            for start, end in cut(left, whole(booking.ask.start), over):
                parts.append((start, end, with_booking(own, booking)))
                left = without(left, [(start, end)])
        return sorted([*parts, *((start, end, own) for start, end in left)], key=lambda part: part[0])


def _may_be_for(life: ServerLife, pool: str, booking: Booking) -> bool:
    if booking.ask.pool != pool:
        return False
    if booking.kind is BookingKind.RUNNER:
        return (booking.server, booking.project_id) == (life.server.name, life.server.project_id)
    return booking.kind in LET_IN and may_use(life.server, booking) and booking.server in ("", life.server.name)


def with_booking(tenure: Tenure, booking: Booking) -> Tenure:
    """Return a server's tenure that draws on a booking, lease or loan."""
    return replace(tenure, booking=booking.id, kind=booking.kind.value, repository=repository_of(booking))


def is_runners(tenure: Tenure) -> bool:
    """Return whether a server draws on a lease."""
    return tenure.kind == BookingKind.RUNNER.value


def unbooked(tenure: Tenure) -> Tenure:
    return replace(tenure, booking="", kind="", repository="")


def end_of(booking: Booking) -> datetime:
    """Return when a booking was over: its end, or before that when somebody ended it, or nobody came."""
    over = booking.state not in (BookingState.CONFIRMED, BookingState.ACTIVE)
    return whole(min(booking.ask.end, booking.changed) if over else booking.ask.end)


def cut_open(spans: Sequence[Span], now: datetime) -> list[tuple[datetime, datetime]]:
    """Return spans as they were at a moment: what came later is left out; what began in its very second is there,
    without a second yet."""
    return [(start, now if end is None else min(end, now)) for start, end in spans if start <= now]


def fewer_than(
    number: int, low: datetime, high: datetime, spans: Iterable[tuple[datetime, datetime]]
) -> list[tuple[datetime, datetime, int]]:
    """Return the parts of [low, high) in which fewer than `number` of `spans` are, each with how many are missing."""
    inside = cut(spans, low, high)
    times = sorted({low, high, *(time for span in inside for time in span)})
    counts = [(a, b, number - sum(first <= a and b <= then for first, then in inside)) for a, b in pairwise(times)]
    return [part for part in counts if part[2] > 0]


def _pieces(key: GpuKey, old: Interval, marks: Sequence[_Mark], *, goes_on: bool) -> list[Interval]:
    """`old` as it has become, and what follows. Without `goes_on` the last mark is its end."""
    if not marks:
        return [old]
    first = replace(old, end=marks[0].start, exact_end=marks[0].exact)
    following = [_interval(key, mark, then) for mark, then in pairwise(marks)]
    return [first, *following, _interval(key, marks[-1], None)] if goes_on else [first, *following]


def _interval(key: GpuKey, mark: _Mark, then: _Mark | None) -> Interval:
    return Interval(
        *key, mark.track.state, mark.start, then.start if then else None, mark.track.tenure, mark.exact,
        then.exact if then else False,
    )  # fmt: skip
