"""How the tables of each room come to be, whichever database they are in.

Each function is one rule and gets the URL of a database that is empty. They run on SQLite (tests/unit/
test_store_migrations.py) and on PostgreSQL (tests/integration/test_store_postgresql.py).
"""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from datetime import date, timedelta
from pathlib import Path
from typing import Any, TypeVar

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, MetaData, Table, inspect, select, text

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import OverlapError, Store, StoreError
from gpuyard.bookings.store import schema as ledger_schema
from gpuyard.bookings.store import store as ledger_store
from gpuyard.database.engine import Database, parse_url
from gpuyard.database.migrate import migrate, steps_of
from gpuyard.database.schema_modules import SchemaModule
from gpuyard.health.records import HealthState
from gpuyard.health.store import HealthStore
from gpuyard.health.store import schema as health_schema
from gpuyard.health.store.maintenances import MaintenanceStore
from gpuyard.runners.records import JobState, RunnerState, ServerSpec
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.store import schema as runners_schema
from gpuyard.usage.records import Interval, Slice, Tenure, TrackState
from gpuyard.usage.store import HistoryStore, SumStore
from gpuyard.usage.store import schema as history_schema
from gpuyard.web.store import PortalStore
from gpuyard.web.store import schema as portal_schema
from tests.contract.store import at, booking, prepare, taken, write

SCHEMAS = (ledger_schema, portal_schema, runners_schema, health_schema, history_schema)
SCHEMA_MODULES = {schema.SCHEMA_MODULE.name: schema.SCHEMA_MODULE for schema in SCHEMAS}
DUMPS = Path(__file__).parents[1] / "support"

