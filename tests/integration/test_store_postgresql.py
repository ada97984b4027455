"""The ledger's store on PostgreSQL: the same rules as on SQLite, and what only a server can do wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psycopg
import pytest
from sqlalchemy import URL, make_url

from gpuyard.ledger.store import Store, StoreError, engine
from tests.contract.store import RULES, at, booking, prepare, taken, write
from tests.contract.store_migrations import LATER, SAMPLES, a_database_of_any_step_is_brought_up_to_date
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


@pytest.mark.parametrize("revision", SAMPLES)
def test_a_database_of_any_step_is_brought_up_to_date(url: str, revision: str) -> None:
    a_database_of_any_step_is_brought_up_to_date(url, revision)


def test_the_database_itself_refuses_an_overlap(store: Store, url: str) -> None:
    """Also to somebody who does not ask us."""
    first, other = write(store, booking((1,), 0, 2), booking((2,), 0, 2))
    with psycopg.connect(dsn(url)) as connection:
        with pytest.raises(psycopg.errors.ExclusionViolation):
            connection.execute("update occupancy set lane = 1, starts = starts + 60 where lane = 2")
        connection.rollback()
        with pytest.raises(psycopg.errors.ForeignKeyViolation):
            connection.execute("update occupancy set pool = 'v100'")
    assert {(one.booking, one.lane) for one in taken(store)} == {(first.id, 1), (other.id, 2)}


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
