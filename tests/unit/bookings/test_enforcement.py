"""Limits and holds: what is planned, and that no order of events, kills among them, gives a booked GPU to another."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from gpuyard.bookings import enforcement
from gpuyard.bookings.enforcement import (
    LATE,
    SETTLE,
    Controls,
    EnforcementStep,
    PlaceHold,
    PoolPlan,
    ReleaseHold,
    Remember,
    SeenProvider,
    SetLimit,
    kept_lanes,
    unclear,
)
from gpuyard.bookings.matching import Holder, match
from gpuyard.bookings.pool_view import PREPARE, SOON, Memory, PoolView, read_memory
from gpuyard.bookings.reclaim import MUST_BOOK, reasons
from gpuyard.bookings.shortage import shortage, tolerated
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Lane, Rules

START = datetime(2026, 11, 23, 9, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
CI = "ci"
COUNT = "class:CUSTOM_GPU_T4_COUNT"
PAIRS = {1: 2, 2: 1, 3: 1}
SINGLES = {1: 1, 2: 1, 3: 1}
MUST, FREE = Rules(), Rules(must_book=False)


def booking(id: str = "b1", lanes: tuple[int, ...] = (1,), **more: object) -> Booking:
    gpus = more.pop("gpus", len(lanes))
    start, end = more.pop("start", START), more.pop("end", START + 4 * HOUR)
    ask = Ask("t4", start, end, gpus, **more.pop("ask", {}))  # type: ignore[arg-type]
    values = {
        "kind": BookingKind.BOOKING,
        "state": BookingState.ACTIVE,
        "user_id": "ada",
        "user": "ada",
        "project_id": "physics",
        "project": "physics",
        "created": START - HOUR,
        "changed": START - HOUR,
        **more,
    }
    return Booking(id=id, ask=ask, lanes=lanes, **values)  # type: ignore[arg-type]


def server(id: str, lanes: tuple[int, ...] = (), who: str = "ada", project: str = "physics", **more: object) -> Holder:
    values = {"gpus": len(lanes), "created": START, **more}
    return Holder(id, str(values.pop("name", id)), "ACTIVE", who, project, project, "t4", lanes, **values)  # type: ignore[arg-type]


def lease(name: str, lanes: tuple[int, ...] = (1,), **more: object) -> Booking:
    values = {"kind": BookingKind.RUNNER, "server": name, "user_id": "", "project_id": CI, "project": CI, **more}
    return booking(name, lanes, **values)


@dataclass(frozen=True)
class Scene(PoolView):
    """A pool as it is seen, with its controls."""

    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    seen: dict[str, SeenProvider] = field(default_factory=dict)
    one_time_use: bool = False


def plan_pool(scene: Scene, now: datetime) -> PoolPlan:
    return enforcement.plan_pool(scene, Controls((COUNT,), scene.limits, scene.seen, scene.one_time_use), now)


def view(bookings: list[Booking], sizes: dict[int, int] = SINGLES, rules: Rules = MUST, **more: object) -> Scene:
    lanes = {id: Lane(id, "t4", "host", tuple(f"{id}.{n}" for n in range(size))) for id, size in sizes.items()}
    providers = {id: tuple(f"host_{address}" for address in lane.addresses) for id, lane in lanes.items()}
    values = {
        "holders": (),
        "seen": {name: SeenProvider(False, 7) for names in providers.values() for name in names},
        **more,
    }
    return Scene("t4", lanes, providers, tuple(bookings), rules=lambda project: rules, **values)  # type: ignore[arg-type]


def told(plan_steps: tuple[EnforcementStep, ...]) -> list[str]:
    return [str(step) for step in plan_steps if not isinstance(step, Remember)]


# Leases.


def test_a_trusted_project_has_its_number_without_waiting_and_nothing_while_gpus_are_released() -> None:
    calm = view([], trusted={CI: 3}, limits={("art", COUNT): 1})
    assert told(plan_pool(calm, START).steps) == [f"limit art {COUNT} -> 0", f"limit ci {COUNT} -> 3"]
    assert plan_pool(calm, START).blocked == ""
    booked = unbooked([booking()], trusted={CI: 3}, limits={(CI, COUNT): 3, ("art", COUNT): 3})
    plan = plan_pool(booked, START)
    assert f"limit ci {COUNT} -> 0" in told(plan.steps)
    assert (
        plan.blocked == "GPUs of pool t4 are released for booking b1 of ada until 09:15:00 UTC or its server is there"
    )
    after = replace(booked, holders=(server("s", (1,)),), limits={("art", COUNT): 3, ("physics", COUNT): 1})
    assert f"limit ci {COUNT} -> 3" in told(plan_pool(after, START).steps)
    assert plan_pool(after, START).blocked == ""


def test_a_trusted_project_makes_no_booking_exclusive() -> None:
    scene = view([booking()], trusted={CI: 3}, limits={(CI, COUNT): 3})
    assert told(plan_pool(scene, START).steps) == [f"limit physics {COUNT} -> 1"]
    assert plan_pool(scene, START).usable == {"b1"}


def test_who_has_a_whole_slot_released_lets_runners_in_again_after_the_window() -> None:
    slot = view([booking(gpus=2, ask={"same_group": True})], PAIRS, trusted={CI: 4})
    assert slot.keeps_others_out(slot.bookings[0])
    had = Memory(windows={"b1": START})
    assert not replace(slot, memory=had).closing(START + 16 * MINUTE)


def test_a_lease_has_the_server_of_its_name_and_its_project() -> None:
    lease_server = server("s1", (2,), "gpuyard", CI, name="r1")
    others = (
        server("s2", (1,), "gpuyard", CI, name="r2"),
        server("s3", (3,), "eve", "art", name="r1"),
        server("s4", (4,), "gpuyard", CI, name="r1", created=START + MINUTE),
    )
    scene = view([lease("r1", (1,))], dict.fromkeys(range(1, 5), 1), holders=(lease_server, *others), trusted={CI: 4})
    assert scene.matches.claims == {"r1": (2,)}
    assert scene.matches.bookings_of == {"s1": ("r1",)}
    assert [holder.id for holder in scene.leftover] == ["s2", "s4"], "a name is one server's, the oldest's"
    assert [stray.id for stray in scene.strays] == ["s3"]
    assert reasons(scene, {}, ["s2"]) == {"s3": MUST_BOOK}, "what is gpuyard's own is never reclaimed"
    waits = plan_pool(scene, START).waits
    assert [wait.split(": ")[1] for wait in waits] == [
        f"server {name} is in the runners' project without a lease" for name in ("r2", "r1")
    ]
    assert told(plan_pool(scene, START).steps) == [f"limit ci {COUNT} -> 4"], "and nothing is held"


def test_a_gpu_that_must_be_somebodys_later_is_held_until_a_leases_server_is_elsewhere() -> None:
    later = booking("b2", (1,), start=START + HOUR, state=BookingState.CONFIRMED, ask={"gpu": "host/1.0"})
    long, short = lease("r1", (2,)), lease("r2", (3,), end=START + HOUR)
    assert kept_lanes(view([later, short]), START, frozenset()) == {}, "it is gone by then"
    assert set(kept_lanes(view([later, long]), START, frozenset())) == {1}
    lease_server = server("s1", (2,), "gpuyard", CI, name="r1")
    assert kept_lanes(view([later, long], holders=(lease_server,)), START, frozenset()) == {}, "no other comes after it"


def test_a_lease_whose_server_is_on_a_bookings_gpu_ends_where_no_other_gpu_is_free() -> None:
    soon = booking("b1", (1,), start=START + 8 * MINUTE, state=BookingState.CONFIRMED)
    lease_server = server("s1", (1,), "gpuyard", CI, name="r1")
    mine = lease("r1", (2,))
    outcome = shortage(view([soon, mine], {1: 1, 2: 1}, holders=(lease_server,), trusted={CI: 2}), START)
    assert (outcome.leases, outcome.moves, outcome.delayed) == (("r1",), {}, ()), "the lane of a lease is not free"
    outcome = shortage(view([soon, mine], SINGLES, holders=(lease_server,), trusted={CI: 2}), START)
    assert (outcome.leases, outcome.moves) == ((), {"b1": (3,)})
    early = shortage(view([soon, mine], {1: 1, 2: 1}, holders=(lease_server,), trusted={CI: 2}), START - 3 * MINUTE)
    assert early.leases == (), "not before its GPUs are to be kept free"
    active = replace(soon, state=BookingState.ACTIVE)
    gone = view([active], {1: 1}, holders=(lease_server,), trusted={CI: 2})
    assert shortage(gone, START + 9 * MINUTE).delayed == (), "gpuyard deletes it"
    assert shortage(gone, START + 14 * MINUTE).delayed == ("b1",)
    assert shortage(gone, START + 14 * MINUTE).yielding == ()


# Must book: limits let in who has booked, holds keep GPUs free before the start.


def test_nobody_has_anything_without_a_booking() -> None:
    plan = plan_pool(view([], limits={("physics", COUNT): 3, ("art", COUNT): 1}), START)
    assert told(plan.steps) == [f"limit art {COUNT} -> 0", f"limit physics {COUNT} -> 0"]


def test_before_its_start_a_booking_keeps_its_gpus_and_lets_nobody_in() -> None:
    soon = view([booking(lanes=(1, 2), state=BookingState.CONFIRMED)])
    assert plan_pool(soon, START - 11 * MINUTE).steps == ()
    plan = plan_pool(soon, START - 10 * MINUTE)
    assert told(plan.steps) == ["hold host_1.0", "hold host_2.0"]
    word = plan.steps[0]
    assert isinstance(word, Remember), "what is about to be done is written down first"
    assert (word.word, word.text) == ("holds", "host_1.0=8 host_2.0=8")


def test_at_its_start_the_limit_rises_before_the_hold_comes_off() -> None:
    held = {"host_1.0": 8}
    providers = {"host_1.0": SeenProvider(True, 8)}
    plan = plan_pool(view([booking()], memory=Memory(held), reserved=frozenset(held), seen=providers), START)
    assert told(plan.steps) == [f"limit physics {COUNT} -> 1", "release host_1.0"]
    assert plan.steps[-1] == Remember("t4", "holds", None, "which holds are ours"), "forgotten after it was done"


def test_after_its_end_the_limit_goes_down_and_the_server_stays_for_reclaim() -> None:
    plan = plan_pool(view([], holders=(server("s", (1,)),), limits={("physics", COUNT): 1}), START)
    assert told(plan.steps) == [f"limit physics {COUNT} -> 0"]


def test_a_server_past_its_end_does_not_use_up_the_next_booking_of_its_project() -> None:
    over = server("old", (3,), who="eve")
    plan = plan_pool(view([booking()], holders=(over,)), START)
    assert told(plan.steps) == [f"limit physics {COUNT} -> 2"]
    both = (over, server("new", (1,), created=START + MINUTE))
    plan = plan_pool(view([booking()], holders=both, limits={("physics", COUNT): 2}), START)
    assert told(plan.steps) == [f"limit physics {COUNT} -> 1"], "and lets nobody in once that one has its server"


@pytest.mark.parametrize("rules", [MUST, FREE])
def test_an_own_server_that_runs_already_is_the_first_that_a_booking_is_for(rules: Rules) -> None:
    """As docs/how-to/book-a-gpu.md says: a booking of two lets one more in then, and a colleague's does not count."""
    two, mine = booking(lanes=(1, 2), open_until=START + HOUR), server("mine", (3,))
    open_to_all: dict[str, Any] = {"rules": rules, "unbooked": {"physics": 0} if rules is FREE else {}}
    memory = Memory(lowered=START - HOUR, opened=frozenset({"b1"}), windows={"b1": START})
    scene = view([two], holders=(mine,), memory=memory, **open_to_all)
    assert scene.matches.bookings_of == {"mine": ("b1",)}
    assert scene.room(two) == 1
    assert f"limit physics {COUNT} -> 2" in told(plan_pool(scene, START).steps)
    assert view([two], holders=(server("hers", (3,), who="eve"),), memory=memory, **open_to_all).room(two) == 2
    shared = replace(two, shared=True)
    assert view([shared], holders=(server("hers", (3,), who="eve"),), memory=memory, **open_to_all).room(shared) == 1


