"""What OpenStack must be told so that a GPU is for those who have booked it, now and in the next minutes. Pure.

Two means. A project's limit in Keystone says how many GPUs of a pool it may have, and Nova refuses the next one. A GPU
whose provider is reserved in Placement is given to nobody: a hold. Limits do not know GPUs, and holds do not know
projects; docs/adr/0014 says how one is made of both.

Every prefix of a plan is safe: after a kill between any two steps the next plan goes on, nobody has got a GPU that is
somebody else's, and a hold of somebody else (an operator's, one of a GPU that waits to be scrubbed) is never taken off.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from functools import cached_property
from math import inf

from gpuyard.ledger.matching import Holder, Matches, match, running
from gpuyard.model.booking import Booking, BookingKind, BookingState, Lane, Rules

SETTLE = timedelta(seconds=5)
"""How long limits must have been down before a hold is taken off: a create that Nova had let in before is in its list
of servers by then, where it is waited for."""
PREPARE = timedelta(seconds=30)
"""How long before a start the others' limits go down, where unbooked use is allowed; so the start itself waits for
nothing."""
SOON = (BookingState.CONFIRMED, BookingState.OFFERED)


class Act(StrEnum):
    REMEMBER = "remember"
    """Write a word into the store: `target` is the key, `value` the text, None forgets it."""
    HOLD = "hold"
    """Reserve a provider in Placement; `value` is the generation that it must have."""
    RELEASE = "release"
    """The reverse."""
    LIMIT = "limit"
    """Set the limit of a project (`target`) on a `resource` to `value`."""


@dataclass(frozen=True)
class EnforcementStep:
    """One call, or one word in the store."""

    act: Act
    pool: str
    target: str
    value: int | str | None = None
    resource: str = ""
    reason: str = ""

    def __str__(self) -> str:
        what = f"{self.target} {self.resource}".strip()
        return f"{self.act.value} {what}" + (f" -> {self.value}" if self.act is Act.LIMIT else "")


@dataclass(frozen=True)
class SeenProvider:
    """A GPU's provider as Placement has it."""

    reserved: bool
    generation: int


@dataclass(frozen=True)
class Memory:
    """What enforcement must not forget of a pool when the process dies. Kept in the store, written before the call
    that it speaks of."""

    holds: Mapping[str, int] = field(default_factory=dict)
    """Providers that we hold -> the generation that holding gave, or was to give them."""
    lowered: datetime | None = None
    """Since when the limits of all who are not to have a GPU are known to be down."""
    opened: frozenset[str] = frozenset()
    """Bookings for which holds came off after that."""
    windows: Mapping[str, datetime] = field(default_factory=dict)
    """Booking -> when the last window began in which holds were off for it."""


