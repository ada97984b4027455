"""What image definitions ask the archives of Ubuntu and Debian for, held against recorded parts of their indexes."""

from __future__ import annotations

import csv
import importlib.util
import io
import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest

from gpuyard.host.pci_ids import PciIds
from gpuyard.images.element_files import own_elements, write_elements
from gpuyard.images.planner import Folders, plan_build
from gpuyard.site.image_problems import image_problems
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.schema import Site
from tests.support.archives import DEBIAN_COMPONENTS, RELEASES, UBUNTU_COMPONENT, apt_with

V100 = "10de:1db4"
SPEC = importlib.util.find_spec("diskimage_builder")
assert SPEC is not None
assert SPEC.origin is not None
DIB = Path(SPEC.origin).parent / "elements"
FOLDERS = Folders(*map(Path, ("/c/elements", "/c/dib", "/c/work", "/c/trees/it", "/c/runner.tar.gz")))


def components(distribution: str, release: str, **more: object) -> set[str]:
    """The archive's components that diskimage-builder writes into sources.list, by its own environment.d."""
    base = {"distribution": distribution, "release": release}
    build = ImageBuild.model_validate({"base": base, **more})
    planned = plan_build("i", build, own_elements(), date(2026, 11, 23), [V100])
    environment = planned.environment(FOLDERS, {})
    own = "ubuntu-common/environment.d/10-ubuntu-distro-name.bash"
    read = f"source {DIB / own}; " if distribution == "ubuntu" else ""
    script = f'set -eu; {read}echo "${{DIB_DEBIAN_COMPONENTS:-main}}"'
    done = subprocess.run(["bash", "-c", script], env=environment, capture_output=True, text=True, check=True)
    return set(done.stdout.strip().split(","))


@pytest.mark.parametrize("release", ["jammy", "noble"])
@pytest.mark.parametrize("more", [{}, {"container_toolkit": True}], ids=["driver", "containers"])
def test_an_ubuntu_image_reads_the_components_that_have_its_packages(release: str, more: dict[str, object]) -> None:
    component_names = components("ubuntu", release, driver={"branch": "580"}, **more)
    assert component_names >= set(UBUNTU_COMPONENT.values())
    assert component_names <= {"main", "restricted", "universe", "multiverse"}, (
        "debootstrap stops at one that is not there"
    )
    assert "universe" in components("ubuntu", release), "diskimage-builder's own way, without a driver"


@pytest.mark.parametrize("release", DEBIAN_COMPONENTS)
def test_a_debian_image_reads_the_components_that_its_release_has(release: str) -> None:
    component_names = components("debian", release, driver={"branch": "535"})
    assert component_names <= DEBIAN_COMPONENTS[release], "debootstrap stops at one that is not there"
    assert component_names >= {"contrib", "non-free"}


def refused(distribution: str, release: str) -> list[str]:
    """What a site file with an image of a release is told."""
    build = {"base": {"distribution": distribution, "release": release}}
    stated = {"site": "s", "hosts": {"h": {"recording": "h.json"}}, "pools": {"p": {"models": [V100]}}}
    site = Site.model_validate({**stated, "images": {"i": {"build": build}}})
    return [problem.message for problem in image_problems(site, PciIds.of_this_machine())]


@pytest.mark.parametrize("distribution", RELEASES)
def test_a_base_is_a_release_that_its_distribution_has_and_maintains(distribution: str) -> None:
    day, first = "2026-11-24", "2020-01-01"
    for row in csv.DictReader(io.StringIO(RELEASES[distribution])):
        ends = [day for name, day in row.items() if name.startswith("eol") and day]
        came = row["release"] or ""
        maintained = (not ends or max(ends) > day) and row["created"] < day and (not came or came > first)
        refusals = refused(distribution, row["series"])
        assert (not refusals) is maintained, (row["series"], refusals)


