"""Splits time by tariff and by day, on the wall clock of the site's time zone.

A wall clock decides which tariff holds at a moment, so an hour that summer time skips is in none, and one that it
repeats is in its tariff twice. A piece of time is cut where the tariff or the day changes; only pieces that are the
same throughout are added up. What an hour costs is in accounting_rules.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from itertools import pairwise
from zoneinfo import ZoneInfo

from gpuyard.database.times import moment, seconds
from gpuyard.model.booking import QuietHours

STANDARD = "standard"
"""The tariff of moments that no other one claims."""
MIDNIGHT = 24 * 60
A_DAY = timedelta(days=1)


@dataclass(frozen=True)
class Tariff:
    """Parts of the week: moments on one of the days and in one of the parts of a day."""

    name: str
    days: frozenset[int] = frozenset(range(7))
    """0 is Monday. What is after midnight is of the following day."""
    hours: tuple[QuietHours, ...] = ()
    """Parts of the day; any time when empty."""

    def holds(self, day: int, minute: int) -> bool:
        """Return whether it holds on a day of the week, at a minute after midnight."""
        return day in self.days and (not self.hours or any(_within(minute, part) for part in self.hours))


def _within(minute: int, part: QuietHours) -> bool:
    start, end = part.start_minute, part.end_minute
    return start <= minute < end if start < end else minute >= start or minute < end


@dataclass(frozen=True)
class Piece:
    """A piece of one day and one tariff: [start, end) in seconds since 1970."""

    start: int
    end: int
    day: date
    """The day by the site's clocks."""
    tariff: str


class TariffClock:
    """The tariffs of a site. Where several claim a moment, the first holds."""

    def __init__(self, zone: ZoneInfo, tariffs: Sequence[Tariff] = ()) -> None:
        self.zone = zone
        self.tariffs = tuple(tariffs)
        self._edges = sorted(
            {edge for tariff in tariffs for part in tariff.hours for edge in _edges(part)} - {MIDNIGHT}
        )
        self._of_day = lru_cache(maxsize=4000)(self._day)

    @property
    def names(self) -> tuple[str, ...]:
        return (*(tariff.name for tariff in self.tariffs), STANDARD)

    def at(self, when: datetime) -> str:
        """Return the name of the tariff that holds at a moment."""
        local = when.astimezone(self.zone)
        minute = local.hour * 60 + local.minute
        names = (tariff.name for tariff in self.tariffs if tariff.holds(local.weekday(), minute))
        return next(names, STANDARD)

    def day_of(self, when: datetime) -> date:
        """Return the day that a moment counts to."""
        day = when.astimezone(self.zone).date()
        return day if self.begin(day) <= when else day - A_DAY

    def begin(self, day: date) -> datetime:
        """Return `day_begin` on these clocks."""
        return day_begin(day, self.zone)

    def day(self, day: date) -> tuple[Piece, ...]:
        """Return the pieces of a day, in order and without a gap. Empty for one that the zone has left out."""
        return self._of_day(day)

    def pieces(self, start: datetime, end: datetime) -> Iterator[Piece]:
        """Split [start, end) by day and tariff, in order and without a gap."""
        first, last = seconds(start), seconds(end)
        day = self.day_of(start)
        while first < last:
            for piece in self.day(day):
                begin, until = max(first, piece.start), min(last, piece.end)
                if begin < until:
                    yield Piece(begin, until, piece.day, piece.tariff)
            day += A_DAY
            first = max(first, seconds(self.begin(day)))

    def parts(self, pool: str, start: datetime, end: datetime) -> Iterator[tuple[str, datetime, datetime]]:
        """Split [start, end) by tariff, for sums: the standard tariff is "" there. All pools have the same parts."""
        if not self.tariffs:
            yield "", start, end
            return
        for piece in self.pieces(start, end):
            yield "" if piece.tariff == STANDARD else piece.tariff, moment(piece.start), moment(piece.end)

    def _day(self, day: date) -> tuple[Piece, ...]:
        begin, end = seconds(self.begin(day)), seconds(self.begin(day + A_DAY))
        cuts = {begin, end, *_changes(begin, end, self.zone)}
        for minute in self._edges:
            wall = datetime.combine(day, time(*divmod(minute, 60)))
            cuts |= {int(wall.replace(tzinfo=self.zone, fold=fold).timestamp()) for fold in (0, 1)}
        ordered = sorted(cut for cut in cuts if begin <= cut <= end)
        pieces: list[Piece] = []
        for first, last in pairwise(ordered):
            name = self.at(moment(first))
            if pieces and pieces[-1].tariff == name:
                pieces[-1] = Piece(pieces[-1].start, last, day, name)
            else:
                pieces.append(Piece(first, last, day, name))
        return tuple(pieces)


def _edges(part: QuietHours) -> tuple[int, int]:
    return part.start_minute, part.end_minute


def day_begin(day: date, zone: ZoneInfo) -> datetime:
    """Return when a day begins on a zone's clocks (UTC): at its midnight, the first where it has two; where the clocks
    skip midnight, when they do."""
    return datetime.combine(day, time(), zone).astimezone(UTC)


def _changes(begin: int, end: int, zone: ZoneInfo) -> Iterator[int]:
    """Moments in a day or two at which the clocks are set to another time. There is one at most."""

    def offset(at: int) -> timedelta | None:
        return moment(at).astimezone(zone).utcoffset()

    if offset(begin) == offset(end):
        return
    low, high, before = begin, end, offset(begin)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if offset(middle) == before else (low, middle)
    yield high