@dataclass(frozen=True)
class PoolView:
    """One pool: what is booked, what is seen, what is remembered. All ids are Keystone's and Nova's."""

    pool: str
    resources: tuple[str, ...]
    """Limits that count its GPUs, as Keystone names them: ``class:CUSTOM_GPU_V100_COUNT``."""
    lanes: Mapping[int, Lane]
    providers: Mapping[int, tuple[str, ...]]
    """Lane -> names of the providers of its GPUs, the leader's first."""
    bookings: tuple[Booking, ...]
    """Those that are active, are on in the next days, or hold GPUs."""
    holders: tuple[Holder, ...]
    rules: Callable[[str], Rules]
    """By the name of a project."""
    limits: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """(project, resource) -> its own limit; without one it has none of these GPUs."""
    reserved: frozenset[str] = frozenset()
    """Providers that are reserved, whoever did it, and have no server."""
    seen: Mapping[str, SeenProvider] = field(default_factory=dict)
    """Providers that were looked at closely: at least `unclear` ones."""
    memory: Memory = Memory()
    unbooked: Mapping[str, int] = field(default_factory=dict)
    """Project -> how many GPUs it may use without a booking; only those that may."""
    one_time_use: bool = False
    below_servers: bool = True
    """Whether a GPU may be held below its server without keeping Nova from moving that: Placement 14 and later."""
    taken_at: datetime | None = None
    """When the servers were listed; the moment of planning when left out."""

    @cached_property
    def matches(self) -> Matches:
        return match(self.bookings, self.holders)

    @cached_property
    def mixed(self) -> bool:
        """Whether a server with one GPU may land in a slot of several."""
        return len({lane.size for lane in self.lanes.values()}) > 1

    def rules_of(self, booking: Booking) -> Rules:
        return self.rules(booking.project)

    def missing(self, booking: Booking) -> tuple[int, ...]:
        """Lanes of a booking that no server of its owner is on yet."""
        claimed = self.matches.claims.get(booking.id, ())
        wanted = len(booking.lanes) - len(claimed)
        return tuple(lane for lane in booking.lanes if lane not in claimed)[: max(0, wanted)]

    @cached_property
    def busy(self) -> frozenset[int]:
        return frozenset(lane for holder in self.holders for lane in holder.lanes)

    def ready(self, lane: int) -> bool:
        """Whether nothing but a hold of ours keeps a lane from being used."""
        others = any(name in self.reserved and name not in self.memory.holds for name in self.providers.get(lane, ()))
        well = lane in self.lanes and not self.lanes[lane].trouble and lane in self.providers
        return well and not others and lane not in self.busy

    def room(self, booking: Booking) -> int:
        """GPUs that servers of a booking can still get without taking those of another one. Who finds somebody else on
        its GPU is not let in: that would only pass the trouble on."""
        lanes = [lane for lane in self.missing(booking) if self.ready(lane)]
        left = booking.ask.gpus - self.matches.gpus.get(booking.id, 0)
        return left if booking.ask.same_group and lanes else min(left, len(lanes))

    def exclusive(self, booking: Booking) -> bool:
        """Whether its GPUs may only be released while nobody else is let in: where servers without a booking are
        allowed, and for a whole slot of several GPUs where others might take one of them."""
        return bool(self.unbooked) or (self.mixed and self.whole(booking))

    def whole(self, booking: Booking) -> bool:
        return booking.ask.same_group and booking.ask.gpus > 1

    def window(self, booking: Booking, now: datetime) -> tuple[datetime, datetime] | None:
        """The time in which the GPUs of an exclusive booking are released, when that is on or still to come. A window
        has its length from the moment that it was asked for; after it comes the pause, if there is one."""
        length = self.rules_of(booking).window
        asked = (booking.open_until or booking.ask.start + length).replace(microsecond=0)
        begin, last = asked - length, self.memory.windows.get(booking.id)
        if last is not None and self.keeps_others_out(booking):
            pause = self.pause(booking)
            if now < last + length:
                begin = last
            elif now < pause or now >= asked:
                return None
            else:
                begin = max(begin, pause)
        end = min(begin + length, booking.ask.end)
        return (begin, end) if now < end else None

    def pause(self, booking: Booking) -> datetime:
        """Before this there is no other window for bookings of its owner that had one: others have the pool as long."""
        mine = [one.id for one in self.bookings if one.user_id == booking.user_id]
        return (
            max(self.memory.windows[id] for id in mine if id in self.memory.windows) + 2 * self.rules_of(booking).window
        )

    def keeps_others_out(self, booking: Booking) -> bool:
        """Whether somebody outside the project waits while its GPUs are released."""
        booked = {one.project_id for one in self.bookings if one.kind is BookingKind.BOOKING}
        return bool((self.unbooked.keys() | booked) - {booking.project_id})

    def closing(self, now: datetime) -> list[Booking]:
        """Exclusive bookings whose GPUs are released, or to be released now or in a moment. Those of which one's
        server may land on the other's GPUs take turns: who is released stays so, then whole slots go first."""
        found = [
            booking
            for booking in self.bookings
            if booking.kind is BookingKind.BOOKING
            and booking.state in (BookingState.ACTIVE, BookingState.CONFIRMED)
            and booking.ask.start - PREPARE <= now
            and self.exclusive(booking)
            and self.room(booking)
            and self.window(booking, now)
        ]
        turns: list[Booking] = []
        opened = self.memory.opened
        for one in sorted(found, key=lambda b: (b.id not in opened, not self.whole(b), b.ask.start, b.id)):
            if not any(self._in_each_others_way(one, other) for other in turns):
                turns.append(one)
        return turns

    def _in_each_others_way(self, one: Booking, other: Booking) -> bool:
        return self.mixed and one.project_id != other.project_id and self.whole(one) != self.whole(other)


@dataclass(frozen=True)
class PoolPlan:
    steps: tuple[EnforcementStep, ...] = ()
    waits: tuple[str, ...] = ()
    """What could not be done yet, and what it waits for."""
    kept: Mapping[int, str] = field(default_factory=dict)
    """Lanes that are to be held, each with why."""
    ready: frozenset[str] = frozenset()
    """Active bookings whose owner can start a server once the steps are done."""


