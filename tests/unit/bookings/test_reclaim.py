"""What becomes of servers that keep GPUs without a booking: warned, waited for, acted on, cleared."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.matching import Holder
from gpuyard.bookings.reclaim import (
    IDLE,
    MUST_BOOK,
    PAST_THE_END,
    RULES,
    TOO_MANY,
    YIELDS,
    Do,
    OverstayStep,
    asked,
    idle_ones,
    plan_overstays,
    reasons,
    warning,
)
from gpuyard.bookings.records import Overstay
from gpuyard.model.booking import ReclaimAction, Rules
from tests.support.services import nova_status, task_states, vm_states
from tests.unit.bookings.test_enforcement import FREE, HOUR, MINUTE, MUST, START, booking, server, view

EVE = ("eve", "art")


def eve(lane: int = 1, **more: Any) -> Holder:
    return server(f"s{lane}", (lane,), *EVE, **more)


def only(steps: list[OverstayStep]) -> OverstayStep:
    (step,) = steps
    return step


def test_why_a_server_must_go() -> None:
    assert reasons(view([], holders=(eve(),)), {}, ()) == {"s1": MUST_BOOK}
    assert reasons(view([], holders=(eve(),)), {EVE: START + MINUTE}, ()) == {"s1": PAST_THE_END}
    assert reasons(view([], holders=(eve(),)), {EVE: START - MINUTE}, ()) == {"s1": MUST_BOOK}, "it came later"
    free = view([], rules=FREE, unbooked={"art": 1}, holders=(eve(1), eve(2, created=START + MINUTE)))
    assert reasons(free, {}, ()) == {"s2": TOO_MANY}, "the older one may stay"
    assert reasons(free, {}, ("s1",)) == {"s1": YIELDS, "s2": TOO_MANY}
    assert reasons(view([booking()], holders=(server("mine", (1,)),)), {}, ()) == {}
    assert reasons(view([], holders=(eve(on_its_way=True),)), {}, ()) == {}, "Nova still works on it"


def walk(rules: Rules, dry_run: bool = False) -> list[tuple[Do, Overstay]]:
    """A server that nobody does anything about, looked at every ten minutes for three hours."""
    scene = view([], rules=rules, holders=(eve(),))
    overstays: list[Overstay] = []
    actions: list[tuple[Do, Overstay]] = []
    for number in range(18):
        for step in plan_overstays(scene, {"s1": MUST_BOOK}, overstays, dry_run, START + number * 10 * MINUTE):
            overstays = [step.overstay] if step.overstay.cleared is None else []
            actions.append((step.do, step.overstay))
    return actions


def test_it_is_warned_and_after_its_time_acted_on_until_nova_has_done_it() -> None:
    steps = walk(Rules(grace=HOUR))
    assert [do for do, _ in steps[:3]] == [Do.OPEN, Do.WARN, Do.ACT]
    assert {do for do, _ in steps[3:]} == {Do.ACT}, "Nova did nothing, so it is told again"
    opened, warned, acted = (overstay for _, overstay in steps[:3])
    assert (opened.warned, opened.done) == (None, None)
    assert warned.due == START + 10 * MINUTE + HOUR
    assert asked(acted)
    assert not asked(warned)


def test_an_owner_is_not_warned_of_a_server_that_nova_rebuilds_or_evacuates() -> None:
    """Nova's own API says which task states people see as REBUILD."""
    states = [task_states.REBUILDING, task_states.REBUILD_BLOCK_DEVICE_MAPPING, task_states.REBUILD_SPAWNING]
    statuses = {nova_status(vm_states.ACTIVE, state) for state in states}
    assert statuses == {"REBUILD"}
    for status in statuses:
        moving = view([], rules=Rules(grace=HOUR), holders=(replace(eve(), status=status),))
        opened = only(plan_overstays(moving, {"s1": TOO_MANY}, (), False, START))
        assert opened.do is Do.OPEN
        assert not plan_overstays(moving, {"s1": TOO_MANY}, [opened.overstay], False, START + HOUR)
        arrived = view([], rules=Rules(grace=HOUR), holders=(eve(),))
        assert only(plan_overstays(arrived, {"s1": TOO_MANY}, [opened.overstay], False, START + HOUR)).do is Do.WARN
        assert only(plan_overstays(arrived, {}, [opened.overstay], False, START + HOUR)).do is Do.CLEAR


def test_a_dry_run_acts_once_and_a_warning_is_all_that_warn_means() -> None:
    assert [do for do, _ in walk(MUST, dry_run=True)] == [Do.OPEN, Do.WARN, Do.ACT]
    assert [do for do, _ in walk(Rules(reclaim=ReclaimAction.WARN))] == [Do.OPEN, Do.WARN]


