"""Who may do what: one table, and the ledger, the API and its rows say the same."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from sqlalchemy import update

from gpuyard.bookings.store.schema import BOOKINGS
from gpuyard.model.booking import Booking, BookingState, Person
from gpuyard.model.rights import STATES, Verb, may, standing, verbs_now
from gpuyard.openstack.people import TokenFacts
from tests.support.ledgers import ADA, BOB, EVE, ROOT, ask
from tests.support.people import LATER, User, people
from tests.support.portals import BookingPortal, booking_portal

PHYSICS, BIOLOGY = "p-physics", "p-biology"
READER = frozenset({"reader"})
MEMBER = READER | {"member"}
MANAGER = MEMBER | {"manager"}
ADMIN = frozenset({"admin"})


@dataclass(frozen=True)
class Actor:
    """Somebody in a browser or with a token; the booking is ADA's, of physics."""

    name: str
    user_id: str
    looks_at: str
    roles: dict[str, frozenset[str]]
    verbs: str
    """What they may do to it: the first letters of the verbs below."""
    token: bool = False


GIVE_BACK = "cancel end decline"
OWN = f"change accept open {GIVE_BACK}"
ALL = f"{OWN} approve"
ACTORS = [
    Actor("owner", ADA.user_id, PHYSICS, {PHYSICS: MEMBER}, OWN),
    Actor("owner's program", ADA.user_id, PHYSICS, {PHYSICS: MEMBER}, OWN, token=True),
    Actor("owner who looks elsewhere", ADA.user_id, BIOLOGY, {PHYSICS: MEMBER, BIOLOGY: READER}, OWN),
    Actor("owner's program elsewhere", ADA.user_id, BIOLOGY, {PHYSICS: MEMBER, BIOLOGY: MEMBER}, "", token=True),
    Actor("owner who has left", ADA.user_id, BIOLOGY, {BIOLOGY: MEMBER}, GIVE_BACK),
    Actor("owner who may only look", ADA.user_id, PHYSICS, {PHYSICS: READER}, GIVE_BACK),
    Actor("owner's program that may only look", ADA.user_id, PHYSICS, {PHYSICS: READER}, "", token=True),
    Actor("colleague", "u-cy", PHYSICS, {PHYSICS: MEMBER}, ""),
    Actor("reader", "u-cy", PHYSICS, {PHYSICS: READER}, ""),
    Actor("stranger", "u-cy", BIOLOGY, {BIOLOGY: MEMBER}, ""),
    Actor("manager", "u-cy", PHYSICS, {PHYSICS: MANAGER}, OWN),
    Actor("manager's program", "u-cy", PHYSICS, {PHYSICS: MANAGER}, OWN, token=True),
    Actor("manager who looks elsewhere", "u-cy", BIOLOGY, {PHYSICS: MANAGER, BIOLOGY: READER}, OWN),
    Actor("manager of another project", "u-cy", BIOLOGY, {BIOLOGY: MANAGER, PHYSICS: MEMBER}, ""),
    Actor("admin", "u-cy", BIOLOGY, {BIOLOGY: ADMIN}, ALL),
    Actor("admin elsewhere", "u-cy", PHYSICS, {PHYSICS: READER, BIOLOGY: ADMIN}, ""),
]  # fmt: skip

BODIES = {"extend": {"end": "2026-11-23T18:00:00Z"}, "change": {"comment": "other"}}
ENDPOINTS = {
    Verb.CHANGE: ["PATCH", "extend"],
    Verb.ACCEPT: ["accept"],
    Verb.OPEN: ["open"],
    Verb.CANCEL: ["cancel", "DELETE"],
    Verb.END: ["end", "DELETE"],
    Verb.DECLINE: ["decline"],
    Verb.APPROVE: ["approve"],
}


def portal_of(actor: Actor, folder: Path) -> BookingPortal:
    directory = people({"u-cy": User(Person("u-cy", "cy", PHYSICS, "physics"))})
    directory.users_by_id[actor.user_id].roles = actor.roles
    return booking_portal(folder, other_people=directory)


def client_of(portal: BookingPortal, actor: Actor) -> TestClient:
    user = portal.people.users_by_id[actor.user_id].person
    if actor.token:
        account = portal.people.account(actor.user_id)
        assert account is not None
        membership = next(membership for membership in account.memberships if membership.project_id == actor.looks_at)
        portal.people.tokens["t"] = TokenFacts(actor.user_id, user.user, LATER, membership)
        client = TestClient(portal.app, raise_server_exceptions=False)
        client.headers["X-Auth-Token"] = "t"
        return client
    browser = portal.browser(user)
    assert browser.client.post("/project", data={"project": actor.looks_at}).status_code == 303
    return browser.client