SAMPLES: dict[tuple[str, str], str] = {
    ("ledger", "0004"): """
        insert into pools values ('t4', 1, 1, 0, 1);
        insert into lanes values (1, 't4', 'gpu-1', '0000:01:00.0', '0000:01:00.0', '', false, null);
        insert into bookings values ('old', 't4', 'runner', 'active', START, END, 1, false, false, '', '',
            '', 'gpuyard', 'p', 'alpha', 1, 1, 1, '1', '', '', '', null, null, null, 0, false, 1, null, false,
            'gpuyard-t4-x1', true);
        insert into occupancy values (1, START, END, 't4', 'old')
    """,
    ("ledger", "0005"): """
        insert into pools values ('t4', 1, 1, 0, 1);
        insert into lanes values (1, 't4', 'gpu-1', '0000:01:00.0', '0000:01:00.0', '', false, null);
        insert into bookings values ('old', 't4', 'booking', 'active', START, END, 1, false, false, '', '',
            'u', 'ada', 'p', 'alpha', 1, 1, 1, '1', '', '', '', null, START, null, 0, false, 1, START, false,
            '', false, START);
        insert into occupancy values (1, START, END, 't4', 'old')
    """,
    ("portal", "0002"): """
        insert into sessions values ('a', 'u', 'ada', 'p', 'c', START, END, END);
        insert into feeds values ('f', 'user', 'u', 'u', START, END, null)
    """,
    ("portal", "0003"): """
        insert into sessions values ('a', 'u', 'ada', 'p', 'c', START, END, END);
        insert into feeds values ('f', 'user', 'u', 'u', START, END, null);
        insert into known_places values ('k', 'u', START)
    """,
    ("portal", "0004"): """
        insert into sessions values ('a', 'u', 'ada', 'p', 'c', START, END, END, 'sealed');
        insert into feeds values ('f', 'user', 'u', 'u', START, END, null);
        insert into known_places values ('k', 'u', START);
        insert into used_logins values ('d', END)
    """,
    ("runners", "0002"): """
        insert into jobs values ('github.com/1', 'a/b', '["gpu"]', 'running', START, 'a', '', 7, 1, 'ci', 'test',
            'push', 'ada', '', '', 'main', 'abc', '', WANTED, 'r1', '', '', 0, null, END, null, END);
        insert into runners values ('r1', 'busy', 'a', '', '["gpu"]', WANTED, CHOICE, 'gpu', 't4', 1, START, END,
            'a/b', 'github.com/1', 'github.com/1', '', 'l1', 's1', 5, START, START, END, null, null, '', '',
            '["h/0000:01:00.0"]');
        insert into runner_events (at, runner, job, text) values (START, 'r1', 'github.com/1', 'made');
        insert into runner_logs values ('r1', END, 'Listening for Jobs');
        insert into hook_deliveries values ('a', 'd1', 'workflow_job', START, BODY, 0, START, '', '');
        insert into scale_sets values ('a', 'gpu', 3, 12, 1, START, '');
        insert into runner_values values ('k', 'v');
        insert into repositories values ('a', 'a/b', true, START)
    """,
    ("runners", "0003"): """
        insert into jobs values ('github.com/1', 'a/b', '["gpu"]', 'running', START, 'a', '', 7, 1, 'ci', 'test',
            'push', 'ada', '', '', 'main', 'abc', '', WANTED, 'r1', '', '', 0, null, END, null, END);
        insert into runners values ('r1', 'busy', 'a', '', '["gpu"]', WANTED, CHOICE, 'gpu', 't4', 1, START, END,
            'a/b', 'github.com/1', 'github.com/1', '', 'l1', 's1', 5, START, START, END, null, null, '', '',
            '["h/0000:01:00.0"]');
        insert into runner_events (at, runner, job, text) values (START, 'r1', 'github.com/1', 'made');
        insert into runner_logs values ('r1', END, 'Listening for Jobs');
        insert into hook_deliveries values ('a', 'd1', 'workflow_job', START, BODY, 0, START, '', '');
        insert into scale_sets values ('a', 'gpu', 3, 12, 1, START, '', 4);
        insert into runner_values values ('k', 'v');
        insert into repositories values ('a', 'a/b', true, START)
    """,
    ("health", "0004"): """
        insert into gpu_health values ('h', '0000:01:00.0', 't4', 'quarantined', START, 'it fell off', 'no-answer', '',
            'serial', null, 0, false, '', null, START, '{"kernel": "6.1"}', '', 3);
        insert into health_events (host, address, card, at, before, after, cause, signal, evidence, by, source)
            values ('h', '0000:01:00.0', 'serial', START, 'fine', 'quarantined', 'it fell off', 'no-answer', 'ffffffff',
            '', 'host');
        insert into health_observations (host, address, code, seen, evidence, by)
            values ('h', '0000:01:00.0', 'reported', END, 'no picture', 'ada');
        insert into health_tokens values ('d', 'watch', 'h', START, null, null);
        insert into health_hosts values ('h', END, '{}');
        insert into health_values values ('k', 'v');
        insert into health_guests values ('s', START, '{}');
        insert into health_cards values ('GPU-1', '[]', START, 's');
        insert into health_hours values ('s', 'GPU-1', START, 1, 50, 50, 300, 60);
        insert into health_maintenances values ('m', 'h', START, END, 'kernel', 'ada', 'planned', START, START, null,
            null, '', '{}', '[]', true, 'h', 1);
        insert into health_tries values ('t', 'b', 'h', 'passed', START, 1, '{}')
    """,
    ("health", "0008"): """
        insert into gpu_health values ('h', '0000:01:00.0', 't4', 'quarantined', START, 'it fell off', 'no-answer', '',
            'serial', null, 0, false, '', null, START, '{"kernel": "6.1"}', '', 3,
            '{}', '', '');
        insert into health_events (host, address, card, at, before, after, cause, signal, evidence, by, source)
            values ('h', '0000:01:00.0', 'serial', START, 'fine', 'quarantined', 'it fell off', 'no-answer', 'ffffffff',
            '', 'host');
        insert into health_observations (host, address, code, seen, evidence, by)
            values ('h', '0000:01:00.0', 'reported', END, 'no picture', 'ada');
        insert into health_tokens values ('d', 'watch', 'h', START, null, null);
        insert into health_hosts values ('h', END, '{}');
        insert into health_values values ('k', 'v');
        insert into health_guests values ('s', START, '{}');
        insert into health_cards values ('GPU-1', '[]', START, 's');
        insert into health_hours values ('s', 'GPU-1', START, 1, 50, 50, 300, 60);
        insert into health_maintenances values ('m', 'h', START, END, 'kernel', 'ada', 'planned', START, START, null,
            null, '', '{}', '[]', true, 'h', 1,
            '["s"]', END);
        insert into health_tries values ('t', 'b', 'h', 'passed', START, 1, '{}')
    """,
    ("history", "0003"): """
        insert into history_seen values ('site', START, END, END, 20261201);
        insert into history_gpus values (1, 'h', '0000:01:00.0', 't4');
        insert into history_tenures values (1, 'd', '', 'b', 'booking', 's', 'train', 'u', 'ada', 'p', 'alpha', 'f',
            '');
        insert into history_intervals values (1, 1, 1, 'claimed', START, 221845392000, true, false);
        insert into history_slices
            (digest, tariff, pool, host, project_id, project, user_id, "user", repository, state, kind)
            values ('d', '', 't4', 'h', 'p', 'alpha', 'u', 'ada', '', 'claimed', 'booking'),
            ('e', '', 't4', '', 'p', 'alpha', 'u', 'ada', '', 'claimed', 'booking'),
            ('f', '', 't4', '', '', '', '', '', '', 'claimed', 'booking');
        insert into history_days values (20261201, 1, 7);
        insert into history_months values (202612, 1, 7);
        insert into history_pools values (20261201, 3, 7);
        insert into history_totals values (202612, 2, 7);
        insert into history_hours values (START, 't4', 'claimed', 'booking', 7)
    """,
}
"""Of every step: a booking ``old`` of a pool t4, from at(0) to at(2); a session ``a`` of that time and a feed ``f``; a
job that runs on its runner, with all that is kept of both; a GPU that is quarantined."""
Result = TypeVar("Result")
T4 = '{"pool": "t4", "flavor": "gpu.t4", "image": "ci", "gpus": 1, "same_group": false}'
WORDS = {
    "START": f"{at(0).timestamp():.0f}",
    "END": f"{at(2).timestamp():.0f}",
    "WANTED": f"""'{{"kind": "gpu", "choices": [{T4}], "longest": 3600.0, "priority": 0, "preemptible": false}}'""",
    "CHOICE": f"'{T4}'",
}


