"""What agents send: how it is read, and what follows from it."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.health.cards import STILL, CardSeen, Place, locate_cards
from gpuyard.health.guests import AgentState, Followed, ReplayError, follow
from gpuyard.health.idle import GAP, Idleness, after, is_idle
from gpuyard.health.samples import RANGES, AgentReport, Sample, SampleError, SampleRow, Xid, report_of
from gpuyard.health.xid import CATALOGUE as CATALOGUE_SOURCE
from gpuyard.health.xid import XIDS, XidAction, signal_of, words_of
from gpuyard.model.signals import SIGNALS, Judgement
from gpuyard.site.health_rules import IdleRules

NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)
BOOT = "0123456789abcdef"
GOOD: dict[str, Any] = {
    "v": 2, "boot": BOOT, "driver": "580.95.05", "seen": 2, "cards": ["GPU-a", "GPU-b"],
    "samples": [[10, [[1, 2, 3, 4, 0, 0, 0, 0], None]], [20, [[None] * 8, [100, 100, -50, 5000, 7, 2, 255, 4]]]],
    "xids": [[1, "0000:05:00", 13, None], [2, "GPU-b", 154, 1]],
}  # fmt: skip


def read(**changes: Any) -> AgentReport:
    return report_of(json.dumps(GOOD | changes).encode())


def test_a_report_is_read() -> None:
    assert read() == AgentReport(
        BOOT, "580.95.05", 2, ("GPU-a", "GPU-b"),
        (
            Sample(10, (SampleRow(1, 2, 3, 4, 0, 0, 0, 0), None)),
            Sample(20, (SampleRow(*[None] * 8), SampleRow(100, 100, -50, 5000, 7, 2, 255, 4))),
        ),
        (Xid(1, "0000:05:00", 13), Xid(2, "GPU-b", 154, 1)),
    )  # fmt: skip
    assert read(stuck=True).stuck
    assert read(cards=[], samples=[[0, []]], xids=[]).cards == ()
    without = {key: value for key, value in GOOD.items() if key != "xids"}
    assert report_of(json.dumps(without).encode()).xids == ()


def test_a_report_of_an_agent_of_version_one_is_read() -> None:
    old = read(v=1, samples=[[10, [[1, 2, 3, 4, 0, 0, 0], None]]], xids=[[1, -1, 13], [2, 1, 79]])
    assert old.samples[0].rows == (SampleRow(1, 2, 3, 4, 0, 0, 0, None), None)
    assert old.xids == (Xid(1, "", 13), Xid(2, "GPU-b", 79))
    for wrong in (
        {},
        {"samples": [[1, [ROW, ROW]]], "xids": []},
        {"samples": [[1, [None, None]]], "xids": [[1, 2, 79]]},
    ):
        with pytest.raises(SampleError):
            read(v=1, **wrong)


ROW = [0] * 8
WRONG: list[Any] = [True, 1.0, "1", [], 10**400]
BAD: list[dict[str, Any]] = [
    {"v": 3}, {"v": 0}, {"stuck": 1}, {"stuck": None},
    {"v": True}, {"v": None}, {"more": 1}, {"boot": "x" * 16}, {"boot": BOOT + "0"}, {"boot": 1},
    {"driver": "a b"}, {"driver": "1" * 41}, {"driver": "\n"}, {"seen": -1}, {"seen": 65}, {"seen": 1.0},
    {"seen": True}, {"seen": "1"}, {"cards": ["a", "a"]}, {"cards": ["a"]}, {"cards": ["a", "b\n"]}, {"cards": "ab"},
    {"cards": ["x" * 65, "b"]}, {"cards": [None, "b"]}, {"cards": list(map(str, range(65)))}, {"samples": []},
    {"samples": [[1, [ROW]]]}, {"samples": [[1, [ROW, ROW, ROW]]]}, {"samples": [[1, [ROW, ROW[1:]]]]},
    {"samples": [[2, [ROW, ROW]], [2, [ROW, ROW]]]}, {"samples": [[2, [ROW, ROW]], [1, [ROW, ROW]]]},
    {"samples": [[-1, [ROW, ROW]]]}, {"samples": [[2**53, [ROW, ROW]]]}, {"samples": [[1.5, [ROW, ROW]]]},
    {"samples": [[0, [ROW, ROW]], [2_160_001, [ROW, ROW]]]}, {"samples": {}}, {"samples": [[n, [ROW, ROW]] for n in
    range(61)]}, {"samples": [[1, ROW]]}, {"samples": [1]}, {"xids": [[1, 0, 79, None]]},
    {"xids": [[1, "x" * 65, 79, None]]}, {"xids": [[1, "a b", 79, None]]}, {"xids": [[1, "a", 79]]},
    {"xids": [[1, "a", 79, None], [1, "a", 79, None]]}, {"xids": [[1, "a", 10000, None]]}, {"xids": [[1, "a"]]},
    {"xids": None}, {"xids": [[1, "a", 154, 256]]}, {"xids": [[1, "a", 154, -1]]}, {"xids": [[1, "a", 154, True]]},
    {"xids": [[n, "a", 13, None] for n in range(201)]},
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


@given(st.binary(max_size=300) | JSON.map(lambda value: json.dumps(value).encode()))
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
            assert all(figure is None or low <= figure <= high for figure, (low, high) in zip(row, RANGES, strict=True))


# Xids


CATALOGUE: dict[str, set[int]] = {
    "RESET_GPU": {46, 62, 64, 95, 109, 110, 119, 120, 136, 140, 143, 155, 156, 158},
    "RESTART_VM": {151},
    "RESTART_BM": {79},
    "CHECK_MECHANICALS": {54},
    "RESTART_APP": {
        8, 11, 13, 25, 31, 32, 39, 40, 41, 60, 68, 69, 70, 71, 72, 75, 76, 77, 80, 82, 83, 84, 85, 86, 88, 89, 94, 96,
        97, 98, 99, 100, 101, 102, 103, 104, 105, *range(126, 136), 139,
    },
    "CHECK_UVM": {159},
    "IGNORE": {14, 37, 38, 43, 44, 63, 66, 67, 92, 93, 106, 107, 108, 121, 137, 141, 152, 153, 157, 160, 161},
    "WORKFLOW_XID_45": {45},
    "WORKFLOW_XID_48": {48},
    "WORKFLOW_NVLINK_ERR": {74},
    "WORKFLOW_NVLINK5_ERR": set(range(144, 151)),
    "XID_154": {154},
    "UPDATE_SWFW": {78},
    "CONTACT_SUPPORT": {73, 142},
    "": set(range(162, 173)),
}  # fmt: skip
"""Immediate resolution -> Xids, as leptonai/gpud has NVIDIA's catalogue (generated 2025-10-29T00:35:32Z); of those that
say CONTACT_SUPPORT only the two that its own description (142) or nverror.h (73) calls a video encoder's."""
MEANS = {
    "RESET_GPU": XidAction.RESET, "RESTART_VM": XidAction.RESET, "RESTART_BM": XidAction.MACHINE,
    "RESTART_APP": XidAction.APPLICATION, "IGNORE": XidAction.IGNORE,
}  # fmt: skip


