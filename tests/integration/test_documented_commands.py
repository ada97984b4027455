"""What the README and the tutorial tell newcomers to type works, in the order in which they type it."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

from gpuyard_lab.exercise import Exercise
from tests.integration.conftest import RunningLab
from tests.support.ports import free_port_base
from tests.support.shown_commands import ON_THE_LAB

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


@dataclass(frozen=True)
class Shell:
    """Bash beside the lab that `make up` starts."""

    state: Path
    environment: Mapping[str, str]

    def run(self, script: str, folder: Path = ROOT) -> str:
        """What it printed; fails unless it ended well."""
        typed = f". {self.state}/openrc && {script}"
        done = subprocess.run(["bash", "-c", typed], cwd=folder, env=self.environment, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def shell(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Shell]:
    state, base = tmp_path_factory.mktemp("shell") / "lab", free_port_base()
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "GPUYARD_"))}
    at = ["--state", str(state)]
    up = ["gpuyard", "lab", "up", *at, "--port-base", str(base), "--port", str(base + 9)]
    try:
        started = subprocess.run(up, env=environment, capture_output=True, text=True)
        assert started.returncode == 0, started.stderr
        yield Shell(state, {**environment, "PORTAL": f"http://127.0.0.1:{base + 9}"})
    finally:
        subprocess.run(["gpuyard", "lab", "down", *at], env=environment, capture_output=True, check=True)


@pytest.mark.slow
def test_what_the_readme_says_of_bookings_works_on_the_lab_that_make_up_starts(shell: Shell) -> None:
    script = section("README.md", "    export OS_CLOUD=", "On your own machines")
    lines = [line.split("  #")[0].strip() for line in script.splitlines() if line.startswith("    ")]
    assert len(lines) == 9, lines
    printed = shell.run(" && ".join(lines))
    assert "training" in printed
    assert "ended" in printed


@pytest.mark.slow
@pytest.mark.parametrize("page", ON_THE_LAB)
def test_what_a_page_shows_can_be_typed(shell: Shell, tmp_path: Path, page: str) -> None:
    shell.run(ON_THE_LAB[page].script(page, datetime.now(UTC).date()), tmp_path)


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
    documented = commands(section(page, first, last))
    assert len(documented) >= at_least, documented
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("OS_", "GPUYARD_"))}
    for command in documented:
        script = f". {lab.settings.state}/openrc && {command}"
        done = subprocess.run(["bash", "-c", script], cwd=ROOT, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
