"""What a deployment asks hosts: the verbs on the host, what is made of their answers, and the wait for a reboot."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.deployment.hosts import DeployHosts, in_this_process, parse_look
from gpuyard.deployment.ports import ssh_variables
from gpuyard.host.__main__ import main
from gpuyard.host.fleet import Ending, FleetOptions, Outcome
from gpuyard.host.network import HostInterface, observe_interfaces, parse_interfaces
from gpuyard.host.preparation.passthrough import LIST_FILE
from gpuyard.host.recording import replay
from gpuyard.host.standing import (
    Engine,
    RebootHint,
    hypervisor_processes,
    look_at_engines,
    reboot_hint,
    refuse_reboot,
)
from gpuyard.host.tree import FileTree
from gpuyard.model.errors import BlockedError
from gpuyard.site.deploy_rules import SiteDeploy
from tests.support import rhel as rhel_model
from tests.support.deployments import site
from tests.support.fake_hosts import make_hosts
from tests.support.hypervisors import titan_xp
from tests.support.rhel import rhel
from tests.support.sysfs import Sysfs
from tests.unit.host.test_scan import materialise

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
    return folder


def answered(root: Path, capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    main(["--root", str(root), *words, "--json"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def test_look_has_everything_that_a_deployment_asks(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    answer = answered(root, capsys, "look", "--keep", "02:00.0")
    assert answer["exit"] == 0
    state, inventory = parse_look(answer)
    assert (state.boot_id, state.name, state.restart, state.here) == ("boot-1", "gpu1", True, False)
    assert "lo" in {interface.name for interface in state.interfaces}
    assert f"+ create file /{LIST_FILE}" in state.changes
    assert (state.pending, state.given, state.faults) == ((), (), ())
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
        return {name: shape(item, depth - 1) for name, item in value.items()}
    if isinstance(value, list) and depth and value and isinstance(value[0], dict):
        return [shape(value[0], depth - 1)]
    return type(value)


def test_a_reboot_is_of_the_boot_that_is_named_and_of_this_machine(
    root: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "reboot is for this machine" in answered(root, capsys, "reboot", "--boot-id", "boot-1")["error"]
    assert in_this_process("here", ["reboot", "--boot-id", "another one"]).result["rebooting"] is False
    assert "say in which boot the machine is" in in_this_process("here", ["reboot"]).reason


REBOOT = (
    "import sys; from gpuyard.host import standing, tree; "
    "standing.reboot_soon(tree.FileTree(sys.argv[1]), 0.2, sys.argv[2:])"
)
"""In a process of its own, as on a host: it forks."""


def test_a_reboot_comes_soon_and_by_itself(tmp_path: Path) -> None:
    (tmp_path / "proc/1").mkdir(parents=True)
    subprocess.run([sys.executable, "-c", REBOOT, str(tmp_path), "touch", str(tmp_path / "rebooted")], check=True)
    until(lambda: (tmp_path / "rebooted").exists())


def until(true: Callable[[], bool]) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_server_that_is_started_at_the_last_moment_keeps_its_machine_up(tmp_path: Path) -> None:
    """Which the look has not seen: the check and the reboot are one process."""
    done = tmp_path / "rebooted"
    for root, pid, name in (("", 1, "systemd"), ("", 77, "qemu-system-x86"), ("nothing", 1, "systemd")):
        (tmp_path / root / f"proc/{pid}").mkdir(parents=True)
        (tmp_path / root / f"proc/{pid}/comm").write_text(f"{name}\n")
    words = [sys.executable, "-c", REBOOT, str(tmp_path), "touch", str(done)]
    subprocess.run(words, check=True)
    subprocess.run([*words[:3], str(tmp_path / "nothing"), "touch", str(tmp_path / "other")], check=True)
    until(lambda: (tmp_path / "other").exists())
    time.sleep(0.3)
    assert not done.exists()


@pytest.fixture
def guest(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A real process whose program is called as Debian's QEMU."""
    program = tmp_path / "qemu-system-x86_64"
    shutil.copy("/bin/sleep", program)
    process = subprocess.Popen([str(program), "60"])
    yield process
    process.kill()
    process.wait()


