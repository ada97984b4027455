"""What agents send: how it is read, and what follows from it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.health.cards import STILL, CardSeen, Place, sight
from gpuyard.health.guests import AgentState, Followed, ReplayError, follow
from gpuyard.health.idle import GAP, Idleness, after, is_idle
from gpuyard.health.samples import RANGES, AgentReport, Sample, SampleError, SampleRow, Xid, report_of
from gpuyard.health.signals import SIGNALS
from gpuyard.health.xid import XIDS, XidAction, signal_of, words_of
from gpuyard.site.health_rules import IdleRules

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
BOOT = "0123456789abcdef"
GOOD: dict[str, Any] = {
    "v": 1, "boot": BOOT, "driver": "580.95.05", "seen": 2, "cards": ["GPU-a", "GPU-b"],
    "samples": [[10, [[1, 2, 3, 4, 0, 0, 0], None]], [20, [[None] * 7, [100, 100, -50, 5000, 7, 2, 255]]]],
    "xids": [[1, -1, 13], [2, 1, 79]],
}  # fmt: skip


def read(**changes: Any) -> AgentReport:
    return report_of(json.dumps(GOOD | changes).encode())


def test_a_report_is_read() -> None:
    assert read() == AgentReport(
        BOOT, "580.95.05", 2, ("GPU-a", "GPU-b"),
        (
            Sample(10, (SampleRow(1, 2, 3, 4, 0, 0, 0), None)),
            Sample(20, (SampleRow(*[None] * 7), SampleRow(100, 100, -50, 5000, 7, 2, 255))),
        ),
        (Xid(1, -1, 13), Xid(2, 1, 79)),
    )  # fmt: skip
    assert read(cards=[], samples=[[0, []]], xids=[]).cards == ()
    without = {key: value for key, value in GOOD.items() if key != "xids"}
    assert report_of(json.dumps(without).encode()).xids == ()


ROW = [0] * 7
WRONG: list[Any] = [True, 1.0, "1", [], 10**400]
BAD: list[dict[str, Any]] = [
    {"v": 2}, {"v": True}, {"v": None}, {"more": 1}, {"boot": "x" * 16}, {"boot": BOOT + "0"}, {"boot": 1},
    {"driver": "a b"}, {"driver": "1" * 41}, {"driver": "\n"}, {"seen": -1}, {"seen": 65}, {"seen": 1.0},
    {"seen": True}, {"seen": "1"}, {"cards": ["a", "a"]}, {"cards": ["a"]}, {"cards": ["a", "b\n"]}, {"cards": "ab"},
    {"cards": ["x" * 65, "b"]}, {"cards": [None, "b"]}, {"cards": list(map(str, range(65)))}, {"samples": []},
    {"samples": [[1, [ROW]]]}, {"samples": [[1, [ROW, ROW, ROW]]]}, {"samples": [[1, [ROW, ROW[1:]]]]},
    {"samples": [[2, [ROW, ROW]], [2, [ROW, ROW]]]}, {"samples": [[2, [ROW, ROW]], [1, [ROW, ROW]]]},
    {"samples": [[-1, [ROW, ROW]]]}, {"samples": [[2**53, [ROW, ROW]]]}, {"samples": [[1.5, [ROW, ROW]]]},
    {"samples": [[0, [ROW, ROW]], [2_160_001, [ROW, ROW]]]}, {"samples": {}}, {"samples": [[n, [ROW, ROW]] for n in
    range(61)]}, {"samples": [[1, ROW]]}, {"samples": [1]}, {"xids": [[1, 2, 79]]}, {"xids": [[1, -2, 79]]},
    {"xids": [[1, 0, 79], [1, 0, 79]]}, {"xids": [[1, 0, 10000]]}, {"xids": [[1, 0]]}, {"xids": None},
    {"xids": [[n, 0, 13] for n in range(51)]},
    *({"samples": [[1, [ROW, [*ROW[:place], value, *ROW[place + 1:]]]]]} for place, (least, most) in enumerate(RANGES)
      for value in (least - 1, most + 1, *WRONG)),
]  # fmt: skip


@pytest.mark.parametrize("changes", BAD, ids=range(len(BAD)))
def test_what_is_out_of_its_form_or_range_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises(SampleError) as refused:
        read(**changes)
    assert len(str(refused.value)) < 100, "nothing of what was sent is said again"


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"null", b"[" * 60000, b"\xff", b"{}" * 40000, b'{"v": NaN}', b"1" * 5000]
)
def test_what_is_no_report_is_refused(body: bytes) -> None:
    with pytest.raises(SampleError):
        report_of(body)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=8) | st.dictionaries(st.sampled_from([*GOOD, "x"]), inner, max_size=7),
)


@given(st.binary(max_size=300) | JSON.map(lambda told: json.dumps(told).encode()))
def test_anything_is_read_or_refused(body: bytes) -> None:
    with contextlib.suppress(SampleError):
        report_of(body)


@given(st.sampled_from(sorted(GOOD)), JSON)
def test_a_report_with_anything_in_it_is_read_within_its_ranges_or_refused(key: str, value: Any) -> None:
    try:
        report = read(**{key: value})
    except SampleError:
        return
    for sample in report.samples:
        assert len(sample.rows) == len(report.cards)
        for row in filter(None, sample.rows):
            assert all(one is None or low <= one <= high for one, (low, high) in zip(row, RANGES, strict=True))


# Xids


def test_each_xid_has_one_action() -> None:
    assert {79: XidAction.MACHINE, 94: XidAction.APPLICATION, 63: XidAction.IGNORE}.items() <= {
        code: action for code, (action, _) in XIDS.items()
    }.items()
    assert {code for code in (64, 95, 119, 120, 140, 143) if signal_of(code) == "xid-reset"} == {
        64, 95, 119, 120, 140, 143,
    }  # fmt: skip
    assert {signal_of(code) for code in range(200)} == {"", "xid-reset", "xid-restart", "xid-application"}
    assert words_of(79) == "Xid 79: GPU has fallen off the bus"
    assert (words_of(4711), signal_of(4711)) == ("Xid 4711", "")


# What follows

P1, P2, P3 = ("gpu-1", "0000:05:00.0"), ("gpu-1", "0000:06:00.0"), ("gpu-2", "0000:05:00.0")
FINE = SampleRow(50, 50, 50, 50, 0, 0, 0)


def said(
    *rows: SampleRow | None, number: int = 10, boot: str = BOOT, seen: int | None = None, xids: Collection[Xid] = ()
) -> AgentReport:
    cards = tuple(f"GPU-{index}" for index in range(len(rows)))
    return AgentReport(boot, "580", len(rows) if seen is None else seen, cards, (Sample(number, rows),), tuple(xids))


def hear(
    report: AgentReport,
    state: AgentState = AgentState(),  # noqa: B008 -- is never changed
    has: Collection[Place] = (P1, P2),
    cards: Mapping[str, Place] = {"GPU-0": P1, "GPU-1": P2},
) -> Followed:
    return follow(state, report, "s1", has, cards, NOW)


def seen(followed: Followed) -> set[tuple[str, Place]]:
    assert all(one.code in SIGNALS and one.by == "s1" and one.seen == NOW for one in followed.observations)
    return {(one.code, (one.host, one.address)) for one in followed.observations}


def test_nothing_follows_from_what_is_well() -> None:
    first = hear(said(FINE, FINE))
    assert seen(first) == set()
    assert seen(hear(said(FINE._replace(slow=0x1 | 0x4 | 0x20), FINE, number=11), first.state)) == set()


def test_errors_count_from_what_they_were() -> None:
    first = hear(said(FINE, FINE._replace(ecc=3)))
    assert seen(first) == {("ecc", P2)}
    second = hear(said(FINE, FINE._replace(ecc=3), number=11), first.state)
    assert seen(second) == set()
    assert seen(hear(said(FINE, FINE._replace(ecc=None), number=12), second.state)) == set()
    assert seen(hear(said(FINE, FINE._replace(ecc=4), number=12), second.state)) == {("ecc", P2)}


def test_what_lasts_is_seen_once_until_it_was_well() -> None:
    bad = FINE._replace(rows=2, slow=0x40)
    first = hear(said(FINE, bad))
    assert seen(first) == {("rows", P2), ("throttled", P2)}
    assert "its heat, at 50 degrees C" in "".join(one.evidence for one in first.observations)
    second = hear(said(FINE, bad, number=11), first.state)
    assert seen(second) == set()
    third = hear(said(FINE, FINE, number=12), second.state)
    assert seen(hear(said(FINE, bad, number=13), third.state)) == {("rows", P2), ("throttled", P2)}


def test_a_lost_gpu_is_the_one_that_no_other_is() -> None:
    assert seen(hear(said(FINE, None))) == {("guest-lost", P2)}
    assert seen(hear(said(FINE))) == {("guest-lost", P2)}  # as if it had never been there
    assert seen(hear(said(FINE, FINE, seen=1))) == set()  # both answer and are known: none of them can be it
    assert seen(hear(said(FINE), cards={})) == {("guest-lost", P1), ("guest-lost", P2)}
    assert seen(hear(said(None, None))) == {("guest-lost", P1), ("guest-lost", P2)}


def test_no_driver_is_no_fault_and_no_gpu_is_one() -> None:
    nothing = AgentReport(BOOT, "", 2, (), (Sample(1, ()),))
    assert seen(hear(nothing)) == set()
    assert seen(hear(AgentReport(BOOT, "", 1, (), (Sample(1, ()),)))) == {("guest-lost", P1), ("guest-lost", P2)}


def test_xids_are_seen_once_and_of_the_right_gpu() -> None:
    first = hear(said(FINE, FINE, xids=[Xid(1, 1, 79), Xid(2, 0, 94), Xid(3, 0, 63), Xid(4, 0, 4711)]))
    assert seen(first) == {("xid-restart", P2), ("xid-application", P1)}
    again = hear(said(FINE, FINE, number=11, xids=[Xid(1, 1, 79), Xid(5, 0, 119)]), first.state)
    assert seen(again) == {("xid-reset", P1)}
    # Which one it was is not known: none is quarantined.
    assert seen(hear(said(FINE, FINE, xids=[Xid(1, 0, 79)]), cards={})) == {("xid-reset", P1), ("xid-reset", P2)}
    # All but one are known.
    assert seen(hear(said(FINE, FINE, xids=[Xid(1, 0, 79)]), cards={"GPU-1": P2})) == {("xid-restart", P1)}
    assert seen(hear(said(FINE, xids=[Xid(1, -1, 79)]), has=[P1], cards={})) == {("xid-restart", P1)}


def test_a_report_that_was_here_is_refused_and_one_that_comes_again_counts_once() -> None:
    first = hear(said(FINE, FINE))
    for report in (said(FINE, FINE), said(FINE, FINE, number=9)):
        with pytest.raises(ReplayError):
            hear(report, first.state)
    again = AgentReport(BOOT, "", 2, ("GPU-0", "GPU-1"), (Sample(10, (FINE, FINE)), Sample(20, (FINE, FINE))))
    assert [one.number for one in hear(again, first.state).fresh] == [20]
    other = hear(said(FINE, FINE, number=1, boot="f" * 16), first.state)
    with pytest.raises(ReplayError, match="earlier boot"):
        hear(said(FINE, FINE, number=99), other.state)


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5), st.booleans(), st.integers(0, 3)), max_size=12),
    st.dictionaries(st.sampled_from(["GPU-0", "GPU-1"]), st.sampled_from([P1, P2, P3])),
)
def test_whatever_an_agent_says_is_of_the_gpus_of_its_server(
    story: list[tuple[str, int, bool, int]], cards: dict[str, Place]
) -> None:
    state = AgentState()
    for boot, number, lost, ecc in story:
        xids = [Xid(number, 0, 79), Xid(number + 1, -1, 119)]
        report = said(None if lost else FINE._replace(ecc=ecc, rows=2), FINE, number=number, boot=boot * 16, xids=xids)
        try:
            followed = hear(report, state, cards=cards)
        except ReplayError:
            continue
        assert {place for _, place in seen(followed)} <= {P1, P2}
        assert (followed.state.boot, followed.state.number) == (boot * 16, number)
        state = followed.state


# Cards


def test_a_server_with_one_gpu_tells_its_card_at_once() -> None:
    known, wrong = sight({}, "s1", [P1], ["GPU-a"], NOW)
    assert known["GPU-a"].place == P1
    assert wrong == []
    assert sight(known, "s1", [P1], ["GPU-a"], NOW) == ({}, [])


def test_places_are_intersected_and_what_one_is_no_other_is() -> None:
    known, _ = sight({}, "s1", [P1, P2], ["GPU-a", "GPU-b"], NOW)
    assert {one.place for one in known.values()} == {None}
    more, wrong = sight(known, "s2", [P2, P3], ["GPU-b", "GPU-c"], NOW)
    known |= more
    assert {card: one.place for card, one in known.items()} == {"GPU-a": P1, "GPU-b": P2, "GPU-c": P3}
    assert wrong == []


def test_a_card_that_was_moved_is_a_finding_and_so_is_one_that_another_has() -> None:
    known, _ = sight({}, "s1", [P1], ["GPU-a"], NOW)
    lies, wrong = sight(known, "s2", [P3], ["GPU-a"], NOW + STILL / 2)
    assert lies == {}
    assert wrong[0].places == {P1, P3}
    moved, wrong = sight(known, "s2", [P3], ["GPU-a"], NOW + STILL)
    assert moved["GPU-a"].place == P3
    assert "was at gpu-1/0000:05:00.0 and is at gpu-2/0000:05:00.0" in wrong[0].why


def test_a_card_that_was_replaced_is_forgotten() -> None:
    known, _ = sight({}, "s1", [P1], ["GPU-a"], NOW)
    changed, wrong = sight(known, "s2", [P1], ["GPU-b"], NOW + STILL)
    assert changed["GPU-b"].place == P1
    assert not changed["GPU-a"].places
    assert "another one is" in wrong[0].why


def test_cards_cannot_be_made_up_without_end() -> None:
    known: dict[str, CardSeen] = {}
    for number in range(100):
        changed, _ = sight(known, "s1", [P1, P2, P3], [f"GPU-{number}"], NOW)
        known = {card: one for card, one in {**known, **changed}.items() if one.places}
    assert len(known) == 1


def test_more_cards_than_gpus_is_a_finding() -> None:
    assert sight({}, "s1", [P1], ["GPU-a", "GPU-b"], NOW)[1][0].places == {P1}
    assert sight({}, "s1", [], ["GPU-a"], NOW) == ({}, [])
    assert sight({}, "s1", [P1], ["", ""], NOW) == ({}, [])


@given(st.lists(st.tuples(st.sets(st.integers(0, 7), min_size=1), st.booleans()), max_size=30))
def test_while_no_card_moves_the_true_place_is_never_excluded(servers: list[tuple[set[int], bool]]) -> None:
    known: dict[str, CardSeen] = {}
    truth = {f"GPU-{n}": ("host", str(n)) for n in range(8)}
    for number, (places, all_of_them) in enumerate(servers):
        cards = [f"GPU-{n}" for n in sorted(places)][: None if all_of_them else 1]
        more, wrong = sight(known, f"s{number}", [("host", str(n)) for n in places], cards, NOW)
        known |= more
        assert wrong == []
        for card, one in known.items():
            assert truth[card] in one.places
    places_of = [one.place for one in known.values() if one.place]
    assert len(set(places_of)) == len(places_of)


# Idle

RULES = IdleRules.model_validate({"after": "10 min", "below": 5})
SAMPLES = st.lists(st.tuples(st.integers(0, 400), st.none() | st.integers(0, 10)), max_size=60)


@given(SAMPLES, st.integers(0, 1000))
def test_idle_is_only_what_was_seen_without_a_gap(steps: list[tuple[int, int | None]], later: int) -> None:
    idle, time, seen_uses = Idleness(), NOW, [(NOW, 100)]
    for seconds, use in steps:
        time += timedelta(seconds=seconds)
        idle = after(idle, time, use, RULES.below)
        if seconds:
            seen_uses.append((time, 100 if use is None else use))
    now = time + timedelta(seconds=later)
    since = now
    for at, use in reversed(seen_uses[1:]):
        if use >= RULES.below or (since is not now and since - at > GAP):
            break
        since = at
    expected = idle.heard is not None and now - idle.heard <= GAP and since is not now
    assert idle.lasts(now) == ((idle.heard or now) - since if expected else timedelta())


def test_a_server_is_idle_when_all_its_gpus_are() -> None:
    now = NOW + timedelta(minutes=10)
    rests, works = Idleness(NOW, now), Idleness(NOW + timedelta(minutes=1), now)
    assert is_idle([rests, rests], RULES, now)
    assert not is_idle([rests, works], RULES, now)
    assert not is_idle([], RULES, now)
    assert not is_idle([rests], RULES, now + GAP + timedelta(seconds=1)), "nobody knows what it does now"
