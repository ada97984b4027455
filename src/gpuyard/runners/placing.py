"""Room for one server after the other, in the order of turns: now, or from when on, and why not now.

Everybody who waits keeps the room that it will have first, so nobody behind it can delay it (conservative backfill).
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from datetime import timedelta

from gpuyard.ledger.leases import HORIZON
from gpuyard.model.booking import FOREVER, lasting
from gpuyard.runners.caps import Cap
from gpuyard.runners.openings import PoolOpenings, Shape
from gpuyard.runners.records import Runner, ServerChoice, Wanted
from gpuyard.runners.view import RunnerView
from gpuyard.site.runner_rules import JobRules, SiteRunners
from gpuyard.store.times import seconds

TEARDOWN = timedelta(minutes=10)
"""What a lease has for the end of a job and the deletion of its server."""
ALWAYS = seconds(FOREVER)


def lease_length(site: SiteRunners, wanted: Wanted) -> timedelta:
    """Of a runner that is made now: time to boot and connect, its job's longest time, time to be deleted."""
    return site.boot + site.register_within + wanted.longest + TEARDOWN


@dataclass(frozen=True, slots=True)
class Place:
    """What becomes of one that wants a server."""

    choice: ServerChoice | None
    """What it gets, or will probably get; None when there is no way at all."""
    start: int | None
    """When: now, later, or None when nobody can say."""
    reason: str = ""
    """Why not now."""


