"""Builds the disk of an installed Debian 12: systemd, udev, GRUB in the MBR, initramfs-tools, Python.

It is built once into the build folder, as root and without mounts or loop devices: mmdebstrap unpacks and configures
the packages, ``mke2fs -d`` makes the root file system, and in a first boot with QEMU's ``-kernel`` the machine installs
its own GRUB. From then on it boots as any server does.
"""

from __future__ import annotations

import shutil
import struct
import sys
from pathlib import Path

from tests.virtual_hypervisor import build as building
from tests.virtual_hypervisor import installed
from tests.virtual_hypervisor.build import Build, Missing
from tests.virtual_hypervisor.topology import CONSOLE, titan_xp_node

FILES = Path(__file__).parent / "debian"
"""What is written over Debian's own files."""

MIRROR = "deb http://deb.debian.org/debian bookworm main"
PACKAGES = (
    "linux-image-amd64 initramfs-tools zstd systemd-sysv udev kmod grub-pc python3-minimal libpython3-stdlib iproute2"
)
# Of the modules those that this machine may need: with all of them an initramfs (MODULES=most, the default) takes
# ten times as long. All of sound/pci/hda, because snd_hda_intel asks for a codec's driver by its id.
KEPT_MODULES = """
arch block crypto lib virt net/9p fs/9p fs/autofs fs/ext4 fs/fat fs/fscache fs/jbd2 fs/mbcache fs/netfs fs/nls
drivers/crypto/ccp drivers/gpu/drm/drm drivers/gpu/drm/tiny/bochs drivers/gpu/drm/ttm drivers/leds
drivers/net/ethernet/intel/e1000e drivers/nvme drivers/pps drivers/ptp drivers/vfio drivers/virtio
sound/core sound/hda sound/pci/hda sound/soundcore
"""
LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/lib/modules/*/kernel/*")
MIB = 1024**2
SIZE_MIB = 2048
GAP_MIB = 1
"""Before the partition, where GRUB embeds itself."""

BOCHS_TABLE = struct.pack("<4I", 0x1234, 0x1111, 0xFFFFFFFF, 0xFFFFFFFF)
BOCHS_ALIAS = b"pci:v00001234d00001111sv*sd*bc*sc*i*"
TITAN_TABLE = struct.pack("<4I", 0x10DE, 0x1B02, 0xFFFFFFFF, 0xFFFFFFFF)
TITAN_ALIAS = b"pci:v000010DEd00001B02sv*sd*bc*sc*i*"
SIGNED = b"~Module signature appended~\n"

ENABLED = ["vhost-job.service", "systemd-networkd.service"]
MASKED = ["serial-getty@ttyS0.service", "getty@tty1.service"]


def image(build: Build, install: bool = False) -> Path:
    """The disk, ready to boot. The first call takes minutes. Raises Missing, machine.Failed."""
    parts = [path.read_bytes() for path in (Path(__file__), *sorted(FILES.rglob("*"))) if path.is_file()]
    built = build.folder / f"debian-{building.digest(*parts)}.raw"
    with building.only_one(build.folder):
        if not built.exists():
            building.need_root("an installed system")
            building.need_commands({"mmdebstrap": "mmdebstrap"}, install)
            work = build.folder / "debian"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            _install(work / "root")
            _write_disk(work)
            _install_grub(build, work)
            for old in build.folder.glob("debian-*.raw"):
                old.unlink()
            (work / "disk").rename(built)
            shutil.rmtree(work)
    return built


def _install(root: Path) -> None:
    """Unpack and configure Debian's packages into a folder."""
    options = [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
    options += [f"--dpkgopt=path-include=/lib/modules/*/kernel/{path}*" for path in KEPT_MODULES.split()]
    options += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    include = f"--include={PACKAGES.replace(' ', ',')}"
    building.run(["mmdebstrap", "--mode=root", "--variant=minbase", include, *options, "bookworm", str(root), MIRROR])
    shutil.copytree(FILES, root, dirs_exist_ok=True)
    _make_bochs_native(root)
    inside = ["chroot", str(root)]
    building.run([*inside, "systemctl", "enable", *ENABLED])
    building.run([*inside, "systemctl", "mask", *MASKED])
    building.run([*inside, "update-initramfs", "-u", "-k", "all"])


def _make_bochs_native(root: Path) -> None:
    """Give bochs-drm the ids of a Titan Xp in place of QEMU's: udev loads it and it takes the card, as nouveau would.

    The ids are in its table and in its alias, from which depmod builds modules.alias.
    """
    (module,) = root.glob("lib/modules/*/kernel/drivers/gpu/drm/tiny/bochs.ko")
    content = module.read_bytes()
    for old, new in ((BOCHS_TABLE, TITAN_TABLE), (BOCHS_ALIAS, TITAN_ALIAS)):
        if content.count(old) != 1:
            raise Missing(f"{module.name} is not as expected: {content.count(old)} times {old!r}")
        content = content.replace(old, new)
    module.write_bytes(_unsigned(content))
    building.run(["chroot", str(root), "depmod", module.relative_to(root / "lib/modules").parts[0]])


def _unsigned(module: bytes) -> bytes:
    """Without the signature at its end (include/linux/module_signature.h): the kernel takes none, but no wrong one."""
    if not module.endswith(SIGNED):
        return module
    end = len(module) - len(SIGNED)
    (length,) = struct.unpack_from(">I", module, end - 4)
    return module[: end - 12 - length]


def _write_disk(work: Path) -> None:
    """One ext4 partition with the folder in it; kernel and initramfs are kept beside it for the first boot."""
    for name in ("vmlinuz", "initrd.img"):
        (source,) = (work / "root/boot").glob(f"{name}-*")
        shutil.copy(source, work / name)
    disk, size = work / "disk", SIZE_MIB - GAP_MIB
    entry = struct.pack("<B3sB3sII", 0x80, b"\xfe\xff\xff", 0x83, b"\xfe\xff\xff", GAP_MIB * 2048, size * 2048)
    with disk.open("wb") as file:
        file.truncate(SIZE_MIB * MIB)
        file.seek(446)
        file.write(entry + bytes(48) + b"\x55\xaa")
    command = ["mke2fs", "-q", "-F", "-t", "ext4", "-L", "root", "-d", str(work / "root")]
    building.run([*command, "-E", f"offset={GAP_MIB * MIB}", str(disk), f"{size}M"])


def _install_grub(build: Build, work: Path) -> None:
    first = ["-kernel", str(work / "vmlinuz"), "-initrd", str(work / "initrd.img")]
    first += ["-append", " ".join([*CONSOLE, "root=LABEL=root"])]
    job = "#!/bin/sh -e\ngrub-install /dev/nvme0n1\nupdate-grub\n"
    result = installed.boot(build, titan_xp_node(exact=False), work / "disk", job, work / "first", 600, first)
    if result.status:
        raise Missing(f"GRUB could not be installed:\n{result.output}")


def main() -> int:
    try:
        print(image(building.prepare(install=True), install=True))
    except (Missing, installed.Failed) as error:
        print(f"vhost: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
