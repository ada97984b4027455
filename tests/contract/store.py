"""What the ledger's store does, whichever database it is on.

Each function is one rule. They run on SQLite (tests/unit/bookings/test_store.py) and on PostgreSQL
(tests/integration/test_store_postgresql.py), each with a store that has two pools: ``t4`` with three slots of one GPU,
and ``v100`` with one slot of two.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any, cast

import pytest

from gpuyard.bookings.records import AuditEntry, Event, Occupied, Overstay, Query
from gpuyard.bookings.store import (
    ConflictError,
    LaneChange,
    OverlapError,
    PoolReader,
    Store,
    StoreError,
    Taken,
    pool_change,
)
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, ReclaimAction
from gpuyard.model.booking_life import OPEN
from gpuyard.model.errors import UsageError
from tests.support.ledgers import write_event

NOON = datetime(2026, 11, 21, 12, tzinfo=UTC)
HOUR = timedelta(hours=1)
SLOTS = (
    ("t4", "gpu-1", ("0000:01:00.0",)),
    ("t4", "gpu-1", ("0000:02:00.0",)),
    ("t4", "gpu-2", ("0000:01:00.0",)),
    ("v100", "gpu-3", ("0000:01:00.0", "0000:02:00.0")),
)
NUMBERS = count(1)


def at(hours: float) -> datetime:
    """So many hours after noon."""
    return NOON + hours * HOUR


def booking(lanes: tuple[int, ...] = (1,), first: float = 0, last: float = 1, **fields: object) -> Booking:
    """A confirmed booking of pool t4, of Ada in the project alpha."""
    ask = Ask("t4", at(first), at(last), max(1, len(lanes)))
    made = Booking(
        id=f"b{next(NUMBERS):06d}",
        kind=BookingKind.BOOKING,
        ask=ask,
        state=BookingState.CONFIRMED,
        user_id="u-ada",
        user="ada",
        project_id="p-alpha",
        project="alpha",
        created=at(-24),
        changed=at(-24),
        lanes=lanes,
    )
    return replace(made, **fields)  # type: ignore[arg-type]


def later(old: Booking, **fields: object) -> Booking:
    """Its next version."""
    return replace(old, version=old.version + 1, **fields)  # type: ignore[arg-type]


def moved(old: Booking, first: float, last: float) -> Ask:
    return replace(old.ask, start=at(first), end=at(last))


def prepare(store: Store) -> Store:
    store.sync_lanes(SLOTS)
    return store


def write(store: Store, *bookings: Booking, pool: str = "t4") -> tuple[Booking, ...]:
    with store.change(pool) as change:
        return change.write(*bookings)


def taken(store: Store, pool: str = "t4") -> set[Taken]:
    with store.look(pool) as look:
        return set(look.occupancy(at(-10_000)))


def read(store: Store, what: Callable[[PoolReader], object], pool: str = "t4") -> object:
    with store.look(pool) as look:
        return what(look)


# Lanes.


def lanes_have_numbers_that_stay(store: Store) -> None:
    before = store.lanes()
    assert [(lane.id, lane.pool, lane.host, lane.addresses) for lane in before] == [
        (number, *slot) for number, slot in enumerate(SLOTS, 1)
    ]
    assert store.pools() == ("t4", "v100")
    store.sync_lanes(tuple(reversed(SLOTS)))
    assert store.lanes() == before
    store.sync_lanes((*SLOTS, ("t4", "gpu-0", ("0000:09:00.0",))))
    assert store.lanes("t4")[0] == replace(before[0], id=5, host="gpu-0", addresses=("0000:09:00.0",))
    assert store.lanes("t4")[1:] == before[:3]


def a_slot_that_leaves_the_site_keeps_its_lane_and_gets_it_back(store: Store) -> None:
    before = store.lanes()
    store.sync_lanes(SLOTS[1:])
    assert store.lanes()[0].trouble == "it is not in the site file any more"
    assert store.set_troubles({1: "lost"}) == set(), "what is not in the site has no other trouble"
    store.sync_lanes(SLOTS)
    assert store.lanes() == before


def a_slot_may_get_another_peer(store: Store) -> None:
    store.sync_lanes((*SLOTS[:3], ("v100", "gpu-3", ("0000:01:00.0", "0000:03:00.0"))))
    (lane,) = store.lanes("v100")
    assert (lane.id, lane.addresses) == (4, ("0000:01:00.0", "0000:03:00.0"))


def a_slot_cannot_be_named_twice(store: Store) -> None:
    with pytest.raises(ValueError, match="twice"):
        store.sync_lanes((*SLOTS, SLOTS[0]))


def troubles_come_and_go(store: Store) -> None:
    assert store.set_troubles({1: "lost", 4: "held"}) == {1, 4}
    assert store.set_troubles({1: "lost", 4: "held"}) == set()
    assert [lane.trouble for lane in store.lanes()] == ["lost", "", "", "held"]
    assert store.set_troubles({1: "blocked"}) == {1, 4}
    assert [lane.trouble for lane in store.lanes()] == ["blocked", "", "", ""]


def a_change_of_lanes_is_a_generation(store: Store) -> None:
    def generations(pool: str) -> object:
        return read(store, lambda look: (look.generation, look.lanes_generation), pool)

    t4, v100 = generations("t4"), generations("v100")
    store.set_troubles({1: "lost"})
    assert generations("t4") == (2, 2) != t4
    write(store, booking((2,)))
    assert generations("t4") == (3, 2), "bookings change no lanes"
    store.sync_lanes(SLOTS[1:])
    assert generations("t4") == (4, 4)
    assert generations("v100") == v100
    assert read(store, lambda look: look.changes_since(2)) == [LaneChange(*next(iter(taken(store))), True)], (
        "lanes that change are no steps"
    )


def a_pool_that_is_not_there_is_an_error(store: Store) -> None:
    with pytest.raises(StoreError, match="no pool 'a100'"), store.change("a100"):
        pass
    with pytest.raises(StoreError, match="no pool 'a100'"), store.look("a100"):
        pass


# Bookings.


def a_booking_is_read_as_it_was_written(store: Store) -> None:
    full = Booking(
        id="full",
        kind=BookingKind.HOLD,
        ask=Ask("t4", at(1), at(2), 2, True, True, "gpu-1/0000:01:00.0", "für die Übung; '); drop table bookings"),
        state=BookingState.OFFERED,
        user_id="u",
        user="ada",
        project_id="p",
        project="alpha",
        created=at(-3),
        changed=at(-2),
        lanes=(3, 1),
        reason="why",
        email="ada@example.org",
        series="s",
        offer_until=at(-1),
        claimed=at(0),
        open_until=at(0.5),
        priority=-7,
        override=True,
        server="gpuyard-t4-x1",
        yields=True,
        followed=99,
    )
    assert write(store, full) == (full,)
    assert store.get("full") == full
    assert store.find(Query()) == [full]
    assert read(store, lambda look: look.get("full")) == full
    assert read(store, lambda look: look.get_many(["full", "none"])) == {"full": full}
    assert read(store, lambda look: look.get("full"), "v100") is None
    assert store.get("none") is None
    changed = later(
        full, state=BookingState.EXPIRED, lanes=(), offer_until=None, claimed=None, open_until=None, override=False
    )
    write(store, changed)
    assert store.get("full") == changed


def new_bookings_get_a_place_in_the_order_in_which_they_came(store: Store) -> None:
    first, second = write(store, booking((1,)), booking((2,)))
    third, updated = write(store, booking((3,)), later(first, reason="x"))
    assert first.followed < second.followed < third.followed
    assert updated.followed == first.followed


def a_booking_is_replaced_only_in_the_version_that_was_read(store: Store) -> None:
    (first,) = write(store, booking())
    write(store, later(first, reason="one"))
    with pytest.raises(ConflictError, match=f"booking {first.id} has been changed"):
        write(store, later(first, reason="two"), booking((2,)))
    with pytest.raises(ConflictError):
        write(store, later(booking()))
    with pytest.raises(ConflictError):
        write(store, replace(booking((2,)), id=first.id))
    (stored,) = store.find(Query())
    assert stored.reason == "one"
    assert len(taken(store)) == 1


def a_booking_stays_in_its_pool(store: Store) -> None:
    (first,) = write(store, booking())
    with pytest.raises(ValueError, match="of pool v100"):
        write(store, later(first, ask=replace(first.ask, pool="v100")))
    with pytest.raises(ConflictError):
        write(store, later(first, ask=replace(first.ask, pool="v100"), lanes=()), pool="v100")


def a_lane_of_another_pool_or_none_is_refused(store: Store) -> None:
    for lane in (4, 77):
        with pytest.raises(StoreError):
            write(store, booking((lane,)))
    assert store.find(Query()) == []


def times_need_a_zone_and_an_order(store: Store) -> None:
    naive = replace(booking().ask, end=datetime(2026, 11, 22))  # noqa: DTZ001
    with pytest.raises(ValueError, match="no time zone"):
        write(store, booking(ask=naive))
    for last in (0, -1):
        with pytest.raises(StoreError):
            write(store, booking(first=0, last=last))
    assert store.find(Query()) == []


# What is taken.


def a_lane_is_taken_in_the_states_that_have_it(store: Store) -> None:
    for lane, state in enumerate((BookingState.OFFERED, BookingState.CONFIRMED, BookingState.ACTIVE), 1):
        write(store, booking((lane,), state=state))
    others = [
        state
        for state in BookingState
        if state not in (BookingState.OFFERED, BookingState.CONFIRMED, BookingState.ACTIVE)
    ]
    write(store, *(booking((1,), state=state) for state in others))
    assert {row.lane for row in taken(store)} == {1, 2, 3}


def two_never_have_a_lane_at_a_time(store: Store) -> None:
    write(store, booking((1, 2), 1, 3))
    before = taken(store)
    for first, last in ((1, 3), (0, 2), (2, 4), (1.5, 2), (0, 9), (2.999, 3)):
        with pytest.raises(OverlapError, match="twice"):
            write(store, booking((2, 3), first, last))
    with pytest.raises(OverlapError):
        write(store, booking((3,)), booking((3,)))
    with pytest.raises(OverlapError):
        write(store, booking((3, 3)))
    assert taken(store) == before
    assert len(store.find(Query())) == 1


def one_begins_when_the_other_ends(store: Store) -> None:
    write(store, booking((1,), 1, 3))
    write(store, booking((1,), 0, 1), booking((1,), 3, 4))
    assert len(taken(store)) == 3


def a_longer_time_takes_nobodys_lane(store: Store) -> None:
    first, _ = write(store, booking((1,), 0, 1), booking((1,), 2, 3))
    with pytest.raises(OverlapError):
        write(store, later(first, ask=moved(first, 0, 2.5)))
    (first,) = write(store, later(first, ask=moved(first, -1, 2)))
    assert {(row.start, row.end) for row in taken(store) if row.booking == first.id} == {
        (int(at(-1).timestamp()), int(at(2).timestamp()))
    }


def bookings_change_places(store: Store) -> None:
    first, second = write(store, booking((1,)), booking((2,)))
    first, second = write(store, later(first, lanes=(2,)), later(second, lanes=(1,)))
    assert {(row.booking, row.lane) for row in taken(store)} == {(first.id, 2), (second.id, 1)}


def one_that_ends_leaves_its_lane_and_stays_in_the_calendar(store: Store) -> None:
    (first,) = write(store, booking((1, 3), 0, 4))
    write(store, later(first, state=BookingState.ENDED, ask=moved(first, 0, 2)))
    assert taken(store) == set()
    assert store.occupied("t4", at(0), at(9)) == [Occupied(first.id, lane, at(0), at(2)) for lane in (1, 3)]
    write(store, booking((1,), 2, 4))
    (never,) = write(store, booking((2,), 0, 4))
    write(store, later(never, state=BookingState.CANCELLED))
    (short,) = write(store, booking((2,), 0, 4))
    write(store, later(short, state=BookingState.ENDED, ask=moved(short, 0, 0)))
    assert len(store.occupied("t4", at(-9), at(9))) == 3
    assert store.occupied("t4", at(-9), at(0)) == store.occupied("t4", at(4), at(9)) == []
    assert store.occupied("v100", at(-9), at(9)) == []


def what_fails_leaves_nothing(store: Store) -> None:
    store.take_undelivered("mail", at(0))

    def fail() -> None:
        with store.change("t4") as change:
            change.write(booking())
            change.event(Event("booking.confirmed", at(0), "b", "u"))
            change.audit(AuditEntry(at(0), "ada", "booking.create", "b"))
            change.mark_told("b", "ending", at(0))
            change.remember_key("u", "k", "d", ("b",), at(0))
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (store.find(Query()), store.audit(), store.take_undelivered("mail", at(1))) == ([], [], [])
    assert taken(store) == set()
    assert read(store, lambda look: (look.generation, look.key("u", "k"))) == (1, None)
    with store.change("t4") as change:
        assert change.mark_told("b", "ending", at(0))


def the_generation_rises_once_when_what_is_taken_changes(store: Store) -> None:
    def generation() -> object:
        return read(store, lambda look: look.generation)

    with store.change("t4") as change:
        first, second = change.write(booking((1,)), booking((2,)))
        change.write(booking((3,)))
        assert change.generation == 2
    assert generation() == 2
    first, second = write(store, later(first, reason="x"), later(second, state=BookingState.ACTIVE))
    write(store, booking((1,), state=BookingState.WAITING))
    assert generation() == 2
    write(store, later(first, state=BookingState.CANCELLED), later(second, state=BookingState.ENDED))
    assert generation() == 3


def steps_lead_from_any_generation_to_now(store: Store) -> None:
    """As a timetable would, from any moment of a random history."""
    chance = random.Random(7)
    bookings_by_id: dict[str, Booking] = {}
    moments: list[tuple[int, set[Taken]]] = []
    for _ in range(60):
        _random_step(store, chance, bookings_by_id)
        with store.look("t4") as look:
            moments.append((look.generation, set(look.occupancy(at(-10_000)))))
    for generation, was in moments:
        steps = read(store, lambda look, since=generation: look.changes_since(since))  # type: ignore[misc]
        assert isinstance(steps, list)
        now = set(was)
        for step in steps:
            (now.add if step.taken else now.remove)(Taken(*step[:4]))
        assert now == moments[-1][1]
    assert {(booking.id, lane) for booking in bookings_by_id.values() for lane in booking.lanes} == {
        (row.booking, row.lane) for row in moments[-1][1]
    }


def _random_step(store: Store, chance: random.Random, bookings_by_id: dict[str, Booking]) -> None:
    if bookings_by_id and chance.random() < 0.4:
        old = chance.choice(list(bookings_by_id.values()))
        if chance.random() < 0.5:
            write(store, later(old, state=BookingState.ENDED))
            del bookings_by_id[old.id]
            return
        draft = later(old, lanes=tuple(chance.sample((1, 2, 3), len(old.lanes))))
    else:
        first = chance.randrange(30)
        lanes = tuple(chance.sample((1, 2, 3), chance.randrange(1, 3)))
        draft = booking(lanes, first, first + chance.randrange(1, 4))
    with suppress(OverlapError):
        (bookings_by_id[draft.id],) = write(store, draft)


def what_is_taken_comes_in_order(store: Store) -> None:
    write(store, *(booking((lane,), first, first + 1) for lane in (3, 1, 2) for first in (4, 2, 3)))
    with store.look("t4") as look:
        rows = list(look.occupancy(at(3)))
    assert [(row.lane, row.start) for row in rows] == [
        (lane, int(at(first).timestamp())) for lane in (1, 2, 3) for first in (3, 4)
    ]


def a_timetable_that_is_too_old_is_told_so(store: Store) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool_change, "LOG_KEPT", 4)
        patch.setattr(pool_change, "LOG_PRUNED_EVERY", 2)
        for first in range(12):
            write(store, booking((1,), first, first + 1))
    with store.look("t4") as look:
        now = look.generation
        generations = [generation for generation in range(now + 3) if look.changes_since(generation) is not None]
        assert generations == list(range(now - 5, now + 1)), "and one of a generation that there never was"
        assert len(look.changes_since(now - 3) or ()) == 3
        assert look.changes_since(now) == []


# Lists.


def the_waitlist_is_in_order(store: Store) -> None:
    waits = [
        booking((), state=BookingState.WAITING),
        booking((), state=BookingState.WAITING, created=at(-25)),
        booking((), state=BookingState.WAITING, priority=1),
        booking((), state=BookingState.WAITING),
        booking((), state=BookingState.REQUESTED),
    ]
    a, b, c, d, _ = (stored.id for stored in write(store, *waits))
    assert [stored.id for stored in read(store, lambda look: look.waiting())] == [c, b, a, d]  # type: ignore[attr-defined]


def what_the_clock_moves_is_found(store: Store) -> None:
    begins = [booking((), 0, 9, state=state) for state in (BookingState.REQUESTED, BookingState.WAITING)]
    confirmed = booking((1,), 0, 9)
    offered = booking((2,), 5, 9, state=BookingState.OFFERED, offer_until=at(0))
    ends = booking((3,), -2, 0, state=BookingState.ACTIVE)
    write(store, *begins, confirmed, offered, ends)
    write(
        store,
        *(
            booking((), -5, -4, state=s)
            for s in (BookingState.ENDED, BookingState.CANCELLED, BookingState.NO_SHOW, BookingState.EXPIRED)
        ),
    )
    write(
        store,
        booking((1,), 10, 11),
        booking((3,), 1, 2, state=BookingState.ACTIVE),
        booking((), 1, 2, state=BookingState.WAITING),
    )
    due = read(store, lambda look: look.due(at(0)))
    assert [stored.id for stored in due] == [ends.id, *sorted(x.id for x in (*begins, confirmed)), offered.id]  # type: ignore[attr-defined]
    assert [stored.id for stored in read(store, lambda look: look.due(at(-0.001)))] == []  # type: ignore[attr-defined]


def what_ends_is_found(store: Store) -> None:
    plain, claimed = write(
        store, booking((1,), state=BookingState.ACTIVE), booking((2,), 0, 2, state=BookingState.ACTIVE, claimed=at(0))
    )
    write(store, booking((3,), state=BookingState.ACTIVE, kind=BookingKind.HOLD), booking((3,), 1, 2))
    with store.look("t4") as look:
        assert look.ending(at(0.9)) == []
        assert look.ending(at(2)) == [plain, claimed]


def who_is_on_a_lane_is_found(store: Store) -> None:
    first, second, third = write(store, booking((1, 2), 2, 3), booking((1,), 0, 1), booking((3,), 0, 9))
    with store.look("t4") as look:
        assert look.on_lanes([1, 2], at(0)) == [second, first]
        assert look.on_lanes([1, 2], at(1)) == [first]
        assert look.on_lanes([3], at(8)) == [third]
        assert look.on_lanes([1, 2, 3], at(0), at(2)) == [second, third]
        assert look.on_lanes([], at(0)) == []


def leases_that_are_on_are_found(store: Store) -> None:
    lease: dict[str, Any] = {"kind": BookingKind.RUNNER, "state": BookingState.ACTIVE}
    made = [
        booking((1,), id="on", server="r1", **lease),
        booking((2,), id="yields", server="r2", yields=True, **lease),
        booking((3,), 2, 3, id="another", server="r1", **{**lease, "project_id": "elsewhere"}),
        booking((3,), id="over", server="r3", kind=BookingKind.RUNNER, state=BookingState.ENDED),
        booking((1,), 5, 6, id="somebodys", state=BookingState.ACTIVE),
    ]
    write(store, *made)
    lease_ids = {"on", "yields", "another"}
    assert {stored.id for stored in cast("list[Booking]", read(store, lambda look: look.leases()))} == lease_ids
    assert [stored.id for stored in cast("list[Booking]", read(store, lambda look: look.yielding()))] == ["yields"]

    def of(server: str) -> object:
        return read(store, lambda look: look.lease_of(server, made[0].project_id))

    assert isinstance(leased := of("r1"), Booking)
    assert leased.id == "on"
    assert [of("r3"), of(""), of("r9")] == [None] * 3
    assert read(store, lambda look: look.yielding(), "v100") == read(store, lambda look: look.leases(), "v100") == []


def open_bookings_of_a_user_are_counted(store: Store) -> None:
    states = list(BookingState)
    made = write(store, *(booking((), first, first + 1, state=state) for first, state in enumerate(states)))
    write(store, booking((), user_id="u-bob"), booking((), kind=BookingKind.HOLD))
    write(store, replace(booking(()), ask=replace(booking().ask, pool="v100")), pool="v100")
    with store.look("t4") as look:
        assert look.active_count("u-ada") == 5
        assert look.active_count("u-ada", without=made[0].id) == 4
        assert look.active_count("u-ada", without=made[-1].id) == 5
        assert look.active_count("u-bob") == 1
        assert look.active_count("u-cyd") == 0
        for without in ("", made[0].id, made[-1].id):
            counted = {stored.id for stored in made if stored.state in OPEN and stored.id != without}
            assert {stored.id for stored in look.active_of("u-ada", without)} == counted
        assert [stored.user_id for stored in look.active_of("u-bob")] == ["u-bob"]


def bookings_that_are_not_over_are_counted(store: Store) -> None:
    waits = [booking((), state=BookingState.WAITING, created=at(hour)) for hour in (3, 2)]
    write(store, booking((1, 2), state=BookingState.ACTIVE), booking((3,), kind=BookingKind.HOLD), *waits)
    write(store, booking((), state=BookingState.ENDED))
    write(store, replace(booking((4,)), ask=replace(booking().ask, pool="v100")), pool="v100")
    counts = {
        (group.pool, group.kind, group.state): (group.bookings, group.gpus) for group in store.live(("t4",), OPEN)
    }
    assert counts == {
        ("t4", BookingKind.BOOKING, BookingState.ACTIVE): (1, 2),
        ("t4", BookingKind.BOOKING, BookingState.WAITING): (2, 2),
        ("t4", BookingKind.HOLD, BookingState.CONFIRMED): (1, 1),
    }
    (first,) = (group.oldest for group in store.live(("t4",), [BookingState.WAITING]))
    assert first == at(2)
    assert [group.pool for group in store.live(("t4", "v100"), [BookingState.CONFIRMED])].count("v100") == 1
    assert store.live((), OPEN) == []


def gpu_seconds_of_a_project_are_summed(store: Store) -> None:
    """Against a sum of each second's GPUs."""
    chance = random.Random(3)
    made = []
    for _ in range(80):
        first = chance.randrange(-20, 20)
        draft = booking((), first, first + chance.randrange(9), state=chance.choice(list(BookingState)))
        kind = chance.choice([BookingKind.BOOKING] * 4 + [BookingKind.HOLD])
        ask = replace(draft.ask, gpus=chance.randrange(1, 4))
        made.append(replace(draft, ask=ask, kind=kind, project_id=chance.choice(["p-alpha", "p-beta"])))
    write(store, *made)
    counted = {
        BookingState.OFFERED,
        BookingState.CONFIRMED,
        BookingState.ACTIVE,
        BookingState.ENDED,
        BookingState.NO_SHOW,
    }
    for first, last, without in ((-5, 5, ""), (0, 1, ""), (-99, 99, ""), (5, 5, ""), (-5, 5, made[0].id)):
        hours = sum(
            stored.ask.gpus
            for stored in made
            for hour in range(first, last)
            if stored.project_id == "p-alpha" and stored.kind is BookingKind.BOOKING and stored.state in counted
            if stored.ask.start <= at(hour) < stored.ask.end and stored.id != without
        )
        with store.look("t4") as look:
            assert look.booked_seconds("p-alpha", at(first), at(last), without) == 3600 * hours
    assert read(store, lambda look: look.booked_seconds("p-none", at(-99), at(99))) == 0