class PlanRoom:
    """One plan's room: pools and limits, which both shrink with everything that is placed."""

    def __init__(self, view: RunnerView, now: int) -> None:
        self.now = now
        self._site = view.site
        self._pools = {pool: PoolOpenings(room, now) for pool, room in view.rooms.items()}
        self._lanes_of_runners: dict[str, int] = defaultdict(int)
        self._ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._caps: dict[str, Cap] = {}
        self._rules: dict[tuple[str, str], JobRules] = {}
        self.waiting: dict[str, int] = defaultdict(int)
        """Pool -> GPUs that somebody waits for because there is no room, but for limits."""

    def rules(self, repository: str, scale_set: str) -> JobRules:
        key = (repository, scale_set)
        if key not in self._rules:
            self._rules[key] = self._site.rules(repository, scale_set)
        return self._rules[key]

    def count(self, runner: Runner, repository: str, end: int) -> None:
        """A runner has GPUs until `end` at most. To be told of all before anything is placed."""
        choice = runner.choice
        self._lanes_of_runners[choice.pool] += Shape.of(choice).lanes
        for name in ("", f"set {runner.scale_set}", f"repository {repository.lower()}"):
            self._ends[name].append((max(end, self.now), choice.gpus))

    def place(self, wanted: Wanted, repository: str, scale_set: str, not_before: int = 0) -> Place:
        """Give it the room that it can have first. `not_before`: it may not begin before; then it is told when it
        could, and no room is kept for it."""
        length = int(lease_length(self._site, wanted).total_seconds())
        caps = self._caps_of(repository, scale_set)
        best: tuple[int, int] | None = None
        for number, choice in enumerate(wanted.choices):
            opening = self._first(choice, length)
            if opening is None:
                continue
            allowed = all(cap.allows(choice.gpus, opening + length) for cap in caps)
            if opening == self.now >= not_before and allowed:
                self._take(choice, length)
                for cap in caps:
                    cap.start(choice.gpus, opening + length)
                return Place(choice, opening)
            if best is None or opening < best[0]:
                best = opening, number
        if best is None:
            return self._never(wanted)
        return self._later(wanted.choices[best[1]], length, best[0], caps, not_before)

    def fits_now(self, wanted: Wanted, repository: str, scale_set: str) -> ServerChoice | None:
        """As `place`, for one that gets room now or none, and for which nobody shall wait: no pool in which anybody
        waits is touched."""
        length = int(lease_length(self._site, wanted).total_seconds())
        caps = self._caps_of(repository, scale_set)
        for choice in wanted.choices:
            free = not self.waiting.get(choice.pool) and self._first(choice, length) == self.now
            if free and all(cap.allows(choice.gpus, self.now + length) for cap in caps):
                self._take(choice, length)
                for cap in caps:
                    cap.start(choice.gpus, self.now + length)
                return choice
        return None

    def many_now(self, wanted: Wanted, scale_set: str) -> int:
        """How many more could have room now, whoever they are for."""
        length = int(lease_length(self._site, wanted).total_seconds())
        caps = self._caps_of("", scale_set)
        found = 0
        for pool, choice in {choice.pool: choice for choice in reversed(wanted.choices)}.items():
            openings = self._pools.get(pool)
            if openings is not None and not openings.blocked:
                found += openings.many_now(Shape.of(choice), length)
        gpus = min((choice.gpus for choice in wanted.choices), default=1)
        return max(0, min([found, *((cap.most - cap.has - cap.promised) // gpus for cap in caps)]))

    def _first(self, choice: ServerChoice, length: int) -> int | None:
        openings = self._pools.get(choice.pool)
        return None if openings is None or openings.blocked else openings.first(Shape.of(choice), length)

    def _take(self, choice: ServerChoice, length: int) -> None:
        self._pools[choice.pool].take(Shape.of(choice), length)
        self._lanes_of_runners[choice.pool] += Shape.of(choice).lanes

    def _later(self, choice: ServerChoice, length: int, opening: int, caps: list[Cap], not_before: int) -> Place:
        firsts = [cap.first(choice.gpus, self.now) for cap in caps]
        if any(first is None for first in firsts):
            cap = next(cap for cap, first in zip(caps, firsts, strict=True) if first is None)
            return Place(choice, None, f"it needs {choice.gpus} GPUs, and {cap.words} may have {cap.most} at once")
        start = max([opening, not_before, *(first for first in firsts if first is not None)])
        if not_before > self.now:
            return Place(choice, start)
        reason = self._full(choice, length)
        if start > opening or opening == self.now:
            tight = [cap for cap in caps if not cap.allows(choice.gpus, self.now + length)]
            reason = tight[0].reason(choice.gpus) if tight else reason
        else:
            self._pools[choice.pool].take(Shape.of(choice), length)
            self.waiting[choice.pool] += choice.gpus
        for cap in caps:
            cap.wait(choice.gpus, start, start + length)
        return Place(choice, start, reason)

    def _caps_of(self, repository: str, scale_set: str) -> list[Cap]:
        rules = self.rules(repository, scale_set)
        limits: list[tuple[str, int | None, str]] = [("", self._site.most, "all runners together")]
        if scale_set in self._site.sets:
            limits.append((f"set {scale_set}", self._site.sets[scale_set].most, f"runners of set {scale_set}"))
        if repository and rules.origins.get("most", "").startswith("repository "):
            limits.append((f"repository {repository.lower()}", rules.most, "its repository"))
        found = []
        for name, most, words in limits:
            if most is not None:
                if name not in self._caps:
                    self._caps[name] = Cap(most, words, self._ends.get(name, []), ALWAYS)
                found.append(self._caps[name])
        return found

    def _full(self, choice: ServerChoice, length: int) -> str:
        """Why a pool has no room now."""
        openings, runners = self._pools[choice.pool], self._lanes_of_runners[choice.pool]
        taken = openings.busy + openings.given
        head = f"waiting for {_gpus(choice)} of pool {choice.pool}: "
        if taken < openings.lanes:
            free = openings.lanes - taken
            time = lasting(timedelta(seconds=length))
            return f"{head}{free} of {openings.lanes} {'is' if free == 1 else 'are'} free, but not for {time}"
        others = openings.lanes - min(runners, openings.lanes)
        return f"{head}{_have(runners, 'runner')}{' and ' if runners and others else ''}{_have(others, 'booking')}"

    def _never(self, wanted: Wanted) -> Place:
        if not wanted.choices:
            return Place(None, None, "this site has none of the flavors and images that it may have")
        choice = wanted.choices[0]
        openings = self._pools.get(choice.pool)
        if openings is None or not openings.lanes:
            return Place(choice, None, f"no GPU of pool {choice.pool} can be used at the moment")
        if openings.blocked:
            return Place(choice, None, f"no server can be started in pool {choice.pool} now: {openings.blocked}")
        if not openings.ever(Shape.of(choice)):
            return Place(choice, None, f"no host has {_gpus(choice)} of pool {choice.pool} that can be used")
        time = lasting(lease_length(self._site, wanted))
        hours = HORIZON // timedelta(hours=1)
        reason = (
            f"in the next {hours} h there is no time in which {_gpus(choice)} of pool {choice.pool} is free for {time}"
        )
        return Place(choice, None, reason)


def _gpus(choice: ServerChoice) -> str:
    if choice.gpus == 1:
        return "a GPU"
    return f"a group of {choice.gpus} GPUs" if choice.same_group else f"{choice.gpus} GPUs on one host"


def _have(many: int, what: str) -> str:
    if many < 1:
        return ""
    return f"{what}s have {many} of its GPUs" if what == "runner" else f"bookings have {many}"
