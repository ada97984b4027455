"""Turns the health of GPUs into rows, words and counts of its pages. Pure, but for `marks_of`, which reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.health.controllers.health_service import GpuView
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.records import HealthState
from gpuyard.health.web.health_documents import HealthEventRow, HealthRow, RepairRow, RepeatRow
from gpuyard.inventory.web.presenter import Marks, Since, duration, gpu_href, since

COLOURS = {
    HealthState.FINE: "free",
    HealthState.IN_USE: "claimed",
    HealthState.RETURNED: "held",
    HealthState.SCRUBBING: "held",
    HealthState.CHECKED: "held",
    HealthState.SUSPECT: "stranded",
    HealthState.QUARANTINED: "blocked",
    HealthState.IN_REPAIR: "lost",
    HealthState.TO_ACCEPT: "booked",
}
"""State of a GPU on the map whose colour a state of health has."""
SILENT, MAINTAINED = "not heard from", "in maintenance"
PLAIN = frozenset({HealthState.FINE, HealthState.IN_USE})
"""States that the map shows, too."""
MEANINGS = {
    HealthState.FINE: "Nothing is known against it.",
    HealthState.IN_USE: "A server has it.",
    HealthState.RETURNED: "Its server is gone; nobody has looked at it since.",
    HealthState.SCRUBBING: "Its host was asked to reset it.",
    HealthState.CHECKED: "It came back clean, and is about to be released.",
    HealthState.SUSPECT: "Something was seen that may pass; nobody new gets it meanwhile.",
    HealthState.QUARANTINED: "Out of use until somebody has looked at it.",
    HealthState.IN_REPAIR: "Somebody looks after it.",
    HealthState.TO_ACCEPT: "Out of use until somebody has accepted it.",
}
STEPS = {
    "report": ("Report a fault…", "What is wrong with it?", "Report"),
    "quarantine": ("Quarantine…", "Why is it to be out of use?", "Quarantine"),
    "start": ("Look after it…", "What is to be done? You look after it from now on.", "Look after it"),
    "note": ("Note…", "What was seen or tried?", "Write down"),
    "lend": (
        "Lend it…",
        "For what? The project for repairs can start a server on it for two hours.",
        "Lend it",
    ),
    "return": ("Take it back…", "Why is it lent no more?", "Take it back"),
    "done": ("Repaired…", "What was wrong, and what was done?", "It is well"),
    "abandon": ("Leave it…", "Why does nobody look after it any more? It stays out of use.", "Leave it"),
    "clear-baseline": (
        "Clear its baseline…",
        "Why? It is judged as a new one then, until it is accepted again.",
        "Clear it",
    ),
    "release": ("Give it back…", "Why is it well without a repair?", "Give it back"),
}
"""Step -> its button, what is asked then, and the yes."""
PATHS = {step: f"repair/{step}" for step in ("start", "note", "lend", "return", "done", "abandon", "clear-baseline")}


@dataclass(frozen=True)
class StepButton:
    path: str
    """Below the GPU's in the API."""
    field: str
    """Of the body, for the words."""
    text: str
    question: str
    yes: str
    danger: bool


@dataclass(frozen=True)
class HealthCard:
    api: str
    """Its address in the API, relative."""
    href: str
    name: str
    pool: str
    state: str
    colour: str
    since: Since
    cause: str
    advice: str
    by: str
    lent: str
    keeper: str
    heard: Since | None
    silent: bool
    maintenance: str
    until: str
    bad: str
    card: str
    accepted: Since | None
    acceptance: str
    baseline: str
    shown: str
    overruled: Sequence[str]
    trial: str
    asked: bool
    scrubbed: bool
    buttons: Sequence[StepButton]


@dataclass(frozen=True)
class RecordLine:
    at: Since
    before: str
    after: str
    """Empty for a note."""
    colour: str
    cause: str
    evidence: str
    who: str
    card: str
    """Of the first line, going back in time, that another card was in it; else empty."""


@dataclass(frozen=True)
class OutCard:
    gpu: HealthCard
    tried: Sequence[RecordLine]


@dataclass(frozen=True)
class StateLine:
    state: str
    colour: str
    count: int
    text: str


@dataclass(frozen=True)
class SilentHost:
    name: str
    gpus: int
    heard: Since | None


@dataclass(frozen=True)
class RepeatLine:
    name: str
    failures: int
    mtbf: str
    latest: Since
    signals: str
    gpus: str


