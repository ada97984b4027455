"""What a deployment asks hosts: the verbs on the host, what is made of their answers, and the wait for a reboot."""

from __future__ import annotations

import json
import shlex
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.deploy.doors import ssh_variables
from gpuyard.deploy.hosts import DeployHosts, in_this_process, parse_look
from gpuyard.host.__main__ import main
from gpuyard.host.fleet import Ending, FleetOptions, Outcome
from gpuyard.host.preparation.passthrough import LIST_FILE
from gpuyard.host.recording import replay
from gpuyard.host.standing import Engine, look_at_engine, reboot_soon
from gpuyard.site.deploy_rules import SiteDeploy
from tests.support.deployments import site
from tests.support.fake_hosts import make_hosts
from tests.support.hypervisors import titan_xp
from tests.support.sysfs import Sysfs
from tests.unit.test_scan import materialise

BOOT = "proc/sys/kernel/random/boot_id"


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    nodes = titan_xp().nodes
    del nodes["usr"]
    folder = tmp_path_factory.mktemp("host") / "root"
    materialise(nodes, folder)
    for path, text in ((BOOT, "boot-1\n"), ("proc/sys/kernel/hostname", "gpu1\n"), ("run/reboot-required", "")):
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    for name in ("eno1", "lo"):
        (folder / "sys/class/net" / name).mkdir(parents=True, exist_ok=True)
    return folder


def answered(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["--root", str(root), *words, "--json"])
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return found


def test_look_has_everything_that_a_deployment_asks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = answered(root, capsys, "look", "--keep", "02:00.0")
    assert found["exit"] == 0
    sight, inventory = parse_look(found)
    assert (sight.boot_id, sight.name, sight.restart, sight.here) == ("boot-1", "gpu1", True, False)
    assert {"eno1", "lo"} <= {*sight.interfaces}
    assert f"+ create file /{LIST_FILE}" in sight.changes
    assert (sight.pending, sight.given, sight.faults) == ((), (), ())
    assert "0000:01:00.0" in [gpu.address for gpu in inventory.gpus]


