"""What follows from a signal: which line of the site file counts, what it changes, and trials."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gpuyard.health.records import KEPT_BACK, HealthState
from gpuyard.health.verdicts import BUILT_IN, JUDGEMENTS, SignalVerdicts
from gpuyard.model.signals import SIGNALS, Judgement
from gpuyard.site.health_rules import SiteHealth
from tests.unit.health.test_health_planner import EIGHT, World

GPU, POOL, FIRST = EIGHT[0].name, EIGHT[0].pool, EIGHT[0]


def rules(**health: Any) -> SiteHealth:
    return SiteHealth.model_validate(health)


# What the site file says


def test_without_a_word_all_is_as_in_the_table() -> None:
    for verdicts in (BUILT_IN, SignalVerdicts(rules())):
        assert verdicts.overruled(GPU, POOL) == []
        for code, signal in SIGNALS.items():
            verdict = verdicts.of(code, GPU, POOL)
            assert (verdict.judgement, verdict.cause, verdict.trial) == (signal.judgement, signal.threshold, False)


def test_a_verdict_says_by_which_line_it_is_overruled() -> None:
    site_rules = rules(
        signals={"link-width": "off", "aer-correctable": {"threshold": 500}, "gone-under": {"threshold": "1 h"}},
        pools={POOL: {"signals": {"link-width": "note", "aer-correctable": "bad"}}},
        gpus={GPU: {"signals": {"link-width": {"verdict": "bad", "trial": True}}}},
    )
    of = SignalVerdicts(site_rules).of
    assert of("link-width", "h/else", "else").text == "link-width: off, by health.signals.link-width: off"
    assert of("link-width", "h/else", POOL).because == (f"health.pools.{POOL}.signals.link-width: note",)
    own = of("link-width", GPU, POOL)
    line = f"health.gpus.{GPU}.signals.link-width"
    assert (own.judgement, own.in_force, own.trial) == (Judgement.BAD, Judgement.NOTE, True)
    assert own.text == f"link-width: on trial, by {line}: bad and {line}: trial"
    errors = of("aer-correctable", GPU, POOL)
    assert (errors.judgement, errors.count) == (Judgement.BAD, 500), "each key by itself"
    assert errors.cause == (
        "500 correctable AER errors an hour "
        f"[health.pools.{POOL}.signals.aer-correctable: bad; health.signals.aer-correctable: threshold 500]"
    )
    assert of("gone-under", GPU, POOL).words.startswith("its server was ACTIVE for 1 hour, and")


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "verdict": st.sampled_from(sorted(JUDGEMENTS)),
        "threshold": st.integers(1, 1000),
        "trial": st.booleans(),
    },
)
WHOLE = st.none() | st.booleans()


@given(st.tuples(PARTS, PARTS, PARTS), st.tuples(WHOLE, WHOLE, WHOLE), st.booleans(), st.booleans())
def test_the_most_specific_line_counts(
    parts: tuple[dict[str, Any], ...], whole: tuple[bool | None, ...], in_pool: bool, is_gpu: bool
) -> None:
    """Whatever is said of GPU, pool and site; what is said of others says nothing of this one."""
    pools = {POOL if in_pool else "else": {"signals": {"aer-correctable": parts[1]}, "trial": whole[1]}}
    gpus = {GPU if is_gpu else "h/else": {"signals": {"aer-correctable": parts[2]}, "trial": whole[2]}}
    site_rules = rules(signals={"aer-correctable": parts[0]}, trial=whole[0], pools=pools, gpus=gpus)
    verdict = SignalVerdicts(site_rules).of("aer-correctable", GPU, POOL)
    heard = [number for number, applies in ((2, is_gpu), (1, in_pool), (0, True)) if applies]

    def first(key: str, default: object) -> object:
        return next((parts[number][key] for number in heard if key in parts[number]), default)

    trials = [own for number in heard for own in (parts[number].get("trial"), whole[number]) if own is not None]
    assert verdict.judgement is JUDGEMENTS[str(first("verdict", "suspect"))]
    assert verdict.count == first("threshold", 100)
    assert verdict.trial is (trials[0] if trials else False)
    signal = SIGNALS["aer-correctable"]
    differs = verdict.judgement is not signal.judgement or verdict.count != signal.count or verdict.trial
    assert bool(verdict.because) is differs


def test_what_a_scrub_or_an_acceptance_says_cannot_be_overruled() -> None:
    of = SignalVerdicts(rules(trial=True, signals=dict.fromkeys(SIGNALS, "off"))).of
    fixed = {code for code in SIGNALS if of(code, GPU, POOL).in_force is Judgement.BAD}
    assert {"scrub-failed", "scrub-lost", "not-reserved", "acceptance"} <= fixed
    assert fixed == {code for code, signal in SIGNALS.items() if signal.is_fixed}


BAD_FILES: list[tuple[Mapping[str, Any], str]] = [
    ({"signals": {"link-widht": "note"}}, "did you mean 'link-width'"),
    ({"pools": {POOL: {"signals": {"nonsense!": "note"}}}}, "Known are missing, no-answer,"),
    ({"signals": {"link-width": "quarantine"}}, "'off', 'note', 'suspect' or 'bad'"),
    ({"signals": {"aer-correctable": {"threshold": 0}}}, "write a number from 1"),
    ({"signals": {"gone-under": {"threshold": "soon"}}}, "write a whole number and a unit"),
    ({"signals": {"link-width": {"treshold": 3}}}, "Extra inputs"),
]


@pytest.mark.parametrize(("said", "words"), BAD_FILES)
def test_what_a_site_file_cannot_say(said: dict[str, Any], words: str) -> None:
    with pytest.raises(ValidationError) as caught:
        rules(**said)
    assert words in str(caught.value)


def test_an_off_that_yaml_reads_as_false_is_off() -> None:
    assert rules(signals={"link-width": False}).signals["link-width"].verdict == "off"


# What becomes of GPUs


def test_what_is_off_leaves_no_trace_and_what_is_a_note_holds_nothing_back() -> None:
    site_rules = rules(signals={"link-width": "off"}, pools={POOL: {"signals": {"no-answer": "note"}}})
    world = World(rules=site_rules)
    world.see("link-width", FIRST)
    world.see("no-answer", EIGHT[1])
    events = len(world.events)
    world.run()
    assert world.open == []
    assert world.state(FIRST) is world.state(EIGHT[1]) is HealthState.FINE
    (note,) = world.events[events:]
    assert (note.address, note.signal) == (EIGHT[1].address, "no-answer")
    assert note.cause == f"its config space reads 0xff [health.pools.{POOL}.signals.no-answer: note]"


def test_a_gpu_says_that_its_verdict_was_overruled() -> None:
    world = World(rules=rules(gpus={GPU: {"signals": {"throttled": "bad"}}}))
    world.see("throttled", FIRST, EIGHT[1])
    world.run()
    assert (world.state(FIRST), world.state(EIGHT[1])) == (HealthState.QUARANTINED, HealthState.FINE)
    assert world.records[GPU].cause.endswith(f"[health.gpus.{GPU}.signals.throttled: bad]")


def test_a_trial_says_what_it_would_have_done_and_holds_nothing_back() -> None:
    world = World(rules=rules(trial=True, quarantine=0))
    world.see("link-width", FIRST)
    world.see("no-answer", *EIGHT[1:])
    world.run()
    assert {record.state for record in world.records.values()} == {HealthState.FINE}
    assert world.asked == ()
    first, other = world.records[GPU].trial, world.records[EIGHT[1].name].trial
    assert first is not None
    assert other is not None
    assert (first.state, first.signal, other.state) == (HealthState.SUSPECT, "link-width", HealthState.QUARANTINED)
    causes = [event.cause for event in world.events if event.cause.startswith("trial")]
    assert causes[-1].startswith("trial: it would be quarantined: its config space reads 0xff [health.trial]")
    assert not any(event.after in KEPT_BACK for event in world.events)
    world.later(minutes=11)
    silent = world.records[GPU].trial
    assert silent is not None
    assert silent.state is HealthState.SUSPECT, "its host has not looked since"
    world.heard["h"] = world.now
    world.run()
    passed = world.records[GPU].trial
    assert passed is not None
    assert passed.state is HealthState.FINE, "as the real one would pass"
    assert world.events[-1].cause.startswith("trial: it would be fine again, and was suspect since")
    world.later(days=8)
    assert world.records[GPU].trial is None


@pytest.mark.parametrize("trial", [False, True])
@pytest.mark.parametrize(("every", "times", "ways"), [
    (timedelta(hours=20), 5, [HealthState.SUSPECT, HealthState.FINE] * 4 + [HealthState.QUARANTINED]),
    (timedelta(minutes=5), 12 * 25, [HealthState.SUSPECT, HealthState.QUARANTINED]),
])  # fmt: skip
def test_a_trial_goes_where_the_signal_itself_goes(
    every: timedelta, times: int, ways: list[HealthState], trial: bool
) -> None:
    """The same is seen in the same world, once in earnest: again and again, and for a day."""
    world, went = World(rules=rules(signals={"link-width": {"trial": trial}})), [HealthState.FINE]

    def run() -> None:
        world.heard["h"] = world.now
        world.run()
        tried = world.records[GPU].trial
        state = world.state(FIRST) if not trial else tried.state if tried else HealthState.FINE
        went.extend([state] if state is not went[-1] else [])
        assert not trial or world.state(FIRST) is HealthState.FINE

    for _ in range(times):
        world.see("link-width", FIRST)
        run()
        world.now += every
        run()
    assert went[1:] == ways


def test_a_trial_ends_with_its_line() -> None:
    world = World(rules=rules(trial=True))
    world.see("no-answer", FIRST)
    world.run()
    assert world.records[GPU].trial is not None
    world.rules = rules()
    world.run()
    assert world.records[GPU].trial is None
    assert world.state(FIRST) is HealthState.FINE