def test_a_server_is_a_process_of_the_machine_whatever_has_started_it(
    guest: subprocess.Popen[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rebooted: list[object] = []
    monkeypatch.setattr("gpuyard.host.standing.reboot_soon", rebooted.append)
    monkeypatch.setattr("os.geteuid", lambda: 0)
    name = f"qemu-system-x86_64 (process {guest.pid})"
    assert name in hypervisor_processes(FileTree())
    (tmp_path / "qemu-system-x86_64").unlink()  # as an upgrade does
    assert name in hypervisor_processes(FileTree())
    sight = parse_look(in_this_process("here", ["look"]).result)[0]
    assert name in sight.hypervisor
    with pytest.raises(BlockedError, match="servers would go down: "):
        refuse_reboot(FileTree())
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    refused = in_this_process("here", ["reboot", "--boot-id", boot])
    assert "servers would go down: " in refused.reason
    assert not rebooted


def test_a_nova_compute_is_called_as_its_script(tmp_path: Path) -> None:
    """It is Python's, and the kernel calls a process as the file that was to be executed."""
    script = program(tmp_path / "nova-compute", "read word")
    with subprocess.Popen([script], stdin=subprocess.PIPE) as process:
        try:
            until(lambda: f"nova-compute (process {process.pid})" in hypervisor_processes(FileTree()))
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("comm", "program", "is_one"),
    [
        ("qemu-system-x86", "/usr/bin/qemu-system-x86_64", True),  # Debian, Ubuntu
        ("qemu-kvm", "/usr/libexec/qemu-kvm", True),  # RHEL and its kin
        ("kvm", "/usr/bin/qemu-system-x86_64 (deleted)", True),
        ("qemu-system-aar", None, True),  # of another user
        ("qemu:instance-0", "/usr/bin/elsewhere", True),
        ("nova-compute", "/usr/bin/python3.11", True),
        ("nova-compute: m", "/usr/bin/python3.11", True),  # setproctitle 1.3.8 sets both names
        ("nova-compute-ex", "/usr/bin/python3.11", False),
        ("qemu-img", "/usr/bin/qemu-img", False),
        ("qemu-ga", "/usr/sbin/qemu-ga", False),
        ("qemu-nbd", "/usr/bin/qemu-nbd", False),
        ("kvm-nx-lpage-re", None, False),  # a thread of the kernel
        ("CPU 0/KVM", None, False),
        ("nova-conductor", "/usr/bin/python3.11", False),
        ("libvirtd", "/usr/sbin/libvirtd", False),
        ("vim", "/home/qemu-kvm/vim", False),
    ],
)
def test_processes_that_a_reboot_must_not_end(tmp_path: Path, comm: str, program: str | None, is_one: bool) -> None:
    folder = tmp_path / "proc/4711"
    folder.mkdir(parents=True)
    (folder / "comm").write_text(f"{comm}\n")
    (tmp_path / "proc/sys").mkdir()
    if program is not None:
        (folder / "exe").symlink_to(program)
    assert bool(hypervisor_processes(FileTree(str(tmp_path)))) is is_one


def test_a_process_with_a_virtual_machine_of_kvm_is_a_server_whatever_its_name(tmp_path: Path) -> None:
    """As Linux 6.1 shows the descriptor that KVM_CREATE_VM gives."""
    (tmp_path / "proc/77/fd").mkdir(parents=True)
    (tmp_path / "proc/77/comm").write_text("emulator\n")
    (tmp_path / "proc/77/fd/9").symlink_to("/dev/kvm")
    assert not hypervisor_processes(FileTree(str(tmp_path)))
    (tmp_path / "proc/77/fd/10").symlink_to("anon_inode:kvm-vm")
    assert hypervisor_processes(FileTree(str(tmp_path))) == ("emulator (process 77)",)


def test_a_machine_whose_processes_are_hidden_is_not_rebooted(tmp_path: Path) -> None:
    with pytest.raises(BlockedError, match="cannot be seen"):
        refuse_reboot(FileTree(str(tmp_path)))
    (tmp_path / "proc/1").mkdir(parents=True)
    refuse_reboot(FileTree(str(tmp_path)))


def program(path: Path, text: str) -> str:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


IP_OUTPUT = json.loads("""[{},
{"ifindex":1,"ifname":"lo","flags":["LOOPBACK","UP","LOWER_UP"],"operstate":"UNKNOWN","addr_info":[
  {"family":"inet","local":"127.0.0.1","prefixlen":8,"scope":"host","label":"lo"},
  {"family":"inet6","local":"::1","prefixlen":128,"scope":"host"},
  {"family":"inet","local":"10.9.9.9","prefixlen":32,"scope":"global","label":"lo"}]},
{"ifindex":2,"ifname":"eno1","flags":["BROADCAST","MULTICAST","SLAVE","UP"],"master":"bond0","addr_info":[]},
{"ifindex":4,"ifname":"bond0","flags":["BROADCAST","MULTICAST","MASTER","UP"],"addr_info":[
  {"family":"inet","local":"10.0.0.11","prefixlen":24,"broadcast":"10.0.0.255","scope":"global","label":"bond0"},
  {"family":"inet","local":"10.0.0.12","prefixlen":24,"scope":"global","secondary":true,"label":"bond0"},
  {"family":"inet6","local":"fd00::11","prefixlen":64,"scope":"global"},
  {"family":"inet6","local":"fe80::fc:ff","prefixlen":64,"scope":"link"}]},
{"ifindex":5,"link":"bond0","ifname":"bond0.7","flags":["BROADCAST"],"addr_info":[]}]""")
"""As ip of iproute2 6.1 prints it, with fewer keys: a bond made of veth interfaces in a network namespace."""


def test_interfaces_have_the_addresses_by_which_others_reach_the_host() -> None:
    assert parse_interfaces(IP_OUTPUT, ["bond0"]) == (
        HostInterface("lo", ("10.9.9.9",)),
        HostInterface("eno1", (), "bond0"),
        HostInterface("bond0", ("10.0.0.11", "10.0.0.12", "fd00::11"), "", True),
        HostInterface("bond0.7"),
    )


def test_interfaces_of_this_machine_are_those_of_the_kernel(tmp_path: Path) -> None:
    interfaces, problem = observe_interfaces(FileTree())
    assert problem == ""
    assert {interface.name for interface in interfaces} == {*os.listdir("/sys/class/net")}
    assert observe_interfaces(FileTree(), ["/nonexistent/ip"])[1].startswith("/nonexistent/ip is not there; install")
    for text, reason in (
        ("echo broken >&2; exit 1", "broken"),
        ("echo '[1]'", "not its list"),
        ("echo nonsense", "not its list"),
        ('echo \'[{"ifname": "x", "addr_info": 1}]\'', "not its list"),
    ):
        assert reason in observe_interfaces(FileTree(), [program(tmp_path / "ip", text)])[1]


def test_a_container_engine_is_asked_for_names_and_believed_in_nothing_else(tmp_path: Path) -> None:
    assert look_at_engines(["/nonexistent/docker"]) == Engine()
    good = program(tmp_path / "docker", "printf 'nova_api\\n\\033[2J\\n-x\\nkeystone\\n'")
    assert look_at_engines(["/nonexistent/docker", good]) == Engine(good, ("keystone", "nova_api"))
    images = program(
        tmp_path / "images",
        "printf '%s\\n' 'nova_api quay.io/openstack.kolla/nova-api:2025.1-ubuntu-noble' 'mine registry:5000/mine:7'"
        " 'neutron_server quay.io/openstack.kolla/neutron-server:2025.2-rocky-10' 'keystone a/b:2026.1'",
    )
    assert look_at_engines([images]) == Engine(
        images, ("keystone", "mine", "neutron_server", "nova_api"), "", ("2025.1", "2025.2")
    )
    bad = program(tmp_path / "podman", "echo Cannot connect >&2; exit 1")
    assert look_at_engines([bad]) == Engine(bad, (), f"{bad} ps: Cannot connect")
    both = look_at_engines([good, bad])
    assert (both.name, both.containers, both.problem) == (good, ("keystone", "nova_api"), f"{bad} ps: Cannot connect")


@pytest.mark.parametrize("version", ["dnf", "dnf5"])
def test_packages_of_rocky_ask_for_a_reboot_by_dnf(
    tmp_path: Path, version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In any language; a failure has the exit code of a reboot, and is none."""
    monkeypatch.setenv("LANGUAGE", "de")
    tree = rhel().tree
    dnf = rhel_model.dnf
    assert reboot_hint(tree, dnf(tmp_path / "due", ["glibc", "kernel"], version)) == RebootHint(True)
    assert reboot_hint(tree, dnf(tmp_path / "none", [], version)) == RebootHint()
    missing = reboot_hint(tree, dnf(tmp_path / "bare", version=version, plugin=False))
    assert missing == RebootHint(
        False,
        "whether packages ask for a reboot is not known: dnf has no needs-restarting; type 'dnf install "
        f"{'dnf-utils' if version == 'dnf' else 'dnf5-plugins'}' there",
    )
    broken = reboot_hint(tree, dnf(tmp_path / "broken", version=version, error="Error: rpmdb open failed"))
    assert not broken.required
    assert "needs-restarting -r: Error: rpmdb open failed; mend that" in broken.problem
    assert "install dnf and dnf-utils" in reboot_hint(tree, str(tmp_path / "nothing")).problem


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        (rhel_model.OS_RELEASE, True),
        ('ID="rhel"\nID_LIKE="fedora"\n', True),
        ("ID=fedora\n", True),
        ("ID=ubuntu\nID_LIKE=debian\nHOME_URL=https://fedora.example/rhel\n", False),
        ("ID=debian\n", False),
        ("", False),
    ],
)
def test_dnf_is_asked_on_the_rhel_family_alone(tmp_path: Path, text: str, asked: bool) -> None:
    """Debian has a package dnf, too, which knows nothing of Debian's packages."""
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/os-release").write_text(text)
    asking = rhel_model.dnf(tmp_path / "dnf", ["kernel"])
    assert reboot_hint(FileTree(str(tmp_path)), asking) == RebootHint(asked)


def test_containers_of_every_engine_are_seen_and_those_that_are_stopped(tmp_path: Path) -> None:
    """docker with nothing in it beside Kolla's podman; and podman's `ps --all` has what has been stopped."""
    docker = program(tmp_path / "docker", "exit 0")
    podman = program(
        tmp_path / "podman", 'echo "cron i"; for word; do [ "$word" != --all ] || echo "nova_compute i"; done'
    )
    assert look_at_engines([docker, podman]) == Engine(docker, ("cron",), "", (), ("nova_compute",))


def test_a_look_at_this_machine_needs_no_ssh() -> None:
    outcome = in_this_process("here", ["look"])
    assert outcome.ending is Ending.DONE
    assert parse_look(outcome.result)[0].here


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=9), inner, max_size=3),
    max_leaves=6,
)
LOOK_KEYS = (
    "boot_id",
    "name",
    "interfaces",
    "interfaces_problem",
    "plan",
    "pending",
    "restart",
    "restart_problem",
    "given",
    "findings",
    "engine",
    "hypervisor",
    "recording",
)