def fill(url: str, room: str, revision: str) -> None:
    """The sample of a step."""
    sample = SAMPLES[room, revision]
    body = "x'7b7d'" if url.startswith("sqlite") else r"'\x7b7d'"  # bytes, in either's words
    for name, word in {**WORDS, "BODY": body}.items():
        sample = sample.replace(name, word)
    connected(url, lambda connection: [connection.exec_driver_sql(line) for line in sample.split(";")])


def connected(url: str, work: Callable[[Connection], Result]) -> Result:
    with closing(Database(url)) as database, database.writing() as connection:
        return work(connection)


def open_all(url: str) -> None:
    with closing(Store.open(url)) as store:
        PortalStore(store.database)
        RunnerStore(store.database)
        HealthStore(store.database)
        HistoryStore(store.database)


def the_tables_are_those_of_the_code(url: str) -> None:
    open_all(url)
    for room in SCHEMA_MODULES.values():
        assert connected(url, lambda connection, room=room: differences(connection, room)) == []  # type: ignore[misc]

    def checks(connection: Connection) -> set[str]:
        """Which alembic does not compare."""
        inspector = inspect(connection)
        names = [name for room in SCHEMA_MODULES.values() for name in room.tables.tables]
        return {str(constraint["name"]) for name in names for constraint in inspector.get_check_constraints(name)}

    assert connected(url, checks) == {"bookings_time", "occupancy_time"}


def differences(connection: Connection, schema_module: SchemaModule) -> object:
    """Between the tables that are there and the room's."""
    context = MigrationContext.configure(
        connection,
        opts={
            "compare_type": True,
            "compare_server_default": True,
            "include_name": lambda name, kind, _: kind != "table" or name in schema_module.tables.tables,
        },
    )
    return compare_metadata(context, schema_module.tables)


def no_two_rooms_have_a_table_of_one_name() -> None:
    names = [name for room in SCHEMA_MODULES.values() for name in (room.version_table, *room.tables.tables)]
    assert len(names) == len(set(names))


def every_step_has_a_sample() -> None:
    steps = [
        (name, revision.revision)
        for name, room in SCHEMA_MODULES.items()
        for revision in steps_of(room).walk_revisions()
    ]
    assert set(SAMPLES) == set(steps)


def a_database_of_any_step_is_brought_up_to_date(url: str, room: str, revision: str) -> None:
    migrate(parse_url(url), SCHEMA_MODULES[room], revision)
    fill(url, room, revision)
    the_sample_is_there(url, room, revision)
    the_tables_are_those_of_the_code(url)


def the_sample_is_there(url: str, room: str, revision: str) -> None:
    {
        "ledger": lambda: the_old_booking_is_there(url),
        "portal": lambda: the_old_feed_is_there(url, revision),
        "runners": lambda: the_old_job_is_there(url),
        "health": lambda: the_bad_gpu_is_there(url),
        "history": lambda: the_old_use_is_there(url),
    }[room]()


def the_old_booking_is_there(url: str) -> None:
    with closing(Store.open(url)) as store:
        (old,) = store.find(Query())
        assert (old.id, old.lanes, old.ask.start, old.ask.end) == ("old", (1,), at(0), at(2))
        assert [row.booking for row in taken(store)] == ["old"]
        with pytest.raises(OverlapError):
            write(store, booking((1,), 1, 3))
        write(store, booking((1,), 2, 3))


