"""What diskimage-builder is told for a definition. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from gpuyard.host.pci_ids import PciIds
from gpuyard.images.element_files import ElementFiles, of_elements
from gpuyard.images.naming import BuiltName, definition_digest
from gpuyard.images.programs import search_path
from gpuyard.site.driver_choice import kernel_module
from gpuyard.site.image_rules import ImageBuild

ROOT_ELEMENTS = {"debian": "debian-minimal", "ubuntu": "ubuntu-minimal"}
RESOLVED_IN_SYSTEMD = ("bullseye", "focal", "jammy")
"""Releases whose package systemd has systemd-resolved in it."""
COMPONENTS = {"debian": "main,contrib,non-free,non-free-firmware", "ubuntu": "main,restricted,universe"}
"""The parts of a distribution's archive that have NVIDIA's driver and Docker. Ubuntu: nvidia-dkms-* is in restricted,
docker.io in universe."""
OLD_COMPONENTS = {"bullseye": "main,contrib,non-free"}
"""Of releases from before non-free-firmware: debootstrap stops at a component that is not there."""
DEBIAN_SECURITY = "http://deb.debian.org/debian-security"
"""On the host that has the rest, too; diskimage-builder takes security.debian.org."""
ROOT_LABEL = "cloudimg-rootfs"
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Folders:
    """Where a build works."""

    elements: Path
    """The elements of gpuyard and of the site are written there."""
    cache: Path
    """What may be used again by later builds: the unpacked distribution, packages."""
    work: Path
    """For diskimage-builder's own temporary files: several GB, on a disk."""
    tree: Path
    """The file system that it makes, without the suffix ``.raw``."""
    runner: Path
    """The archive of actions/runner."""


@dataclass(frozen=True)
class BuildPlan:
    """One build."""

    name: BuiltName
    build: ImageBuild
    elements: tuple[str, ...]
    """As diskimage-builder is given them."""
    files: ElementFiles
    """Of those that do not come with diskimage-builder."""
    module: str = ""
    """Of NVIDIA's driver: open or proprietary."""

    def arguments(self, folders: Folders) -> list[str]:
        """Of disk-image-create: one file system of the whole tree. A disk is made of it by disk.py."""
        size = [] if self.build.size is None else ["--image-size", str(self.build.size)]
        packages = ["-p", ",".join(self.build.packages)] if self.build.packages else []
        return [
            *("-n", "-a", self.build.base.architecture, "-t", "raw", "-o", str(folders.tree), "--no-tmpfs"),
            *("--root-label", ROOT_LABEL, "--image-cache", str(folders.cache)),
            *size,
            *packages,
            *self.elements,
        ]

    def environment(self, folders: Folders, base: Mapping[str, str]) -> dict[str, str]:
        """All of it: nothing of the operator's shell comes in but where the programs, his home and his proxies are."""
        mirror, security = self.build.base.mirror, self.build.base.security_mirror or DEBIAN_SECURITY
        release = self.build.base.release
        found = {name: base[name] for name in ("HOME", *PROXIES) if name in base}
        found |= {
            "PATH": search_path(base),
            "USER": base.get("USER", "root"),
            "LC_ALL": "C.UTF-8",
            "TMP_DIR": str(folders.work),
            "ELEMENTS_PATH": str(folders.elements),
            "DIB_RELEASE": release,
            "DIB_LOCKFILES": str(folders.cache / "locks"),
            "DIB_DEBOOTSTRAP_CACHE": "1",
            "DIB_DEBIAN_USE_DEBOOTSTRAP_CACHE": "1",
            "DIB_GPUYARD_RESOLVED": "systemd" if release in RESOLVED_IN_SYSTEMD else "package",
        }
        if mirror is not None:
            found["DIB_DISTRIBUTION_MIRROR"] = mirror
        if self.build.base.distribution == "debian":
            found["DIB_DEBIAN_SECURITY_MIRROR"] = security
        if self.build.runner is not None:
            found["DIB_GPUYARD_RUNNER_ARCHIVE"] = str(folders.runner)
        if self.build.cuda is not None:
            found["DIB_GPUYARD_CUDA"] = self.build.cuda
        driver = self.build.driver
        if driver is not None:
            found |= {
                "DIB_DEBIAN_COMPONENTS": OLD_COMPONENTS.get(release, COMPONENTS[self.build.base.distribution]),
                "DIB_GPUYARD_NVIDIA_BRANCH": driver.branch,
                "DIB_GPUYARD_NVIDIA_MODULE": self.module,
                "DIB_GPUYARD_NVIDIA_SOURCE": driver.source,
            }
        return found


def plan_build(image: str, build: ImageBuild, known: ElementFiles, day: date, models: Iterable[str] = ()) -> BuildPlan:
    """`known`: the elements of gpuyard and those beside the site file, of which those are taken that are wanted.
    `models`: PCI ids of the GPUs that the image is for.
    """
    module = kernel_module(build, models, PciIds.of_this_machine()) if build.driver is not None else ""
    elements = [ROOT_ELEMENTS[build.base.distribution], "gpuyard-base"]
    elements += ["gpuyard-nvidia"] if build.driver is not None else []
    elements += ["gpuyard-cuda"] if build.cuda is not None else []
    elements += ["gpuyard-containers"] if build.container_toolkit else []
    elements += ["gpuyard-runner"] if build.runner is not None else []
    elements += ["gpuyard-agent"] if build.agent else []
    elements += [name for name in build.elements if name not in elements]
    files = of_elements(known, elements)
    name = BuiltName(image, day, definition_digest(build, files, module))
    return BuildPlan(name, build, tuple(elements), files, module)
