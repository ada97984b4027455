"""The quickstart's last step: a GitHub job that runs on a GPU of the lab that `make up` starts."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.lab import control, processes
from gpuyard.lab.catalog import GITHUB
from gpuyard.lab.settings import LabSettings, remembered
from tests.support.ports import free_port_base

pytestmark = [pytest.mark.lab, pytest.mark.slow]


def lab(state: Path, *words: str) -> Result:
    return CliRunner().invoke(app, ["lab", words[0], "--state", str(state), *words[1:]])


@pytest.fixture(scope="module")
def state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A lab with the example site, as `make up` starts it."""
    folder = tmp_path_factory.mktemp("quickstart")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    up = lab(folder, "up", "--port-base", str(free_port_base()), "--port", str(port))
    assert up.exit_code == 0, up.output
    assert "gpuyard lab job" in up.stdout
    yield folder
    control.down(LabSettings(folder))


@pytest.mark.parametrize("label", ["gpuyard-v100", "cirun-gpu"])
def test_a_job_runs_on_a_gpu(state: Path, label: str) -> None:
    done = lab(state, "job", "--label", label, "--seconds", "3")
    assert done.exit_code == 0, done.output
    assert re.search(r"queued\n.* in_progress on Tesla V100 .* gpu-server/0000:.*\n.* success\n", done.stdout)


def test_after_a_restart_jobs_run_again(state: Path) -> None:
    assert lab(state, "down").exit_code == 0
    assert lab(state, "up").exit_code == 0
    done = lab(state, "job", "--seconds", "1")
    assert done.exit_code == 0, done.output


def test_a_github_that_died_is_shown_and_healed(state: Path) -> None:
    processes.end(state, GITHUB)
    shown = lab(state, "status", "-f", "json")
    assert shown.exit_code == 3
    assert {row["Name"]: row["State"] for row in json.loads(shown.stdout)}[GITHUB] == "down"
    assert lab(state, "up").exit_code == 0
    found = remembered(state)
    assert found is not None
    assert GITHUB in processes.leaders(processes.find(state))
    assert lab(state, "job", "--seconds", "1").exit_code == 0


def test_without_a_lab_it_is_said_what_to_do(tmp_path: Path) -> None:
    refused = lab(tmp_path, "job")
    assert refused.exit_code != 0
    assert "start it with 'gpuyard lab up'" in str(refused.exception)
