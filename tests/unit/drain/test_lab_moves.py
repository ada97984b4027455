"""What the process of the lab's Nova does for hosts to or from which servers move."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpuyard_lab.plan import LabHost
from gpuyard_lab.services import nova
from gpuyard_lab.settings import Lab


def test_an_update_that_fails_ends_nothing_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A move that is confirmed at the same moment: Nova's reshape has half of its allocations."""
    tried: list[object] = []

    def update(context: object) -> None:
        tried.append(context)
        if len(tried) == 1:
            raise RuntimeError("reshape failed")

    monkeypatch.setattr(nova, "UPDATE_S", -1.0)
    monkeypatch.setattr(nova, "context_of_admin", lambda: "admin")
    tracker = SimpleNamespace(tracked_migrations={"server": "migration"})
    manager = SimpleNamespace(rt=tracker, update_available_resource=update)
    computes: Any = nova.Computes(Lab(tmp_path), [LabHost("gpu1", 8, 1024, 10)])
    computes._running["gpu1"] = SimpleNamespace(manager=manager)
    computes._settle_moves()
    assert "gpu1 could not update its resources, and will try again: reshape failed" in capsys.readouterr().err
    computes._settle_moves()
    assert tried == ["admin", "admin"]
    tracker.tracked_migrations.clear()
    computes._settle_moves()
    assert len(tried) == 2
