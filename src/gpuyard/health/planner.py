"""What becomes of each GPU now: of what was observed, of who has it, and of time. Pure.

Nothing is decided by what is missing: a cloud that could not be looked at moves no GPU, a host that is silent makes
none suspect, and none fine either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuyard.health.life import TRANSITIONS, become
from gpuyard.health.maintenance import HostWork
from gpuyard.health.records import (
    KEPT_BACK,
    GpuHealth,
    HealthEvent,
    HealthState,
    Judgement,
    Observation,
    Source,
)
from gpuyard.health.signals import SIGNALS
from gpuyard.site.health_rules import SiteHealth

S = HealthState
LONGEST_WAIT = timedelta(days=1)
"""Of a suspect. One that was seen again and again for as long is quarantined."""
LATELY = timedelta(days=7)
"""Relapses are counted over so long."""
QUIET = timedelta(hours=1)
"""What is only noted is noted once in so long, for each GPU and signal."""
STALE_MEANS = {"changed": "new"}
"""Signals of what is stale -> what the site calls it under `required`, where that is another word."""


@dataclass(frozen=True)
class SitePlace:
    """A GPU that the site has."""

    host: str
    address: str
    pool: str
    slot: str
    """Those with the same one are kept back together."""
    once: bool = False
    """Its pool has one_time_use: Nova keeps it reserved after a use."""

    @property
    def name(self) -> str:
        return f"{self.host}/{self.address}"


@dataclass(frozen=True)
class GpuSight:
    """What the cloud says of a GPU."""

    server: str = ""
    """Id of the server, or other consumer, that has it."""
    reserved: bool = False
    """In Placement, by somebody else than the ledger."""


@dataclass(frozen=True)
class Circumstances:
    """What is known besides the GPUs' own records."""

    now: datetime
    sights: Mapping[str, GpuSight] = field(default_factory=dict)
    """By name; of a GPU that is not here nothing is known."""
    looked: datetime | None = None
    """When that was seen; None: now."""
    heard: Mapping[str, datetime] = field(default_factory=dict)
    """Host -> when it was last heard of."""
    suspected: Mapping[str, int] = field(default_factory=dict)
    """GPU -> how often it became suspect LATELY."""
    noted: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    """(GPU, signal) -> when it was last noted."""
    works: Mapping[str, HostWork] = field(default_factory=dict)
    """By host: somebody works on it, or its work is being checked."""
    left: Mapping[str, HealthState] = field(default_factory=dict)
    """GPU that has no record now -> what it was when it left the site file."""


@dataclass(frozen=True)
class HealthChange:
    """One GPU, changed, to be written in one transaction with what belongs to it."""

    gpu: GpuHealth
    events: tuple[HealthEvent, ...] = ()
    settles: tuple[int, ...] = ()
    """Observations that are open no more."""
    gone: bool = False
    """It has left the site."""


@dataclass(frozen=True)
class HealthPlan:
    changes: tuple[HealthChange, ...] = ()
    settles: tuple[int, ...] = ()
    """Observations of GPUs that the site does not have, or that another release understood."""
    asked: tuple[str, ...] = ()
    """GPUs that should be kept back, and a person must say so."""


def plan_health(
    places: Sequence[SitePlace],
    records: Iterable[GpuHealth],
    observations: Sequence[Observation],
    rules: SiteHealth,
    around: Circumstances,
) -> HealthPlan:
    """What to write next. Once it is written there is nothing more to do until something is seen, or time passes."""
    known = {one.name: one for one in records}
    seen: dict[str, list[Observation]] = {}
    for one in observations:
        if one.code in SIGNALS:
            seen.setdefault(one.gpu, []).append(one)
    names = {place.name for place in places}
    pools = _Pools(places, known.values(), rules)
    changes: list[HealthChange] = []
    asked: list[str] = []
    for place in sorted(places, key=lambda one: _worst_first(known.get(one.name), seen.get(one.name, ()))):
        work = _Work(place, known.get(place.name), rules, around, pools)
        work.observed(seen.get(place.name, ()))
        change = work.result()
        changes += [change] if change else []
        asked += [place.name] if work.gpu.asked else []
    changes += [_left(one, around.now) for name, one in sorted(known.items()) if name not in names]
    strangers = tuple(one.id for one in observations if one.gpu not in names or one.code not in SIGNALS)
    return HealthPlan(tuple(changes), strangers, tuple(sorted(asked)))


