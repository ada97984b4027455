"""What the portal's store promises, whichever database it is in: on SQLite (tests/unit/test_portal_store.py) and on
PostgreSQL (tests/integration/test_store_postgresql.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from gpuyard.portal.store import Feed, PortalStore, Session
from tests.contract.store import at


def sessions_expire(store: PortalStore) -> None:
    one = Session("d1", "u", "ada", "p", "c", at(0), at(1), at(9))
    other = replace(one, digest="d2", user_id="v", expires=at(9))
    store.put_session(one)
    store.put_session(other)
    assert store.switch("d1", "q")
    assert store.put_off("d1", at(2))
    assert store.get_session("d1", at(1)) == replace(one, project_id="q", expires=at(2))
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
    for one in (other, late, early):
        store.put_session(one)
    assert (store.sessions(at(1)), store.sessions(at(1), "u")) == ([early, late, other], [early, late])
    assert store.sessions(at(5)) == []
    assert store.delete_sessions("u", at(0)) == 1
    assert store.sessions(at(1), "u") == [late]
    assert store.delete_sessions("u") == 1
    assert store.sessions(at(1)) == [other]


def feeds_are_found_by_their_secret_and_owner(store: PortalStore) -> None:
    one, two = (
        Feed("d1", "user", "u", "u", at(1), at(8)),
        Feed("d2", "gpu", "gpu-1/0000:01:00.0", "u", at(0), at(9)),
    )
    other = Feed("d3", "user", "v", "v", at(0), at(9))
    for feed in (one, other, two):
        store.put_feed(feed)
    assert (store.get_feed("d1", at(7)), store.get_feed("d1", at(8)), store.get_feed("none", at(0))) == (
        one,
        None,
        None,
    )
    assert (store.feeds(at(1), "u"), store.feeds(at(1)), store.feeds(at(8))) == (
        [two, one],
        [two, one, other],
        [two, other],
    )
    store.note_use("d2", at(3))
    assert store.feeds(at(1), "u") == [replace(two, used=at(3)), one]
    store.prune(at(8))
    assert store.get_feed("d1", at(0)) is None
    assert store.delete_feed("d2")
    assert not store.delete_feed("d2")
    assert store.feeds(at(1)) == [other]


RULES: tuple[Callable[[PortalStore], None], ...] = (
    sessions_expire,
    sessions_of_a_user_end_together,
    feeds_are_found_by_their_secret_and_owner,
)
