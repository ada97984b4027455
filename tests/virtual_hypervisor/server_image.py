"""The image that servers in tests boot: made by `gpuyard.images` from Debian's packages, once for all tests.

It is built into the build folder, as root, and again when its definition or an element changes. actions/runner in it is
the stand-in of `gpuyard_lab.github`. What tests differ in is written into the disk of each server, as an operator's
own element would.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from gpuyard.images.build import PROGRAMS, build_image, digest_of
from gpuyard.images.check import GROWN
from gpuyard.images.element_files import own_elements
from gpuyard.images.manifest import Manifest
from gpuyard.images.planner import plan_build
from gpuyard.site.image_rules import ImageBuild
from tests.virtual_hypervisor import build as building
from tests.virtual_hypervisor.cloud_server import CloudServer
from tests.virtual_hypervisor.disk import MIRROR
from tests.virtual_hypervisor.runner import RUNNER

NAME = "tiny"
"""The lab's image: what is built here can be promoted there."""
DRIVER_NAME, DRIVER_BRANCH = "driver", "535"
"""An image with the driver that Debian 12 has."""
MODELS = ("10de:1db4",)
"""The GPUs that images are for: a V100."""
DAY = date(2026, 11, 22)
MIRROR_URL, RELEASE = MIRROR.split()[1:3]
BASE = {
    "distribution": "debian",
    "release": RELEASE,
    "mirror": MIRROR_URL,
    "security_mirror": f"{MIRROR_URL}-security",
}
ARCHIVE = "runner.tar.gz"
NEEDED = {
    **{program: package for program, package in PROGRAMS.items() if package},
    "qemu-system-x86_64": "qemu-system-x86",
    "genisoimage": "genisoimage",
    "curl": "curl",
}
"""Program -> Debian package: to build one, to boot it, and to ask what has become of its packages."""


@dataclass(frozen=True)
class BuiltImage:
    """A build, and where it is."""

    folder: Path
    manifest: Manifest

    @property
    def disk(self) -> Path:
        """As Glance gets it."""
        return self.folder / self.manifest.disk.file

    def raw(self, folder: Path) -> Path:
        """As QEMU can copy it, and debugfs write into it: a file of `folder`."""
        disk = folder / "image.raw"
        building.run(["qemu-img", "convert", "-O", "raw", str(self.disk), str(disk)])
        return disk


def definition(folder: Path) -> ImageBuild:
    """An image with the agent and with the runner, whose archive is put into `folder`."""
    archive = folder / ARCHIVE
    with gzip.GzipFile(archive, "wb", mtime=0) as packed, tarfile.open(fileobj=packed, mode="w") as tar:
        for path, (mode, content) in sorted(RUNNER.items()):
            entry = tarfile.TarInfo(path.rpartition("/")[2])
            entry.mode, entry.size = mode, len(content)
            tar.addfile(entry, io.BytesIO(content))
    stated = {"version": "2.330.0", "archive": ARCHIVE, "sha256": digest_of(archive)}
    return ImageBuild.model_validate({"base": BASE, "agent": True, "runner": stated, "visibility": "public"})


def image(install: bool = False) -> BuiltImage:
    """The image. The first call takes some minutes. Raises Missing."""
    return _built(NAME, definition, install)


def driver_image(install: bool = False) -> BuiltImage:
    """One with NVIDIA's driver as Debian has it. The first call takes six minutes. Raises Missing."""
    build = ImageBuild.model_validate({"base": BASE, "driver": {"branch": DRIVER_BRANCH}})
    return _built(DRIVER_NAME, lambda folder: build, install)


def _built(name: str, definition: Callable[[Path], ImageBuild], install: bool) -> BuiltImage:
    """All images have one cache, as somebody's own have."""
    building.need_root("an image")
    building.need_commands(NEEDED, install)
    home = building.default_folder() / "images"
    built = home / "built"
    built.mkdir(parents=True, exist_ok=True)
    with building.only_one(built):
        plan = plan_build(name, definition(built), own_elements(), DAY, MODELS)
        for old in built.glob(f"{name}-*"):
            if not old.name.startswith(f"{plan.name}."):
                old.unlink()
        return BuiltImage(built, build_image(plan, built, home, print, built))


class ImageServer(CloudServer):
    """A server of this image: it starts by its own boot loader, and its flavor's disk is larger. `image` is raw."""

    def _bake(self) -> None:
        table = json.loads(building.run(["sfdisk", "--json", str(self.disk)]))["partitiontable"]
        (start,) = [partition["start"] for partition in table["partitions"] if partition["name"] == "root"]
        commands = []
        for number, (path, (mode, content)) in enumerate(self.baked.items()):
            file = self.folder / f"baked-{number}"
            file.write_bytes(content)
            folder, _, name = path.rpartition("/")
            commands += [f"cd /{folder}", f"rm {name}", f"write {file} {name}", f"sif {name} mode 0{0o100000 | mode:o}"]
        script = self.folder / "baked"
        script.write_text("\n".join(commands) + "\n")
        place = f"{self.disk}?offset={start * table['sectorsize']}"
        subprocess.run(["debugfs", "-w", "-f", str(script), place], capture_output=True, check=True)
        os.truncate(self.disk, GROWN * self.disk.stat().st_size)

    def _starts(self) -> list[str]:
        return []
