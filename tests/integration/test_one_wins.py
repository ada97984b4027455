"""64 want the same GPU at the same moment: exactly one gets it, whichever way it is asked for, on both databases."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store
from gpuyard.bookings.yielding import MADE_WAY
from gpuyard.model.booking import BookingKind, BookingState
from tests.support.contenders import (
    HOUR,
    NOW,
    POOL,
    WON,
    Processes,
    Task,
    ask,
    contend,
    ledger_of,
    one_gpu,
    person,
)
from tests.support.postgres import Server, server

MANY = 64
PROCESSES = 8
Contest = Callable[[Store, Sequence[Task]], list[str]]


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    running: Server = request.getfixturevalue("postgres")
    return running.database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    with closing(Store.open(url)) as opened:
        one_gpu(opened)
        yield opened


@pytest.fixture(scope="module")
def processes() -> Iterator[Processes]:
    with closing(Processes(PROCESSES)) as running:
        yield running


@pytest.fixture(params=["threads", "processes"])
def contest(request: pytest.FixtureRequest, url: str) -> Contest:
    if request.param == "threads":
        return contend
    running: Processes = request.getfixturevalue("processes")
    return lambda store, tasks: running.contend(url, tasks)


def winner(outcomes: Sequence[str], *losers: str) -> str:
    """Id of the only booking that was made or changed; all others were told one of these things."""
    won = [outcome for outcome in outcomes if outcome.startswith(WON)]
    lost = [outcome for outcome in outcomes if not outcome.startswith(WON)]
    assert len(won) == 1, outcomes
    assert [outcome for outcome in lost if not outcome.startswith(losers)] == []
    return won[0].split()[1]


def taken(store: Store, first: float = 24, last: float = 25) -> list[str]:
    """Ids of the bookings that have the GPU in that time, as the database has them."""
    begin, end = (int((NOW + hours * HOUR).timestamp()) for hours in (first, last))
    with store.look(POOL) as look:
        return [row.booking for row in look.occupancy(NOW) if row.start < end and row.end > begin]


def test_at_the_database_itself(store: Store, contest: Contest) -> None:
    outcomes = contest(store, [Task("store", number) for number in range(MANY)])
    assert taken(store) == [winner(outcomes, "OverlapError: a GPU would be booked twice")]
    assert len(store.find(Query())) == 1


@pytest.mark.parametrize("what", ["create", "override"])
def test_who_books_first(store: Store, contest: Contest, what: str) -> None:
    """Also admins who set the rules aside."""
    outcomes = contest(store, [Task(what, number) for number in range(MANY)])
    assert taken(store) == [winner(outcomes, "RefusedError: ")]
    assert [booking.state for booking in store.find(Query())] == [BookingState.CONFIRMED]


def test_a_lease_or_a_booking_from_now_on(store: Store, contest: Contest) -> None:
    half = MANY // 2
    tasks = [Task("lease", n, last=1) for n in range(half)] + [Task("create", n, first=0, last=1) for n in range(half)]
    outcomes = contest(store, tasks)
    assert taken(store, 0, 1) == [winner(outcomes, "RefusedError: ")]


def test_idle_runners_make_way_for_the_first_who_books(store: Store, contest: Contest) -> None:
    """However they come: an idle runner may have been there before, and is not any more."""
    half = MANY // 2
    tasks = [Task("idle", n, last=1) for n in range(half)] + [Task("create", n, first=0, last=1) for n in range(half)]
    outcomes = contest(store, tasks)
    assert not [outcome for outcome in outcomes if outcome.startswith("unexpected")]
    (made,) = store.find(Query(kinds=frozenset({BookingKind.BOOKING})))
    assert taken(store, 0, 1) == [made.id]
    assert f"{WON} {made.id}" in outcomes
    ended = store.find(Query(pool=POOL, states=frozenset({BookingState.ENDED})))
    assert [booking.reason for booking in ended] == [MADE_WAY] * (
        sum(outcome.startswith(WON) for outcome in outcomes) - 1
    )


def test_who_moves_a_booking_there_first(store: Store, contest: Contest) -> None:
    ledger = ledger_of(store)
    made = [ledger.create(ask(48 + n, 49 + n), person(n))[0] for n in range(MANY)]
    outcomes = contest(store, [Task("edit", n, booking.id) for n, booking in enumerate(made)])
    assert taken(store) == [winner(outcomes, "RefusedError: ")]
    assert len(taken(store, 0, 999)) == MANY, "the others are where they were"


def test_who_extends_a_booking_into_a_gap_first(store: Store, contest: Contest) -> None:
    """One extends, one begins earlier, all others book what is between them."""
    ledger = ledger_of(store)
    before, after = (ledger.create(ask(*time), person(n))[0] for n, time in enumerate(((23, 24), (25, 26))))
    tasks = [Task("edit", 0, before.id, 23, 25), Task("edit", 1, after.id, 24, 26)]
    tasks += [Task("create", number) for number in range(2, MANY)]
    winning = winner(contest(store, tasks), "RefusedError: ")
    assert taken(store) == [winning]
    assert len(taken(store, 23, 26)) == (2 if winning in (before.id, after.id) else 3)


def test_whose_request_is_approved_first(store: Store, contest: Contest) -> None:
    asking = ledger_of(store, approval=True)
    made = [asking.create(ask(24, 25), person(number))[0] for number in range(MANY)]
    assert {booking.state for booking in made} == {BookingState.REQUESTED}
    outcomes = contest(store, [Task("approve", number, booking.id) for number, booking in enumerate(made)])
    assert taken(store) == [winner(outcomes, "RefusedError: ")]
    assert len(store.find(Query(states=frozenset({BookingState.REQUESTED})))) == MANY - 1


def test_an_offer_is_accepted_once(store: Store, contest: Contest) -> None:
    ledger = ledger_of(store)
    (first,) = ledger.create(ask(24, 25), person(0))
    (second,) = ledger.create(ask(24, 25), person(1), wait=True)
    (third,) = ledger.create(ask(24, 25), person(2), wait=True)
    ledger.cancel(first.id, person(0))
    ledger.upkeep.advance()
    states = [ledger.get(booking.id).state for booking in (second, third)]
    assert states == [BookingState.OFFERED, BookingState.WAITING]
    assert taken(store) == [second.id], "it is kept for whom it was offered to"
    tasks = [Task("accept", 1, second.id) for _ in range(MANY // 2)] + [Task("create", n) for n in range(MANY // 2)]
    outcomes = contest(store, tasks)
    assert winner(outcomes, "RefusedError: ", "BlockedError: ", "LifeError: ") == second.id
    assert taken(store) == [second.id]


def test_one_key_makes_one_booking(store: Store, contest: Contest) -> None:
    """A client that repeats itself gets its own booking again."""
    outcomes = contest(store, [Task("create", 0, key="again") for _ in range(MANY)])
    assert len(set(outcomes)) == 1
    assert taken(store) == [outcomes[0].removeprefix(f"{WON} ")]
