"""Backups of SQLite files, and the commands around them."""

from __future__ import annotations

import os
import re
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from gpuyard.bookings.records import Query
from gpuyard.bookings.store import Store
from gpuyard.database import engine
from gpuyard.database.errors import StoreError
from gpuyard.model.errors import UsageError
from gpuyard.server import database_upkeep as databases
from tests.contract.backups import NOW, RULES, New, backed_up, one_of_any_step_is_restored, restored
from tests.contract.store import booking, prepare, write
from tests.contract.store_migrations import SAMPLES

NUMBERS = count(1)


@pytest.fixture
def new(tmp_path: Path) -> New:
    return lambda: f"sqlite:///{tmp_path}/site-{next(NUMBERS)}.db"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    made = tmp_path / "backups"
    made.mkdir()
    return made


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(new: New, folder: Path, rule: Callable[[str, New, Path], None]) -> None:
    rule(new(), new, folder)


@pytest.mark.parametrize("room, revision", SAMPLES)
def test_one_of_any_step_is_restored(new: New, folder: Path, room: str, revision: str) -> None:
    one_of_any_step_is_restored(new(), new, folder, room, revision)


def test_a_backup_is_one_file_for_its_owner_that_can_be_read_where_nothing_can_be_written(
    new: New, folder: Path
) -> None:
    url = new()
    with closing(prepare(Store.open(url))):
        file = backed_up(url, folder)
    assert [path.name for path in folder.iterdir()] == [file.name] == ["site-20261122T120000Z.db"]
    assert file.stat().st_mode & 0o777 == 0o600
    with closing(sqlite3.connect(f"file:{file}?mode=ro&immutable=1", uri=True)) as read:
        assert read.execute("select count(*) from lanes").fetchone() == (4,)
    with pytest.raises(StoreError, match="is there already; a backup never replaces another one"):
        backed_up(url, folder)


def test_of_a_folder_only_the_newest_stay_and_strangers_are_left_alone(new: New, folder: Path) -> None:
    url = new()
    Store.open(url).close()
    (folder / "other-20261122T120000Z.db").touch()
    (folder / "site-notes.db").touch()
    for day in range(4):
        databases.make_backup(url, "site", folder, NOW + timedelta(days=day), keep=2)
    assert sorted(path.name for path in folder.iterdir()) == [
        "other-20261122T120000Z.db",
        "site-20261124T120000Z.db",
        "site-20261125T120000Z.db",
        "site-notes.db",
    ]
    with pytest.raises(UsageError, match=r"--keep is about a folder of backups, and .*site-notes.db is a file"):
        databases.make_backup(url, "site", folder / "site-notes.db", NOW, keep=2)


def test_the_folder_of_backups_is_made_for_its_owner_alone(new: New, folder: Path) -> None:
    url = new()
    Store.open(url).close()
    made = databases.make_backup(url, "site", folder / "new" / "backups", NOW, keep=2)
    assert made == folder / "new" / "backups" / "site-20261122T120000Z.db"
    assert made.parent.stat().st_mode & 0o777 == 0o700
    with pytest.raises(UsageError, match=r"cannot make the folder .*: Not a directory"):
        databases.make_backup(url, "site", made / "below", NOW, keep=2)


def test_a_damaged_backup_changes_nothing(new: New, folder: Path) -> None:
    url = new()
    with closing(prepare(Store.open(url))) as store:
        write(store, booking(id="here"))
    file = backed_up(url, folder)
    content = bytearray(file.read_bytes())
    content[8192:12288] = b"x" * 4096
    file.write_bytes(content)
    with pytest.raises(StoreError, match=r"is damaged and nothing was restored|malformed"):
        restored(url, file)
    for text in (b"", b"hello " * 1000):
        file.write_bytes(text)
        with pytest.raises(StoreError, match=r"not a database|nothing of gpuyard's"):
            restored(url, file)
    with pytest.raises(StoreError, match="there is no backup"):
        restored(url, folder / "none.db")
    with closing(Store.open(url)) as store:
        assert [stored.id for stored in store.find(Query())] == ["here"]


def broken_of(url: str) -> list[str]:
    try:
        return databases.checked(url)[0]
    except StoreError as error:
        return [str(error)]


def test_a_damaged_database_is_noticed_and_can_be_replaced(new: New, folder: Path) -> None:
    url = new()
    with closing(prepare(Store.open(url))) as store:
        write(store, booking(id="here"))
    file = backed_up(url, folder)
    path = Path(url.removeprefix("sqlite:///"))
    for damage in (slice(8192, 40_000), slice(0, 4096)):
        content = bytearray(path.read_bytes())
        content[damage] = b"x" * len(content[damage])
        path.write_bytes(content)
        assert re.search("not a database|damaged", " ".join(broken_of(url)))
        messages = restored(url, file)
        assert "what has been written since cannot be compared" in messages[1]
        (aside,) = folder.glob("*.replaced-*")
        assert aside.read_bytes() == bytes(content)
        aside.unlink()
        assert databases.checked(url) == ([], [])
        with closing(Store.open(url)) as store:
            assert [stored.id for stored in store.find(Query())] == ["here"]


def test_nothing_is_made_where_nothing_is(new: New, folder: Path) -> None:
    url = new()
    with pytest.raises(StoreError, match=r"there is no database .*; name another with --database"):
        databases.checked(url)
    with pytest.raises(StoreError, match="there is no database"):
        backed_up(url, folder)
    assert list(folder.iterdir()) == []
    assert not Path(url.removeprefix("sqlite:///")).exists()
    databases.refuse_old_tables(url)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root makes files of others")
def test_what_root_makes_belongs_to_the_owner_of_the_folder(tmp_path: Path) -> None:
    """Or a portal that is nobody special could not start after root has made a backup."""
    folder = tmp_path / "state"
    folder.mkdir()
    os.chown(folder, 65534, 65534)
    engine.private_file(folder / "site.db.bookings")
    assert (folder / "site.db.bookings").stat().st_uid == 65534


def test_a_copy_from_before_a_migration_can_be_restored(new: New, folder: Path) -> None:
    url = new()
    with closing(prepare(Store.open(url))) as store:
        write(store, booking(id="here"))
    copy = folder / "site.db.before-ledger-0003"
    shutil.copy(url.removeprefix("sqlite:///"), copy)
    target = new()
    assert restored(target, copy)[0] == f"{copy} is a backup of unknown time"
    with closing(Store.open(target)) as store:
        assert [stored.id for stored in store.find(Query())] == ["here"]
