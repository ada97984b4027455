"""What differs between the releases of OpenStack that a site can have: the one table of features.

Read in the sources of nova 31.3.1, 32.2.1, 33.0.2, 34.0.0 and placement 13.0.1, 14.0.0, 15.0.0, 16.0.0. A test asks the
released packages again.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """One release of OpenStack. PCI devices in Placement, aliases with classes and traits, ``managed`` and
    ``live_migratable`` work in all of them."""

    name: str
    nova: int
    placement: int
    one_time_use: bool
    """``one_time_use`` in device_spec."""
    pci_quotas: bool
    """Limits count the resource classes of GPUs that an alias asks for, but not when a server is resized."""
    wide_trees: bool
    """``[workarounds]optimize_for_wide_provider_trees`` of Placement."""


RELEASES = {
    release.name: release
    for release in (
        Release("2025.1", 31, 13, one_time_use=False, pci_quotas=False, wide_trees=True),
        Release("2025.2", 32, 14, one_time_use=True, pci_quotas=False, wide_trees=False),
        Release("2026.1", 33, 15, one_time_use=True, pci_quotas=False, wide_trees=True),
        Release("2026.2", 34, 16, one_time_use=True, pci_quotas=True, wide_trees=True),
    )
}
