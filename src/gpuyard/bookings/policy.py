"""Applies the rules of the site file to what somebody asks. Each broken rule is a reason of its own. Pure.

Rules are about the person, the time, the amount, and quiet hours. A booking that has begun is not asked about its start
any more. `malformed` is what no override sets aside.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from gpuyard.model.booking import (
    FOREVER,
    Ask,
    Booking,
    BookingState,
    Lane,
    Person,
    QuietHours,
    Reason,
    Rules,
    lasting,
)
from gpuyard.model.rights import Verb, may

PATIENCE = timedelta(minutes=1)
"""A start may be this little in the past: clocks differ, and forms are filled in."""


@dataclass(frozen=True)
class Usage:
    """The facts that the rules need besides the ask."""

    active: int = 0
    """Bookings of the user in the pool that have not ended, without the one that is asked about."""
    booked_seconds: Mapping[datetime, int] = field(default_factory=dict)
    """First moment of a month (UTC) -> GPU-seconds that the project has booked in it, without this one."""
    per_gpu: Mapping[int, int] = field(default_factory=dict)
    """Lane -> bookings of the user that count on it (`bookings_per_gpu`), without this one. Empty where no rule limits
    them."""
    on_named_gpu: int = 0
    """How many bookings of the user are on the GPU that the ask names."""
    started: bool = False
    """The booking is active already: its start can no longer be too early or too late."""
    over_budget: Sequence[str] = ()
    """Why it does not fit the project's budget, in sentences."""


def broken_rules(ask: Ask, rules: Rules, who: Person, facts: Usage, zone: str, now: datetime) -> list[Reason]:
    """Return a reason for every rule that speaks against an ask."""
    return [
        *_who(ask, rules, who),
        *([] if facts.started else _when(ask, rules, now)),
        *_how_much(ask, rules, facts),
        *_quiet(ask, rules, ZoneInfo(zone), facts.started),
    ]


def bookings_per_gpu(bookings: Iterable[Booking], lanes: Sequence[Lane]) -> dict[int, int]:
    """Return lane -> how many of these bookings are on it: those that name it, and those that have begun there.

    A booking of any GPU is on none before it begins: its lanes may still change.
    """
    counts: dict[int, int] = {}
    for booking in bookings:
        on = {lane.id for lane in lanes if lane.is_named(booking.ask.gpu)} if booking.ask.gpu else set()
        on |= set(booking.lanes) if booking.state is BookingState.ACTIVE else set()
        for lane in on:
            counts[lane] = counts.get(lane, 0) + 1
    return counts


def at_limit(facts: Usage, rules: Rules) -> frozenset[int]:
    """Return lanes on which the user has as many bookings as the rules allow."""
    most = rules.most_active_per_gpu
    return frozenset(lane for lane, count in facts.per_gpu.items() if most is not None and count >= most)


def booking_owner(booking: Booking) -> Person:
    """Return the owner of a booking with the role that books: no rule is broken by what became of it in Keystone
    since."""
    return Person(booking.user_id, booking.user, booking.project_id, booking.project, frozenset({"member"}))


def malformed(ask: Ask, now: datetime, started: bool = False) -> list[Reason]:
    """Return reasons that no override sets aside."""
    reasons = []
    if ask.gpus < 1:
        reasons.append(Reason("no_gpus", f"{ask.gpus} GPUs are none; book 1 or more"))
    if ask.same_group and ask.gpus < 2:
        reasons.append(Reason("one_group", "one GPU is in one group anyway; leave same_group out, or book 2 or more"))
    if ask.end <= ask.start:
        reasons.append(Reason("ends_first", f"the end, {spell(ask.end)}, is not after the start, {spell(ask.start)}"))
    elif ask.end <= now:
        reasons.append(Reason("past", f"the end, {spell(ask.end)}, is over; it is {spell(now)}"))
    elif not started and ask.start < now - PATIENCE:
        reasons.append(Reason("past", f"the start, {spell(ask.start)}, is over; it is {spell(now)}"))
    if max(ask.start, ask.end) > FOREVER:
        reasons.append(Reason("too_far", f"there are no bookings after the year {FOREVER.year}"))
    return reasons