def test_when_the_dry_run_is_over_everybody_gets_the_whole_time_again() -> None:
    dry = walk(MUST, dry_run=True)[-1][1]
    assert dry.done is not None
    step = only(plan_overstays(view([], holders=(eve(),)), {"s1": MUST_BOOK}, [dry], False, START + 5 * HOUR))
    assert (step.do, step.overstay.warned, step.overstay.due, step.overstay.done) == (Do.OPEN, None, None, None)


def test_a_server_that_is_off_is_off_and_its_case_stays_open() -> None:
    stop = Rules(reclaim=ReclaimAction.STOP)
    acted = walk(stop)[2][1]
    off = view([], rules=stop, holders=(replace(eve(), status="SHUTOFF"),))
    step = only(plan_overstays(off, {"s1": MUST_BOOK}, [acted], False, START + 3 * HOUR))
    assert (step.do, step.overstay.cleared) == (Do.FINISH, None)
    assert plan_overstays(off, {"s1": MUST_BOOK}, [step.overstay], False, START + 4 * HOUR) == []
    on = view([], rules=stop, holders=(eve(),))
    assert only(plan_overstays(on, {"s1": MUST_BOOK}, [step.overstay], False, START + 4 * HOUR)).do is Do.ACT, (
        "on again"
    )


def test_a_case_ends_when_its_reason_does() -> None:
    warned = walk(MUST)[1][1]
    booked = view([booking(user_id="eve", project_id="art")], holders=(eve(),))
    assert only(plan_overstays(booked, {}, [warned], False, START + MINUTE)).do is Do.CLEAR
    gone = view([])
    assert only(plan_overstays(gone, {}, [warned], False, START + MINUTE)).do is Do.CLEAR, "its owner has done it"
    acted = walk(MUST)[2][1]
    step = only(plan_overstays(gone, {}, [acted], False, START + 3 * HOUR))
    assert (step.do, step.overstay.done, step.overstay.cleared) == (Do.FINISH, START + 3 * HOUR, START + 3 * HOUR)


def test_the_warning_says_when_what_and_why_and_fits_into_a_servers_metadata() -> None:
    warned = walk(Rules(grace=HOUR))[1][1]
    assert warning(warned) == (
        "2026-11-23 10:10 UTC: this server is shelved (it keeps its disk and can be unshelved), because this pool's "
        "GPUs are only for those who have booked them; book a GPU, or delete or shelve it before"
    )
    for action in ReclaimAction:
        for rule in RULES:
            assert len(warning(replace(warned, action=action, rule=rule))) < 255


@given(
    looks=st.lists(st.tuples(st.integers(0, 90), st.sampled_from(["there", "gone", "booked"])), max_size=20),
    dry_run=st.booleans(),
    action=st.sampled_from(ReclaimAction),
)
def test_nobody_is_acted_on_before_the_grace_is_over(
    looks: list[tuple[int, str]], dry_run: bool, action: ReclaimAction
) -> None:
    """Whatever comes and goes: between a warning and what follows lies the whole grace, without a break."""
    rules = Rules(grace=HOUR, reclaim=action)
    overstays: list[Overstay] = []
    now = START
    warned_at = None
    for minutes, what in looks:
        now += timedelta(minutes=minutes)
        scene = view([], rules=rules, holders=() if what == "gone" else (eve(),))
        why = {"s1": MUST_BOOK} if what == "there" else {}
        warned_at = None if what != "there" else warned_at
        for step in plan_overstays(scene, why, overstays, dry_run, now):
            overstays = [] if step.overstay.cleared else [step.overstay]
            if step.do is Do.WARN:
                warned_at = now
            if step.do is Do.ACT:
                assert warned_at is not None
                assert now - warned_at >= HOUR
                assert action is not ReclaimAction.WARN


def test_a_server_that_does_nothing_is_warned_or_reclaimed_booked_or_not() -> None:
    scene = view([], holders=(eve(), replace(eve(2), status="SHUTOFF"), eve(3)))
    assert idle_ones(scene, ["s1", "s2", "s9"]) == {"s1": IDLE}
    (opened,) = plan_overstays(scene, {"s1": IDLE}, [], False, START, {IDLE})
    assert (opened.do, opened.overstay.action) == (Do.OPEN, ReclaimAction.WARN)
    (warned,) = plan_overstays(scene, {"s1": IDLE}, [opened.overstay], False, START, {IDLE})
    assert "nothing has run on its GPUs" in warning(warned.overstay)
    assert plan_overstays(scene, {"s1": IDLE}, [warned.overstay], False, START + 1000 * HOUR, {IDLE}) == []
    (cleared,) = plan_overstays(scene, {}, [warned.overstay], False, START + HOUR, {IDLE})
    assert cleared.do is Do.CLEAR
    (opened,) = plan_overstays(scene, {"s1": IDLE}, [], False, START)
    assert opened.overstay.action is scene.rules("").reclaim
