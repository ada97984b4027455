"""Shared bookings in what enforcement sees: whoever of the project comes uses them, and nobody who may is sent away."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.bookings.controllers.overstays import OVER, OverstayController
from gpuyard.bookings.controllers.reclaim_servers import Reclaimer
from gpuyard.bookings.matching import Holder, match, may_use
from gpuyard.bookings.pool_view import Memory
from gpuyard.bookings.reclaim import MUST_BOOK, PAST_THE_END, reasons
from gpuyard.bookings.shortage import shortage
from gpuyard.model.booking import Booking
from gpuyard.openstack.api import CloudApi
from tests.support.ledgers import ADA, NOON, ROOT, Clock, ask, open_ledger
from tests.support.sites import flavor, site
from tests.unit.bookings.test_enforcement import (
    COUNT,
    FREE,
    HOUR,
    MINUTE,
    START,
    booking,
    plan_pool,
    server,
    told,
    view,
)

PEOPLE = ("ada", "carl")
LANES = range(1, 6)


def shared(id: str = "all", lanes: tuple[int, ...] = (1,), **more: object) -> Booking:
    return booking(id, lanes, shared=True, **more)


def test_a_colleagues_server_claims_it_and_is_not_reclaimed() -> None:
    scene = view([shared()], holders=(server("s", (1,), "carl"),), limits={("physics", COUNT): 1})
    assert scene.matches.claims == {"all": (1,)}
    assert scene.missing(scene.bookings[0]) == ()
    assert reasons(scene, {}, ()) == {}
    assert shortage(scene, START).delayed == ()
    plan = plan_pool(scene, START)
    assert told(plan.steps) == []
    assert plan.ready == frozenset(), "it has come"


def test_somebody_of_another_project_on_it_is_in_the_way() -> None:
    scene = view([shared(lanes=(1, 2, 3))], holders=(server("s", (1,), "carl", "art"),))
    assert reasons(scene, {}, shortage(scene, START).yielding) == {"s": MUST_BOOK}
    assert shortage(scene, START).delayed == ("all",)


def test_where_others_may_come_unbooked_the_project_is_let_in_once_and_held_below_its_colleague() -> None:
    ready = shared(open_until=START + 15 * MINUTE)
    settled = Memory(lowered=START - MINUTE)
    free = view([ready], rules=FREE, unbooked={"art": 2}, memory=settled)
    assert f"limit physics {COUNT} -> 1" in told(plan_pool(free, START).steps)
    has = replace(free, holders=(server("s", (1,), "carl"),), memory=replace(settled, opened=frozenset({"all"})))
    steps = told(plan_pool(has, START).steps)
    assert "hold host_1.0" in steps, "what the colleague gives back is still the project's"
    assert reasons(has, {}, shortage(has, START).yielding) == {}


def test_who_has_a_booking_leaves_the_shared_one_to_colleagues_wherever_nova_puts_them() -> None:
    both = [shared(lanes=(1,)), booking("hers", (2,))]
    scene = view(both, holders=(server("a", (1,)), server("c", (2,), "carl", created=START + MINUTE)))
    assert scene.matches.bookings_of == {"a": ("hers",), "c": ("all",)}
    assert scene.matches.claims == {"hers": (1,), "all": (2,)}, "they change places"
    assert reasons(scene, {}, ()) == {}
    made_by_her = [replace(both[0], user_id="ada"), both[1]]
    assert match(made_by_her, scene.holders).unbooked == ()


@st.composite
def pools(draw: st.DrawFn) -> tuple[list[Booking], list[Holder]]:
    """Bookings and servers of one GPU each, of one project, on any lanes."""
    bookings = [
        booking(f"b{n}", (lane,), user_id=user, shared=all_may, start=START - draw(st.integers(0, 3)) * HOUR)
        for n, (lane, user, all_may) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from(LANES), st.sampled_from(PEOPLE), st.booleans()),
                    max_size=4,
                    unique_by=lambda triple: triple[0],
                )
            )
        )
    ]
    holders = [
        server(f"s{n}", (lane,), user, created=START + n * MINUTE)
        for n, (lane, user) in enumerate(
            draw(
                st.lists(
                    st.tuples(st.sampled_from(LANES), st.sampled_from(PEOPLE)),
                    max_size=4,
                    unique_by=lambda pair: pair[0],
                )
            )
        )
    ]
    return bookings, holders


@given(pools())
def test_as_many_servers_have_a_booking_as_can(pool: tuple[list[Booking], list[Holder]]) -> None:
    bookings, holders = pool
    matches = match(bookings, holders)
    by_id = {booking.id: booking for booking in bookings}
    for holder in holders:
        for id in matches.bookings_of.get(holder.id, ()):
            assert may_use(holder, by_id[id])
    drawn = [id for ids in matches.bookings_of.values() for id in ids]
    assert len(drawn) == len(set(drawn)), "a booking of one GPU is used once"
    assert sorted(lane for lanes in matches.claims.values() for lane in lanes) == sorted(
        holder.lanes[0] for holder in holders if holder.id in matches.bookings_of
    )
    over = 0
    for user in PEOPLE:
        own = sum(booking.user_id == user and not booking.shared for booking in bookings)
        over += max(0, sum(holder.user_id == user for holder in holders) - own)
    assert len(matches.unbooked) == max(0, over - sum(booking.shared for booking in bookings))
    scene = view(bookings, dict.fromkeys(LANES, 1), holders=tuple(holders))
    assert reasons(scene, {}, ()).keys() == {holder.id for holder in matches.unbooked}


@given(pools(), st.sampled_from(PEOPLE))
def test_sharing_a_booking_sends_nobody_away(pool: tuple[list[Booking], list[Holder]], owner: str) -> None:
    bookings, holders = pool
    before = match(bookings, holders)
    opened = [replace(booking, shared=booking.shared or booking.user_id == owner) for booking in bookings]
    assert len(match(opened, holders).unbooked) <= len(before.unbooked)


@pytest.mark.parametrize(("shared", "rule"), [(True, PAST_THE_END), (False, MUST_BOOK)])
def test_a_colleague_is_told_that_the_shared_booking_is_over(tmp_path: Path, shared: bool, rule: str) -> None:
    clock = Clock()
    ledger = open_ledger(tmp_path, clock=clock)
    (made,) = ledger.create(ask(1, hours=1), ADA, by=ROOT, shared=shared)
    for _ in range(2):
        clock.forward(1)
        ledger.upkeep.advance()
    assert ledger.get(made.id).state in OVER
    site_of = site(tmp_path, {"flavors": {"one": flavor(gpus={"v100": 1})}, "booking": {}}).compiled.site
    controller = OverstayController(site_of, ledger, Reclaimer(cast("CloudApi", None)), clock)
    stays = Holder("s", "s", "ACTIVE", "u-carl", ADA.project_id, ADA.project, "v100", (1,), 1, NOON + 1.5 * HOUR)
    assert controller._reasons(replace(view([], holders=(stays,)), pool="v100")) == {"s": rule}
    ledger.close()