def the_old_feed_is_there(url: str, revision: str) -> None:
    with closing(Database(url)) as database:
        store = PortalStore(database)
        (feed,) = store.feeds(at(1), "u")
        assert (feed.digest, feed.scope, feed.created) == ("f", "user", at(0))
        session = store.get_session("a", at(1))
        assert session is not None
        assert session.created == at(0)
        assert store.knows_place("k", at(1)) is (revision >= "0003")


def the_old_job_is_there(url: str) -> None:
    with closing(Database(url)) as database:
        store = RunnerStore(database)
        (job,), (runner,), (delivery,), (scale_set,) = (
            store.jobs(),
            store.runners(),
            store.deliveries(at(1)),
            store.scale_sets(),
        )
        assert (job.id, job.state, job.queued, job.started, job.runner) == (
            "github.com/1", JobState.RUNNING, at(0), at(2), runner.name,
        )  # fmt: skip
        assert job.spec == runner.spec == ServerSpec("gpu", (runner.choice,), timedelta(hours=1))
        assert (runner.state, runner.choice.pool, runner.gpus) == (RunnerState.BUSY, "t4", ("h/0000:01:00.0",))
        assert (delivery.id, scale_set.last_message) == ("d1", 12)
        assert [event.text for event in store.events(job=job.id)] == ["made"]
        assert (store.log("r1"), store.value("k")) == ("Listening for Jobs", "v")


def the_bad_gpu_is_there(url: str) -> None:
    with closing(Database(url)) as database:
        store = HealthStore(database)
        (gpu,), (event,), (observation,) = store.gpus(), store.events(), store.open_observations()
        assert (gpu.state, gpu.since, gpu.card, gpu.version) == (HealthState.QUARANTINED, at(0), "serial", 3)
        assert gpu.software.kernel == "6.1"
        assert (event.after, event.evidence) == (HealthState.QUARANTINED, "ffffffff")
        assert (observation.code, observation.by, observation.seen) == ("reported", "ada", at(2))
        assert [token.subject for token in store.tokens("watch")] == ["h"]
        assert (store.heard(), store.value("k")) == ({"h": at(2)}, "v")
        assert [maintenance.host for maintenance in MaintenanceStore(database).open()] == ["h"]


def the_old_use_is_there(url: str) -> None:
    with closing(Database(url)) as database:
        store = HistoryStore(database)
        extent = store.seen()
        assert extent is not None
        assert (extent.first, extent.until, extent.rolled) == (at(0), at(2), date(2026, 12, 1))
        tenure = Tenure("", "b", "booking", "s", "train", "u", "ada", "p", "alpha", "f", "")
        assert store.open() == [Interval("h", "0000:01:00.0", "t4", TrackState.CLAIMED, at(0), None, tenure, True)]
        (sum,) = SumStore(database).sums(date(2026, 12, 1), date(2027, 1, 1), ["user", "state"])
        assert (sum.slice, sum.seconds) == (Slice(user="ada", state="claimed"), 7)
        (sum,) = SumStore(database).sums(date(2026, 12, 1), date(2026, 12, 2), ["pool", "kind"])
        assert (sum.slice, sum.seconds) == (Slice(pool="t4", kind="booking"), 7)


def make_e126ab2(url: str) -> None:
    """A database as commit e126ab2 left it: its own code made it, with what the samples have, and was dumped."""
    dialect = parse_url(url).get_backend_name()
    script = (DUMPS / f"e126ab2_{dialect}.sql").read_text()
    if dialect == "sqlite":
        with closing(sqlite3.connect(parse_url(url).database or "")) as file:
            file.executescript(script)
    else:
        connected(url, lambda connection: driver_of(connection).execute(script))


def driver_of(connection: Connection) -> Any:
    """The library's own connection, which takes several statements at once."""
    return connection.connection.driver_connection


def a_database_of_e126ab2_is_brought_up_to_date(url: str) -> None:
    make_e126ab2(url)
    before = connected(url, all_rows)
    assert all(before.values()), "there is a row in each table"
    open_all(url)
    after = connected(url, all_rows)
    for table, rows in before.items():
        if table not in {room.version_table for room in SCHEMA_MODULES.values()}:
            assert [{name: row[name] for name in rows[0]} for row in after[table]] == rows
    the_tables_are_those_of_the_code(url)
    what_e126ab2_had_is_there(url)


def what_e126ab2_had_is_there(url: str) -> None:
    for room in SCHEMA_MODULES.values():
        the_sample_is_there(url, room.name, str(steps_of(room).get_base()))


