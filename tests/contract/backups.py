"""What backups are, whichever database they are of and go to.

Each function is one rule. `url` is an empty database, and `new` gives more of them, which may be of another kind. They
run on SQLite (tests/unit/database/test_backups.py), on PostgreSQL and on the ways between
(tests/integration/test_store_postgresql.py).
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest
from sqlalchemy import text

from gpuyard import installed_version
from gpuyard.bookings.records import AuditEntry, Query
from gpuyard.bookings.store import Store
from gpuyard.database.engine import Database, parse_url
from gpuyard.database.errors import StoreError
from gpuyard.database.migrate import migrate, steps_of
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.model.booking import BookingState
from gpuyard.model.errors import BlockedError
from gpuyard.server import database_upkeep as databases
from gpuyard.server.schema_modules import SCHEMA_MODULES as ALL_ROOMS
from tests.contract.store import at, booking, later, prepare, taken, write
from tests.contract.store_migrations import (
    SCHEMA_MODULES,
    connected,
    fill,
    make_e126ab2,
    open_all,
    the_sample_is_there,
    the_tables_are_those_of_the_code,
    what_e126ab2_had_is_there,
)

New = Callable[[], str]
NOW = at(24)


def backed_up(url: str, folder: Path) -> Path:
    return databases.make_backup(url, "site", folder, NOW)


def restored(url: str, file: Path, now_after: timedelta = timedelta(0)) -> list[str]:
    """What was said before."""
    now = NOW + now_after
    with databases.prepared(url, file, now) as plan:
        messages = list(plan.words(now))
        databases.restore(plan, now)
    return messages


def one_of_any_step_is_restored(url: str, new: New, folder: Path, room: str, revision: str) -> None:
    migrate(parse_url(url), SCHEMA_MODULES[room], revision)
    fill(url, room, revision)
    target = new()
    messages = restored(target, backed_up(url, folder))
    assert messages[1:] == ["nothing that is there now would be lost"]
    the_sample_is_there(target, room, revision)
    the_tables_are_those_of_the_code(target)
    assert databases.checked(target) == ([], [])


def one_of_e126ab2_is_restored(url: str, new: New, folder: Path) -> None:
    make_e126ab2(url)
    target = new()
    restored(target, backed_up(url, folder))
    what_e126ab2_had_is_there(target)
    the_tables_are_those_of_the_code(target)


def numbers_are_not_given_twice(url: str, new: New, folder: Path) -> None:
    with closing(Store.open(url)) as store:
        for number in range(3):
            store.write_audit(AuditEntry(at(number), "ada", "booking.create", "b"))
    connected(url, lambda connection: connection.execute(text("delete from audit where id > 1")))
    target = new()
    restored(target, backed_up(url, folder))
    with closing(Store.open(target)) as store:
        store.write_audit(AuditEntry(at(4), "ada", "booking.create", "b"))
        assert [entry.id for entry in store.audit()] == [4, 1]


def it_is_all_of_one_moment(url: str, new: New, folder: Path) -> None:
    """Bookings are made all the time; each is a row and its lane's, in one transaction."""
    with closing(prepare(Store.open(url))) as store:
        ends, first = threading.Event(), threading.Event()

        def work() -> None:
            hour = 0
            while not ends.is_set():
                write(store, booking((1,), hour, hour + 1))
                hour += 1
                if hour > 20:
                    first.set()

        thread = threading.Thread(target=work)
        thread.start()
        try:
            assert first.wait(30)
            file = backed_up(url, folder)
        finally:
            ends.set()
            thread.join()
        made = len(taken(store))
    target = new()
    restored(target, file)
    with closing(Store.open(target)) as store:
        count = len(store.find(Query(), limit=10_000))
        assert len(taken(store)) == count
        assert 20 < count <= made
    assert databases.checked(target) == ([], [])


SAID = """\
{file} is a backup of 2026-11-22 12:00 UTC, by gpuyard {release}
1 booking made since will be unknown; their servers are then servers without a booking: new of ada, 1 GPU of t4 \
from 2026-11-22 18:00 to 2026-11-22 20:00
1 booking made since that are over will be unknown, also to reports: past of ada, 1 GPU of t4 from 2026-11-21 13:00 \
to 2026-11-21 14:00
1 booking changed since will be as before: kept of ada confirmed again (now cancelled)
1 GPU kept back since will be given out again; quarantine those that are bad: gpu-1/0000:01:00.0 \
quarantined: it fell off
"""


