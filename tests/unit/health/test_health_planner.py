"""What becomes of GPUs: the cases one by one, and what holds whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.health.life import TRANSITIONS
from gpuyard.health.limits import PROVOKED, SitePlace, by_rule, is_infrastructure
from gpuyard.health.planner import (
    LATELY,
    LONGEST_WAIT,
    Circumstances,
    GpuObservation,
    HealthPlan,
    kept_back,
    plan_health,
    wait,
)
from gpuyard.health.records import KEPT_BACK, GpuHealth, HealthEvent, HealthState, Observation
from gpuyard.model.signals import SIGNALS, Judgement
from gpuyard.site.health_rules import SiteHealth

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
RULES = SiteHealth.model_validate({})
ACCEPTING = SiteHealth.model_validate({"acceptance": {"required": ["new", "repair", "kernel"]}})


def place(number: int, pool: str = "t4", slot: str = "", *, once: bool = False) -> SitePlace:
    address = f"0000:{number:02x}:00.0"
    return SitePlace("h", address, pool, slot or f"h {address}", once)


EIGHT = tuple(place(number) for number in range(8))


class World:
    """Plans, and writes what is planned, as the loop does."""

    def __init__(self, places: Sequence[SitePlace] = EIGHT, rules: SiteHealth = RULES) -> None:
        self.places, self.rules, self.now = places, rules, NOW
        self.records: dict[str, GpuHealth] = {}
        self.open: list[Observation] = []
        self.events: list[HealthEvent] = []
        self.gpu_observations: dict[str, GpuObservation] = {place.name: GpuObservation() for place in places}
        self.heard: dict[str, datetime] = {}
        self.asked: tuple[str, ...] = ()
        self.looked: datetime | None = None
        self.left: dict[str, HealthState] = {}
        self._ids = 0
        self.run()

    def see(self, code: str, *places: SitePlace, by: str = "") -> None:
        for place in places:
            self._ids += 1
            self.open.append(Observation(place.host, place.address, code, self.now, "what was seen", by, self._ids))

    def plan(self) -> HealthPlan:
        since = self.now - LATELY
        came = [
            event
            for event in self.events
            if event.after is HealthState.SUSPECT and event.before is not HealthState.SUSPECT
        ]
        suspected = {
            place.name: sum(1 for event in came if event.address == place.address and event.time >= since)
            for place in self.places
        }
        around = Circumstances(self.now, self.gpu_observations, self.looked, self.heard, suspected, left=self.left)
        return plan_health(self.places, self.records.values(), self.open, self.rules, around)

    def run(self) -> HealthPlan:
        plan = self.plan()
        for change in plan.changes:
            if change.gone:
                del self.records[change.gpu.name]
            else:
                self.records[change.gpu.name] = change.gpu
            self.events += change.events
            self.open = [observation for observation in self.open if observation.id not in change.settles]
        self.open = [observation for observation in self.open if observation.id not in plan.settles]
        self.asked = plan.asked
        return plan

    def state(self, place: SitePlace) -> HealthState:
        return self.records[place.name].state

    def later(self, **more: float) -> None:
        self.now += timedelta(**more)
        self.run()


def test_a_new_site_is_fine_unless_new_gpus_are_to_be_accepted() -> None:
    world = World()
    assert {record.state for record in world.records.values()} == {HealthState.FINE}
    assert [event.cause for event in world.events][:1] == ["first seen: nothing is known against it"]
    assert not world.plan().changes, "and that is all"
    assert {record.state for record in World(rules=ACCEPTING).records.values()} == {HealthState.TO_ACCEPT}


def test_a_server_comes_and_goes() -> None:
    world, place = World(), EIGHT[0]
    world.gpu_observations[place.name] = GpuObservation("s1")
    world.later(seconds=5)
    assert (world.state(place), world.records[place.name].cause) == (HealthState.IN_USE, "server s1 has it")
    world.gpu_observations[place.name] = GpuObservation("s2")
    world.later(seconds=5)
    assert [event.after for event in world.events[-2:]] == [HealthState.RETURNED, HealthState.IN_USE]
    world.gpu_observations[place.name] = GpuObservation()
    world.later(seconds=5)
    assert world.state(place) is HealthState.RETURNED, "its host has said nothing since"
    world.heard["h"] = world.now
    world.later(seconds=5)
    assert world.state(place) is HealthState.RETURNED, "in the very moment it was seen to be back"
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(place) is HealthState.FINE


def test_one_that_goes_from_server_to_server_without_a_scrub_is_said() -> None:
    """Nova does not reserve it (see test_scrubs.py), and the next server was faster than any look. A resize is none:
    its migration holds the GPU, which a revert gives back (nova 34.0.0, nova/compute/manager.py: `_revert_allocation`).
    """
    single_use, other = place(1, once=True), place(2)
    world = World([single_use, other])
    holders = (("s1", False), ("s2", False), ("m1", True), ("s2", False), ("s3", False))
    for server, is_moved in holders:
        world.gpu_observations |= {each.name: GpuObservation(server, is_moved=is_moved) for each in (single_use, other)}
        world.later(seconds=5)
    unscrubbed = [(event.address, event.evidence) for event in world.events if event.signal == "unscrubbed"]
    assert unscrubbed == [
        (single_use.address, "server s2; before: server s1 has it"),
        (single_use.address, "server s3; before: server s2 has it"),
    ]
    assert world.state(single_use) is HealthState.IN_USE


def test_a_gpu_that_is_used_once_waits_for_its_scrub() -> None:
    single_use = place(1, once=True)
    world = World([single_use])
    world.gpu_observations[single_use.name] = GpuObservation("s1")
    world.later(seconds=5)
    world.gpu_observations[single_use.name] = GpuObservation(reserved=True)
    world.heard["h"] = world.now + timedelta(seconds=5)
    world.later(seconds=5)
    world.later(seconds=5)
    assert world.state(single_use) is HealthState.RETURNED
    world.records[single_use.name] = replace(world.records[single_use.name], state=HealthState.FINE)
    world.later(seconds=5)
    assert world.state(single_use) is HealthState.RETURNED, "a use that nobody saw"
    world.looked = world.now
    world.records[single_use.name] = replace(world.records[single_use.name], state=HealthState.FINE, since=world.now)
    world.later(milliseconds=500)
    assert world.state(single_use) is HealthState.FINE, "it was released after that look at the cloud"
    world.looked = world.now + timedelta(seconds=1)
    world.later(seconds=1)
    assert world.state(single_use) is HealthState.RETURNED


def test_what_cannot_be_seen_moves_nothing() -> None:
    world, place = World(), EIGHT[0]
    world.gpu_observations[place.name] = GpuObservation("s1")
    world.later(seconds=5)
    world.gpu_observations.clear()
    world.later(days=30)
    assert world.state(place) is HealthState.IN_USE


def test_a_bad_gpu_is_quarantined_and_only_a_person_ends_that() -> None:
    world, place = World(), EIGHT[0]
    world.see("no-answer", place)
    world.run()
    assert kept_back(world.records.values()) == {
        ("h", place.address): "quarantined: its config space reads 0xff (no-answer)"
    }
    event = world.events[-1]
    assert (event.before, event.after, event.evidence) == (HealthState.FINE, HealthState.QUARANTINED, "what was seen")
    world.heard["h"] = world.now + timedelta(days=99)
    world.later(days=100)
    assert world.state(place) is HealthState.QUARANTINED
    assert world.open == []


def test_a_suspect_is_fine_again_after_a_wait_that_grows_and_at_last_quarantined() -> None:
    world, place = World(), EIGHT[0]
    waits = []
    for _ in range(RULES.relapses - 1):
        world.see("reported", place, by="ada")
        world.run()
        gpu = world.records[place.name]
        assert gpu.until is not None
        waits.append(gpu.until - world.now)
        world.now = gpu.until - timedelta(seconds=1)
        world.run()
        assert world.state(place) is HealthState.SUSPECT
        world.later(seconds=1)
        assert world.state(place) is HealthState.FINE
    assert waits == [timedelta(minutes=10) * 2**n for n in range(4)]
    world.see("reported", place, by="ada")
    world.run()
    gpu = world.records[place.name]
    assert (gpu.state, gpu.cause) == (
        HealthState.QUARANTINED, "suspect for the 5th time within a week: somebody reported a fault"
    )  # fmt: skip


def test_relapses_of_the_week_before_do_not_count() -> None:
    world, place = World(), EIGHT[0]
    for _ in range(20):
        world.see("reported", place)
        world.run()
        assert world.records[place.name].relapses == 1
        world.later(days=8)


def test_what_its_host_saw_passes_only_when_its_host_looks() -> None:
    world, place = World(), EIGHT[0]
    world.see("link-width", place)
    world.run()
    world.later(hours=5)
    assert world.state(place) is HealthState.SUSPECT, "nothing was seen because nobody has looked"
    world.heard["h"] = world.now - timedelta(minutes=3)
    world.later(seconds=1)
    assert world.state(place) is HealthState.SUSPECT, "nor lately"
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(place) is HealthState.FINE


def test_what_its_guest_saw_passes_only_when_its_host_looks_where_hosts_do() -> None:
    world, place = World(), EIGHT[0]
    world.heard["h"] = world.now
    world.see("guest-lost", place)
    world.run()
    world.later(hours=5)
    assert world.state(place) is HealthState.SUSPECT
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(place) is HealthState.FINE


def test_what_does_not_pass_in_a_day_is_quarantined() -> None:
    world, place = World(), EIGHT[0]
    for _ in range(200):
        world.see("link-width", place)
        world.heard["h"] = world.now
        world.later(minutes=9)
    assert world.state(place) is HealthState.QUARANTINED
    assert world.records[place.name].cause == "it was seen for a day, and did not pass"


def test_a_suspect_below_a_server_is_in_use_again() -> None:
    world, place = World(), EIGHT[0]
    world.gpu_observations[place.name] = GpuObservation("s1")
    world.later(seconds=5)
    world.see("xid-reset", place, by="s1")
    world.run()
    assert world.state(place) is HealthState.SUSPECT
    assert world.events[-1].evidence == "s1: what was seen"
    world.later(minutes=10)
    assert world.state(place) is HealthState.IN_USE


def test_a_bad_rule_does_not_empty_the_cloud() -> None:
    world = World()
    world.see("link-width", *EIGHT)
    world.run()
    out = [place for place in EIGHT if world.state(place) in KEPT_BACK]
    assert out == list(EIGHT[:2]), "a quarter of eight, and those that were seen first"
    assert world.asked == tuple(place.name for place in EIGHT[2:])
    (_, text) = [event.cause for event in world.events if event.address == EIGHT[7].address]
    lanes = "in D0, with fewer lanes than both ends can"
    assert text.startswith(f"{lanes}: it should be kept back, and too much of pool t4 is so already")
    assert not world.plan().changes, "it is said once"
    # A person looks after the two: they count no more.
    for place in EIGHT[:2]:
        world.records[place.name] = replace(world.records[place.name], state=HealthState.IN_REPAIR, by="ada")
    world.run()
    assert [world.state(place) for place in EIGHT[2:5]] == [HealthState.SUSPECT, HealthState.SUSPECT, HealthState.FINE]
    assert len(world.asked) == 4


def test_a_guest_that_lies_uses_up_no_more_than_the_limit_of_guests() -> None:
    world = World()
    world.see("xid-restart", *EIGHT[:4], by="s1")
    world.run()
    assert [world.state(place) for place in EIGHT[:4]] == [
        HealthState.QUARANTINED,
        HealthState.QUARANTINED,
        HealthState.FINE,
        HealthState.FINE,
    ]
    world.see("no-answer", EIGHT[5])
    world.see("no-provider", EIGHT[6])
    world.see("scrub-failed", EIGHT[7], EIGHT[4])
    world.run()
    assert [world.state(place) for place in EIGHT[4:]] == [HealthState.QUARANTINED] * 4
    assert world.asked == (EIGHT[2].name, EIGHT[3].name)


def test_no_limit_lets_a_gpu_go_on_as_its_tenant_left_it() -> None:
    """docs/how-to/watch-gpu-health.md: one that Nova does not reserve is quarantined before the next one gets it. Why
    it does not is true of all GPUs of a host at once."""
    world = World(tuple(place(number, once=True) for number in range(8)))
    world.see("not-reserved", *world.places)
    world.see("no-answer", EIGHT[0])
    world.run()
    assert {world.state(gpu) for gpu in EIGHT} == {HealthState.QUARANTINED}
    assert world.asked == ()


def test_what_hosts_and_nova_call_bad_has_no_limit_and_uses_up_none() -> None:
    world = World()
    world.see("no-answer", *EIGHT[:3])
    world.see("no-provider", EIGHT[3])
    world.see("aer-fatal", EIGHT[4])
    world.run()
    assert [world.state(place) for place in EIGHT[:5]] == [HealthState.QUARANTINED] * 5
    world.see("link-width", EIGHT[5], EIGHT[6])
    world.see("missing", EIGHT[7])
    world.run()
    assert [world.state(place) for place in EIGHT[5:]] == [
        HealthState.SUSPECT,
        HealthState.SUSPECT,
        HealthState.QUARANTINED,
    ]
    assert world.asked == ()


@pytest.mark.parametrize("code", sorted(PROVOKED))
@pytest.mark.parametrize("verdict", ["suspect", "bad"])
def test_what_a_guest_can_have_a_host_see_uses_up_the_limit_of_guests(code: str, verdict: str) -> None:
    world = World(rules=SiteHealth.model_validate({"signals": {code: verdict}}))
    world.see(code, *EIGHT[:3])
    world.run()
    expected = HealthState.QUARANTINED if verdict == "bad" else HealthState.SUSPECT
    assert [world.state(place) for place in EIGHT[:3]] == [expected, expected, HealthState.FINE]
    world.see("link-width", *EIGHT[3:5])
    world.see("no-answer", EIGHT[5])
    world.see("missing", EIGHT[6])
    world.see("xid-restart", EIGHT[7], by="s1")
    world.run()
    assert [world.state(place) for place in EIGHT[3:]] == [
        HealthState.SUSPECT, HealthState.SUSPECT, HealthState.QUARANTINED, HealthState.QUARANTINED, HealthState.FINE
    ]  # fmt: skip
    assert world.asked == (EIGHT[2].name, EIGHT[7].name)


def test_the_worst_comes_first() -> None:
    world = World()
    world.see("reported", *EIGHT[:4])
    world.see("xid-restart", EIGHT[6], EIGHT[7])
    world.run()
    assert [world.state(place) for place in EIGHT[6:]] == [HealthState.QUARANTINED] * 2
    assert world.asked == tuple(place.name for place in EIGHT[:4])


def test_one_slot_is_always_kept_back_and_as_a_whole() -> None:
    pairs = tuple(place(n, slot=f"h {n // 2}") for n in range(4))
    world = World(pairs)
    world.see("link-width", pairs[0], pairs[2])
    world.run()
    assert (world.state(pairs[0]), world.state(pairs[1])) == (HealthState.SUSPECT, HealthState.FINE), "half of a group"
    assert world.asked == (pairs[2].name,), "its slot is half of the pool"
    world.see("link-width", pairs[1])
    world.run()
    assert world.state(pairs[1]) is HealthState.SUSPECT, "its slot is out already"


def test_who_said_leave_it_is_not_asked_about_that_again() -> None:
    world = World()
    world.see("link-width", *EIGHT[:3])
    world.run()
    third = world.records[EIGHT[2].name]
    assert third.asked
    world.records[EIGHT[2].name] = replace(third, asked=False, by="ada", signal="link-width")
    world.open.clear()
    world.see("link-width", EIGHT[2])
    assert world.run().asked == ()
    assert world.open == []
    world.see("link-speed", EIGHT[2])
    world.run()
    assert world.asked == (EIGHT[2].name,), "about something else"


def test_what_is_stale_waits_until_it_is_idle() -> None:
    world, place = World(), EIGHT[0]
    world.see("kernel", place)
    world.run()
    assert (world.state(place), world.open) == (HealthState.FINE, []), "this site does not ask for it"
    world.rules = ACCEPTING
    world.gpu_observations[place.name] = GpuObservation("s1")
    world.later(seconds=5)
    world.see("kernel", *EIGHT[:4])
    world.later(seconds=5)
    assert [world.state(gpu) for gpu in EIGHT[:4]] == [
        HealthState.IN_USE,
        HealthState.TO_ACCEPT,
        HealthState.TO_ACCEPT,
        HealthState.FINE,
    ]
    assert world.asked == (EIGHT[3].name,), "a kernel on all hosts at once does not empty the cloud either"
    for gpu in EIGHT[1:4]:
        world.records[gpu.name] = replace(world.records[gpu.name], state=HealthState.FINE, asked=False, signal="")
    world.open = [observation for observation in world.open if observation.gpu == place.name]
    world.gpu_observations[place.name] = GpuObservation()
    world.later(seconds=5)
    assert world.state(place) is HealthState.TO_ACCEPT


def test_notes_change_nothing_and_are_said_once() -> None:
    world, place = World(), EIGHT[0]
    world.see("throttled", place)
    world.see("throttled", place, by="other")
    plan = world.run()
    assert world.state(place) is HealthState.FINE
    assert len(plan.changes[0].events) == 1
    assert world.open == []


def test_what_the_site_does_not_have_is_let_go_of() -> None:
    world = World()
    world.see("no-answer", place(77))
    world.see("of-another-release", EIGHT[0])
    plan = world.run()
    assert (plan.settles, world.open, plan.changes) == ((1, 2), [], ())
    world.places = EIGHT[1:]
    world.run()
    assert EIGHT[0].name not in world.records
    assert world.events[-1].cause == "it has left the site file"


def test_what_leaves_the_site_while_it_is_out_of_use_comes_back_so() -> None:
    world, (bad, repaired, suspect, new, well) = World(), EIGHT[:5]
    before = {
        repaired: HealthState.IN_REPAIR,
        bad: HealthState.QUARANTINED,
        suspect: HealthState.SUSPECT,
        new: HealthState.TO_ACCEPT,
        well: HealthState.IN_USE,
    }
    world.places = EIGHT[5:]
    world.run()
    world.left, world.places = {place.name: state for place, state in before.items()}, EIGHT
    world.run()
    assert [world.state(place) for place in (bad, repaired, suspect, new, well)] == [
        HealthState.QUARANTINED, HealthState.QUARANTINED, HealthState.SUSPECT, HealthState.TO_ACCEPT, HealthState.FINE
    ]  # fmt: skip
    assert world.records[repaired.name].cause == "it was in repair when it left the site file"
    assert not world.plan().changes, "and that is all"
    world.later(minutes=11)
    assert world.state(suspect) is HealthState.FINE


def test_a_clock_that_was_ahead_keeps_nothing_waiting() -> None:
    single_use, suspect = place(1, once=True), place(2)
    world = World([single_use, suspect])
    world.now += timedelta(days=4000)
    world.gpu_observations[single_use.name] = GpuObservation("s1")
    world.see("link-speed", suspect)
    world.run()
    world.gpu_observations[single_use.name] = GpuObservation()
    world.later(seconds=5)
    world.records[single_use.name] = replace(world.records[single_use.name], state=HealthState.FINE)
    world.heard["h"] = world.now
    world.now = NOW + timedelta(minutes=1)
    world.run()
    world.gpu_observations[single_use.name], world.looked = (
        GpuObservation(reserved=True),
        world.now + timedelta(seconds=5),
    )
    world.later(seconds=5)
    assert world.state(single_use) is HealthState.RETURNED
    world.later(days=1, minutes=1)
    assert world.state(suspect) is HealthState.SUSPECT, "its host was heard when the clock was ahead, and not since"
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(suspect) is HealthState.FINE


def test_everybody_is_told_why_a_gpu_is_kept_back_but_not_in_the_words_of_an_operator() -> None:
    world, place = World(), EIGHT[0]
    world.see("no-answer", place)
    world.run()
    assert set(kept_back(world.records.values()).values()) == {"quarantined: its config space reads 0xff (no-answer)"}
    record = replace(world.records[place.name], by="eve", signal="", cause="ada overclocked it")
    assert set(kept_back([record]).values()) == {"quarantined: an operator has decided so"}


def test_another_card_in_a_gpu_that_is_out_of_use_is_to_be_accepted_when_that_is_over() -> None:
    world, place = World(rules=SiteHealth.model_validate({"acceptance": {"required": ["new"]}})), EIGHT[0]
    world.records[place.name] = replace(world.records[place.name], state=HealthState.IN_REPAIR, keeper="eve")
    world.see("changed", place)
    world.run()
    assert world.state(place) is HealthState.IN_REPAIR
    world.records[place.name] = replace(world.records[place.name], state=HealthState.FINE, keeper="", by="eve")
    world.later(seconds=1)
    assert (world.state(place), world.open) == (HealthState.TO_ACCEPT, [])
    world.see("changed", place)
    world.later(seconds=1)
    assert (world.state(place), world.open) == (HealthState.TO_ACCEPT, [])


@pytest.mark.parametrize("relapses", [0, 1, 5, 19, 10**6])
def test_no_wait_is_longer_than_a_day(relapses: int) -> None:
    assert RULES.suspect <= wait(RULES, relapses) <= LONGEST_WAIT


# Whatever happens.

PLACES = (*(place(n, slot=f"h {n // 2}") for n in range(6)), *(place(n, "v100", once=True) for n in range(6, 10)))
CODES = sorted(SIGNALS)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("see"), st.sampled_from(CODES), st.sets(st.sampled_from(PLACES), min_size=1)),
        st.tuples(st.just("server"), st.sampled_from(["", "s1", "s2"]), st.sets(st.sampled_from(PLACES), min_size=1)),
        st.tuples(st.just("reserve"), st.booleans(), st.sets(st.sampled_from(PLACES), min_size=1)),
        st.tuples(st.just("blind"), st.none(), st.sets(st.sampled_from(PLACES), min_size=1)),
        st.tuples(st.just("hear"), st.none(), st.none()),
        st.tuples(st.just("wait"), st.sampled_from([1, 60, 3600, 90_000, -600]), st.none()),
        st.tuples(
            st.just("person"),
            st.sampled_from([HealthState.FINE, HealthState.TO_ACCEPT, HealthState.QUARANTINED, HealthState.IN_REPAIR]),
            st.sets(st.sampled_from(PLACES), min_size=1),
        ),
    ),
    max_size=25,
)


@settings(max_examples=60, deadline=None)
@given(STEPS, st.sampled_from([RULES, ACCEPTING, SiteHealth.model_validate({"quarantine": 0})]))
def test_whatever_happens(steps: list[tuple[str, object, object]], rules: SiteHealth) -> None:
    world = World(PLACES, rules)
    for what, value, concerned in steps:
        chosen: set[SitePlace] = concerned if isinstance(concerned, set) else set()
        before = dict(world.records)
        held = {f"{place.pool} {place.slot}" for place in PLACES if _kept(world, place)}
        theirs = held - _out(world)
        by_person = False
        match what:
            case "see":
                world.see(str(value), *sorted(chosen, key=lambda one: one.address))
            case "server":
                world.gpu_observations |= {
                    place.name: GpuObservation(str(value), place.once and not value) for place in chosen
                }
            case "reserve":
                world.gpu_observations |= {place.name: GpuObservation(reserved=bool(value)) for place in chosen}
            case "blind":
                for place in chosen:
                    world.gpu_observations.pop(place.name, None)
            case "hear":
                world.heard["h"] = world.now
            case "wait":
                assert isinstance(value, int)
                world.now += timedelta(seconds=value)
            case "person":
                assert isinstance(value, HealthState)
                by_person = True
                for place in chosen:
                    gpu = world.records[place.name]
                    if (gpu.state, value) in TRANSITIONS:
                        world.records[place.name] = replace(gpu, state=value, by="ada", signal="", until=None)
        events_before = len(world.events)
        world.run()
        news = world.events[events_before:]
        assert all(event.before is event.after or (event.before, event.after) in TRANSITIONS for event in news)
        # The limit: a slot in any case, and else no more than the share, by slots' GPUs.
        for pool in ("t4", "v100"):
            size = sum(1 for place in PLACES if place.pool == pool)
            for trusted in (True, False):
                now = {slot for slot in _out(world, trusted) - theirs if slot.startswith(pool)}
                total, biggest = sum(map(_size, now)), max(map(_size, now), default=0)
                if now - held and not by_person:
                    assert total <= max(size * rules.quarantine // 100, biggest)
        assert not [
            observation
            for observation in world.open
            if _always(observation.code) and world.records[observation.gpu].state not in KEPT_BACK
        ]
        for name, gpu in world.records.items():
            was = before.get(name)
            if was is not None and was.state in (HealthState.QUARANTINED, HealthState.IN_REPAIR) and not by_person:
                assert gpu.state is was.state, "only a person ends that"
            assert (gpu.until is not None) == (gpu.state is HealthState.SUSPECT) or by_person
            if gpu.until is not None and gpu.state is HealthState.SUSPECT:
                assert gpu.until - max(world.now, gpu.since) <= LONGEST_WAIT or world.now < gpu.since
        for _ in range(4):  # what is let go makes room only for the next plan, and that for another one
            world.run()
        assert not world.plan().changes, "nothing is left to do"


def _out(world: World, trusted: bool | None = None) -> set[str]:
    """Slots that rules keep back, and no person; by what infrastructure says, or by what the others say, alone."""
    if trusted is not None:
        kept_places = [place for place in PLACES if _kept(world, place)]
        other = [
            place
            for place in kept_places
            if _trusted(world, place) is not trusted or _always(world.records[place.name].signal)
        ]
        return _out(world) - {f"{place.pool} {place.slot}" for place in other}
    ours = {
        f"{place.pool} {place.slot}" for place in PLACES if _kept(world, place) and by_rule(world.records[place.name])
    }
    theirs = {
        f"{place.pool} {place.slot}"
        for place in PLACES
        if _kept(world, place) and not by_rule(world.records[place.name])
    }
    return ours - theirs


def _trusted(world: World, place: SitePlace) -> bool:
    return is_infrastructure(world.records[place.name].signal)


def _always(code: str) -> bool:
    """What infrastructure calls bad has no limit."""
    return is_infrastructure(code) and SIGNALS[code].judgement is Judgement.BAD


def _kept(world: World, place: SitePlace) -> bool:
    return world.records[place.name].state in KEPT_BACK


def _size(slot: str) -> int:
    return sum(1 for place in PLACES if f"{place.pool} {place.slot}" == slot)
