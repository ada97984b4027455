"""A recurring booking as a whole, holds of hosts and pools, and what the audit log finds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import AuditQuery, Query
from gpuyard.model.booking import Booking, BookingState, Rules
from gpuyard.model.errors import ForbiddenError
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, Clock, ask, names, open_ledger

ONE_GPU = "gpu-2/0000:18:00.0"


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def ledger(tmp_path: Path, clock: Clock) -> Iterator[Ledger]:
    ledger = open_ledger(tmp_path, Rules(most_active=100), clock)
    yield ledger
    ledger.close()


def daily(ledger: Ledger, hours: float = 4) -> tuple[Booking, ...]:
    """Three days, of one GPU."""
    wish = ask(1, hours, pool="t4", gpu=ONE_GPU)
    return ledger.create(wish, ADA, repeat="FREQ=DAILY;COUNT=3")


def times(ledger: Ledger, series: str) -> list[tuple[float, float]]:
    """Start and end of each, in hours after NOON."""
    bookings = ledger.find(Query(series=series))
    return [((booking.ask.start - NOON) / HOUR, (booking.ask.end - NOON) / HOUR) for booking in bookings]


def test_a_series_is_cancelled_as_a_whole_but_for_what_has_begun(ledger: Ledger, clock: Clock) -> None:
    first, second, third = daily(ledger)
    clock.forward(2)
    ledger.upkeep.advance()
    assert ledger.cancel(second.id, ADA, series=True, reason="moved").state is BookingState.CANCELLED
    assert [ledger.get(booking.id).state for booking in (first, second, third)] == [
        BookingState.ACTIVE,
        BookingState.CANCELLED,
        BookingState.CANCELLED,
    ]
    assert ledger.get(third.id).reason == "moved"


def test_one_of_a_series_is_cancelled_alone(ledger: Ledger) -> None:
    first, second, third = daily(ledger)
    ledger.cancel(second.id, ADA)
    assert [ledger.get(booking.id).state for booking in (first, second, third)] == [
        BookingState.CONFIRMED,
        BookingState.CANCELLED,
        BookingState.CONFIRMED,
    ]


@pytest.mark.parametrize("days", [1, -0.03125])
def test_a_series_moves_as_a_whole_also_into_its_own_times(ledger: Ledger, days: float) -> None:
    made = daily(ledger, hours=24)
    wish = replace(made[1].ask, start=made[1].ask.start + days * DAY, end=made[1].ask.end + days * DAY, comment="moved")
    changed = ledger.edit(made[1].id, wish, ADA, series=True)
    assert changed.ask.comment == "moved"
    by = days * 24
    assert times(ledger, made[0].series) == [(1 + by, 25 + by), (25 + by, 49 + by), (49 + by, 73 + by)]


def test_a_series_that_cannot_move_stays_and_says_on_which_day(ledger: Ledger) -> None:
    made = daily(ledger)
    before = times(ledger, made[0].series)
    ledger.create(ask(54, 1, pool="t4", gpu=ONE_GPU), BOB)
    with pytest.raises(RefusedError, match="on Wed 2026-11-25 14:00") as refused:
        ledger.edit(made[0].id, replace(made[0].ask, start=NOON + 2 * HOUR, end=NOON + 7 * HOUR), ADA, series=True)
    assert names(refused.value.answer.reasons) == ["full"]
    assert times(ledger, made[0].series) == before


def test_a_series_is_changed_by_who_may_change_one(ledger: Ledger) -> None:
    made = daily(ledger)
    with pytest.raises(ForbiddenError):
        ledger.cancel(made[0].id, BOB, series=True)
    assert {booking.state for booking in ledger.find(Query(series=made[0].series))} == {BookingState.CONFIRMED}


def test_holds_of_a_host_and_of_a_pool(ledger: Ledger) -> None:
    made = ledger.hold([], NOON + HOUR, NOON + 2 * HOUR, ROOT, "new fans", hosts=["gpu-1"], pools=["t4"])
    assert len(made) == 6
    assert {booking.ask.pool for booking in made} == {"v100", "t4"}
    with pytest.raises(RefusedError, match="there is no host gpu-9; there are gpu-1, gpu-2, gpu-3"):
        ledger.hold([], NOON + HOUR, NOON + 2 * HOUR, ROOT, "", hosts=["gpu-9"])
    with pytest.raises(RefusedError, match="there is no pool 'k80'; there are t4, v100"):
        ledger.hold([], NOON + HOUR, NOON + 2 * HOUR, ROOT, "", pools=["k80"])


def test_maintenance_that_comes_again(ledger: Ledger) -> None:
    made = ledger.hold([ONE_GPU], NOON + HOUR, NOON + 3 * HOUR, ROOT, "patches", repeat="FREQ=WEEKLY;COUNT=3")
    assert times(ledger, made[0].series) == [(1, 3), (169, 171), (337, 339)]
    with pytest.raises(RefusedError):
        ledger.create(ask(169, 1, pool="t4", gpu=ONE_GPU), ADA)
    ledger.cancel(made[0].id, ROOT, series=True)
    ledger.create(ask(169, 1, pool="t4", gpu=ONE_GPU), ADA)


def test_holds_of_several_pools_are_all_made_or_none(ledger: Ledger) -> None:
    ledger.create(ask(1, 2, gpus=2, same_group=True, gpu="gpu-1/0000:27:00.0"), ADA)
    with pytest.raises(RefusedError, match="that one cannot go elsewhere"):
        ledger.hold([], NOON + HOUR, NOON + 2 * HOUR, ROOT, "", hosts=["gpu-1", "gpu-2"])
    holds = ledger.find(Query(states=frozenset({BookingState.CONFIRMED})))
    assert [hold.user for hold in holds] == ["ada"]


def test_the_audit_log_is_filtered(ledger: Ledger, clock: Clock) -> None:
    (hers,) = ledger.create(ask(1, pool="t4"), ADA)
    clock.forward(1)
    (his,) = ledger.create(ask(2, pool="v100"), BOB)
    ledger.cancel(hers.id, ROOT)

    def targets(**query: object) -> list[tuple[str, str]]:
        return [(entry.target, entry.actor) for entry in ledger.audit(query=AuditQuery(**query))]  # type: ignore[arg-type]

    assert targets(user="ada") == [(hers.id, "root"), (hers.id, "ada")]
    assert targets(user="root") == [(hers.id, "root")]
    assert targets(pool="v100") == [(his.id, "bob")]
    assert targets(project="biology") == targets(project="p-biology") == [(his.id, "bob")]
    assert targets(target=his.id) == [(his.id, "bob")]
    assert targets(start=NOON + HOUR) == [(hers.id, "root"), (his.id, "bob")]
    assert targets(end=NOON + HOUR) == [(hers.id, "ada")]
    assert targets(user="ada", pool="v100") == []


def test_what_differs_in_one_of_a_series_stays(ledger: Ledger) -> None:
    made = daily(ledger)
    special = ledger.edit(made[2].id, replace(made[2].ask, comment="special", end=made[2].ask.end + HOUR), ADA)
    ledger.edit(made[0].id, replace(made[0].ask, end=made[0].ask.end + HOUR), ADA, series=True)
    assert ledger.get(special.id).ask == replace(special.ask, end=special.ask.end + HOUR)
    ledger.edit(made[0].id, replace(ledger.get(made[0].id).ask, comment="new"), ADA, series=True)
    assert ledger.get(special.id).ask.comment == "new"


def test_maintenance_of_a_host_moves_as_a_whole(ledger: Ledger) -> None:
    made = ledger.hold([], NOON + HOUR, NOON + 3 * HOUR, ROOT, "", hosts=["gpu-1"], repeat="FREQ=WEEKLY;COUNT=2")
    wish = replace(made[0].ask, start=made[0].ask.start + HOUR, end=made[0].ask.end + HOUR, comment="later")
    ledger.edit(made[0].id, wish, ROOT, series=True)
    assert set(times(ledger, made[0].series)) == {(2, 4), (170, 172)}
    assert {booking.ask.gpu for booking in ledger.find(Query(series=made[0].series))} == {
        booking.ask.gpu for booking in made
    }


def test_a_series_of_holds_in_several_pools_ends_in_all_of_them(ledger: Ledger) -> None:
    made = ledger.hold([], NOON + HOUR, NOON + 3 * HOUR, ROOT, "", pools=["t4", "v100"], repeat="FREQ=WEEKLY;COUNT=2")
    with pytest.raises(RefusedError, match="its series has holds in"):
        ledger.edit(made[0].id, replace(made[0].ask, comment="x"), ROOT, series=True)
    ledger.cancel(made[0].id, ROOT, series=True)
    assert {booking.state for booking in ledger.find(Query(series=made[0].series))} == {BookingState.CANCELLED}
