"""How often GPUs went bad, counted."""

from __future__ import annotations

from datetime import timedelta

from hypothesis import given
from hypothesis import strategies as st

from gpuyard.health.records import HealthEvent, HealthState
from gpuyard.health.repeats import By, is_failure, repeats
from tests.support.ledgers import HOUR, NOON

A, B = "0000:27:00.0", "0000:28:00.0"


def event(
    hours: float, address: str, before: HealthState, after: HealthState, card: str = "", signal: str = ""
) -> HealthEvent:
    return HealthEvent("gpu-1", address, card, NOON + hours * HOUR, before, after, "because", signal)


def test_a_card_is_known_wherever_it_is_put() -> None:
    moved = [
        event(0, A, HealthState.FINE, HealthState.IN_USE, "card-1"),
        event(24, A, HealthState.IN_USE, HealthState.QUARANTINED, "card-1", "no-answer"),
        event(48, B, HealthState.FINE, HealthState.QUARANTINED, "card-1", "missing"),
        event(50, B, HealthState.FINE, HealthState.QUARANTINED, "card-1", "no-answer"),
        event(51, A, HealthState.FINE, HealthState.QUARANTINED, "", "missing"),
    ]
    (card,) = repeats(moved, By.CARD)
    assert (card.name, card.failures, card.mtbf) == ("card-1", 3, 13 * HOUR)
    assert card.signals == ("no-answer", "missing")
    assert card.gpus == (f"gpu-1/{A}", f"gpu-1/{B}")
    assert card.latest == NOON + 50 * HOUR


def test_a_group_that_goes_bad_at_once_is_one_failure_of_its_slot_and_host() -> None:
    both = [event(10, address, HealthState.FINE, HealthState.QUARANTINED, address, "no-answer") for address in (A, B)]
    slots = {("gpu-1", A): f"gpu-1/{A}", ("gpu-1", B): f"gpu-1/{A}"}
    (slot,) = repeats(both, By.SLOT, slots)
    assert (slot.name, slot.failures) == (f"gpu-1/{A}", 1)
    assert [repeat.failures for repeat in repeats(both, By.HOST)] == [1]
    assert [repeat.name for repeat in repeats(both, By.CARD)] == [A, B]


def test_who_gives_up_a_repair_makes_no_new_failure() -> None:
    record = [
        event(1, A, HealthState.FINE, HealthState.QUARANTINED),
        event(2, A, HealthState.QUARANTINED, HealthState.IN_REPAIR),
        event(3, A, HealthState.IN_REPAIR, HealthState.QUARANTINED),
        event(4, A, HealthState.QUARANTINED, HealthState.QUARANTINED, signal="missing"),
    ]
    (host,) = repeats(record, By.HOST)
    assert host.failures == 1
    assert repeats([record[1]], By.HOST) == []


STATES = st.sampled_from(list(HealthState))
EVENTS = st.lists(
    st.builds(
        event, st.integers(0, 400), st.sampled_from([A, B]), STATES, STATES, st.sampled_from(["", "c1", "c2"]),
        st.sampled_from(["", "missing", "aer-fatal"]),
    ),
    max_size=30,
)  # fmt: skip


@given(EVENTS, st.sampled_from(By))
def test_nobody_fails_more_often_than_there_are_failures(events: list[HealthEvent], by: By) -> None:
    ranked = repeats(events, by)
    assert sum(repeat.failures for repeat in ranked) <= sum(map(is_failure, events))
    assert [repeat.failures for repeat in ranked] == sorted((repeat.failures for repeat in ranked), reverse=True)
    for repeat in ranked:
        assert (repeat.mtbf is None) == (repeat.failures == 1), "there is a time between two only"
        assert repeat.mtbf is None or timedelta(0) < repeat.mtbf <= 400 * HOUR / (repeat.failures - 1)
    assert bool(ranked) == any(is_failure(event) and (event.card or by is not By.CARD) for event in events)
