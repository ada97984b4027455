"""What only a SQLite file can do wrong, and the errors of a store that cannot be opened."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store, StoreError
from gpuyard.database import engine
from gpuyard.database.engine import Database
from gpuyard.runners.store import RunnerStore
from tests.contract.store import SLOTS, at, booking, prepare, taken, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "state" / "ledger.db"


@pytest.fixture
def store(path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{path}")
    yield prepare(opened)
    opened.close()


def test_files_are_for_their_owner_only(store: Store, path: Path) -> None:
    write(store, booking())
    assert {file.name: oct(file.stat().st_mode & 0o777) for file in path.parent.iterdir()} == dict.fromkeys(
        ("ledger.db", "ledger.db-wal", "ledger.db-shm", "ledger.db.lock"), "0o600"
    )
    assert path.parent.stat().st_mode & 0o777 == 0o700


def test_a_file_that_others_could_read_is_closed_to_them(path: Path) -> None:
    path.parent.mkdir()
    path.touch(0o644)
    Store.open(f"sqlite:///{path}").close()
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_commit_is_on_the_disk_when_it_returns(path: Path) -> None:
    database = Database(f"sqlite:///{path}")
    with database.writing() as connection:
        settings = [
            connection.exec_driver_sql(f"pragma {name}").scalar()
            for name in ("journal_mode", "synchronous", "foreign_keys")
        ]
    database.close()
    assert settings == ["wal", 2, 1], "2 is FULL"


def test_a_booking_survives_the_end_of_its_process(path: Path) -> None:
    code = f"""
import os
from gpuyard.bookings.store import Store
from tests.contract.store import booking, prepare, write
store = prepare(Store.open("sqlite:///{path}"))
write(store, booking(id="sure"))
with store.change("t4") as change:
    change.write(booking((2,), id="half"))
    os._exit(9)
"""
    assert subprocess.run([sys.executable, "-c", code]).returncode == 9
    store = Store.open(f"sqlite:///{path}")
    assert [stored.id for stored in store.find(Query())] == ["sure"]
    assert len(taken(store)) == 1
    store.close()


def test_the_database_itself_refuses_an_overlap(store: Store, path: Path) -> None:
    """Also to somebody who does not ask us."""
    first, other = write(store, booking((1,), 0, 2), booking((2,), 0, 2))
    before = taken(store)
    with closing(sqlite3.connect(path)) as connection:
        for change in ("lane = 1, starts = starts + 60", "lane = 1", "lane = 1, ends = ends + 60"):
            with pytest.raises(sqlite3.IntegrityError, match="a lane is taken twice"):
                connection.execute(f"update occupancy set {change} where lane = 2")  # noqa: S608
        connection.execute("update occupancy set ends = ends + 60 where lane = 2")
        connection.rollback()
    assert taken(store) == before
    assert {row.booking for row in before} == {first.id, other.id}


def test_a_look_sees_one_moment(store: Store) -> None:
    with store.look("t4") as look:
        assert list(look.occupancy(at(0))) == []
        write(store, booking())
        assert list(look.occupancy(at(0))) == []
    assert len(taken(store)) == 1


def test_somebody_who_keeps_the_database_for_too_long(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "PATIENCE", 0.2)
    store = prepare(Store.open(f"sqlite:///{path}"))
    with closing(sqlite3.connect(path)) as other:
        other.execute("begin immediate")
        with pytest.raises(StoreError, match=r"kept the database .*ledger.db for 0.2 s; try again"):
            write(store, booking())
        assert len(store.lanes()) == 4, "who only reads waits for nobody"
    with store.change("t4"), pytest.raises(StoreError, match="try again"):
        store.set_troubles({1: "a change within a change waits for itself"})
    store.close()


def test_several_may_start_at_once(path: Path) -> None:
    code = f"from gpuyard.bookings.store import Store; Store.open('sqlite:///{path}').sync_lanes({SLOTS!r})"
    running = [subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.PIPE) for _ in range(4)]
    assert [(process.communicate()[1], process.returncode) for process in running] == [(b"", 0)] * 4
    store = Store.open(f"sqlite:///{path}")
    assert len(store.lanes()) == 4
    store.close()


def test_threads_write_one_after_the_other(store: Store) -> None:
    errors: list[Exception] = []

    def work(lane: int, number: int) -> None:
        try:
            write(store, booking((lane,), number, number + 1))
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(1 + n % 3, n)) for n in range(24)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    with store.look("t4") as look:
        assert (look.generation, len(look.changes_since(1) or ())) == (25, 24)


def test_a_file_that_is_no_database(path: Path) -> None:
    path.parent.mkdir()
    path.write_text("hello " * 1000)
    with pytest.raises(StoreError, match=r"ledger.db cannot be used: file is not a database"):
        Store.open(f"sqlite:///{path}")


def test_a_path_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match="cannot be opened for writing"):
        Store.open(f"sqlite:///{tmp_path}/file/ledger.db")
    with pytest.raises(StoreError, match="cannot be opened for writing: Is a directory"):
        Store.open(f"sqlite:///{tmp_path}")


@pytest.mark.parametrize(
    "url, text",
    [
        ("", "cannot be read; write sqlite:"),
        ("hello", "cannot be read; write sqlite:"),
        ("sqlite://", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("mysql+pymysql://u:s3cret@h/d", "databases of kind 'mysql"),
        ("postgresql+psycopg2://u:s3cret@h/d", "databases of kind 'postgresql"),
        ("postgresql+psycopg://u:s3cret@h:port/d", "cannot be read; write"),
    ],
)
def test_urls_that_are_none(url: str, text: str) -> None:
    with pytest.raises(StoreError, match=text) as caught:
        Store.open(url)
    assert "s3cret" not in str(caught.value)


def test_a_postgresql_url_needs_no_driver() -> None:
    url = engine.parse_url("postgresql://u:s3cret@h/d?sslmode=require&password=s3cret")
    assert url.drivername == "postgresql+psycopg"
    assert engine.shown(url) == "postgresql+psycopg://u:***@h/d"


def test_a_database_that_is_full(store: Store, path: Path) -> None:
    write(store, booking())
    with store._database.engine.connect() as connection:
        connection.exec_driver_sql("pragma max_page_count = 1")

    def fill() -> None:
        for number in range(2000):
            write(store, booking((2,), number, number + 1, reason="x" * 4000))

    with pytest.raises(StoreError, match="full"):
        fill()
    assert len(taken(store)) >= 1


def test_another_process_that_comes_and_goes_takes_nothing_away(tmp_path: Path) -> None:
    """SQLite deletes the log when the last one goes: our locks must say that we are still here, however often the
    database was opened in this process."""
    with closing(Store.open(f"sqlite:///{tmp_path}/yard.db")) as store:
        store.lanes()
        runners = RunnerStore(store.database)
        for value in ("before", "after"):
            runners.set_value("it", value)
            look = "import sqlite3, sys; c = sqlite3.connect(sys.argv[1]); "
            look += "print(c.execute('select value from runner_values').fetchall()); c.close()"
            completed = subprocess.run(
                [sys.executable, "-c", look, f"{tmp_path}/yard.db"], check=True, capture_output=True, text=True
            )
            assert value in completed.stdout