def test_each_xid_does_what_nvidias_catalogue_says_or_names_another_source() -> None:
    catalogued = {code for codes in CATALOGUE.values() for code in codes}
    for resolution, codes in CATALOGUE.items():
        for code in codes & XIDS.keys():
            if XIDS[code].source == CATALOGUE_SOURCE:
                assert MEANS.get(resolution) is XIDS[code].action, code
    others = {code: row for code, row in XIDS.items() if row.source != CATALOGUE_SOURCE}
    assert set(others) == {45, 48, 54, 64, 73, 74, 78, 142, *range(144, 151), 154, 159, 171, 172}
    assert catalogued - set(range(162, 171)) <= XIDS.keys(), "nothing follows from those alone"
    assert others[64].action is XidAction.REPLACE
    assert {signal_of(code) for code in range(200)} == {
        "", "xid-replace", "xid-reset", "xid-restart", "xid-application",
    }  # fmt: skip
    assert all(signal in SIGNALS for code in XIDS for signal in [signal_of(code, 1)] if signal)
    assert SIGNALS[signal_of(64)].judgement is Judgement.BAD
    assert words_of(79) == "Xid 79: GPU has fallen off the bus"
    assert (words_of(4711), signal_of(4711)) == ("Xid 4711", "")


LINK_RESETS = {144: "48", 145: "48", 146: "48", 149: "", 150: ""}
"""Xids of NVLink with rows that are fatal and ask for a reset -> what comes with all of those locally: the same
catalogue, sheet of NVLink events (IGNORE and XID_154_EVAL elsewhere)."""


@pytest.mark.parametrize("code", range(144, 151))
def test_nvlinks_fatal_errors_ask_for_a_reset_and_the_others_for_nothing(code: int) -> None:
    assert signal_of(code, 1) == "xid-reset"
    assert signal_of(code, 0) == ""
    # An agent of version 1 does not say: what has no 48 beside it counts.
    assert signal_of(code) == ("xid-reset" if LINK_RESETS.get(code) == "" else "")


