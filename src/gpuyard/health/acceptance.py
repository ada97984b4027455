"""Decides what becomes of each attempt to accept a GPU by booting a server on it. Pure.

An attempt (a `Try`) is one slot, from the request to a verdict: it waits until `next_attempts` picks it, its GPU is
lent, Nova is asked for a server, the server runs its checks (guest/accept.sh), the server is deleted. `next_attempts`
picks who goes next: the canary's host first, and one slot of a pool at a time while GPUs are being released. `judged`
moves an attempt on. Each step is written before it is done, so a process that is killed at any moment is followed by
one that finds out what has come of it. As long as an attempt is open its GPUs are kept back, and only its own server
gets them: they are lent to it (docs/adr/0032).

A fault of the GPU quarantines it. A fault of the cloud or of the image leaves the GPU as it was, with the reason: a
person tries again.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum

from gpuyard.health.acceptance_guest import AcceptanceOutput, GuestVerdict
from gpuyard.health.baseline import Facts, facts_words
from gpuyard.nova.server_states import UNKNOWN

LATE = timedelta(seconds=60)
"""A server that Nova was asked for, and of which nothing is known, would be there after this time."""
ENDING = timedelta(minutes=10)
"""Time for which a GPU is lent beyond the attempt's own: to delete the server."""
WORDS = 500
ACTIVE, ERROR = "ACTIVE", "ERROR"


class TryState(StrEnum):
    """Where a try is."""

    WAITING = "waiting"
    """It has not begun: it waits for the canary's host, or for another attempt in its pool; or, as its cause says then,
    for the server that still has its GPU."""
    LENT = "lent"
    """Its GPU is lent, and is being released for its server alone."""
    CREATING = "creating"
    """Nova is asked for the server."""
    RUNNING = "running"
    """The server has the GPU."""
    DELETING = "deleting"
    """It is known what came of it; the server goes."""
    PASSED = "passed"
    FAILED = "failed"
    """The GPU is to blame: it is quarantined."""
    GIVEN_UP = "given up"
    """Something else is to blame."""


OVER = frozenset({TryState.PASSED, TryState.FAILED, TryState.GIVEN_UP})
OPEN = frozenset(TryState) - OVER
BEING_RELEASED = frozenset({TryState.LENT, TryState.CREATING})
"""While a GPU is released nobody else in its pool is let in: one at a time."""


@dataclass(frozen=True)
class Try:
    """An attempt to accept one slot."""

    id: str
    batch: str
    """The same for all that were asked for at once."""
    number: int
    """Its place in the batch."""
    canary: bool
    """It is on the host that is tried first; the others of the batch wait for it."""
    host: str
    gpus: tuple[str, ...]
    """Addresses, the leader's first."""
    pool: str
    by: str
    """Name of whoever asked."""
    by_id: str
    begun: datetime
    state: TryState
    since: datetime
    nonce: str
    name: str
    """Of its server."""
    server: str = ""
    """Its id, once Nova has given it."""
    loan: str = ""
    deadline: datetime | None = None
    """Before this there must be a verdict."""
    outcome: TryState | None = None
    """Once it is known, before the server is deleted."""
    cause: str = ""
    """The result of the checks, or what went wrong; of one that waits for a server to go, that server."""
    driver: str = ""
    facts: Facts = field(default_factory=dict)
    """The facts of its GPUs as its server showed them; of several the worst."""
    fresh: bool = False
    """What its GPUs show becomes their baseline, also where it is worse than what they were accepted with before."""
    fine: bool = False
    """Nothing was known against its GPUs before: when nothing comes of it, they are as they were."""
    version: int = 0
    """Of the record in the store: a write of an older one is refused."""

    @property
    def gpu(self) -> str:
        """``host/address`` of its first GPU."""
        return f"{self.host}/{self.gpus[0]}"

    @property
    def names(self) -> tuple[str, ...]:
        """``host/address`` of all of its GPUs."""
        return tuple(f"{self.host}/{address}" for address in self.gpus)


NOTHING = AcceptanceOutput()


@dataclass(frozen=True)
class TryObservation:
    """The state of an attempt's loan, server and console, as they are seen now."""

    lent: bool = False
    """Its loan is on."""
    usable: bool = False
    """Its GPU is released for its server."""
    claimed: bool = False
    """Its server has it."""
    spoiled: str = ""
    """Why a verdict would mean nothing any more: somebody has changed the state of a GPU. Empty: nothing has."""
    status: str = ""
    """Nova's, of the server; empty when Nova has none of its name."""
    fault: str = ""
    gone: bool = False
    """Nova was asked, and has no such server: neither by its name, nor by its id."""
    output: AcceptanceOutput = NOTHING
    against: str = ""
    """Why it fails although its server found nothing wrong; empty: nothing."""


def first_host(slots: Sequence[tuple[str, str]], canary: bool) -> str:
    """Return the host that is tried first, of (host, address) in order; empty when all are tried at once."""
    hosts = sorted({host for host, _ in slots})
    return hosts[0] if canary and len(hosts) > 1 else ""


def next_attempts(tries: Iterable[Try], now: datetime, held: Collection[str] = ()) -> tuple[list[Try], list[Try]]:
    """Return the waiting attempts that can begin now, and those that are given up, as they are then. `tries`: of every
    batch that has an open one, all. `held`: ids of those whose GPU is not free yet; they keep no other one back."""
    attempts = list(tries)
    busy = {candidate.pool for candidate in attempts if candidate.state in BEING_RELEASED}
    go: list[Try] = []
    skipped: list[Try] = []
    for attempt in sorted(
        attempts, key=lambda candidate: (candidate.begun, candidate.batch, not candidate.canary, candidate.number)
    ):
        if attempt.state is not TryState.WAITING:
            continue
        canaries = [other for other in attempts if other.batch == attempt.batch and other.canary]
        bad = next(
            (canary for canary in canaries if canary.state in OVER and canary.state is not TryState.PASSED), None
        )
        if bad is not None and not attempt.canary:
            why = f"not tried: {bad.gpu}, which was tried first, {_became(bad)}"
            skipped.append(ended(replace(attempt, outcome=TryState.GIVEN_UP, cause=why[:WORDS]), now))
        elif attempt.pool not in busy and (attempt.canary or all(canary.state in OVER for canary in canaries)):
            busy |= {attempt.pool} if attempt.id not in held else set()
            go.append(attempt)
    return go, skipped