def test_an_operators_hold_is_kept_for_its_whole_time_also_below_a_server() -> None:
    hold = booking(kind=BookingKind.HOLD, lanes=(1, 2))
    plan = plan_pool(view([hold], holders=(server("s", (2,)),)), START)
    assert told(plan.steps) == ["hold host_1.0", "hold host_2.0"]


def test_holds_of_others_are_not_taken_for_ours() -> None:
    theirs = frozenset({"host_1.0"})
    soon = view([booking(state=BookingState.CONFIRMED)], reserved=theirs)
    assert plan_pool(soon, START).steps == ()
    later = view([booking()], reserved=theirs, limits={("physics", COUNT): 1})
    assert told(plan_pool(later, START).steps) == [f"limit physics {COUNT} -> 0"], "never taken off, so nobody let in"


@pytest.mark.parametrize(("generation", "released"), [(8, True), (9, False)])
def test_a_gpu_that_is_used_once_is_released_only_when_nothing_has_happened_to_it(
    generation: int, released: bool
) -> None:
    providers = {"host_1.0": SeenProvider(True, generation)}
    free = view([], memory=Memory({"host_1.0": 8}), reserved=frozenset(providers), seen=providers, one_time_use=True)
    plan = plan_pool(free, START)
    assert told(plan.steps) == (["release host_1.0"] if released else [])
    assert plan.steps[-1] == Remember("t4", "holds", None, "which holds are ours"), (
        "in any case it is not ours any more"
    )


