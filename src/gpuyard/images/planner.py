"""Plans a build: the elements, arguments and environment that diskimage-builder gets for a definition."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path

from gpuyard.host.pci_ids import PciIds
from gpuyard.images.element_files import ElementFiles, of_elements
from gpuyard.images.naming import BuiltName, definition_digest
from gpuyard.images.programs import search_path
from gpuyard.site.image_problems import kernel_module
from gpuyard.site.image_rules import ImageBuild

ROOT_ELEMENTS = {"debian": "debian-minimal", "ubuntu": "ubuntu-minimal"}
RESOLVED_IN_SYSTEMD = ("bullseye", "focal", "jammy")
"""Releases whose package systemd has systemd-resolved in it."""
COMPONENTS = {"debian": "main,contrib,non-free,non-free-firmware", "ubuntu": "main,restricted,universe"}
"""The parts of a distribution's archive that have NVIDIA's driver and Docker. Ubuntu: nvidia-dkms-* is in restricted,
docker.io in universe."""
OLD_COMPONENTS = {"bullseye": "main,contrib,non-free"}
"""Components of releases from before non-free-firmware: debootstrap stops at a component that is not there."""
DEBIAN_SECURITY = "http://deb.debian.org/debian-security"
"""Debian's security archive on the host that has the rest, too; diskimage-builder would take security.debian.org."""
ROOT_LABEL = "cloudimg-rootfs"
PROXIES = ("http_proxy", "https_proxy", "no_proxy")


@dataclass(frozen=True)
class Folders:
    """The folders and files of a build."""

    elements: Path
    """Folder that the elements of gpuyard and of the site are written to."""
    cache: Path
    """Cache for later builds: the unpacked distribution, packages."""
    work: Path
    """Folder for diskimage-builder's own temporary files: several GB, on a disk."""
    tree: Path
    """The file system that it makes, without the suffix ``.raw``."""
    runner: Path
    """The archive of actions/runner."""


@dataclass(frozen=True)
class BuildPlan:
    """The plan of one build."""

    name: BuiltName
    build: ImageBuild
    elements: tuple[str, ...]
    """Elements in the order in which diskimage-builder is given them."""
    files: ElementFiles
    """Files of those elements that do not come with diskimage-builder."""
    module: str = ""
    """The kernel module of NVIDIA's driver: open or proprietary."""

    def arguments(self, folders: Folders) -> list[str]:
        """Return the arguments of disk-image-create: one file system of the whole tree. disk.py makes a disk of it."""
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
        """Return the whole environment: of the operator's shell only the paths of programs, the home and the proxies
        are taken."""
        mirror, security = self.build.base.mirror, self.build.base.security_mirror or DEBIAN_SECURITY
        release = self.build.base.release
        variables = {name: base[name] for name in ("HOME", *PROXIES) if name in base}
        variables |= {
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
            variables["DIB_DISTRIBUTION_MIRROR"] = mirror
        if self.build.base.distribution == "debian":
            variables["DIB_DEBIAN_SECURITY_MIRROR"] = security
        if self.build.runner is not None:
            variables["DIB_GPUYARD_RUNNER_ARCHIVE"] = str(folders.runner)
        if self.build.cuda is not None:
            variables["DIB_GPUYARD_CUDA"] = self.build.cuda
        driver = self.build.driver
        if driver is not None:
            variables |= {
                "DIB_DEBIAN_COMPONENTS": OLD_COMPONENTS.get(release, COMPONENTS[self.build.base.distribution]),
                "DIB_GPUYARD_NVIDIA_BRANCH": driver.branch,
                "DIB_GPUYARD_NVIDIA_MODULE": self.module,
                "DIB_GPUYARD_NVIDIA_SOURCE": driver.source,
            }
        return variables


def plan_build(
    image: str, build: ImageBuild, known_elements: ElementFiles, day: date, models: Iterable[str] = ()
) -> BuildPlan:
    """Plan a build. `known_elements`: the elements of gpuyard and those beside the site file, of which the needed ones
    are taken. `models`: PCI ids of the GPUs that the image is for."""
    module = kernel_module(build, models, PciIds.of_this_machine()) if build.driver is not None else ""
    elements = [ROOT_ELEMENTS[build.base.distribution], "gpuyard-base"]
    elements += ["gpuyard-nvidia"] if build.driver is not None else []
    elements += ["gpuyard-cuda"] if build.cuda is not None else []
    elements += ["gpuyard-containers"] if build.container_toolkit else []
    elements += ["gpuyard-runner"] if build.runner is not None else []
    elements += ["gpuyard-agent"] if build.agent else []
    elements += [name for name in build.elements if name not in elements]
    files = of_elements(known_elements, elements)
    name = BuiltName(image, day, definition_digest(build, files, module))
    return BuildPlan(name, build, tuple(elements), files, module)
