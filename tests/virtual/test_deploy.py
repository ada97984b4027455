"""Three bare machines become what a cloud is deployed to: planned, run, killed twice in the middle, and gone on with.

The machines are booted Debians with GRUB, initramfs and, two of them, two graphics cards each, which their own drivers
hold; they are reached by ssh, prepared, rebooted and proved. Of Kolla the plays are replaced that start containers
(tests/support/kolla_plays.py); its command line, inventory, passwords and post-deploy are the released ones.
"""

from __future__ import annotations

import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.support import sshd
from tests.support.kolla import NoKolla, install
from tests.support.kolla_plays import CONTAINERS_FILE, READY_FILE, PlayedKolla, with_plays_replaced
from tests.support.on_request import only_by
from tests.virtual_hypervisor import testing
from tests.virtual_hypervisor.ssh_machine import SshMachine, plain_host, ssh_configuration
from tests.virtual_hypervisor.topology import titan_xp_node

pytestmark = [
    pytest.mark.virtual,
    pytest.mark.slow,
    only_by("deploy", "ten minutes and more"),
    pytest.mark.flaky(reruns=0),  # it would boot them all again
]

GPUS, CONTROL = ["gpu1", "gpu2"], "ctl"
PATIENCE = 1200.0
"""Seconds for what a machine does, where others want the processors too."""
SITE: dict[str, Any] = {
    "site": "test",
    "release": "2026.1",
    "hosts": {name: {"recording": f"{name}.json"} for name in GPUS},
    "pools": {"titan-xp": {"models": ["10de:1b02"]}},
    "flavors": {"gpu": {"vcpus": 1, "ram": "1 GiB", "disk": "1 GiB", "gpus": {"titan-xp": 1}}},
}


@dataclass(frozen=True)
class Harness:
    """The machines, Kolla, a site file, and the command that deploys it."""

    folder: Path
    machines: dict[str, SshMachine]
    configuration: Path
    played: PlayedKolla

    @property
    def kolla(self) -> Path:
        return self.folder / "kolla"

    def words(self, verb: str, *more: str) -> list[str]:
        words = [sys.executable, "-m", "gpuyard.cli.main", "deploy", verb, "--site", str(self.folder / "site.yaml")]
        words += ["--kolla", str(self.kolla), "--kolla-ansible", str(self.played.program)]
        words += ["--ssh-config", str(self.configuration), "--state", str(self.folder / "state")]
        return [*words, "--until", "post-deploy", *more]

    def run(self, verb: str, *more: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            self.words(verb, *more),
            capture_output=True,
            text=True,
            env=self.played.environment,
            stdin=subprocess.DEVNULL,
        )
        print(done.stdout, done.stderr)
        return done

    def killed(self, when: str, then: Path | None = None) -> str:
        """A run that is killed once it has printed `when`, and `then` is there. What it printed."""
        log_path = self.folder / "said"
        with (
            log_path.open("wb") as output,
            subprocess.Popen(
                self.words("run", "--yes"), stdout=output, stderr=output, env=self.played.environment
            ) as process,
        ):
            try:
                end = time.monotonic() + PATIENCE
                while when not in log_path.read_text() or (then is not None and not then.exists()):
                    assert process.poll() is None, log_path.read_text()
                    assert time.monotonic() < end, log_path.read_text()
                    time.sleep(0.2)
            finally:
                process.kill()
        print(log_path.read_text())
        return log_path.read_text()

    def ssh(self, host: str, command: str) -> str:
        words = ["ssh", "-F", str(self.configuration), "-o", "ConnectTimeout=10", host, command]
        done = subprocess.run(words, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def wait(self, host: str) -> None:
        words = ["ssh", "-F", str(self.configuration), "-o", "ConnectTimeout=10", host, "true"]
        end = time.monotonic() + PATIENCE
        while (done := subprocess.run(words, capture_output=True, text=True)).returncode:
            assert time.monotonic() < end, f"{done.stderr}\n{self.machines[host].console[-3000:]}"
            time.sleep(2)


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Harness]:
    if why := sshd.missing():
        pytest.skip(why)
    try:
        kolla = install()
    except NoKolla as error:
        pytest.skip(str(error))
    build = testing.prepared()
    image = testing.installed(build)
    keys = tmp_path / "keys"
    keys.mkdir()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", keys / name], check=True)
    with ExitStack() as stack:
        machines = {
            name: stack.enter_context(
                SshMachine(
                    name,
                    build,
                    image,
                    titan_xp_node(exact=False) if name in GPUS else plain_host(),
                    tmp_path / name,
                    keys,
                )
            )
            for name in (CONTROL, *GPUS)
        }
        configuration = ssh_configuration(list(machines.values()), keys)
        inventory = Harness(tmp_path, machines, configuration, PlayedKolla(tmp_path / "played", kolla))
        for name in machines:
            inventory.wait(name)
        (interface,) = (device for device in inventory.ssh(CONTROL, "ls /sys/class/net").split() if device != "lo")
        with_plays_replaced(kolla, tmp_path / "played", "", interface, "lo")
        deploy = {
            "base": "debian",
            "interface": interface,
            "external_interface": "lo",
            "vip": "192.0.2.250",
            "hosts": {
                CONTROL: {"roles": ["control", "network"]},
                **{name: {"roles": ["compute"], "iommu_pt": True} for name in GPUS},
            },
        }
        (tmp_path / "site.yaml").write_text(json.dumps({**SITE, "deploy": deploy}))
        yield inventory


