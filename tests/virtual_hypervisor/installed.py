"""Boots an installed Debian in the virtual hypervisor, again and again: what a job changes, the next boot finds."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.virtual_hypervisor import machine
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.machine import Failed, Result
from tests.virtual_hypervisor.topology import VirtualHost

__all__ = ["SOURCE", "Failed", "Installation", "Result"]

SOURCE = "/run/vhost/source"
"""Inside: the root file system of this machine, read-only; $SOURCE of a job."""


class Installation:
    """A machine with a disk of its own. It is off between boots."""

    def __init__(self, build: Build, image: Path, host: VirtualHost, folder: Path) -> None:
        """`image` is what disk.image() built, and is copied into `folder`."""
        self.build, self.host, self.folder = build, host, folder
        self.disk = folder / "disk"
        self.boots = 0
        folder.mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "--sparse=always", str(image), str(self.disk)], check=True)

    def boot(self, job: str, timeout: float = 300) -> Result:
        """Boot from the disk, run the job (the text of a script with its ``#!`` line) as root, end in good order.

        Files that the job writes to $JOB are in `last` afterwards. Raises Failed.
        """
        self.boots += 1
        return boot(self.build, self.host, self.disk, job, self.last, timeout)

    @property
    def last(self) -> Path:
        """The folder of the last boot."""
        return self.folder / f"boot-{self.boots}"


def boot(
    build: Build, host: VirtualHost, disk: Path, job: str, folder: Path, timeout: float, kernel: Sequence[str] = ()
) -> Result:
    """Boot once, by the boot loader of the disk unless `kernel` has QEMU's options for another way. Raises Failed."""
    folder.mkdir(parents=True)
    (folder / "job").write_text(job)
    (folder / "job").chmod(0o755)
    qemu = [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", f"qemu64,model-id={host.cpu_model}"),
        *("-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"),
        *kernel,
        *host.board.arguments(),
        *machine.share("root", "/", 0x1B, "readonly=on,multidevs=remap"),
        *machine.share("job", str(folder.resolve()), 0x1D, "readonly=off"),
        # unsafe: QEMU never waits for this machine's disk. What the guest has written is in the file all the same.
        *("-drive", f"id=root-disk,if=none,format=raw,cache=unsafe,file={disk}"),
    ]
    return machine.execute(build, host, qemu, folder, timeout)