def plan_pool(view: PoolView, now: datetime) -> PoolPlan:
    """What to do next. Carry it out, look again, and ask again until there are no steps."""
    closing = view.closing(now)
    opened = view.memory.opened & {booking.id for booking in closing}
    targets = limit_targets(view, closing, opened)
    lowering = [step for step in _limit_steps(view, targets) if _value(step) < _has(view, step)]
    pending = [b for b in closing if b.id not in opened and b.state is BookingState.ACTIVE]
    settling = _why_not_settled(view, now, bool(lowering)) if pending else ""
    if pending and not settling:
        opened |= {booking.id for booking in pending}
        targets = limit_targets(view, closing, opened)
    kept = kept_lanes(view, now, opened)
    raising = [step for step in _limit_steps(view, targets) if _value(step) > _has(view, step)]
    holding, waits = _hold_steps(view, kept)
    steps = (
        *holding,
        *_before_lowering(view, bool(lowering) or not closing),
        *lowering,
        *_after_lowering(view, now, closing, bool(lowering)),
        *_remember_opened(view, opened),
        *_remember_windows(view, opened, now),
        *raising,
        *_release_steps(view, kept),
    )
    if settling:
        waits = (*waits, f"pool {view.pool}: GPUs of {len(pending)} bookings are not released yet: {settling}")
    return PoolPlan(steps, (*waits, *_pauses(view, now)), kept, _ready(view, closing, opened))


def _ready(view: PoolView, closing: Iterable[Booking], opened: frozenset[str]) -> frozenset[str]:
    """Whose GPUs are free, and who is let in. Who had a window counts also after it: another one is theirs to have."""
    owners = {booking.project_id for booking in closing if booking.id in opened}
    found = set()
    for booking in running(view.bookings):
        if not view.room(booking):
            continue
        if view.exclusive(booking):
            let_in = booking.id in opened or booking.id in view.memory.windows
        else:
            let_in = not list(closing) or booking.project_id in owners
        if let_in:
            found.add(booking.id)
    return frozenset(found)


def _pauses(view: PoolView, now: datetime) -> Iterable[str]:
    """Who has asked for another window too soon."""
    for booking in running(view.bookings):
        had = booking.id in view.memory.windows
        asked = booking.open_until is not None and now < min(booking.open_until, booking.ask.end)
        if had and asked and view.exclusive(booking) and view.room(booking) and not view.window(booking, now):
            again = view.pause(booking).strftime("%Y-%m-%d %H:%M:%S UTC")
            yield f"pool {view.pool}: GPUs of booking {booking.id} are not released again before {again}"


def _value(step: EnforcementStep) -> int:
    assert isinstance(step.value, int)
    return step.value


def _has(view: PoolView, step: EnforcementStep) -> float:
    """The limit that a step changes, as it is; Keystone's -1 is none at all."""
    limit = view.limits.get((step.target, step.resource), 0)
    return inf if limit < 0 else limit


def limit_targets(view: PoolView, closing: Iterable[Booking], opened: frozenset[str]) -> dict[str, int]:
    """Project -> how many GPUs of the pool it may have at once.

    As many as its bookings let in, and those of servers without a booking that it has already as long as a booking of
    its own still waits for a server: else they would use that one's place up. While a release is on or about to be,
    nobody else gets anything new, not even in place of a server that is deleted: that could land on what is released.
    """
    closing = list(closing)
    projects = {project for project, _ in view.limits} | view.unbooked.keys() | {b.project_id for b in view.bookings}
    let_in: dict[str, int] = {}
    waiting: set[str] = set()
    for booking in view.bookings:
        if booking.kind is not BookingKind.BOOKING or booking.state is not BookingState.ACTIVE:
            continue
        has = view.matches.gpus.get(booking.id, 0)
        may = has + (view.room(booking) if not view.exclusive(booking) or booking.id in opened else 0)
        let_in[booking.project_id] = let_in.get(booking.project_id, 0) + may
        if may > has:
            waiting.add(booking.project_id)
    strays: dict[str, int] = {}
    for holder in view.matches.unbooked:
        strays[holder.project_id] = strays.get(holder.project_id, 0) + holder.gpus
    owners = {booking.project_id for booking in closing if booking.id in opened}
    targets = {}
    for project in projects:
        more = strays.get(project, 0) if project in waiting else 0
        if not closing:
            targets[project] = let_in.get(project, 0) + max(more, view.unbooked.get(project, 0))
        else:
            targets[project] = let_in.get(project, 0) + more if project in owners else 0
    return targets


