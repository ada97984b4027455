"""A plan for a host is the same from its recording, on another machine."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.host.__main__ import execute
from gpuyard.host.judge import judge
from gpuyard.host.machine import Machine
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation.journal import current
from gpuyard.host.preparation.plan import plan_preparation
from gpuyard.host.preparation.wishes import Wishes
from gpuyard.host.recording import dumps, record, replay_tree
from gpuyard.host.scan import scan
from gpuyard.host.tree import Tree
from gpuyard.model.errors import UsageError
from gpuyard.model.host import Inventory
from gpuyard.model.plan import Plan
from tests.support.hypervisors import AMD, debian, epyc, titan_xp
from tests.support.kernel import ModelHost
from tests.support.rhel import rhel
from tests.support.sysfs import TITAN_XP, V100, Sysfs, names
from tests.unit.host.test_prepare_properties import MANY, apply, hosts


def plan(tree: Tree, inventory: Inventory, wishes: Wishes) -> Plan:
    machine = Machine(tree, inventory, judge(inventory))
    return plan_preparation(machine, wishes, current(tree), machine.processes.holders)


def same(host: ModelHost, wishes: Wishes) -> None:
    pci_ids = PciIds.of_this_machine()
    live_plan = plan(host.tree, scan(host.tree, pci_ids), wishes)
    text = dumps(record(host.tree, pci_ids, "by a test"))
    assert plan(*replay_tree(text, "x"), wishes) == live_plan


def with_others() -> ModelHost:
    """What else sets drivers at boot, and what is in the way."""
    host = debian(
        Sysfs().function("01:00.0", TITAN_XP, "0300", 13), command_line=f"intel_iommu=on vfio-pci.ids={TITAN_XP}"
    )
    host.put("etc/default/grub.d/50-local.cfg", '# x\n\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX pci-stub.ids=1:2"\n')
    host.put("etc/driverctl.d/0000:01:00.0", "vfio-pci")
    host.put("etc/udev/rules.d/50-x.rules", '\n# a\nATTR{driver_override}="vfio-pci"\n')
    host.put("etc/initramfs-tools/scripts/init-top/vfio", "PASSWORD=x\necho vfio-pci > 0000:01:00.0/driver_override\n")
    host.put("etc/modprobe.d/vfio.conf", "install vfio-pci /bin/false\noptions pci-stub ids=10de:1b02\nblacklist vfio")
    host.put("lib/modules/6.1.0/modules.softdep", "softdep nouveau pre: drm")
    host.put("sys/module/nvidia_drm/parameters/modeset", "Y")
    return host


OFF = {"0000:01:00.0": 13}


@pytest.mark.parametrize(
    "host",
    [
        titan_xp(),
        epyc(),
        with_others(),
        rhel(8),
        rhel(9),
        rhel(9, "quiet", cpu=AMD),
        debian(Sysfs()),
        debian(Sysfs().function("01:00.0", V100), command_line="", groups=OFF),
        debian(Sysfs().function("01:00.0", V100), AMD, "", groups=OFF),
    ],
)
@pytest.mark.parametrize("wishes", [Wishes(), Wishes(identity=True, unsafe_interrupts=True, replace_legacy=True)])
def test_a_plan_from_the_recording_is_the_plan_on_the_host(host: ModelHost, wishes: Wishes) -> None:
    same(host, wishes)


def test_no_secret_of_a_script_is_recorded() -> None:
    assert "PASSWORD" not in dumps(record(with_others().tree, names(), "by a test"))


@MANY
@given(hosts())
def test_and_after_an_apply_and_a_boot(made: tuple[ModelHost, Wishes]) -> None:
    host, wishes = made
    same(host, wishes)
    apply(host, wishes)
    same(host, wishes)
    same(host, Wishes())
    host.boot()
    same(host, wishes)


def planned(file: Path, *words: str) -> Any:
    return CliRunner().invoke(app, ["host", "plan", "--from", str(file), *words])


def test_the_command_plans_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_text(dumps(record(titan_xp().tree, names(), "by a test")))
    shown = planned(file, "--keep", "01:00.0")
    assert shown.exit_code == 0, shown.output
    assert "0000:02:00.0: nouveau -> vfio-pci" in shown.output
    assert "note: group 13 (01:00.0): stays with the host, as asked for" in shown.output
    assert json.loads(planned(file, "-f", "json").stdout)["steps"]
    assert planned(file, "--ssh", "x").exit_code == 2


def test_a_recording_of_an_earlier_version_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "host.json"
    file.write_text(Sysfs().function("27:00.0", V100, group=1).recording())
    with pytest.raises(UsageError, match="record the host again"):
        execute(["plan", "--from", str(file)])
