"""Makes a disk of a file system that diskimage-builder has made: in files, with no device and no privilege.

diskimage-builder itself partitions a disk by the kernel's device mapper, which containers and small machines do not
have. So nothing here differs between machines (ADR 40).
"""

from __future__ import annotations

from pathlib import Path

from gpuyard.images.layout import LOADERS, SECTOR, Layout, core_image, first_sector, lay_out, partition_table
from gpuyard.images.programs import run
from gpuyard.model.errors import GpuyardError

PROGRAMS = {
    "debugfs": "e2fsprogs",
    "sfdisk": "fdisk",
    "mkfs.fat": "dosfstools",
    "mmd": "mtools",
    "mcopy": "mtools",
    "dd": "coreutils",
    "qemu-img": "qemu-utils",
}
"""Program -> Debian package."""
BOOT = "/boot/gpuyard"
"""Folder in the image with the firmware's files, which the element gpuyard-base has made."""
MIB = 1 << 20


def file_in(tree: Path, path: str) -> bytes:
    """Return a file of a file system; empty when there is none. Raises GpuyardError."""
    return run(["debugfs", "-R", f"cat {path}", str(tree)], f"{path} of {tree}")


def names_in(tree: Path, path: str) -> list[str]:
    """Return the names in a folder of a file system."""
    listed = run(["debugfs", "-R", f"ls -p {path}", str(tree)], f"{path} of {tree}").decode(errors="replace")
    names = [line.split("/")[5] for line in listed.splitlines() if line.count("/") >= 6]
    return sorted(name for name in names if name not in (".", "..", ""))


def make_disk(tree: Path, disk: Path, name: str, architecture: str) -> Layout:
    """Write `disk`, raw, with the file system `tree` as its root. Raises GpuyardError."""
    layout = lay_out(tree.stat().st_size, architecture)
    with disk.open("wb") as file:
        file.truncate(layout.bytes)
    run(["sfdisk", "--quiet", str(disk)], f"the partition table of {disk}", partition_table(layout, name).encode())
    if layout.bios is not None:
        _write_bios(tree, disk, layout)
    _write_efi(tree, disk, layout, architecture)
    _copy_into(tree, disk, layout.root.offset)
    return layout


def compress(disk: Path, image: Path) -> None:
    """Convert a disk to compressed qcow2, which Glance and QEMU take. Raises GpuyardError."""
    command = ["qemu-img", "convert", "-c", "-W", "-m", "8", "-f", "raw", "-O", "qcow2", str(disk), str(image)]
    run(command, f"{image.name} of {disk.name}")


def _write_bios(tree: Path, disk: Path, layout: Layout) -> None:
    assert layout.bios is not None
    boot, core = file_in(tree, f"{BOOT}/boot.img"), file_in(tree, f"{BOOT}/core.img")
    with disk.open("r+b") as file:
        sector = file.read(SECTOR)
        try:
            first = first_sector(sector, boot, layout.bios.start)
            rest = core_image(core, layout.bios.start, layout.bios.count)
        except ValueError as error:
            raise GpuyardError(f"{tree.name}: {error}; is its element gpuyard-base as gpuyard has it?") from None
        file.seek(0)
        file.write(first)
        file.seek(layout.bios.offset)
        file.write(rest)


def _write_efi(tree: Path, disk: Path, layout: Layout, architecture: str) -> None:
    loader = LOADERS[architecture]
    content = file_in(tree, f"{BOOT}/{loader}")
    if not content:
        raise GpuyardError(f"{tree.name}: {BOOT}/{loader} is missing; is its element gpuyard-base as gpuyard has it?")
    part, file = disk.with_name(f"{disk.name}.efi"), disk.with_name(loader)
    try:
        with part.open("wb") as empty:
            empty.truncate(layout.efi.count * SECTOR)
        file.write_bytes(content)
        what = f"the EFI partition of {disk.name}"
        run(["mkfs.fat", "-F", "32", "-n", "EFI", str(part)], what)
        run(["mmd", "-i", str(part), "::/EFI", "::/EFI/BOOT"], what)
        run(["mcopy", "-i", str(part), str(file), f"::/EFI/BOOT/{loader.upper()}"], what)
        _copy_into(part, disk, layout.efi.offset)
    finally:
        part.unlink(missing_ok=True)
        file.unlink(missing_ok=True)


def _copy_into(part: Path, disk: Path, offset: int) -> None:
    """Zeros are not copied: the disk has them, and takes no room for them."""
    command = ["dd", f"if={part}", f"of={disk}", "bs=1M", f"seek={offset // MIB}", "conv=sparse,notrunc", "status=none"]
    run(command, f"{part.name} into {disk.name}")
