"""A GPU's baseline: the facts that it showed when it was accepted, of those that do not change by themselves. Pure.

Signals about such facts are judged against it: what is worse than the baseline is a signal, what equals it is not. A
card in a slot that is wired x8 is accepted with 8 lanes once, and 4 lanes are a signal from then on.

Whoever accepts a GPU decides what its baseline is. A server that accepts it (`gpuyard gpu accept`) confirms what is
known already: it adds what was not known, takes what is better, and keeps the rest, so that accepting all GPUs of a
cloud after an update does not make a fault that came meanwhile the rule. With `--fresh`, and when a person releases the
GPU, what it shows now counts. A baseline is of one card: it ends when another one is in the slot.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime

Facts = Mapping[str, float]
"""Name of a fact (FACTS) -> its value. What is not known is not in it."""


@dataclass(frozen=True)
class Fact:
    """A property of a GPU that does not change by itself."""

    name: str
    unit: str
    """Follows the number, for more than one."""
    less_is_worse: bool = False
    slack: float = 1.0
    """An acceptance fails below this share of the baseline: what is measured is not the same twice."""
    wears: bool = False
    """It grows in use, and an acceptance does not fail for it."""


LINK_WIDTH, LINK_SPEED, ROWS_FAILED = "link-width", "link-speed", "row-remapping-failed"
LINKS = (LINK_WIDTH, LINK_SPEED)
BANDWIDTH = "bandwidth"
HALF = 0.5

FACTS: Mapping[str, Fact] = {
    fact.name: fact
    for fact in (
        Fact(LINK_WIDTH, "PCIe lanes", less_is_worse=True),
        Fact(LINK_SPEED, "GT/s", less_is_worse=True),
        Fact(BANDWIDTH, "GB/s from the host", less_is_worse=True, slack=HALF),
        Fact("ecc-corrected", "corrected ECC errors in its life", wears=True),
        Fact("ecc-uncorrected", "uncorrected ECC errors in its life"),
        Fact("rows-corrected", "rows remapped after corrected errors"),
        Fact("rows-uncorrected", "rows remapped after uncorrected errors"),
        Fact(ROWS_FAILED, "failed row remapping"),
        Fact("pages-retired", "retired pages"),
    )
}
"""By name."""

OF_SIGNALS: Mapping[str, Facts] = {"rows": {ROWS_FAILED: 1}}
"""Signal of a guest -> what a GPU shows that was kept back for it: only a guest sees it, and whoever releases the GPU
says that it is well with it."""


@dataclass(frozen=True)
class Baseline:
    """The facts that one card was accepted with."""

    taken: datetime
    by: str = ""
    """Name of the person who accepted it; empty: gpuyard."""
    card: str = ""
    """Serial number or UUID of the card; empty: it was not known."""
    facts: Facts = field(default_factory=dict)


def is_worse(name: str, value: float, than: float) -> bool:
    return value < than if FACTS[name].less_is_worse else value > than


def worse(facts: Facts, baseline: Baseline | None) -> dict[str, tuple[float, float]]:
    """Return the facts that are worse than the baseline: name -> (value, value of the baseline)."""
    baseline_facts = baseline.facts if baseline is not None else {}
    both = {name: (value, baseline_facts[name]) for name, value in facts.items() if name in baseline_facts}
    return {name: (value, then) for name, (value, then) in both.items() if is_worse(name, value, then)}


def failing(facts: Facts, baseline: Baseline | None) -> dict[str, tuple[float, float]]:
    """Return the worse facts for which an acceptance fails: name -> (value, value of the baseline)."""
    worse_facts = worse(facts, baseline).items()
    return {name: (value, then) for name, (value, then) in worse_facts if not _is_borne(FACTS[name], value, then)}


def _is_borne(fact: Fact, value: float, then: float) -> bool:
    return fact.wears or (fact.less_is_worse and value >= then * fact.slack)


def confirmed(before: Baseline | None, facts: Facts, card: str, by: str, now: datetime) -> Baseline | None:
    """Return the baseline after a server has accepted the GPU with these facts: what was not known, and what is better,
    is added. None when nothing is known."""
    if before is None:
        return renewed(None, facts, card, by, now)
    retained = {name: then for name, (_, then) in worse(facts, before).items()}
    merged = {**before.facts, **facts, **retained}
    if merged == before.facts and (before.card or not card):
        return before
    return Baseline(now, by, before.card or card, merged)


def renewed(before: Baseline | None, facts: Facts, card: str, by: str, now: datetime) -> Baseline | None:
    """Return the baseline after a person has accepted these facts. Facts that are not known now stay as they were. None
    when nothing is known."""
    merged = {**(before.facts if before is not None else {}), **facts}
    return Baseline(now, by, card or (before.card if before is not None else ""), merged) if merged else None


def for_card(baseline: Baseline | None, card: str) -> Baseline | None:
    """Return the baseline under another name of the same card."""
    return replace(baseline, card=card) if baseline is not None else None


def fact_words(name: str, value: float) -> str:
    """Format a fact: ``8 PCIe lanes``."""
    return f"{value:g} {FACTS[name].unit}"


def facts_words(facts: Facts) -> str:
    """Format facts in the order of FACTS: ``8 PCIe lanes, 16 GT/s``."""
    return ", ".join(fact_words(name, facts[name]) for name in FACTS if name in facts)
