"""Every second of every GPU is of one use, and every sum of a report is right however it is cut."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.booking import BookingKind
from gpuyard.usage.accounts import BY, CHARGED, USED, Prices, UseAccount, UseKind, accounts, total, use_of
from gpuyard.usage.records import Slice, Sum, TrackState

KINDS = ["", *(kind.value for kind in BookingKind)]
names = st.sampled_from(["", "ada", "physics", "t4"])
slices = st.builds(
    Slice,
    tariff=st.sampled_from(["", "night"]),
    pool=st.sampled_from(["t4", "v100"]),
    host=names,
    project=names,
    user=names,
    repository=names,
    state=st.sampled_from([state.value for state in TrackState]),
    kind=st.sampled_from(KINDS),
)
sums = st.lists(
    st.builds(Sum, st.dates(date(2026, 1, 1), date(2026, 3, 1)), slices, st.integers(0, 10**9)), max_size=30
)
PRICES = Prices(
    lambda pool, tariff: {"t4": Decimal("0.37"), "v100": Decimal("1.10")}[pool] / (2 if tariff == "night" else 1)
)


@pytest.mark.parametrize("state", TrackState)
@pytest.mark.parametrize("kind", KINDS)
def test_every_state_is_of_one_use(state: TrackState, kind: str) -> None:
    use = use_of(state.value, kind)
    assert (use in USED) == (state is TrackState.CLAIMED and kind != BookingKind.LOAN.value)
    assert isinstance(use, UseKind)


def test_all_uses_are_there() -> None:
    assert {use_of(state.value, kind) for state in TrackState for kind in KINDS} == set(UseKind)
    with pytest.raises(ValueError, match="mislaid"):
        use_of("mislaid")


@given(sums, st.lists(st.sampled_from(sorted(BY)), unique=True, max_size=4))
def test_the_lines_of_a_report_add_up_to_all_gpu_time(some: list[Sum], by: list[str]) -> None:
    lines = accounts(some, by, PRICES)
    assert [line.key for line in lines] == sorted({line.key for line in lines})
    whole, all_at_once = total(lines), total(accounts(some, [], PRICES))
    assert whole.total == sum(use_sum.seconds for use_sum in some) == all_at_once.total
    assert (whole.seconds, whole.cost) == (all_at_once.seconds, all_at_once.cost)


@given(sums, st.integers(0, 29), st.integers(0, 100))
def test_a_split_changes_no_sum(some: list[Sum], where: int, percent: int) -> None:
    if not some:
        return
    cut = some[where % len(some)]
    first = cut.seconds * percent // 100
    parts = [use_sum for use_sum in some if use_sum is not cut]
    parts += [Sum(cut.period, cut.slice, first), Sum(cut.period, cut.slice, cut.seconds - first)]
    parts += [cut] * (sum(use_sum is cut for use_sum in some) - 1)
    before, after = accounts(some, ["project", "day"], PRICES), accounts(parts, ["project", "day"], PRICES)
    assert [(line.key, line.seconds, line.cost) for line in before] == [
        (line.key, line.seconds, line.cost) for line in after
    ]


def line(seconds: int, prices: Prices, **words: str) -> UseAccount:
    words = {"pool": "t4", "state": "claimed", **words}
    return total(accounts([Sum(date(2026, 1, 1), Slice(**words), seconds)], [], prices))


def test_only_what_is_charged_costs() -> None:
    one_each = Prices(lambda pool, tariff: Decimal(1))
    with_booked = Prices(one_each.price, CHARGED["booked"])
    assert line(3600, one_each).cost == 1
    assert line(3600, one_each, state="booked", kind="booking").cost == 0
    assert line(3600, with_booked, state="booked", kind="booking").cost == 1
    assert line(3600, with_booked, kind="loan").cost == 0
    assert line(3600, with_booked, state="free").cost == 0
    assert line(3600, Prices()).cost == 0


def test_an_hour_s_price_is_for_the_second_and_rounded_once() -> None:
    third = Prices(lambda pool, tariff: Decimal("0.01"))
    assert line(1799, third).cost == Decimal("0.00")
    assert line(1800, third).cost == Decimal("0.01")  # halves go up
    many = [Sum(date(2026, 1, 1), Slice(pool="t4", user=str(number), state="claimed"), 1200) for number in range(3)]
    lines = accounts(many, ["user"], third)
    assert [line.cost for line in lines] == [Decimal("0.00")] * 3
    assert total(lines).cost == Decimal("0.01")  # of the unrounded sum


def test_a_report_can_be_by_day_and_month_and_tariff() -> None:
    some = [
        Sum(date(2026, 1, 31), Slice(pool="t4", state="claimed", tariff="night"), 60),
        Sum(date(2026, 2, 1), Slice(pool="t4", state="free"), 30),
    ]
    assert [account.key for account in accounts(some, ["month", "tariff"])] == [
        ("2026-01", "night"),
        ("2026-02", "standard"),
    ]
    assert [account.key for account in accounts(some, ["day"])] == [("2026-01-31",), ("2026-02-01",)]
