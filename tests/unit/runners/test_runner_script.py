"""What a runner's server says in every case, by its own script: run here with another folder as its root.

Users, cgroups and the switching off are real in tests/virtual/test_runner_boot.py.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import gpuyard.runners
from gpuyard.runners import console
from gpuyard.runners.console import Console, GpuVerdict, JobProgress
from gpuyard.runners.user_data import AGAIN, user_data
from gpuyard_lab.github import runner_standin
from gpuyard_lab.github.guest import Guest
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.rest import jit_config, new_runner
from gpuyard_lab.github.server import ForgeServer
from gpuyard_lab.guests import ask_over_http
from tests.support.guest_rules import ANY_JOB

SCRIPT = (Path(gpuyard.runners.__file__).parent / "guest/runner.sh").read_text()
PATHS = re.compile(r"(?<![\w}*/.-])/(?=(?:var|run|usr|sys|proc|dev|opt|home|actions-runner)\b)(?!dev/null)")
"""Where an absolute path begins."""
TOOLS = {
    "setpriv": 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"',
    "stat": "echo someone",
    "getent": "echo someone:x:1000:1000::/home/someone:/bin/sh",
    "id": "echo 1000",
    "systemctl": 'echo "$@" >>$ROOT/systemctl',
}
JOB = """\
echo
echo '2026-11-22 10:00:00Z: Listening for Jobs'
echo "2026-11-22 10:00:01Z: Running job: build (3.12)"
echo "2026-11-22 10:00:02Z: Job build (3.12) completed with result: Succeeded"
"""
GOOD = "echo 'Tesla V100 at 00000000:05:00.0'"


class Machine:
    """A folder that is the root of a runner's server."""

    def __init__(self, root: Path) -> None:
        self.root = root
        for folder in ("var/lib/gpuyard", "run/gpuyard", "usr/local/bin", "sys/class/tty/console", "dev", "bin"):
            (root / folder).mkdir(parents=True)
        self.write("var/lib/gpuyard/settings", "NAME=r\nGPUS=1\nCHECK_SECONDS=60\n")
        self.write("var/lib/cloud/data/instance-id", "i-1\n")
        self.write("run/gpuyard/jitconfig", "c2VjcmV0")
        self.write("sys/class/tty/console/active", "tty0 ttyAMA0\n")
        self.write("var/lib/gpuyard/runner", PATHS.sub(f"{root}/", SCRIPT))
        for name, text in TOOLS.items():
            self.program(f"bin/{name}", text)

    def write(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)

    def program(self, path: str, text: str) -> None:
        self.write(path, f"#!/bin/sh\n{text}\n")
        (self.root / path).chmod(0o755)

    def check(self, text: str) -> None:
        self.program("usr/local/bin/gpuyard-gpu-check", text)

    def runner(self, text: str) -> None:
        self.program("opt/actions-runner/run.sh", text)

    def do(self) -> Console:
        """What is on its console afterwards."""
        for verb in ("run", "report"):
            self.shell(str(self.root / "var/lib/gpuyard/runner"), verb)
        return console.read(self.said())

    def at_boot(self) -> None:
        self.shell("-c", PATHS.sub(f"{self.root}/", AGAIN))

    def shell(self, *words: str) -> None:
        environment = {"PATH": f"{self.root}/bin:{os.defpath}", "ROOT": str(self.root)}
        done = subprocess.run(["sh", *words], env=environment, capture_output=True, text=True, check=False)
        assert done.stderr in ("", "Killed\n")

    def said(self, port: str = "ttyS0") -> str:
        return (self.root / "dev" / port).read_text()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    new_machine = Machine(tmp_path)
    # A serial port keeps what it was sent; a file would be written anew each time.
    script = tmp_path / "var/lib/gpuyard/runner"
    text = script.read_text()
    assert text.count(f'>"{tmp_path}/dev/$name"') == 1
    script.write_text(text.replace(f'>"{tmp_path}/dev/$name"', f'>>"{tmp_path}/dev/$name"'))
    new_machine.check(GOOD)
    new_machine.runner(JOB)
    return new_machine