def test_of_a_slot_the_leader_is_held_first_and_released_last() -> None:
    pair = booking(gpus=2, lanes=(1,), ask={"same_group": True}, state=BookingState.CONFIRMED)
    plan = plan_pool(view([pair], PAIRS), START - MINUTE)
    assert told(plan.steps) == ["hold host_1.0", "hold host_1.1"]
    held = {"host_1.0": 8, "host_1.1": 8}
    providers = {name: SeenProvider(True, 8) for name in held}
    plan = plan_pool(view([], PAIRS, memory=Memory(held), reserved=frozenset(held), seen=providers), START)
    assert told(plan.steps) == ["release host_1.1", "release host_1.0"]


def test_one_gpu_of_somebody_else_never_lands_on_a_slot_that_is_booked_whole() -> None:
    """A single may go to any leader, so a whole slot is released only while no single is let in."""
    whole = booking("whole", (1,), gpus=2, ask={"same_group": True}, project_id="art", project="art", user_id="bob")
    single = booking("single", (2,))
    plan = plan_pool(view([whole, single], PAIRS, limits={("physics", COUNT): 1}), START)
    assert "hold host_1.0" in told(plan.steps)
    assert f"limit physics {COUNT} -> 0" in told(plan.steps)
    later = replace(whole, state=BookingState.CONFIRMED, ask=replace(whole.ask, start=START + HOUR))
    assert kept_lanes(view([later, single], PAIRS), START, frozenset()) == {
        1: "booking whole of ada must have this one later"
    }, "the single could stay there until after the start"


# Unbooked use: nobody slips in.


def unbooked(bookings: list[Booking], **more: Any) -> Scene:
    return view(bookings, rules=FREE, unbooked={"art": 2}, **more)


def test_where_unbooked_use_is_allowed_a_start_takes_its_steps_in_order() -> None:
    """Others' limits down, read back, settled, nothing on its way; then the owner's up; then the hold off."""
    held = Memory({"host_1.0": 8})
    common: dict[str, Any] = {"seen": {"host_1.0": SeenProvider(True, 8)}, "reserved": frozenset({"host_1.0"})}
    now, ready = START, booking(open_until=START + 15 * MINUTE)
    plan = plan_pool(unbooked([ready], limits={("art", COUNT): 2}, memory=held, **common), now)
    assert [str(step) for step in plan.steps] == [f"limit art {COUNT} -> 0"]
    plan = plan_pool(unbooked([ready], memory=held, **common), now)
    assert [str(step) for step in plan.steps] == ["remember lowered"]
    lowered = replace(held, lowered=now)
    plan = plan_pool(unbooked([ready], memory=lowered, **common), now + SETTLE / 2)
    assert plan.steps == ()
    assert "a moment ago" in plan.waits[0]
    late = Holder("x", "late", "BUILD", "eve", "art", "art", "t4", on_its_way=True)
    plan = plan_pool(unbooked([ready], memory=lowered, holders=(late,), **common), now + SETTLE)
    assert plan.steps == ()
    assert "still looks for GPUs for late" in plan.waits[0]
    plan = plan_pool(unbooked([ready], memory=lowered, **common), now + SETTLE)
    assert [str(step) for step in plan.steps] == [
        "remember opened",
        "remember windows",
        f"limit physics {COUNT} -> 1",
        "release host_1.0",
        "remember holds",
    ]


