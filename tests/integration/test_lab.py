"""The lab as people use it: it comes up, heals, lets others be, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openstack
import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.site.load import load_site
from gpuyard_lab import control, processes
from gpuyard_lab.credentials import DEMO, passwords
from gpuyard_lab.errors import LabError, LabSettingsError
from gpuyard_lab.http import call
from gpuyard_lab.identity import BASE_LIMITS
from gpuyard_lab.plan import LabDevice, LabHost, LabPlan
from gpuyard_lab.settings import LabSettings
from tests.integration.conftest import RunningLab, start_lab
from tests.support.sites import plain_site

pytestmark = pytest.mark.lab

PLACEMENT = {"OpenStack-API-Version": "placement 1.39"}
MEMORY_LIMIT_MIB = 1228


class TestTheLabOfTheExampleSite:
    def test_everything_is_up_and_small(self, lab: RunningLab) -> None:
        status = control.status(lab.settings)
        assert status.healthy
        assert set(status.hosts) == set(load_site(plain_site()).inventories)
        assert status.memory_mib < MEMORY_LIMIT_MIB

    def test_connections_that_clients_leave_open_keep_nobody_out(self, lab: RunningLab) -> None:
        """With the server's own limit, 100, the next request would wait until they time out, for minutes."""
        address = ("127.0.0.1", lab.lab.port("placement"))
        idle = [socket.create_connection(address, timeout=5) for _ in range(150)]
        try:
            assert call("GET", lab.lab.url("placement") + "/", timeout_s=10).body["versions"]
        finally:
            for connection in idle:
                connection.close()

    def test_status_is_a_table_and_an_exit_code(self, lab: RunningLab) -> None:
        result = CliRunner().invoke(app, ["lab", "status", "--state", str(lab.settings.state), "-f", "json"])
        assert result.exit_code == 0
        rows = {row["Name"]: row for row in json.loads(result.stdout)}
        assert list(rows) == ["keystone", "placement", "glance", "neutron", "nova", "postgresql"]
        assert {row["State"] for row in rows.values()} == {"up"}
        assert rows["nova"]["URL"] == lab.lab.url("nova")

    def test_a_second_up_has_nothing_to_do(self, lab: RunningLab) -> None:
        result = CliRunner().invoke(app, ["lab", "up", "--bare", "--state", str(lab.settings.state)])
        assert result.exit_code == 0, result.output
        assert "The lab is up already: 6 hosts" in result.stdout

    def test_placement_has_every_usable_gpu_of_the_site(
        self, lab: RunningLab, admin: openstack.connection.Connection
    ) -> None:
        site = load_site(plain_site())
        offered = {gpu.provider_name: gpu.resource_class for gpu in site.compiled.gpus if not gpu.blocked}
        assert gpu_providers(admin) == offered

    def test_a_user_boots_a_server_without_a_gpu(self, lab: RunningLab, demo: openstack.connection.Connection) -> None:
        flavor = lab.admin.compute.create_flavor(name="lab-test-cpu", ram=512, vcpus=1, disk=1)
        try:
            server = boot(demo, flavor.id)
            assert server.status == "ACTIVE"
            demo.compute.delete_server(server)
            demo.compute.wait_for_delete(server, interval=0.1)
        finally:
            lab.admin.compute.delete_flavor(flavor)

    def test_base_limits_are_there(self, lab: RunningLab, admin: openstack.connection.Connection) -> None:
        limits = admin.identity.get("/registered_limits").json()["registered_limits"]
        assert {limit["resource_name"] for limit in limits} >= BASE_LIMITS.keys()

    def test_no_password_is_in_a_log_or_a_command_line(self, lab: RunningLab) -> None:
        secret = {value for user, value in passwords(lab.lab).items() if user != DEMO}
        commands = [Path(f"/proc/{process.pid}/cmdline").read_text() for process in processes.find(lab.settings.state)]
        logs = [log.read_text(errors="replace") for log in lab.lab.log.iterdir()]
        assert len(logs) == 5
        for text in (*commands, *logs):
            assert not [value for value in secret if value in text]


SAME_ADDRESSES = tuple(LabDevice(f"0000:{bus}:00.0", "10de", "1db4", numa_node=0) for bus in ("17", "65", "ca"))
OTHER_DEVICE = LabDevice("0000:00:1f.0", "8086", "a1c1")
NOVA = """\
[pci]
alias = {"name": "v100", "resource_class": "CUSTOM_GPU_V100", "device_type": "type-PCI"}
[filter_scheduler]
pci_in_placement = true
"""
SCHEDULER = "[DEFAULT]\nexecutor_thread_pool_size = 1\n[scheduler]\nworkers = 1\n"


def host(name: str, ram_ratio: float | None, *offered: tuple[LabDevice, str]) -> LabHost:
    """A host with the same PCI functions as the others, of which it offers its own choice."""
    lines = ["[pci]", "report_in_placement = true"]
    for device, resource_class in offered:
        spec = {"address": device.address, "vendor_id": "10de", "product_id": "1db4", "resource_class": resource_class}
        lines.append(f"device_spec = {json.dumps(spec)}")
    if ram_ratio:
        lines += ["[DEFAULT]", f"ram_allocation_ratio = {ram_ratio}"]
    return LabHost(name, 16, 65536, 500, (*SAME_ADDRESSES, OTHER_DEVICE), "\n".join([*lines, ""]))


