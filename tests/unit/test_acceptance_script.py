"""What a server that accepts GPUs runs, on a made-up machine, and what is read of its console."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gpuyard.health.acceptance_guest import GuestVerdict, Said, accept_data, read_console
from gpuyard.lab.acceptance_guest import accept_orders

NONCE = "0123456789abcdef" * 2
V100, BAR = b"\xde\x10\xb4\x1d", "0x00000000fa000000 0x00000000faffffff 0x0000000000040200\n"
NO_BAR = "0x0000000000000000 0x0000000000000000 0x0000000000000000\n"
SMI = 'case "$1" in *driver_version*) echo 570.1 ;; *) echo "Tesla V100, 00000000:05:00.0, 0" ;; esac'


class Machine:
    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools: dict[str, str] = {"nvidia-smi": SMI}
        for folder in ("dev", "bin", "sys/class/tty/console", "run"):
            (root / folder).mkdir(parents=True)
        (root / "sys/class/tty/console/active").write_text("tty0 ttyS0\n")
        (root / "dev/ttyS0").touch()

    def plug(self, number: int = 0, config: bytes = V100, bars: str = BAR + 5 * NO_BAR) -> None:
        folder = self.root / f"sys/bus/pci/devices/0000:0{number + 5}:00.0"
        folder.mkdir(parents=True)
        for name, text in (("vendor", "0x10de\n"), ("device", "0x1db4\n"), ("class", "0x030200\n"), ("resource", bars)):
            (folder / name).write_text(text)
        (folder / "config").write_bytes(config + bytes(60))

    def accept(self, gpus: int = 1) -> Said:
        """What gpuyard hears of it."""
        user_data = accept_data(NONCE, gpus, {"10de:1db4"})
        assert accept_orders(user_data).ids == {"10de:1db4"}
        document = YAML(typ="safe").load(user_data)
        for one in document["write_files"]:
            path = self.root / one["path"].lstrip("/")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(one["content"])
        for name, text in self.tools.items():
            tool = self.root / "bin" / name
            tool.write_text(f"#!/bin/sh\n{text}\n")
            tool.chmod(0o755)
        ((_, script),) = document["runcmd"]
        environment = {
            "PATH": f"{self.root}/bin:{os.defpath}", "GPUYARD_ROOT": str(self.root),
            "GPUYARD_SYSFS": str(self.root / "sys"), "GPUYARD_DMESG": "true", "GPUYARD_PAUSE": "0.05",
        }  # fmt: skip
        done = subprocess.run(
            ["sh", str(self.root / script.lstrip("/"))], env=environment, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        console = (self.root / "dev/ttyS0").read_text()
        assert re.search(r"^gpuyard-accept: [0-9a-f]{32} over$", console, re.MULTILINE)
        return read_console(console, NONCE, gpus)


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_a_gpu_that_is_well_passes(machine: Machine) -> None:
    machine.plug()
    assert machine.accept() == Said(True, GuestVerdict.OK, "Tesla V100 at 00000000:05:00.0", "570.1")


def test_what_is_wrong_with_it_is_said(machine: Machine) -> None:
    assert machine.accept().words == "0 of 1 GPUs (10de:1db4) are on the machine's PCI bus"
    machine.plug(config=b"\xff\xff\xff\xff")
    said = machine.accept()
    assert said.verdict is GuestVerdict.FAILED


@pytest.mark.parametrize(
    ("config", "bars", "words"),
    [
        (b"\xff\xff\xff\xff", BAR, "0000:05:00.0 does not answer: its config space reads 0xff"),
        (V100, 6 * NO_BAR, "0000:05:00.0 has no BAR in the guest's memory"),
    ],
)
def test_what_the_bus_shows(tmp_path: Path, config: bytes, bars: str, words: str) -> None:
    machine = Machine(tmp_path)
    machine.plug(config=config, bars=bars)
    said = machine.accept()
    assert (said.verdict, said.words) == (GuestVerdict.FAILED, words)


def test_an_image_without_a_driver_says_nothing_of_the_gpu(machine: Machine) -> None:
    machine.plug()
    machine.tools = {}
    said = machine.accept()
    assert said.verdict is GuestVerdict.UNABLE
    assert "there is no nvidia-smi" in said.words


@pytest.mark.parametrize(
    ("tools", "words"),
    [
        ({"nvidia-smi": "echo 'No devices were found'; exit 6"}, "nvidia-smi failed (6): No devices were found"),
        ({"nvidia-smi": 'echo "Tesla V100, 00000000:05:00.0, 7"'}, "00000000:05:00.0 has 7 uncorrected ECC errors"),
        ({"nvidia-smi": SMI, "gpu_burn": "echo 'GPU 0: FAULTY'"}, "gpu_burn: GPU 0: FAULTY"),
        ({"nvidia-smi": SMI, "nvbandwidth": "echo broken; exit 3"}, "nvbandwidth ended with status 3: broken"),
    ],
)
def test_what_the_driver_and_tools_find(tmp_path: Path, tools: dict[str, str], words: str) -> None:
    machine = Machine(tmp_path)
    machine.plug()
    machine.tools = tools
    said = machine.accept()
    assert (said.verdict, said.words) == (GuestVerdict.FAILED, words)


def test_tools_that_the_image_has_are_run(machine: Machine) -> None:
    machine.plug()
    machine.tools |= {"gpu_burn": "echo 'GPU 0: OK'", "nvbandwidth": "echo 'SUM host_to_device_memcpy_ce   12.4'"}
    assert machine.accept().words == (
        "Tesla V100 at 00000000:05:00.0; gpu_burn ran for 30 s; SUM host_to_device_memcpy_ce 12.4"
    )