def test_others_limits_go_down_a_moment_before_the_start_so_the_start_need_not_wait() -> None:
    soon = booking(state=BookingState.CONFIRMED)
    limits = {("art", COUNT): 2}
    plan = plan_pool(unbooked([soon], limits=limits), START - PREPARE - timedelta(seconds=1))
    assert told(plan.steps) == ["hold host_1.0"]
    assert f"limit art {COUNT} -> 0" in told(plan_pool(unbooked([soon], limits=limits), START - PREPARE).steps)


def test_once_claimed_the_others_limits_rise_again_and_the_gpu_stays_held_below_its_server() -> None:
    memory = Memory(lowered=START, opened=frozenset({"b1"}))
    plan = plan_pool(unbooked([booking()], holders=(server("s", (1,)),), memory=memory), START + MINUTE)
    assert [str(step) for step in plan.steps] == [
        "remember holds",
        "hold host_1.0",
        "remember lowered",
        "remember opened",
        f"limit art {COUNT} -> 2",
        f"limit physics {COUNT} -> 1",
    ]


def test_when_the_window_is_over_the_hold_comes_back_before_the_others_limits_rise() -> None:
    memory = Memory(lowered=START, opened=frozenset({"b1"}))
    late = START + 16 * MINUTE
    plan = plan_pool(unbooked([booking()], memory=memory, limits={("physics", COUNT): 1}), late)
    assert told(plan.steps) == ["hold host_1.0", f"limit physics {COUNT} -> 0", f"limit art {COUNT} -> 2"]
    again = booking(open_until=late + 15 * MINUTE)
    plan = plan_pool(unbooked([again], limits={("art", COUNT): 2}), late)
    assert f"limit art {COUNT} -> 0" in told(plan.steps), "opened again on request"


QUARTER = 15 * MINUTE


def closed(scene: Scene, now: datetime) -> bool:
    """Whether the others are kept out."""
    return f"limit art {COUNT} -> 0" in told(plan_pool(replace(scene, limits={("art", COUNT): 2}), now).steps)


def test_after_a_window_others_have_the_pool_as_long_before_the_next_one() -> None:
    had = Memory(windows={"b1": START})

    def asked(at: datetime, memory: Memory = had, **more: Any) -> Scene:
        """Asked for at a time."""
        return replace(unbooked([booking(open_until=at + QUARTER, **more)]), memory=memory)

    early = asked(START + 10 * MINUTE)
    assert closed(early, START + 14 * MINUTE), "it is on"
    assert not closed(early, START + 15 * MINUTE), "and does not get longer by asking"
    assert plan_pool(early, START + 15 * MINUTE).waits == (
        "pool t4: GPUs of booking b1 are not released again before 2026-11-23 09:30:00 UTC",
    )
    assert not closed(early, START + 30 * MINUTE), "what was asked for is over"
    in_the_pause = asked(START + 20 * MINUTE)
    assert not closed(in_the_pause, START + 29 * MINUTE)
    assert closed(in_the_pause, START + 30 * MINUTE)
    later = replace(in_the_pause, memory=Memory(windows={"b1": START + 30 * MINUTE}))
    assert closed(later, START + 44 * MINUTE), "and it is on as long as any"
    assert not closed(later, START + 45 * MINUTE)
    assert closed(asked(START + 2 * HOUR), START + 2 * HOUR)
    assert not closed(asked(START, Memory(windows={"b1": START - HOUR})), START + QUARTER)


def test_a_second_booking_of_the_same_person_makes_the_pause_no_shorter() -> None:
    """But each has its first window when it begins."""
    now = START + HOUR
    first = booking(open_until=now + QUARTER)
    other = booking("b2", (2,), start=now - 10 * MINUTE, open_until=now)
    memory = Memory(windows={"b1": START, "b2": now - 20 * MINUTE})
    assert not closed(replace(unbooked([first, other]), memory=memory), now)
    assert closed(replace(unbooked([first, replace(other, user_id="eve")]), memory=memory), now)
    assert closed(replace(unbooked([first, replace(other, open_until=now + 5 * MINUTE)]), memory=Memory()), now)


def test_who_keeps_nobody_out_need_not_pause() -> None:
    late = booking(open_until=START + 30 * MINUTE)
    alone = view([late], rules=FREE, unbooked={"physics": 1}, memory=Memory(windows={"b1": START}))
    assert alone.closing(START + 20 * MINUTE)
    other = booking("b2", (2,), project_id="art", project="art", user_id="bob")
    assert not replace(alone, bookings=(late, other)).closing(START + 20 * MINUTE)


@settings(deadline=None)
@given(presses=st.lists(st.integers(0, 4 * 3600), max_size=30))
def test_however_often_it_is_asked_for_others_have_half_of_the_time(presses: list[int]) -> None:
    """Minute by minute, as the loop sees it; nobody ever comes."""
    memory, current, shut = Memory(lowered=START), booking(end=START + 9 * HOUR, open_until=START + QUARTER), []
    for minute in range(5 * 60):
        now = START + minute * MINUTE
        if any(minute <= press / 60 < minute + 1 for press in presses):
            current = replace(current, open_until=now + QUARTER)
        plan = plan_pool(unbooked([current], memory=memory), now + timedelta(seconds=10))
        words = {
            step.word: str(step.text) for step in plan.steps if isinstance(step, Remember) and step.word == "windows"
        }
        if words:
            memory = replace(memory, windows=read_memory(words).windows)
        shut.append(bool(unbooked([current], memory=memory).closing(now + timedelta(seconds=10))))
    for first in range(len(shut) - 30):
        assert sum(shut[first : first + 30]) <= 16, "of any half hour"


