"""What a GPU was accepted with: who may make it worse, and when it ends."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.health.baseline import FACTS, Baseline, confirmed, facts_words, failing, is_worse, renewed, worse
from gpuyard.health.host_reports import HostMemory, facts_of, judge
from gpuyard.health.life import become
from gpuyard.health.limits import SitePlace
from gpuyard.health.planner import Circumstances, GpuObservation, plan_health
from gpuyard.health.records import GpuHealth, HealthState, Observation
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport
from gpuyard.site.health_rules import SiteHealth

THEN, NOW = datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 23, tzinfo=UTC)
AT_X8 = Baseline(THEN, "ada", "1323022081234", {"link-width": 8, "rows-corrected": 1})
facts = st.dictionaries(st.sampled_from(sorted(FACTS)), st.integers(0, 2**53).map(float))
baselines = st.none() | st.builds(Baseline, st.just(THEN), st.just("ada"), st.just("card"), facts)


def test_fewer_lanes_and_more_errors_are_worse() -> None:
    assert worse({"link-width": 4, "rows-corrected": 1}, AT_X8) == {"link-width": (4, 8)}
    assert worse({"link-width": 16, "rows-corrected": 2}, AT_X8) == {"rows-corrected": (2, 1)}
    assert worse({"ecc-corrected": 9}, AT_X8) == {}, "nothing was known of these"
    assert worse({"link-width": 1}, None) == {}


def test_an_acceptance_fails_for_what_no_use_and_no_chance_explains() -> None:
    then = Baseline(THEN, "ada", "card", {"bandwidth": 50, "ecc-corrected": 3, "ecc-uncorrected": 3, "link-speed": 16})
    assert failing({"bandwidth": 25, "ecc-corrected": 900, "ecc-uncorrected": 3, "link-speed": 16}, then) == {}
    worst = {"bandwidth": 24.9, "ecc-uncorrected": 4, "link-speed": 8.0}
    assert failing(worst, then) == {"bandwidth": (24.9, 50), "ecc-uncorrected": (4, 3), "link-speed": (8, 16)}


def test_a_server_that_accepts_a_gpu_does_not_make_a_fault_the_rule() -> None:
    after = confirmed(AT_X8, {"link-width": 4, "rows-corrected": 0, "link-speed": 16}, "1323022081234", "bob", NOW)
    assert after == Baseline(NOW, "bob", "1323022081234", {"link-width": 8, "rows-corrected": 0, "link-speed": 16})
    assert confirmed(AT_X8, {"link-width": 4}, "1323022081234", "bob", NOW) is AT_X8, "nothing new is known"


def test_a_person_who_answers_for_it_does() -> None:
    after = renewed(AT_X8, {"link-width": 4}, "1323022081234", "bob", NOW)
    assert after == Baseline(NOW, "bob", "1323022081234", {"link-width": 4, "rows-corrected": 1})
    assert renewed(None, {}, "card", "bob", NOW) is None


@given(baselines, facts)
def test_what_a_server_confirms_is_never_worse_than_before(before: Baseline | None, seen: dict[str, float]) -> None:
    after = confirmed(before, seen, "card", "bob", NOW)
    facts_before = before.facts if before else {}
    assert (after.facts if after else {}).keys() == facts_before.keys() | seen.keys()
    assert not worse(after.facts if after else {}, before)
    for name, value in seen.items():
        assert after is not None
        assert not is_worse(name, after.facts[name], value) or name not in facts_before


@given(baselines, facts)
def test_what_a_person_has_released_equals_its_baseline(before: Baseline | None, seen: dict[str, float]) -> None:
    assert not worse(seen, renewed(before, seen, "card", "bob", NOW))


def test_it_is_told_in_words() -> None:
    assert facts_words({"rows-corrected": 2, "link-width": 8}) == "8 PCIe lanes, 2 rows remapped after corrected errors"


X8 = GpuReport("0000:01:00.0", True, "10de:20b5", "de10b520", "vfio-pci", 1, LinkReport(16.0, 8, 16.0, 16), "D0")


def test_a_card_in_a_slot_that_is_wired_x8_goes_bad_once_and_not_every_day() -> None:
    """It is seen every five minutes for a week; whoever finds it out of use says each time that it is well."""
    rules, place = SiteHealth.model_validate({}), SitePlace("h", X8.address, "a30", "s")
    gpu = GpuHealth(place.host, place.address, place.pool, HealthState.FINE, THEN)
    memory: HostMemory | None = None
    observations: list[Observation] = []
    went: list[HealthState] = []
    for step in range(7 * 24 * 12):
        now = THEN + timedelta(minutes=5 * (step + 1))
        look = HostReport("h", "b", step, "", gpus=(X8,))
        new_observations, memory = judge(memory, look, {gpu.address: gpu}, now)
        gpu = replace(gpu, shown=facts_of(X8, None, now))
        observations += [replace(observation, id=step + 1) for observation in new_observations]
        around = Circumstances(now, {place.name: GpuObservation()}, now, {"h": now})
        for change in plan_health([place], [gpu], observations, rules, around).changes:
            gpu, observations = (
                change.gpu,
                [observation for observation in observations if observation.id not in change.settles],
            )
            went += [event.after for event in change.events if event.before is not event.after]
        if gpu.state is HealthState.QUARANTINED:  # as the desk does it
            accepted = replace(gpu, baseline=renewed(gpu.baseline, gpu.shown, gpu.card, "ada", now))
            gpu, _ = become(accepted, HealthState.FINE, now, "wired x8, it is well", by="ada")
    assert went == [HealthState.SUSPECT, HealthState.QUARANTINED]