def what_matches_a_query_is_found_in_order(store: Store) -> None:
    """Against a filter of all bookings."""
    chance = random.Random(5)
    made: list[Booking] = []
    for pool in ("t4", "v100"):
        some = []
        for _ in range(60):
            first = chance.randrange(20)
            draft = booking(
                (), first, first + chance.randrange(5), state=chance.choice([BookingState.WAITING, BookingState.ENDED])
            )
            who = {
                "user_id": chance.choice("ab"),
                "project_id": chance.choice("xy"),
                "series": chance.choice(["", "s"]),
            }
            kind = chance.choice(list(BookingKind))
            some.append(replace(draft, ask=replace(draft.ask, pool=pool), kind=kind, **who))  # type: ignore[arg-type]
        made += write(store, *some, pool=pool)
    made.sort(key=lambda stored: (stored.ask.start, stored.id))
    for query in _queries():
        assert store.find(query) == [stored for stored in made if _matches(query, stored)], query
    pages, marker = [], ""
    while page := store.find(Query(user_id="a"), 7, marker):
        assert len(page) <= 7
        pages += page
        marker = page[-1].id
    assert pages == [stored for stored in made if stored.user_id == "a"]
    with pytest.raises(UsageError, match="'nobody'"):
        store.find(Query(), marker="nobody")


