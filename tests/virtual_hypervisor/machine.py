"""Runs a job in the virtual hypervisor and returns what came of it."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.virtual_hypervisor import build as building
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.topology import CONSOLE, VirtualHost

JOB_FOLDER = "/run/vhost/job"
"""Inside: the folder that is shared with this machine; $JOB of a job."""


class Failed(Exception):
    """The machine ended, or ran out of time, before the job did; the message has the end of its console."""


@dataclass(frozen=True)
class Result:
    """What a job left."""

    status: int
    """Exit status of the job; 125 when the preparation failed, 127 when the job could not be started."""
    output: str
    """Standard output and error of the preparation and of the job."""
    seconds: float
    """Wall time of the whole run."""


def run(build: Build, host: VirtualHost, job: str, folder: Path, timeout: float = 240) -> Result:
    """Boot the host, run the job (the text of a script with its ``#!`` line), wait until it has switched off.

    The root file system inside is this machine's own, read-only below a RAM disk, so the job can use the very
    interpreter, code and tests that are used here, under the same paths. `folder` becomes $JOB: files that the job
    writes there are on this machine afterwards.

    Emulation is TCG, never KVM: a /dev/kvm that can be opened may still be one that cannot run a stock kernel.

    Raises Failed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("output", "status", "kernel.log"):
        (folder / name).unlink(missing_ok=True)
    settings = f"HOST_NAME={shlex.quote(host.hostname)}\nROOT_DISK=nvme0n1\n"
    (folder / "settings").write_text(settings)
    (folder / "prepare").write_text(host.prepare)
    (folder / "job").write_text(job)
    (folder / "job").chmod(0o755)
    return execute(build, host, arguments(build, host, folder), folder, timeout)


def execute(build: Build, host: VirtualHost, qemu: Sequence[str], folder: Path, timeout: float) -> Result:
    """Run QEMU to its end and collect what the job left in `folder`. Raises Failed."""
    environment = {**os.environ, "LD_PRELOAD": str(build.shim), "VHOST_MODELS": host.board.shim_models()}
    # timeout(1) and not only subprocess: it ends QEMU also when this process is killed.
    command = ["timeout", "--kill-after=5", str(timeout), *qemu]
    started = time.monotonic()
    with (folder / "console").open("wb") as console:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT, check=False
        )
    seconds = time.monotonic() - started
    try:
        status = int((folder / "status").read_text())
    except (OSError, ValueError):
        why = f"took longer than {timeout} s" if done.returncode in (124, 137) else f"ended ({done.returncode})"
        raise Failed(f"{host.name}: QEMU {why} before the job did:\n{_end_of(folder)}") from None
    return Result(status, (folder / "output").read_text(errors="replace"), seconds)


def _end_of(folder: Path) -> str:
    """The last lines of the console, and of the job's output if there is any."""
    lines: list[str] = []
    for name in ("console", "output"):
        if (folder / name).exists():
            lines += (folder / name).read_text(errors="replace").splitlines()[-20:]
    return "\n".join(lines)


def arguments(build: Build, host: VirtualHost, folder: Path) -> list[str]:
    """The command that starts the machine."""
    disk = building.disk(build, host.disk_gib)
    modules = str(build.modules)
    return [
        *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", f"qemu64,model-id={host.cpu_model}"),
        *("-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"),
        *("-kernel", str(build.kernel), "-initrd", str(build.initramfs)),
        *("-append", " ".join([*CONSOLE, *host.command_line])),
        *host.board.arguments(),
        *share("root", "/", 0x1B, "readonly=on,multidevs=remap"),  # the root may span several file systems
        *share("modules", modules, 0x1C, "readonly=on"),
        *share("job", str(folder.resolve()), 0x1D, "readonly=off"),
        # snapshot: what is written goes to a temporary file, so every run starts with an empty disk
        *("-drive", f"id=root-disk,if=none,format=raw,snapshot=on,file={disk}"),
    ]


def share(tag: str, path: str, slot: int, options: str) -> list[str]:
    """A folder of this machine as a 9p share of the virtual one."""
    device = f"virtio-9p-pci,fsdev={tag},mount_tag={tag},bus=pcie.0,addr={slot:#x}"
    return ["-fsdev", f"local,id={tag},path={path},security_model=none,{options}", "-device", device]
