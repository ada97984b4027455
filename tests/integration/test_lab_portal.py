"""`gpuyard lab up` as a whole: services, site, map; again, after a crash, and beside somebody else's port."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path
from urllib.request import urlopen

import pytest
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.model.errors import BlockedError
from gpuyard.openstack.api import CloudApi
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import load_site
from gpuyard_lab import portal, processes
from gpuyard_lab.errors import LabSettingsError
from tests.integration.conftest import RunningLab
from tests.support.sites import site
from tests.support.sysfs import epyc

pytestmark = pytest.mark.lab


def up(lab: RunningLab, port: int) -> Result:
    return CliRunner().invoke(app, ["lab", "up", "--state", str(lab.settings.state), "--port", str(port)])


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@pytest.fixture(autouse=True)
def without_a_portal(lab: RunningLab) -> Iterator[None]:
    yield
    processes.end(lab.settings.state, portal.PORTAL)
    (lab.settings.state / "portal.json").unlink(missing_ok=True)


def state_of_the_portal(lab: RunningLab) -> str:
    result = CliRunner().invoke(app, ["lab", "status", "--state", str(lab.settings.state), "-f", "json"])
    rows = {row["Name"]: row["State"] for row in json.loads(result.stdout)}
    assert result.exit_code == (0 if set(rows.values()) == {"up"} else 3)
    return str(rows.get("portal"))


def test_up_applies_the_site_and_serves_the_map_and_says_where(lab: RunningLab, port: int) -> None:
    first = up(lab, port)
    assert first.exit_code == 0, first.output
    assert f"http://127.0.0.1:{port}" in first.stdout
    assert "login: demo, password: " in first.stdout
    with urlopen(f"http://127.0.0.1:{port}/v1/pools", timeout=10) as answer:
        assert {pool["name"] for pool in json.load(answer)["pools"]} >= {"v100", "t4"}
    assert state_of_the_portal(lab) == "up"
    pid = processes.leaders(processes.find(lab.settings.state))[portal.PORTAL].pid
    again = CliRunner().invoke(app, ["lab", "up", "--state", str(lab.settings.state)])
    assert again.exit_code == 0, again.output
    assert f"http://127.0.0.1:{port}" in again.stdout, "the port is remembered"
    assert processes.leaders(processes.find(lab.settings.state))[portal.PORTAL].pid == pid, "what is up is left alone"


def test_a_portal_that_died_is_shown_and_healed(lab: RunningLab, port: int) -> None:
    assert up(lab, port).exit_code == 0
    os.kill(processes.leaders(processes.find(lab.settings.state))[portal.PORTAL].pid, signal.SIGKILL)
    assert state_of_the_portal(lab) in ("down", "does not answer")
    assert up(lab, port).exit_code == 0
    assert state_of_the_portal(lab) == "up"


def test_a_port_of_somebody_else_is_refused_before_anything_is_started(lab: RunningLab) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(LabSettingsError, match=rf"port {taken}, for the portal, is in use by .*; choose another"):
            portal.require_port(lab.settings, taken)


def test_projects_that_a_site_names_are_made_for_the_demo_user(
    lab: RunningLab, operator: CloudApi, applied: None, tmp_path: Path
) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    loaded = site(folder, {"projects": {"physics": {"gpus": {"v100": 1}}}, "site": "other"}, {"host": epyc()})
    with pytest.raises(BlockedError, match="class:CUSTOM_GPU_V100 exists already and is not of this site"):
        portal.apply_site(lab.lab, loaded)
    assert "physics" in read_objects(operator).projects


def test_a_site_that_wants_nothing_new_takes_no_steps(lab: RunningLab, applied: None) -> None:
    assert lab.lab.site_file is not None
    assert portal.apply_site(lab.lab, load_site(lab.lab.site_file)) == 0
