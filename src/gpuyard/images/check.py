"""Checks a built image: boots it in QEMU and judges whether it is good for servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

from gpuyard.images.build import digest_of
from gpuyard.images.checking import HOST_NAME, judge, read_console, user_data
from gpuyard.images.config_drive import PROGRAMS as DRIVE_PROGRAMS
from gpuyard.images.config_drive import drive_files, make_drive
from gpuyard.images.machine import DEVICE, EMULATORS, PACKAGES, VirtualMachine, boot, disk_above
from gpuyard.images.manifest import CheckRecord, check_path
from gpuyard.images.programs import need_programs
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.image_rules import ImageBuild

GROWN = 2
"""Size of the disk in sizes of the image: a flavor's disk is larger, too."""
Drive = Callable[[str, str, Path], None]
"""Makes the config drive from user data, the server's id and the file."""


def own_drive(user_data: str, uuid: str, drive: Path) -> None:
    """Make a config drive as Nova does."""
    make_drive(drive_files(HOST_NAME, uuid, user_data), drive)


def check_image(
    image: Path,
    virtual_bytes: int,
    build: ImageBuild | None,
    *,
    nonce: str,
    uuid: str,
    module: str = "",
    uefi: bool = False,
    kvm: bool = False,
    within: float = 900,
    console: Path | None = None,
    make_drive: Drive = own_drive,
) -> list[Finding]:
    """Boot `image` once, on a disk that is larger than it, and return findings from inside.

    `nonce` marks the server's output; `uuid` is its id. `console` is kept when it is named. Raises UsageError for
    programs that are missing, GpuyardError when QEMU does not run.
    """
    architecture = build.base.architecture if build else "amd64"
    need_programs({EMULATORS[architecture]: PACKAGES[architecture], "qemu-img": "qemu-utils", **DRIVE_PROGRAMS})
    with TemporaryDirectory(prefix="gpuyard-image-") as name:
        folder = Path(name)
        drive, disk, console_file = folder / "drive.iso", folder / "disk", console or folder / "console"
        make_drive(user_data(nonce), uuid, drive)
        disk_above(image, disk, (virtual_bytes >> 20) * GROWN)
        console_file.unlink(missing_ok=True)
        text, switched_off = boot(VirtualMachine(architecture, uefi, disk, drive, console_file, kvm), within)
    return judge(read_console(text, nonce), build, DEVICE, switched_off, module)


def keep_verdict(image: Path, findings: Sequence[Finding], checked: datetime) -> None:
    """Write the result of a check beside the image: ``image upload`` requires it."""
    errors = tuple(finding.reason for finding in findings if finding.severity.rank <= Severity.ERROR.rank)
    check_path(image).write_text(CheckRecord(digest_of(image), checked, errors).text())