def test_a_clock_that_goes_back_makes_no_window_longer_and_keeps_nobody_out() -> None:
    """Two hours back in the middle of a window: it is over after its length at the latest, and the others come back."""
    back = START - 2 * HOUR
    on = booking(open_until=back + QUARTER)  # as the ledger has it by then
    memory = Memory(lowered=START, opened=frozenset({"b1"}), windows={"b1": START})
    words: dict[str, str] = {"windows": f"b1={int(START.timestamp())}"}
    shut = []
    for minute in range(125):
        now = back + minute * MINUTE
        plan = plan_pool(unbooked([on], memory=memory), now)
        for step in plan.steps:
            if isinstance(step, Remember):
                words[step.word] = step.text or ""
        memory = read_memory({word: text for word, text in words.items() if text})
        shut.append(closed(unbooked([on], memory=memory), now))
    assert shut == [True] * 15 + [False] * 110
    assert memory.windows["b1"] == back


def test_a_clock_that_goes_back_lets_no_release_wait_for_it() -> None:
    ready = booking(open_until=START + QUARTER)
    plan = plan_pool(unbooked([ready], memory=Memory(lowered=START + 2 * HOUR)), START)
    assert [str(step) for step in plan.steps if str(step) == "remember lowered"], "reckoned anew"
    whole = view(
        [booking(start=START + HOUR, end=START + 9 * HOUR, lanes=(1,), gpus=2, ask={"same_group": True})], PAIRS
    )
    assert whole.closing(START), "what has begun has begun"


def test_a_plan_says_when_to_look_again() -> None:
    ready = booking(open_until=START + QUARTER)
    assert plan_pool(unbooked([ready], memory=Memory(lowered=START)), START + SETTLE / 2).again == START + SETTLE
    late = Holder("x", "late", "BUILD", "eve", "art", "art", "t4", on_its_way=True)
    waits = unbooked([ready], memory=Memory(lowered=START), holders=(late,))
    assert plan_pool(waits, START + SETTLE).again == START + SETTLE + LATE
    assert plan_pool(unbooked([ready], memory=Memory(lowered=START)), START + SETTLE).again is None


# Who is let in.


def test_ready_is_who_could_start_a_server_now() -> None:
    assert plan_pool(view([booking()]), START).ready == {"b1"}
    assert plan_pool(view([booking()], holders=(server("s", (1,), "eve"),)), START).ready == frozenset(), "taken"
    assert plan_pool(view([booking()], holders=(server("s", (1,)),)), START).ready == frozenset(), "has come"
    assert plan_pool(view([booking(state=BookingState.CONFIRMED)]), START - MINUTE).ready == frozenset()
    assert plan_pool(view([booking()], reserved=frozenset({"host_1.0"})), START).ready == frozenset(), "held by hand"


def test_ready_where_it_is_released_is_who_has_had_a_window() -> None:
    lowered = Memory(lowered=START)
    assert plan_pool(unbooked([booking()]), START).ready == frozenset(), "the others' limits go down first"
    assert plan_pool(unbooked([booking()], memory=lowered), START + SETTLE).ready == {"b1"}
    assert plan_pool(unbooked([booking()]), START + HOUR).ready == frozenset(), "it never had one"
    assert plan_pool(unbooked([booking()], memory=Memory(windows={"b1": START})), START + HOUR).ready == {"b1"}
    had_a_server = unbooked([booking(claimed=START)])
    assert plan_pool(had_a_server, START + HOUR).ready == {"b1"}, "which was there before the booking"


def test_usable_is_whose_gpus_are_released_now() -> None:
    assert plan_pool(view([booking()]), START).usable == {"b1"}
    assert plan_pool(unbooked([booking()]), START).usable == frozenset()
    assert plan_pool(unbooked([booking()], memory=Memory(lowered=START)), START + SETTLE).usable == {"b1"}
    over = unbooked([booking()], memory=Memory(windows={"b1": START}))
    assert plan_pool(over, START + HOUR).usable == frozenset(), "until it is opened again"


def test_who_is_kept_out_by_the_release_of_somebody_elses_slot_is_not_ready() -> None:
    whole = booking("whole", (1,), gpus=2, ask={"same_group": True}, project_id="art", project="art", user_id="bob")
    scene = view([whole, booking("single", (2,))], PAIRS, memory=Memory(lowered=START))
    assert plan_pool(scene, START + SETTLE).ready == {"whole"}


# Who has which booking, and who must make room.


def test_servers_are_matched_by_user_and_project_and_the_oldest_keeps_what_it_has() -> None:
    servers = [
        server("young", (2,), created=START + MINUTE),
        server("old", (1,)),
        server("other user", (3,), who="eve"),
        server("no gpu yet"),
    ]
    matches = match([booking(lanes=(3,))], servers)
    assert matches.bookings_of == {"old": ("b1",)}
    assert matches.claims == {"b1": (1,)}
    assert [holder.id for holder in matches.unbooked] == ["other user", "young"]


def test_a_server_may_use_several_bookings_of_its_owner() -> None:
    """Nova counts, so it lets a server with two GPUs in for two bookings of one."""
    two = [booking("b1", (1,)), booking("b2", (2,), start=START + MINUTE)]
    matches = match(two, [server("s", (2, 3))])
    assert matches.bookings_of == {"s": ("b2", "b1")}
    assert matches.claims == {"b2": (2,), "b1": (3,)}, "what is on its own GPU counts for it"
    assert (matches.gpus, matches.unbooked) == ({"b1": 1, "b2": 1}, ())
    for other in ({"user_id": "eve"}, {"project_id": "art"}, {"state": BookingState.CONFIRMED}):
        matches = match([two[0], replace(two[1], **other)], [server("s", (2, 3))])
        assert [holder.id for holder in matches.unbooked] == ["s"]
        assert (matches.claims, matches.gpus) == ({}, {}), "half of it is none"
    matches = match([two[0], booking("b2", (2, 3))], [server("old", (1,)), server("s", (2, 3), created=START + MINUTE)])
    assert matches.bookings_of == {"old": ("b1",), "s": ("b2",)}, "one booking is enough where one has enough"