def kept_back(records: Iterable[GpuHealth]) -> dict[tuple[str, str], str]:
    """(host, address) of GPUs that nobody is to get, each with why, in words for everybody."""
    return {(one.host, one.address): words(one) for one in records if one.state in KEPT_BACK}


def words(gpu: GpuHealth) -> str:
    """``quarantined: its config space reads 0xff (no-answer)``."""
    if gpu.by and not gpu.signal:  # an operator's own words are for operators
        return f"{gpu.state.value}: an operator has decided so"
    signal = f" ({gpu.signal})" if gpu.signal else ""
    return f"{gpu.state.value}: {gpu.cause}{signal}"


def is_required(what: str, rules: SiteHealth) -> bool:
    """Whether a GPU is to be accepted after this: a signal of what is stale, ``new`` or ``repair``."""
    return rules.acceptance is not None and STALE_MEANS.get(what, what) in rules.acceptance.required


def wait(rules: SiteHealth, relapses: int) -> timedelta:
    """For how long a GPU is suspect that was so `relapses` times before, lately."""
    doubled: timedelta = rules.suspect * 2 ** min(relapses, 20)
    return min(LONGEST_WAIT, doubled)


class _Pools:
    """How much of each pool is kept back without a person, as it changes while a plan is made."""

    def __init__(self, places: Sequence[SitePlace], records: Iterable[GpuHealth], rules: SiteHealth) -> None:
        self._slots: dict[str, list[str]] = {}
        self._pool_of: dict[str, str] = {}
        sizes: dict[str, int] = {}
        for place in places:
            self._slots.setdefault(place.slot, []).append(place.name)
            self._pool_of[place.slot] = place.pool
            sizes[place.pool] = sizes.get(place.pool, 0) + 1
        self._most = {pool: size * rules.quarantine // 100 for pool, size in sizes.items()}
        self._slot_of = {name: slot for slot, names in self._slots.items() for name in names}
        self._ours: set[str] = set()
        self._theirs: set[str] = set()
        """Slots that are out of use anyhow: somebody has said so."""
        for one in records:
            self.follow(one)

    def follow(self, gpu: GpuHealth) -> None:
        """As it is now. A slot that was counted stays so until the next plan: what is let go makes room then."""
        slot = self._slot_of.get(gpu.name)
        if slot is not None and gpu.state in KEPT_BACK:
            (self._ours if by_rule(gpu) else self._theirs).add(slot)

    def room_for(self, gpu: str) -> bool:
        """Whether its slot may be kept back without a person."""
        slot = self._slot_of[gpu]
        if slot in self._ours or slot in self._theirs:
            return True
        pool = self._pool_of[slot]
        out = sum(len(self._slots[one]) for one in self._ours - self._theirs if self._pool_of[one] == pool)
        return out == 0 or out + len(self._slots[slot]) <= self._most[pool]


def by_rule(gpu: GpuHealth) -> bool:
    """Whether a GPU that is kept back is so by a rule and what was seen, not by a person or because it is new."""
    return not gpu.by and bool(gpu.signal)


class _Work:
    """One GPU: what is known of it, and what becomes of that, step by step."""

    def __init__(
        self, place: SitePlace, known: GpuHealth | None, rules: SiteHealth, around: Circumstances, pools: _Pools
    ) -> None:
        self._place, self._known, self._rules, self._around, self._pools = place, known, rules, around, pools
        self._events: list[HealthEvent] = []
        self._settles: list[int] = []
        self._sight = around.sights.get(place.name)
        self.gpu = known or self._first_seen()
        if self.gpu.pool != place.pool:
            self.gpu = replace(self.gpu, pool=place.pool)
        if self.gpu.since > around.now:  # the clock has gone back since
            until = self.gpu.until and min(self.gpu.until, around.now + LONGEST_WAIT)
            self.gpu = replace(self.gpu, since=around.now, until=until)

    def result(self) -> HealthChange | None:
        """None when nothing is to be written."""
        if self.gpu == self._known and not self._events and not self._settles:
            return None
        return HealthChange(self.gpu, tuple(self._events), tuple(self._settles))

    def observed(self, observations: Sequence[Observation]) -> None:
        """All of it: who has it, what was seen, what time does."""
        self._follow_server()
        # The worst first: what is quarantined need not be suspect before.
        for one in sorted(observations, key=lambda one: (_ORDER[SIGNALS[one.code].judgement], one.id)):
            match SIGNALS[one.code].judgement:
                case _ if self._at_work(one):
                    self._while_worked_on(one)
                case Judgement.NOTE:
                    self._note(one)
                case Judgement.STALE:
                    self._stale(one)
                case Judgement.SUSPECT:
                    self._suspect(one)
                case Judgement.BAD:
                    self._bad(one, SIGNALS[one.code].threshold)
        self._time()
        self._follow_server()

    # Who has it

    def _first_seen(self) -> GpuHealth:
        place, now = self._place, self._around.now
        was = self._around.left.get(place.name)
        if was in KEPT_BACK:  # whoever looked after it is not known any more
            state, cause = (
                S.QUARANTINED if was is S.IN_REPAIR else was,
                f"it was {was.value} when it left the site file",
            )
        elif self._required("new"):
            state, cause = S.TO_ACCEPT, "it is new"
        else:
            state, cause = S.FINE, "nothing is known against it"
        until = now + wait(self._rules, 0) if state is S.SUSPECT else None
        gpu = GpuHealth(place.host, place.address, place.pool, state, now, cause, until=until)
        event = HealthEvent(gpu.host, gpu.address, gpu.card, now, gpu.state, gpu.state, f"first seen: {gpu.cause}")
        self._events.append(event)
        return gpu

    def _follow_server(self) -> None:
        sight, state = self._sight, self.gpu.state
        if sight is None or state in KEPT_BACK:
            return
        if sight.server:
            cause = f"server {sight.server} has it"
            if state is S.IN_USE and self.gpu.cause != cause:  # it changed hands between two looks
                self._become(S.RETURNED, "its server is gone")
            if self.gpu.state is not S.IN_USE:
                self._become(S.IN_USE, cause)
        elif state is S.IN_USE:
            self._become(S.RETURNED, "its server is gone")
        elif state is S.FINE and self._place.once and sight.reserved and self._looked_since():
            self._become(S.RETURNED, "Nova keeps it reserved after a use")
        if self.gpu.state is S.RETURNED and not sight.server and not self._place.once and self._heard_since():
            self._become(S.FINE, "its host has looked since, and nothing is known against it")

    # What was seen

    def _note(self, seen: Observation, text: str = "") -> None:
        """A line in its record, unless there is one like it."""
        self._settles.append(seen.id)
        last = self._around.noted.get((self.gpu.name, seen.code))
        if last is not None and self._around.now - last < QUIET:
            return
        source = SIGNALS[seen.code].source
        if any(one.signal == seen.code and one.source is source for one in self._events):
            return
        gpu, cause = self.gpu, text or SIGNALS[seen.code].threshold
        self._events.append(
            HealthEvent(
                gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state, cause, seen.code,
                seen.evidence, seen.by, source,
            )
        )  # fmt: skip

    def _at_work(self, seen: Observation) -> bool:
        """Whether it is a matter of its host's maintenance: cards come and go then."""
        work = self._around.works.get(self._place.host)
        return work is not None and SIGNALS[seen.code].source in (Source.HOST, Source.NOVA) and work.covers(seen)

    def _while_worked_on(self, seen: Observation) -> None:
        """It is written down, and nothing follows. That the host has changed is looked at when the work is done."""
        signal, work = SIGNALS[seen.code], self._around.works[self._place.host]
        if signal.judgement is not Judgement.STALE:
            self._note(seen, f"{signal.threshold}; its host is in maintenance")
        elif work.done is not None:
            self._stale(seen)

    def _suspect(self, seen: Observation) -> None:
        gpu, now = self.gpu, self._around.now
        if gpu.state is S.SUSPECT:
            if now - gpu.since >= LONGEST_WAIT:
                self._bad(seen, "it was seen for a day, and did not pass")
                return
            self._note(seen)
            until = now + wait(self._rules, max(0, gpu.relapses - 1))
            self.gpu = replace(gpu, until=max(until, gpu.until or until))
            return
        if gpu.state in KEPT_BACK:
            self._note(seen)
            return
        times = self._around.suspected.get(gpu.name, 0) + 1
        if times >= self._rules.relapses:
            self._bad(seen, f"suspect for the {_nth(times)} time within a week: {SIGNALS[seen.code].threshold}")
        elif self._may_keep_back(seen):
            self._become(S.SUSPECT, SIGNALS[seen.code].threshold, seen)
            self.gpu = replace(self.gpu, until=now + wait(self._rules, times - 1), relapses=times)

    def _bad(self, seen: Observation, cause: str) -> None:
        if self.gpu.state in (S.QUARANTINED, S.IN_REPAIR):
            self._note(seen)
        elif self._may_keep_back(seen):
            self._become(S.QUARANTINED, cause, seen)
            self.gpu = replace(self.gpu, until=None)

    def _stale(self, seen: Observation) -> None:
        """What is in use, out of use, or waits for a scrub, becomes to be accepted when that is over: it stays open
        until then."""
        if not is_required(seen.code, self._rules) or self.gpu.state is S.TO_ACCEPT:
            self._note(seen)
            return
        if self.gpu.state in KEPT_BACK:
            return
        held = self._sight is None or bool(self._sight.server) or (self._place.once and self._sight.reserved)
        if (self.gpu.state, S.TO_ACCEPT) not in TRANSITIONS or held:
            return
        work = self._around.works.get(self._place.host)
        if work is not None:  # no bad rule: somebody has changed the host, and keeps its GPUs back
            self._become(S.TO_ACCEPT, SIGNALS[seen.code].threshold, seen, work.by)
        elif self._may_keep_back(seen):
            self._become(S.TO_ACCEPT, SIGNALS[seen.code].threshold, seen)

    def _may_keep_back(self, seen: Observation) -> bool:
        """Else a person is asked, and the observation stays open; one that said no to this very signal is not asked
        again as long as the GPU is in its state."""
        if self._pools.room_for(self.gpu.name):
            return True
        if self.gpu.by and self.gpu.signal == seen.code:
            self._note(seen)
        elif not self.gpu.asked:
            signal = SIGNALS[seen.code]
            text = (
                f"{signal.threshold}: it should be kept back, and too much of pool {self._place.pool} is so already; "
                "somebody must say what is to be done"
            )
            gpu = self.gpu = replace(self.gpu, asked=True)
            self._events.append(
                HealthEvent(
                    gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state, text, seen.code,
                    seen.evidence, seen.by, signal.source,
                )
            )  # fmt: skip
        return False

    # What time does

    def _time(self) -> None:
        gpu, now = self.gpu, self._around.now
        if gpu.state is not S.SUSPECT or gpu.until is None or now < gpu.until:
            return
        signal = SIGNALS.get(gpu.signal)
        if signal is not None and signal.source is Source.HOST and not self._heard_since():
            return  # nothing was seen because nobody has looked
        sight = self._sight
        if sight is None:
            return
        to = S.FINE
        if self._place.once and sight.reserved and not sight.server:
            to = S.RETURNED
        self._become(to, "nothing more was seen for as long as it was to wait")

    # How

    def _looked_since(self) -> bool:
        """Whether the cloud was looked at since it came to its state: what was released a moment ago was still reserved
        before. Records have whole seconds."""
        looked = self._around.looked
        return looked is None or looked >= self.gpu.since + timedelta(seconds=1)

    def _heard_since(self) -> bool:
        """Whether its host has looked since it came to its state, and lately."""
        heard = self._around.heard.get(self._place.host)
        return heard is not None and heard > self.gpu.since and abs(self._around.now - heard) <= self._rules.silence

    def _required(self, what: str) -> bool:
        return is_required(what, self._rules)

    def _become(self, to: HealthState, cause: str, seen: Observation | None = None, by: str = "") -> None:
        self.gpu, event = become(
            replace(self.gpu, asked=False, generation=None, order="", until=None), to, self._around.now, cause,
            signal=seen.code if seen else "", evidence=seen.evidence if seen else "", by=by,
            source=SIGNALS[seen.code].source if seen else None,
        )  # fmt: skip
        if seen is not None:
            self._settles.append(seen.id)
            if seen.by:
                event = replace(event, evidence=f"{seen.by}: {event.evidence}")
        self._events.append(event)
        self._pools.follow(self.gpu)


_ORDER = {Judgement.BAD: 0, Judgement.SUSPECT: 1, Judgement.STALE: 2, Judgement.NOTE: 3}


def _worst_first(gpu: GpuHealth | None, seen: Collection[Observation]) -> tuple[int, int, str]:
    """In which order GPUs are worked on, where there is not room to keep all of them back."""
    worst = min((_ORDER[SIGNALS[one.code].judgement] for one in seen), default=len(_ORDER))
    return worst, min((one.id for one in seen), default=0), gpu.name if gpu else ""


def _left(gpu: GpuHealth, now: datetime) -> HealthChange:
    event = HealthEvent(gpu.host, gpu.address, gpu.card, now, gpu.state, gpu.state, "it has left the site file")
    return HealthChange(gpu, (event,), gone=True)


def _nth(number: int) -> str:
    return {1: "first", 2: "second", 3: "third"}.get(number, f"{number}th")
