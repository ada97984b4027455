"""What the README and the tutorial tell newcomers to type works, in the order in which they type it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from gpuyard.lab.exercise import Exercise
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.lab

ROOT = Path(__file__).parents[2]
PROGRAMS = ("gpuyard ", "openstack ")


def commands(text: str) -> list[str]:
    """The indented lines that call our programs, without the comments behind them."""
    lines = re.findall(r"^ {4}(\S.*)$", text, re.MULTILINE)
    return [line.split("  #")[0].strip() for line in lines if line.startswith(PROGRAMS)]


def section(page: str, first: str, last: str) -> str:
    text = (ROOT / page).read_text()
    return text[text.index(first) : text.index(last)]


@pytest.mark.parametrize(
    ("page", "first", "last", "at_least"),
    [
        ("README.md", "## What to do next", "On your own machines", 4),
        ("docs/tutorial.md", "## 2.", "## 6.", 9),
    ],
)
def test_each_command_ends_well(
    lab: RunningLab, exercise: Exercise, page: str, first: str, last: str, at_least: int
) -> None:
    found = commands(section(page, first, last))
    assert len(found) >= at_least, found
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "GPUYARD_"))}
    for command in found:
        script = f". {lab.settings.state}/openrc && {command}"
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
