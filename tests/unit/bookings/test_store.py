"""The ledger's store on SQLite."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpuyard.bookings.store import Store
from tests.contract.store import RULES, prepare


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = Store.open(f"sqlite:///{tmp_path}/ledger.db")
    yield prepare(opened)
    opened.close()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(store: Store, rule: Callable[[Store], None]) -> None:
    rule(store)
