"""Tariffs and days on the wall clocks of a zone, also where these are set to another time."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import QuietHours
from gpuyard.site.tariff_clock import STANDARD, Tariff, TariffClock

ROME = ZoneInfo("Europe/Rome")
ZONES = ("Europe/Rome", "UTC", "America/Santiago", "Asia/Kathmandu", "Australia/Lord_Howe", "Africa/Cairo")
WEEKEND = Tariff("weekend", frozenset({5, 6}))
NIGHT = Tariff("night", hours=(QuietHours(20 * 60, 8 * 60),))


def test_the_first_tariff_that_claims_a_moment_holds() -> None:
    clock = TariffClock(ROME, [WEEKEND, NIGHT])
    assert clock.names == ("weekend", "night", STANDARD)
    thursday = datetime(2026, 11, 26, tzinfo=ROME)
    names_by_hour = {hour: clock.at(thursday + timedelta(hours=hour)) for hour in (3, 8, 19, 20, 24, 48, 52)}
    assert names_by_hour == {
        3: "night", 8: STANDARD, 19: STANDARD, 20: "night", 24: "night", 48: "weekend", 52: "weekend",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("day", "hours", "night"),
    [
        (date(2026, 11, 26), 24, 12),
        (date(2026, 3, 29), 23, 11),  # from 2:00 to 3:00 there is nothing
        (date(2026, 10, 25), 25, 13),  # 2:00 to 3:00 is there twice
    ],
)
def test_a_day_is_as_long_as_it_is(day: date, hours: int, night: int) -> None:
    pieces = TariffClock(ROME, [NIGHT]).day(day)
    lengths = {
        name: sum(piece.end - piece.start for piece in pieces if piece.tariff == name) for name in ("night", STANDARD)
    }
    assert (sum(lengths.values()), lengths["night"]) == (hours * 3600, night * 3600)
    assert [piece.tariff for piece in pieces] == ["night", STANDARD, "night"]


def test_an_hour_that_summer_time_skips_is_in_no_tariff() -> None:
    small = Tariff("small", hours=(QuietHours(2 * 60, 3 * 60),))
    clock = TariffClock(ROME, [small])
    assert [piece.tariff for piece in clock.day(date(2026, 3, 29))] == [STANDARD]
    twice = [piece for piece in clock.day(date(2026, 10, 25)) if piece.tariff == "small"]
    assert sum(piece.end - piece.start for piece in twice) == 2 * 3600


def test_a_day_whose_midnight_is_skipped_begins_when_it_is() -> None:
    clock = TariffClock(ZoneInfo("America/Santiago"))
    assert clock.begin(date(2026, 9, 6)) == datetime(2026, 9, 6, 4, tzinfo=UTC)
    (whole,) = clock.day(date(2026, 9, 6))
    assert whole.end - whole.start == 23 * 3600


def test_a_day_that_a_zone_left_out_is_empty() -> None:
    clock = TariffClock(ZoneInfo("Pacific/Apia"))
    assert clock.day(date(2011, 12, 30)) == ()
    days = [piece.day.day for piece in clock.pieces(clock.begin(date(2011, 12, 29)), clock.begin(date(2012, 1, 1)))]
    assert days == [29, 31]


parts = st.builds(QuietHours, st.integers(0, 1439), st.integers(0, 1439)).filter(
    lambda part: part.start_minute != part.end_minute
)
tariffs = st.lists(
    st.builds(
        Tariff,
        st.sampled_from(["a", "b"]),
        st.frozensets(st.integers(0, 6), min_size=1),
        st.lists(parts, max_size=2).map(tuple),
    ),
    max_size=3,
)


@given(st.sampled_from(ZONES), tariffs, st.integers(1_700_000_000, 1_900_000_000), st.integers(1, 6 * 86400))
def test_pieces_have_no_gap_and_say_what_the_wall_clock_says(
    zone: str, some: list[Tariff], start: int, length: int
) -> None:
    clock = TariffClock(ZoneInfo(zone), some)
    pieces = list(clock.pieces(moment(start), moment(start + length)))
    assert (pieces[0].start, pieces[-1].end) == (start, start + length)
    assert all(earlier.end == following.start for earlier, following in pairwise(pieces))
    for piece in pieces:
        step = max(1, (piece.end - piece.start) // 7)
        for at in (*range(piece.start, piece.end, step), piece.end - 1):
            assert clock.at(moment(at)) == piece.tariff
            assert clock.day_of(moment(at)) == piece.day
            assert seconds(clock.begin(piece.day)) <= at