ONE = host("one", 1.25, (SAME_ADDRESSES[0], "CUSTOM_GPU_V100"), (SAME_ADDRESSES[1], "CUSTOM_GPU_V100_PEER"))
TWO = host("two", None, (SAME_ADDRESSES[1], "CUSTOM_GPU_V100"))
BARE = LabHost("bare", 8, 16384, 100, (OTHER_DEVICE,))
PLAN = LabPlan((ONE, TWO, BARE), NOVA, SCHEDULER)


@pytest.fixture(scope="module")
def small(lab: RunningLab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningLab]:
    """A lab that tests may break, beside the one that they may not, and in a folder with a long path."""
    state = tmp_path_factory.mktemp("lab") / ("deep" * 20) / ("deeper" * 10)
    running = start_lab(state, PLAN)
    yield running
    control.down(running.settings)


class TestALabThatIsBroken:
    """In this order; each leaves the lab up."""

    def test_two_labs_run_side_by_side(self, lab: RunningLab, small: RunningLab) -> None:
        assert small.status.healthy
        assert control.status(lab.settings).healthy

    def test_hosts_with_the_same_addresses_offer_what_their_own_options_say(self, small: RunningLab) -> None:
        assert gpu_providers(small.admin) == {
            "one_0000:17:00.0": "CUSTOM_GPU_V100",
            "one_0000:65:00.0": "CUSTOM_GPU_V100_PEER",
            "two_0000:65:00.0": "CUSTOM_GPU_V100",
        }

    def test_hosts_have_their_own_resources_and_ratios(self, small: RunningLab) -> None:
        memory = {name: inventories["MEMORY_MB"] for name, inventories in root_inventories(small.admin).items()}
        assert {name: (inventory["total"], inventory["allocation_ratio"]) for name, inventory in memory.items()} == {
            "one": (65536, 1.25),
            "two": (65536, 1.0),
            "bare": (16384, 1.0),
        }

    def test_servers_get_gpus_until_there_are_none(self, small: RunningLab) -> None:
        flavor = small.admin.compute.create_flavor(name="gpu", ram=1024, vcpus=1, disk=1)
        small.admin.compute.create_flavor_extra_specs(flavor, {"pci_passthrough:alias": "v100:1"})
        servers = [boot(small.demo, flavor.id) for _ in range(3)]
        assert [server.status for server in servers] == ["ACTIVE", "ACTIVE", "ERROR"]
        small.demo.compute.delete_server(servers[2])
        small.demo.compute.stop_server(servers[1])
        small.demo.compute.wait_for_server(servers[1], "SHUTOFF", interval=0.1)

    def test_a_killed_nova_is_seen_and_healed_and_servers_are_still_there(self, small: RunningLab) -> None:
        before = server_states(small.admin)
        assert sorted(before.values()) == [("ACTIVE", 1), ("SHUTOFF", 4)]
        kill(small, "nova")
        result = CliRunner().invoke(app, ["lab", "status", "--state", str(small.settings.state)])
        assert result.exit_code == 3
        assert "| down " in result.stdout
        phases = control.up(small.settings, PLAN).phases
        assert phases[0].name == "ended what was running"
        assert server_states(small.admin) == before
        server = next(s for s in small.demo.compute.servers() if s.status == "SHUTOFF")
        small.demo.compute.start_server(server)  # the hypervisor knows it
        small.demo.compute.wait_for_server(server, "ACTIVE", interval=0.1)

    def test_a_killed_database_is_healed(self, small: RunningLab) -> None:
        kill(small, "postgresql")
        assert not control.status(small.settings).healthy
        assert control.up(small.settings, PLAN).healthy
        assert len(server_states(small.admin)) == 2

    def test_a_start_that_was_killed_half_way_is_finished_by_the_next(self, small: RunningLab) -> None:
        control.down(small.settings)
        starting = interrupted_start(small.settings, PLAN)
        assert starting == -signal.SIGKILL
        left = processes.find(small.settings.state)
        assert left
        assert not control.status(small.settings).healthy
        assert control.up(small.settings, PLAN).healthy
        assert not set(left) & set(processes.find(small.settings.state))

    def test_a_host_that_is_gone_from_the_site_goes_unless_it_has_servers(self, small: RunningLab) -> None:
        used = {server.compute_host for server in small.admin.compute.servers(all_projects=True)}
        assert used == {"one", "two"}
        status = control.up(small.settings, LabPlan((ONE,), NOVA, SCHEDULER))
        assert status.hosts == {"one": True}
        assert set(root_inventories(small.admin)) == {"one", "two"}  # Nova keeps what it has servers on
        assert control.up(small.settings, PLAN).hosts == {"one": True, "two": True, "bare": True}

    def test_down_leaves_no_process(self, small: RunningLab) -> None:
        pids = [process.pid for process in processes.find(small.settings.state)]
        result = CliRunner().invoke(app, ["lab", "down", "--state", str(small.settings.state)])
        assert result.exit_code == 0
        assert processes.find(small.settings.state) == ()
        assert [pid for pid in pids if Path(f"/proc/{pid}").exists()] == []
        again = CliRunner().invoke(app, ["lab", "down", "--state", str(small.settings.state)])
        assert again.exit_code == 0
        assert "No lab runs" in again.stdout

    def test_a_port_in_use_is_named_before_anything_is_started(self, small: RunningLab) -> None:
        port = small.lab.port("neutron")
        with socket.socket() as taken:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            taken.bind(("127.0.0.1", port))
            taken.listen()
            with pytest.raises(LabSettingsError, match=rf"port {port}, for neutron, is in use by .*--port-base"):
                control.up(small.settings, PLAN)
        assert processes.find(small.settings.state) == ()

    def test_a_service_that_does_not_start_is_named_with_its_log(self, small: RunningLab) -> None:
        wrong = LabPlan((ONE,), NOVA + "[workarounds]\n[pci]\nalias = not json\n", SCHEDULER)
        with pytest.raises(LabError, match=r"(?s)nova ended with status 1 .*nova\.log.*alias"):
            control.up(small.settings, wrong)
        assert processes.find(small.settings.state) == ()

    def test_it_can_move_to_other_ports(self, small: RunningLab) -> None:
        moved = LabSettings(small.settings.state, port_base=small.lab.port_base + 5)
        status = control.up(moved, PLAN)
        assert status.healthy
        assert status.services[0].url == f"http://127.0.0.1:{small.lab.port_base}"
        assert len(list(small.connect("gpuyard-lab-demo").compute.servers())) == 2  # found through the catalogue


