"""Exponential backoff: the pause after failures in a row."""

from __future__ import annotations

from datetime import timedelta
from typing import TypeVar

T = TypeVar("T", float, timedelta)

_MOST_DOUBLINGS = 20
"""Most doublings. An outage of a day is thousands of failures: more than a float or a timedelta can be doubled."""


def backoff(first: T, failures: int, longest: T, factor: int = 2) -> T:
    """Return the pause after so many failures in a row: `first` after one, `factor` times as long after each that
    follows, and never more than `longest`.

    >>> [backoff(10.0, failures, 60.0) for failures in (1, 2, 3, 4, 5)]
    [10.0, 20.0, 40.0, 60.0, 60.0]
    """
    pause: T = first * factor ** min(max(failures, 1) - 1, _MOST_DOUBLINGS)
    return min(pause, longest)
