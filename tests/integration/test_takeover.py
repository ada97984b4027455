"""Several portals on one PostgreSQL, as processes, with the real OpenStack: the one that keeps bookings is killed or
stopped, the database is restarted, or fails over to its standby. What bookings need is done once, and no booking that
was confirmed is lost or made twice."""

from __future__ import annotations

import json
import random
import signal
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path
from time import sleep
from uuid import uuid4

import psycopg
import pytest
from sqlalchemy import URL, make_url

from gpuyard.bookings.records import Query
from gpuyard.model.booking import Booking, BookingState
from gpuyard.model.moments import iso_text
from tests.integration.booked_lab import PASSWORD, BookedLab, Open
from tests.integration.conftest import RunningLab
from tests.integration.test_enforcement import MUST, opened
from tests.support.portal_processes import PATIENCE, Portal, leader_of, portals, token_of, until
from tests.support.postgres import Server, server, standby

__all__ = ["opened"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]
RULES = {**MUST, "most_active": 999, "reclaim": "delete", "grace": "0 min"}


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("postgres"), durable=True) as running:
        yield running


def actions(booked: BookedLab, server_id: str) -> Counter[str]:
    """What Nova was asked to do to a server."""
    rows = booked.operator.get("compute", f"/servers/{server_id}/os-instance-actions")["instanceActions"]
    return Counter(row["action"] for row in rows)


def entries(booked: BookedLab, target: str) -> Counter[str]:
    """What was written down of a booking or a server, by whoever kept it."""
    return Counter(entry.action for entry in booked.ledger.audit(1000) if entry.target == target)


def events(booked: BookedLab, booking: Booking) -> Counter[str]:
    with psycopg.connect(plain(booked.ledger.database.url)) as connection:
        rows = connection.execute("select kind from events where booking = %s", (booking.id,)).fetchall()
    return Counter(kind for (kind,) in rows)


