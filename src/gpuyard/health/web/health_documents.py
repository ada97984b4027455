"""The JSON of /v1/health: documents about the health of GPUs that programs and pages get and send.

Everybody sees the state of every GPU. Evidence, words and deciders name servers and people, and are for admins, and the
report of a server about its own GPU for those whose it is; the site's choice about others (web/visibility.py) holds for
names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from gpuyard.bookings.web.booking_documents import BookingRow
from gpuyard.health.baseline import Baseline, facts_words
from gpuyard.health.controllers.health_service import GpuView
from gpuyard.health.records import GpuHealth, HealthEvent, HealthState, Observation, Trial
from gpuyard.health.repeats import Repeat
from gpuyard.health.verdicts import BUILT_IN, SignalVerdicts
from gpuyard.model.moments import minute_text
from gpuyard.model.signals import SIGNALS, Source
from gpuyard.web.documents import Link, Moment, Sent, one_line
from gpuyard.web.visibility import SOMEBODY

MOST_WORDS = 500
"""Characters of what somebody reports or notes."""
_OF_PEOPLE = frozenset({Source.GUEST, Source.PERSON, Source.JOB, Source.NOVA})
"""Sources whose evidence can name servers and people."""


def _says_something(text: str) -> str:
    if not text:
        raise ValueError("is empty; say it in words")
    return text


AcceptanceOutput = Annotated[str, StringConstraints(max_length=MOST_WORDS), AfterValidator(one_line)]
BookingArguments = Annotated[AcceptanceOutput, AfterValidator(_says_something)]


class FaultReport(Sent):
    """What somebody found wrong with a GPU."""

    words: BookingArguments = Field(examples=["nvidia-smi says 'GPU is lost' since this morning"])


class RepairComment(Sent):
    """What is done and why."""

    comment: BookingArguments


class RepairStart(Sent):
    """Begin to look after a GPU."""

    comment: AcceptanceOutput = ""


class RepairLoan(Sent):
    """Lend a GPU that is out of use to the project for repairs."""

    minutes: int = Field(120, ge=1, le=60 * 24 * 14, strict=True, description="For how long.")
    comment: AcceptanceOutput = ""


class HealthRow(BaseModel):
    """How one GPU is."""

    host: str
    address: str = Field(description="PCI address.")
    pool: str
    state: HealthState
    since: Moment
    cause: str = Field(description="Why it is in this state; empty when the state says it all.")
    signal: str = Field(description="What was seen that brought it here, by its code; empty: nothing was.")
    advice: str = Field(description="What an operator does about that.")
    by: str = Field(description="Who decided; empty: gpuyard.")
    card: str = Field(description="Serial number or UUID of the card in it; empty: not known.")
    heard: Moment | None = Field(description="When its host last said how it is; null: never.")
    silent: bool = Field(description="Its host has not been heard from for longer than the site allows.")
    maintenance: str = Field(description="That of its host, while it is on; empty: none.")
    until: Moment | None = Field(description="Of one that is suspect: when it is fine again if nothing more is seen.")
    asked: bool = Field(description="It should be kept back, and too much of its pool is already: decide.")
    question: str = Field(description="What was seen then, and what there is to decide; empty: nothing.")
    lent: str = Field(description="To which project it is lent, and until when; empty: to none.")
    keeper: str = Field(description="Who looks after it, while it is in repair.")
    accepted: Moment | None = Field(description="When it was accepted last; null: never.")
    acceptance: str = Field(
        description="Where its acceptance by a server stands, or what came of the last; for admins."
    )
    scrubbed: bool = Field(
        description="Its host resets it between two servers, and it is released when it came back clean; false: it is "
        "given on as it was left, and nothing guarantees that it was reset."
    )
    baseline: str = Field(
        description="What it was accepted with, of what does not change by itself; signals are judged against it. "
        "Empty: nothing, it is judged by what card and slot can."
    )
    shown: str = Field(description="What its host has seen of that last; empty: nothing.")
    bad: int = Field(description="How often it was quarantined, as far back as its record goes.")
    overruled: list[str] = Field(
        description="Signals that are overruled for it, each with the line of the site file that does so; for admins."
    )
    trial: str = Field(
        description="What signals on trial would have made of it, and nothing followed; empty: nothing. For admins."
    )
    trial_state: HealthState | None = Field(
        description="The state that it would be in then; null: as it is. For admins."
    )
    may: list[str] = Field(
        description="What you may do about it now: report, quarantine, start, note, lend, return, done, abandon, "
        "clear-baseline, release."
    )


class HealthList(BaseModel):
    gpus: list[HealthRow] = Field(description="By host and address.")


class HealthEventRow(BaseModel):
    """One line of a GPU's record."""

    time: Moment
    before: HealthState
    after: HealthState = Field(description="The same as before for a note.")
    cause: str
    signal: str
    source: Source | None = Field(description="Who saw it; null: nobody, it was decided.")
    evidence: str = Field(description="For admins, and for those whose server said it.")
    by: str
    card: str = Field(description="That was in it then; empty: not known.")


class LentGpu(BaseModel):
    """A GPU that is lent for its repair."""

    gpu: HealthRow
    loan: BookingRow = Field(description="Members of its project start servers there with `command`.")


class GpuRecord(BaseModel):
    """One GPU and its record."""

    gpu: HealthRow
    events: list[HealthEventRow] = Field(description="The newest first.")
    links: list[Link] = Field(description="The next page, when there is one.")


