"""The store of runners on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.runners.store import RunnerStore
from tests.contract.runner_store import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(tmp_path: Path, rule: Callable[[RunnerStore], None]) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/runners.db")) as database:
        rule(RunnerStore(database))
