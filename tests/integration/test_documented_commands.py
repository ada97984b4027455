"""What the README and the tutorial tell newcomers to type works, in the order in which they type it."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from gpuyard.lab.exercise import Exercise
from tests.integration.conftest import RunningLab
from tests.support.ports import free_port_base

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


@pytest.mark.slow
def test_what_the_readme_says_of_bookings_works_on_the_lab_that_make_up_starts(tmp_path: Path) -> None:
    script = section("README.md", "    export OS_CLOUD=", "On your own machines")
    lines = [line.split("  #")[0].strip() for line in script.splitlines() if line.startswith("    ")]
    assert len(lines) == 6, lines
    state, base = tmp_path / "lab", free_port_base()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "GPUYARD_"))}
    at = ["--state", str(state)]
    up = ["gpuyard", "lab", "up", *at, "--port-base", str(base), "--port", str(base + 9)]
    try:
        started = subprocess.run(up, env=environment, capture_output=True, text=True)
        assert started.returncode == 0, started.stderr
        typed = " && ".join([f". {state}/openrc", *lines])
        done = subprocess.run(["bash", "-c", typed], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "training" in done.stdout
        assert "ended" in done.stdout
    finally:
        subprocess.run(["gpuyard", "lab", "down", *at], env=environment, capture_output=True, check=True)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "first", "last", "at_least"),
    [
        ("README.md", "## What to do next", "    export OS_CLOUD=", 4),
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