def months(start: datetime, end: datetime) -> Iterator[tuple[datetime, datetime]]:
    """Yield the months (UTC) that a time touches: first moment of each, and first moment after it."""
    month = start.replace(day=1, hour=0, minute=0, second=0, microsecond=0)
    while month < end:
        following = (month + timedelta(days=32)).replace(day=1)
        yield month, following
        month = following


def _who(ask: Ask, rules: Rules, who: Person) -> Iterable[Reason]:
    if not rules.may_book:
        yield Reason("not_bookable", f"project {who.project} cannot book GPUs of pool {ask.pool} (may_book: false)")
    if rules.users is not None and who.user not in rules.users:
        yield Reason("not_among_users", f"{who.user} is not among the users who may book {ask.pool} for {who.project}")
    if not (verdict := may(who, Verb.BOOK)):
        yield Reason("no_role", verdict.why)


def _when(ask: Ask, rules: Rules, now: datetime) -> Iterable[Reason]:
    ahead = ask.start - now
    if rules.notice and ahead < rules.notice:
        first = spell(now + rules.notice)
        yield Reason("too_soon", f"bookings must be made {lasting(rules.notice)} before they start: from {first} on")
    if ahead > rules.ahead:
        last = spell(now + rules.ahead)
        yield Reason("too_far", f"bookings can start at most {lasting(rules.ahead)} ahead: until {last}")


def _how_much(ask: Ask, rules: Rules, facts: Usage) -> Iterable[Reason]:
    length = ask.end - ask.start
    if length > rules.longest:
        yield Reason("too_long", f"{lasting(length)} is longer than the longest booking, {lasting(rules.longest)}")
    if facts.active >= rules.most_active:
        yield Reason(
            "too_many",
            f"you have {facts.active} bookings in pool {ask.pool} that are not over, and may have {rules.most_active}",
        )
    if ask.gpu and rules.most_active_per_gpu is not None and facts.on_named_gpu >= rules.most_active_per_gpu:
        yield Reason(
            "too_many_on_gpu",
            f"you have {facts.on_named_gpu} bookings on GPU {ask.gpu} that are not over, and may have "
            f"{rules.most_active_per_gpu}: name another GPU, or none",
        )
    if rules.gpu_hours_per_month is not None and length <= rules.longest:  # else its months may be thousands
        for month, following in months(ask.start, ask.end):
            seconds = ask.gpus * (min(ask.end, following) - max(ask.start, month)).total_seconds()
            before = facts.booked_seconds.get(month, 0)
            if before + seconds > rules.gpu_hours_per_month * 3600:
                left = max(0.0, rules.gpu_hours_per_month - before / 3600)
                yield Reason(
                    "gpu_hours",
                    f"it takes {seconds / 3600:.1f} GPU-hours in {month:%B %Y}, and the project has {left:.1f} of its "
                    f"{rules.gpu_hours_per_month} left",
                )
    for text in facts.over_budget:
        yield Reason("budget", text)


def _quiet(ask: Ask, rules: Rules, zone: ZoneInfo, started: bool) -> Iterable[Reason]:
    for word, moment in (("end", ask.end),) if started else (("start", ask.start), ("end", ask.end)):
        local = moment.astimezone(zone)
        minute = local.hour * 60 + local.minute + (1 if word == "end" and local.second else 0)
        for quiet in rules.quiet_hours:
            if _within(minute, quiet, ends=word == "end"):
                yield Reason(
                    "quiet_hours",
                    f"bookings do not {word} between {str(quiet).replace('-', ' and ')} "
                    f"({zone.key}), and this one would at {local:%H:%M}",
                )


def _within(minute: int, quiet: QuietHours, ends: bool) -> bool:
    """Return whether a minute of the day is quiet. An end at the very moment when quiet begins is still before it."""
    start, end = quiet.start_minute, quiet.end_minute
    if start < end:
        return start < minute < end if ends else start <= minute < end
    return (minute > start if ends else minute >= start) or minute < end


def spell(moment: datetime) -> str:
    """Return a moment as reasons name it: ``Thu 2026-11-26 14:00 UTC``."""
    seconds = f"{moment:%H:%M:%S}" if moment.second else f"{moment:%H:%M}"
    return f"{moment:%a %Y-%m-%d} {seconds} UTC"
