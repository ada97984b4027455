"""Who holds a device: from device nodes in /proc/PID/fd to PCI functions, and who cannot be looked at."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from gpuyard.host.holders import DeviceHolder, holders, look
from gpuyard.host.tree import FileTree, RecordedTree
from tests.support.sysfs import TITAN_XP, TITAN_XP_AUDIO, Sysfs, epyc, write

SOURCE = Path(__file__).parents[3] / "src"


def desktop() -> Sysfs:
    machine = epyc().function("18:00.0", TITAN_XP, "0300", 39).function("18:00.1", TITAN_XP_AUDIO, "0403", 39)
    machine.put("proc/driver/nvidia/gpus/0000:18:00.0/information", "Model: \t\t TITAN Xp\nDevice Minor: \t 0")
    machine.put("proc/driver/nvidia/gpus/0000:44:00.0/information", "Model: \t\t Tesla\nDevice Minor: \t 11")
    machine.node("drm", "card1", "18:00.0").node("drm", "renderD128", "18:00.0").node("sound", "pcmC1D3p", "18:00.1")
    machine.node("vfio-dev", "vfio2", "a3:00.0")
    return machine.process(1, "systemd")


@pytest.mark.parametrize(
    ("device", "addresses"),
    [
        ("/dev/vfio/19", ["0000:27:00.0", "0000:28:00.0"]),
        ("/dev/vfio/vfio", []),
        ("/dev/vfio/4711", []),
        ("/dev/vfio/devices/vfio2", ["0000:a3:00.0"]),
        ("/dev/nvidia0", ["0000:18:00.0"]),
        ("/dev/nvidia11", ["0000:44:00.0"]),
        ("/dev/nvidia1", []),
        ("/dev/nvidiactl", []),
        ("/dev/nvidia-uvm", []),
        ("/dev/dri/card1", ["0000:18:00.0"]),
        ("/dev/dri/renderD128", ["0000:18:00.0"]),
        ("/dev/dri/card0", []),
        ("/dev/snd/pcmC1D3p", ["0000:18:00.1"]),
        ("/dev/snd/timer", []),
        ("/dev/kfd", []),
        ("/dev/null", []),
        ("/var/lib/dev/nvidia0", []),
    ],
)
def test_device_nodes(device: str, addresses: list[str], tmp_path: Path) -> None:
    """The same from a recording and from real files."""
    machine = desktop().process(4711, "somebody", device)
    write(machine, tmp_path)
    for tree in (RecordedTree(machine.nodes), FileTree(str(tmp_path))):
        assert holders(tree) == {address: [DeviceHolder(4711, "somebody", device)] for address in addresses}


def test_a_process_counts_once_per_node_and_under_its_whole_name() -> None:
    machine = desktop().process(812, "nvidia-persistenced", "/dev/nvidia0", "/dev/nvidia0", "/dev/dri/card1")
    device_holders = holders(RecordedTree(machine.nodes))["0000:18:00.0"]
    assert [(str(holder), holder.device, holder.is_vm) for holder in device_holders] == [
        ("nvidia-persistenced, process 812", "/dev/dri/card1", False),
        ("nvidia-persistenced, process 812", "/dev/nvidia0", False),
    ]


def test_a_thread_that_renamed_itself_keeps_its_own_name() -> None:
    machine = desktop().process(9, "qemu-system-x86_64", "/dev/vfio/32")
    machine.put("proc/9/comm", "CPU 0/KVM")
    (holder,) = holders(RecordedTree(machine.nodes))["0000:44:00.0"]
    assert holder.command == "CPU 0/KVM"
    assert holder.is_vm


def test_who_cannot_be_looked_at_is_said() -> None:
    machine = desktop().stranger(700, "sshd")
    machine.put("proc/2/comm", "kthreadd")  # a thread of the kernel: no command line
    machine.put("proc/2/cmdline", "")
    assert look(RecordedTree(machine.nodes)).unseen == {700: "sshd"}
    assert not look(RecordedTree(machine.nodes)).hidden
    assert look(RecordedTree(epyc().nodes)).hidden


AS_NOBODY = """
import json, os, sys
sys.path.insert(0, {source!r})
from gpuyard.host.holders import look
from gpuyard.host.tree import FileTree
os.setgid(65534); os.setuid(65534)
seen = look(FileTree("/"))
print(json.dumps([sorted(seen.unseen), seen.hidden]))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else")
def test_the_kernel_shows_root_all_and_others_only_their_own() -> None:
    with subprocess.Popen(["sleep", "60"]) as somebody:
        try:
            assert somebody.pid not in look(FileTree("/")).unseen
            program = AS_NOBODY.format(source=str(SOURCE))
            done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
            unseen, hidden = json.loads(done.stdout)
            assert hidden or somebody.pid in unseen
        finally:
            somebody.kill()
