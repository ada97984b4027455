"""Plans scrubs of single-use GPUs between two tenants: orders to hosts, their results, and the release. Pure.

A host resets one slot at a time, the one that is needed first. A clean result leads to the release of the GPU, or to
its acceptance; a failed one to quarantine; a lost or late one to another try, after a pause that doubles, until a
person is asked. Every order has an id of its own, and only the result of the order that is open counts. So a result
that comes late, twice or from before a crash changes nothing, and a clean GPU was reset after its last tenant.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from gpuyard.health.life import become
from gpuyard.health.records import GpuHealth, HealthEvent, HealthState, Observation
from gpuyard.model.backoff import backoff
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome, ScrubResult
from gpuyard.model.signals import Source
from gpuyard.nova.device_spec import ONE_TIME_USE
from gpuyard.site.health_rules import ScrubRules

PAUSE = timedelta(seconds=10)
"""After a scrub that came to nothing, before the next one; twice as long each time."""
EVIDENCE = 500
LOST, FAILED, NOT_RESERVED = "scrub-lost", "scrub-failed", "not-reserved"


@dataclass(frozen=True)
class ScrubPast:
    """A GPU's scrubs since its last tenant, as its record has them."""

    returned: datetime | None = None
    """When the tenant was gone."""
    vain: int = 0
    """Scrubs that came to nothing."""
    lost: int = 0
    """Those of them whose outcome nobody knows."""
    to_accept: bool = False
    """It was to be accepted before it was scrubbed, and still is when it is clean."""


def past_of(events: Iterable[HealthEvent]) -> ScrubPast:
    """Return a GPU's scrubs since its last tenant. `events`: of one GPU, the newest first."""
    events = list(events)
    past = ScrubPast(to_accept=_was_to_be_accepted(events))
    for event in events:
        match (event.before, event.after):
            case (HealthState.SCRUBBING, HealthState.RETURNED):
                past = replace(past, vain=past.vain + 1, lost=past.lost + (event.signal == LOST))
            case (HealthState.RETURNED, HealthState.SCRUBBING):
                pass
            case (before, after) if before is after:
                pass
            case (_, HealthState.RETURNED):
                return replace(past, returned=event.time)
            case _:
                return past
    return past


def _was_to_be_accepted(events: Iterable[HealthEvent]) -> bool:
    for event in events:
        if event.after not in (HealthState.RETURNED, HealthState.SCRUBBING, HealthState.SUSPECT):
            return False
        if event.before is HealthState.TO_ACCEPT:
            return True
    return False


# Orders.


def reserved_in(gpu: GpuHealth, generation: int) -> GpuHealth:
    """Return a returned GPU with the generation in which Nova has it reserved, the only one it is released in."""
    return replace(gpu, generation=generation)


def begun(gpu: GpuHealth, now: datetime) -> GpuHealth:
    """Return the GPU with its state beginning now, after the clock has gone back."""
    return replace(gpu, since=now)


def order_for(
    host: str, gpus: Sequence[GpuHealth], slots: Iterable[Collection[str]], past: Callable[[GpuHealth], ScrubPast],
    rules: ScrubRules, now: datetime, first: Callable[[GpuHealth], tuple[int, ...]] = lambda gpu: (),
) -> list[GpuHealth]:  # fmt: skip
    """Return the GPUs of a host that are to be scrubbed next, which are of one slot; none while it works on another.

    `slots`: names of GPUs that share an IOMMU group. `first`: the order among slots, the smallest first.
    """
    mine = {gpu.name: gpu for gpu in gpus if gpu.host == host}
    if any(gpu.state is HealthState.SCRUBBING and gpu.order for gpu in mine.values()):
        return []
    ready: list[list[GpuHealth]] = []
    for names in slots:
        members = [mine[name] for name in names if name in mine]
        dirty = [gpu for gpu in members if gpu.state is HealthState.RETURNED and gpu.generation is not None]
        busy = any(gpu.state in (HealthState.IN_USE, HealthState.IN_REPAIR, HealthState.SCRUBBING) for gpu in members)
        if dirty and not busy and all(_rested(gpu, past(gpu), rules, now) for gpu in dirty):
            ready.append(dirty)
    return min(ready, key=lambda some: min((first(gpu), gpu.since, gpu.name) for gpu in some), default=[])


def _rested(gpu: GpuHealth, past: ScrubPast, rules: ScrubRules, now: datetime) -> bool:
    pause = backoff(PAUSE, past.vain, rules.timeout) if past.vain else timedelta(0)
    return now - gpu.since >= pause


def open_orders(host: str, gpus: Iterable[GpuHealth]) -> list[ScrubOrder]:
    """Return the open orders of a host, one for each slot; they are repeated until it has answered."""
    orders_by_id: dict[str, ScrubOrder] = {}
    for gpu in gpus:
        if gpu.host == host and gpu.state is HealthState.SCRUBBING and gpu.order:
            orders_by_id.setdefault(gpu.order, ScrubOrder(gpu.order, gpu.address))
    return list(orders_by_id.values())


def ordered(gpu: GpuHealth, order: str, now: datetime) -> tuple[GpuHealth, HealthEvent]:
    """Return the GPU with an order to its host, being scrubbed. Raises HealthLifeError."""
    return become(replace(gpu, order=order), HealthState.SCRUBBING, now, "its host is asked to reset it")


# Answers.


@dataclass(frozen=True)
class ScrubVerdict:
    """A GPU after the result of its scrub, with the line of its record."""

    gpu: GpuHealth
    event: HealthEvent
    observation: Observation | None = None
    """To be made before the rest is written: made twice it is one."""


