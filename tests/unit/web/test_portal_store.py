"""The portal's store on SQLite."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from gpuyard.database.engine import Database
from gpuyard.web.store import PortalStore
from tests.contract.portal_store import RULES


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.__name__)
def test_rule(tmp_path: Path, rule: Callable[[PortalStore], None]) -> None:
    with closing(Database(f"sqlite:///{tmp_path}/portal.db")) as database:
        rule(PortalStore(database))
