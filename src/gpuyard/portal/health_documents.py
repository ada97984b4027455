"""What programs and pages get and send about the health of GPUs: the JSON of /v1/health.

Everybody sees the state of every GPU. What names servers and people (evidence, words, who decided) is for admins, and
what a server said of its own GPU for those whose it is; the site's choice about others (others.py) holds for names.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, StringConstraints

from gpuyard.health.records import HealthEvent, HealthState, Observation, Source
from gpuyard.health.repeats import Repeat
from gpuyard.health.signals import SIGNALS
from gpuyard.keeper.health_desk import GpuView
from gpuyard.portal.booking_documents import BookingRow, Link, Moment, Sent, one_line
from gpuyard.portal.others import SOMEBODY

MOST_WORDS = 500
"""Characters of what somebody reports or notes."""
_OF_PEOPLE = frozenset({Source.GUEST, Source.PERSON, Source.JOB, Source.NOVA})
"""What these saw can name servers and people."""


def _says_something(text: str) -> str:
    if not text:
        raise ValueError("is empty; say it in words")
    return text


Said = Annotated[str, StringConstraints(max_length=MOST_WORDS), AfterValidator(one_line)]
Words = Annotated[Said, AfterValidator(_says_something)]


class FaultReport(Sent):
    """What somebody found wrong with a GPU."""

    words: Words = Field(examples=["nvidia-smi says 'GPU is lost' since this morning"])


class RepairComment(Sent):
    """What is done and why."""

    comment: Words


class RepairStart(Sent):
    """Begin to look after a GPU."""

    comment: Said = ""


class RepairLoan(Sent):
    """Lend a GPU that is out of use to the project for repairs."""

    minutes: int = Field(120, ge=1, le=60 * 24 * 14, strict=True, description="For how long.")
    comment: Said = ""


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
    bad: int = Field(description="How often it was quarantined, as far back as its record goes.")
    may: list[str] = Field(
        description="What you may do about it now: report, quarantine, start, note, lend, return, done, abandon, "
        "release."
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
class Eyes:
    """Who looks."""

    admin: bool
    names: bool
    """Sees the names of others."""
    servers: Collection[str] = ()
    """Ids of servers that are theirs, or of a project of theirs."""
    user: str = ""


def health_row(
    view: GpuView, bad: int, eyes: Eyes, may: Iterable[str], lent: str = "", *, scrubbed: bool, acceptance: str = ""
) -> HealthRow:
    gpu, asked = view.health, view.question
    code = asked.code if asked else gpu.signal
    signal, own = SIGNALS.get(code), SIGNALS.get(gpu.signal)
    return HealthRow(
        host=gpu.host,
        address=gpu.address,
        pool=gpu.pool,
        state=gpu.state,
        since=gpu.since,
        cause=_cause(
            _for_all(gpu.cause, gpu.state, eyes),
            own.source if own else None,
            own.threshold if own else "",
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
        question=_question(gpu.pool, asked, eyes) if asked else "",
        lent=lent,
        keeper=_name(gpu.keeper, eyes),
        accepted=gpu.accepted,
        scrubbed=scrubbed,
        acceptance=acceptance if eyes.admin else "",
        bad=bad,
        may=list(may),
    )


def event_row(event: HealthEvent, eyes: Eyes) -> HealthEventRow:
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


def _question(pool: str, seen: Observation, eyes: Eyes) -> str:
    signal = SIGNALS[seen.code]
    said = f": {seen.evidence}" if seen.evidence and eyes.admin else ""
    return (
        f"{signal.threshold} ({seen.code}){said}. It should be kept back, and too much of pool {pool} is so already. "
        "Quarantine it, look after those that are out already, or release it: it then stays in use."
    )


def _name(by: str, eyes: Eyes) -> str:
    return by if not by or eyes.admin or eyes.names or by == eyes.user else SOMEBODY


def _for_all(cause: str, state: HealthState, eyes: Eyes) -> str:
    """What names a server says nothing that the state does not."""
    return cause if eyes.admin or state is not HealthState.IN_USE else ""


def _cause(cause: str, source: Source | None, instead: str, by: str, eyes: Eyes) -> str:
    """The words, or, where they may name a server or somebody, what is said of every such signal."""
    if eyes.admin or (source not in _OF_PEOPLE and not by):
        return cause
    return instead
