"""Table of the OpenStack releases that a site can have, and their differences.

Read in the sources of nova 29.4.0, 30.3.0, 31.3.1, 32.2.1, 33.0.2, 34.0.0 and placement 11.0.1, 12.0.2, 13.0.1,
14.0.0, 15.0.0, 16.0.0. A test asks the released packages again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from gpuyard.model.errors import UsageError

ReleaseName = Literal["2024.1", "2024.2", "2025.1", "2025.2", "2026.1", "2026.2"]
"""The names of releases, for schemas; `RELEASES` has the same."""
LARGEST_LIMIT = 2**31 - 1
"""The largest limit that Keystone accepts."""


@dataclass(frozen=True)
class Release:
    """One release of OpenStack. PCI devices in Placement, and aliases with classes and traits, work in all of them."""

    name: ReleaseName
    nova: int
    placement: int
    kolla: int
    """Major version of the kolla-ansible that deploys it."""
    microversion: str
    """The newest microversion of Nova's API, from its REST API version history. Releases may share one."""
    managed: bool
    """Whether ``managed`` is in device_spec, and ``live_migratable`` there and in aliases."""
    limits_named: bool
    """Whether there are ``[quota]unified_limits_resource_strategy`` and ``unified_limits_resource_list``. Without them
    Nova refuses whatever has no registered limit, and takes -1 for a limit that is reached."""
    limits_lookup: bool
    """Whether ``[oslo_limit]endpoint_service_type`` works. Before, there is none, or it ends in a TypeError at the
    first request, and Nova must be told the id of its own endpoint."""
    one_time_use: bool
    """Whether ``one_time_use`` is in device_spec."""
    pci_quotas: bool
    """Whether limits count the resource classes of GPUs that an alias asks for, though not when a server is resized."""
    limits_shown: bool
    """Whether Keystone shows the limits of all projects to an admin of one; before, to users with a role on the
    system."""
    wide_trees: bool
    """Whether Placement has ``[workarounds]optimize_for_wide_provider_trees``."""
    several_vgpus: bool
    """Whether a server can have vGPUs of several resource providers (libvirt driver, `_allocate_mdevs`); before, Nova
    takes the first provider of its allocation and leaves the others out."""

    @property
    def no_limit(self) -> int:
        """The limit that lets anything through."""
        return -1 if self.limits_named else LARGEST_LIMIT


_FEATURES = (
    "managed", "limits_named", "limits_lookup", "one_time_use", "pci_quotas", "limits_shown", "wide_trees",
    "several_vgpus",
)  # fmt: skip
_LATE = ("pci_quotas", "limits_shown", "several_vgpus")


def _release(name: ReleaseName, nova: int, placement: int, kolla: int, microversion: str, *lacks: str) -> Release:
    assert set(lacks) <= set(_FEATURES)
    return Release(
        name, nova, placement, kolla, microversion, **{feature: feature not in lacks for feature in _FEATURES}
    )


RELEASES: dict[str, Release] = {
    release.name: release
    for release in (
        _release("2024.1", 29, 11, 18, "2.96", *_FEATURES),
        _release("2024.2", 30, 12, 19, "2.96", *_FEATURES[:6], "several_vgpus"),
        _release("2025.1", 31, 13, 20, "2.100", *_LATE, "limits_lookup", "one_time_use"),
        _release("2025.2", 32, 14, 21, "2.100", *_LATE, "limits_lookup", "wide_trees"),
        _release("2026.1", 33, 15, 22, "2.103", "pci_quotas"),
        _release("2026.2", 34, 16, 23, "2.104"),
    )
}
NEWEST: ReleaseName = next(reversed(RELEASES.values())).name
NEWEST_KOLLA = 22
"""Major version of the newest kolla-ansible that there was when this was written."""


def release_of(requested: str | None, microversion: str) -> str:
    """Return the release that was asked for, or else the one whose newest microversion this is. Raises UsageError when
    that is none that gpuyard knows, or not one alone."""
    known_names = ", ".join(RELEASES)
    if requested is not None:
        if requested not in RELEASES:
            raise UsageError(f"release {requested!r} is not known; write one of {known_names}")
        return requested
    matches = [release.name for release in RELEASES.values() if release.microversion == microversion]
    if len(matches) == 1:
        return matches[0]
    if matches:
        raise UsageError(f"Nova of {' and of '.join(matches)} cannot be told apart from outside; say which: --release")
    reason = f"the newest microversion of its API is {microversion}" if microversion else "its API does not say"
    raise UsageError(f"Nova's release cannot be told ({reason}); give the nearest one: --release, of {known_names}")