def test_a_server_on_a_whole_slot_may_use_two_bookings_of_one_gpu() -> None:
    scene = view([booking("b1", (2,)), booking("b2", (3,))], PAIRS, holders=(server("s", (1,), gpus=2),))
    assert scene.matches.unbooked == ()
    assert scene.matches.gpus == {"b1": 1, "b2": 1}
    assert [scene.room(booking) for booking in scene.bookings] == [0, 0], "though other GPUs are kept for them still"
    one_for_two = view([booking("b1", (2, 3))], PAIRS, holders=(server("s", (1,), gpus=2),))
    assert one_for_two.room(one_for_two.bookings[0]) == 0


@given(
    sizes=st.lists(st.integers(1, 3), max_size=4),
    servers=st.lists(st.integers(1, 4), max_size=5),
    seed=st.integers(0, 2**16),
)
def test_no_gpu_of_a_booking_is_used_twice_and_none_is_left_where_a_server_needs_it(
    sizes: list[int], servers: list[int], seed: int
) -> None:
    lanes = list(range(1, 40))
    Random(seed).shuffle(lanes)
    booked, taken = iter(lanes), iter(sorted(lanes))
    bookings = [booking(f"b{n}", tuple(next(booked) for _ in range(size))) for n, size in enumerate(sizes)]
    holders = [
        server(f"s{n}", tuple(next(taken) for _ in range(size)), created=START + n * MINUTE)
        for n, size in enumerate(servers)
    ]
    matches = match(bookings, holders)
    left = sum(sizes)
    for holder in holders:
        fits = holder.gpus <= left
        assert (holder.id in matches.bookings_of, holder in matches.unbooked) == (fits, not fits)
        left -= holder.gpus if fits else 0
    used = {booking.id: matches.gpus.get(booking.id, 0) for booking in bookings}
    assert all(used[booking.id] <= booking.ask.gpus for booking in bookings)
    assert sum(used.values()) == sum(sizes) - left
    claimed = [lane for lanes in matches.claims.values() for lane in lanes]
    assert sorted(claimed) == sorted(lane for h in holders if h.id in matches.bookings_of for lane in h.lanes)
    assert all(len(matches.claims.get(booking.id, ())) == used[booking.id] for booking in bookings)


def test_a_booking_whose_gpu_is_taken_gets_another_and_only_then_somebody_must_go() -> None:
    thief = [server("t1", (1,), "eve", "art"), server("t2", (2,), "eve", "art", created=START + MINUTE)]
    assert shortage(unbooked([booking()], holders=tuple(thief)), START).moves == {"b1": (3,)}
    full = (*thief, server("t3", (3,), "eve", "art", created=START + 2 * MINUTE))
    outcome = shortage(view([booking()], rules=FREE, unbooked={"art": 3}, holders=full), START)
    assert (outcome.moves, outcome.yielding, outcome.delayed) == ({}, ("t3",), ("b1",))
    pinned = booking(ask={"gpu": "host/1.0"})
    outcome = shortage(view([pinned], rules=FREE, unbooked={"art": 3}, holders=full), START)
    assert outcome.yielding == ("t1",), "it must be this GPU"
    assert tolerated(view([], unbooked={"art": 2}, holders=full)) == {"t1", "t2"}
    outcome = shortage(view([booking()], rules=FREE, unbooked={"art": 2}, holders=full), START)
    assert outcome.yielding == ("t3",), "who may not be there goes first"


def test_somebody_who_leaves_in_time_is_not_chased() -> None:
    before = booking("before", end=START + HOUR)
    after = booking("after", start=START + HOUR, user_id="bob", state=BookingState.CONFIRMED)
    outcome = shortage(view([before, after], {1: 1}, holders=(server("s", (1,)),)), START)
    assert (outcome.moves, outcome.yielding, outcome.delayed) == ({}, (), ())


def test_what_is_remembered_survives_the_store() -> None:
    values = {"holds": "host_0000:3B:00.0=12 my=host_x=3", "lowered": "1795424400", "opened": "b1 b2"}
    values |= {"windows": "b1=1795424400"}
    memory = read_memory(values)
    assert memory.holds == {"host_0000:3B:00.0": 12, "my=host_x": 3}
    assert memory.lowered == datetime.fromtimestamp(1795424400, UTC)
    assert memory.opened == {"b1", "b2"}
    assert memory.windows == {"b1": memory.lowered}
    assert read_memory({}) == Memory()


