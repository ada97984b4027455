"""The QEMU machine that boots an image under test, as Nova would configure it, without a hypervisor.

The image is not changed: the machine writes to a disk of its own above it.
"""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from gpuyard.images.config_drive import MAC
from gpuyard.images.programs import run, search_path
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.text import printable

EMULATORS = {"amd64": "qemu-system-x86_64", "arm64": "qemu-system-aarch64"}
PACKAGES = {"amd64": "qemu-system-x86", "arm64": "qemu-system-arm"}
FIRMWARES = (Path("/usr/share/OVMF/OVMF_CODE_4M.fd"), Path("/usr/share/OVMF/OVMF_CODE.fd"))
ARM_FIRMWARE = Path("/usr/share/AAVMF/AAVMF_CODE.fd")
DEVICE = "1234:11e8"
"""PCI id of QEMU's device for teaching, which stands for a GPU on the bus."""
MOST_CONSOLE = 1 << 20


@dataclass(frozen=True)
class VirtualMachine:
    """The virtual machine: its image's disk, config drive, firmware and console."""

    architecture: str
    uefi: bool
    disk: Path
    drive: Path
    console: Path
    """The file with the serial port's output."""
    kvm: bool = False
    memory_mib: int = 1024

    def command(self, firmware: Path | None) -> list[str]:
        """Return QEMU's command. `firmware`: that of UEFI."""
        accelerator = ["-accel", "kvm", "-cpu", "host"] if self.kvm else ["-accel", "tcg,thread=multi"]
        return [
            EMULATORS[self.architecture],
            *accelerator,
            *self._board(firmware),
            *("-m", str(self.memory_mib), "-smp", "2", "-nodefaults", "-no-reboot", "-display", "none"),
            *("-monitor", "none", "-serial", f"file:{self.console}"),
            *("-drive", f"id=root,if=none,format=qcow2,cache=unsafe,file={_quoted(self.disk)}"),
            *("-device", "virtio-blk-pci,drive=root"),
            *("-drive", f"id=drive,if=none,media=cdrom,format=raw,readonly=on,file={_quoted(self.drive)}"),
            *("-device", "virtio-scsi-pci,id=scsi", "-device", "scsi-cd,bus=scsi.0,drive=drive"),
            *("-netdev", "user,id=net,restrict=on", "-device", f"virtio-net-pci,netdev=net,mac={MAC}"),
            *("-device", "virtio-rng-pci", "-device", "edu"),
        ]

    def _board(self, firmware: Path | None) -> list[str]:
        bios = ["-drive", f"if=pflash,unit=0,format=raw,readonly=on,file={firmware}"] if firmware else []
        if self.architecture == "arm64":
            return ["-machine", "virt", *([] if self.kvm else ["-cpu", "cortex-a72"]), *bios]
        return ["-machine", "q35" if self.uefi else "pc", *bios]


def disk_above(image: Path, disk: Path, mib: int) -> None:
    """Create a disk of `mib` MiB above `image`. Raises GpuyardError."""
    base = str(image.absolute())
    command = ["qemu-img", "create", "-q", "-f", "qcow2", "-F", "qcow2", "-b", base, str(disk), f"{mib}M"]
    run(command, f"a disk of {image}")


def boot(machine: VirtualMachine, within: float) -> tuple[str, bool]:
    """Boot until it switches itself off; return its console, and whether it did so `within` these seconds.

    Raises GpuyardError when QEMU does not run, UsageError without a firmware that is needed.
    """
    command = machine.command(_firmware(machine))
    environment = {**os.environ, "PATH": search_path(os.environ)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
    ) as child:
        try:
            stderr = child.communicate(timeout=within)[1]
        except subprocess.TimeoutExpired:
            return _read(machine.console), False
        finally:
            child.kill()
    if child.returncode:
        reason = stderr[-4096:].decode(errors="replace").strip().splitlines()[-1:] or ["no reason given"]
        raise GpuyardError(f"{command[0]} failed (exit code {child.returncode}): {printable(reason[0])}")
    return _read(machine.console), True


def _firmware(machine: VirtualMachine) -> Path | None:
    if machine.architecture == "amd64" and not machine.uefi:
        return None
    firmwares = FIRMWARES if machine.architecture == "amd64" else (ARM_FIRMWARE,)
    firmware = next((path for path in firmwares if path.exists()), None)
    if firmware is None:
        package = "ovmf" if machine.architecture == "amd64" else "qemu-efi-aarch64"
        raise UsageError(f"the image starts by UEFI, and there is no {firmwares[0]}; install {package}")
    return firmware


def _read(console: Path) -> str:
    try:
        with console.open("rb") as file:
            return file.read(MOST_CONSOLE).decode(errors="replace")
    except FileNotFoundError:
        return ""


def _quoted(path: Path) -> str:
    """In an option of QEMU, where a comma begins the next one."""
    return str(path).replace(",", ",,")