def _queries() -> Iterator[Query]:
    yield Query()
    yield Query(pool="t4")
    yield Query(pool="none")
    yield Query(user_id="a", project_id="x")
    yield Query(series="s", kinds=frozenset({BookingKind.HOLD}))
    yield Query(states=frozenset({BookingState.ENDED, BookingState.ACTIVE}))
    yield Query(pool="v100", start=at(5), end=at(8))
    yield Query(start=at(5))
    yield Query(end=at(8))


def _matches(query: Query, booking: Booking) -> bool:
    return (
        query.pool in ("", booking.ask.pool)
        and query.user_id in ("", booking.user_id)
        and query.project_id in ("", booking.project_id)
        and query.series in ("", booking.series)
        and (not query.kinds or booking.kind in query.kinds)
        and (not query.states or booking.state in query.states)
        and (query.start is None or booking.ask.end > query.start)
        and (query.end is None or booking.ask.start < query.end)
    )


# What is told and remembered.


def something_is_told_once(store: Store) -> None:
    with store.change("t4") as change:
        assert change.mark_told("b", "ending", at(0))
        assert not change.mark_told("b", "ending", at(1))
        assert change.mark_told("b", "started", at(1))
        assert change.mark_told("c", "ending", at(1))
    with store.change("t4") as change:
        assert not change.mark_told("b", "ending", at(2))
        assert not change.mark_told("b", "started", at(2))


