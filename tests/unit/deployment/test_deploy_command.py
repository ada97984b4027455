"""'gpuyard deploy' before it reaches any host: words that are wrong, and the command that goes on."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app, every_command
from gpuyard.deployment.cli.deployment import _Asked, _lines, _Screen, _summary
from gpuyard.deployment.planner import plan_deployment
from gpuyard.deployment.state import DeploymentState, KollaState
from gpuyard.deployment.tasks import Part, TaskStanding
from gpuyard.host.fleet import Progress
from gpuyard.model.errors import UsageError
from tests.support.deployments import NOTHING_YET, FakeWorld, document, site


def deploy(tmp_path: Path, *words: str, **without: bool) -> Result:
    path = tmp_path / "site.yaml"
    path.write_text(json.dumps({name: value for name, value in document().items() if name not in without}))
    return CliRunner().invoke(app, ["deploy", *words, "--site", str(path), "--state", str(tmp_path / "state")])


@pytest.mark.parametrize("verb", ["plan", "run"])
@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (["--from", "nonsense"], "there is no step 'nonsense'; there are look, prepare, reboot"),
        (["--limit", "gpu1,gpu9"], "deploy.hosts has no gpu9; it has ctl, gpu1, gpu2"),
        (["--from", "deploy", "--until", "look"], "step deploy comes after look"),
    ],
)
def test_words_that_are_wrong_are_refused_before_any_host_is_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verb: str, words: list[str], reason: str
) -> None:
    monkeypatch.setattr("gpuyard.deployment.hosts.DeployHosts.look", lambda *_: pytest.fail("a host was asked"))
    error = deploy(tmp_path, verb, *words).exception
    assert isinstance(error, UsageError)
    assert reason in str(error)


def test_a_site_without_machines_says_where_to_name_them(tmp_path: Path) -> None:
    error = deploy(tmp_path, "plan", deploy=True).exception
    assert "site.yaml has no 'deploy', which names the machines; docs/how-to/from-bare" in str(error)
    assert "use -f json" in str(deploy(tmp_path, "plan", "-f", "csv").exception)


def test_the_command_that_goes_on_says_what_was_said() -> None:
    options = _Asked(
        site=Path("my site.yaml"),
        kolla=Path("/srv/kolla"),
        limit="gpu1,gpu2",
        first="prepare",
        last="verify",
        ssh_config=Path("ssh"),
        python="python3.11",
        sudo=True,
        cloud="mycloud",
        program="/opt/kolla/bin/kolla-ansible",
        state=Path("state"),
        minutes=5,
    )
    words = shlex.split(options.again())
    assert words[:3] == ["gpuyard", "deploy", "run"]
    command = every_command().commands["deploy"].commands["run"]  # type: ignore[attr-defined]
    parsed = command.make_context("run", words[3:]).params
    assert {name: str(value) for name, value in parsed.items()} == {
        "site": "my site.yaml",
        "kolla": "/srv/kolla",
        "limit": "gpu1,gpu2",
        "first": "prepare",
        "last": "verify",
        "ssh_config": "ssh",
        "python": "python3.11",
        "sudo": "True",
        "cloud": "mycloud",
        "program": "/opt/kolla/bin/kolla-ansible",
        "state": "state",
        "reboot_minutes": "5.0",
        "yes": "False",
    }


def test_steps_are_shown_with_their_sign_and_nothing_that_steers_a_terminal() -> None:
    world = FakeWorld(site())
    world.hosts["gpu1"].steps = ["+ \x1b[2J"]
    world.hosts["gpu2"].steps = []
    tasks = plan_deployment(world.site, world.look(DeploymentState(), frozenset(Part)), NOTHING_YET)
    lines = {task.title: list(_lines([task])) for task in tasks}
    assert lines["look gpu1"] == ["ok look gpu1: it answers"]
    assert lines["prepare gpu1"] == [
        "+  prepare gpu1: to do: GPUs must have their VFIO driver from boot on",
        "     runs: gpuyard host apply --ssh gpu1",
        "     + \\x1b[2J",
    ]
    assert lines["reboot gpu1"][0] == ".  reboot gpu1: later: kernel options count from the next boot on"
    assert _summary(tasks) == "27 steps: 8 done, 1 to do, 18 later"


def test_what_is_in_the_way_of_several_steps_is_told_once() -> None:
    world, reason = FakeWorld(site()), "there is no program kolla-ansible; install it"
    state = replace(world.look(DeploymentState(), frozenset(Part)), kolla=KollaState(problem=reason))
    tasks = plan_deployment(world.site, state, NOTHING_YET)
    blocked = [task.title for task in tasks if task.standing is TaskStanding.BLOCKED and reason in task.verdict.says]
    assert len(blocked) > 2
    lines = list(_lines(tasks))
    assert [line.strip() for line in lines].count(reason) == 1
    assert lines.count(f"     as for {blocked[0]}") == len(blocked) - 1


def test_progress_is_the_number_of_the_step_its_hosts_and_the_time(capsys: pytest.CaptureFixture[str]) -> None:
    world = FakeWorld(site())
    tasks = plan_deployment(world.site, world.look(DeploymentState(), frozenset(Part)), NOTHING_YET)
    group, screen = [task for task in tasks if task.stage == "prepare"], _Screen()
    screen.started(2, 17, group)
    screen.event(Progress("gpu1", "connecting"))
    screen.event(Progress("gpu1", "run update-grub", 3, 9))
    screen.ended(2, 17, group, {"gpu1": "", "gpu2": "no"})
    head = "[2/17] prepare gpu1, gpu2"
    shown = f"{head}: started\n  gpu1: 3/9 run update-grub\n{head}: failed after 0:00\n"
    assert capsys.readouterr().out == shown
