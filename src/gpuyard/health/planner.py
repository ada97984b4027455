"""Plans the next health state of each GPU, from observations, from the server that has it, and from elapsed time. Pure.

GPUs are planned one after the other, those with the worst signals of hosts and Nova first, because the share of a pool
that may be kept back is limited and they must not find it used up. For each GPU, the server that has it is followed
first, then its observations are applied, the worst first, then suspicions that have lasted long enough end. A signal
notes, makes suspect, quarantines, or asks for acceptance, as `verdicts.py` says; where the limit is reached the GPU
stays as it is, and a person is asked.

Missing information decides nothing: a cloud that could not be looked at moves no GPU, and a silent host makes none
suspect, and none fine either.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuyard.health.baseline import facts_words
from gpuyard.health.guests import ALARM_LEFT
from gpuyard.health.life import TRANSITIONS, become
from gpuyard.health.limits import PoolLimits, SitePlace, is_infrastructure
from gpuyard.health.maintenance import HostWork
from gpuyard.health.records import KEPT_BACK, GpuHealth, HealthEvent, HealthState, Observation, Trial
from gpuyard.health.verdicts import SignalVerdict, SignalVerdicts
from gpuyard.model.backoff import backoff
from gpuyard.model.signals import SIGNALS, Judgement, Source
from gpuyard.model.text import ordinal
from gpuyard.site.health_rules import SiteHealth

LONGEST_WAIT = timedelta(days=1)
"""Of a suspect. One that was seen again and again for as long is quarantined."""
LATELY = timedelta(days=7)
"""Relapses are counted over so long."""
QUIET = timedelta(hours=1)
"""The time in which a signal that is only noted is noted once, for each GPU and signal."""
CHANGED = "changed"
"""The signal that another card is in the slot."""
STALE_MEANS = {CHANGED: "new"}
"""Signals of what is stale -> what the site calls it under `required`, where that is another word."""

SERVER, MIGRATION = "server ", "migration "
UNSCRUBBED = "unscrubbed"


@dataclass(frozen=True)
class GpuObservation:
    """The use of a GPU, as Nova and Placement show it."""

    server: str = ""
    """Id of the server, or other consumer, that has it."""
    reserved: bool = False
    """In Placement, by somebody else than the ledger."""
    is_moved: bool = False
    """Nova has given it from a server to the migration that resizes or moves it, which holds it until that is over."""


@dataclass(frozen=True)
class Circumstances:
    """The inputs of a plan besides the GPUs' own records."""

    now: datetime
    gpu_observations: Mapping[str, GpuObservation] = field(default_factory=dict)
    """By name; of a GPU that is not here nothing is known."""
    looked: datetime | None = None
    """When the cloud was read for that; None: now."""
    heard: Mapping[str, datetime] = field(default_factory=dict)
    """Host -> when it was last heard of."""
    suspected: Mapping[str, int] = field(default_factory=dict)
    """GPU -> how often it became suspect LATELY."""
    noted: Mapping[tuple[str, str], datetime] = field(default_factory=dict)
    """(GPU, signal) -> when it was last noted."""
    works: Mapping[str, HostWork] = field(default_factory=dict)
    """By host: somebody works on it, or its work is being checked."""
    lent: Collection[str] = ()
    """GPUs that are lent: servers of whoever has the loan come and go on them."""
    left: Mapping[str, HealthState] = field(default_factory=dict)
    """GPU that has no record now -> what it was when it left the site file."""


@dataclass(frozen=True)
class HealthChange:
    """A changed GPU, to be written in one transaction with what belongs to it."""

    gpu: GpuHealth
    events: tuple[HealthEvent, ...] = ()
    settles: tuple[int, ...] = ()
    """Ids of observations that are closed by it."""
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
    """Return the changes to write next. Once they are written a new plan is empty until something is observed, or time
    passes."""
    records_by_name = {record.name: record for record in records}
    observations_by_gpu: dict[str, list[Observation]] = {}
    for observation in observations:
        if observation.code in SIGNALS:
            observations_by_gpu.setdefault(observation.gpu, []).append(observation)
    names = {place.name for place in places}
    verdicts = SignalVerdicts(rules)
    pools = PoolLimits(places, records_by_name.values(), rules, verdicts)
    changes: list[HealthChange] = []
    undecided: list[str] = []
    for place in sorted(
        places, key=lambda candidate: _worst_first(candidate, observations_by_gpu.get(candidate.name, ()), verdicts)
    ):
        work = _Work(place, records_by_name.get(place.name), rules, around, pools, verdicts)
        work.observed(observations_by_gpu.get(place.name, ()))
        change = work.result()
        changes += [change] if change else []
        undecided += [place.name] if work.gpu.asked else []
    changes += [_left(record, around.now) for name, record in sorted(records_by_name.items()) if name not in names]
    strangers = tuple(
        observation.id
        for observation in observations
        if observation.gpu not in names or observation.code not in SIGNALS
    )
    return HealthPlan(tuple(changes), strangers, tuple(sorted(undecided)))