def a_key_gives_what_it_gave(store: Store) -> None:
    with store.change("t4") as change:
        assert change.key("u", "k") is None
        change.remember_key("u", "k", "digest", ("b1", "b2"), at(0))
        change.remember_key("u", "empty", "digest", (), at(5))
    with store.look("v100") as look:
        assert look.key("u", "k") == ("digest", ("b1", "b2"))
        assert look.key("u", "empty") == ("digest", ())
        assert look.key("v", "k") is None
    with pytest.raises(ConflictError), store.change("v100") as change:
        change.remember_key("u", "k", "other", ("b3",), at(0))
    store.prune(at(1))
    assert read(store, lambda look: (look.key("u", "k"), look.key("u", "empty"))) == (None, ("digest", ()))


def an_event_is_told_to_every_channel_until_it_was(store: Store) -> None:
    write_event(store, Event("early", at(-1), "", "u"))
    assert store.take_undelivered("mail", at(0)) == store.take_undelivered("hook", at(0)) == []
    event = Event("booking.started", at(0), "b", "u", "ada@example.org", {"pool": "t4", "über": "ja"})
    with store.change("t4") as change:
        change.event(event)
    write_event(store, Event("second", at(0), "", "u"))
    first, second = store.take_undelivered("mail", at(0))
    assert (replace(first.event, id=0), first.attempts) == (event, 0)
    assert (second.event.kind, second.event.id > first.event.id) == ("second", True)
    assert store.take_undelivered("mail", at(0)) == [], "another process sends them"
    store.mark_delivered("mail", first.event.id, at(0))
    store.put_off("mail", second.event.id, at(2))
    assert store.take_undelivered("mail", at(1)) == []
    (again,) = store.take_undelivered("mail", at(2))
    assert (again.event, again.attempts) == (second.event, 1)
    assert [delivery.event for delivery in store.take_undelivered("mail", at(3))] == [second.event], (
        "whoever had it is dead"
    )
    store.put_off("mail", second.event.id, None)
    assert store.take_undelivered("mail", at(99)) == []
    assert [delivery.event for delivery in store.take_undelivered("hook", at(0), limit=1)] == [first.event]