@dataclass(frozen=True)
class HealthPage:
    states: Sequence[StateLine]
    asked: int
    out: Sequence[OutCard]
    silent: Sequence[SilentHost]
    repeats: Sequence[RepeatLine]
    by: str
    unscrubbed: Sequence[str]
    """Pools whose GPUs are given on as they were left."""
    others: Sequence[HealthCard]
    """GPUs that are not out of use."""
    trials: Sequence[HealthCard]
    """GPUs that signals on trial would have kept back."""


def marks_of(services: HealthServices | None) -> Marks | None:
    """Return the words that the map adds to GPUs; None where their health is not followed. Raises StoreError."""
    if services is None:
        return None
    return {(view.health.host, view.health.address): _mark(view) for view in services.gpus.view()}


def _mark(view: GpuView) -> str:
    words = [] if view.health.state in PLAIN else [view.health.state.value]
    return " · ".join([*words, *([SILENT] if view.silent else []), *([MAINTAINED] if view.maintenance else [])])


def health_card(row: HealthRow, now: datetime) -> HealthCard:
    return HealthCard(
        api=f"v1/health/{row.host}/{row.address}",
        href=gpu_href(row.host, row.address),
        name=f"{row.host}/{row.address}",
        pool=row.pool,
        state=row.state.value,
        colour=COLOURS[row.state],
        since=since(row.since, now),
        cause=row.question or row.cause,
        advice=row.advice,
        by=row.by,
        lent=row.lent,
        keeper=row.keeper,
        heard=since(row.heard, now) if row.heard else None,
        silent=row.silent,
        maintenance=row.maintenance,
        until=duration((row.until - now).total_seconds()) if row.until and row.until > now else "",
        bad=_times(row.bad),
        card=row.card,
        accepted=since(row.accepted, now) if row.accepted else None,
        acceptance=row.acceptance,
        baseline=row.baseline,
        shown=row.shown,
        overruled=row.overruled,
        trial=row.trial,
        asked=row.asked,
        scrubbed=row.scrubbed,
        buttons=[_button(step) for step in row.may],
    )


def record_lines(events: Sequence[HealthEventRow], now: datetime) -> list[RecordLine]:
    """Return the lines of a record, the newest first."""
    lines = []
    for event, newer in zip(events, [None, *events], strict=False):
        changed = newer is not None and event.card and newer.card and event.card != newer.card
        lines.append(
            RecordLine(
                at=since(event.time, now),
                before=event.before.value,
                after=event.after.value if event.after is not event.before else "",
                colour=COLOURS[event.after],
                cause=event.cause,
                evidence=event.evidence,
                who=event.by or (event.source.value if event.source else "gpuyard"),
                card=event.card if changed else "",
            )
        )
    return lines


def health_page(
    rows: Sequence[HealthRow], out: Sequence[RepairRow], repeats: Iterable[RepeatRow], by: str, now: datetime
) -> HealthPage:
    out_places = {(repair.gpu.host, repair.gpu.address) for repair in out}
    counts = {state: sum(row.state is state for row in rows) for state in HealthState}
    return HealthPage(
        states=[
            StateLine(state.value, COLOURS[state], count, MEANINGS[state]) for state, count in counts.items() if count
        ],
        asked=sum(repair.gpu.asked for repair in out),
        out=[OutCard(health_card(repair.gpu, now), record_lines(repair.tried, now)) for repair in out],
        silent=_silent(rows, now),
        repeats=[_repeat(repeat, now) for repeat in repeats],
        by=by,
        unscrubbed=sorted({row.pool for row in rows if not row.scrubbed}),
        others=[health_card(row, now) for row in rows if (row.host, row.address) not in out_places],
        trials=[health_card(row, now) for row in rows if row.trial],
    )


def _silent(rows: Iterable[HealthRow], now: datetime) -> list[SilentHost]:
    hosts: dict[str, list[HealthRow]] = {}
    for row in rows:
        if row.silent:
            hosts.setdefault(row.host, []).append(row)
    return [
        SilentHost(name, len(gpus), since(gpus[0].heard, now) if gpus[0].heard else None)
        for name, gpus in hosts.items()
    ]


def _repeat(row: RepeatRow, now: datetime) -> RepeatLine:
    mtbf = "" if row.mtbf_hours is None else duration(timedelta(hours=row.mtbf_hours).total_seconds())
    return RepeatLine(row.name, row.failures, mtbf, since(row.latest, now), ", ".join(row.signals), ", ".join(row.gpus))


def _button(step: str) -> StepButton:
    text, question, yes = STEPS[step]
    field = "words" if step == "report" else "comment"
    return StepButton(PATHS.get(step, step), field, text, question, yes, step in ("quarantine", "abandon"))


def _times(count: int) -> str:
    return {0: "never", 1: "once", 2: "twice"}.get(count, f"{count} times")