@given(changes=st.dictionaries(st.sampled_from(LOOK_KEYS), JSON, min_size=1), gone=st.sets(st.sampled_from(LOOK_KEYS)))
def test_whatever_a_host_answers_is_a_sight(changes: Mapping[str, Any], gone: set[str]) -> None:
    good = in_memory_look()
    result = {name: value for name, value in {**good, **changes}.items() if name not in gone}
    subject = subject_of()
    sight = subject._state_of(
        "gpu1", Outcome("gpu1", Ending.DONE, 0, "", result), replay(json.dumps(good["recording"]), "x")
    )
    assert sight.problem or sight.boot_id is not None


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

    site_deploy = deploy or site().deploy
    assert site_deploy is not None
    return DeployHosts(site_deploy, FleetOptions(), patience, lambda: now[0], sleep)


Answer = Callable[[str, Sequence[str], int], Outcome]


@pytest.fixture
def fleet(monkeypatch: pytest.MonkeyPatch) -> Callable[[Answer], list[tuple[str, ...]]]:
    """Hosts that answer as a function says, to a verb with its words, the first, the second and so on time."""

    def with_answers(answer: Answer) -> list[tuple[str, ...]]:
        calls: list[tuple[str, ...]] = []

        def run(
            hosts: Sequence[str],
            verb: Sequence[str],
            options: object,
            on_event: object,
            own: Mapping[str, Sequence[str]],
        ) -> dict[str, Outcome]:
            outcomes = {}
            for host in hosts:
                words = (verb[0], *own.get(host, ()))
                number = sum(call[:2] == (host, verb[0]) for call in calls)
                calls.append((host, *words))
                outcomes[host] = answer(host, words, number)
            return outcomes

        monkeypatch.setattr("gpuyard.host.fleet.run", run)
        return calls

    return with_answers


