"""Guests: servers that are played from the very user data that gpuyard sends."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuyard.runners.console import Console, GpuVerdict, JobProgress, read
from gpuyard.runners.user_data import user_data
from gpuyard_lab.github.faults import FaultRates, Faults
from gpuyard_lab.github.guest import Guest, GuestState, UserDataUnreadError, in_process, orders
from gpuyard_lab.github.records import JobOrder
from gpuyard_lab.github.server import ForgeServer
from gpuyard_lab.guests import Guests
from gpuyard_lab.machine import CONSOLE, OFF, USER_DATA
from tests.support.forges import PERSON, Asker, forge
from tests.support.guest_rules import ANY_JOB


class Server:
    """A server of a runner ``one`` with the label ``gpu``."""

    def __init__(self, github: Asker, rates: FaultRates | None = None) -> None:
        self.github, self.text = github, ""
        jit = github.jit("one", ["gpu"])
        data = user_data("one", jit["encoded_jit_config"], 2, ANY_JOB)
        self.guest = Guest(data, github.clock.now, in_process(github.standin), self.write, Faults(0, rates))

    def write(self, text: str) -> None:
        self.text += text

    def run(self, seconds: float) -> Console:
        for _ in range(int(seconds * 2)):
            self.github.later(seconds=0.5)
            self.guest.step(self.github.clock.now)
        return read(self.text)


def test_a_guest_boots_does_its_job_says_so_and_switches_off() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",), seconds=10, name="train")])
    server = Server(github)
    assert read(server.text) == Console()
    console = server.run(8)
    assert (console.gpu, console.online, console.job) == (GpuVerdict.OK, True, JobProgress.STARTED)
    assert not console.over
    console = server.run(12)
    assert (console.job, console.result, console.over) == (JobProgress.FINISHED, "Succeeded", True)
    assert "Running job: train" in console.log
    assert "√ Connected to GitHub" in console.log
    assert server.guest.off
    assert github.standin.forge.jobs[run.jobs[0]].conclusion == "success"


def test_a_guest_waits_for_its_job() -> None:
    github = forge()
    server = Server(github)
    assert (server.run(60).job, server.guest.state) == (JobProgress.NONE, GuestState.LISTENING)
    github.standin.forge.push("demo/science", [JobOrder(("gpu",), result="failure")])
    assert server.run(5).result == "Failed"


def test_a_guest_whose_registration_is_gone_gives_up() -> None:
    github = forge()
    server = Server(github)
    (runner,) = github.standin.forge.runners.values()
    github.standin.forge.remove_runner(runner)
    console = server.run(10)
    assert (console.online, console.failed, console.over) == (False, "the runner ended with status 1", True)
    assert "registration has been deleted" in console.log


def test_a_cancelled_job_is_told_to_its_runner() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",), seconds=3600)])
    server = Server(github)
    server.run(10)
    github.standin.forge.cancel(github.standin.forge.jobs[run.jobs[0]])
    assert server.run(70).result == "Canceled"
    assert github.standin.forge.jobs[run.jobs[0]].conclusion == "cancelled"


def test_a_guest_that_is_never_heard_of() -> None:
    github = forge()
    server = Server(github, FaultRates(guest_silent=1.0))
    server.run(100)
    assert (server.text, server.guest.off) == ("", False)


def test_a_bad_gpu_is_told_and_no_job_is_taken() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    server = Server(github, FaultRates(guest_bad_gpu=1.0))
    console = server.run(20)
    assert (console.gpu, console.online, console.over) == (GpuVerdict.FAILED, False, True)
    assert "uncorrected ECC" in console.gpu_words
    assert github.standin.forge.jobs[run.jobs[0]].status == "queued"


def test_a_guest_that_dies_in_its_job_leaves_it_to_github_to_notice() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",), seconds=5)])
    server = Server(github, FaultRates(guest_dies=1.0))
    assert server.run(100).job is JobProgress.STARTED
    assert github.standin.forge.jobs[run.jobs[0]].status == "in_progress"
    github.later(minutes=10)
    assert github.standin.forge.jobs[run.jobs[0]].conclusion == "failure"


def test_a_hostile_job_deceives_nobody_about_the_gpu() -> None:
    github = forge()
    github.standin.forge.push("demo/science", [JobOrder(("gpu",))])
    server = Server(github, FaultRates(guest_hostile=1.0))
    console = server.run(20)
    assert "every GPU of this cloud is broken" in server.text
    assert console.gpu is GpuVerdict.OK
    assert "\x1b" not in console.log


def test_lost_answers_and_a_broken_server_do_not_end_a_guest() -> None:
    github = forge()
    run = github.standin.forge.push("demo/science", [JobOrder(("gpu",), seconds=5)])
    server = Server(github)
    github.standin.forge.faults.rates = FaultRates(broken=0.5)
    assert server.run(120).over
    github.standin.forge.faults.rates = FaultRates()
    assert github.standin.forge.jobs[run.jobs[0]].conclusion == "success"


@pytest.mark.parametrize("text", ["", "#cloud-config\n", "#cloud-config\n[]", "#cloud-config\n{a", "#!/bin/sh\necho"])
def test_other_servers_are_not_played(text: str) -> None:
    with pytest.raises(UserDataUnreadError):
        orders(text)


def test_the_lab_plays_the_servers_that_have_a_folder(tmp_path: Path) -> None:
    with ForgeServer() as github:
        github.standin.forge.personal_tokens[PERSON] = "octocat"
        github.standin.forge.add_repository("demo/science")
        job = github.standin.forge.push("demo/science", [JobOrder(("gpu",), seconds=0)]).jobs[0]
        jit = Asker(None, github.standin).jit("one", ["gpu"])  # type: ignore[arg-type]
        runner_data = user_data("one", jit["encoded_jit_config"], 1, ANY_JOB)
        for name, text in {"runner": runner_data, "other": "#!/bin/sh"}.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / USER_DATA).write_text(text)
        guests = Guests(tmp_path, boot=timedelta(0))
        now = datetime.now(UTC)
        for step in range(20):
            guests.step(now + timedelta(seconds=step))
        assert (tmp_path / "runner" / OFF).exists()
        assert not (tmp_path / "other" / OFF).exists()
        assert read((tmp_path / "runner" / CONSOLE).read_text()).result == "Succeeded"
        assert github.standin.forge.jobs[job].conclusion == "success"
        (tmp_path / "runner" / CONSOLE).unlink()
        Guests(tmp_path).step(now)
        assert not (tmp_path / "runner" / CONSOLE).exists(), "what is off stays off"
        for name in ("runner", "other"):
            for file in (tmp_path / name).iterdir():
                file.unlink()
            (tmp_path / name).rmdir()
        guests.step(now)