class Pool:
    """A pool where unbooked use is allowed: an owner with bookings, and others who try at every moment. The model of
    gpuyard with runners' servers, each on a lease. The model of
    Nova is the worst that it can be: a request that passed the limit looks for a GPU at any later time, and nothing is
    checked again then. Only of one project's requests that come together no more than its limit get through: Nova's
    conductor checks that, docs/adr/0014. The controller dies after any step."""

    PROJECTS: tuple[str, ...] = ("physics", "art", "maths")

    def __init__(self, random: Random) -> None:
        self.random = random
        self.now = START - 2 * MINUTE
        self.reserved: dict[int, int] = {}
        """Lane -> 1 (the controller's) or 2 (an operator's)."""
        lanes = random.choice((1, 2, 2, 3, 4, 5))
        self.generation = dict.fromkeys(range(1, lanes + 1), 1)
        self.limits = {("art", COUNT): 3, ("physics", COUNT): 1}
        self.memory: dict[str, str] = {}
        self.servers: dict[int, tuple[str, int]] = {}
        self.flying: list[tuple[str, datetime]] = []
        # A server is the owner's, or of a colleague who has not booked and takes what the project may have.
        who = random.choice(("physics", "ada"))
        self.bookings = [booking("b1", (1,), state=BookingState.CONFIRMED, user_id=who)]
        if lanes > 1:
            second = {"project_id": "maths", "project": "maths", "user_id": "maths"}
            start = START + timedelta(seconds=random.randint(0, 120))
            self.bookings.append(booking("b2", (2,), state=BookingState.CONFIRMED, start=start, **second))
        if lanes > 2 and random.random() < 0.3:
            self.reserved[3] = 2
        self.secured: set[str] = set()
        self.entered = self.runners = 0

    def happen(self, steps: int) -> None:
        """So many things, one after the other."""
        events: list[Callable[[], None]] = [
            self.time_passes,
            self.everybody_posts,
            self.nova_schedules,
            self.somebody_deletes,
            self.somebody_sets_a_limit_by_hand,
            self.the_controller_runs,
            self.the_controller_is_killed,
            self.in_its_window_the_owner_gets_in,
            self.a_runner_is_started,
        ]
        for event in self.random.choices(events, (30, 20, 20, 10, 5, 40, 20, 3, 25), k=steps):
            event()
            self.secured -= {booking.id for booking in self.bookings if not self._waits(booking)}

    # The world.

    def time_passes(self) -> None:
        self.now += timedelta(seconds=self.random.choice((1, 2, 4, 6, 6, 30, 60, 60, 600)))
        self._advance()

    def _advance(self) -> None:
        for index, booking in enumerate(self.bookings):
            if booking.state is BookingState.CONFIRMED and booking.ask.start <= self.now:
                booking = replace(booking, state=BookingState.ACTIVE, open_until=booking.ask.start + 15 * MINUTE)
            if booking.state is BookingState.ACTIVE and booking.ask.end <= self.now:
                booking = replace(booking, state=BookingState.ENDED)
            self.bookings[index] = booking

    def everybody_posts(self) -> None:
        for project in self.PROJECTS:
            used = sum(owner == project for owner, _ in self.servers.values())
            coming = sum(owner == project for owner, _ in self.flying)
            if used + coming < self.limits.get((project, COUNT), 0):
                self.flying.append((project, self.now))

    def a_runner_is_started(self) -> None:
        """On a lease of a lane that nobody has booked; the project is called after the server."""
        taken = {
            lane for booking in self.bookings if booking.state in (*SOON, BookingState.ACTIVE) for lane in booking.lanes
        }
        free = [lane for lane in self.generation if lane not in taken]
        used = sum(owner.startswith(CI) for owner, _ in (*self.servers.values(), *self.flying))
        if free and used < self.limits.get((CI, COUNT), 0):
            name = f"{CI} {len(self.bookings)}"
            end = self.now + timedelta(seconds=self.random.choice((60, 600, 6000)))
            self.bookings.append(lease(name, (self.random.choice(free),), start=self.now, end=end))
            self.flying.append((name, self.now))

    def nova_schedules(self) -> None:
        if not self.flying:
            return
        project, _ = self.flying.pop(self.random.randrange(len(self.flying)))
        taken = {lane for _, lane in self.servers.values()}
        free = [lane for lane in self.generation if lane not in taken and lane not in self.reserved]
        if not free:
            return
        lane = self.random.choice(free)
        self.servers[max(self.servers, default=0) + 1] = (project, lane)
        self.runners += project.startswith(CI)
        self.generation[lane] += 1
        owed = [booking for booking in self.bookings if booking.id in self.secured and self._waits(booking)]
        left = len(free) - 1 + len([lane for lane in self.reserved if self.reserved[lane] == 1 and lane not in taken])
        assert left >= len(owed), f"{project} got the GPU of {[booking.id for booking in owed]}"

    def _waits(self, booking: Booking) -> bool:
        has = any(owner == booking.project_id for owner, _ in self.servers.values())
        return booking.state in (BookingState.ACTIVE, BookingState.CONFIRMED) and not has

    def somebody_deletes(self) -> None:
        if self.servers:
            _, lane = self.servers.pop(self.random.choice(sorted(self.servers)))
            self.generation[lane] += 1

    def somebody_sets_a_limit_by_hand(self) -> None:
        """Not while a hold is off: who does that gives the GPU away."""
        if "opened" not in self.memory:
            self.limits["art", COUNT] = 3

    # The controller.

    def _view(self) -> Scene:
        holders = [
            server(str(id), (lane,), owner, owner.split()[0], created=START + timedelta(seconds=id), name=owner)
            for id, (owner, lane) in self.servers.items()
        ]
        # Nova lists a create at the latest when limits count as settled.
        holders += [
            Holder(f"f{n}", owner, "BUILD", owner, owner.split()[0], owner, "t4", on_its_way=True)
            for n, (owner, since) in enumerate(self.flying)
            if self.now - since >= SETTLE
        ]
        taken = {lane for _, lane in self.servers.values()}
        base = view(
            self.bookings,
            dict.fromkeys(self.generation, 1),
            FREE,
            holders=tuple(holders),
            limits=dict(self.limits),
            unbooked={"art": 3, "physics": 1},
            trusted={CI: len(self.generation)},
            memory=read_memory(self.memory),
            reserved=frozenset(f"host_{lane}.0" for lane in self.reserved if lane not in taken),
        )
        names = unclear(base, self.now)
        providers = {
            f"host_{lane}.0": SeenProvider(lane in self.reserved, number)
            for lane, number in self.generation.items()
            if f"host_{lane}.0" in names
        }
        return replace(base, seen=providers)

    def the_controller_runs(self) -> None:
        self._look(None)

    def the_controller_is_killed(self) -> None:
        self._look(self.random.randint(0, 6))

    def _look(self, steps: int | None) -> None:
        """One run of the loop; with `steps`, killed after so many of them."""
        self._follow_claims()
        for _ in range(6):
            short = shortage(self._view(), self.now)
            for id, lanes in short.moves.items():
                self._change_places(id, lanes)
            for id in short.leases:
                self._change(id, state=BookingState.ENDED)
            plan = plan_pool(self._view(), self.now)
            if not plan.steps:
                break
            for step in plan.steps:
                if steps is not None and steps <= 0:
                    return
                self._do(step)
                steps = None if steps is None else steps - 1
        else:
            raise AssertionError(f"never done: {plan.steps}")
        self._secure()

    def _do(self, step: EnforcementStep) -> None:
        match step:
            case Remember():
                self.memory.pop(step.word, None)
                if step.text is not None:
                    self.memory[step.word] = step.text
            case SetLimit():
                self.limits[step.project, COUNT] = step.value
            case PlaceHold() | ReleaseHold():
                lane = int(step.provider.removeprefix("host_").removesuffix(".0"))
                assert self.generation[lane] == step.generation
                assert self.reserved.get(lane) != 2, "the operator's"
                self.generation[lane] += 1
                if isinstance(step, PlaceHold):
                    self.reserved[lane] = 1
                else:
                    del self.reserved[lane]

    def _follow_claims(self) -> None:
        """What the ledger does when it is told where servers are: bookings change places."""
        for id, lanes in self._view().matches.claims.items():
            self._change_places(id, lanes[:1])

    def _change_places(self, id: str, new: tuple[int, ...]) -> None:
        old = next(booking.lanes for booking in self.bookings if booking.id == id)
        exchange = {old: new, new: old}
        self.bookings = [
            replace(booking, lanes=exchange.get(booking.lanes, booking.lanes)) for booking in self.bookings
        ]

    def _change(self, id: str, **more: Any) -> None:
        self.bookings = [replace(booking, **more) if booking.id == id else booking for booking in self.bookings]

    def _secure(self) -> None:
        """From here on its GPU must not be lost: it was free, and the controller had seen it so."""
        taken = {lane for _, lane in self.servers.values()}
        for booking in self.bookings:
            held = all(self.reserved.get(lane) == 1 and lane not in taken for lane in booking.lanes)
            if self._waits(booking) and held:
                self.secured.add(booking.id)
            elif not self._waits(booking):
                self.secured.discard(booking.id)

    def in_its_window_the_owner_gets_in(self) -> None:
        if self.flying:
            return
        ready = [
            booking
            for booking in self.bookings
            if booking.id in self.secured
            and booking.state is BookingState.ACTIVE
            and booking.open_until is not None
            and self.now + MINUTE < booking.open_until
        ]
        for _ in range(3 if ready else 0):
            self._look(None)
            self.now += SETTLE + timedelta(seconds=1)
            self._advance()
        self._look(None)
        for ready_booking in ready:
            self.entered += 1
            assert self.limits.get((ready_booking.project_id, COUNT), 0) >= 1
            taken = {lane for _, lane in self.servers.values()}
            assert any(lane not in self.reserved and lane not in taken for lane in self.generation)


