"""Plans the limits and holds that keep each GPU for those who have booked it, now and in the next minutes. Pure.

Two means. A project's limit in Keystone says how many GPUs of a pool it may have, and Nova refuses the next one. A GPU
whose provider is reserved in Placement is given to nobody: a hold. Limits do not know GPUs, and holds do not know
projects; docs/adr/0014 says how one is made of both.

The order of a plan is its safety: new holds are written down and placed, limits that must fall are lowered, then others
are raised, and holds come off last. A GPU that is released for one project alone waits longer: until the limits of all
others have been read back as down for SETTLE, and no earlier create is under way. In another order somebody else's
server could land on it.

A GPU that is used once is reserved by Nova after each use. When it is clean again it is released here, or becomes a
hold of ours where somebody has booked it: it is never anybody's between the two.

Every prefix of a plan is safe: after a kill between any two steps the next plan goes on, nobody has got a GPU that is
somebody else's, and a hold of somebody else (an operator's, one of a GPU that waits to be scrubbed) is never taken off.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import inf

from gpuyard.bookings.matching import LET_IN, on_now, running
from gpuyard.bookings.pool_view import SOON, PoolView, is_whole_group
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.gpu import is_unit
from gpuyard.model.moments import second_text

SETTLE = timedelta(seconds=5)
"""Time for which limits must have been down before a hold is taken off: a create that Nova had let in before is in its
list of servers by then, where it is waited for. One that Nova takes longer to list is refused by its conductor, so this
is for the owner not to meet it there."""
LATE = timedelta(seconds=1)
"""Pause before servers are observed again that Nova has on their way. Also how much later than now something may be
that was written down before: more, and the clock has gone back."""


@dataclass(frozen=True)
class Remember:
    """Write one value of the pool's memory into the store."""

    pool: str
    word: str
    """``holds``, ``lowered``, ``opened``, ``windows``, ``lifted``."""
    text: str | None
    """None forgets it."""
    reason: str

    def __str__(self) -> str:
        return f"remember {self.word}"


@dataclass(frozen=True)
class PlaceHold:
    """Reserve a provider in Placement."""

    pool: str
    provider: str
    generation: int
    """That it must have."""
    reason: str

    def __str__(self) -> str:
        return f"hold {self.provider}"


@dataclass(frozen=True)
class ReleaseHold:
    """Release a provider that is reserved in Placement."""

    pool: str
    provider: str
    generation: int
    reason: str

    def __str__(self) -> str:
        return f"release {self.provider}"


@dataclass(frozen=True)
class SetLimit:
    """Set a project's limit on a resource."""

    pool: str
    project: str
    resource: str
    value: int
    reason: str

    def __str__(self) -> str:
        return f"limit {self.project} {self.resource} -> {self.value}"


Call = PlaceHold | ReleaseHold | SetLimit
"""One call to OpenStack."""
EnforcementStep = Remember | Call


@dataclass(frozen=True)
class SeenProvider:
    """A GPU's provider as Placement has it."""

    reserved: bool
    generation: int


@dataclass(frozen=True)
class Controls:
    """The limits and holds of a pool as they are now, which enforcement changes."""

    resources: tuple[str, ...]
    """Limits that count its GPUs, as Keystone names them: ``class:CUSTOM_GPU_V100_COUNT``."""
    limits: Mapping[tuple[str, str], int]
    """(project, resource) -> its own limit; without one it has none of these GPUs."""
    providers: Mapping[str, SeenProvider]
    """Those that were read one by one: at least the `unclear` ones."""
    one_time_use: bool = False


@dataclass(frozen=True)
class PoolPlan:
    steps: tuple[EnforcementStep, ...] = ()
    waits: tuple[str, ...] = ()
    """Work that could not be done yet, each with the reason why it waits."""
    kept: Mapping[int, str] = field(default_factory=dict)
    """Lanes that are to be held, each with why."""
    ready: frozenset[str] = frozenset()
    """Active bookings whose owner can start a server once the steps are done."""
    usable: frozenset[str] = frozenset()
    """Those of `ready` whose GPUs are released now: all but bookings whose window is over."""
    again: datetime | None = None
    """Moment of the next observation and plan, where that is known to help."""
    blocked: str = ""
    """Why trusted projects get nothing new at the moment; empty when they do."""


