"""Bookings for a colleague and for a whole project: who may make them, whose they are, and who may use them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.matching import Holder, match
from gpuyard.model.booking import Booking, BookingState, Rules
from gpuyard.model.errors import ForbiddenError
from tests.support.ledgers import ADA, HOUR, NOON, ROOT, ask, names, open_ledger

COLLEAGUE = replace(ADA, user_id="u-carl", user="carl", email="carl@example.org")
MANAGER = replace(COLLEAGUE, roles=frozenset({"manager", "member", "reader"}))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    ledger = open_ledger(tmp_path, Rules(most_active=1))
    yield ledger
    ledger.close()


def test_a_manager_books_for_a_member_by_the_members_rules(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(), ADA, by=MANAGER)
    assert (made.user, made.email, made.reason) == ("ada", "ada@example.org", "by carl")
    assert ledger.audit()[0].actor == "carl"
    with pytest.raises(RefusedError) as refused:
        ledger.create(ask(10), ADA, by=MANAGER)
    assert names(refused.value.answer.reasons) == ["too_many"]
    ledger.create(ask(10), MANAGER)


@pytest.mark.parametrize("shared", [False, True])
def test_members_may_only_where_the_rules_say_so(ledger: Ledger, tmp_path: Path, shared: bool) -> None:
    owner = COLLEAGUE if shared else ADA
    with pytest.raises(ForbiddenError, match="book for a colleague or for the whole project"):
        ledger.create(ask(), owner, by=COLLEAGUE, shared=shared)
    (tmp_path / "open").mkdir()
    allowed = open_ledger(tmp_path / "open", Rules(for_others=True))
    assert allowed.create(ask(), owner, by=COLLEAGUE, shared=shared)[0].shared is shared
    allowed.close()
    assert ledger.create(ask(), owner, by=ROOT, shared=shared)[0].user == owner.user


def test_a_key_is_that_of_who_asks(ledger: Ledger) -> None:
    (made,) = ledger.create(ask(), ADA, by=MANAGER, key="one")
    assert ledger.create(ask(), ADA, by=MANAGER, key="one") == (made,)
    with pytest.raises(RefusedError, match="key"):
        ledger.create(ask(), MANAGER, key="one")


def server(id: str, user: str, lane: int, hours: float = 0) -> Holder:
    return Holder(id, id, "ACTIVE", user, ADA.project_id, ADA.project, "v100", (lane,), 1, NOON + hours * HOUR)


def active(made: Booking) -> Booking:
    return replace(made, state=BookingState.ACTIVE)


def test_a_shared_booking_is_used_by_whoever_comes_first(ledger: Ledger) -> None:
    (shared,) = ledger.create(ask(0), ADA, by=ROOT, shared=True)
    matches = match([active(shared)], [server("first", "u-carl", 3), server("second", "u-ada", 4, hours=1)])
    assert matches.bookings_of == {"first": (shared.id,)}
    assert [holder.id for holder in matches.unbooked] == ["second"]
    stranger = replace(server("other", "u-bob", 3), project_id="p-biology")
    assert match([active(shared)], [stranger]).unbooked == (stranger,)


def test_an_own_booking_is_used_before_a_shared_one(ledger: Ledger) -> None:
    (shared,) = ledger.create(ask(0), COLLEAGUE, by=ROOT, shared=True)
    (own,) = ledger.create(ask(0.5), ADA)
    lane = next(lane.id for lane in ledger.lanes("v100") if lane.id not in (*shared.lanes, *own.lanes))
    matches = match([active(shared), active(own)], [server("hers", "u-ada", lane)])
    assert matches.bookings_of == {"hers": (own.id,)}