def test_what_is_no_release_is_refused_with_those_there_are() -> None:
    choices = "there are bullseye, bookworm, trixie, forky"
    assert refused("debian", "bokworm") == [f"gpuyard knows no release 'bokworm' of debian; {choices}"]
    assert refused("debian", "noble") == [f"gpuyard knows no release 'noble' of debian; it is one of ubuntu; {choices}"]


@pytest.fixture(scope="module")
def apts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, str]]:
    """Environments in which apt has read the recorded index of a release."""
    environments = {name: apt_with(name, tmp_path_factory.mktemp(name)) for name in ("noble", "bullseye")}
    for environment in environments.values():
        subprocess.run(["apt-get", "update", "-qq"], env=environment, check=True, capture_output=True)
    return environments


def chosen(folder: Path, apt: dict[str, str], system: str, driver: tuple[str, str]) -> tuple[str, str]:
    """The packages that the element would install, and what it says when it refuses."""
    write_elements(own_elements(), folder / "elements")
    script = folder / "elements/gpuyard-nvidia/install.d/59-gpuyard-nvidia-packages"
    distribution, release = system.split()
    environment = apt | {
        "DISTRO_NAME": distribution,
        "DIB_RELEASE": release,
        "DIB_GPUYARD_NVIDIA_BRANCH": driver[0],
        "DIB_GPUYARD_NVIDIA_MODULE": driver[1],
        "DIB_GPUYARD_NVIDIA_SOURCE": "distribution",
        "DIB_GPUYARD_NVIDIA_PACKAGES": str(folder / "packages"),
    }
    done = subprocess.run([script], env=environment, capture_output=True, text=True, check=False)
    packages = (folder / "packages").read_text().strip() if done.returncode == 0 else ""
    return packages, done.stderr


NO_570 = (
    "ubuntu noble no longer has branch 570: nvidia-dkms-570-server-open is a transitional package that installs "
    "nvidia-dkms-580-server-open. Write another 'branch', or 'source: nvidia'. There are "
    "nvidia-dkms-470-server 470.256.02-0ubuntu0.24.04.1;nvidia-dkms-580-server 580.126.20-0ubuntu0.24.04.2;"
    "nvidia-dkms-580-server-open 580.126.20-0ubuntu0.24.04.2;"
)


@pytest.mark.skipif(shutil.which("apt-cache") is None, reason="wants apt")
@pytest.mark.parametrize(
    ("release", "branch", "module", "packages", "said"),
    [
        (
            "noble",
            "580",
            "open",
            "nvidia-dkms-580-server-open nvidia-utils-580-server libnvidia-compute-580-server",
            "",
        ),
        (
            "noble",
            "580",
            "proprietary",
            "nvidia-dkms-580-server nvidia-utils-580-server libnvidia-compute-580-server",
            "",
        ),
        (
            "noble",
            "570",
            "open",
            "",
            NO_570,
        ),
        ("noble", "550", "proprietary", "", "a transitional package that installs nvidia-dkms-570-server."),
        ("noble", "610", "open", "", "has no open kernel module of branch 610, but nvidia-dkms-470-server"),
        (
            "bullseye",
            "470",
            "proprietary",
            "nvidia-kernel-dkms nvidia-smi libcuda1 nvidia-persistenced nvidia-modprobe",
            "",
        ),
        (
            "bullseye",
            "460",
            "proprietary",
            "",
            "nvidia-tesla-460-kernel-dkms is a transitional package that installs nvidia-tesla-470-kernel-dkms.",
        ),
    ],
)
def test_what_is_asked_for_is_installed_or_refused(
    tmp_path: Path,
    apts: dict[str, dict[str, str]],
    release: str,
    branch: str,
    module: str,
    packages: str,
    said: str,
) -> None:
    system = {"noble": "ubuntu noble", "bullseye": "debian bullseye"}[release]
    selection = chosen(tmp_path, apts[release], system, (branch, module))
    assert selection[0] == packages
    assert said in selection[1]
