"""What the portal's store promises, whichever database it is in: on SQLite (tests/unit/web/test_portal_store.py) and on
PostgreSQL (tests/integration/test_store_postgresql.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta

from gpuyard.web.store import Feed, PortalStore, Session
from gpuyard.web.store.store import MOST_PLACES, PLACES_KEPT
from tests.contract.store import at

SECOND = timedelta(seconds=1)


def sessions_expire(store: PortalStore) -> None:
    session = Session("d1", "u", "ada", "p", "c", at(0), at(1), at(9))
    other = replace(session, digest="d2", user_id="v", expires=at(9))
    store.put_session(session)
    store.put_session(other)
    assert store.switch("d1", "q")
    assert store.put_off("d1", at(2))
    assert store.get_session("d1", at(1)) == replace(session, project_id="q", expires=at(2))
    assert store.get_session("d1", at(2)) is store.get_session("none", at(0)) is None
    store.prune(at(2))
    assert store.get_session("d1", at(0)) is None
    assert store.get_session("d2", at(2)) == other
    assert store.delete_session("d2")
    assert not store.delete_session("d2")
    assert not store.put_off("d2", at(9))
    assert not store.switch("d2", "q")
    assert store.get_session("d2", at(2)) is None


def sessions_of_a_user_end_together(store: PortalStore) -> None:
    early = Session("d1", "u", "ada", "p", "c", at(0), at(5), at(9))
    late, other = replace(early, digest="d2", created=at(1)), replace(early, digest="d3", user_id="v", user="bob")
    for session in (other, late, early):
        store.put_session(session)
    assert (store.sessions(at(1)), store.sessions(at(1), "u")) == ([early, late, other], [early, late])
    assert store.sessions(at(5)) == []
    assert store.delete_sessions("u", at(0)) == 1
    assert store.sessions(at(1), "u") == [late]
    assert store.delete_sessions("u") == 1
    assert store.sessions(at(1)) == [other]


def feeds_are_found_by_their_secret_and_owner(store: PortalStore) -> None:
    user_feed, two = (
        Feed("d1", "user", "u", "u", at(1), at(8)),
        Feed("d2", "gpu", "gpu-1/0000:01:00.0", "u", at(0), at(9)),
    )
    other = Feed("d3", "user", "v", "v", at(0), at(9))
    for feed in (user_feed, other, two):
        store.put_feed(feed)
    assert (store.get_feed("d1", at(7)), store.get_feed("d1", at(8)), store.get_feed("none", at(0))) == (
        user_feed,
        None,
        None,
    )
    assert (store.feeds(at(1), "u"), store.feeds(at(1)), store.feeds(at(8))) == (
        [two, user_feed],
        [two, user_feed, other],
        [two, other],
    )
    store.note_use("d2", at(3))
    assert store.feeds(at(1), "u") == [replace(two, used=at(3)), user_feed]
    store.prune(at(8))
    assert store.get_feed("d1", at(0)) is None
    assert store.delete_feed("d2")
    assert not store.delete_feed("d2")
    assert store.feeds(at(1)) == [other]


def places_are_known_for_a_while_from_the_last_login_on(store: PortalStore) -> None:
    assert not store.knows_place("d1", at(0))
    for digest, hour in (("d1", 0), ("d2", 1), ("d1", 2)):
        store.note_place(digest, "u", at(hour))
    assert store.knows_place("d2", at(1) + PLACES_KEPT - SECOND)
    assert not store.knows_place("d2", at(1) + PLACES_KEPT)
    store.prune(at(1) + PLACES_KEPT)
    assert not store.knows_place("d2", at(1)), "it is deleted"
    assert store.knows_place("d1", at(1))
    store.prune(at(2) + PLACES_KEPT)
    assert not store.knows_place("d1", at(1))


def of_a_user_the_places_of_the_latest_logins_are_kept(store: PortalStore) -> None:
    store.note_place("other", "v", at(0))
    for number in range(MOST_PLACES):
        store.note_place(f"d{number:02}", "u", at(number))
    store.note_place("d00", "u", at(MOST_PLACES))  # where somebody still comes from
    store.note_place("a", "u", at(MOST_PLACES))
    for digest in ("z", "y", "x"):  # at the same time, and by no order of theirs
        store.note_place(digest, "u", at(MOST_PLACES))
        assert store.knows_place(digest, at(MOST_PLACES))
    gone = [number for number in range(MOST_PLACES) if not store.knows_place(f"d{number:02}", at(MOST_PLACES))]
    assert gone == [1, 2, 3, 4]
    assert store.knows_place("other", at(MOST_PLACES)), "which is somebody else's"


RULES: tuple[Callable[[PortalStore], None], ...] = (
    sessions_expire,
    sessions_of_a_user_end_together,
    feeds_are_found_by_their_secret_and_owner,
    places_are_known_for_a_while_from_the_last_login_on,
    of_a_user_the_places_of_the_latest_logins_are_kept,
)
