"""The store of history on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.usage.store import HistoryStore
from tests.contract.history_store import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(tmp_path: Path, rule: Callable[[HistoryStore], None]) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/history.db")) as database:
        rule(HistoryStore(database))
