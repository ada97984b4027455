"""The portal as a service: what is written, what of an operator's own stays, and what is started when."""

from __future__ import annotations

import errno
import json
import os
import stat
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from gpuyard.deployment.planner import plan_deployment
from gpuyard.deployment.service import CREDENTIALS, SETTINGS, SITE, UNIT_FILE, DeployService
from gpuyard.deployment.state import DeploymentState, ServiceState
from gpuyard.deployment.tasks import TaskStanding
from gpuyard.model.errors import GpuyardError
from gpuyard.site.schema import Site
from tests.support.deployments import NOTHING_YET, site

PROGRAM = """\
#!{python}
import json, os, pathlib, sys
state = pathlib.Path({state!r})
with state.joinpath("calls").open("a") as calls:
    print(*sys.argv[1:], file=calls)
verb = sys.argv[1]
if verb == "serve":
    print("[Service]\\nExecStart=gpuyard serve")
elif verb == "gpu":
    print(state.joinpath("gpus").read_text())
elif verb == "is-active":
    print("active" if state.joinpath("active").exists() else "inactive")
    sys.exit(0 if state.joinpath("active").exists() else 3)
elif verb in ("start", "restart"):
    if state.joinpath("broken").exists():
        sys.exit("Job for gpuyard.service failed")
    state.joinpath("active").touch()
"""
ACCEPTANCE = {"acceptance": {"required": ["new"], "project": "checks", "image": "ml"}}


@dataclass(frozen=True)
class Machine:
    """With a program that is systemctl and gpuyard, and writes down what it is asked."""

    folder: Path
    service: DeployService

    @property
    def root(self) -> Path:
        return self.service.root

    def calls(self) -> list[str]:
        path = self.folder / "state/calls"
        lines = path.read_text().splitlines() if path.exists() else []
        path.unlink(missing_ok=True)
        return [call for call in lines if call not in ("serve --unit", "is-active gpuyard")]


Make = Callable[..., Machine]


@pytest.fixture
def machine(tmp_path: Path) -> Make:
    def make(**changes: Any) -> Machine:
        (tmp_path / "state").mkdir()
        program = tmp_path / "program"
        program.write_text(PROGRAM.format(python=sys.executable, state=str(tmp_path / "state")))
        program.chmod(0o755)
        for name in ("site.yaml", "gpu1.json", "gpu2.json", "clouds.yaml"):
            (tmp_path / name).write_text(f"this is {name}\n")
        service = DeployService(
            tmp_path / "root",
            (str(program),),
            (str(program),),
            tmp_path / "site.yaml",
            with_portal(**changes),
            tmp_path / "clouds.yaml",
            "kolla-admin-internal",
        )
        return Machine(tmp_path, service)

    return make


def with_portal(**changes: Any) -> Site:
    deploy = {**json.loads(site().model_dump_json())["deploy"], "portal": True}
    return site(deploy=deploy, **changes)


def test_a_bare_machine_gets_all_files_and_serves(machine: Make) -> None:
    made = machine()
    state = made.service.look()
    names = [SITE, "etc/gpuyard/gpu1.json", "etc/gpuyard/gpu2.json", UNIT_FILE, CREDENTIALS, SETTINGS]
    assert state.changes == tuple(f"+ {made.root / name}" for name in names)
    assert (state.active, state.waiting) == (False, None)
    made.service.start()
    assert made.calls() == ["daemon-reload", "enable gpuyard", "restart gpuyard"]
    assert (made.root / SETTINGS).read_text() == "OS_CLOUD=kolla-admin-internal\n"
    assert (made.root / CREDENTIALS).read_text() == "this is clouds.yaml\n"
    assert stat.S_IMODE((made.root / CREDENTIALS).stat().st_mode) == 0o600
    assert stat.S_IMODE((made.root / CREDENTIALS).parent.stat().st_mode) == 0o700
    assert stat.S_IMODE((made.root / SITE).stat().st_mode) == 0o644
    assert made.service.look() == ServiceState("", (), True, ())


def test_what_an_operator_has_put_there_stays(machine: Make) -> None:
    made = machine()
    made.service.start()
    (made.root / CREDENTIALS).write_text("least privilege")
    (made.root / SETTINGS).write_text("OS_CLOUD=gpuyard\n")
    made.calls()
    made.service.start()
    assert made.calls() == ["daemon-reload", "enable gpuyard", "start gpuyard"]
    assert (made.root / CREDENTIALS).read_text() == "least privilege"
    assert (made.root / SETTINGS).read_text() == "OS_CLOUD=gpuyard\n"
    (made.folder / "site.yaml").write_text("another\n")
    assert made.service.look().changes == (f"~ {made.root / SITE}",)


def test_what_only_root_may_see_is_in_the_way_of_others(machine: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = machine(), Path.stat

    def guarded(path: Path, **more: Any) -> Any:
        if path.name == "clouds.yaml" and path.parent.name == "credentials":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return real(path, **more)

    monkeypatch.setattr(Path, "stat", guarded)
    path = made.root / CREDENTIALS
    assert made.service.look() == ServiceState(problem=f"{path}: Permission denied; type it as root")


def test_gpus_that_wait_are_accepted_through_the_portal_that_serves(machine: Make) -> None:
    made = machine(booking={}, health=ACCEPTANCE)
    made.service.start()
    rows = [
        {"Host": "gpu1", "Address": f"0000:2{n}:00.0", "State": s} for n, s in enumerate(("to be accepted", "fine"))
    ]
    (made.folder / "state/gpus").write_text(json.dumps(rows))
    made.calls()
    assert made.service.look().waiting == ("gpu1/0000:20:00.0",)
    assert made.calls() == ["gpu health -f json --url http://127.0.0.1:8080 --os-cloud kolla-admin-internal"]
    (made.root / SETTINGS).write_text('GPUYARD_PORT="9000"\n')
    assert made.service.accept() == [
        "gpu", "accept", "--wait", "--url", "http://127.0.0.1:9000", "--os-cloud", "kolla-admin-internal"
    ]  # fmt: skip
    (made.folder / "state/gpus").write_text("[1]")
    assert made.service.look().problem == "the portal's list of GPUs is none that this gpuyard knows"


def test_a_service_that_does_not_start_says_why(machine: Make) -> None:
    made = machine()
    (made.folder / "state/broken").touch()
    with pytest.raises(GpuyardError, match=r"restart gpuyard: Job for gpuyard.service failed; 'systemctl status"):
        made.service.start()
    (made.folder / "clouds.yaml").unlink()
    (made.root / CREDENTIALS).unlink()
    assert "clouds.yaml is not there, and the service needs it" in made.service.look().problem


@pytest.mark.parametrize(
    ("service", "serve", "accept"),
    [
        (None, TaskStanding.LATER, TaskStanding.LATER),
        (ServiceState(changes=("+ unit",)), TaskStanding.LATER, TaskStanding.LATER),
        (ServiceState(active=True, waiting=()), TaskStanding.DONE, TaskStanding.DONE),
        (ServiceState(active=True, waiting=("gpu1/0000:27:00.0",)), TaskStanding.DONE, TaskStanding.LATER),
    ],
)
def test_it_comes_after_the_cloud(service: ServiceState | None, serve: TaskStanding, accept: TaskStanding) -> None:
    tasks = plan_deployment(with_portal(booking={}, health=ACCEPTANCE), DeploymentState(service=service), NOTHING_YET)
    assert [(task.stage, task.standing) for task in tasks[-2:]] == [("serve", serve), ("accept", accept)]
    assert [task.stage for task in plan_deployment(site(), DeploymentState(), NOTHING_YET)][-1] == "image"
