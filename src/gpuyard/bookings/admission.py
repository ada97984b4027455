"""Decides whether something can be booked: yes with lanes, or no with every reason and alternatives.

People, admins and CI get this one answer. It is made from the lanes of a pool and a timetable of what is on them, in
this order: an ask that is malformed is refused, whatever an override says; then every broken rule is collected, which
an override sets aside; then free lanes are looked for, and if there are none, lanes that become free when bookings that
have not begun change theirs. No override gives a GPU twice. Nothing here reads a clock, and the only thing that may
read a database is `PoolLanes.movable`, which the caller brings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cached_property
from itertools import islice

from gpuyard.bookings.policy import Usage, broken_rules, malformed, spell
from gpuyard.bookings.timetable import Taken, Timetable
from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import FOREVER, Alternative, Answer, Ask, Lane, Person, Reason, Rules, lasting

LOOK_AT = 64
"""Free lanes that are compared for the best fit. More would cost time and leave hardly fewer gaps."""
LOOK_AHEAD = timedelta(days=60)
"""How far after the wanted start another time is looked for."""
MOST_MOVES = 200
"""Bookings that may change lanes to make room for one."""
NO_ROOM = frozenset({"full", "fragmented"})
"""Reasons for which waiting helps, or that somebody makes way."""
FOREVER_SECONDS = seconds(FOREVER)
STEP = 15 * 60
"""Seconds: other times that are proposed begin on a whole quarter of an hour where they can."""


@dataclass(frozen=True)
class Movable:
    """A booking that has not begun and asks for no certain GPU: its lanes may change without anybody noticing."""

    id: str
    ask: Ask
    lanes: tuple[int, ...]
    avoid: frozenset[int] = frozenset()
    """Lanes that it cannot have."""


def nobody(start: int, end: int) -> Sequence[Movable]:
    """Return no bookings: none may move."""
    return ()


@dataclass(frozen=True)
class PoolLanes:
    """The lanes and the timetable of one pool, as admission needs them."""

    lanes: Sequence[Lane]
    timetable: Timetable
    movable: Callable[[int, int], Sequence[Movable]] = nobody
    """Bookings in a time (seconds) that may move. It is asked only when no lane is free, and moving could help."""
    troubled: Mapping[int, int] = field(default_factory=dict)
    """Lane -> until when (seconds) it is expected to be in trouble."""
    known_well: Sequence[Lane] | None = None
    """The value of `well` for a caller that has it already: with ten thousand lanes finding it takes longer than all
    the rest."""
    avoid: frozenset[int] = frozenset()
    """Lanes that the person asking cannot have, while others can: they have as many bookings there as the rules
    allow."""
    cost: Mapping[int, int] = field(default_factory=dict)
    """Lane -> what is lost when it is taken; nothing for one that is not named. The cheapest are taken."""

    @cached_property
    def well(self) -> Sequence[Lane]:
        """Lanes without trouble, those of one GPU first."""
        return well_lanes(self.lanes) if self.known_well is None else self.known_well

    def usable(self, start: int) -> Sequence[Lane]:
        """Lanes that a booking from `start` (seconds) on can have; those that are in trouble now come last."""
        if not self.troubled:
            return self.well
        late = [lane for lane in self.lanes if self.troubled.get(lane.id, start + 1) <= start]
        return (*self.well, *sorted(late, key=lambda lane: lane.size)) if late else self.well


def well_lanes(lanes: Iterable[Lane]) -> tuple[Lane, ...]:
    """Lanes without trouble, those of one GPU first."""
    return tuple(sorted((lane for lane in lanes if not lane.trouble), key=lambda lane: lane.size))


def admit(
    ask: Ask,
    pool: PoolLanes,
    rules: Rules,
    who: Person,
    facts: Usage,
    now: datetime,
    *,
    zone: str = "UTC",
    override: bool = False,
    keep: Sequence[int] = (),
    stay: bool = False,
) -> Answer:
    """Return lanes for an ask, or every reason against it and what else would be possible.

    `keep`: lanes to take again when they are free, for a booking that changes and as its owner knows it; with `stay` it
    must be these, because servers are on them. `override` sets the rules aside, and only them: a GPU is never given
    twice.
    """
    wrong = malformed(ask, now, facts.started)
    if wrong:
        return Answer(reasons=tuple(wrong))
    broken = tuple(broken_rules(ask, rules, who, facts, zone, now))
    placement = place(ask, pool, keep, stay)
    if isinstance(placement, Reason):
        others = () if broken and not override else tuple(nearest(ask, pool, rules, now))
        return Answer(reasons=(placement, *(() if override else broken)), alternatives=others)
    if broken and not override:
        return Answer(reasons=broken)
    lanes, moves = placement
    return Answer(lanes=lanes, moves=moves, overridden=broken, warnings=tuple(_warnings(lanes, pool)))


def _warnings(lanes: Sequence[int], pool: PoolLanes) -> Iterable[str]:
    for lane in pool.lanes if pool.troubled.keys() & set(lanes) else ():
        if lane.id in lanes and lane.trouble:
            back = spell(moment(pool.troubled[lane.id]))
            yield f"GPU {lane.name} cannot be used now ({lane.trouble}); it is expected back by {back}"


Placed = tuple[tuple[int, ...], Mapping[str, tuple[int, ...]]]
"""Lanes for the ask, and the new lanes of bookings that move for it."""


def place(ask: Ask, pool: PoolLanes, keep: Sequence[int] = (), stay: bool = False) -> Placed | Reason:
    """Return lanes for an ask, whatever the rules say, or the reason why there are none."""
    if stay and keep:
        return _stay(ask, pool, keep)
    suitable = _allowed(ask, pool)
    if isinstance(suitable, Reason):
        return suitable
    start, end = seconds(ask.start), seconds(ask.end)
    return _find(ask, suitable, pool, keep) or _full(ask, suitable, pool.timetable, start, end)


def find_place(ask: Ask, pool: PoolLanes, keep: Sequence[int] = ()) -> Placed | None:
    """Return lanes as `place` does, or None, for callers that need no reason."""
    suitable = _allowed(ask, pool)
    return None if isinstance(suitable, Reason) else _find(ask, suitable, pool, keep)


def _find(ask: Ask, suitable: Sequence[Lane], pool: PoolLanes, keep: Sequence[int]) -> Placed | None:
    start, end = seconds(ask.start), seconds(ask.end)
    chosen = _choose(ask, suitable, pool, start, end, keep)
    return (chosen, {}) if chosen else _make_room(ask, suitable, pool, start, end)


def _stay(ask: Ask, pool: PoolLanes, keep: Sequence[int]) -> Placed | Reason:
    """The lanes that it has, and more when it asks for more. Others that were to have these later go elsewhere, which
    a server cannot."""
    start, end = seconds(ask.start), seconds(ask.end)
    own = tuple(keep[: ask.lanes])
    mismatched = [lane.name for lane in pool.lanes if ask.same_group and lane.id in own and lane.size != ask.gpus]
    if mismatched:
        return Reason("in_use", f"its servers are on {', '.join(mismatched)}, which is no group of {ask.gpus} GPUs")
    table = pool.timetable
    in_the_way = [movable for movable in pool.movable(start, end) if {*movable.lanes} & {*own}]
    with table.without([taken for movable in in_the_way for taken in taken_by(movable)]):
        for lane in own:
            if not table.is_free(lane, start, end):
                name = next((pool_lane.name for pool_lane in pool.lanes if pool_lane.id == lane), str(lane))
                begins = next(table.intervals(lane, start, end))[0]
                text = f"GPU {name}, which this booking has, is somebody else's from {spell(moment(begins))} on"
                return Reason("full", text)
        mine = [(lane, start, end) for lane in own]
        for taken in mine:
            table.add(*taken)
        try:
            more = ask.lanes - len(own)
            extra: tuple[int, ...] = ()
            if more:
                placement = find_place(replace(ask, gpus=more, gpu="", same_group=False), replace(pool, movable=nobody))
                if placement is None:
                    return Reason("full", f"{more} more GPUs of pool {ask.pool} are not free throughout that time")
                extra = placement[0]
            for lane in extra:
                table.add(lane, start, end)
                mine.append((lane, start, end))
            placed = _place_all(sorted(in_the_way, key=_hard_first), pool)
        finally:
            for taken in mine:
                table.remove(*taken)
    if placed is None:
        names = ", ".join(movable.id for movable in in_the_way)
        return Reason("full", f"its GPUs are booked by others later ({names}), and there are no other GPUs for these")
    return (*own, *extra), dict(placed.items())


def nearest(ask: Ask, pool: PoolLanes, rules: Rules, now: datetime) -> Iterable[Alternative]:
    """Yield other times and numbers that are possible in the same pool."""
    start, length = seconds(ask.start), seconds(ask.end) - seconds(ask.start)
    once_well = max([start, *(until for until in pool.troubled.values() if until < FOREVER_SECONDS)])
    suitable = _allowed(replace(ask, start=moment(once_well)), pool)
    if isinstance(suitable, Reason):
        return
    until = min(start + int(LOOK_AHEAD.total_seconds()), seconds(now) + int(rules.ahead.total_seconds()))
    later = _earliest(ask, suitable, pool, start, length, until)
    if later is not None:
        begin = moment(later)
        yield Alternative(replace(ask, start=begin, end=begin + (ask.end - ask.start)), f"from {spell(begin)}")
    suitable = [lane for lane in suitable if pool.troubled.get(lane.id, start) <= start]
    free = [lane.id for lane in suitable if pool.timetable.is_free(lane.id, start, start + length)]
    if free and not ask.same_group and not ask.same_host and len(free) < ask.gpus:
        yield Alternative(replace(ask, gpus=len(free)), f"{len(free)} of {ask.gpus} at that time")
    shorter = max((_free_until(pool.timetable, lane.id, start) for lane in suitable), default=start)
    if ask.lanes == 1 and start + 3600 <= shorter < start + length:
        end = moment(shorter)
        yield Alternative(replace(ask, end=end), f"until {spell(end)} ({lasting(end - ask.start)})")


def _allowed(ask: Ask, pool: PoolLanes) -> Sequence[Lane] | Reason:
    """Suitable lanes, without those that whoever asks cannot have."""
    suitable = _suitable(ask, pool)
    if isinstance(suitable, Reason) or not pool.avoid:
        return suitable
    left = [lane for lane in suitable if lane.id not in pool.avoid]
    if len(left) >= ask.lanes:
        return left
    others = len(suitable) - len(left)
    return Reason(
        "too_many_on_gpu",
        f"on {others} of the {len(suitable)} that could be had in pool {ask.pool} you have as many bookings that are "
        "not over as you may have on one GPU: end or cancel one",
    )


def _suitable(ask: Ask, pool: PoolLanes) -> Sequence[Lane] | Reason:
    """Lanes that could serve it at some time, the least wasteful first; or why there are none at any time."""
    well = pool.usable(seconds(ask.start))
    if ask.gpu:
        return _named(ask, pool)
    if ask.same_group:
        fitting = [lane for lane in well if lane.size == ask.gpus]
        if not fitting:
            sizes = sorted({lane.size for lane in well if lane.size > 1})
            has = f"its groups have {', '.join(map(str, sizes))}" if sizes else "no GPUs of it share a group"
            return Reason("no_such_group", f"pool {ask.pool} has no group of {ask.gpus} GPUs: {has}")
        return fitting
    if len(well) < ask.lanes:
        bad = len(pool.lanes) - len(well)
        trouble = f", and {bad} more that cannot be used now" if bad else ""
        groups = any(lane.size > 1 for lane in well)
        several = "; GPUs that share an IOMMU group are booked together, as one whole group" if groups else ""
        return Reason("too_big", f"only {len(well)} GPUs of pool {ask.pool} can be booked one by one{trouble}{several}")
    if ask.same_host and max(_by_host(well).values()) < ask.lanes:
        host, most = max(_by_host(well).items(), key=lambda item: item[1])
        return Reason("too_big", f"no host has {ask.gpus} of pool {ask.pool} to book: {host} has {most}")
    return well


def _named(ask: Ask, pool: PoolLanes) -> list[Lane] | Reason:
    _, _, address = ask.gpu.rpartition("/")
    for lane in pool.lanes:
        if not lane.is_named(ask.gpu):
            continue
        if lane.trouble and pool.troubled.get(lane.id, FOREVER_SECONDS) > seconds(ask.start):
            return Reason("trouble", f"GPU {ask.gpu} cannot be used now: {lane.trouble}{_from(lane, pool)}")
        if address.lower() != lane.addresses[0] and not ask.same_group:
            return Reason(
                "peer",
                f"GPU {ask.gpu} shares its group with {lane.name} and can only be had with it: book that one, or the "
                f"whole group (same_group, {lane.size} GPUs)",
            )
        if (lane.size if ask.same_group else 1) != ask.gpus:
            return Reason("too_big", f"GPU {ask.gpu} is {lane.size if ask.same_group else 1}, not {ask.gpus} GPUs")
        return [lane]
    return Reason("no_such_gpu", f"pool {ask.pool} has no GPU {ask.gpu}; name one as in host/0000:3b:00.0")


def _from(lane: Lane, pool: PoolLanes) -> str:
    back = pool.troubled.get(lane.id, FOREVER_SECONDS)
    return f"; it can be booked from {spell(moment(back))} on" if back < FOREVER_SECONDS else ""


def _by_host(lanes: Iterable[Lane]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for lane in lanes:
        counts[lane.host] = counts.get(lane.host, 0) + 1
    return counts


def _choose(
    ask: Ask, lanes: Sequence[Lane], pool: PoolLanes, start: int, end: int, keep: Sequence[int]
) -> tuple[int, ...]:
    """Free lanes for it that cost and leave behind the least; () when there are not enough."""
    timetable, cost = pool.timetable, pool.cost
    can_keep = bool(keep) and len(keep) == ask.lanes and {*keep} <= {lane.id for lane in lanes}
    if can_keep and all(timetable.is_free(lane, start, end) for lane in keep):
        return tuple(keep)
    if cost:
        lanes = sorted(lanes, key=lambda lane: cost.get(lane.id, 0))
    free = (lane for lane in lanes if timetable.is_free(lane.id, start, end))
    if ask.same_host:
        return _on_one_host(ask, list(free), cost)
    # Lanes of one GPU are at the front, and are not compared with those that would strand a peer.
    some = list(islice(free, ask.lanes + LOOK_AT))
    if len(some) < ask.lanes:
        return ()
    preferred = {*keep}

    def worth(lane: Lane) -> tuple[object, ...]:
        gap = timetable.gap(lane.id, start, end)
        return (lane.id not in preferred, cost.get(lane.id, 0), bool(lane.trouble), lane.size, gap)

    return tuple(lane.id for lane in sorted(some, key=worth)[: ask.lanes])


def _on_one_host(ask: Ask, free: Sequence[Lane], cost: Mapping[int, int]) -> tuple[int, ...]:
    """On the host that has the fewest left, of those where it costs the least: whole hosts stay whole for those who
    need more. `free`: the cheapest first."""
    lanes: dict[str, list[int]] = {}
    for lane in free:
        lanes.setdefault(lane.host, []).append(lane.id)
    able = [host for host, lane_ids in lanes.items() if len(lane_ids) >= ask.lanes]
    if not able:
        return ()

    def price(host: str) -> int:
        return sum(cost.get(lane, 0) for lane in lanes[host][: ask.lanes]) if cost else 0

    return tuple(lanes[min(able, key=lambda host: (price(host), len(lanes[host]), host))][: ask.lanes])


def _make_room(ask: Ask, lanes: Sequence[Lane], pool: PoolLanes, start: int, end: int) -> Placed | None:
    """Lanes for it when others that have not begun change theirs. The others of its time are taken off the timetable
    and put back one by one: what is hard to place first, so that the rest finds what is left."""
    everywhere = [lane.id for lane in pool.usable(start)]
    intervals = [interval for lane in everywhere for interval in pool.timetable.intervals(lane, start, end)]
    if len(intervals) > MOST_MOVES or pool.timetable.peak(everywhere, start, end) + ask.lanes > len(everywhere):
        return None  # too many to try, or at some moment there is no lane left, wherever the others are
    others = pool.movable(start, end)
    if not others or len(others) > MOST_MOVES:
        return None
    taken = [interval for other in others for interval in taken_by(other)]
    new = Movable("", ask, (), pool.avoid)
    with pool.timetable.without(taken):
        for order in (_hard_first, _time_first):
            placed = _place_all(sorted([new, *others], key=order), pool)
            if placed is not None:
                lanes_of_new = placed.pop("")
                moves = {other.id: placed[other.id] for other in others if set(placed[other.id]) != set(other.lanes)}
                return lanes_of_new, moves
    return None


def _hard_first(movable: Movable) -> tuple[object, ...]:
    ask = movable.ask
    return (not ask.gpu, not ask.same_group, not ask.same_host, -ask.lanes, ask.start, movable.id)


def _time_first(movable: Movable) -> tuple[object, ...]:
    return (movable.ask.start, not movable.ask.gpu, -movable.ask.lanes, movable.id)


def _place_all(movables: Sequence[Movable], pool: PoolLanes) -> dict[str, tuple[int, ...]] | None:
    """Lanes for all of them; None when one finds none. The timetable is as before afterwards."""
    placed: dict[str, tuple[int, ...]] = {}
    put: list[Taken] = []
    try:
        for movable in movables:
            start, end = seconds(movable.ask.start), seconds(movable.ask.end)
            suitable = _suitable(movable.ask, pool)
            if isinstance(suitable, Reason):
                return None
            suitable = [lane for lane in suitable if lane.id not in movable.avoid] if movable.avoid else suitable
            chosen = _choose(movable.ask, suitable, pool, start, end, movable.lanes)
            if not chosen:
                return None
            placed[movable.id] = chosen
            for lane in chosen:
                pool.timetable.add(lane, start, end)
                put.append((lane, start, end))
        return placed
    finally:
        for taken in put:
            pool.timetable.remove(*taken)


def taken_by(booking: Movable) -> list[Taken]:
    """Return the intervals that a booking has on the timetable."""
    return [(lane, seconds(booking.ask.start), seconds(booking.ask.end)) for lane in booking.lanes]


def _full(ask: Ask, lanes: Sequence[Lane], timetable: Timetable, start: int, end: int) -> Reason:
    free = sum(timetable.is_free(lane.id, start, end) for lane in lanes)
    if ask.gpu:
        until = max(free_again for _, free_again in timetable.intervals(lanes[0].id, start, end))
        return Reason("full", f"GPU {ask.gpu} is booked until {spell(moment(until))}")
    what = f"group of {ask.gpus} GPUs" if ask.same_group else f"GPU of pool {ask.pool}"
    if ask.same_host and free >= ask.lanes:
        return Reason("full", f"{free} GPUs of pool {ask.pool} are free then, but no {ask.gpus} of them on one host")
    if free:
        return Reason("full", f"only {free} of {ask.lanes} GPUs of pool {ask.pool} are free throughout that time")
    if timetable.peak([lane.id for lane in lanes], start, end) + ask.lanes <= len(lanes):
        return Reason(
            "fragmented",
            f"at any moment a {what} is free, but not the same one throughout: book it in parts, or shorter",
        )
    return Reason(
        "full", f"no {what} is free throughout that time; there {'is' if len(lanes) == 1 else 'are'} {len(lanes)}"
    )


def _earliest(ask: Ask, lanes: Sequence[Lane], pool: PoolLanes, start: int, length: int, until: int) -> int | None:
    """The earliest later time at which it could be had, on a whole quarter of an hour when that is possible too."""
    groups = [[lane.id for lane in lanes]]
    if ask.same_host:
        groups = [[lane.id for lane in lanes if lane.host == host] for host in _by_host(lanes)]
    timetable, troubled = pool.timetable, pool.troubled
    earliest_starts = [timetable.earliest(group, ask.lanes, start, length, until, troubled) for group in groups]
    first = min((at for at in earliest_starts if at is not None), default=None)
    if first is None:
        return None
    round_ = -(-first // STEP) * STEP
    for group in groups:
        well = [lane for lane in group if troubled.get(lane, round_) <= round_]
        if sum(timetable.is_free(lane, round_, round_ + length) for lane in well) >= ask.lanes and round_ <= until:
            return round_
    return first


def _free_until(timetable: Timetable, lane: int, start: int) -> int:
    """When the next booking begins on a lane; `start` when it is taken at that moment."""
    following = next(timetable.intervals(lane, start, start + int(LOOK_AHEAD.total_seconds())), None)
    return max(start, following[0]) if following else start