@settings(max_examples=400)
@given(seed=st.integers(0, 2**32))
def test_nobody_slips_in_and_the_owner_gets_in(seed: int) -> None:
    Pool(Random(seed)).happen(60)


def test_the_model_comes_to_where_it_matters() -> None:
    pools = [Pool(Random(seed)) for seed in range(40)]
    for pool in pools:
        pool.happen(60)
    assert sum(pool.entered for pool in pools) > 5
    assert sum(pool.runners for pool in pools) > 10


# GPUs that are used once, and are clean again.


def clean(bookings: list[Booking], **more: object) -> Scene:
    """Lane 1's GPU was scrubbed in generation 9, and Nova has it reserved still."""
    values = {
        "reserved": frozenset({"host_1.0"}),
        "clean": {"host_1.0": 9},
        "one_time_use": True,
        "seen": {"host_1.0": SeenProvider(True, 9)},
        **more,
    }
    return view(bookings, **values)  # type: ignore[arg-type]


def test_what_is_clean_is_looked_at_and_released_in_its_generation() -> None:
    scene = clean([])
    assert unclear(scene, START) == {"host_1.0"}
    (step,) = plan_pool(scene, START).steps
    assert step == ReleaseHold("t4", "host_1.0", 9, "it is clean again")
    for provider in (SeenProvider(True, 10), SeenProvider(True, 8), SeenProvider(False, 9)):
        assert plan_pool(clean([], seen={"host_1.0": provider}), START).steps == ()
    assert plan_pool(clean([], clean={}), START).steps == ()  # not clean: it stays Nova's


def test_what_is_clean_and_kept_for_somebody_is_taken_over_and_never_free() -> None:
    soon = booking(state=BookingState.CONFIRMED, start=START + 5 * MINUTE)
    (step,) = plan_pool(clean([soon]), START).steps
    assert isinstance(step, Remember)
    assert (step.word, step.text) == ("holds", "host_1.0=9")
    taken = clean([soon], clean={}, memory=Memory(holds={"host_1.0": 9}))
    assert plan_pool(taken, START).steps == ()
    assert taken.ready(1)  # it is ours: who has booked it can be let in
    begun = replace(taken, bookings=(booking(),), limits={("physics", COUNT): 1})
    assert told(plan_pool(begun, START).steps) == ["release host_1.0"]
    bad = clean([], kept_back={1: "quarantined: it does not answer (no-answer)"})
    assert [str(step) for step in plan_pool(bad, START).steps] == ["remember holds"]


def test_a_slot_that_is_clean_is_released_peers_first() -> None:
    names = {"host_1.0": 9, "host_1.1": 4}
    providers = {name: SeenProvider(True, number) for name, number in names.items()}
    scene = clean([], sizes=PAIRS, reserved=frozenset(names), clean=names, seen=providers)
    assert told(plan_pool(scene, START).steps) == ["release host_1.1", "release host_1.0"]