def kept_back(records: Iterable[GpuHealth]) -> dict[tuple[str, str], str]:
    """Return (host, address) of GPUs that nobody is to get, each with why, in words for everybody."""
    return {(record.host, record.address): words(record) for record in records if record.state in KEPT_BACK}


def words(gpu: GpuHealth) -> str:
    """Describe the state for everybody: ``quarantined: its config space reads 0xff (no-answer)``."""
    if gpu.by and not gpu.signal:  # an operator's own words are for operators
        return f"{gpu.state.value}: an operator has decided so"
    signal = f" ({gpu.signal})" if gpu.signal else ""
    return f"{gpu.state.value}: {gpu.cause}{signal}"


def is_required(what: str, rules: SiteHealth) -> bool:
    """Return whether a GPU is to be accepted after this: a signal of what is stale, ``new`` or ``repair``."""
    return rules.acceptance is not None and STALE_MEANS.get(what, what) in rules.acceptance.required


def wait(rules: SiteHealth, relapses: int) -> timedelta:
    """Return how long a GPU stays suspect that was so `relapses` times before, lately."""
    return backoff(rules.suspect, relapses + 1, LONGEST_WAIT)


class _Work:
    """One GPU: what is known of it, and what becomes of that, step by step."""

    def __init__(
        self, place: SitePlace, record: GpuHealth | None, rules: SiteHealth, around: Circumstances, pools: PoolLimits,
        verdicts: SignalVerdicts,
    ) -> None:  # fmt: skip
        self._verdicts = verdicts
        self._place, self._known, self._rules, self._around, self._pools = place, record, rules, around, pools
        self._events: list[HealthEvent] = []
        self._settles: list[int] = []
        self._waits = False
        """Time alone ends no suspicion now."""
        self._gpu_observation = around.gpu_observations.get(place.name)
        self.gpu = record or self._first_seen()
        if self.gpu.pool != place.pool:
            self.gpu = replace(self.gpu, pool=place.pool)
        if self.gpu.since > around.now:  # the clock has gone back since
            until = self.gpu.until and min(self.gpu.until, around.now + LONGEST_WAIT)
            self.gpu = replace(self.gpu, since=around.now, until=until)

    def result(self) -> HealthChange | None:
        """Return the change; None when nothing is to be written."""
        if self.gpu == self._known and not self._events and not self._settles:
            return None
        return HealthChange(self.gpu, tuple(self._events), tuple(self._settles))

    def observed(self, observations: Sequence[Observation]) -> None:
        """Apply the server that has it, the observations, and elapsed time, in that order."""
        self._follow_server()
        for observation in sorted(
            observations, key=lambda candidate: _by_weight(candidate, self._verdict(candidate.code))
        ):
            if observation.code == CHANGED:
                self._end_baseline(observation)
            verdict = self._verdict(observation.code)
            match verdict.judgement:
                case None:
                    self._settles.append(observation.id)
                case _ if self._at_work(observation):
                    self._while_worked_on(observation)
                case Judgement.SUSPECT | Judgement.BAD | Judgement.STALE if verdict.trial:
                    self._try_out(observation, verdict)
                case Judgement.NOTE:
                    self._note(observation)
                case Judgement.STALE:
                    self._stale(observation)
                case Judgement.SUSPECT:
                    self._suspect(observation)
                case Judgement.BAD if observation.code == ALARM_LEFT:
                    self._alarm_left(observation, verdict.cause)
                case Judgement.BAD:
                    self._bad(observation, verdict.cause)
        self._time()
        self._follow_server()

    def _verdict(self, code: str) -> SignalVerdict:
        return self._verdicts.of(code, self._place.name, self._place.pool)

    def _end_baseline(self, observation: Observation) -> None:
        """It was another card's, unless it was taken since."""
        gpu = self.gpu
        if gpu.baseline is not None and gpu.baseline.taken < observation.seen:
            self.gpu = replace(gpu, shown={}, baseline=None)
            text = f"its baseline has ended, {facts_words(gpu.baseline.facts)}: another card is there"
            self._events.append(
                HealthEvent(gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state, text)
            )

    # Who has it

    def _first_seen(self) -> GpuHealth:
        place, now = self._place, self._around.now
        former_state = self._around.left.get(place.name)
        if former_state in KEPT_BACK:  # whoever looked after it is not known any more
            state, cause = (
                HealthState.QUARANTINED if former_state is HealthState.IN_REPAIR else former_state,
                f"it was {former_state.value} when it left the site file",
            )
        elif self._required("new"):
            state, cause = HealthState.TO_ACCEPT, "it is new"
        else:
            state, cause = HealthState.FINE, "nothing is known against it"
        until = now + wait(self._rules, 0) if state is HealthState.SUSPECT else None
        gpu = GpuHealth(place.host, place.address, place.pool, state, now, cause, until=until)
        event = HealthEvent(gpu.host, gpu.address, gpu.card, now, gpu.state, gpu.state, f"first seen: {gpu.cause}")
        self._events.append(event)
        return gpu

    def _follow_server(self) -> None:
        observed, state = self._gpu_observation, self.gpu.state
        if observed is not None and state is HealthState.TO_ACCEPT and self._needs_scrub(observed):
            self._become(
                HealthState.RETURNED, "Nova keeps it reserved after a use: it is scrubbed before it is accepted"
            )
            return
        if observed is None or state in KEPT_BACK:
            return
        if observed.server:
            cause = f"{MIGRATION if observed.is_moved else SERVER}{observed.server} has it"
            self._given_on(observed)
            if state is HealthState.IN_USE and self.gpu.cause != cause:  # it changed hands between two looks
                self._become(HealthState.RETURNED, "its server is gone")
            if self.gpu.state is not HealthState.IN_USE:
                self._become(HealthState.IN_USE, cause)
        elif state is HealthState.IN_USE:
            self._become(HealthState.RETURNED, "its server is gone")
        elif state is HealthState.FINE and self._place.once and observed.reserved and self._looked_since():
            self._become(HealthState.RETURNED, "Nova keeps it reserved after a use")
        if (
            self.gpu.state is HealthState.RETURNED
            and not observed.server
            and not self._place.once
            and self._heard_since(self.gpu.since)
        ):
            self._become(HealthState.FINE, "its host has looked since, and nothing is known against it")

    def _given_on(self, observed: GpuObservation) -> None:
        """Note that a server got the GPU as another one left it. It is too late to keep it back: the server has it."""
        gpu = self.gpu
        was_used = gpu.state in (HealthState.RETURNED, HealthState.SCRUBBING) or (
            gpu.state is HealthState.IN_USE
            and gpu.cause.startswith(SERVER)
            and gpu.cause != f"{SERVER}{observed.server} has it"
        )
        verdict = self._verdict(UNSCRUBBED)
        if not self._place.once or observed.is_moved or not was_used or verdict.judgement is None:
            return
        self._events.append(
            HealthEvent(
                gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state,
                verdict.cause, UNSCRUBBED, f"server {observed.server}; before: {gpu.cause}",
                source=Source.NOVA,
            )
        )  # fmt: skip

    def _needs_scrub(self, observed: GpuObservation) -> bool:
        """Return whether a GPU that is to be accepted is as its last tenant left it. One with a generation came back
        clean, and is about to become a hold of the ledger's."""
        return (
            self._place.once
            and observed.reserved
            and not observed.server
            and self.gpu.generation is None
            and self.gpu.name not in self._around.lent
            and self._looked_since()
        )

    # What was seen

    def _note(self, observation: Observation, text: str = "") -> None:
        """A line in its record, unless there is one like it."""
        self._settles.append(observation.id)
        last = self._around.noted.get((self.gpu.name, observation.code))
        if last is not None and self._around.now - last < QUIET:
            return
        source = SIGNALS[observation.code].source
        if any(event.signal == observation.code and event.source is source for event in self._events):
            return
        gpu, cause = self.gpu, text or self._verdict(observation.code).cause
        self._events.append(
            HealthEvent(
                gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state, cause, observation.code,
                observation.evidence, observation.by, source,
            )
        )  # fmt: skip

    def _at_work(self, observation: Observation) -> bool:
        """Return whether it is a matter of its host's maintenance: cards come and go then."""
        work = self._around.works.get(self._place.host)
        return (
            work is not None
            and SIGNALS[observation.code].source in (Source.HOST, Source.NOVA)
            and work.covers(observation)
        )

    def _while_worked_on(self, observation: Observation) -> None:
        """It is written down, and nothing follows. That the host has changed is looked at when the work is done."""
        verdict, work = self._verdict(observation.code), self._around.works[self._place.host]
        if verdict.in_force is not Judgement.STALE:
            self._note(observation, f"{verdict.cause}; its host is in maintenance")
        elif work.done is not None:
            self._stale(observation)

    def _suspect(self, observation: Observation) -> None:
        gpu, now = self.gpu, self._around.now
        if gpu.state is HealthState.SUSPECT:
            if now - gpu.since >= LONGEST_WAIT:
                self._bad(observation, "it was seen for a day, and did not pass")
                return
            self._note(observation)
            until = now + wait(self._rules, max(0, gpu.relapses - 1))
            self.gpu = replace(gpu, until=max(until, gpu.until or until))
            return
        if gpu.state in KEPT_BACK:
            self._note(observation)
            return
        times = self._around.suspected.get(gpu.name, 0) + 1
        if times >= self._rules.relapses:
            self._bad(
                observation,
                f"suspect for the {ordinal(times)} time within a week: {self._verdict(observation.code).cause}",
            )
        elif self._may_keep_back(observation):
            self._become(HealthState.SUSPECT, self._verdict(observation.code).cause, observation)
            self.gpu = replace(self.gpu, until=now + wait(self._rules, times - 1), relapses=times)

    def _bad(self, observation: Observation, cause: str) -> None:
        if self.gpu.state in (HealthState.QUARANTINED, HealthState.IN_REPAIR):
            self._note(observation)
        elif self._may_keep_back(observation):
            self._become(HealthState.QUARANTINED, cause, observation)
            self.gpu = replace(self.gpu, until=None)

    def _alarm_left(self, observation: Observation, cause: str) -> None:
        """What a guest said to be wrong with a GPU that its server has no more: time alone does not mend that. It is
        accepted where the site has acceptance, scrubbed where Nova keeps it reserved, else quarantined. While nobody
        knows who gets it, it waits."""
        observed = self._gpu_observation
        if observed is None or observed.is_moved:
            self._waits = True
        elif observed.server == observation.by:
            self._note(observation, f"{cause}, and has it again")
        elif self._rules.acceptance is not None and self.gpu.state is HealthState.SUSPECT and not observed.server:
            if self._may_keep_back(observation):
                self._become(HealthState.TO_ACCEPT, cause, observation)
        elif self.gpu.state is HealthState.TO_ACCEPT:
            self._note(observation)
        elif self._place.once and observed.reserved and not observed.server:
            self._note(observation, f"{cause}: its scrub says whether it is well")
        else:
            self._bad(observation, cause)

    def _stale(self, observation: Observation) -> None:
        """What is in use, out of use, or waits for a scrub, becomes to be accepted when that is over: it stays open
        until then."""
        if not is_required(observation.code, self._rules) or self.gpu.state is HealthState.TO_ACCEPT:
            self._note(observation)
            return
        if self.gpu.state in KEPT_BACK:
            return
        if not self._can_be_accepted():
            return
        work = self._around.works.get(self._place.host)
        if work is not None:  # no bad rule: somebody has changed the host, and keeps its GPUs back
            self._become(HealthState.TO_ACCEPT, self._verdict(observation.code).cause, observation, work.by)
        elif self._may_keep_back(observation):
            self._become(HealthState.TO_ACCEPT, self._verdict(observation.code).cause, observation)

    def _can_be_accepted(self) -> bool:
        """Return whether no server has it, nor Nova keeps it reserved after one."""
        held = (
            self._gpu_observation is None
            or bool(self._gpu_observation.server)
            or (self._place.once and self._gpu_observation.reserved)
        )
        return (self.gpu.state, HealthState.TO_ACCEPT) in TRANSITIONS and not held

    def _try_out(self, observation: Observation, verdict: SignalVerdict) -> None:
        """Write down what a signal on trial would have made of it. The limit of its pool is not asked about: how many
        would be kept back is what a trial is to show."""
        self._settles.append(observation.id)
        now, old = self._around.now, self.gpu.trial
        new = after_trial(old, observation.code, verdict, self._rules, now, waits=self._can_be_accepted())
        if new is None or new == old:
            return
        self.gpu = replace(self.gpu, trial=new)
        if old is None or new.state is not old.state:
            self._tell_of_trial(f"trial: it would be {new.state.value}: {new.cause}", observation)

    def _tell_of_trial(self, text: str, observation: Observation | None = None) -> None:
        gpu = self.gpu
        self._events.append(
            HealthEvent(
                gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state, text,
                observation.code if observation else "", observation.evidence if observation else "",
                observation.by if observation else "",
                SIGNALS[observation.code].source if observation else None,
            )
        )  # fmt: skip

    def _time_of_trial(self) -> None:
        """It passes when nothing more is seen, and ends with the trial of its signal."""
        trial, now = self.gpu.trial, self._around.now
        if trial is None:
            return
        if trial.signal not in SIGNALS or not self._verdict(trial.signal).trial:
            self.gpu = replace(self.gpu, trial=None)
        elif trial.state is HealthState.FINE:
            if all(now - at >= LATELY for at in trial.suspicions):
                self.gpu = replace(self.gpu, trial=None)
        elif now >= trial.until and (not self._is_watched(trial.signal) or self._heard_since(trial.since)):
            self.gpu = replace(self.gpu, trial=replace(trial, state=HealthState.FINE, since=now))
            self._tell_of_trial(
                f"trial: it would be fine again, and was {trial.state.value} since {trial.since:%Y-%m-%d %H:%M} UTC"
            )

    def _may_keep_back(self, observation: Observation) -> bool:
        """Else a person is asked, and the observation stays open; one that said no to this very signal is not asked
        again as long as the GPU is in its state."""
        if self._pools.room_for(self.gpu.name, observation.code):
            return True
        if self.gpu.by and self.gpu.signal == observation.code:
            self._note(observation)
        elif not self.gpu.asked:
            signal, verdict = SIGNALS[observation.code], self._verdict(observation.code)
            text = (
                f"{verdict.cause}: it should be kept back, and too much of pool {self._place.pool} is so already; "
                "somebody must say what is to be done"
            )
            gpu = self.gpu = replace(self.gpu, asked=True)
            self._events.append(
                HealthEvent(
                    gpu.host, gpu.address, gpu.card, self._around.now, gpu.state, gpu.state, text, observation.code,
                    observation.evidence, observation.by, signal.source,
                )
            )  # fmt: skip
        return False

    # What time does

    def _time(self) -> None:
        self._time_of_trial()
        gpu, now = self.gpu, self._around.now
        if gpu.state is not HealthState.SUSPECT or gpu.until is None or now < gpu.until or self._waits:
            return
        if self._is_watched(gpu.signal) and not self._heard_since(gpu.since):
            return  # nothing was seen because nobody has looked
        observed = self._gpu_observation
        if observed is None:
            return
        to = HealthState.FINE
        if self._place.once and observed.reserved and not observed.server:
            to = HealthState.RETURNED
        self._become(to, "nothing more was seen for as long as it was to wait")

    # How

    def _looked_since(self) -> bool:
        """Return whether the cloud was looked at since it came to its state: what was released a moment ago was still
        reserved before. Records have whole seconds."""
        looked = self._around.looked
        return looked is None or looked >= self.gpu.since + timedelta(seconds=1)

    def _is_watched(self, code: str) -> bool:
        """Return whether its host sees that what was seen is over."""
        source = SIGNALS[code].source if code in SIGNALS else None
        return source is Source.HOST or (source is Source.GUEST and self._place.host in self._around.heard)

    def _heard_since(self, since: datetime) -> bool:
        """Return whether its host has looked since then, and lately."""
        heard = self._around.heard.get(self._place.host)
        return heard is not None and heard > since and abs(self._around.now - heard) <= self._rules.silence

    def _required(self, what: str) -> bool:
        return is_required(what, self._rules)

    def _become(self, to: HealthState, cause: str, observation: Observation | None = None, by: str = "") -> None:
        self.gpu, event = become(
            replace(self.gpu, asked=False, generation=None, order="", until=None), to, self._around.now, cause,
            signal=observation.code if observation else "", evidence=observation.evidence if observation else "", by=by,
            source=SIGNALS[observation.code].source if observation else None,
        )  # fmt: skip
        if observation is not None:
            self._settles.append(observation.id)
            if observation.by:
                event = replace(event, evidence=f"{observation.by}: {event.evidence}")
        self._events.append(event)
        self._pools.follow(self.gpu)