def _limit_steps(view: PoolView, targets: Mapping[str, int]) -> Iterable[EnforcementStep]:
    for project in sorted(targets):
        for resource in view.resources:
            if view.limits.get((project, resource), 0) != targets[project]:
                reason = "its bookings, and what it may use without one"
                yield EnforcementStep(Act.LIMIT, view.pool, project, targets[project], resource, reason)


def _why_not_settled(view: PoolView, now: datetime, lowering: bool) -> str:
    """What may still be on its way from before the limits went down; empty when nothing."""
    if lowering or view.memory.lowered is None:
        return "the others' limits go down first"
    if (view.taken_at or now) - view.memory.lowered < SETTLE:
        return "the others' limits went down a moment ago"
    late = [holder for holder in view.holders if holder.on_its_way and holder.pool in ("", view.pool)]
    if late:
        return f"Nova still looks for GPUs for {', '.join(sorted(holder.name or holder.id for holder in late))}"
    return ""


def _before_lowering(view: PoolView, again: bool) -> Iterable[EnforcementStep]:
    """What was settled is so no longer, once a limit is touched."""
    if again and view.memory.lowered is not None:
        yield EnforcementStep(Act.REMEMBER, view.pool, "lowered", None, reason="limits change")


def _after_lowering(
    view: PoolView, now: datetime, closing: Iterable[Booking], lowering: bool
) -> Iterable[EnforcementStep]:
    """Only limits that were read back are down: so this is never in one plan with the steps that lower them."""
    if list(closing) and not lowering and view.memory.lowered is None:
        since = str(int(now.timestamp()) + 1)
        yield EnforcementStep(Act.REMEMBER, view.pool, "lowered", since, reason="all others' limits are down")


def _remember_opened(view: PoolView, opened: frozenset[str]) -> Iterable[EnforcementStep]:
    if opened != view.memory.opened:
        value = " ".join(sorted(opened)) or None
        yield EnforcementStep(Act.REMEMBER, view.pool, "opened", value, reason="holds come off, or are back")


def _remember_windows(view: PoolView, opened: frozenset[str], now: datetime) -> Iterable[EnforcementStep]:
    """Of bookings that are on: when the window began that they have, or had last."""
    windows = {}
    for booking in running(view.bookings):
        window = view.window(booking, now) if booking.id in opened else None
        if window is not None:
            windows[booking.id] = window[0]
        elif booking.id in view.memory.windows:
            windows[booking.id] = view.memory.windows[booking.id]
    if windows != dict(view.memory.windows):
        text = " ".join(f"{id}={int(begin.timestamp())}" for id, begin in sorted(windows.items())) or None
        yield EnforcementStep(Act.REMEMBER, view.pool, "windows", text, reason="when holds come off")


# Holds.


def kept_lanes(view: PoolView, now: datetime, opened: frozenset[str]) -> dict[int, str]:
    """Lanes that nobody is to get, each with why."""
    kept: dict[int, str] = {}
    released: set[int] = set()
    for booking in view.bookings:
        if booking.kind is BookingKind.HOLD:
            if booking.state in (*SOON, BookingState.ACTIVE) and booking.ask.start <= now < booking.ask.end:
                kept |= dict.fromkeys(booking.lanes, f"hold {booking.id}: {booking.ask.comment or 'by an operator'}")
        elif booking.state in SOON:
            if booking.ask.start - view.rules_of(booking).hold <= now < booking.ask.end:
                kept |= dict.fromkeys(booking.lanes, f"booking {booking.id} of {booking.user} starts soon")
        elif booking.state is BookingState.ACTIVE:
            claimed = view.matches.claims.get(booking.id, ())
            lanes = view.missing(booking)
            if not view.exclusive(booking) or booking.id in opened:
                released |= set(lanes)
            else:
                kept |= dict.fromkeys(lanes, f"booking {booking.id} of {booking.user}")
            if view.exclusive(booking) and view.below_servers and not view.one_time_use:
                # Under its server too: when that is deleted, the GPU is not everybody's until somebody notices.
                kept |= dict.fromkeys(claimed, f"booking {booking.id} of {booking.user}")
    for lane, why in _guarded(view, now):
        if lane not in released:
            kept.setdefault(lane, why)
    return {lane: why for lane, why in kept.items() if lane in view.providers}