def all_rows(connection: Connection) -> dict[str, list[dict[str, object]]]:
    """Of each table that is there, in order."""
    metadata = MetaData()
    metadata.reflect(connection)
    return {
        name: [dict(row) for row in connection.execute(select(table).order_by(*table.columns)).mappings()]
        for name, table in metadata.tables.items()
    }


def opening_again_changes_nothing(url: str) -> None:
    with closing(Store.open(url)) as store:
        prepare(store)
        write(store, booking())
    with closing(Store.open(url)) as store:
        assert (len(store.lanes()), len(taken(store))) == (4, 1)


def a_database_of_a_newer_release_is_refused(url: str) -> None:
    open_all(url)
    for room in SCHEMA_MODULES.values():
        newer = f"update {room.version_table} set version_num = '9999'"  # noqa: S608
        connected(url, lambda connection, newer=newer: connection.execute(text(newer)))  # type: ignore[misc]
        with pytest.raises(StoreError, match=rf"made by a newer gpuyard \(the {room.name}'s tables are at 9999"):
            migrate(parse_url(url), room)


def a_database_of_a_step_that_is_gone_is_refused(url: str) -> None:
    """From before e126ab2, or from between it and the next release."""
    open_all(url)
    for room, gone in (("ledger", "0001"), ("health", "0006")):
        older = f"update {SCHEMA_MODULES[room].version_table} set version_num = '{gone}'"  # noqa: S608
        connected(url, lambda connection, older=older: connection.execute(text(older)))  # type: ignore[misc]
        too_old = rf"made by a gpuyard too old for this one \(the {room}'s tables are at {gone}, .* with commit \w{{7}}"
        with pytest.raises(StoreError, match=too_old):
            migrate(parse_url(url), SCHEMA_MODULES[room])


def a_step_that_fails_leaves_nothing(url: str) -> None:
    """Something is in the way of one of the last tables of the first step."""
    stranger = Table("enforcement", MetaData())
    connected(url, lambda connection: connection.execute(text(f"create table {stranger.name} (a integer)")))
    with pytest.raises(StoreError, match="already exists"):
        Store.open(url)
    assert connected(url, lambda connection: inspect(connection).get_table_names()) == ["enforcement"]


NEXT = """
from alembic import op
import sqlalchemy as sa
revision, down_revision = "later", "LAST"
def upgrade():
    anew = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("lanes", recreate=anew) as batch:
        batch.add_column(sa.Column("note", sa.Text, nullable=False, server_default="new"))
"""
"""A step of some later release: makes a table anew, in SQLite, that others refer to."""


@contextmanager
def later_release(folder: Path, *more: str) -> Iterator[None]:
    """As if the release had another step."""
    steps, room = folder / "migrations", SCHEMA_MODULES["ledger"]
    shutil.copytree(room.steps, steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "later.py").write_text("".join((NEXT.replace("LAST", latest()), *more)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ledger_store, "SCHEMA_MODULE", replace(room, steps=steps))
        yield


def latest() -> str:
    """The ledger's last step."""
    return str(steps_of(SCHEMA_MODULES["ledger"]).get_current_head())


def _lane_notes(connection: Connection) -> list[str]:
    return list(connection.execute(text("select note from lanes order by id")).scalars())


def a_later_step_keeps_everything(url: str, folder: Path) -> None:
    with closing(Store.open(url)) as store:
        write(prepare(store), booking())
    with later_release(folder), closing(Store.open(url)) as store:
        assert connected(url, _lane_notes) == ["new"] * 4
        assert (len(store.lanes()), len(taken(store))) == (4, 1)
    with pytest.raises(StoreError, match=f"tables are at later, this one knows {latest()}"):
        Store.open(url)


def a_later_step_that_fails_leaves_all_as_it_was(url: str, folder: Path) -> None:
    with closing(Store.open(url)) as store:
        write(prepare(store), booking())
    with later_release(folder, "    op.execute('select * from nothing')\n"), pytest.raises(StoreError, match="nothing"):
        Store.open(url)
    with closing(Store.open(url)) as store:
        assert (len(store.lanes()), len(taken(store))) == (4, 1)
    the_tables_are_those_of_the_code(url)


LATER: tuple[Callable[[str, Path], None], ...] = (
    a_later_step_keeps_everything,
    a_later_step_that_fails_leaves_all_as_it_was,
)
RULES: tuple[Callable[[str], None], ...] = (
    the_tables_are_those_of_the_code,
    opening_again_changes_nothing,
    a_database_of_e126ab2_is_brought_up_to_date,
    a_database_of_a_newer_release_is_refused,
    a_database_of_a_step_that_is_gone_is_refused,
    a_step_that_fails_leaves_nothing,
)
