"""Builds what a server of a cloud boots: a disk with Debian 12, systemd and cloud-init, and a kernel beside it.

The disk is built once into the build folder, as root and without mounts or loop devices. It has Debian's packages and
nothing of ours. What an operator would bake into an image (the runner, a driver) comes with each boot, in the
initramfs, so that tests can differ in it.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path

from tests.virtual_hypervisor import build as building
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.disk import LEFT_OUT, MIRROR

INIT = Path(__file__).parent / "cloud_init.sh"
PACKAGES = "systemd-sysv,udev,dbus,iproute2,cloud-init,python3-minimal"
MODULES = ("virtio_pci", "virtio_blk", "virtio_net", "crc32c_generic", "ext4", "ahci", "sr_mod", "isofs")
"""All that there are: the disk has none."""
SIZE_MIB = 1024
FILES = {
    "etc/fstab": "/dev/vda / ext4 errors=remount-ro 0 1\n",
    "etc/hostname": "localhost\n",
    "etc/cloud/cloud.cfg.d/90_openstack.cfg": "datasource_list: [ConfigDrive, None]\n",
}
"""What makes Debian's packages an image for OpenStack."""

Baked = Mapping[str, tuple[int, bytes]]
"""Path -> permissions and content."""


def image(build: Build, install: bool = False) -> Path:
    """The disk. The first call takes a minute. Raises Missing."""
    built = build.folder / f"cloud-{building.digest(Path(__file__).read_bytes())}.raw"
    with building.only_one(build.folder):
        if not built.exists():
            building.need_root("an image")
            building.need_commands({"mmdebstrap": "mmdebstrap"}, install)
            work = build.folder / "cloud"
            shutil.rmtree(work, ignore_errors=True)
            work.mkdir()
            _install(work / "root")
            building.run(
                ["mke2fs", "-q", "-F", "-t", "ext4", "-d", str(work / "root"), str(work / "disk"), f"{SIZE_MIB}M"]
            )
            for old in build.folder.glob("cloud-*.raw"):
                old.unlink()
            (work / "disk").rename(built)
            shutil.rmtree(work)
    return built


def _install(root: Path) -> None:
    options = [f"--dpkgopt=path-exclude={path}" for path in LEFT_OUT]
    options += ['--aptopt=APT::Install-Recommends "false"', '--aptopt=Acquire::Languages "none"']
    building.run(
        [
            "mmdebstrap",
            "--mode=root",
            "--variant=minbase",
            f"--include={PACKAGES}",
            *options,
            "bookworm",
            str(root),
            MIRROR,
        ]
    )
    for path, content in FILES.items():
        (root / path).write_text(content)
    (root / "etc/machine-id").write_text("")  # made at the first boot
    building.run(["chroot", str(root), "systemctl", "enable", "systemd-networkd.service"])


def initramfs(build: Build, baked: Baked) -> bytes:
    """For one boot, with what the image has beside Debian."""
    files = {"bin/busybox": (0o755, build.busybox.read_bytes()), "init": (0o755, INIT.read_bytes())}
    files |= building.module_files(build.modules, MODULES)
    return building.cpio(files | {f"baked/{path}": file for path, file in baked.items()})