_ORDER = {Judgement.BAD: 0, Judgement.SUSPECT: 1, Judgement.STALE: 2, Judgement.NOTE: 3}


def after_trial(
    old: Trial | None, code: str, verdict: SignalVerdict, rules: SiteHealth, now: datetime, *, waits: bool
) -> Trial | None:
    """Return what a signal on trial would have made of a GPU of which trials had made `old`. `waits`: whether it could
    become to be accepted now. None: nothing."""
    suspicions = tuple(at for at in (old.suspicions if old else ()) if now - at < LATELY)
    state = old.state if old is not None else HealthState.FINE
    judgement = verdict.judgement
    if judgement is None or judgement not in _ON_TRIAL:
        return old
    if judgement is Judgement.STALE and not (waits and is_required(code, rules)) and state is HealthState.FINE:
        return old
    to, cause = _ON_TRIAL[judgement], verdict.cause
    if to is HealthState.SUSPECT and state is HealthState.FINE:
        suspicions = (*suspicions, now)
        if len(suspicions) >= rules.relapses:
            to = HealthState.QUARANTINED
            cause = f"suspect for the {ordinal(len(suspicions))} time within a week: {cause}"
    elif to is state is HealthState.SUSPECT and old is not None and now - old.since >= LONGEST_WAIT:
        to, cause = HealthState.QUARANTINED, f"it was seen for a day, and did not pass: {cause}"
    lasts = wait(rules, max(0, len(suspicions) - 1)) if to is HealthState.SUSPECT else LONGEST_WAIT
    if old is None or _TRIAL_ORDER[to] > _TRIAL_ORDER[state]:
        return Trial(to, code, cause, now, now + lasts, suspicions)
    # It need not be written at each look.
    if state is not HealthState.SUSPECT and old.until - now > LONGEST_WAIT - QUIET:
        return old
    return replace(old, until=max(old.until, now + (lasts if state is HealthState.SUSPECT else LONGEST_WAIT)))


