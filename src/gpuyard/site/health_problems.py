"""Checks ``health`` of a site beyond what the schema can express."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable
from datetime import timedelta

from gpuyard.model.signals import SIGNALS, Judgement, Signal
from gpuyard.site.health_rules import SignalRule, SiteHealth
from gpuyard.site.problems import Place, Problem
from gpuyard.site.schema import Site

WITH_COUNT = tuple(code for code, signal in SIGNALS.items() if signal.count)
WITH_TIME = tuple(code for code, signal in SIGNALS.items() if signal.lasts)


def health_problems(site: Site, gpus: Collection[str]) -> Iterable[Problem]:
    """Yield every problem of a site's health rules. `gpus`: those of the site, ``host/address``."""
    health = site.health
    if health is None:
        return
    if site.booking is None:
        yield Problem(("health",), "GPUs are kept back by the ledger, which the site has not; add 'booking: {}'")
    yield from _acceptance(site, health)
    yield from _signals(("health", "signals"), health.signals)
    for kind, parts, known_names in (("pools", health.pools, site.pools), ("gpus", health.gpus, gpus)):
        for name, part in parts.items():
            place: Place = ("health", kind, name)
            if name not in known_names:
                yield Problem(place, _unknown(name, kind, known_names))
            yield from _signals((*place, "signals"), part.signals)


def _unknown(name: str, kind: str, known_names: Collection[str]) -> str:
    close = difflib.get_close_matches(name, known_names, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"the site has {', '.join(sorted(known_names)[:8]) or 'none'}"
    return f"unknown {'pool' if kind == 'pools' else 'GPU'} {name!r}; {hint}"


def _acceptance(site: Site, health: SiteHealth) -> Iterable[Problem]:
    acceptance, place = health.acceptance, ("health", "acceptance", "project")
    if acceptance is None or acceptance.project is None:
        return
    if acceptance.project in site.projects:
        reason = (
            f"{acceptance.project!r} is under 'projects', and servers that accept GPUs are in one of gpuyard's own, "
            "where nobody else starts any; name another one"
        )
        yield Problem(place, reason)
    if site.runners is not None and acceptance.project == site.runners.project:
        yield Problem(place, f"{acceptance.project!r} is the project of the runners; name another one")


def _signals(place: Place, rules: dict[str, SignalRule]) -> Iterable[Problem]:
    for code, rule in rules.items():
        signal, signal_place = SIGNALS[code], (*place, code)
        if signal.is_fixed:
            reason = "its verdict is fixed: a GPU that is not clean or has failed its acceptance is always kept back"
            yield Problem(signal_place, f"{reason}; leave it out")
            continue
        if signal.judgement is Judgement.STALE and rule.verdict in ("suspect", "bad"):
            reason = "it says that an acceptance does not hold any more, and which do 'health.acceptance.required' says"
            yield Problem(signal_place, f"{reason}; write 'off' or 'note'")
        if rule.threshold is not None:
            yield from _threshold((*signal_place, "threshold"), signal, rule.threshold)


def _threshold(place: Place, signal: Signal, threshold: int | timedelta) -> Iterable[Problem]:
    if not signal.count and not signal.lasts:
        have = ", ".join((*WITH_COUNT, *WITH_TIME))
        yield Problem(place, f"{signal.code} has no threshold; leave it out. Those that have one: {have}")
    elif signal.count and not isinstance(threshold, int):
        yield Problem(place, f"{signal.code} counts; write a number, as in {signal.count}")
    elif signal.lasts and not isinstance(threshold, timedelta):
        yield Problem(place, f"{signal.code} takes time; write a duration, as in '{signal.lasts.seconds // 60} min'")