@pytest.mark.parametrize(
    ("action", "code"),
    [(0, ""), (1, "driver-reset"), (2, "driver-reboot"), (3, "driver-reset"), (4, "driver-reset"), (5, "driver-reset"),
     (6, "driver-reset"), (7, "driver-reboot"), (200, "driver-reset")],
)  # fmt: skip
def test_the_drivers_own_verdict_counts(action: int, code: str) -> None:
    """NVML_GPU_RECOVERY_ACTION_* of nvidia-ml-py 13.615.71; by Xid 154 at once, by NVML as long as it lasts."""
    assert signal_of(154, action) == code
    assert signal_of(154) == ""
    first = hear(said(FINE, FINE._replace(recovery=action)))
    assert seen(first) == ({(code, P2)} if code else set())
    assert first.state.alarms == ({(code, "/".join(P2))} if code else set())
    assert hear(said(FINE, FINE, number=11), first.state).state.alarms == set()


# What follows

P1, P2, P3 = ("gpu-1", "0000:05:00.0"), ("gpu-1", "0000:06:00.0"), ("gpu-2", "0000:05:00.0")
FINE = SampleRow(50, 50, 50, 50, 0, 0, 0, 0)


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
    assert all(
        observation.code in SIGNALS and observation.by == "s1" and observation.seen == NOW
        for observation in followed.observations
    )
    return {(observation.code, (observation.host, observation.address)) for observation in followed.observations}


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
    more = hear(said(FINE, FINE._replace(ecc=4), number=12), second.state)
    assert seen(more) == {("ecc", P2)}
    # The driver was loaded anew, and counts from zero.
    none = hear(said(FINE, FINE, number=13), more.state)
    assert seen(none) == set()
    again = hear(said(FINE, FINE._replace(ecc=1), number=14), none.state)
    assert seen(again) == {("ecc", P2)}
    assert seen(hear(said(FINE, FINE._replace(ecc=3), number=13), more.state)) == {("ecc", P2)}


def test_what_lasts_is_seen_once_until_it_was_well() -> None:
    bad = FINE._replace(rows=2, slow=0x40)
    first = hear(said(FINE, bad))
    assert seen(first) == {("rows", P2), ("throttled", P2)}
    assert "its heat, at 50 degrees C" in "".join(observation.evidence for observation in first.observations)
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
    first = hear(
        said(FINE, FINE, xids=[Xid(1, "GPU-1", 79), Xid(2, "GPU-0", 94), Xid(3, "GPU-0", 63), Xid(4, "GPU-0", 4711)])
    )
    assert seen(first) == {("xid-restart", P2), ("xid-application", P1)}
    again = hear(said(FINE, FINE, number=11, xids=[Xid(1, "GPU-1", 79), Xid(5, "GPU-0", 119)]), first.state)
    assert seen(again) == {("xid-reset", P1)}
    # Which one it was is not known: none is quarantined.
    assert seen(hear(said(FINE, FINE, xids=[Xid(1, "GPU-0", 79)]), cards={})) == {("xid-reset", P1), ("xid-reset", P2)}
    # All but one are known.
    assert seen(hear(said(FINE, FINE, xids=[Xid(1, "GPU-0", 79)]), cards={"GPU-1": P2})) == {("xid-restart", P1)}
    assert seen(hear(said(FINE, xids=[Xid(1, "", 79)]), has=[P1], cards={})) == {("xid-restart", P1)}


def test_an_xid_of_a_card_that_is_gone_is_of_that_card() -> None:
    assert seen(hear(said(FINE, xids=[Xid(1, "GPU-1", 79)]))) == {("xid-restart", P2), ("guest-lost", P2)}
    assert seen(hear(said(FINE, xids=[Xid(1, "0000:06:00", 79)]))) == {("xid-restart", P2), ("guest-lost", P2)}
    nothing = AgentReport(BOOT, "", 2, (), (Sample(1, ()),), (Xid(1, "GPU-1", 79), Xid(2, "0000:06:00", 64)))
    assert seen(hear(nothing)) == {("xid-restart", P2), ("xid-reset", P1), ("xid-reset", P2)}


