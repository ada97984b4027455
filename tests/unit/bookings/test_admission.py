"""Admission: what is given, why not, and what else. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.admission import Movable, PoolLanes, admit, place
from gpuyard.bookings.policy import Usage
from gpuyard.bookings.timetable import Timetable
from gpuyard.database.times import seconds
from gpuyard.model.booking import Answer, Ask, Lane, Person, Reason, Rules
from tests.support.ledgers import ADA, DAY, EVE, HOUR, NOON, ask, lanes, names

PAIR_A, PAIR_B, LONE_A, LONE_B = 1, 2, 3, 4


def taken(*intervals: tuple[int, float, float]) -> Timetable:
    """Lane, start and end in hours after noon."""
    base = seconds(NOON)
    return Timetable((lane, base + int(start * 3600), base + int(end * 3600)) for lane, start, end in intervals)


def answer(
    wish: Ask,
    table: Timetable | None = None,
    rules: Rules | None = None,
    who: Person = ADA,
    facts: Usage | None = None,
    **more: object,
) -> Answer:
    pool = PoolLanes(lanes(), table or Timetable())
    return admit(wish, pool, rules or Rules(), who, facts or Usage(), NOON, **more)  # type: ignore[arg-type]


def test_one_gpu_takes_a_lone_one_before_it_strands_a_peer() -> None:
    assert answer(ask()).lanes == (LONE_A,)
    assert answer(ask(), taken((LONE_A, 0, 9))).lanes == (LONE_B,)
    assert answer(ask(), taken((LONE_A, 0, 9), (LONE_B, 0, 9))).lanes == (PAIR_A,)


def test_one_gpu_is_put_where_the_smallest_gap_is_left() -> None:
    assert answer(ask(start=2, hours=2), taken((LONE_A, 9, 10), (LONE_B, 0, 2))).lanes == (LONE_B,)


def test_a_group_takes_one_lane_of_its_size() -> None:
    assert answer(ask(gpus=2, same_group=True)).lanes == (PAIR_A,)
    assert answer(ask(gpus=2, same_group=True), taken((PAIR_A, 0, 9))).lanes == (PAIR_B,)
    full = answer(ask(gpus=2, same_group=True), taken((PAIR_A, 0, 9), (PAIR_B, 2, 3)))
    assert names(full.reasons) == ["full"]
    three = answer(ask(gpus=3, same_group=True))
    assert names(three.reasons) == ["no_such_group"]
    assert "its groups have 2" in three.reasons[0].text


def test_several_gpus_are_several_lanes() -> None:
    assert set(answer(ask(gpus=4)).lanes) == {1, 2, 3, 4}
    more = answer(ask(gpus=5))
    assert names(more.reasons) == ["too_big"]
    assert "only 4 GPUs of pool v100 can be booked one by one" in more.reasons[0].text
    assert "GPUs that share an IOMMU group are booked together" in more.reasons[0].text


def test_back_to_back_is_no_conflict() -> None:
    table = taken(*((lane, 0, 1) for lane in range(1, 5)), *((lane, 5, 9) for lane in range(1, 5)))
    assert answer(ask(start=1, hours=4), table).yes
    assert names(answer(ask(start=1, hours=4.1), table).reasons) == ["full"]
    assert names(answer(ask(start=0.9, hours=4.1), table).reasons) == ["full"]


def test_a_no_says_from_when_it_is_possible_and_how_many_and_until_when() -> None:
    table = taken(*((lane, 2, 9) for lane in (1, 2, 3)), (4, 3, 8))
    no = answer(ask(start=1.5, hours=3, gpus=1), table)
    assert names(no.reasons) == ["full"]
    assert [alternative.text for alternative in no.alternatives] == [
        "from Mon 2026-11-23 20:00 UTC",
        "until Mon 2026-11-23 15:00 UTC (1 h 30 min)",
    ]
    assert no.alternatives[0].ask.end - no.alternatives[0].ask.start == 3 * HOUR
    several = answer(ask(start=8, hours=0.5, gpus=3), table)
    assert [alternative.text for alternative in several.alternatives] == [
        "from Mon 2026-11-23 21:00 UTC",
        "1 of 3 at that time",
    ]


@pytest.mark.parametrize(
    ("wish", "code"),
    [
        (ask(gpus=0), "no_gpus"),
        (ask(gpus=-3), "no_gpus"),
        (ask(gpus=10**6), "too_big"),
        (ask(hours=0), "ends_first"),
        (ask(hours=-2), "ends_first"),
        (ask(start=-5, hours=1), "past"),
        (ask(start=-5, hours=20), "past"),
        (ask(gpus=1, same_group=True), "one_group"),
        (ask(gpu="gpu-1/0000:28:00.0"), "peer"),
        (ask(gpu="gpu-1/0000:99:00.0"), "no_such_gpu"),
        (ask(gpu="nonsense"), "no_such_gpu"),
        (ask(gpu="gpu-1/0000:27:00.0", gpus=2), "too_big"),
    ],
)
def test_what_cannot_be_is_refused_with_its_reason_even_with_override(wish: Ask, code: str) -> None:
    for override in (False, True):
        assert names(answer(wish, override=override).reasons) == [code]


def test_a_certain_gpu() -> None:
    assert answer(ask(gpu="gpu-1/0000:C3:00.0")).lanes == (LONE_B,)
    assert answer(ask(gpu="gpu-1/0000:28:00.0", gpus=2, same_group=True)).lanes == (PAIR_A,)
    no = answer(ask(gpu="gpu-1/0000:c3:00.0"), taken((LONE_B, 0, 3)))
    assert no.reasons[0].text == "GPU gpu-1/0000:c3:00.0 is booked until Mon 2026-11-23 15:00 UTC"


def test_gpus_of_one_host() -> None:
    spread = [
        Lane(1, "t4", "a", ("1",)),
        Lane(2, "t4", "b", ("1",)),
        Lane(3, "t4", "b", ("2",)),
        Lane(4, "t4", "c", ("1",)),
    ]
    both = admit(ask(gpus=2, pool="t4", same_host=True), PoolLanes(spread, Timetable()), Rules(), ADA, Usage(), NOON)
    assert set(both.lanes) == {2, 3}
    none = admit(ask(gpus=3, pool="t4", same_host=True), PoolLanes(spread, Timetable()), Rules(), ADA, Usage(), NOON)
    assert none.reasons[0].text == "no host has 3 of pool t4 to book: b has 2"
    busy = admit(
        ask(gpus=2, pool="t4", same_host=True), PoolLanes(spread, taken((2, 0, 9))), Rules(), ADA, Usage(), NOON
    )
    assert "no 2 of them on one host" in busy.reasons[0].text
    assert busy.alternatives[0].text == "from Mon 2026-11-23 21:00 UTC"


def test_lanes_in_trouble_are_not_given() -> None:
    bad = [replace(lane, trouble="lost") for lane in lanes()[:3]] + [lanes()[3]]
    assert admit(ask(), PoolLanes(bad, Timetable()), Rules(), ADA, Usage(), NOON).lanes == (LONE_B,)
    more = admit(ask(gpus=2), PoolLanes(bad, Timetable()), Rules(), ADA, Usage(), NOON)
    assert "and 3 more that cannot be used now" in more.reasons[0].text


@pytest.mark.parametrize(
    ("rules", "wish", "facts", "code"),
    [
        (Rules(may_book=False), ask(), Usage(), "not_bookable"),
        (Rules(users=frozenset({"bob"})), ask(), Usage(), "not_among_users"),
        (Rules(notice=2 * HOUR), ask(start=1), Usage(), "too_soon"),
        (Rules(ahead=DAY), ask(start=25), Usage(), "too_far"),
        (Rules(longest=3 * HOUR), ask(hours=4), Usage(), "too_long"),
        (Rules(most_active=2), ask(), Usage(active=2), "too_many"),
        (Rules(gpu_hours_per_month=5), ask(hours=3, gpus=2), Usage(), "gpu_hours"),
        (
            Rules(gpu_hours_per_month=5),
            ask(hours=3),
            Usage(booked_seconds={NOON.replace(day=1, hour=0): 9000}),
            "gpu_hours",
        ),
    ],
)
def test_every_rule_refuses_alone_and_yields_to_an_override(rules: Rules, wish: Ask, facts: Usage, code: str) -> None:
    no = answer(wish, rules=rules, facts=facts)
    assert names(no.reasons) == [code]
    yes = answer(wish, rules=rules, facts=facts, override=True)
    assert yes.yes
    assert names(yes.overridden) == [code]


def test_a_reader_may_not_book() -> None:
    assert names(answer(ask(), who=EVE).reasons) == ["no_role"]


def test_all_broken_rules_are_told_at_once() -> None:
    strict = Rules(longest=HOUR, most_active=1, notice=DAY)
    assert names(answer(ask(), rules=strict, facts=Usage(active=4)).reasons) == ["too_soon", "too_long", "too_many"]


def test_an_override_never_gives_a_gpu_twice() -> None:
    table = taken(*((lane, 0, 9) for lane in range(1, 5)))
    assert names(answer(ask(), table, override=True).reasons) == ["full"]


def test_others_that_have_not_begun_make_room() -> None:
    # Two singles sit on the two pairs, as the lone GPUs were taken when they came; those are free now.
    table = taken((PAIR_A, 2, 6), (PAIR_B, 3, 8))
    wish = ask(start=2, hours=4, gpus=2, same_group=True)
    others = [Movable("x", ask(start=2, hours=4), (PAIR_A,)), Movable("y", ask(start=3, hours=5), (PAIR_B,))]
    stay = admit(wish, PoolLanes(lanes(), table), Rules(), ADA, Usage(), NOON)
    assert not stay.yes
    moved = admit(wish, PoolLanes(lanes(), table, lambda start, end: others), Rules(), ADA, Usage(), NOON)
    assert moved.lanes in ((PAIR_A,), (PAIR_B,))
    assert len(moved.moves) == 1 or set(moved.moves) == {"x", "y"}
    assert not {lane for new in moved.moves.values() for lane in new} & set(moved.lanes)


WISH = st.builds(
    lambda start, hours, kind: ask(start=start, hours=hours, **kind),
    st.integers(1, 20),
    st.integers(1, 8),
    st.sampled_from(
        [{"gpus": 1}, {"gpus": 1}, {"gpus": 2}, {"gpus": 2, "same_group": True}, {"gpu": "gpu-1/0000:a3:00.0"}]
    ),
)


@given(st.lists(WISH, max_size=14), WISH)
def test_whatever_is_given_nothing_overlaps_and_moves_keep_their_kind(wishes: list[Ask], last: Ask) -> None:
    """Book one after the other, moving what may move: no lane is ever taken twice, and each has what it asked for."""
    table, made = Timetable(), dict[str, Movable]()

    def movable(start: int, end: int) -> Sequence[Movable]:
        return [m for m in made.values() if not m.ask.gpu and seconds(m.ask.start) < end and start < seconds(m.ask.end)]

    for number, wish in enumerate([*wishes, last]):
        before = [(lane, *interval) for lane in range(1, 5) for interval in table.intervals(lane, 0, 2**40)]
        placement = place(wish, PoolLanes(lanes(), table, movable))
        assert [(lane, *interval) for lane in range(1, 5) for interval in table.intervals(lane, 0, 2**40)] == before
        if isinstance(placement, Reason):
            continue
        chosen, moves = placement
        for id in moves:
            for lane in made[id].lanes:
                table.remove(lane, seconds(made[id].ask.start), seconds(made[id].ask.end))
        made[str(number)] = Movable(str(number), wish, chosen)
        made.update({id: replace(made[id], lanes=new) for id, new in moves.items()})
        for id in [*moves, str(number)]:
            for lane in made[id].lanes:
                table.add(lane, seconds(made[id].ask.start), seconds(made[id].ask.end))  # raises when it is taken
            sizes = [lane.size for lane in lanes() if lane.id in made[id].lanes]
            ask = made[id].ask
            assert sizes == [ask.gpus] if ask.same_group else len(set(made[id].lanes)) == ask.gpus
            assert not ask.gpu or made[id].lanes == (LONE_A,)


@given(st.lists(WISH, max_size=10), WISH)
def test_an_alternative_is_always_possible(wishes: list[Ask], last: Ask) -> None:
    table = Timetable()
    for wish in wishes:
        placement = place(wish, PoolLanes(lanes(), table))
        if not isinstance(placement, Reason):
            for lane in placement[0]:
                table.add(lane, seconds(wish.start), seconds(wish.end))
    for other in answer(last, table).alternatives:
        assert answer(other.ask, table).yes