def one_has_the_turn_until_it_ends(store: Store) -> None:
    url = store._database.url.render_as_string(hide_password=False)
    with closing(Store.open(url)) as other:
        assert store.try_to_lead("bookings")
        assert store.try_to_lead("bookings"), "it keeps it"
        assert not other.try_to_lead("bookings")
        assert other.try_to_lead("something else")
        store.resign()
        assert not store.is_leader("bookings")
        assert other.try_to_lead("bookings")
        assert not store.try_to_lead("bookings")
        assert (other.is_leader("bookings"), store.is_leader("bookings")) == (True, False)
    assert not store.is_leader("bookings"), "it must be taken"
    assert store.try_to_lead("bookings")


def later_events_of_a_booking_wait_for_earlier_ones(store: Store) -> None:
    """Also when another process has the earlier one, or it was tried in vain."""

    def told(moment: int, limit: int = 100) -> list[str]:
        return [delivery.event.kind for delivery in store.take_undelivered("mail", at(moment), limit)]

    assert told(0) == []
    for kind, subject in (("first", "a"), ("second", "a"), ("other", "b"), ("third", "a")):
        write_event(store, Event(kind, at(0), subject, "u"))
    assert told(0, limit=1) == ["first"]
    assert told(0) == ["other"], "another process tells the first one"
    first = store.take_undelivered("mail", at(2), limit=1)[0].event
    store.put_off("mail", first.id, at(9))
    assert told(4) == ["other"]
    store.mark_delivered("mail", first.id, at(9))
    assert told(9) == ["second", "other", "third"]