def what_was_done_since_is_said(url: str, new: New, folder: Path) -> None:
    with closing(prepare(Store.open(url))) as store:
        health = HealthStore(store.database)
        (kept_one,) = write(store, booking((1,), 30, 31, id="kept"))
        open_all(url)
        file = backed_up(url, folder)
        write(store, booking((2,), 30, 32, id="new"), booking((3,), 1, 2, id="past"))
        write(store, later(kept_one, state=BookingState.CANCELLED, lanes=()))
        bad = GpuHealth("gpu-1", "0000:01:00.0", "t4", HealthState.QUARANTINED, at(1), "it fell off")
        assert health.put(bad)
    messages = restored(url, file)
    assert messages == SAID.format(file=file, release=installed_version()).splitlines()
    with closing(Store.open(url)) as store:
        assert [stored.id for stored in store.find(Query())] == ["kept"]
        assert HealthStore(store.database).gpus() == []


def what_was_there_is_kept_and_comes_back(url: str, new: New, folder: Path) -> None:
    with closing(prepare(Store.open(url))):
        file = backed_up(url, folder)
    with closing(Store.open(url)) as store:
        write(store, booking((2,), 30, 32, id="new"))
    restored(url, file)
    (aside,) = folder.glob("*.replaced-*")
    assert aside.stat().st_mode & 0o777 == 0o600
    restored(url, aside, timedelta(minutes=1))
    with closing(Store.open(url)) as store:
        assert [stored.id for stored in store.find(Query())] == ["new"]


def it_is_refused_while_a_portal_keeps_the_database(url: str, new: New, folder: Path) -> None:
    with closing(prepare(Store.open(url))) as store:
        file = backed_up(url, folder)
        write(store, booking((2,), 30, 32, id="new"))
        assert store.try_to_lead("bookings")
        with pytest.raises(BlockedError, match=r"a portal keeps .*: stop it first"):
            restored(url, file)
        assert [stored.id for stored in store.find(Query())] == ["new"]


def it_is_refused_while_a_portal_waits_for_its_turn(url: str, new: New, folder: Path) -> None:
    """It keeps nothing yet, and people make bookings with it."""
    with closing(prepare(Store.open(url))) as store:
        file = backed_up(url, folder)
        write(store, booking((2,), 30, 32, id="new"))
        with pytest.raises(BlockedError, match=r"has .* open; stop it first"):
            restored(url, file)
        assert [stored.id for stored in store.find(Query())] == ["new"]
    restored(url, file, timedelta(minutes=1))


def one_of_a_newer_release_is_refused(url: str, new: New, folder: Path) -> None:
    open_all(url)
    connected(url, lambda connection: connection.execute(text("update health_version set version_num = '9999'")))
    broken, _ = databases.checked(url)
    newest = next(
        steps_of(schema_module).get_current_head() for schema_module in ALL_ROOMS if schema_module.name == "health"
    )
    (line,) = broken
    assert line.startswith(f"health: made by a newer gpuyard (9999; this one knows {newest}): install that release")
    with closing(Database(url)) as database:
        if not database.sqlite:
            with pytest.raises(StoreError, match="made by a newer gpuyard"):
                backed_up(url, folder)
            return
    file = backed_up(url, folder)  # of a file every release can make a copy
    with pytest.raises(StoreError, match="made by a newer gpuyard"):
        restored(new(), file)


def rows_without_the_rows_that_they_refer_to_are_found(url: str, new: New, folder: Path) -> None:
    open_all(url)
    fill(url, "history", "0003")
    connected(url, lambda connection: connection.execute(text("delete from history_tenures")))
    broken, due = databases.checked(url)
    assert broken == [
        "history_intervals: 1 rows refer by tenure to history_tenures that are not there (1)",
    ]
    assert due == []


def tables_of_an_older_release_are_seen_and_brought_up_to_date(url: str, new: New, folder: Path) -> None:
    migrate(parse_url(url), SCHEMA_MODULES["ledger"], "0004")
    assert databases.checked(url)[1][0] == "ledger: at 0004, this release has 0005"
    with pytest.raises(BlockedError, match=r"the tables of 1 room \(ledger\) are of an older release"):
        databases.refuse_old_tables(url)
    messages: list[str] = []
    databases.upgrade(url, messages.append)
    assert messages[0] == "ledger: 0004 -> 0005"
    assert len(messages) == len(ALL_ROOMS)
    databases.refuse_old_tables(url)
    databases.upgrade(url, messages.append)
    assert messages[-1] == "nothing to do: the tables are those of this release"
    the_tables_are_those_of_the_code(url)


RULES = (
    one_of_e126ab2_is_restored,
    numbers_are_not_given_twice,
    it_is_all_of_one_moment,
    what_was_done_since_is_said,
    what_was_there_is_kept_and_comes_back,
    it_is_refused_while_a_portal_keeps_the_database,
    it_is_refused_while_a_portal_waits_for_its_turn,
    one_of_a_newer_release_is_refused,
    rows_without_the_rows_that_they_refer_to_are_found,
    tables_of_an_older_release_are_seen_and_brought_up_to_date,
)