def _guarded(view: PoolView, now: datetime) -> Iterable[tuple[int, str]]:
    """Lanes that a later booking cannot be moved away from, while somebody is let in who may land there and stay."""
    stays = [
        (booking.ask.end, frozenset(booking.lanes))
        for booking in view.bookings
        if booking.kind is BookingKind.BOOKING and booking.state is BookingState.ACTIVE
    ]
    for later in view.bookings:
        pinned = later.ask.gpu or (view.mixed and view.whole(later))
        if later.kind is BookingKind.BOOKING and later.state in SOON and pinned:
            for lane in later.lanes:
                if any(end > later.ask.start and lane not in own for end, own in stays):
                    yield lane, f"booking {later.id} of {later.user} must have this one later"


def unclear(view: PoolView, now: datetime) -> set[str]:
    """Providers that must be looked at closely before a plan is made: those that may be held or released next."""

    def names(lanes: Iterable[int]) -> set[str]:
        return {name for lane in lanes for name in view.providers.get(lane, ())}

    most = names(kept_lanes(view, now, frozenset()))
    least = names(kept_lanes(view, now, view.memory.opened))
    released = names(lane for booking in view.closing(now) for lane in booking.lanes)
    return (most - view.reserved) | {name for name in view.memory.holds if name not in least or name in released}


def _hold_steps(view: PoolView, kept: Mapping[int, str]) -> tuple[list[EnforcementStep], tuple[str, ...]]:
    """The intent is written down with the generation that the hold will give, in one word for all: so after a kill it
    is known whether a hold that is seen is ours."""
    ours = dict(view.memory.holds)
    steps: list[EnforcementStep] = []
    waits: list[str] = []
    for lane in sorted(kept):
        for name in view.providers[lane]:
            seen = view.seen.get(name)
            if name in view.reserved or (seen is not None and seen.reserved):
                continue  # ours already, or somebody else's, which is as good
            if seen is None:
                waits.append(f"{name} is not in Placement and cannot be held: {kept[lane]}")
                continue
            ours[name] = seen.generation + 1
            steps.append(EnforcementStep(Act.HOLD, view.pool, name, seen.generation, reason=kept[lane]))
    return [*_remember_holds(view, view.memory.holds, ours), *steps], tuple(waits)


def _release_steps(view: PoolView, kept: Mapping[int, str]) -> Iterable[EnforcementStep]:
    """Holds of ours that are not wanted any more: peers before their leader, or a leader would be had without them."""
    wanted = {name for lane in kept for name in view.providers[lane]}
    order = {name: -index for names in view.providers.values() for index, name in enumerate(names)}
    gone = sorted(view.memory.holds.keys() - wanted, key=lambda name: (order.get(name, 0), name))
    for name in gone:
        seen = view.seen.get(name)
        # A GPU that is used once is reserved by Nova when a server gets it. That is another generation than ours.
        ours = seen is not None and (not view.one_time_use or seen.generation == view.memory.holds[name])
        if seen is not None and seen.reserved and ours:
            yield EnforcementStep(Act.RELEASE, view.pool, name, seen.generation, reason="nobody is to be kept out")
    if gone:
        left = {name: number for name, number in _held_after(view, kept).items() if name not in gone}
        yield from _remember_holds(view, _held_after(view, kept), left)


def _held_after(view: PoolView, kept: Mapping[int, str]) -> dict[str, int]:
    """What is remembered once the hold steps of the same plan are done."""
    ours = dict(view.memory.holds)
    for step in _hold_steps(view, kept)[0]:
        if step.act is Act.HOLD:
            ours[step.target] = _value(step) + 1
    return ours


def _remember_holds(view: PoolView, before: Mapping[str, int], after: Mapping[str, int]) -> Iterable[EnforcementStep]:
    if dict(before) != dict(after):
        text = " ".join(f"{name}={number}" for name, number in sorted(after.items())) or None
        yield EnforcementStep(Act.REMEMBER, view.pool, "holds", text, reason="which holds are ours")


def read_memory(values: Mapping[str, str]) -> Memory:
    """From the words in the store. Raises ValueError when they are not ours."""
    holds = (item.rpartition("=") for item in values.get("holds", "").split())
    windows = (item.rpartition("=") for item in values.get("windows", "").split())
    lowered = values.get("lowered")
    return Memory(
        holds={name: int(number) for name, _, number in holds},
        lowered=datetime.fromtimestamp(int(lowered), UTC) if lowered else None,
        opened=frozenset(values.get("opened", "").split()),
        windows={id: datetime.fromtimestamp(int(at), UTC) for id, _, at in windows},
    )