@pytest.mark.slow
class TestALabOnAServer:
    """A database server that is not the lab's: for once, the one of the other lab."""

    def test_databases_are_made_on_the_server_and_only_its_own_are_dropped(
        self, lab: RunningLab, tmp_path: Path
    ) -> None:
        url = lab.lab.database_url("other_{name}")
        settings = LabSettings(tmp_path / "a", port_base=25000, database=url)
        try:
            status = control.up(settings, PLAN)
            assert status.healthy
            assert "postgresql" not in {service.name for service in status.services}
            control.down(settings)
            second = LabSettings(tmp_path / "b", port_base=25000, database=url)
            with pytest.raises(LabSettingsError, match=r"other_glance, .* already, and this lab did not make them"):
                control.up(second, PLAN)
            again = LabSettings(settings.state, fresh=True)
            assert control.up(again, PLAN).healthy
        finally:
            control.down(settings)


def gpu_providers(admin: openstack.connection.Connection) -> dict[str, str]:
    """Name of each GPU's provider -> its resource class."""
    resource_classes = {}
    for name, inventories in all_inventories(admin).items():
        if "MEMORY_MB" not in inventories:  # those of hosts count GPUs
            (resource_classes[name],) = inventories
    return resource_classes


def root_inventories(admin: openstack.connection.Connection) -> dict[str, dict[str, Any]]:
    return {name: inventories for name, inventories in all_inventories(admin).items() if "MEMORY_MB" in inventories}


def all_inventories(admin: openstack.connection.Connection) -> dict[str, dict[str, Any]]:
    inventories = {}
    for provider in admin.placement.resource_providers():
        answer = admin.placement.get(f"/resource_providers/{provider.id}/inventories", headers=PLACEMENT)
        inventories[provider.name] = answer.json()["inventories"]
    return inventories


def boot(user: openstack.connection.Connection, flavor: str) -> Any:
    image = user.image.find_image("tiny", ignore_missing=False)
    server = user.compute.create_server(name="lab-test", flavor_id=flavor, image_id=image.id, networks="none")
    while (server := user.compute.get_server(server.id)).status == "BUILD":
        time.sleep(0.1)
    return server


def server_states(admin: openstack.connection.Connection) -> dict[str, tuple[str, int]]:
    """Server -> its status and Nova's number for its power state (1 running, 4 off, 0 unknown)."""
    return {server.id: (server.status, server.power_state) for server in admin.compute.servers(all_projects=True)}


def kill(running: RunningLab, name: str) -> None:
    """kill -9, and wait until it is gone."""
    pid = processes.leaders(processes.find(running.settings.state))[name].pid
    os.kill(pid, signal.SIGKILL)
    while name in processes.leaders(processes.find(running.settings.state)):
        time.sleep(0.05)


def interrupted_start(settings: LabSettings, plan: LabPlan) -> int:
    """``up`` in a process of its own, killed without warning when Keystone has come up; its exit status."""
    plan.save(settings.state / "plan.json")
    command = [sys.executable, "-m", "gpuyard.cli.main", "lab", "up", "--bare", "--state", str(settings.state)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as starting:
        assert starting.stderr is not None
        for line in starting.stderr:
            if "keystone" in line:
                starting.kill()
                break
        return starting.wait(10)
