"""Places one waiting job after the other, in the order of the queue: a server now, or from when on, and why not now.

Every job that waits keeps the capacity that it will have first, so no job behind it can delay it (conservative
backfill). Each choice of flavor is tried in order: the first one that is free now, and under all limits, is taken;
otherwise the one that is free first is kept. What bookings leave to jobs is reckoned in
bookings/ledger/runner_leases.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta
from typing import NamedTuple

from gpuyard.bookings.ledger.runner_leases import HORIZON
from gpuyard.database.times import seconds
from gpuyard.model.booking import FOREVER, lasting
from gpuyard.runners.caps import Cap
from gpuyard.runners.openings import PoolOpenings, shape
from gpuyard.runners.records import Runner, ServerChoice, ServerSpec
from gpuyard.runners.view import RunnerView, size_of
from gpuyard.site.runner_rules import JobRules, SiteRunners

TEARDOWN = timedelta(minutes=10)
"""Time that a lease has for the end of a job and the deletion of its server."""
ALWAYS = seconds(FOREVER)


ALL = "all runners"


def weight(choice: ServerChoice) -> int:
    """Return the number that a server counts where GPUs are counted: a server without GPUs counts 1, in the pool of
    those without."""
    return max(choice.gpus, 1)


def uses(runner: Runner, repository: str) -> tuple[str, ...]:
    """Return the names of what a runner uses up: its pool, and the limits it falls under, which do not count runners
    without GPUs."""
    if not runner.choice.gpus:
        return (f"pool {runner.choice.pool}",)
    return f"pool {runner.choice.pool}", ALL, f"set {runner.scale_set}", f"repository {repository.lower()}"


def lease_length(site: SiteRunners, spec: ServerSpec, boots: Mapping[str, timedelta]) -> timedelta:
    """Return the length of the lease of a runner that is made now: time to boot and connect, its job's longest time,
    time to be deleted. `boots`: `RunnerView.boots`; of several choices the slowest counts."""
    boot = max((boots.get(choice.flavor, site.boot) for choice in spec.choices), default=site.boot)
    return boot + site.register_within + spec.longest + TEARDOWN


class Place(NamedTuple):
    """The outcome for a job that wants a server."""

    choice: ServerChoice | None
    """What it gets, or will probably get; None when there is no way at all."""
    start: int | None
    """When it starts: now, later, or None when nobody can say."""
    reason: str = ""
    """Why not now."""


class PlanCapacity:
    """The capacity of one plan: pools and limits, which both shrink with everything that is placed."""

    def __init__(self, view: RunnerView, now: int) -> None:
        self.now = now
        self._site = view.site
        self._pools = {pool: PoolOpenings(capacity, now) for pool, capacity in view.rooms.items()}
        self._crowded = view.crowded
        self._lanes_of_runners: dict[str, int] = defaultdict(int)
        self._ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
        self._caps: dict[str, Cap] = {}
        self._caps_of: dict[tuple[str, str], list[Cap]] = {}
        self._rules: dict[tuple[str, str], JobRules] = {}
        self._boots = view.boots
        self._lengths: dict[tuple[object, ...], int] = {}
        self._words: dict[tuple[object, ...], str] = {}
        self.waiting: dict[str, int] = defaultdict(int)
        """What is used up (`uses`) -> GPUs that somebody waits for."""

    def rules(self, repository: str, scale_set: str) -> JobRules:
        key = (repository, scale_set)
        rules = self._rules.get(key)
        if rules is None:
            rules = self._rules[key] = self._site.rules(repository, scale_set)
        return rules

    def count(self, runner: Runner, repository: str, end: int) -> None:
        """Count a runner that has GPUs until `end` at most. Call it for all runners before anything is placed."""
        choice = runner.choice
        self._lanes_of_runners[choice.pool] += shape(choice.gpus, choice.same_group).lanes
        for name in uses(runner, repository)[1:]:
            self._ends[name].append((max(end, self.now), choice.gpus))

    def place(self, spec: ServerSpec, repository: str, scale_set: str, not_before: int = 0) -> Place:
        """Give a job the capacity that it can have first. `not_before`: the job may not begin before; then the result
        says when it could, and no capacity is kept for it."""
        length, caps = self._length(spec), self._under(repository, scale_set)
        best: tuple[int, ServerChoice] | None = None
        for choice in spec.choices:
            opening = self._first(choice, length)
            if opening is None:
                continue
            if opening == self.now >= not_before and _allow(caps, choice.gpus, opening + length):
                self._take(choice, length, caps)
                return Place(choice, opening)
            if best is None or opening < best[0]:
                best = opening, choice
        if best is None:
            return self._never(spec)
        return self._later(best[1], length, best[0], caps, not_before)

    def fits_now(self, spec: ServerSpec, repository: str, scale_set: str) -> ServerChoice | None:
        """Place a runner for which no job waits, now or not at all: pools in which a job waits are left alone. Returns
        the choice it gets, or None."""
        length, caps = self._length(spec), self._under(repository, scale_set)
        for choice in spec.choices:
            free = f"pool {choice.pool}" not in self.waiting and self._first(choice, length) == self.now
            if free and _allow(caps, choice.gpus, self.now + length):
                self._take(choice, length, caps)
                return choice
        return None

    def many_now(self, spec: ServerSpec, scale_set: str) -> int:
        """Return how many more servers could start now, whichever repository they are for."""
        length, caps = self._length(spec), self._under("", scale_set)
        count = 0
        for pool, choice in {choice.pool: choice for choice in reversed(spec.choices)}.items():
            openings = self._pools.get(pool)
            if openings is not None and not self._is_blocked(choice, openings):
                count += openings.many_now(shape(choice.gpus, choice.same_group), length)
        gpus = min((choice.gpus for choice in spec.choices), default=1)
        return max(0, min([count, *((cap.most - cap.has - cap.promised) // gpus for cap in caps if gpus)]))

    def _first(self, choice: ServerChoice, length: int) -> int | None:
        openings = self._pools.get(choice.pool)
        if openings is None or self._is_blocked(choice, openings):
            return None
        return openings.first(shape(choice.gpus, choice.same_group), length)

    def _is_blocked(self, choice: ServerChoice, openings: PoolOpenings) -> bool:
        """Return whether no such server may be started now, whatever is free."""
        return bool(openings.blocked) or size_of(choice) in self._crowded

    def _take(self, choice: ServerChoice, length: int, caps: list[Cap]) -> None:
        """Take capacity from now on."""
        self._pools[choice.pool].take(shape(choice.gpus, choice.same_group), length)
        self._lanes_of_runners[choice.pool] += shape(choice.gpus, choice.same_group).lanes
        for cap in caps if choice.gpus else ():
            cap.start(choice.gpus, self.now + length)

    def _later(self, choice: ServerChoice, length: int, opening: int, caps: list[Cap], not_before: int) -> Place:
        start = max(opening, not_before)
        gpus, now = choice.gpus, self.now
        caps = caps if gpus else []
        for cap in caps:
            first = cap.first(gpus, now)
            if first is None:
                some = f"{gpus} GPU{'' if gpus == 1 else 's'}"
                return Place(choice, None, f"it needs {some}, and {cap.words} may have {cap.most} at once")
            start = max(start, first)
        if not_before > now:
            return Place(choice, start, "not yet")
        tight = [cap for cap in caps if not cap.allows(gpus, now + length)]
        for cap in tight:
            self.waiting[cap.name] += gpus
        if now < opening == start:
            start = self._pools[choice.pool].keep(shape(gpus, choice.same_group), length)
            if not tight:  # else a GPU more would be of no use to it now
                self.waiting[f"pool {choice.pool}"] += weight(choice)
        reason = tight[0].reason(gpus) if tight else ""
        for cap in caps:
            cap.wait(gpus, start, start + length)
        return Place(choice, start, reason or self._full(choice, length))

    def _length(self, spec: ServerSpec) -> int:
        kind = (spec.longest, *(choice.flavor for choice in spec.choices))
        length = self._lengths.get(kind)
        if length is None:
            length = self._lengths[kind] = int(lease_length(self._site, spec, self._boots).total_seconds())
        return length

    def _under(self, repository: str, scale_set: str) -> list[Cap]:
        """Return the limits that hold for a repository and a scale set."""
        key = (repository, scale_set)
        caps = self._caps_of.get(key)
        if caps is None:
            rules = self.rules(repository, scale_set)
            limits: list[tuple[str, int | None, str]] = [(ALL, self._site.most, "all runners together")]
            if scale_set in self._site.sets:
                limits.append((f"set {scale_set}", self._site.sets[scale_set].most, f"runners of set {scale_set}"))
            if repository and rules.origins.get("most", "").startswith("repository "):
                limits.append((f"repository {repository.lower()}", rules.most, "its repository"))
            caps = [self._cap(name, most, words) for name, most, words in limits if most is not None]
            self._caps_of[key] = caps
        return caps

    def _cap(self, name: str, most: int, words: str) -> Cap:
        if name not in self._caps:
            self._caps[name] = Cap(name, most, words, self._ends.get(name, []), ALWAYS)
        return self._caps[name]

    def _full(self, choice: ServerChoice, length: int) -> str:
        """Say why a pool has no capacity now."""
        openings, runners = self._pools[choice.pool], self._lanes_of_runners[choice.pool]
        key = (choice.pool, choice.gpus, choice.same_group, length, openings.given)
        words = self._words.get(key)
        if words is None:
            if choice.gpus:
                words = f"waiting for {_gpus(choice)} of pool {choice.pool}: {_taken(openings, runners, length)}"
            else:
                words = f"waiting for one of the {openings.lanes} runners without GPUs that may run at once"
            self._words[key] = words
        return words

    def _never(self, spec: ServerSpec) -> Place:
        if not spec.choices:
            return Place(None, None, "this site has none of the flavors and images that it may have")
        choice = spec.choices[0]
        openings = self._pools.get(choice.pool)
        if not choice.gpus and (openings is None or not openings.lanes):
            return Place(choice, None, "the site has no runners without GPUs (any more)")
        if openings is None or not openings.lanes:
            return Place(choice, None, f"no GPU of pool {choice.pool} can be used at the moment")
        if openings.blocked:
            return Place(choice, None, f"no server can be started in pool {choice.pool} now: {openings.blocked}")
        if crowded := self._crowded.get(size_of(choice)):
            return Place(choice, None, f"{_server(choice)} could not be started when last tried: {crowded}")
        if not openings.ever(shape(choice.gpus, choice.same_group)):
            return Place(choice, None, f"no host has {_gpus(choice)} of pool {choice.pool} that can be used")
        time = lasting(lease_length(self._site, spec, self._boots))
        hours = HORIZON // timedelta(hours=1)
        reason = (
            f"in the next {hours} h there is no time in which {_gpus(choice)} of pool {choice.pool} is free for {time}"
        )
        return Place(choice, None, reason)


def _allow(caps: list[Cap], gpus: int, end: int) -> bool:
    return not gpus or all(cap.allows(gpus, end) for cap in caps)


def _gpus(choice: ServerChoice) -> str:
    if choice.gpus == 1:
        return "a GPU"
    return f"a group of {choice.gpus} GPUs" if choice.same_group else f"{choice.gpus} GPUs on one host"


def _server(choice: ServerChoice) -> str:
    return f"a server with {_gpus(choice)} of pool {choice.pool}" if choice.gpus else "a server without GPUs"


def _taken(openings: PoolOpenings, runners: int, length: int) -> str:
    """Say who has the GPUs of a pool. `runners`: lanes that runners have."""
    all, free = openings.lanes, openings.lanes - openings.busy - openings.given
    if free > 0:
        time = lasting(timedelta(seconds=length))
        some = f"{free} of {all} {'is' if free == 1 else 'are'} free, but not for the {time} that it may take"
        return f"{some}: bookings or jobs before it need {'it' if free == 1 else 'them'}"
    others = all - min(runners, all)
    if not others or not runners:
        return f"{'bookings' if others else 'runners'} have {'its only one' if all == 1 else f'all {all}'}"
    return f"of {all} runners have {runners}, and bookings {others}"
