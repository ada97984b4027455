"""What the clock of a cloud shows, by its answers."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.openstack.api import date_of


@pytest.mark.parametrize(
    ("header", "date"),
    [
        ("Sun, 22 Nov 2026 20:15:07 GMT", datetime(2026, 11, 22, 20, 15, 7, tzinfo=UTC)),
        ("Sun, 22 Nov 2026 21:15:07 +0100", datetime(2026, 11, 22, 20, 15, 7, tzinfo=UTC)),
        (None, None),
        ("", None),
        ("soon", None),
        ("Sun, 22 Nov 2026 20:15:07 -0000", None),  # says no time zone
        ("Fri, 31 Dec 9999 23:59:59 -2359", None),
    ],
)
def test_date(header: str | None, date: datetime | None) -> None:
    assert date_of(header) == date


@given(st.text(max_size=60))
def test_whatever_a_header_says_is_a_time_or_none(text: str) -> None:
    moment = date_of(text)
    assert moment is None or moment.tzinfo is UTC