class RepairRow(BaseModel):
    """One GPU that is out of use."""

    gpu: HealthRow
    tried: list[HealthEventRow] = Field(description="What was noted and decided since it went bad, the newest first.")


class RepeatRow(BaseModel):
    """What went bad, and how often."""

    name: str = Field(description="Serial number or UUID, host, or host/address of the first GPU of a slot.")
    failures: int
    latest: Moment
    mtbf_hours: float | None = Field(description="Hours from one failure to the next, on average; null until two.")
    signals: list[str] = Field(description="The most frequent first.")
    gpus: list[str] = Field(description="host/address of where it went bad.")


class RepairList(BaseModel):
    out: list[RepairRow] = Field(description="GPUs that are kept back or should be; who waits longest is first.")
    repeats: list[RepeatRow] = Field(description="Who went bad most often is first.")


@dataclass(frozen=True)
class Viewer:
    """The rights of the person who looks."""

    admin: bool
    names: bool
    """Sees the names of others."""
    servers: Collection[str] = ()
    """Ids of servers that are theirs, or of a project of theirs."""
    user: str = ""
    verdicts: SignalVerdicts = BUILT_IN
    """The verdicts on signals in this site."""


def health_row(
    view: GpuView, bad: int, eyes: Viewer, may: Iterable[str], lent: str = "", *, scrubbed: bool, acceptance: str = ""
) -> HealthRow:
    gpu, question = view.health, view.question
    code = question.code if question else gpu.signal
    signal = SIGNALS.get(code)
    own = eyes.verdicts.of(gpu.signal, gpu.name, gpu.pool) if gpu.signal in SIGNALS else None
    trial = gpu.trial if eyes.admin and gpu.trial is not None and gpu.trial.state is not HealthState.FINE else None
    return HealthRow(
        host=gpu.host,
        address=gpu.address,
        pool=gpu.pool,
        state=gpu.state,
        since=gpu.since,
        cause=_cause(
            _for_all(gpu.cause, gpu.state, eyes),
            own.signal.source if own else None,
            own.words if own else "",
            gpu.by,
            eyes,
        ),
        signal=code,
        advice=signal.action if signal and eyes.admin else "",
        by=_name(gpu.by, eyes),
        card=gpu.card,
        heard=view.heard,
        silent=view.silent,
        maintenance=view.maintenance,
        until=gpu.until,
        asked=gpu.asked,
        question=_question(gpu, question, eyes) if question else "",
        lent=lent,
        keeper=_name(gpu.keeper, eyes),
        accepted=gpu.accepted,
        scrubbed=scrubbed,
        acceptance=acceptance if eyes.admin else "",
        baseline=_baseline(gpu.baseline, eyes),
        shown=facts_words(gpu.shown),
        overruled=[verdict.text for verdict in eyes.verdicts.overruled(gpu.name, gpu.pool)] if eyes.admin else [],
        trial=_trial(trial) if trial else "",
        trial_state=trial.state if trial else None,
        bad=bad,
        may=list(may),
    )


def event_row(event: HealthEvent, eyes: Viewer) -> HealthEventRow:
    signal, own = SIGNALS.get(event.signal), bool(event.by) and event.by in eyes.servers
    source = event.source or (signal.source if signal else None)
    return HealthEventRow(
        time=event.time,
        before=event.before,
        after=event.after,
        cause=event.cause
        if own
        else _cause(
            _for_all(event.cause, event.after, eyes), source, signal.threshold if signal else "", event.by, eyes
        ),
        signal=event.signal,
        source=event.source,
        evidence=event.evidence if eyes.admin or own else "",
        by=event.by if own else _name(event.by, eyes),
        card=event.card,
    )


def repeat_row(repeat: Repeat) -> RepeatRow:
    return RepeatRow(
        name=repeat.name,
        failures=repeat.failures,
        latest=repeat.latest,
        mtbf_hours=None if repeat.mtbf is None else round(repeat.mtbf.total_seconds() / 3600, 1),
        signals=list(repeat.signals),
        gpus=list(repeat.gpus),
    )


def _trial(trial: Trial) -> str:
    return f"it would be {trial.state.value} since {minute_text(trial.since)}: {trial.cause} ({trial.signal})"


def _baseline(baseline: Baseline | None, eyes: Viewer) -> str:
    if baseline is None:
        return ""
    by = f" by {_name(baseline.by, eyes)}" if baseline.by else ""
    return f"{facts_words(baseline.facts)} (taken {minute_text(baseline.taken)}{by})"


def _question(gpu: GpuHealth, observation: Observation, eyes: Viewer) -> str:
    verdict = eyes.verdicts.of(observation.code, gpu.name, gpu.pool)
    evidence = f": {observation.evidence}" if observation.evidence and eyes.admin else ""
    return (
        f"{verdict.cause} ({observation.code}){evidence}. It should be kept back, and too much of pool {gpu.pool} is "
        "so already. Quarantine it, look after those that are out already, or release it: it then stays in use."
    )


def _name(by: str, eyes: Viewer) -> str:
    return by if not by or eyes.admin or eyes.names or by == eyes.user else SOMEBODY


def _for_all(cause: str, state: HealthState, eyes: Viewer) -> str:
    """What names a server says nothing that the state does not."""
    return cause if eyes.admin or state is not HealthState.IN_USE else ""


def _cause(cause: str, source: Source | None, instead: str, by: str, eyes: Viewer) -> str:
    """The words, or, where they may name a server or somebody, what is said of every such signal."""
    if eyes.admin or (source not in _OF_PEOPLE and not by):
        return cause
    return instead