def test_a_host_that_is_a_script_answers_as_a_real_one(
    root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What the integration test of a deployment is played on must have the shape of the real thing."""
    real = answered(root, capsys, "look")
    recording = tmp_path / "recording.json"
    recording.write_text(json.dumps(real["recording"]))
    program = make_hosts(tmp_path / "hosts", ["gpu1"], [], recording)
    words = [str(program), "-IB", "-c", "start", "look", "--json"]
    done = subprocess.run(words, capture_output=True, text=True, env={"HOST_ALIAS": "gpu1"}, check=True, input="")
    played = json.loads(done.stdout.splitlines()[-1])
    assert shape(played, 1) == shape(real, 1)
    assert shape(played["plan"]) == shape(real["plan"])
    assert shape(played["engine"]) == shape(real["engine"])
    assert parse_look(played)[1] == parse_look(real)[1]


def shape(value: Any, depth: int = 9) -> Any:
    """Keys and types."""
    if isinstance(value, dict) and depth:
        return {name: shape(one, depth - 1) for name, one in value.items()}
    if isinstance(value, list) and depth and value and isinstance(value[0], dict):
        return [shape(value[0], depth - 1)]
    return type(value)


def test_a_reboot_is_of_the_boot_that_is_named_and_of_this_machine(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "reboot is for this machine" in answered(root, capsys, "reboot", "--boot-id", "boot-1")["error"]
    assert in_this_process("here", ["reboot", "--boot-id", "another one"]).result["rebooting"] is False
    assert "say in which boot the machine is" in in_this_process("here", ["reboot"]).reason


def test_a_reboot_comes_soon_and_by_itself(tmp_path: Path) -> None:
    reboot_soon(0, ["touch", str(tmp_path / "rebooted")])
    end = time.monotonic() + 10
    while not (tmp_path / "rebooted").exists():
        assert time.monotonic() < end
        time.sleep(0.01)


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_container_engine_is_asked_for_names_and_believed_in_nothing_else(tmp_path: Path) -> None:
    assert look_at_engine(["/nonexistent/docker"]) == Engine()
    good = program(tmp_path / "docker", "printf 'nova_api\\n\\033[2J\\n-x\\nkeystone\\n'")
    assert look_at_engine(["/nonexistent/docker", good]) == Engine(good, ("keystone", "nova_api"))
    bad = program(tmp_path / "podman", "echo Cannot connect >&2; exit 1")
    assert look_at_engine([bad]) == Engine(bad, (), f"{bad} ps: Cannot connect")


def test_a_look_at_this_machine_needs_no_ssh() -> None:
    found = in_this_process("here", ["look"])
    assert found.ending is Ending.DONE
    assert parse_look(found.result)[0].here


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
LOOK_KEYS = ("boot_id", "name", "interfaces", "plan", "pending", "restart", "given", "findings", "engine", "recording")


@given(changes=st.dictionaries(st.sampled_from(LOOK_KEYS), JSON, min_size=1), gone=st.sets(st.sampled_from(LOOK_KEYS)))
def test_whatever_a_host_answers_is_a_sight(changes: Mapping[str, Any], gone: set[str]) -> None:
    good = in_memory_look()
    result = {name: value for name, value in {**good, **changes}.items() if name not in gone}
    subject = subject_of()
    found = subject._sight(
        "gpu1", Outcome("gpu1", Ending.DONE, 0, "", result), replay(json.dumps(good["recording"]), "x")
    )
    assert found.problem or found.boot_id is not None


def in_memory_look() -> dict[str, Any]:
    if not LOOKS:
        LOOKS.append(dict(in_this_process("here", ["look"]).result))
    return LOOKS[0]


LOOKS: list[dict[str, Any]] = []


def subject_of(patience: float = 10, deploy: SiteDeploy | None = None) -> DeployHosts:
    """With a clock that goes on as it sleeps."""
    now = [0.0]

    def sleep(seconds: float) -> None:
        now[0] += seconds

    found = deploy or site().deploy
    assert found is not None
    return DeployHosts(found, FleetOptions(), patience, lambda: now[0], sleep)


Answer = Callable[[str, Sequence[str], int], Outcome]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[tuple[str, ...]]]:
    """Hosts that answer as a function says, to a verb with its words, the first, the second and so on time."""

    def with_answers(answer: Answer) -> list[tuple[str, ...]]:
        asked: list[tuple[str, ...]] = []

        def run(
            hosts: Sequence[str],
            verb: Sequence[str],
            options: object,
            on_event: object,
            own: Mapping[str, Sequence[str]],
        ) -> dict[str, Outcome]:
            found = {}
            for host in hosts:
                words = (verb[0], *own.get(host, ()))
                number = sum(one[:2] == (host, verb[0]) for one in asked)
                asked.append((host, *words))
                found[host] = answer(host, words, number)
            return found

        monkeypatch.setattr("gpuyard.host.fleet.run", run)
        return asked

    return with_answers


def boot(number: int) -> Outcome:
    return Outcome("h", Ending.DONE, 0, "", {"boot_id": f"boot-{number}", "rebooting": True})


GONE = Outcome("h", Ending.UNREACHABLE, 1, "connection refused")


def test_a_reboot_is_over_when_the_host_answers_out_of_another_boot(fleet: Any) -> None:
    looks = [boot(1), GONE, GONE, boot(2)]
    asked = fleet(lambda host, words, number: GONE if words[0] == "reboot" else looks[number])
    assert subject_of(patience=60).reboot({"gpu1": "boot-1"}) == {"gpu1": ""}
    assert asked[0] == ("gpu1", "reboot", "--boot-id", "boot-1")
    assert len(asked) == 5


def test_a_host_that_does_not_come_back_is_named_with_what_ssh_said(fleet: Any) -> None:
    fleet(lambda host, words, number: GONE if host == "gpu1" else boot(2))
    found = subject_of().reboot({"gpu1": "boot-1", "gpu2": "boot-1"})
    assert found["gpu2"] == ""
    assert found["gpu1"] == "not back after 0.166667 minutes: connection refused; look at its console"


def test_a_host_that_refuses_to_reboot_is_not_waited_for(fleet: Any) -> None:
    refusal = Outcome("h", Ending.DONE, 1, "only root may reboot this machine")
    asked = fleet(lambda host, words, number: refusal)
    assert subject_of().reboot({"gpu1": "boot-1"}) == {"gpu1": "only root may reboot this machine"}
    assert [one[1] for one in asked] == ["reboot"]


def test_wishes_addresses_and_users_reach_the_host(fleet: Any) -> None:
    deploy = site(
        deploy={
            **json.loads(site().model_dump_json())["deploy"],
            "user": "operator",
            "hosts": {
                "gpu1": {"address": "192.0.2.7", "iommu_pt": True, "unsafe_interrupts": False},
                "gpu2": {"roles": ["compute"]},
            },
        }
    ).deploy
    asked = fleet(lambda host, words, number: boot(1))
    assert subject_of(deploy=deploy).prepare(["gpu1", "gpu2"], {"gpu1": ["0000:27:00.0", "0000:28:00.0"]}) == {
        "gpu1": "",
        "gpu2": "",
    }
    assert asked == [
        (
            "operator@192.0.2.7",
            "apply",
            "--yes",
            "--iommu-pt",
            "--no-unsafe-interrupts",
            "--only",
            "0000:27:00.0,0000:28:00.0",
        ),
        ("operator@gpu2", "apply", "--yes"),
    ]


def test_what_differs_from_the_recording_is_a_fault_once_the_host_is_ready(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = answered(root, capsys, "look", "--keep", "01:00.0", "--keep", "02:00.0")
    other = Sysfs().function("05:00.0", "10de:1db4", group=1)
    subject = subject_of()
    outcome = Outcome("gpu1", Ending.DONE, 0, "", {**result, "plan": {**result["plan"], "steps": []}})
    assert (
        "05:00.0 Tesla V100 PCIe 16GB [10de:1db4] is gone"
        in subject._sight("gpu1", outcome, other.inventory()).faults[0]
    )
    unprepared = Outcome("gpu1", Ending.DONE, 0, "", answered(root, capsys, "look"))
    assert subject._sight("gpu1", unprepared, other.inventory()).faults == ()


def test_a_name_in_two_configurations_is_two_connections_of_ansible(tmp_path: Path) -> None:
    configuration, found = tmp_path / "my config", []
    for port in ("2201", "2202", "2202"):
        configuration.write_text(f"Host gpu1\n    HostName 127.0.0.1\n    Port {port}\n")
        found.append(ssh_variables(configuration))
        shown = subprocess.check_output(["ssh", *shlex.split(found[-1]["ANSIBLE_SSH_ARGS"]), "-G", "gpu1"], text=True)
        assert f"port {port}\n" in shown
    first, second, again = (one["ANSIBLE_SSH_CONTROL_PATH_DIR"] for one in found)
    assert first != second == again