def waited(attempt: Try, why: str, within: timedelta, now: datetime) -> Try:
    """Return the attempt waiting on, or given up when its GPU was not free `within` this time. Nothing else keeps it
    from beginning; `since` counts from the first time that its GPU was not free."""
    if not attempt.cause or attempt.since > now:
        return replace(attempt, since=now, cause=why[:WORDS])
    if now - attempt.since < within:
        return replace(attempt, cause=why[:WORDS])
    minutes = round(within.total_seconds() / 60)
    return with_outcome(attempt, TryState.GIVEN_UP, f"{why}, and that did not change within {minutes} minutes", now)


def _became(attempt: Try) -> str:
    return f"{'failed' if attempt.state is TryState.FAILED else 'could not be tried'}: {attempt.cause}"


def judged(attempt: Try, observed: TryObservation, within: timedelta, now: datetime) -> Try:
    """Return the attempt's next state: unchanged, one step on, or with its outcome. Time counts by `since`, which a
    clock that has gone back makes new."""
    if attempt.since > now:
        return replace(attempt, since=now, deadline=min(attempt.deadline, now + within) if attempt.deadline else None)
    if attempt.state not in (TryState.LENT, TryState.CREATING, TryState.RUNNING):
        return attempt
    if observed.spoiled:
        return with_outcome(attempt, TryState.GIVEN_UP, observed.spoiled, now)
    if observed.output.verdict is not GuestVerdict.NONE and attempt.state is TryState.RUNNING:
        return _by_verdict(attempt, observed, now)
    if not observed.lent:
        return with_outcome(attempt, TryState.GIVEN_UP, "its GPU is not lent to it any more", now)
    if attempt.state is TryState.LENT:
        if now - attempt.since > within:
            text = (
                "its pool could not be closed for it in time: somebody else's GPUs were released, or something keeps it"
            )
            return with_outcome(attempt, TryState.GIVEN_UP, text, now)
        return attempt
    return _with_server(attempt, observed, within, now)


def _with_server(attempt: Try, observed: TryObservation, within: timedelta, now: datetime) -> Try:
    if observed.status == ERROR:
        blamed = TryState.FAILED if observed.claimed or attempt.state is TryState.RUNNING else TryState.GIVEN_UP
        return with_outcome(
            attempt, blamed, f"Nova could not start a server on it: {observed.fault or 'no reason given'}", now
        )
    if attempt.state is TryState.CREATING and observed.claimed:
        return replace(attempt, state=TryState.RUNNING, since=now)
    if observed.gone and now - attempt.since > LATE:
        text = "its server is gone" if attempt.server else "Nova was asked for its server, and has none"
        return with_outcome(attempt, TryState.GIVEN_UP, f"{text}: nobody knows what came of it", now)
    late = attempt.deadline is not None and now >= attempt.deadline
    if late and observed.status == UNKNOWN:  # its cell of Nova does not answer, and so cannot show its console
        return replace(attempt, deadline=now + within)
    if late:
        if observed.output.begun:
            return with_outcome(attempt, TryState.FAILED, "the checks in its server have not ended in time", now)
        text = (
            f"its server (Nova: {observed.status or 'unknown'}) has not begun its checks in time: is there cloud-init?"
        )
        return with_outcome(attempt, TryState.GIVEN_UP, text, now)
    return attempt


def _by_verdict(attempt: Try, observed: TryObservation, now: datetime) -> Try:
    output = observed.output
    outcome = {
        GuestVerdict.OK: TryState.PASSED,
        GuestVerdict.FAILED: TryState.FAILED,
        GuestVerdict.UNABLE: TryState.GIVEN_UP,
    }[output.verdict]
    words = output.words or "its server gave no reason"
    if outcome is TryState.PASSED and observed.against:
        outcome, words = TryState.FAILED, observed.against
    elif outcome is TryState.PASSED and output.facts:
        words = f"{words}; {facts_words(output.facts)}"
    return replace(with_outcome(attempt, outcome, words, now), driver=output.driver, facts=output.facts)


def with_outcome(attempt: Try, outcome: TryState, cause: str, now: datetime) -> Try:
    """Return the attempt with its outcome; its server is still to be deleted."""
    return replace(attempt, state=TryState.DELETING, since=now, outcome=outcome, cause=cause[:WORDS])


def ended(attempt: Try, now: datetime) -> Try:
    """Return the attempt as over, once nothing is left to do."""
    assert attempt.outcome is not None
    return replace(attempt, state=attempt.outcome, since=now)


def told(attempt: Try) -> str:
    """Describe the attempt for everybody who looks at the GPU: ``running, server gpuyard-accept-k2m9``."""
    if attempt.state in OVER:
        return f"{attempt.state.value}: {attempt.cause}"
    if attempt.state is TryState.WAITING and attempt.cause:
        return f"{attempt.state.value}: {attempt.cause}"
    server = (
        f", server {attempt.name}" if attempt.state in (TryState.CREATING, TryState.RUNNING, TryState.DELETING) else ""
    )
    return f"{attempt.state.value}{server}"
