"""On PostgreSQL a turn is the session's: when that ends, the turn is over, and whoever had it is not taken for the one
that has it. The session ends with the process, and when the process says nothing any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import make_url

from gpuyard.bookings.store import Store
from gpuyard.database import engine
from gpuyard.database import leader_election as turns
from gpuyard.database.engine import Database
from gpuyard.database.errors import StoreError
from gpuyard.database.leader_election import LeaderElection
from tests.support.postgres import Server, server
from tests.unit.server.test_portal_server import until

PATIENCE = 60.0
HOLDER = """
import sys
from gpuyard.database import leader_election
from gpuyard.database.engine import Database
leader_election.BEAT = 0.4
turns = leader_election.LeaderElection(Database(sys.argv[1]), silence=2)
assert turns.try_to_lead("bookings")
print("taken", flush=True)
sys.stdin.readline()
print(turns.is_leader("bookings"), flush=True)
"""


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@contextmanager
def holder(url: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that has the turn, and says whether it still has it when it is asked."""
    command = [sys.executable, "-c", HOLDER, url]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout
            assert process.stdout.readline() == "taken\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP], ids=lambda how: how.name)
def test_a_process_that_is_killed_or_stopped_has_its_turn_no_longer(
    postgres: Server, how: signal.Signals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(turns, "BEAT", 0.4)
    url, free = postgres.database(), threading.Event()
    with closing(Store.open(url)) as store, holder(url) as process:
        store.on_free("bookings", free.set)
        assert not store.try_to_lead("bookings")
        assert not free.wait(3), "it speaks although nobody asks it anything"
        os.kill(process.pid, how)
        assert free.wait(PATIENCE)
        assert store.try_to_lead("bookings")
        if how is signal.SIGSTOP:
            os.kill(process.pid, signal.SIGCONT)
            assert process.communicate("\n")[0] == "False\n", "it does not believe that it has it"
        assert store.is_leader("bookings")
        assert store.led_roles() == ["bookings"]


def test_a_turn_that_is_to_last_outlives_silence(postgres: Server) -> None:
    database = Database(postgres.database())
    with closing(database), pytest.MonkeyPatch.context() as patch:
        patch.setattr(turns, "BEAT", PATIENCE)
        quiet, short = LeaderElection(database, silence=0), LeaderElection(database, silence=1)
        try:
            assert quiet.try_to_lead("quiet")
            assert short.try_to_lead("short")
            threading.Event().wait(2)
            assert (quiet.is_leader("quiet"), short.is_leader("short")) == (True, False)
        finally:
            quiet.resign()
            short.resign()


def test_those_who_read_much_cost_nobody_the_turn(postgres: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "BEAT", 0.3)
    database = Database(postgres.database())
    with closing(database), ExitStack() as busy:
        leader, other = LeaderElection(database, silence=2), LeaderElection(database)
        try:
            assert other.try_to_lead("runners")
            for _ in range(engine.CONNECTIONS):
                busy.enter_context(database.engine.connect())
            assert leader.try_to_lead("bookings")
            assert not leader.try_to_lead("runners"), "it asks for this one all the time"
            threading.Event().wait(4)
            assert leader.is_leader("bookings")
        finally:
            leader.resign()
            other.resign()


def test_the_turn_is_taken_again_soon_after_the_server_was_away(tmp_path: Path) -> None:
    free = threading.Event()
    with server(tmp_path) as running, closing(Store.open(running.database())) as store:
        store.on_free("bookings", free.set)
        assert store.try_to_lead("bookings")
        running.end(signal.SIGQUIT)
        until(lambda: not store.led_roles())
        with pytest.raises(StoreError, match="cannot be used"):
            store.try_to_lead("bookings")
        assert not free.is_set()
        running.start()
        assert free.wait(PATIENCE)
        assert store.try_to_lead("bookings")


def test_who_rests_in_a_transaction_keeps_nobody_from_a_pool_for_long(
    postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(engine, "REST", 1)
    url = postgres.database()
    with closing(Store.open(url)) as store, closing(Store.open(url)) as other:
        store.sync_lanes([("t4", "host", ("0000:01:00.0",))])
        with pytest.raises(StoreError, match=r"gave up: .* try again"), store.change("t4"):
            other.sync_lanes([("t4", "host", ("0000:02:00.0",))])  # it waits until the first one's was ended
        assert [lane.addresses for lane in other.lanes() if not lane.trouble] == [("0000:02:00.0",)]


def test_who_has_lost_its_session_has_lost_its_turn_even_if_nobody_else_wants_it(postgres: Server) -> None:
    url = postgres.database()
    dsn = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
    with closing(Store.open(url)) as store, closing(Store.open(url)) as other:
        assert store.try_to_lead("bookings")
        assert store.is_leader("bookings")
        with psycopg.connect(dsn, autocommit=True) as admin:
            admin.execute(
                "select pg_terminate_backend(pid) from pg_locks where locktype = 'advisory' "
                "and database = (select oid from pg_database where datname = current_database())"
            )
        assert not store.is_leader("bookings"), "another one may have had it meanwhile"
        assert not store.is_leader("bookings")
        assert other.try_to_lead("bookings")
        assert (other.is_leader("bookings"), store.try_to_lead("bookings")) == (True, False)