def test_a_job_from_beginning_to_end(machine: Machine) -> None:
    assert machine.do() == Console(
        gpu=GpuVerdict.OK,
        gpu_words="Tesla V100 at 00000000:05:00.0",
        online=True,
        job=JobProgress.FINISHED,
        result="Succeeded",
        over=True,
        log="\n".join(re.findall(r"2026-11-22 .*?(?=[\"'])", JOB)),
    )
    assert machine.said("tty0") == machine.said("ttyAMA0") == machine.said(), "any of them may be Nova's"
    assert "c2VjcmV0" not in machine.said()


def test_the_secret_is_gone_when_the_runner_starts(machine: Machine) -> None:
    machine.runner('echo "got $1 $2"; ls $ROOT/run/gpuyard | grep -c jitconfig')
    assert machine.do().log == "got --jitconfig c2VjcmV0\n0"


def test_the_check_is_told_what_is_wanted(machine: Machine) -> None:
    machine.check('echo "$# $1 $2"')
    assert machine.do().gpu_words == "2 1 60"


def test_our_own_check_is_made_when_the_image_has_none(machine: Machine) -> None:
    (machine.root / "usr/local/bin/gpuyard-gpu-check").unlink()
    machine.write("var/lib/gpuyard/gpu-check", "echo $1 of $2 and no x-bit; exit 1")
    assert machine.do().gpu_words == "1 of 60 and no x-bit"


@pytest.mark.parametrize(
    "check, words",
    [
        ("echo it is hot; echo more; exit 1", "it is hot"),
        ("exit 3", "the check gave no reason"),
        ("kill -9 $$", "Killed"),
        ("printf 'bell \\007 and \\033[31mred'; exit 1", "bell   and  [31mred"),
        ("head -c 100000 /dev/zero | tr '\\0' x; exit 1", "x" * 289),
    ],
)
def test_without_a_good_gpu_no_runner_starts(machine: Machine, check: str, words: str) -> None:
    machine.check(check)
    machine.runner("touch $ROOT/started")
    report = machine.do()
    assert (report.gpu, report.online, report.over) == (GpuVerdict.FAILED, False, True)
    assert report.gpu_words == words
    assert not (machine.root / "started").exists()
    assert not (machine.root / "run/gpuyard/jitconfig").exists()


def test_a_check_that_never_ends_is_not_waited_for(machine: Machine) -> None:
    machine.write("var/lib/gpuyard/settings", "NAME=r\nGPUS=1\nCHECK_SECONDS=-9\n")
    machine.check("trap '' TERM; exec sleep 3")
    assert machine.do().gpu_words == "the check of the GPUs has not ended after 2 s"


@pytest.mark.parametrize("result", ["success", "failure"])
def test_the_labs_guest_says_what_the_script_says(machine: Machine, result: str) -> None:
    """The lab plays servers (gpuyard_lab.github.guest), and must not say of them what no server says."""
    with ForgeServer() as server:
        server.standin.forge.add_repository("demo/science")
        machine.write("run/gpuyard/jitconfig", registered(server, "by-script", result))
        machine.runner(f'exec {sys.executable} {runner_standin.__file__} "$@"')
        script = machine.do()

        now, text = datetime.now(UTC), list[str]()
        data = user_data("by-guest", registered(server, "by-guest", result), 1, ANY_JOB)
        guest = Guest(data, now, ask_over_http, text.append)
        for second in range(60):
            guest.step(now + timedelta(seconds=second))
        played = console.read("".join(text))
    assert replace(played, gpu_words="", log="") == replace(script, gpu_words="", log="")
    assert (played.gpu, played.job, played.over) == (GpuVerdict.OK, JobProgress.FINISHED, True)
    spoken = [line.rpartition("Z: ")[2] for line in script.log.splitlines()]
    assert [line for line in spoken if line and "version" not in line] == played.log.splitlines()


def registered(server: ForgeServer, name: str, result: str) -> str:
    """The configuration of a runner for which there is a job."""
    forge = server.standin.forge
    with forge.lock:
        runner = new_runner(forge, name, "demo", "demo/science", (name,), 1)
        forge.push("demo/science", [JobOrder((name,), seconds=0, result=result)])
        return jit_config(forge, runner)