QUARTERS = count(1)
"""Of an hour: starts of bookings, so that none is in the way of another."""


def in_state(portal: BookingPortal, state: BookingState) -> Booking:
    """A booking of ADA's in a state."""
    (booking,) = portal.ledger.create(ask(next(QUARTERS) / 4, 0.25, pool="t4"), ADA)
    with portal.ledger.database.writing() as connection:
        connection.execute(update(BOOKINGS).where(BOOKINGS.c.id == booking.id).values(state=state))
    return portal.ledger.get(booking.id)


@pytest.mark.parametrize("actor", ACTORS, ids=lambda actor: actor.name)
def test_rows_and_endpoints_say_the_same(actor: Actor, tmp_path: Path) -> None:
    portal = portal_of(actor, tmp_path)
    client = client_of(portal, actor)
    for state in (BookingState.REQUESTED, BookingState.OFFERED, BookingState.CONFIRMED, BookingState.ACTIVE):
        booking = in_state(portal, state)
        path = f"/v1/bookings/{booking.id}"
        expected = [verb for verb in actor.verbs.split() if state in STATES[Verb(verb)]]
        assert sorted(client.get(path).json()["may"]) == sorted(expected), state
        listed = {row["id"]: row["may"] for row in client.get("/v1/bookings").json()["bookings"]}
        assert sorted(listed[booking.id]) == sorted(expected), state
    for verb, endpoints in ENDPOINTS.items():
        for endpoint in endpoints:
            state = BookingState.ACTIVE if (verb, endpoint) == (Verb.END, "DELETE") else sorted(STATES[verb])[0]
            booking = in_state(portal, state)
            path = f"/v1/bookings/{booking.id}"
            if endpoint.isupper():
                answer = client.request(endpoint, path, json=BODIES["change"], headers={"If-Match": "*"})
            else:
                answer = client.post(f"{path}/{endpoint}", json=BODIES.get(endpoint))
            assert answer.status_code != 500
            assert (answer.status_code != 403) is (verb in actor.verbs.split()), (verb, endpoint, answer.text)
            if answer.status_code == 403:
                assert portal.ledger.get(booking.id) == booking


@pytest.mark.parametrize("actor", ACTORS, ids=lambda actor: actor.name)
def test_refusals_say_what_is_missing(actor: Actor, tmp_path: Path) -> None:
    portal = portal_of(actor, tmp_path)
    client = client_of(portal, actor)
    booking = in_state(portal, BookingState.ACTIVE)
    if "end" in actor.verbs.split():
        return
    problem = client.post(f"/v1/bookings/{booking.id}/end").json()
    if actor.user_id == ADA.user_id:
        assert problem["code"] == "no_role"
        needs = "The token needs the role member in project physics to end it"
        assert problem["detail"] == f"{needs}; ask its administrator."
    else:
        assert problem["code"] == "forbidden"
        who = "only its owner, managers of its project and admins can end it"
        assert problem["detail"] == f"Booking {booking.id} is somebody else's; {who}."


def test_verbs_without_a_booking() -> None:
    manager = replace(BOB, roles=MANAGER)
    verbs = (Verb.SEE, Verb.BOOK, Verb.OVERRIDE, Verb.HOLD, Verb.ADMINISTER)
    table = {person.user: [bool(may(person, verb)) for verb in verbs] for person in (EVE, ADA, manager, ROOT)}
    assert table == {
        "eve": [True, False, False, False, False],
        "ada": [True, True, False, False, False],
        "bob": [True, True, False, False, False],
        "root": [True] * 5,
    }
    assert not may(replace(EVE, roles=frozenset()), Verb.SEE)
    assert may(EVE, Verb.BOOK).why == "eve needs the role member in project physics to book; ask its administrator"
    assert "only admins can hold GPUs" in may(ADA, Verb.HOLD).why


def test_a_hold_is_for_admins(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    hour = ask()
    (hold,) = portal.ledger.hold(["gpu-2/0000:18:00.0"], hour.start, hour.end, ROOT, "")
    manager = replace(ADA, project_id=hold.project_id, roles=MANAGER, user_id="other")
    for person in (ADA, manager, replace(ROOT, roles=MEMBER)):
        assert verbs_now(person, hold) == ()
        assert "only admins can hold GPUs" in may(person, Verb.CANCEL, hold).why
    assert verbs_now(ROOT, hold) == (Verb.CHANGE, Verb.CANCEL)
    assert standing(ROOT, hold) == "admin"
