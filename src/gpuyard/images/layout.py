"""Lays out the disk of a file system: partitions, and the boot code that a BIOS reads before them. Pure.

A BIOS starts GRUB's boot.img in the first sector, which knows the sector of core.img, which knows that of its rest.
All of it is contiguous here, so that two numbers are enough and no device is needed to find them out. UEFI starts a
file of its partition. The root file system is the last partition, so that it can grow with the disk.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from uuid import UUID, uuid5

SECTOR = 512
MIB = 1 << 20
NAMESPACE = UUID("8a7d9b8e-6f0c-5f6e-9d3b-0a6c3f1f5d11")
BIOS_MIB, EFI_MIB = 1, 64
ROOT, BIOS, EFI = 1, 14, 15
"""Numbers of partitions, as cloud images have them."""
TYPES = {
    BIOS: "21686148-6449-6E6F-744E-656564454649",
    EFI: "C12A7328-F81F-11D2-BA4B-00A0C93EC93B",
    ROOT: "0FC63DAF-8483-4772-8E79-3D69D8477DE4",
}
NAMES = {BIOS: "bios", EFI: "efi", ROOT: "root"}
LOADERS = {"amd64": "bootx64.efi", "arm64": "bootaa64.efi"}
"""Architecture -> the file that UEFI starts when it was told of no other."""

KERNEL_SECTOR, DRIVE_CHECK = 0x5C, 0x66
"""Offsets in boot.img (GRUB's include/grub/i386/pc/boot.h): the sector of core.img, and a jump that believes in floppy
disks."""
BLOCK_LIST = SECTOR - 12
"""Offset in the first sector of core.img: begin, number and segment of the sectors that follow."""
CODE = slice(0x5A, 0x1B8)
"""Part of the first sector that is code, and neither the partition table nor the part that a BIOS keeps there."""
SIGNATURE = slice(0x1FE, 0x200)


@dataclass(frozen=True)
class Partition:
    """A partition, in sectors."""

    number: int
    start: int
    count: int

    @property
    def offset(self) -> int:
        """Its start in bytes."""
        return self.start * SECTOR


@dataclass(frozen=True)
class Layout:
    """The partitions of a disk."""

    bios: Partition | None
    """The partition of core.img, only where there is a BIOS."""
    efi: Partition
    root: Partition

    @property
    def bytes(self) -> int:
        """Size of the disk: whole MiB, and the last one has the second copy of the partition table."""
        return (self.root.start + self.root.count) * SECTOR + MIB

    @property
    def partitions(self) -> tuple[Partition, ...]:
        """The partitions in their order on the disk."""
        return (*([self.bios] if self.bios else []), self.efi, self.root)


def lay_out(root_bytes: int, architecture: str) -> Layout:
    """Return the layout of a disk. `root_bytes`: size of the root file system."""
    at, mib = MIB // SECTOR, MIB // SECTOR
    bios = Partition(BIOS, at, BIOS_MIB * mib) if architecture == "amd64" else None
    at += bios.count if bios else 0
    efi = Partition(EFI, at, EFI_MIB * mib)
    at += efi.count
    return Layout(bios, efi, Partition(ROOT, at, -(-root_bytes // MIB) * mib))


def partition_table(layout: Layout, name: str) -> str:
    """Return the partition table for sfdisk. Ids are made of the build's `name`: the same build has the same ones."""
    lines = ["label: gpt", f"label-id: {uuid5(NAMESPACE, name)}", "unit: sectors"]
    for partition in layout.partitions:
        id = uuid5(NAMESPACE, f"{name}/{partition.number}")
        lines.append(
            f"{partition.number} : start={partition.start}, size={partition.count}, type={TYPES[partition.number]}, "
            f'uuid={id}, name="{NAMES[partition.number]}"'
        )
    return "\n".join(lines) + "\n"


def first_sector(sector: bytes, boot_image: bytes, core_sector: int) -> bytes:
    """Return the first sector with boot.img in it. `sector`: the sector as the partitioning has left it.

    Raises ValueError when it is no boot.img.
    """
    if len(boot_image) != SECTOR or boot_image[SIGNATURE] != b"\x55\xaa":
        raise ValueError("boot.img of the image's GRUB is not a boot sector")
    code = bytearray(boot_image)
    struct.pack_into("<Q", code, KERNEL_SECTOR, core_sector)
    code[DRIVE_CHECK : DRIVE_CHECK + 2] = b"\x90\x90"  # a disk is never a floppy, whatever the BIOS says
    return bytes(code[:3]) + sector[3 : CODE.start] + bytes(code[CODE]) + sector[CODE.stop :]


def core_image(core: bytes, core_sector: int, most: int) -> bytes:
    """Return core.img as it lies in `most` sectors from `core_sector` on: its first sector says where the others are.

    Raises ValueError when it is not one, or too large.
    """
    sectors = -(-len(core) // SECTOR)
    if sectors > most:
        raise ValueError(f"core.img of the image's GRUB has {sectors} sectors, and there is room for {most}")
    if sectors < 2:
        raise ValueError("core.img of the image's GRUB is too short to be one")
    whole = bytearray(core.ljust(sectors * SECTOR, b"\0"))
    _, count, segment = struct.unpack_from("<QHH", whole, BLOCK_LIST)
    if count != sectors - 1:
        raise ValueError(f"core.img of the image's GRUB counts {count} sectors after the first, and has {sectors - 1}")
    struct.pack_into("<QHH", whole, BLOCK_LIST, core_sector + 1, count, segment)
    return bytes(whole)
