"""The store of health on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.health.store import HealthStore
from tests.contract.health_store import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(tmp_path: Path, rule: Callable[[HealthStore], None]) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/health.db")) as database:
        rule(HealthStore(database))