def test_an_image_without_a_runner(machine: Machine) -> None:
    (machine.root / "opt/actions-runner/run.sh").unlink()
    report = machine.do()
    assert report.gpu is GpuVerdict.OK
    assert report.failed.startswith("the image has no runner: there is no run.sh in ")


@pytest.mark.parametrize("folder", ["home/ubuntu/actions-runner", "actions-runner", "opt/runner"])
def test_other_places_of_the_runner(machine: Machine, folder: str) -> None:
    (machine.root / "opt/actions-runner/run.sh").unlink()
    machine.program(f"{folder}/run.sh", "pwd")
    machine.write(f"{folder}/_diag/Runner_1.log", "[INFO] of the listener\n")
    machine.write(f"{folder}/_diag/Worker_1.log", "[INFO] with the job's message\n")
    assert machine.do().log == f"[INFO] of the listener\n\n{machine.root / folder}"


def test_a_runner_that_cannot_go_on_in_its_own_words(machine: Machine) -> None:
    machine.runner("echo starts; echo 'Runner version v2.1 is deprecated and cannot receive messages.' >&2; exit 1")
    report = machine.do()
    assert report.failed == (
        "the runner ended with status 1: Runner version v2.1 is deprecated and cannot receive messages."
    )
    assert not report.online


def test_a_runner_that_was_killed_still_has_its_log_reported(machine: Machine) -> None:
    machine.runner(f"{JOB.splitlines()[1]}\nkill -9 $PPID\nkill -9 $$")
    report = machine.do()
    assert (report.online, report.job, report.over) == (True, JobProgress.NONE, True)
    assert report.failed == "the runner ended with status unknown: 2026-11-22 10:00:00Z: Listening for Jobs"
    assert "Listening for Jobs" in report.log


def test_the_name_of_a_job_is_no_marker(machine: Machine) -> None:
    machine.runner(
        "printf '2026Z: Listening for Jobs\\n2026Z: Running job: a\\rgpuyard-runner: gpu failed\\033[2J\\n'\n"
        "echo 'gpuyard-runner: failed by force'\n"
        "printf 'gpuyard-runner: job finished Failed'"
    )
    report = machine.do()
    assert (report.gpu, report.failed, report.job) == (GpuVerdict.OK, "", JobProgress.STARTED)


def test_a_runner_that_never_stops_talking_is_cut_off(machine: Machine) -> None:
    machine.runner("i=0; while [ $i -lt 5000 ]; do i=$((i + 1)); echo \"line $i\"; done; echo ': Listening for Jobs'")
    report = machine.do()
    assert report.log.endswith("\nline 2000")
    assert not report.online
    assert len(machine.said()) < 60_000


def test_only_the_very_server_that_was_on_before_ends_at_once(machine: Machine) -> None:
    machine.at_boot()
    assert not (machine.root / "systemctl").exists(), "the first time"
    machine.do()
    machine.write("var/lib/cloud/data/instance-id", "i-2\n")
    machine.at_boot()
    assert not (machine.root / "systemctl").exists(), "another server, of whose image a copy was made"
    machine.write("var/lib/cloud/data/instance-id", "i-1\n")
    machine.at_boot()
    assert (machine.root / "systemctl").read_text() == "--no-block poweroff\n"
    assert console.read(machine.said()).failed == "the machine was started a second time"


def test_the_hook_of_an_image_runs_after_ours(machine: Machine) -> None:
    """`.env` goes before the environment (actions/runner 2.336, src/Runner.Listener/Program.cs, LoadAndSetEnv)."""
    machine.write("opt/actions-runner/.env", "LANG=C\nACTIONS_RUNNER_HOOK_JOB_STARTED=/opt/own.sh\n")
    machine.runner('echo "first $ACTIONS_RUNNER_HOOK_JOB_STARTED, then $GPUYARD_NEXT_HOOK"')
    ours = machine.root / "var/lib/gpuyard/job-started.sh"
    assert machine.do().log == f"first {ours}, then /opt/own.sh"
    assert (machine.root / "opt/actions-runner/.env").read_text() == "LANG=C\n"
