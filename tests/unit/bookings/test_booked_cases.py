"""What a project had booked: the cases of the how-to, as looks see them. The numbers are reckoned by hand."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.records import LedgerSeen, lanes_of
from gpuyard.inventory.state import gpu_statuses, ledger_words
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Lane
from gpuyard.model.gpu import Gpu, GpuRole
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.usage.accounts import UseKind, use_of
from gpuyard.usage.controllers.history import applied
from gpuyard.usage.lives import ServerLife
from gpuyard.usage.recorder import CloudSeen, GpuKey, plan_look
from gpuyard.usage.records import Extent, Interval
from gpuyard.usage.tracks import tracks_of

S, U = BookingState, UseKind
HOW_TO = Path(__file__).parents[3] / "docs/how-to/account-for-use.md"
FIRST, LAST = "08:00:00", "18:00:00"
STEP = timedelta(seconds=53)
"""Between looks, so that what happens at a full minute is seen only later."""
HOLD, HOUR = timedelta(minutes=10), timedelta(hours=1)
GPUS = tuple(
    Gpu("h", f"0000:0{n}:00.0", "t4", "Tesla T4", "10de:1eb8", GpuRole.LONE, "CUSTOM_GPU_T4", n) for n in (1, 2)
)
LANES = tuple(Lane(n, "t4", "h", (gpu.address,)) for n, gpu in enumerate(GPUS, 1))


def at(text: str) -> datetime:
    return datetime.fromisoformat(f"2026-11-24T{text}").replace(tzinfo=UTC)


def booking(
    id: str = "b1", lane: int = 1, project: str = "physics", kind: BookingKind = BookingKind.BOOKING
) -> Booking:
    ask = Ask("t4", at("10:00"), at("14:00"))
    return Booking(
        id, kind, ask, S.CONFIRMED, f"u-{project}", "ada", f"p-{project}", project, at("07:00"), at("07:00"),
        lanes=(lane,),
    )  # fmt: skip


@dataclass(frozen=True)
class Guest:
    """A server: on which GPU, from when to when, on which booking."""

    start: str
    end: str
    draws: str = "b1"
    gpu: int = 0
    project: str = "physics"


@dataclass(frozen=True)
class OverstayCase:
    said: str
    """Words of the how-to."""
    changes: tuple[tuple[str, Booking], ...] = (("07:00", booking()),)
    """When a booking became so."""
    guests: tuple[Guest, ...] = ()
    bad: tuple[int, ...] = ()
    """GPUs that are quarantined from 11:00 on."""


ONE = booking()
LONGER = replace(ONE, ask=replace(ONE.ask, end=at("16:00")), state=S.ACTIVE)
CASES = (
    OverstayCase("No server came, and the rule `no_show` did not release it"),
    OverstayCase(
        "No server came, and it was released at 10:30",
        (("07:00", ONE), ("10:30", replace(ONE, state=S.NO_SHOW, changed=at("10:30")))),
    ),
    OverstayCase("A server was there from 10:30 to 13:00", guests=(Guest("10:30", "13:00"),)),
    OverstayCase(
        "It was cancelled at 9:55, when its GPU was kept free already",
        (("07:00", ONE), ("09:55", replace(ONE, state=S.CANCELLED, changed=at("09:55")))),
    ),
    OverstayCase(
        "It was extended to 16:00; a server was there from 10:00 to 16:00",
        (("07:00", ONE), ("13:00", LONGER)),
        (Guest("10:00", "16:00"),),
    ),
    OverstayCase(
        "It was ended at 12:00; a server was there from 10:00 to 11:30",
        (("07:00", ONE), ("12:00", replace(ONE, state=S.ENDED, changed=at("12:00")))),
        (Guest("10:00", "11:30"),),
    ),
    OverstayCase("Its server was there from 9:00 and outlived it to 15:30", guests=(Guest("09:00", "15:30"),)),
    OverstayCase(
        "Its GPU was quarantined at 11:00, and it went on with the other one; no server came",
        (("07:00", ONE), ("11:00", replace(ONE, lanes=(2,)))),
        bad=(0,),
    ),
    OverstayCase("Both GPUs were quarantined at 11:00; no server came", bad=(0, 1)),
    OverstayCase(
        "Its GPU was quarantined at 11:00 under a server, which was there from 10:00 to 13:00",
        guests=(Guest("10:00", "13:00"),),
        bad=(0, 1),
    ),
    OverstayCase(
        "Physics had booked both GPUs, one by one; one server was there all the time",
        (("07:00", ONE), ("07:00", booking("b2", 2))),
        (Guest("10:00", "14:00"),),
    ),
    OverstayCase(
        "A server of biology was still on its GPU until 10:45; no other came",
        guests=(Guest("08:30", "10:45", "", project="biology"),),
    ),
    OverstayCase(
        "It was no booking, but a loan for repair",
        (("10:00", replace(booking(kind=BookingKind.LOAN), state=S.ACTIVE)),),
    ),
)


class World:
    def __init__(self, case: OverstayCase) -> None:
        self.overstay = case
        self.open: dict[GpuKey, Interval] = {}
        self.closed: list[Interval] = []
        self.last: datetime | None = None

    def bookings(self, now: datetime) -> list[Booking]:
        """As the ledger has them then."""
        bookings_by_id = {booking.id: booking for since, booking in self.overstay.changes if at(since) <= now}
        return [_advanced(booking, now) for booking in bookings_by_id.values()]

    def look(self, now: datetime) -> None:
        bookings = self.bookings(now)
        on = [
            booking
            for booking in bookings
            if booking.state is S.ACTIVE or (booking.state is S.CONFIRMED and booking.ask.start - HOLD <= now)
        ]
        guests_by_id = {
            f"s{n}": guest for n, guest in enumerate(self.overstay.guests) if at(guest.start) <= now < at(guest.end)
        }
        holders = {GPUS[guest.gpu].provider_name: id for id, guest in guests_by_id.items()}
        bad = {LANES[gpu].id: "quarantined" for gpu in self.overstay.bad if now >= at("11:00")}
        kept_lanes = {lane: "starts soon" for booking in on for lane in booking.lanes}
        names = {LANES[n].id: gpu.provider_name for n, gpu in enumerate(GPUS)}
        reserved = frozenset(names[lane] for lane in (*kept_lanes, *bad)) - holders.keys()
        every = frozenset(names.values())
        snapshot = Snapshot(
            now, {name: Provider(name, name, "h") for name in every}, every - reserved - holders.keys(),
            holders, reserved, {}, {id: self._server(id) for id in guests_by_id}, {"h": HostService("h", True, True)},
        )  # fmt: skip
        statuses = gpu_statuses(GPUS, snapshot, ledger_words(GPUS, LANES, on, kept_lanes, bad))
        active = {booking.id for booking in on if booking.state is S.ACTIVE}
        drawn = {id: [guest.draws] for id, guest in guests_by_id.items() if guest.draws in active}
        tracks = tracks_of(
            statuses, snapshot, LedgerSeen({booking.id: booking for booking in on}, drawn, lanes_of(LANES))
        )
        lives = {f"s{n}": self._life(f"s{n}") for n, guest in enumerate(self.overstay.guests) if at(guest.start) <= now}
        recorded = {id: [interval for interval in self.closed if interval.tenure.server == id] for id in lives}
        cloud_seen = CloudSeen(now, tracks, frozenset(guests_by_id), lives, recorded, bookings)
        extent = Extent(at(FIRST), self.last, self.last) if self.last else None
        plan = plan_look(self.open.values(), extent, cloud_seen)
        assert plan is not None
        ended = [replace(self.open[key], end=end, exact_end=exact) for key, (end, exact) in plan.ends.items()]
        self.closed += [interval for interval in (*ended, *plan.adds) if interval.end is not None]
        self.open, self.last = applied(self.open, plan), now

    def uses(self, until: datetime) -> Counter[tuple[str, UseKind]]:
        """Seconds, by project."""
        totals: Counter[tuple[str, UseKind]] = Counter()
        for interval in (*self.closed, *self.open.values()):
            totals[interval.tenure.project, use_of(interval.state, interval.tenure.kind)] += interval.seconds(
                at(FIRST), until
            )
        return totals

    def _guest(self, id: str) -> Guest:
        return self.overstay.guests[int(id[1:])]

    def _server(self, id: str) -> Server:
        guest = self._guest(id)
        start, project = at(guest.start), guest.project
        return Server(id, id, "ACTIVE", "h", project, "ada", "f", start, start, f"u-{project}", f"p-{project}")

    def _life(self, id: str) -> ServerLife:
        end = at(self._guest(id).end)
        gone = self.last is not None and self.last + STEP >= end
        return ServerLife(self._server(id), "t4", 1, (), end if gone else None)


def _advanced(booking: Booking, now: datetime) -> Booking:
    if booking.state not in (S.CONFIRMED, S.ACTIVE) or now < booking.ask.start:
        return booking
    return (
        replace(booking, state=S.ACTIVE)
        if now < booking.ask.end
        else replace(booking, state=S.ENDED, changed=booking.ask.end)
    )


def table() -> dict[str, list[float]]:
    text = HOW_TO.read_text().partition("### What is booked")[2].partition("## Give")[0]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines() if line.startswith("|")]
    return {row[0]: [float(cell) for cell in row[1:]] for row in rows if re.fullmatch(r"[\d.]+", row[-1])}


def test_the_how_to_has_these_cases() -> None:
    assert list(table()) == [case.said for case in CASES]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.said)
def test_what_was_booked(case: OverstayCase) -> None:
    world, now = World(case), at(FIRST)
    while now < at(LAST):
        world.look(now)
        now += STEP
    assert world.last is not None
    totals = world.uses(world.last)
    mine = [totals["physics", use] / HOUR.total_seconds() for use in (U.BOOKED, U.BOOKED_UNUSED, U.UNBOOKED)]
    # Nobody tells when a GPU was quarantined: it is when that was seen.
    assert mine == pytest.approx(table()[case.said], abs=STEP / HOUR if case.bad else 0)
    assert totals.total() == 2 * (world.last - at(FIRST)).total_seconds()