def boot(number: int) -> Outcome:
    return Outcome("h", Ending.DONE, 0, "", {"boot_id": f"boot-{number}", "rebooting": True})


GONE = Outcome("h", Ending.UNREACHABLE, 1, "connection refused")


def test_a_reboot_is_over_when_the_host_answers_out_of_another_boot(fleet: Any) -> None:
    looks = [boot(1), GONE, GONE, boot(2)]
    calls = fleet(lambda host, words, number: GONE if words[0] == "reboot" else looks[number])
    assert subject_of(patience=60).reboot({"gpu1": "boot-1"}) == {"gpu1": ""}
    assert calls[0] == ("gpu1", "reboot", "--boot-id", "boot-1")
    assert len(calls) == 5


def test_a_host_that_does_not_come_back_is_named_with_what_ssh_said(fleet: Any) -> None:
    fleet(lambda host, words, number: GONE if host == "gpu1" else boot(2))
    problems = subject_of().reboot({"gpu1": "boot-1", "gpu2": "boot-1"})
    assert problems["gpu2"] == ""
    assert problems["gpu1"] == "not back after 0.166667 minutes: connection refused; look at its console"


def test_a_host_that_refuses_to_reboot_is_not_waited_for(fleet: Any) -> None:
    refusal = Outcome("h", Ending.DONE, 1, "only root may reboot this machine")
    calls = fleet(lambda host, words, number: refusal)
    assert subject_of().reboot({"gpu1": "boot-1"}) == {"gpu1": "only root may reboot this machine"}
    assert [call[1] for call in calls] == ["reboot"]


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
    calls = fleet(lambda host, words, number: boot(1))
    assert subject_of(deploy=deploy).prepare(["gpu1", "gpu2"], {"gpu1": ["0000:27:00.0", "0000:28:00.0"]}) == {
        "gpu1": "",
        "gpu2": "",
    }
    assert calls == [
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
        in subject._state_of("gpu1", outcome, other.inventory()).faults[0]
    )
    unprepared = Outcome("gpu1", Ending.DONE, 0, "", answered(root, capsys, "look"))
    assert subject._state_of("gpu1", unprepared, other.inventory()).faults == ()


def test_a_name_in_two_configurations_is_two_connections_of_ansible(tmp_path: Path) -> None:
    configuration, environments = tmp_path / "my config", []
    for port in ("2201", "2202", "2202"):
        configuration.write_text(f"Host gpu1\n    HostName 127.0.0.1\n    Port {port}\n")
        environments.append(ssh_variables(configuration))
        shown = subprocess.check_output(
            ["ssh", *shlex.split(environments[-1]["ANSIBLE_SSH_ARGS"]), "-G", "gpu1"], text=True
        )
        assert f"port {port}\n" in shown
    first, second, again = (environment["ANSIBLE_SSH_CONTROL_PATH_DIR"] for environment in environments)
    assert first != second == again