def channels_that_are_gone_are_forgotten(store: Store) -> None:
    for channel in ("mail", "hook"):
        store.take_undelivered(channel, at(0))
    write_event(store, Event("one", at(0), "", "u"))
    store.keep_channels(["mail"])
    assert len(store.take_undelivered("mail", at(0))) == 1
    assert store.take_undelivered("hook", at(0)) == []
    store.keep_channels([])
    write_event(store, Event("two", at(0), "", "u"))
    assert store.take_undelivered("mail", at(99)) == []


def what_waits_to_be_told_is_counted_by_channel(store: Store) -> None:
    assert store.waiting() == {}
    for channel in ("mail", "hook"):
        store.take_undelivered(channel, at(0))
    assert store.waiting() == {"mail": (0, None), "hook": (0, None)}
    for hour in (5, 4):
        write_event(store, Event(f"at {hour}", at(hour), "", "u"))
    delivered, given_up = store.take_undelivered("mail", at(9))
    store.mark_delivered("mail", delivered.event.id, at(9))
    assert store.waiting() == {"mail": (1, given_up.event.at), "hook": (2, at(4))}
    store.put_off("mail", given_up.event.id, None)
    assert store.waiting() == {"mail": (0, None), "hook": (2, at(4))}


def events_that_were_told_are_pruned(store: Store) -> None:
    store.take_undelivered("mail", at(0))
    for kind in ("told", "waits"):
        write_event(store, Event(kind, at(0), "", "u"))
    delivered, waits = store.take_undelivered("mail", at(0))
    store.mark_delivered("mail", delivered.event.id, at(0))
    store.prune(at(1))
    assert [delivery.event for delivery in store.take_undelivered("mail", at(1))] == [waits.event]


