"""How the store's tables come to be, in a SQLite file."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.bookings.store import Store
from gpuyard.database import migrate
from tests.contract.store_migrations import (
    LATER,
    RULES,
    SAMPLES,
    a_database_of_any_step_is_brought_up_to_date,
    a_later_step_keeps_everything,
    every_step_has_a_sample,
    latest,
    no_two_rooms_have_a_table_of_one_name,
)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/ledger.db"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(url: str, rule: Callable[[str], None]) -> None:
    rule(url)


@pytest.mark.parametrize("room, revision", SAMPLES)
def test_a_database_of_any_step_is_brought_up_to_date(url: str, room: str, revision: str) -> None:
    a_database_of_any_step_is_brought_up_to_date(url, room, revision)


def test_every_step_has_a_sample() -> None:
    every_step_has_a_sample()


def test_no_two_rooms_have_a_table_of_one_name() -> None:
    no_two_rooms_have_a_table_of_one_name()


@pytest.mark.parametrize("rule", LATER, ids=lambda rule: rule.__name__)
def test_later_release(url: str, tmp_path: Path, rule: Callable[[str, Path], None]) -> None:
    rule(url, tmp_path)


def test_a_file_is_copied_before_its_tables_change(url: str, tmp_path: Path) -> None:
    Store.open(url).close()
    Store.open(url).close()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ledger.db", "ledger.db.lock"], (
        "a new one needs no copy"
    )
    a_later_step_keeps_everything(url, tmp_path)
    with closing(Store.open(f"{url}.before-ledger-{latest()}")) as store:
        assert len(store.lanes()) == 4, "this release can use the copy"


def test_a_copy_is_a_whole_database_for_its_owner_only(url: str, tmp_path: Path) -> None:
    store = Store.open(url)
    store.set_value("t4", "limit", "2")  # is in the log still
    migrate._copy(tmp_path / "ledger.db", "ledger-0001")
    store.close()
    copy = tmp_path / "ledger.db.before-ledger-0001"
    assert copy.stat().st_mode & 0o777 == 0o600
    again = Store.open(f"sqlite:///{copy}")
    assert again.value("t4", "limit") == "2"
    again.close()