_ON_TRIAL = {
    Judgement.SUSPECT: HealthState.SUSPECT,
    Judgement.BAD: HealthState.QUARANTINED,
    Judgement.STALE: HealthState.TO_ACCEPT,
}
_TRIAL_ORDER = {HealthState.FINE: 0, HealthState.SUSPECT: 1, HealthState.TO_ACCEPT: 2, HealthState.QUARANTINED: 3}


def _by_weight(observation: Observation, verdict: SignalVerdict) -> tuple[bool, int, int]:
    """The worst first: what is quarantined need not be suspect before. Infrastructure before all, since there may be no
    room left for what guests say."""
    return not is_infrastructure(observation.code), _order(verdict), observation.id


def _order(verdict: SignalVerdict) -> int:
    return _ORDER[verdict.in_force] if verdict.in_force else len(_ORDER)


def _worst_first(
    place: SitePlace, observations: Collection[Observation], verdicts: SignalVerdicts
) -> tuple[bool, int, int, str]:
    """In which order GPUs are worked on, where there is not room to keep all of them back. What infrastructure says
    comes first: a slot that is out for that is so for what guests say, too."""
    guests = not any(is_infrastructure(observation.code) for observation in observations)
    worst = min(
        (_order(verdicts.of(observation.code, place.name, place.pool)) for observation in observations),
        default=len(_ORDER),
    )
    return guests, worst, min((observation.id for observation in observations), default=0), place.name


def _left(gpu: GpuHealth, now: datetime) -> HealthChange:
    event = HealthEvent(gpu.host, gpu.address, gpu.card, now, gpu.state, gpu.state, "it has left the site file")
    return HealthChange(gpu, (event,), gone=True)