def the_audit_log_is_read_from_its_end(store: Store) -> None:
    entries = [AuditEntry(at(n), "ada", "booking.create", f"b{n}", "longest", "text") for n in range(5)]
    store.write_audit(entries[0])
    with store.change("t4") as change:
        for entry in entries[1:]:
            change.audit(entry)
    latest = store.audit(3)
    assert [replace(entry, id=0) for entry in latest] == entries[:1:-1]
    assert [replace(entry, id=0) for entry in store.audit(before=latest[-1].id)] == entries[1::-1]


def cases_are_open_until_they_are_cleared(store: Store) -> None:
    overstay = Overstay("s1", "vm", "t4", "u", "p", "must_book", ReclaimAction.SHELVE, at(0))
    two = replace(
        overstay, server_id="s2", seen=at(1), warned=at(1), due=at(2), done=at(2), dry_run=False, text="shelved"
    )
    store.put_overstay(two)
    store.put_overstay(overstay)
    assert store.open_overstays() == [overstay, two]
    store.put_overstay(replace(overstay, cleared=at(3)))
    again = replace(overstay, seen=at(4))
    store.put_overstay(again)
    assert store.open_overstays() == [two, again]
    assert store.overstays() == [again, two, replace(overstay, cleared=at(3))]
    assert store.overstays(1) == [again]


