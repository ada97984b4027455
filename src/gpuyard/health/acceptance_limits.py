"""Compares the facts of GPUs that passed in their server with baseline, link and bandwidth, and says why they fail.
Pure.

Three things are held against them: facts that are worse than the baseline by more than their slack; for a first
acceptance, a link with fewer lanes or a lower speed than both ends can do; and a bandwidth below half of what the link
carries. A fresh acceptance, for which a person answers, skips the first two. A server cannot tell which of several GPUs
is which, so what the worst of them shows is held against the worst that any of them was accepted with.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from gpuyard.health.acceptance_guest import AcceptanceOutput
from gpuyard.health.baseline import (
    BANDWIDTH,
    HALF,
    LINK_SPEED,
    LINK_WIDTH,
    LINKS,
    Baseline,
    Facts,
    fact_words,
    failing,
    is_worse,
)
from gpuyard.model.host_report import LinkReport

LANE: Mapping[float, float] = {
    2.5: 2.5 * 8 / 10 / 8,
    5.0: 5.0 * 8 / 10 / 8,
    8.0: 8.0 * 128 / 130 / 8,
    16.0: 16.0 * 128 / 130 / 8,
    32.0: 32.0 * 128 / 130 / 8,
    64.0: 64.0 * 236 / 256 / 8,
}
"""GT/s -> GB/s that one lane carries one way. PCI Express Base Specification: of 10 bits 8 are data in generations 1
and 2, of 130 bits 128 from 3 to 5, of the 256 bytes of a flit 236 in 6."""
SHARE = HALF
"""Of what the link carries, a copy must reach this. The share is ours: healthy cards reach 0.8 (A10) and 0.88 (H100) in
runs of nvbandwidth that people have published."""
RESEAT = "reseat the card, or say 'gpuyard gpu accept --fresh' if its slot is wired so"
LOOK = "look after the card, or say 'gpuyard gpu accept --fresh' if it may stay so"


def held_against(output: AcceptanceOutput, baselines: Sequence[Baseline | None], *, fresh: bool) -> str:
    """Return why GPUs that passed the checks in their server fail all the same, and what to do; empty: they do not.
    `baselines`: of all GPUs of the attempt. `fresh`: a person accepts them with what they show."""
    reasons = [] if fresh else [*_against_baseline(output.facts, baselines), *_against_ends(output, baselines)]
    return "; ".join((*reasons, *_against_link(output.facts)))


def _against_baseline(facts: Facts, baselines: Sequence[Baseline | None]) -> Iterator[str]:
    for name, (value, then) in failing(facts, _worst(baselines)).items():
        advice = RESEAT if name in LINKS else LOOK
        yield f"{fact_words(name, value)}, and it was accepted with {then:g}: {advice}"


def _worst(baselines: Sequence[Baseline | None]) -> Baseline | None:
    """What all of them have a baseline of, with the worst value."""
    existing = [baseline for baseline in baselines if baseline is not None]
    if not existing or len(existing) < len(baselines):
        return None
    first, *others = existing
    facts = dict(first.facts)
    for other in others:
        both = facts.keys() & other.facts.keys()
        facts = {
            name: other.facts[name] if is_worse(name, other.facts[name], facts[name]) else facts[name] for name in both
        }
    return Baseline(first.taken, facts=facts)


def _against_ends(output: AcceptanceOutput, baselines: Sequence[Baseline | None]) -> Iterator[str]:
    """Of what is accepted for the first time: fewer lanes, or a lower speed, than both ends can."""
    for name, (value, most) in output.short.items():
        if name in LINKS and not all(baseline is not None and name in baseline.facts for baseline in baselines):
            yield f"{fact_words(name, value)} at work, and card and slot can {most:g}: {RESEAT}"


def _against_link(facts: Facts) -> Iterator[str]:
    carries = facts.get(LINK_WIDTH, 0) * LANE.get(facts.get(LINK_SPEED, 0), 0)
    if BANDWIDTH in facts and facts[BANDWIDTH] < SHARE * carries:
        link = f"{fact_words(LINK_WIDTH, facts[LINK_WIDTH])} at {fact_words(LINK_SPEED, facts[LINK_SPEED])}"
        yield (
            f"{fact_words(BANDWIDTH, facts[BANDWIDTH])}, and {link} carry {carries:.3g}, of which half is expected: "
            "reseat the card, and see what else used the host's memory"
        )


def first_facts(shown: Facts, link: LinkReport | None, before: Baseline | None) -> Facts:
    """Return the facts shown by a host that may become the baseline without a person's word: not a link that is less
    than both ends can do, unless the baseline has that fact already. `link`: as the host sees it; None: not known."""
    can = {LINK_WIDTH: link.max_width, LINK_SPEED: link.max_speed} if link is not None else {}
    baseline_facts = before.facts if before is not None else {}
    return {name: value for name, value in shown.items() if name in baseline_facts or value >= can.get(name, 0)}