def plan_pool(view: PoolView, controls: Controls, now: datetime) -> PoolPlan:
    """Plan what to do next. Carry it out, observe again, and plan again until there are no steps."""
    if view.memory.lowered is not None and view.memory.lowered > now + LATE:  # the clock has gone back since
        view = replace(view, memory=replace(view.memory, lowered=None))
    closing = view.closing(now)
    opened = view.memory.opened & {booking.id for booking in closing}
    targets = limit_targets(view, controls, closing, opened)
    lowering = [step for step in _limit_steps(view, controls, targets) if step.value < _has(controls, step)]
    pending = [b for b in closing if b.id not in opened and b.state is BookingState.ACTIVE]
    settling = _why_not_settled(view, now, bool(lowering)) if pending else ""
    if pending and not settling:
        opened |= {booking.id for booking in pending}
        targets = limit_targets(view, controls, closing, opened)
    hold_reasons = kept_lanes(view, now, opened)
    raising = [step for step in _limit_steps(view, controls, targets) if step.value > _has(controls, step)]
    holding, waits = _hold_steps(view, controls, hold_reasons)
    holds = dict(view.memory.holds) | {step.provider: step.generation + 1 for step in holding}
    holds |= _taken_over(view, controls, hold_reasons)
    steps = (
        *_remember_holds(view, view.memory.holds, holds),
        *_require_waiting(view, holding),
        *holding,
        *_before_lowering(view, bool(lowering) or not closing),
        *lowering,
        *_after_lowering(view, now, closing, bool(lowering)),
        *_remember_opened(view, opened),
        *_remember_windows(view, opened, now),
        *raising,
        *_release_steps(view, controls, hold_reasons, holds),
    )
    if settling:
        waits = (*waits, f"pool {view.pool}: GPUs of {len(pending)} bookings are not released yet: {settling}")
    again = _again(view, now) if settling else None
    ready = _ready(view, closing, opened)
    usable = {
        booking.id
        for booking in view.bookings
        if booking.id in ready and (booking.id in opened or not view.exclusive(booking))
    }
    waits = (*waits, *_pauses(view, now), *_leftover(view))
    return PoolPlan(steps, waits, hold_reasons, ready, frozenset(usable), again, _blocked(view, closing, now))


def _ready(view: PoolView, closing: Iterable[Booking], opened: frozenset[str]) -> frozenset[str]:
    """Whose GPUs are free, and who is let in. Who had a window, or a server, counts also after it: another window is
    theirs to have."""
    owners = {booking.project_id for booking in closing if booking.id in opened}
    ready_ids = set()
    for booking in running(view.bookings):
        if not view.room(booking):
            continue
        if view.exclusive(booking):
            let_in = booking.id in opened or booking.id in view.memory.windows or booking.claimed is not None
        else:
            let_in = not list(closing) or booking.project_id in owners
        if let_in:
            ready_ids.add(booking.id)
    return frozenset(ready_ids)


def _pauses(view: PoolView, now: datetime) -> Iterable[str]:
    """Who has asked for another window too soon."""
    for booking in running(view.bookings):
        had = booking.id in view.memory.windows
        requested = booking.open_until is not None and now < min(booking.open_until, booking.ask.end)
        if had and requested and view.exclusive(booking) and view.room(booking) and not view.window(booking, now):
            again = second_text(view.pause(booking, now))
            yield f"pool {view.pool}: GPUs of booking {booking.id} are not released again before {again}"


def _leftover(view: PoolView) -> Iterable[str]:
    for holder in view.leftover:
        yield (
            f"pool {view.pool}: server {holder.name or holder.id} is in the runners' project without a lease: gpuyard "
            "deletes it if it has made it, else somebody must"
        )


def _blocked(view: PoolView, closing: Iterable[Booking], now: datetime) -> str:
    if not view.trusted:
        return ""
    ends = [window[1] for booking in closing if (window := view.window(booking, now))]
    until = f" until {max(ends).strftime('%H:%M:%S UTC')} or its server is there" if ends else ""
    names = ", ".join(
        f"{booking.ask.gpu}, {_whose(booking)}" if booking.kind is BookingKind.LOAN else _whose(booking)
        for booking in closing
    )
    return f"GPUs of pool {view.pool} are released for {names}{until}" if names else ""


def _has(controls: Controls, step: SetLimit) -> float:
    """The limit that a step changes, as it is; Keystone's -1 is none at all."""
    limit = controls.limits.get((step.project, step.resource), 0)
    return inf if limit < 0 else limit