def judged(gpu: GpuHealth, result: ScrubResult, now: datetime, *, to_accept: bool = False) -> ScrubVerdict | None:
    """Return what a result makes of a GPU; None for a result that is not of its open order. `to_accept`: it is to be
    accepted when it is clean, and given to nobody before."""
    if gpu.state is not HealthState.SCRUBBING or not gpu.order or gpu.order != result.order:
        return None
    evidence = evidence_of(result)
    match result.outcome:
        case ScrubOutcome.CLEAN if gpu.address in result.functions:
            cause = f"it was reset by {result.method or 'its host'} and came back clean"
            state = HealthState.TO_ACCEPT if to_accept else HealthState.CHECKED
            new, event = become(replace(gpu, order=""), state, now, cause, evidence=evidence, source=Source.SCRUB)
            return ScrubVerdict(new, event)
        case ScrubOutcome.FAILED | ScrubOutcome.REFUSED:
            text = f"{result.outcome.value}: {result.reason}"[:EVIDENCE]
            event = HealthEvent(
                gpu.host, gpu.address, gpu.card, now, gpu.state, gpu.state, f"its scrub {text}"[:EVIDENCE], FAILED,
                evidence, source=Source.SCRUB,
            )  # fmt: skip
            observation = Observation(gpu.host, gpu.address, FAILED, now, text)
            return ScrubVerdict(replace(gpu, order=""), event, observation)
        case ScrubOutcome.BUSY:
            return _again(gpu, now, result.reason or "its host was busy", "", evidence)
        case _:  # also a clean one that does not say that it was this GPU
            return _again(gpu, now, result.reason or "its host does not know what came of it", LOST, evidence)


def overdue(gpu: GpuHealth, rules: ScrubRules, now: datetime) -> ScrubVerdict | None:
    """Return a GPU to be scrubbed anew: its host has not answered in time, or its scrub has failed and nobody has taken
    it out of use since. None for the others."""
    if gpu.state is not HealthState.SCRUBBING or now - gpu.since < rules.timeout:
        return None
    if not gpu.order:
        return _again(gpu, now, "its scrub has failed, and nobody has taken it out of use: it is tried again", "", "")
    waited = int(rules.timeout.total_seconds())
    return _again(gpu, now, f"its host has not answered within {waited} s", LOST, "")


def _again(gpu: GpuHealth, now: datetime, cause: str, signal: str, evidence: str) -> ScrubVerdict:
    new, event = become(
        replace(gpu, order=""), HealthState.RETURNED, now, cause[:EVIDENCE], signal=signal, evidence=evidence,
        source=Source.SCRUB,
    )  # fmt: skip
    return ScrubVerdict(replace(new, signal=""), event)


def given_up(
    gpu: GpuHealth, past: ScrubPast, rules: ScrubRules, started: datetime, now: datetime
) -> Observation | None:
    """Return the observation that it was tried for long enough, and a person must look; None: not yet. `started`: since
    when hosts could answer."""
    if gpu.state not in (HealthState.RETURNED, HealthState.SCRUBBING):
        return None
    waited = now - max(past.returned or gpu.since, started)
    if past.lost >= rules.tries:
        return _lost(gpu, now, f"of {past.lost} scrubs nobody knows what came; the last: {gpu.cause}")
    if waited > rules.tries * rules.timeout + rules.timeout:
        minutes = int(waited.total_seconds() // 60)
        return _lost(gpu, now, f"not clean {minutes} min after its last server; the last: {gpu.cause}")
    return None


def _lost(gpu: GpuHealth, now: datetime, text: str) -> Observation:
    return Observation(gpu.host, gpu.address, LOST, now, text[:EVIDENCE])


def not_reserved(gpu: GpuHealth, now: datetime) -> Observation:
    """Return the observation that Nova gives a GPU, whose server is gone, to the next one as it is."""
    return Observation(gpu.host, gpu.address, NOT_RESERVED, now, f"its provider has no trait {ONE_TIME_USE}")


def evidence_of(result: ScrubResult) -> str:
    """Describe a result: ``1.3 s, of which the reset 1.1 s; 0000:27:00.0: reset by bus; ...``."""
    times = f"{result.seconds:.1f} s, of which the reset {result.reset_seconds:.1f} s"
    return "; ".join((times, *result.evidence))[:EVIDENCE]


# The release.


def released(
    gpu: GpuHealth, reserved: bool, generation: int, ours: bool, now: datetime, *, to_accept: bool = False
) -> tuple[GpuHealth, HealthEvent] | None:
    """Return the state of a GPU that is clean, or still to be scrubbed, after a look at its provider; None: it waits.

    `ours`: its reservation is one of the ledger's now, which keeps it for a booking.
    """
    clean = replace(gpu, generation=None)
    if gpu.state is HealthState.RETURNED and not reserved:
        return become(
            clean,
            HealthState.TO_ACCEPT if to_accept else HealthState.FINE,
            now,
            "somebody else has released it, without a scrub",
        )
    if gpu.state is HealthState.TO_ACCEPT and reserved and not ours and generation != gpu.generation:
        return become(clean, HealthState.RETURNED, now, "it was reserved anew before it was accepted")
    if gpu.state is not HealthState.CHECKED:
        return None
    if not reserved:
        return become(clean, HealthState.FINE, now, "Placement gives it away again")
    if ours:
        return become(clean, HealthState.FINE, now, "it is clean, and kept for whoever has it next")
    if generation != gpu.generation:
        return become(clean, HealthState.RETURNED, now, "it was reserved anew before it was released")
    return None