def test_a_driver_that_does_not_answer_clears_nothing() -> None:
    first = hear(said(FINE, FINE._replace(rows=2)))
    stuck = hear(replace(said(None, None, number=11), stuck=True), first.state)
    assert seen(stuck) == {("driver-stuck", P1), ("driver-stuck", P2)}
    assert first.state.alarms < stuck.state.alarms
    well = hear(said(FINE, FINE, number=12), stuck.state)
    assert not seen(well)
    assert not well.state.alarms


def test_a_report_that_was_here_is_refused_and_one_that_comes_again_counts_once() -> None:
    first = hear(said(FINE, FINE))
    for report in (said(FINE, FINE), said(FINE, FINE, number=9)):
        with pytest.raises(ReplayError):
            hear(report, first.state)
    again = AgentReport(BOOT, "", 2, ("GPU-0", "GPU-1"), (Sample(10, (FINE, FINE)), Sample(20, (FINE, FINE))))
    assert [sample.number for sample in hear(again, first.state).fresh] == [20]
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
        xids = [Xid(number, "GPU-0", 79), Xid(number + 1, "", 119)]
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
    known_cards, wrong = locate_cards({}, "s1", [P1], ["GPU-a"], NOW)
    assert known_cards["GPU-a"].place == P1
    assert wrong == []
    assert locate_cards(known_cards, "s1", [P1], ["GPU-a"], NOW) == ({}, [])


def test_places_are_intersected_and_what_one_is_no_other_is() -> None:
    known_cards, _ = locate_cards({}, "s1", [P1, P2], ["GPU-a", "GPU-b"], NOW)
    assert {sighting.place for sighting in known_cards.values()} == {None}
    more, wrong = locate_cards(known_cards, "s2", [P2, P3], ["GPU-b", "GPU-c"], NOW)
    known_cards |= more
    assert {card: sighting.place for card, sighting in known_cards.items()} == {"GPU-a": P1, "GPU-b": P2, "GPU-c": P3}
    assert wrong == []


def test_a_card_that_was_moved_is_a_finding_and_so_is_one_that_another_has() -> None:
    known_cards, _ = locate_cards({}, "s1", [P1], ["GPU-a"], NOW)
    lies, wrong = locate_cards(known_cards, "s2", [P3], ["GPU-a"], NOW + STILL / 2)
    assert lies == {}
    assert wrong[0].places == {P1, P3}
    moved, wrong = locate_cards(known_cards, "s2", [P3], ["GPU-a"], NOW + STILL)
    assert moved["GPU-a"].place == P3
    assert "was at gpu-1/0000:05:00.0 and is at gpu-2/0000:05:00.0" in wrong[0].why


def test_a_card_that_was_replaced_is_forgotten() -> None:
    known_cards, _ = locate_cards({}, "s1", [P1], ["GPU-a"], NOW)
    changed, wrong = locate_cards(known_cards, "s2", [P1], ["GPU-b"], NOW + STILL)
    assert changed["GPU-b"].place == P1
    assert not changed["GPU-a"].places
    assert "another one is" in wrong[0].why


def test_cards_cannot_be_made_up_without_end() -> None:
    known_cards: dict[str, CardSeen] = {}
    for number in range(100):
        changed, _ = locate_cards(known_cards, "s1", [P1, P2, P3], [f"GPU-{number}"], NOW)
        known_cards = {card: sighting for card, sighting in {**known_cards, **changed}.items() if sighting.places}
    assert len(known_cards) == 1


def test_more_cards_than_gpus_is_a_finding() -> None:
    assert locate_cards({}, "s1", [P1], ["GPU-a", "GPU-b"], NOW)[1][0].places == {P1}
    assert locate_cards({}, "s1", [], ["GPU-a"], NOW) == ({}, [])
    assert locate_cards({}, "s1", [P1], ["", ""], NOW) == ({}, [])


@given(st.lists(st.tuples(st.sets(st.integers(0, 7), min_size=1), st.booleans()), max_size=30))
def test_while_no_card_moves_the_true_place_is_never_excluded(servers: list[tuple[set[int], bool]]) -> None:
    known_cards: dict[str, CardSeen] = {}
    truth = {f"GPU-{n}": ("host", str(n)) for n in range(8)}
    for number, (places, all_of_them) in enumerate(servers):
        cards = [f"GPU-{n}" for n in sorted(places)][: None if all_of_them else 1]
        more, wrong = locate_cards(known_cards, f"s{number}", [("host", str(n)) for n in places], cards, NOW)
        known_cards |= more
        assert wrong == []
        for card, sighting in known_cards.items():
            assert truth[card] in sighting.places
    places_of = [sighting.place for sighting in known_cards.values() if sighting.place]
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
