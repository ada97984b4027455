"""Catalogue of the releases of OpenStack that a lab can run, with their Python and the versions of their services.
Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard_lab.errors import LabSettingsError

Version = tuple[int, int]
"""Major and minor version of a Python."""
OLDEST_PYTHON: Version = (3, 11)
"""The oldest Python that the lab's own code runs on."""
OWN = "2026.2"
"""The release in the lab's own environment, which needs no other."""


@dataclass(frozen=True)
class LabRelease:
    """A release of OpenStack that the lab installs."""

    name: str
    newest_python: Version
    """The newest Python that its Nova names in its metadata."""
    services: dict[str, str]
    """Package of each service -> its version."""

    @property
    def lock(self) -> Path:
        """File of its packages, one a line with their exact versions."""
        return Path(__file__).parent / f"{self.name}.txt"

    @property
    def pythons(self) -> str:
        """The Pythons that it runs on, in words."""
        oldest, newest = spoken(OLDEST_PYTHON), spoken(self.newest_python)
        return oldest if oldest == newest else f"{oldest} to {newest}"

    def runs_on(self, python: Version) -> bool:
        return OLDEST_PYTHON <= python <= self.newest_python


def _services(nova: str, keystone: str, glance: str, neutron: str, placement: str) -> dict[str, str]:
    return {
        "nova": nova, "keystone": keystone, "glance": glance, "neutron": neutron, "openstack-placement": placement,
    }  # fmt: skip


LAB_RELEASES = {
    release.name: release
    for release in (
        LabRelease("2024.1", (3, 11), _services("29.4.0", "25.0.0", "28.2.0", "24.2.2", "11.0.1")),
        LabRelease("2024.2", (3, 11), _services("30.3.0", "26.1.1", "29.2.1", "25.2.3", "12.0.2")),
        LabRelease("2025.1", (3, 12), _services("31.3.1", "27.1.0", "30.2.0", "26.0.6", "13.0.1")),
        LabRelease("2025.2", (3, 12), _services("32.2.1", "28.1.0", "31.1.0", "27.0.4", "14.0.0")),
        LabRelease("2026.1", (3, 12), _services("33.0.2", "29.1.0", "32.0.0", "28.0.2", "15.0.0")),
    )
}
"""The releases that are installed into an environment of their own."""


def spoken(python: Version) -> str:
    """Return a version in words: ``(3, 11)`` -> ``3.11``."""
    return f"{python[0]}.{python[1]}"


def lab_release(name: str) -> LabRelease:
    """Return the release of a name. Raises LabSettingsError when a lab cannot run it."""
    if name not in LAB_RELEASES:
        choices = ", ".join([*LAB_RELEASES, OWN])
        raise LabSettingsError(f"a lab cannot run release {name!r}; choose one of {choices} with --release")
    return LAB_RELEASES[name]


def names_of_python(release: LabRelease) -> Sequence[str]:
    """Return the names in PATH of Pythons that can run a release, the newest first."""
    newest, oldest = release.newest_python[1], OLDEST_PYTHON[1]
    return [f"python3.{minor}" for minor in range(newest, oldest - 1, -1)]
