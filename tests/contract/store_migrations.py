"""How the store's tables come to be, whichever database they are in.

Each function is one rule and gets the URL of a database that is empty. They run on SQLite (tests/unit/
test_store_migrations.py) and on PostgreSQL (tests/integration/test_store_postgresql.py).
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, MetaData, Table, inspect, text

from gpuyard.ledger.records import Query
from gpuyard.ledger.store import OverlapError, Store, StoreError
from gpuyard.ledger.store import migrate as migrate_module
from gpuyard.ledger.store.engine import Database, parse_url
from gpuyard.ledger.store.migrate import migrate, migrations
from gpuyard.ledger.store.schema import METADATA
from tests.contract.store import at, booking, prepare, taken, write

SAMPLES: dict[str, str] = {
    "0001": """
        insert into pools values ('t4', 1, 1, 0, 1);
        insert into lanes values (1, 't4', 'gpu-1', '0000:01:00.0', '0000:01:00.0', '', false);
        insert into bookings values ('old', 't4', 'booking', 'confirmed', START, END, 1, false, false, '', '',
            'u', 'ada', 'p', 'alpha', 1, 1, 1, '1', '', '', '', null, null, null, 0, false, 1);
        insert into occupancy values (1, START, END, 't4', 'old')
    """,
}
"""For every step of the tables: a booking ``old`` of a pool t4, as that step has it. It is from at(0) to at(2)."""


def revisions() -> list[str]:
    """All steps, the first one first."""
    with migrations() as config:
        return [one.revision for one in ScriptDirectory.from_config(config).walk_revisions()][::-1]


def connected(url: str, work: Callable[[Connection], object]) -> object:
    with closing(Database(url)) as database, database.writing() as connection:
        return work(connection)


def the_tables_are_those_of_the_code(url: str) -> None:
    Store.open(url).close()

    def differences(connection: Connection) -> object:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return compare_metadata(context, METADATA)

    def checks(connection: Connection) -> set[str]:
        """Which alembic does not compare."""
        inspector = inspect(connection)
        return {str(one["name"]) for table in METADATA.tables for one in inspector.get_check_constraints(table)}

    assert connected(url, differences) == []
    assert connected(url, checks) == {"bookings_time", "occupancy_time"}


def every_step_has_a_sample() -> None:
    assert set(SAMPLES) == set(revisions())


def a_database_of_any_step_is_brought_up_to_date(url: str, revision: str) -> None:
    migrate(parse_url(url), revision)
    sample = SAMPLES[revision].replace("START", f"{at(0).timestamp():.0f}").replace("END", f"{at(2).timestamp():.0f}")
    connected(url, lambda connection: [connection.execute(text(line)) for line in sample.split(";")])
    with closing(Store.open(url)) as store:
        (old,) = store.find(Query())
        assert (old.id, old.lanes, old.ask.start, old.ask.end) == ("old", (1,), at(0), at(2))
        assert [one.booking for one in taken(store)] == ["old"]
        with pytest.raises(OverlapError):
            write(store, booking((1,), 1, 3))
        write(store, booking((1,), 2, 3))
    the_tables_are_those_of_the_code(url)


def opening_again_changes_nothing(url: str) -> None:
    with closing(Store.open(url)) as store:
        prepare(store)
        write(store, booking())
    with closing(Store.open(url)) as store:
        assert (len(store.lanes()), len(taken(store))) == (4, 1)


def a_database_of_a_newer_release_is_refused(url: str) -> None:
    Store.open(url).close()
    connected(url, lambda connection: connection.execute(text("update alembic_version set version_num = '9999'")))
    with pytest.raises(StoreError, match=r"made by a newer gpuyard \(its tables are at 9999"):
        Store.open(url)


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
revision, down_revision = "0002", "0001"
def upgrade():
    anew = "always" if op.get_bind().dialect.name == "sqlite" else "never"
    with op.batch_alter_table("lanes", recreate=anew) as batch:
        batch.add_column(sa.Column("note", sa.Text, nullable=False, server_default="new"))
"""
"""A step of some later release: makes a table anew, in SQLite, that others refer to."""


@contextmanager
def later_release(folder: Path, *more: str) -> Iterator[None]:
    """As if the release had another step."""
    steps = folder / "migrations"
    shutil.copytree(str(migrate_module.FOLDER), steps, ignore=shutil.ignore_patterns("__pycache__"))
    (steps / "versions" / "r0002_later.py").write_text("".join((NEXT, *more)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(migrate_module, "FOLDER", steps)
        yield


def _lane_notes(connection: Connection) -> list[str]:
    return list(connection.execute(text("select note from lanes order by id")).scalars())


def a_later_step_keeps_everything(url: str, folder: Path) -> None:
    with closing(Store.open(url)) as store:
        write(prepare(store), booking())
    with later_release(folder), closing(Store.open(url)) as store:
        assert connected(url, _lane_notes) == ["new"] * 4
        assert (len(store.lanes()), len(taken(store))) == (4, 1)
    with pytest.raises(StoreError, match=r"its tables are at 0002, this one knows 0001"):
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
    a_database_of_a_newer_release_is_refused,
    a_step_that_fails_leaves_nothing,
)