def limit_targets(
    view: PoolView, controls: Controls, closing: Iterable[Booking], opened: frozenset[str]
) -> dict[str, int]:
    """Return project -> how many GPUs of the pool it may have at once.

    As many as its bookings let in, and those of servers without a booking that it has already as long as a booking of
    its own still waits for a server: else they would use that one's place up. While a release is on or about to be,
    nobody else gets anything new, not even in place of a server that is deleted: that could land on what is released. A
    trusted project has its number all the time but then: it can take a lease without waiting for an observation of the
    pool.
    """
    closing = list(closing)
    projects = (
        {project for project, _ in controls.limits}
        | view.unbooked.keys()
        | view.trusted.keys()
        | {b.project_id for b in view.bookings if b.kind is not BookingKind.RUNNER}
    )
    let_in: dict[str, int] = {}
    waiting: set[str] = set()
    for booking in view.bookings:
        if booking.kind not in LET_IN or booking.state is not BookingState.ACTIVE:
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
            unasked = max(view.unbooked.get(project, 0), view.trusted.get(project, 0))
            targets[project] = let_in.get(project, 0) + max(more, unasked)
        else:
            targets[project] = let_in.get(project, 0) + more if project in owners else 0
    return targets


def _limit_steps(view: PoolView, controls: Controls, targets: Mapping[str, int]) -> Iterable[SetLimit]:
    for project in sorted(targets):
        for resource in controls.resources:
            if controls.limits.get((project, resource), 0) != targets[project]:
                reason = "its bookings, and what it may use without one"
                if project in view.trusted:
                    reason = "servers for which gpuyard has leases"
                yield SetLimit(view.pool, project, resource, targets[project], reason)


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


def _again(view: PoolView, now: datetime) -> datetime:
    """When what may be on its way is next worth a look."""
    settled = (view.memory.lowered or now) + SETTLE
    return settled if settled > (view.taken_at or now) else now + LATE


def _before_lowering(view: PoolView, again: bool) -> Iterable[Remember]:
    """What was settled is so no longer, once a limit is touched."""
    if again and view.memory.lowered is not None:
        yield Remember(view.pool, "lowered", None, "limits change")


def _after_lowering(view: PoolView, now: datetime, closing: Iterable[Booking], lowering: bool) -> Iterable[Remember]:
    """Only limits that were read back are down: so this is never in one plan with the steps that lower them."""
    if list(closing) and not lowering and view.memory.lowered is None:
        since = f"{now.timestamp() + 0.001:.3f}"  # not rounded to before it
        yield Remember(view.pool, "lowered", since, "all others' limits are down")


def _remember_opened(view: PoolView, opened: frozenset[str]) -> Iterable[Remember]:
    if opened != view.memory.opened:
        value = " ".join(sorted(opened)) or None
        yield Remember(view.pool, "opened", value, "holds come off, or are back")


def _remember_windows(view: PoolView, opened: frozenset[str], now: datetime) -> Iterable[Remember]:
    """Of bookings that are on: when the window began that they have, or had last."""
    windows = {}
    for booking in running(view.bookings):
        window = view.window(booking, now) if booking.id in opened else None
        if window is not None:
            windows[booking.id] = window[0]
        elif last := view.last_window(booking.id, now):
            windows[booking.id] = last
    if windows != dict(view.memory.windows):
        text = " ".join(f"{id}={int(begin.timestamp())}" for id, begin in sorted(windows.items())) or None
        yield Remember(view.pool, "windows", text, "when holds come off")


# Holds.


def kept_lanes(view: PoolView, now: datetime, opened: frozenset[str]) -> dict[int, str]:
    """Return lanes that nobody is to get, each with why."""
    hold_reasons: dict[int, str] = {}
    released: set[int] = set()
    for booking in view.bookings:
        if booking.kind is BookingKind.HOLD:
            begun = booking.state is BookingState.ACTIVE or (booking.state in SOON and booking.ask.start <= now)
            if begun and now < booking.ask.end:
                hold_reasons |= dict.fromkeys(
                    booking.lanes, f"hold {booking.id}: {booking.ask.comment or 'by an operator'}"
                )
        elif booking.state in SOON:
            if booking.ask.start - view.rules_of(booking).hold <= now < booking.ask.end:
                hold_reasons |= dict.fromkeys(booking.lanes, f"booking {booking.id} of {booking.user} starts soon")
        elif booking.kind is BookingKind.RUNNER:
            if view.waits_for_server(booking):
                hold_reasons |= dict.fromkeys(booking.lanes, f"leased for server {booking.server}")
            else:
                released |= set(view.missing(booking))
        elif booking.state is BookingState.ACTIVE:
            claimed = view.matches.claims.get(booking.id, ())
            lanes = view.missing(booking)
            if not view.exclusive(booking) or booking.id in opened:
                released |= set(lanes)
            else:
                hold_reasons |= dict.fromkeys(lanes, _whose(booking))
            if view.exclusive(booking) and (not view.once if booking.kind is BookingKind.LOAN else view.held_below):
                # Under its server too: when that is deleted, the GPU is not everybody's until somebody notices. Nobody
                # moves the server of a loan, so that is held on releases that could not move it then.
                hold_reasons |= dict.fromkeys(claimed, _whose(booking))
    for lane, why in _guarded(view, now):
        if lane not in released:
            hold_reasons.setdefault(lane, why)
    hold_reasons |= _beside_loans(view, opened) | _out_of_use(view, opened)
    return {lane: why for lane, why in hold_reasons.items() if lane in view.providers}


