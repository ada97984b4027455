"""Boots a server of a cloud: the disk of cloud_image.py, the config drive of config_drive.py, GPUs, user networking.

What the server reaches at 10.0.2.2 is this machine's loopback interface. What it says on its serial port is what Nova
would have as its console log.
"""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.virtual_hypervisor import cloud_image
from tests.virtual_hypervisor.board import Board, Iommu
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.cloud_image import Baked
from tests.virtual_hypervisor.config_drive import MAC
from tests.virtual_hypervisor.machine import Failed
from tests.virtual_hypervisor.topology import CONSOLE, V100

GATEWAY = "10.0.2.2"
"""In the server: this machine's loopback interface."""


@dataclass
class CloudServer:
    """A server with a disk of its own in `folder`. It is off between boots."""

    build: Build
    image: Path
    folder: Path
    drive: Path | None
    """The config drive, for those that have cloud-init."""
    baked: Baked
    """What its image has beside Debian's packages."""
    gpus: int = 1
    memory_mib: int = 768
    said: list[str] = field(default_factory=list, init=False)
    """Its console, of each boot."""
    seconds: float = field(default=0.0, init=False)
    """How long the last boot was on."""

    def __post_init__(self) -> None:
        self.disk = self.folder / "disk"
        subprocess.run(["cp", "--sparse=always", str(self.image), str(self.disk)], check=True)
        self._bake()

    def _bake(self) -> None:
        """Put in what the image has beside Debian's packages."""
        self.initramfs = self.folder / "initramfs"
        self.initramfs.write_bytes(cloud_image.initramfs(self.build, self.baked))

    def _starts(self) -> list[str]:
        """Options of QEMU: what is started, where the disk does not start by itself."""
        return ["-kernel", str(self.build.kernel), "-initrd", str(self.initramfs), "-append", " ".join(CONSOLE)]

    @property
    def console(self) -> str:
        """All of it."""
        return "".join(self.said)

    def boot(self, timeout: float = 900) -> None:
        """On, until it switches itself off. Raises Failed."""
        board = Board(Iommu.NONE, nodes=1, memory_mib=self.memory_mib)
        for port in board.ports(board.root, self.gpus) if self.gpus else []:
            board.plug(V100, port, f"{port.number:02x}:00.0")
        serial = self.folder / "console"
        # timeout(1) and not only subprocess: it ends QEMU also when this process is killed.
        qemu = [
            *("timeout", "--kill-after=5", str(timeout)),
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", "qemu64", "-nodefaults", "-no-reboot"),
            *("-display", "none", "-monitor", "none", "-serial", f"file:{serial}"),
            *self._starts(),
            *board.arguments(),
            *("-drive", f"id=root,if=none,format=raw,cache=unsafe,file={self.disk}"),
            *("-device", "virtio-blk-pci,drive=root,bus=pcie.0,addr=0x1b"),
            *("-netdev", "user,id=net", "-device", f"virtio-net-pci,netdev=net,mac={MAC},bus=pcie.0,addr=0x1c"),
        ]
        if self.drive:
            qemu += ["-drive", f"id=drive,if=none,media=cdrom,format=raw,readonly=on,file={self.drive}"]
            qemu += ["-device", "ide-cd,drive=drive"]
        environment = {**os.environ, "LD_PRELOAD": str(self.build.shim), "VHOST_MODELS": board.shim_models()}
        started = time.monotonic()
        done = subprocess.run(
            qemu, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False
        )
        self.seconds = time.monotonic() - started
        output = serial.read_text(errors="replace") if serial.exists() else ""
        self.said.append(output)
        if done.returncode:
            last = "\n".join(output.splitlines()[-30:])
            raise Failed(f"the server has not switched itself off ({done.returncode}):\n{last}\n{done.stderr}")