def test_three_bare_machines_killed_in_the_middle_of_a_reboot_and_of_a_deployment(inventory: Harness) -> None:
    planned = inventory.run("plan")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    assert "+  prepare gpu1: to do" in planned.stdout
    assert "+ create file /etc/gpuyard/passthrough" in planned.stdout
    assert ".  reboot gpu2: later" in planned.stdout
    assert "     kernel option iommu=pt" in planned.stdout

    # gpu1 is down already and on its way up; of gpu2 nobody knows.
    inventory.killed("[3/14] reboot gpu1, gpu2: started", inventory.folder / "gpu1/console-2")

    inventory.played.hold.touch()
    inventory.killed("[13/14] deploy: started", inventory.folder / "played/hold.reached")
    assert "keystone" in inventory.ssh(CONTROL, f"cat /{CONTAINERS_FILE}")
    assert inventory.ssh("gpu1", f"cat /{CONTAINERS_FILE}") == ""
    inventory.played.hold.unlink()
    with (inventory.folder / "state/test.journal").open() as journal:  # Ansible goes on until it has something to say
        fcntl.flock(journal, fcntl.LOCK_EX)

    done = inventory.run("run", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "[13/14] deploy: done after" in done.stdout
    assert "[2/14]" not in done.stdout

    for name in GPUS:
        assert "iommu=pt" in inventory.ssh(name, "cat /proc/cmdline").split()
        drivers = inventory.ssh(
            name, "cd /sys/bus/pci/devices; readlink 0000:18:00.?/driver 0000:86:00.?/driver"
        ).split()
        assert [path.rpartition("/")[2] for path in drivers] == ["vfio-pci"] * 4
    assert [inventory.machines[name].boots for name in (CONTROL, *GPUS)] == [2, 3, 3]
    assert all(inventory.ssh(name, f"ls /{READY_FILE}") for name in inventory.machines)
    clouds = YAML(typ="safe").load((inventory.kolla / "clouds.yaml").read_text())["clouds"]
    assert clouds["kolla-admin"]["auth"]["auth_url"] == "http://192.0.2.250:5000"
    specs = (inventory.kolla / "config/nova/gpu1/nova-compute.conf").read_text()
    assert "0000:18:00.0" in specs
    assert "0000:86:00.0" in specs

    assert inventory.run("run", "--yes").stdout == "Nothing to do: all is as the site file says.\n"
