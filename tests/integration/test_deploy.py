"""'gpuyard deploy' as an operator types it: three hosts over a real ssh, and the released kolla-ansible on them.

The hosts are scripts (tests/support/fake_hosts.py), and of Kolla the plays are replaced that start containers
(tests/support/kolla_plays.py). tests/virtual/test_deploy.py has booted machines in the hosts' place.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

import gpuyard_lab
from tests.support import sshd
from tests.support.fake_hosts import make_hosts
from tests.support.kolla import NoKolla, install
from tests.support.kolla_plays import CONTAINERS_FILE, READY_FILE, PlayedKolla, with_plays_replaced
from tests.support.on_request import only_by

pytestmark = pytest.mark.slow

RECORDING = Path(gpuyard_lab.__file__).parent / "recordings/titan-xp-node.json"
GPUS, CONTROL = ["gpu1", "gpu2"], ["ctl"]
PATIENCE = 600.0
SITE: dict[str, Any] = {
    "site": "test",
    "release": "2026.1",
    "hosts": {name: {"recording": f"{name}.json"} for name in GPUS},
    "pools": {"titan-xp": {"models": ["10de:1b02"]}},
    "deploy": {
        "base": "debian",
        "interface": "eno1",
        "external_interface": "eno2",
        "vip": "192.0.2.250",
        "hosts": {"ctl": {"roles": ["control", "network"]}, **{name: {"roles": ["compute"]} for name in GPUS}},
    },
}


@dataclass(frozen=True)
class Place:
    """Hosts, Kolla, a site file, and the command that deploys it."""

    folder: Path
    server: sshd.Sshd
    played: PlayedKolla
    python: Path

    @property
    def kolla(self) -> Path:
        return self.folder / "kolla"

    def words(self, verb: str, *more: str) -> list[str]:
        words = [sys.executable, "-m", "gpuyard.cli.main", "deploy", verb, "--site", str(self.folder / "site.yaml")]
        words += ["--kolla", str(self.kolla), "--kolla-ansible", str(self.played.program)]
        words += ["--ssh-config", str(self.server.configuration), "--python", str(self.python)]
        return [*words, "--state", str(self.folder / "state"), "--until", "post-deploy", *more]

    def run(self, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
        words, environment = self.words(verb, *more), self.played.environment
        return subprocess.run(words, capture_output=True, text=True, env=environment, stdin=subprocess.DEVNULL)

    def killed(self, when: str, then: Path | None = None) -> str:
        """A run that is killed once it has printed `when`, and `then` is there. What it printed."""
        output_file = self.folder / "said"
        with (
            output_file.open("wb") as output,
            subprocess.Popen(
                self.words("run", "--yes"), stdout=output, stderr=output, env=self.played.environment
            ) as process,
        ):
            try:
                end = time.monotonic() + PATIENCE
                while when not in output_file.read_text() or (then is not None and not then.exists()):
                    assert process.poll() is None, output_file.read_text()
                    assert time.monotonic() < end, output_file.read_text()
                    time.sleep(0.05)
            finally:
                process.kill()
        return output_file.read_text()

    def wait_for_what_was_started(self) -> None:
        """Ansible, which goes on by itself after its console is gone, until it has something to say."""
        with (self.folder / "state/test.journal").open() as journal:
            fcntl.flock(journal, fcntl.LOCK_EX)

    def state(self, host: str) -> dict[str, Any]:
        state: dict[str, Any] = json.loads((self.folder / f"hosts/{host}/state.json").read_text())
        return state

    def containers(self, host: str) -> list[str]:
        return (self.folder / f"hosts/{host}" / CONTAINERS_FILE).read_text().split()


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    if why := sshd.missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    try:
        kolla = install()
    except NoKolla as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))
    played = with_plays_replaced(kolla, tmp_path / "played", f"{tmp_path}/hosts/$HOST_ALIAS")
    python = make_hosts(tmp_path / "hosts", GPUS, CONTROL, RECORDING)
    (tmp_path / "site.yaml").write_text(json.dumps(SITE))
    (tmp_path / "sshd").mkdir()
    with sshd.running(tmp_path / "sshd", [*GPUS, *CONTROL]) as server:
        yield Place(tmp_path, server, played, python)


@only_by("deploy", "minutes")
def test_killed_twice_and_failed_once_it_comes_to_its_end_with_the_same_command(place: Place) -> None:
    planned = place.run("plan")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "+  prepare gpu1: to do: GPUs must have their VFIO driver from boot on" in planned.stdout
    assert "     + file /etc/gpuyard/passthrough\n     + run update-initramfs\n" in planned.stdout
    assert "ok look ctl: it answers" in planned.stdout
    texts = [(place.folder / f"hosts/{name}/asked").read_text() for name in (*GPUS, *CONTROL)]
    assert {line.split()[0] for text in texts for line in text.splitlines()} == {"look"}
    assert not place.kolla.exists()

    unasked = place.run("run")
    assert unasked.returncode == 2
    assert "nobody answered, so nothing was changed" in unasked.stderr

    slow = {**place.state("gpu2"), "step_seconds": 1}
    (place.folder / "hosts/gpu2/state.json").write_text(json.dumps(slow))
    place.killed("gpu2: 1/2 run update-initramfs")
    place.played.hold.touch()
    output = place.killed("[13/14] deploy: started", place.folder / "played/hold.reached")
    assert "prepare gpu1" not in output.split("Carry out")[0].split("+ ")[0]
    assert place.containers("ctl") == ["keystone", "nova_api", "nova_conductor", "nova_scheduler", "placement_api"]
    assert place.containers("gpu1") == []
    passwords = (place.kolla / "passwords.yml").read_text()
    refused = place.run("run", "--yes")
    assert refused.returncode == 1
    assert "or a program that one has started, is at this site" in refused.stderr
    place.played.hold.unlink()
    place.wait_for_what_was_started()

    (place.folder / "hosts/gpu2/var/lib/plays/refuse").touch()
    failed = place.run("run", "--yes")
    assert failed.returncode == 1
    assert "[12/14] prechecks: failed after" in failed.stdout
    assert "prechecks: gpu2: A file in the way fails: " in failed.stderr
    assert "go on with: gpuyard deploy run --site " in failed.stderr
    (place.folder / "hosts/gpu2/var/lib/plays/refuse").unlink()

    done = place.run("run", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[13/14] deploy: done after" in done.stdout
    assert "[2/14]" not in done.stdout
    assert all((place.folder / f"hosts/{name}" / READY_FILE).exists() for name in (*GPUS, *CONTROL))
    assert place.containers("gpu1") == place.containers("gpu2") == ["nova_compute"]
    assert [place.state(name)["boots"] for name in ("ctl", "gpu1", "gpu2")] == [2, 3, 3]
    assert (place.kolla / "passwords.yml").read_text() == passwords
    clouds = YAML(typ="safe").load((place.kolla / "clouds.yaml").read_text())["clouds"]
    assert clouds["kolla-admin"]["auth"]["auth_url"] == "http://192.0.2.250:5000"
    secrets = [line.split(": ")[1] for line in passwords.splitlines() if line.startswith("nova_keystone_password")]
    logs = "".join(path.read_text() for path in (place.folder / "state/logs").iterdir())
    assert secrets[0] not in logs + done.stdout + failed.stderr

    again = place.run("run", "--yes")
    assert (again.returncode, again.stdout) == (0, "Nothing to do: all is as the site file says.\n")
    shutil.rmtree(place.folder / "state")
    assert place.run("run", "--yes").stdout == "Nothing to do: all is as the site file says.\n"


def test_a_host_that_cannot_be_reached_stops_it_before_anything(place: Place) -> None:
    document = {
        **SITE,
        "deploy": {**SITE["deploy"], "hosts": {**SITE["deploy"]["hosts"], "gone": {"roles": ["network"]}}},
    }
    (place.folder / "site.yaml").write_text(json.dumps(document))
    done = place.run("run", "--yes")
    assert done.returncode == 3, done.stderr
    assert "look gone: unreachable: " in done.stderr or "look gone: refused: " in done.stderr
    assert place.state("gpu1")["steps"]
    planned = place.run("plan", "-f", "json")
    assert planned.returncode == 3
    rows = json.loads(planned.stdout)
    assert [row["object"] for row in rows if row["standing"] == "blocked"] == ["gone"]
    limited = place.run("plan", "--limit", "gpu1", "--until", "verify")
    assert limited.returncode == 0, limited.stderr
    assert "5 steps: " in limited.stdout