def enforcement_remembers_values(store: Store) -> None:
    assert store.value("t4", "limit") is None
    store.set_value("t4", "limit", "1")
    store.set_value("t4", "limit", "2")
    store.set_value("v100", "limit", "3")
    assert (store.value("t4", "limit"), store.values("v100")) == ("2", {"limit": "3"})
    store.set_value("t4", "limit", None)
    assert store.values("t4") == {}


def what_enforcement_remembers_is_replaced_only_as_it_was_read(store: Store) -> None:
    store.set_value("v100", "holds", "kept")
    assert not store.swap_value("t4", "holds", "a", "b"), "there is nothing"
    assert not store.swap_value("t4", "holds", "a", None)
    assert store.swap_value("t4", "holds", None, None)
    assert store.swap_value("t4", "holds", None, "a")
    assert not store.swap_value("t4", "holds", None, "b"), "somebody was there before"
    assert not store.swap_value("t4", "holds", None, None)
    assert not store.swap_value("t4", "holds", "b", "c")
    assert not store.swap_value("t4", "holds", "b", None)
    assert store.swap_value("t4", "holds", "a", "a")
    assert store.swap_value("t4", "holds", "a", "b")
    assert store.value("t4", "holds") == "b"
    assert store.swap_value("t4", "holds", "b", None)
    assert (store.values("t4"), store.values("v100")) == ({}, {"holds": "kept"})


RULES: tuple[Callable[[Store], None], ...] = (
    lanes_have_numbers_that_stay,
    a_slot_that_leaves_the_site_keeps_its_lane_and_gets_it_back,
    a_slot_may_get_another_peer,
    a_slot_cannot_be_named_twice,
    troubles_come_and_go,
    a_change_of_lanes_is_a_generation,
    a_pool_that_is_not_there_is_an_error,
    a_booking_is_read_as_it_was_written,
    new_bookings_get_a_place_in_the_order_in_which_they_came,
    a_booking_is_replaced_only_in_the_version_that_was_read,
    a_booking_stays_in_its_pool,
    a_lane_of_another_pool_or_none_is_refused,
    times_need_a_zone_and_an_order,
    a_lane_is_taken_in_the_states_that_have_it,
    two_never_have_a_lane_at_a_time,
    one_begins_when_the_other_ends,
    a_longer_time_takes_nobodys_lane,
    bookings_change_places,
    one_that_ends_leaves_its_lane_and_stays_in_the_calendar,
    what_fails_leaves_nothing,
    the_generation_rises_once_when_what_is_taken_changes,
    steps_lead_from_any_generation_to_now,
    what_is_taken_comes_in_order,
    a_timetable_that_is_too_old_is_told_so,
    the_waitlist_is_in_order,
    what_the_clock_moves_is_found,
    what_ends_is_found,
    who_is_on_a_lane_is_found,
    leases_that_are_on_are_found,
    open_bookings_of_a_user_are_counted,
    gpu_seconds_of_a_project_are_summed,
    what_matches_a_query_is_found_in_order,
    something_is_told_once,
    a_key_gives_what_it_gave,
    an_event_is_told_to_every_channel_until_it_was,
    channels_that_are_gone_are_forgotten,
    events_that_were_told_are_pruned,
    the_audit_log_is_read_from_its_end,
    cases_are_open_until_they_are_cleared,
    enforcement_remembers_values,
    what_enforcement_remembers_is_replaced_only_as_it_was_read,
)
