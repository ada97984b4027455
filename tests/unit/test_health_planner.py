"""What becomes of GPUs: the cases one by one, and what holds whatever happens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.health.life import TRANSITIONS
from gpuyard.health.planner import (
    LATELY,
    LONGEST_WAIT,
    Circumstances,
    GpuSight,
    HealthPlan,
    SitePlace,
    by_rule,
    kept_back,
    plan_health,
    wait,
)
from gpuyard.health.records import KEPT_BACK, GpuHealth, HealthEvent, HealthState, Observation
from gpuyard.health.signals import SIGNALS
from gpuyard.site.health_rules import SiteHealth

S = HealthState
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
        self.sights: dict[str, GpuSight] = {one.name: GpuSight() for one in places}
        self.heard: dict[str, datetime] = {}
        self.asked: tuple[str, ...] = ()
        self.looked: datetime | None = None
        self.left: dict[str, HealthState] = {}
        self._ids = 0
        self.run()

    def see(self, code: str, *places: SitePlace, by: str = "") -> None:
        for one in places:
            self._ids += 1
            self.open.append(Observation(one.host, one.address, code, self.now, "what was seen", by, self._ids))

    def plan(self) -> HealthPlan:
        since = self.now - LATELY
        came = [one for one in self.events if one.after is S.SUSPECT and one.before is not S.SUSPECT]
        suspected = {
            place.name: sum(1 for one in came if one.address == place.address and one.time >= since)
            for place in self.places
        }
        around = Circumstances(self.now, self.sights, self.looked, self.heard, suspected, left=self.left)
        return plan_health(self.places, self.records.values(), self.open, self.rules, around)

    def run(self) -> HealthPlan:
        plan = self.plan()
        for change in plan.changes:
            if change.gone:
                del self.records[change.gpu.name]
            else:
                self.records[change.gpu.name] = change.gpu
            self.events += change.events
            self.open = [one for one in self.open if one.id not in change.settles]
        self.open = [one for one in self.open if one.id not in plan.settles]
        self.asked = plan.asked
        return plan

    def state(self, place: SitePlace) -> HealthState:
        return self.records[place.name].state

    def later(self, **more: float) -> None:
        self.now += timedelta(**more)
        self.run()


def test_a_new_site_is_fine_unless_new_gpus_are_to_be_accepted() -> None:
    world = World()
    assert {one.state for one in world.records.values()} == {S.FINE}
    assert [one.cause for one in world.events][:1] == ["first seen: nothing is known against it"]
    assert not world.plan().changes, "and that is all"
    assert {one.state for one in World(rules=ACCEPTING).records.values()} == {S.TO_ACCEPT}


def test_a_server_comes_and_goes() -> None:
    world, one = World(), EIGHT[0]
    world.sights[one.name] = GpuSight("s1")
    world.later(seconds=5)
    assert (world.state(one), world.records[one.name].cause) == (S.IN_USE, "server s1 has it")
    world.sights[one.name] = GpuSight("s2")
    world.later(seconds=5)
    assert [event.after for event in world.events[-2:]] == [S.RETURNED, S.IN_USE]
    world.sights[one.name] = GpuSight()
    world.later(seconds=5)
    assert world.state(one) is S.RETURNED, "its host has said nothing since"
    world.heard["h"] = world.now
    world.later(seconds=5)
    assert world.state(one) is S.RETURNED, "in the very moment it was seen to be back"
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(one) is S.FINE


def test_a_gpu_that_is_used_once_waits_for_its_scrub() -> None:
    one = place(1, once=True)
    world = World([one])
    world.sights[one.name] = GpuSight("s1")
    world.later(seconds=5)
    world.sights[one.name] = GpuSight(reserved=True)
    world.heard["h"] = world.now + timedelta(seconds=5)
    world.later(seconds=5)
    world.later(seconds=5)
    assert world.state(one) is S.RETURNED
    world.records[one.name] = replace(world.records[one.name], state=S.FINE)
    world.later(seconds=5)
    assert world.state(one) is S.RETURNED, "a use that nobody saw"
    world.looked = world.now
    world.records[one.name] = replace(world.records[one.name], state=S.FINE, since=world.now)
    world.later(milliseconds=500)
    assert world.state(one) is S.FINE, "it was released after that look at the cloud"
    world.looked = world.now + timedelta(seconds=1)
    world.later(seconds=1)
    assert world.state(one) is S.RETURNED


def test_what_cannot_be_seen_moves_nothing() -> None:
    world, one = World(), EIGHT[0]
    world.sights[one.name] = GpuSight("s1")
    world.later(seconds=5)
    world.sights.clear()
    world.later(days=30)
    assert world.state(one) is S.IN_USE


def test_a_bad_gpu_is_quarantined_and_only_a_person_ends_that() -> None:
    world, one = World(), EIGHT[0]
    world.see("no-answer", one)
    world.run()
    assert kept_back(world.records.values()) == {
        ("h", one.address): "quarantined: its config space reads 0xff (no-answer)"
    }
    event = world.events[-1]
    assert (event.before, event.after, event.evidence) == (S.FINE, S.QUARANTINED, "what was seen")
    world.heard["h"] = world.now + timedelta(days=99)
    world.later(days=100)
    assert world.state(one) is S.QUARANTINED
    assert world.open == []


def test_a_suspect_is_fine_again_after_a_wait_that_grows_and_at_last_quarantined() -> None:
    world, one = World(), EIGHT[0]
    waits = []
    for _ in range(RULES.relapses - 1):
        world.see("reported", one, by="ada")
        world.run()
        gpu = world.records[one.name]
        assert gpu.until is not None
        waits.append(gpu.until - world.now)
        world.now = gpu.until - timedelta(seconds=1)
        world.run()
        assert world.state(one) is S.SUSPECT
        world.later(seconds=1)
        assert world.state(one) is S.FINE
    assert waits == [timedelta(minutes=10) * 2**n for n in range(4)]
    world.see("reported", one, by="ada")
    world.run()
    gpu = world.records[one.name]
    assert (gpu.state, gpu.cause) == (
        S.QUARANTINED, "suspect for the 5th time within a week: somebody reported a fault"
    )  # fmt: skip


def test_relapses_of_the_week_before_do_not_count() -> None:
    world, one = World(), EIGHT[0]
    for _ in range(20):
        world.see("reported", one)
        world.run()
        assert world.records[one.name].relapses == 1
        world.later(days=8)


def test_what_its_host_saw_passes_only_when_its_host_looks() -> None:
    world, one = World(), EIGHT[0]
    world.see("link-width", one)
    world.run()
    world.later(hours=5)
    assert world.state(one) is S.SUSPECT, "nothing was seen because nobody has looked"
    world.heard["h"] = world.now - timedelta(minutes=3)
    world.later(seconds=1)
    assert world.state(one) is S.SUSPECT, "nor lately"
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(one) is S.FINE


def test_what_does_not_pass_in_a_day_is_quarantined() -> None:
    world, one = World(), EIGHT[0]
    for _ in range(200):
        world.see("link-width", one)
        world.heard["h"] = world.now
        world.later(minutes=9)
    assert world.state(one) is S.QUARANTINED
    assert world.records[one.name].cause == "it was seen for a day, and did not pass"


def test_a_suspect_below_a_server_is_in_use_again() -> None:
    world, one = World(), EIGHT[0]
    world.sights[one.name] = GpuSight("s1")
    world.later(seconds=5)
    world.see("xid-reset", one, by="s1")
    world.run()
    assert world.state(one) is S.SUSPECT
    assert world.events[-1].evidence == "s1: what was seen"
    world.later(minutes=10)
    assert world.state(one) is S.IN_USE


def test_a_bad_rule_does_not_empty_the_cloud() -> None:
    world = World()
    world.see("no-answer", *EIGHT)
    world.run()
    out = [one for one in EIGHT if world.state(one) in KEPT_BACK]
    assert out == list(EIGHT[:2]), "a quarter of eight, and those that were seen first"
    assert world.asked == tuple(one.name for one in EIGHT[2:])
    (_, text) = [one.cause for one in world.events if one.address == EIGHT[7].address]
    assert text.startswith("its config space reads 0xff: it should be kept back, and too much of pool t4 is so already")
    assert not world.plan().changes, "it is said once"
    # A person looks after the two: they count no more.
    for one in EIGHT[:2]:
        world.records[one.name] = replace(world.records[one.name], state=S.IN_REPAIR, by="ada")
    world.run()
    assert [world.state(one) for one in EIGHT[2:5]] == [S.QUARANTINED, S.QUARANTINED, S.FINE]
    assert len(world.asked) == 4


def test_the_worst_comes_first() -> None:
    world = World()
    world.see("reported", *EIGHT[:4])
    world.see("no-answer", EIGHT[6], EIGHT[7])
    world.run()
    assert [world.state(one) for one in EIGHT[6:]] == [S.QUARANTINED] * 2
    assert world.asked == tuple(one.name for one in EIGHT[:4])


def test_one_slot_is_always_kept_back_and_as_a_whole() -> None:
    pairs = tuple(place(n, slot=f"h {n // 2}") for n in range(4))
    world = World(pairs)
    world.see("no-answer", pairs[0], pairs[2])
    world.run()
    assert (world.state(pairs[0]), world.state(pairs[1])) == (S.QUARANTINED, S.FINE), "half of a group"
    assert world.asked == (pairs[2].name,), "its slot is half of the pool"
    world.see("no-answer", pairs[1])
    world.run()
    assert world.state(pairs[1]) is S.QUARANTINED, "its slot is out already"


def test_who_said_leave_it_is_not_asked_about_that_again() -> None:
    world = World()
    world.see("no-answer", *EIGHT[:3])
    world.run()
    third = world.records[EIGHT[2].name]
    assert third.asked
    world.records[EIGHT[2].name] = replace(third, asked=False, by="ada", signal="no-answer")
    world.open.clear()
    world.see("no-answer", EIGHT[2])
    assert world.run().asked == ()
    assert world.open == []
    world.see("rows", EIGHT[2])
    world.run()
    assert world.asked == (EIGHT[2].name,), "about something else"


def test_what_is_stale_waits_until_it_is_idle() -> None:
    world, one = World(), EIGHT[0]
    world.see("kernel", one)
    world.run()
    assert (world.state(one), world.open) == (S.FINE, []), "this site does not ask for it"
    world.rules = ACCEPTING
    world.sights[one.name] = GpuSight("s1")
    world.later(seconds=5)
    world.see("kernel", *EIGHT[:4])
    world.later(seconds=5)
    assert [world.state(gpu) for gpu in EIGHT[:4]] == [S.IN_USE, S.TO_ACCEPT, S.TO_ACCEPT, S.FINE]
    assert world.asked == (EIGHT[3].name,), "a kernel on all hosts at once does not empty the cloud either"
    for gpu in EIGHT[1:4]:
        world.records[gpu.name] = replace(world.records[gpu.name], state=S.FINE, asked=False, signal="")
    world.open = [seen for seen in world.open if seen.gpu == one.name]
    world.sights[one.name] = GpuSight()
    world.later(seconds=5)
    assert world.state(one) is S.TO_ACCEPT


def test_notes_change_nothing_and_are_said_once() -> None:
    world, one = World(), EIGHT[0]
    world.see("throttled", one)
    world.see("throttled", one, by="other")
    plan = world.run()
    assert world.state(one) is S.FINE
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
    before = {repaired: S.IN_REPAIR, bad: S.QUARANTINED, suspect: S.SUSPECT, new: S.TO_ACCEPT, well: S.IN_USE}
    world.places = EIGHT[5:]
    world.run()
    world.left, world.places = {one.name: state for one, state in before.items()}, EIGHT
    world.run()
    assert [world.state(one) for one in (bad, repaired, suspect, new, well)] == [
        S.QUARANTINED, S.QUARANTINED, S.SUSPECT, S.TO_ACCEPT, S.FINE
    ]  # fmt: skip
    assert world.records[repaired.name].cause == "it was in repair when it left the site file"
    assert not world.plan().changes, "and that is all"
    world.later(minutes=11)
    assert world.state(suspect) is S.FINE


def test_a_clock_that_was_ahead_keeps_nothing_waiting() -> None:
    one, suspect = place(1, once=True), place(2)
    world = World([one, suspect])
    world.now += timedelta(days=4000)
    world.sights[one.name] = GpuSight("s1")
    world.see("link-speed", suspect)
    world.run()
    world.sights[one.name] = GpuSight()
    world.later(seconds=5)
    world.records[one.name] = replace(world.records[one.name], state=S.FINE)
    world.heard["h"] = world.now
    world.now = NOW + timedelta(minutes=1)
    world.run()
    world.sights[one.name], world.looked = GpuSight(reserved=True), world.now + timedelta(seconds=5)
    world.later(seconds=5)
    assert world.state(one) is S.RETURNED
    world.later(days=1, minutes=1)
    assert world.state(suspect) is S.SUSPECT, "its host was heard when the clock was ahead, and not since"
    world.heard["h"] = world.now
    world.later(seconds=1)
    assert world.state(suspect) is S.FINE


def test_everybody_is_told_why_a_gpu_is_kept_back_but_not_in_the_words_of_an_operator() -> None:
    world, one = World(), EIGHT[0]
    world.see("no-answer", one)
    world.run()
    assert set(kept_back(world.records.values()).values()) == {"quarantined: its config space reads 0xff (no-answer)"}
    said = replace(world.records[one.name], by="eve", signal="", cause="ada overclocked it")
    assert set(kept_back([said]).values()) == {"quarantined: an operator has decided so"}


def test_another_card_in_a_gpu_that_is_out_of_use_is_to_be_accepted_when_that_is_over() -> None:
    world, one = World(rules=SiteHealth.model_validate({"acceptance": {"required": ["new"]}})), EIGHT[0]
    world.records[one.name] = replace(world.records[one.name], state=S.IN_REPAIR, keeper="eve")
    world.see("changed", one)
    world.run()
    assert world.state(one) is S.IN_REPAIR
    world.records[one.name] = replace(world.records[one.name], state=S.FINE, keeper="", by="eve")
    world.later(seconds=1)
    assert (world.state(one), world.open) == (S.TO_ACCEPT, [])
    world.see("changed", one)
    world.later(seconds=1)
    assert (world.state(one), world.open) == (S.TO_ACCEPT, [])


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
            st.sampled_from([S.FINE, S.TO_ACCEPT, S.QUARANTINED, S.IN_REPAIR]),
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
        held = {f"{one.pool} {one.slot}" for one in PLACES if _kept(world, one)}
        theirs = held - _out(world)
        by_person = False
        match what:
            case "see":
                world.see(str(value), *sorted(chosen, key=lambda one: one.address))
            case "server":
                world.sights |= {one.name: GpuSight(str(value), one.once and not value) for one in chosen}
            case "reserve":
                world.sights |= {one.name: GpuSight(reserved=bool(value)) for one in chosen}
            case "blind":
                for one in chosen:
                    world.sights.pop(one.name, None)
            case "hear":
                world.heard["h"] = world.now
            case "wait":
                assert isinstance(value, int)
                world.now += timedelta(seconds=value)
            case "person":
                assert isinstance(value, HealthState)
                by_person = True
                for one in chosen:
                    gpu = world.records[one.name]
                    if (gpu.state, value) in TRANSITIONS:
                        world.records[one.name] = replace(gpu, state=value, by="ada", signal="", until=None)
        known = len(world.events)
        world.run()
        news = world.events[known:]
        assert all(one.before is one.after or (one.before, one.after) in TRANSITIONS for one in news)
        # The limit: a slot in any case, and else no more than the share, by slots' GPUs.
        for pool in ("t4", "v100"):
            size = sum(1 for one in PLACES if one.pool == pool)
            now = {slot for slot in _out(world) - theirs if slot.startswith(pool)}
            total, biggest = sum(map(_size, now)), max(map(_size, now), default=0)
            if now - held and not by_person:
                assert total <= max(size * rules.quarantine // 100, biggest)
        for name, gpu in world.records.items():
            was = before.get(name)
            if was is not None and was.state in (S.QUARANTINED, S.IN_REPAIR) and not by_person:
                assert gpu.state is was.state, "only a person ends that"
            assert (gpu.until is not None) == (gpu.state is S.SUSPECT) or by_person
            if gpu.until is not None and gpu.state is S.SUSPECT:
                assert gpu.until - max(world.now, gpu.since) <= LONGEST_WAIT or world.now < gpu.since
        world.run()  # what is let go makes room only for the next plan
        assert not world.plan().changes, "nothing is left to do"


def _out(world: World) -> set[str]:
    """Slots that rules keep back, and no person."""
    ours = {f"{one.pool} {one.slot}" for one in PLACES if _kept(world, one) and by_rule(world.records[one.name])}
    theirs = {f"{one.pool} {one.slot}" for one in PLACES if _kept(world, one) and not by_rule(world.records[one.name])}
    return ours - theirs


def _kept(world: World, one: SitePlace) -> bool:
    return world.records[one.name].state in KEPT_BACK


def _size(slot: str) -> int:
    return sum(1 for one in PLACES if f"{one.pool} {one.slot}" == slot)