def _whose(booking: Booking) -> str:
    if booking.kind is BookingKind.LOAN:
        return f"lent to project {booking.project}: {booking.ask.comment}"
    return f"booking {booking.id} of {booking.user}"


def _out_of_use(view: PoolView, opened: frozenset[str]) -> dict[int, str]:
    """Lanes that are kept back, but for what is released for the project that it is lent to: below a server too, where
    that can be or was so before, so that nobody gets the GPU in the moment after its end. Below the server of a loan
    Nova itself reserves what is used once: were it ours, it would come back without a scrub."""
    lent = {lane for loan in _loans(view) for lane in loan.lanes}
    released = {lane for loan in _loans(view) if loan.id in opened for lane in view.missing(loan)}
    below = view.held_below or view.once

    def is_held(lane: int) -> bool:
        if lane not in view.busy:
            return lane not in released
        if view.once and lane in lent:
            return False
        return below or any(name in view.memory.holds for name in view.providers.get(lane, ()))

    return {lane: why for lane, why in view.kept_back.items() if is_held(lane)}


def _beside_loans(view: PoolView, opened: frozenset[str]) -> dict[int, str]:
    """All lanes on which the server of a loan could land instead, while it is let in: of its host where we start that
    server ourselves, there and nowhere else, and of the whole pool where its project does. Also below servers that may
    be deleted meanwhile, but where Nova reserves the GPU itself then."""
    hold_reasons: dict[int, str] = {}
    for loan in _loans(view):
        if loan.id in opened and (missing := view.missing(loan)):
            hosts = {view.lanes[lane].host for lane in missing if lane in view.lanes}
            near = (id for id, lane in view.lanes.items() if not loan.server or lane.host in hosts)
            why = f"{loan.ask.gpu} is {_whose(loan)}, and its server must not land here"
            hold_reasons |= {
                lane: why for lane in near if lane not in loan.lanes and not (view.once and lane in view.busy)
            }
    return hold_reasons


def _loans(view: PoolView) -> list[Booking]:
    return [booking for booking in running(view.bookings) if booking.kind is BookingKind.LOAN]


def plan_kept_back(view: PoolView, controls: Controls) -> tuple[EnforcementStep, ...]:
    """Plan only the holds of lanes that are kept back: they need not wait for the rest of a plan. Providers that are
    held already stay as they are."""
    hold_reasons = {lane: why for lane, why in _out_of_use(view, view.memory.opened).items() if lane in view.providers}
    holding, _ = _hold_steps(view, controls, hold_reasons)
    holds = dict(view.memory.holds) | {step.provider: step.generation + 1 for step in holding}
    return (*_remember_holds(view, view.memory.holds, holds), *holding)


def _guarded(view: PoolView, now: datetime) -> Iterable[tuple[int, str]]:
    """Lanes that a later booking cannot be moved away from, while somebody is let in who may land there and stay."""
    stays = [
        (booking.ask.end, frozenset(booking.lanes))
        for booking in view.bookings
        if booking.kind is BookingKind.BOOKING and booking.state is BookingState.ACTIVE
    ]
    # The one server of a lease stays where it is, and there is none after it.
    stays += [(b.ask.end, frozenset(b.lanes)) for b in on_now(view.bookings) if b.id not in view.matches.claims]
    for later in view.bookings:
        pinned = later.ask.gpu or (view.mixed and is_whole_group(later))
        if later.kind is BookingKind.BOOKING and later.state in SOON and pinned:
            for lane in later.lanes:
                if any(end > later.ask.start and lane not in own for end, own in stays):
                    yield lane, f"booking {later.id} of {later.user} must have this one later"


