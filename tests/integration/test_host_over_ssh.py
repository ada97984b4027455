"""``gpuyard host ... --ssh`` as an operator types it, over a real OpenSSH server on the loopback.

The host that it reaches is this machine, which has no GPU that could be given away: so plans are empty, and what is
asked for by a site's recordings is refused.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gpuyard_lab
from tests.support import sshd

SITE = Path(gpuyard_lab.__file__).parent / "site.yaml"
HOSTS = ["gpu1", "gpu2", "hyper18"]


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[sshd.Sshd]:
    if why := sshd.missing():
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(why)
    with sshd.running(tmp_path_factory.mktemp("sshd"), HOSTS) as running:
        yield running


def gpuyard_host(server: sshd.Sshd, *words: str) -> subprocess.CompletedProcess[str]:
    reach = ["--ssh-config", str(server.configuration), "--python", sys.executable]
    command = [sys.executable, "-m", "gpuyard.cli.main", "host", *words, *reach]
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def test_check_shows_each_host_and_a_summary(server: sshd.Sshd) -> None:
    done = gpuyard_host(server, "check", "--ssh", "gpu1", "--ssh", "gpu2")
    assert done.returncode == 3, done.stderr
    assert "gpu1:\n  error    gpus" in done.stdout
    assert "gpu2:\n  error    gpus" in done.stdout
    assert "| gpu2 | blocked |" in done.stdout


def test_nothing_to_do_is_said_and_asked_for_nothing(server: sshd.Sshd) -> None:
    done = gpuyard_host(server, "plan", "--ssh", "gpu1")
    assert done.returncode == 0, done.stderr
    assert "| gpu1 | ok" in done.stdout
    done = gpuyard_host(server, "verify", "--ssh", "gpu1")
    assert done.returncode == 0
    assert "nothing to verify" in done.stdout
    for verb in ("apply", "undo"):
        done = gpuyard_host(server, verb, "--ssh", "gpu1", "--yes")
        assert done.returncode == 0, done.stderr
        assert not Path("/var/lib/gpuyard").exists()


def test_without_an_answer_nothing_is_applied(server: sshd.Sshd) -> None:
    done = gpuyard_host(server, "apply", "--ssh", "gpu1", "--ssh", "gpu2")
    assert done.returncode == 1
    assert "apply on 2 hosts (gpu1 first, then 32 at once, and it stops when one fails)?" in done.stdout
    assert "Aborted" in done.stderr


def test_after_a_canary_that_fails_the_others_are_not_tried(server: sshd.Sshd) -> None:
    hosts = ["--ssh", "gpu1", "--ssh", "gpu2", "--ssh", "nobody.invalid"]
    done = gpuyard_host(server, "apply", *hosts, "--canary", "nobody.invalid", "--yes")
    assert done.returncode == 1
    assert "| nobody.invalid | unreachable |" in done.stdout
    assert "| gpu1           | not tried   | 0.0     | stopped after nobody.invalid failed" in done.stdout
    done = gpuyard_host(server, "undo", *hosts, "--no-canary", "--keep-going", "--at-once", "1", "--yes")
    assert done.returncode == 1
    assert "| gpu2           | ok          |" in done.stdout


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--ssh", "gpu1", "--canary", "gpu9"], "--canary gpu9 is not one of the hosts: gpu1"),
        (
            ["--ssh", "gpu1", "--canary", "gpu1", "--no-canary"],
            "--canary and --no-canary exclude each other: give one of them",
        ),
    ],
)
def test_an_order_that_cannot_be_is_refused(server: sshd.Sshd, words: list[str], says: str) -> None:
    done = gpuyard_host(server, "apply", *words)
    assert (done.returncode, says in done.stderr) == (2, True), done.stderr


def test_a_site_says_which_gpus_of_which_hosts(server: sshd.Sshd) -> None:
    done = gpuyard_host(server, "plan", "--site", str(SITE), "--ssh", "hyper18")
    assert done.returncode == 3
    assert "refused: there is no GPU at 0000:86:00.0, to be given away; GPUs are at: none" in done.stdout
    done = gpuyard_host(server, "plan", "--site", str(SITE), "--ssh", "gpu1")
    assert done.returncode == 2
    assert "has no host gpu1" in done.stderr


def test_verify_of_a_site_compares_with_its_recordings(server: sshd.Sshd) -> None:
    done = gpuyard_host(server, "verify", "--site", str(SITE), "--ssh", "hyper18")
    assert done.returncode == 3
    assert "86:00.0" in done.stdout
    assert "| hyper18 | blocked |" in done.stdout


def test_a_host_that_cannot_be_reached_blocks_no_other_one(server: sshd.Sshd) -> None:
    done = gpuyard_host(server, "check", "--ssh", "gpu1", "--ssh", "nobody.invalid")
    assert done.returncode == 1
    assert "| nobody.invalid | unreachable |" in done.stdout
    assert "| gpu1           | blocked     |" in done.stdout