def plain(url: str | URL) -> str:
    """As psycopg itself takes it."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


def said(serving: Sequence[Portal]) -> str:
    return "".join(portal.log.read_text() for portal in serving)


def test_a_leader_that_is_killed_is_followed_by_another_and_nothing_is_done_twice(
    lab: RunningLab, opened: Open, postgres: Server, tmp_path: Path
) -> None:
    url = postgres.database()
    booked = opened(RULES, database=url)
    chance = random.Random()

    def kill_soon(serving: Sequence[Portal]) -> None:
        leader = leader_of(serving)
        sleep(chance.uniform(0, 2))
        leader.signal(signal.SIGKILL)
        leader_of(serving)
        leader.start()

    with portals(3, tmp_path, lab.status.clouds_file, url) as serving:
        booking = booked.book("ada", start=0)
        kill_soon(serving)  # while it begins
        until(lambda: booked.limits() == {"physics": 1})
        boot = booked.boot("ada")
        assert boot.status == "ACTIVE", boot.fault
        until(lambda: booked.now(booking).claimed is not None)
        booked.ledger.end(booking.id, booked.people["ada"])
        kill_soon(serving)  # while it ends, and its server is deleted
        until(lambda: booked.limits() == {})
        until(lambda: actions(booked, boot.server_id)["delete"] > 0)
        until(lambda: all(status.claim is None for status in booked.statuses()))
        assert actions(booked, boot.server_id) == {"create": 1, "delete": 1}, entries(booked, boot.server_id)
        event_counts = events(booked, booking)
        assert event_counts["booking.started"] == 1, event_counts
        assert {kind: n for kind, n in event_counts.items() if n > 1} == {}
        assert {kind: n for kind, n in entries(booked, booking.id).items() if n > 1} == {}
    assert "Traceback" not in said(serving)


def test_a_leader_that_was_stopped_does_nothing_when_it_wakes(
    lab: RunningLab, opened: Open, postgres: Server, tmp_path: Path
) -> None:
    """As one whose network was away: another one has taken over meanwhile."""
    url = postgres.database()
    booked = opened(RULES, database=url)
    with portals(2, tmp_path, lab.status.clouds_file, url) as serving:
        old = leader_of(serving)
        old.signal(signal.SIGSTOP)
        new = leader_of([portal for portal in serving if portal is not old])
        booked.book("ada", start=0)
        until(lambda: booked.limits() == {"physics": 1})
        old.signal(signal.SIGCONT)
        until(lambda: not old.keeps())
        until(lambda: "this process no longer leads bookings" in old.log.read_text())
        assert new.keeps()
        until(old.is_ready)
        assert not old.keeps()


class Booker(threading.Thread):
    """Somebody who books hour after hour, at whichever portal answers, and asks again with the same key until it is
    done: what a program should do. Keeps what it was told."""

    def __init__(self, serving: Sequence[Portal], token: str, first: datetime) -> None:
        super().__init__(daemon=True)
        self.serving, self.token, self.first = serving, token, first
        self.booked: dict[str, str] = {}
        """Key -> id of the booking that was confirmed."""
        self.odd: list[str] = []
        self.refused = 0
        """How often it was told to come again."""
        self.over = threading.Event()

    def run(self) -> None:
        number = 0
        while not self.over.is_set() and not self.odd:
            key, start = uuid4().hex, self.first + timedelta(hours=number)
            wish = {"pool": "t4", "start": iso_text(start), "end": iso_text(start + timedelta(hours=1))}
            while key not in self.booked and not self.odd:
                self.ask(number, key, wish)
            number += 1
            sleep(0.5)  # fewer than the portal takes of one person in a minute

    def ask(self, number: int, key: str, wish: dict[str, str]) -> None:
        portal = self.serving[(number + self.refused) % len(self.serving)]
        headers = {"X-Auth-Token": self.token, "Content-Type": "application/json", "Idempotency-Key": key}
        try:
            status, answered, text = portal.ask("POST", "/v1/bookings", json.dumps(wish).encode(), headers)
        except OSError as error:
            self.odd.append(str(error))
            return
        if status in (200, 201):
            self.booked[key] = json.loads(text)["id"]
        elif status == 503 and int(answered["retry-after"]) > 0 and json.loads(text)["code"] == "unavailable":
            self.refused += 1
            sleep(0.5)
        else:
            self.odd.append(f"{status}: {text.decode()}")


@contextmanager
def booking_all_the_time(booked: BookedLab, lab: RunningLab, serving: Sequence[Portal]) -> Iterator[Booker]:
    """At its end all that was confirmed is there, once, and all portals are well."""
    token = token_of(lab.lab.endpoint("keystone"), "ada", PASSWORD, "physics")
    first = (booked.clock() + timedelta(days=1)).replace(minute=0, second=0, microsecond=0)
    booker = Booker(serving, token, first)
    booker.start()
    try:
        until(lambda: len(booker.booked) > 2)
        yield booker
        assert booker.odd == []
        before = len(booker.booked)
        until(lambda: len(booker.booked) > before + 2)
    finally:
        booker.over.set()
        booker.join(PATIENCE)
    assert booker.odd == []
    for portal in serving:
        assert portal.ask("GET", "/healthz")[2] == b"ok\n"
        until(portal.is_ready)
        until(partial(all_loops_go, portal))
    leader_of(serving)
    confirmed = [booking.id for booking in booked.ledger.find(Query(states=frozenset({BookingState.CONFIRMED})), 1000)]
    assert sorted(confirmed) == sorted(booker.booked.values())


def all_loops_go(portal: Portal) -> bool:
    return loops_that_fail(portal) == []


def has_refused(booker: Booker, times: int) -> bool:
    return booker.refused >= times


def loops_that_fail(portal: Portal) -> list[str]:
    text = portal.ask("GET", "/metrics")[2].decode()
    lines = [line for line in text.splitlines() if line.startswith("gpuyard_loop_failures{")]
    assert lines
    return [line for line in lines if not line.endswith(" 0.0")]


def test_restarts_of_the_database_are_survived(lab: RunningLab, opened: Open, tmp_path: Path, postgres: Server) -> None:
    url = postgres.database()
    booked = opened(RULES, database=url)
    with portals(2, tmp_path, lab.status.clouds_file, url) as serving:
        leader_of(serving)
        with booking_all_the_time(booked, lab, serving) as booker:
            for how in (signal.SIGINT, signal.SIGQUIT):  # a fast one, an immediate one
                before = booker.refused
                postgres.end(how)
                until(partial(has_refused, booker, before + 2))
                for portal in serving:
                    assert portal.ask("GET", "/healthz")[0] == 200
                    status, _, text = portal.ask("GET", "/v1/status")
                    assert (status, json.loads(text)["known"]) == (200, False)
                postgres.start()
                leader_of(serving)
    assert "Traceback" not in said(serving)


def test_a_standby_takes_over_from_a_database_that_is_killed(lab: RunningLab, opened: Open, tmp_path: Path) -> None:
    """With synchronous replication, so that what was confirmed is on the standby."""
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    with server(folders[0], durable=True) as primary, standby(folders[1], primary) as other:
        with psycopg.connect(primary.dsn("postgres"), autocommit=True) as connection:
            connection.execute("alter system set synchronous_standby_names = '*'")
            connection.execute("select pg_reload_conf()")
        url = f"{primary.database()},{other.socket}&target_session_attrs=read-write"
        booked = opened(RULES, database=url)
        with portals(2, tmp_path, lab.status.clouds_file, url) as serving:
            leader_of(serving)
            with booking_all_the_time(booked, lab, serving) as booker:
                primary.end(signal.SIGKILL)
                until(lambda: booker.refused > 1)
                other.promote()
    assert "Traceback" not in said(serving)