def unclear(view: PoolView, now: datetime) -> set[str]:
    """Return providers that must be read one by one before a plan is made: those that may be held or released next."""

    def names(lanes: Iterable[int]) -> set[str]:
        return {name for lane in lanes for name in view.providers.get(lane, ())}

    most = names(kept_lanes(view, now, frozenset()))
    least = names(kept_lanes(view, now, view.memory.opened))
    closing = view.closing(now)
    released = names(lane for booking in closing for lane in booking.lanes)
    beside = names(_beside_loans(view, frozenset(booking.id for booking in closing)))
    let_go = {name for name in view.memory.holds if name not in least or name in released}
    return ((most | beside) - view.reserved) | let_go | view.clean.keys()


def _hold_steps(
    view: PoolView, controls: Controls, hold_reasons: Mapping[int, str]
) -> tuple[list[PlaceHold], tuple[str, ...]]:
    """And what cannot be held."""
    steps: list[PlaceHold] = []
    waits: list[str] = []
    for lane in sorted(hold_reasons):
        for name in view.providers[lane]:
            provider = controls.providers.get(name)
            if name in view.reserved or (provider is not None and provider.reserved):
                continue  # ours already, or somebody else's, which is as good
            if provider is None:
                gone = "all units of its device are taken" if is_unit(name) else "it is not in Placement"
                waits.append(f"{name} cannot be held ({gone}): {hold_reasons[lane]}")
            else:
                steps.append(PlaceHold(view.pool, name, provider.generation, hold_reasons[lane]))
    return steps, tuple(waits)


def _taken_over(view: PoolView, controls: Controls, hold_reasons: Mapping[int, str]) -> dict[str, int]:
    """Clean ones that are to be kept, as holds of ours: they are reserved already."""
    desired_names = {name for lane in hold_reasons for name in view.providers[lane]}
    return {name: number for name, number in _clean(view, controls).items() if name in desired_names}


def _clean(view: PoolView, controls: Controls) -> dict[str, int]:
    """Providers that are reserved in the very generation in which they were found clean."""
    providers = {name: controls.providers.get(name) for name in view.clean}
    return {
        name: provider.generation
        for name, provider in providers.items()
        if provider is not None and provider.reserved and provider.generation == view.clean[name]
    }


def _release_steps(
    view: PoolView, controls: Controls, hold_reasons: Mapping[int, str], held: Mapping[str, int]
) -> Iterable[EnforcementStep]:
    """Holds of ours that are not wanted any more, and what is clean and not kept: peers before their leader, or a
    leader would be had without them. `held`: what is remembered once the hold steps of the same plan are done."""
    desired_names = {name for lane in hold_reasons for name in view.providers[lane]}
    order = {name: -index for names in view.providers.values() for index, name in enumerate(names)}
    clean = _clean(view, controls)
    gone = view.memory.holds.keys() - desired_names
    for name in sorted(gone | (clean.keys() - desired_names), key=lambda name: (order.get(name, 0), name)):
        provider = controls.providers.get(name)
        # A GPU that is used once is reserved by Nova when a server gets it. That is another generation than ours.
        ours = name in gone and (
            not controls.one_time_use or (provider and provider.generation == view.memory.holds[name])
        )
        if provider is not None and provider.reserved and (ours or name in clean):
            reason = "it is clean again" if name in clean else "nobody is to be kept out"
            yield ReleaseHold(view.pool, name, provider.generation, reason)
    yield from _remember_holds(view, held, {name: number for name, number in held.items() if name not in gone})


def _remember_holds(view: PoolView, before: Mapping[str, int], after: Mapping[str, int]) -> Iterable[Remember]:
    """The intent is written down with the generation that the hold will give, in one word for all: so after a kill it
    is known whether a hold that is seen is ours."""
    if dict(before) != dict(after):
        yield Remember(view.pool, "holds", holds_text(after), "which holds are ours")


def _require_waiting(view: PoolView, holding: Iterable[PlaceHold]) -> Iterable[Remember]:
    """Before groups are held for leases: fails when one of them has been lifted since, whose hold would keep out its
    own server. It stands after the intents are written down: `GroupHolds` has why."""
    leases = [lease for lease in on_now(view.bookings) if view.waits_for_server(lease)]
    groups = {name for lease in leases for lane in lease.lanes for name in view.providers.get(lane, ())}
    if any(step.provider in groups for step in holding):
        yield Remember(view.pool, "lifted", lifted_text(view.memory.lifted), "as long as no server is asked for")


def lifted_text(leases: Iterable[str]) -> str | None:
    return " ".join(sorted(leases)) or None


def holds_text(holds: Mapping[str, int]) -> str | None:
    """Return the holds as text that `read_memory` reads: provider -> the generation that holding gives it."""
    return " ".join(f"{name}={number}" for name, number in sorted(holds.items())) or None
