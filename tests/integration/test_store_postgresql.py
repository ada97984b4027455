"""The ledger's store on PostgreSQL: the same rules as on SQLite, and what only a server can do wrong."""

from __future__ import annotations

import os
import select
import socket
import socketserver
import threading
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import psycopg
import pytest
from sqlalchemy import URL, Connection, Table, make_url, text

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store, StoreError
from gpuyard.database import backup, engine, migrate
from gpuyard.database.engine import Database
from gpuyard.health.store import HealthStore
from gpuyard.runners.store import RunnerStore
from gpuyard.usage.store import HistoryStore
from gpuyard.web.store import PortalStore
from tests.contract import backups
from tests.contract.health_store import RULES as HEALTH_RULES
from tests.contract.history_store import RULES as HISTORY_RULES
from tests.contract.portal_store import RULES as PORTAL_RULES
from tests.contract.runner_store import RULES as RUNNER_RULES
from tests.contract.store import RULES, at, booking, prepare, taken, write
from tests.contract.store_migrations import (
    LATER,
    SAMPLES,
    a_database_of_any_step_is_brought_up_to_date,
)
from tests.contract.store_migrations import RULES as MIGRATIONS
from tests.support.postgres import Server, server


@pytest.fixture(scope="module")
def postgres(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with server(tmp_path_factory.mktemp("postgres")) as running:
        yield running


@pytest.fixture
def url(postgres: Server) -> str:
    return postgres.database()


@pytest.fixture
def store(url: str) -> Iterator[Store]:
    opened = Store.open(url)
    yield prepare(opened)
    opened.close()


def dsn(url: str) -> str:
    """For psycopg itself."""
    return make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(store: Store, rule: Callable[[Store], None]) -> None:
    rule(store)


@pytest.mark.parametrize("rule", MIGRATIONS, ids=lambda rule: rule.__name__)
def test_migration(url: str, rule: Callable[[str], None]) -> None:
    rule(url)


@pytest.mark.parametrize("rule", LATER, ids=lambda rule: rule.__name__)
def test_later_release(url: str, tmp_path: Path, rule: Callable[[str, Path], None]) -> None:
    rule(url, tmp_path)


@pytest.mark.parametrize("room, revision", SAMPLES)
def test_a_database_of_any_step_is_brought_up_to_date(url: str, room: str, revision: str) -> None:
    a_database_of_any_step_is_brought_up_to_date(url, room, revision)


@pytest.mark.parametrize("rule", backups.RULES, ids=lambda rule: rule.__name__)
def test_backup(postgres: Server, url: str, tmp_path: Path, rule: Callable[[str, backups.New, Path], None]) -> None:
    rule(url, postgres.database, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("room, revision", SAMPLES)
def test_a_backup_of_any_step_is_restored_in_the_other_database(
    postgres: Server, url: str, tmp_path: Path, room: str, revision: str
) -> None:
    for number, (origin, target) in enumerate(
        ((url, f"sqlite:///{tmp_path}/to.db"), (f"sqlite:///{tmp_path}/from.db", postgres.database()))
    ):
        folder = tmp_path / str(number)
        folder.mkdir()
        backups.one_of_any_step_is_restored(origin, lambda target=target: target, folder, room, revision)  # type: ignore[misc]


def test_a_restore_that_fails_in_the_middle_leaves_what_was(
    url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with closing(prepare(Store.open(url))) as store:
        file = backups.backed_up(url, tmp_path)
        write(store, booking((2,), 30, 32, id="new"))
    count = backup._go_on_counting

    def fails(source: Connection, target: Connection, table: Table) -> None:
        count(source, target, table)
        if target.dialect.name == "postgresql" and table.name == "occupancy":
            raise StoreError("the disk is full")

    monkeypatch.setattr(backup, "_go_on_counting", fails)
    with pytest.raises(StoreError, match="the disk is full"):
        backups.restored(url, file)
    with closing(Store.open(url)) as store:
        assert [stored.id for stored in store.find(Query())] == ["new"]


@pytest.mark.parametrize("rule", PORTAL_RULES, ids=lambda rule: rule.__name__)
def test_rule_of_the_portal(url: str, rule: Callable[[PortalStore], None]) -> None:
    with closing(Database(url)) as database:
        rule(PortalStore(database))


@pytest.mark.parametrize("rule", RUNNER_RULES, ids=lambda rule: rule.__name__)
def test_rule_of_runners(url: str, rule: Callable[[RunnerStore], None]) -> None:
    with closing(Database(url)) as database:
        rule(RunnerStore(database))


@pytest.mark.parametrize("rule", HEALTH_RULES, ids=lambda rule: rule.__name__)
def test_rule_of_health(url: str, rule: Callable[[HealthStore], None]) -> None:
    with closing(Database(url)) as database:
        rule(HealthStore(database))


@pytest.mark.parametrize("rule", HISTORY_RULES, ids=lambda rule: rule.__name__)
def test_rule_of_history(url: str, rule: Callable[[HistoryStore], None]) -> None:
    with closing(Database(url)) as database:
        rule(HistoryStore(database))


def test_the_database_itself_refuses_an_overlap(store: Store, url: str) -> None:
    """Also to somebody who does not ask us."""
    first, other = write(store, booking((1,), 0, 2), booking((2,), 0, 2))
    with psycopg.connect(dsn(url)) as connection:
        with pytest.raises(psycopg.errors.ExclusionViolation):
            connection.execute("update occupancy set lane = 1, starts = starts + 60 where lane = 2")
        connection.rollback()
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("update occupancy set pool = 'v100'")
    assert {(occupancy.booking, occupancy.lane) for occupancy in taken(store)} == {(first.id, 1), (other.id, 2)}


def test_pools_do_not_wait_for_each_other(store: Store) -> None:
    with store.change("t4") as change:
        change.write(booking())
        ask = replace(booking().ask, pool="v100")
        write(store, replace(booking((4,)), ask=ask), pool="v100")
        assert len(taken(store, "v100")) == 1
        assert taken(store) == set(), "nobody sees what is not committed"
    assert len(taken(store)) == 1


def test_somebody_who_keeps_a_pool_for_too_long(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 1)
    store = prepare(Store.open(url))
    try:
        with store.change("t4"), pytest.raises(StoreError, match=r"kept the database .* try again"), store.change("t4"):
            pass
    finally:
        store.close()


def test_a_look_sees_one_moment(store: Store) -> None:
    with store.look("t4") as look:
        assert list(look.occupancy(at(0))) == []
        write(store, booking())
        assert list(look.occupancy(at(0))) == []
    assert len(taken(store)) == 1


def test_a_server_that_was_restarted_is_connected_to_again(store: Store, url: str) -> None:
    write(store, booking())
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute(
            "select pg_terminate_backend(pid) from pg_stat_activity where application_name = 'gpuyard' "
            "and datname = current_database()"
        )
    assert len(taken(store)) == 1


def test_a_server_that_is_not_there(tmp_path: Path) -> None:
    for host in (str(tmp_path), "127.0.0.1"):
        url = URL.create("postgresql+psycopg", "gpuyard", "s3cret", None, None, "gpuyard", {"host": host, "port": "9"})
        with pytest.raises(StoreError, match="cannot be used") as caught:
            Store.open(url.render_as_string(hide_password=False))
        assert "s3cret" not in str(caught.value)


@contextmanager
def over_tcp(url: str) -> Iterator[str]:
    """The URL of the same database through a port of this machine: the server itself listens on a socket file."""
    parsed = make_url(url)
    folder = str(parsed.query["host"])

    class Pipe(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            with socket.socket(socket.AF_UNIX) as server:
                server.connect(f"{folder}/.s.PGSQL.5432")
                ends = {self.request: server, server: self.request}
                while True:
                    for end in select.select(list(ends), [], [])[0]:
                        data = end.recv(65536)
                        if not data:
                            return
                        ends[end].sendall(data)

    class Proxy(socketserver.ThreadingTCPServer):
        daemon_threads = True

    with Proxy(("127.0.0.1", 0), Pipe) as proxy:
        thread = threading.Thread(target=proxy.serve_forever)
        thread.start()
        try:
            query = {"host": "127.0.0.1", "port": str(proxy.server_address[1])}
            yield parsed.set(query=query).render_as_string(hide_password=False)
        finally:
            proxy.shutdown()
            thread.join()


def test_a_server_that_is_gone_without_a_word_is_noticed(url: str) -> None:
    """What the kernel is told of the connections: it is what notices."""
    with over_tcp(url) as address:
        for given, idle in (("", 10), ("&keepalives_idle=33", 33)):
            opened = engine.open_engine(make_url(f"{address}{given}"))
            try:
                with opened.connect() as connection:
                    driver = connection.connection.driver_connection
                    assert driver is not None
                    with socket.socket(fileno=os.dup(driver.fileno())) as line:
                        assert line.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
                        options = (socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT)
                        values = [line.getsockopt(socket.IPPROTO_TCP, option) for option in options]
                        assert values == [idle, 5, 3]
                        assert line.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 20_000
            finally:
                opened.dispose()


def test_a_statement_that_takes_too_long_is_given_up(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STATEMENT", 1)
    store = prepare(Store.open(url))
    try:
        with (
            pytest.raises(StoreError, match=r"gave up: .*statement timeout; try again"),
            store._database.reading() as connection,
        ):
            connection.execute(text("select pg_sleep(10)"))
        assert len(store.lanes()) == 4
    finally:
        store.close()


def test_a_migration_takes_the_time_it_takes(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "STATEMENT", 1)
    Store.open(url).close()
    before = migrate.run_steps

    def slow(connection: Connection, *more: Any) -> None:
        connection.execute(text("select pg_sleep(1.5)"))
        before(connection, *more)

    monkeypatch.setattr(migrate, "run_steps", slow)
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        connection.execute("drop schema public cascade")
        connection.execute("create schema public")
    prepare(Store.open(url)).close()


def test_an_unknown_user_and_database(url: str) -> None:
    with pytest.raises(StoreError) as caught:
        Store.open(url.replace("postgres@", "nobody:s3cret@"))
    assert "s3cret" not in str(caught.value)
    with pytest.raises(StoreError, match="does not exist"):
        Store.open(make_url(url).set(database="none").render_as_string(hide_password=False))


def test_a_server_that_is_read_only(url: str) -> None:
    Store.open(url).close()
    with psycopg.connect(dsn(url), autocommit=True) as connection:
        name = make_url(url).database
        connection.execute(f'alter database "{name}" set default_transaction_read_only = on')
    store = Store.open(url)
    try:
        with pytest.raises(StoreError, match="is read-only; let gpuyard's user write"):
            prepare(store)
    finally:
        store.close()


def test_several_processes_may_start_at_once(url: str) -> None:
    """Threads here: the lock is one of connections."""
    errors: list[BaseException] = []

    def start() -> None:
        try:
            prepare(Store.open(url)).close()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    store = Store.open(url)
    assert len(store.lanes()) == 4
    store.close()
