"""Table of Nova's options: the section, older names, the services that read each, and the values that it accepts.

Read in the sources of the releases of `release.py`; a test holds it against the installed Nova.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.nova.config import API, COMPUTE, CONDUCTOR, FALSE, SCHEDULER, TRUE
from gpuyard.nova.ini import DEFAULT
from gpuyard.nova.release import Release

Place = tuple[str, str]
"""Section and name of an option."""

ALIAS: Place = ("pci", "alias")
DEVICE_SPEC: Place = ("pci", "device_spec")
REPORTED: Place = ("pci", "report_in_placement")
PLACED: Place = ("filter_scheduler", "pci_in_placement")
ENABLED_FILTERS: Place = ("filter_scheduler", "enabled_filters")
AVAILABLE_FILTERS: Place = ("filter_scheduler", "available_filters")
MDEV_TYPES: Place = ("devices", "enabled_mdev_types")


@dataclass(frozen=True)
class Renamed:
    """A former name of an option, or a wrong name from a guide."""

    old: Place
    new: Place
    since: int
    """The first Nova with the new name."""
    until: int | None = None
    """The first Nova that does not read the old name; None: all of them do."""

    def read_by(self, release: Release) -> bool:
        """Return whether a release still reads the old name."""
        return self.until is None or release.nova < self.until


RENAMED = {
    renamed.old: renamed
    for renamed in (
        Renamed((DEFAULT, "pci_alias"), ALIAS, since=15),
        # The newest old name of an option first.
        Renamed(("pci", "passthrough_whitelist"), DEVICE_SPEC, since=26),
        Renamed((DEFAULT, "pci_passthrough_whitelist"), DEVICE_SPEC, since=15),
        # A slip of the pen in Nova's manual: no release ever read it.
        Renamed(("pci", "dev_spec"), DEVICE_SPEC, since=0, until=0),
        Renamed((DEFAULT, "scheduler_default_filters"), ENABLED_FILTERS, since=15, until=24),
        Renamed((DEFAULT, "scheduler_available_filters"), AVAILABLE_FILTERS, since=15, until=24),
        Renamed(("devices", "enabled_vgpu_types"), MDEV_TYPES, since=24),
    )
}


def names_of(option: Place) -> tuple[Place, ...]:
    """Return all names under which Nova reads or has read an option: today's, then the older ones, the newest first."""
    return (option, *(renamed.old for renamed in RENAMED.values() if renamed.new == option and renamed.until != 0))


def name_in(option: Place, release: Release) -> Place:
    """Return the name of one of today's options in a release."""
    older = (renamed.old for renamed in RENAMED.values() if renamed.new == option and release.nova < renamed.since)
    return next(older, option)


def mdev_sections(kind: str) -> tuple[str, str]:
    """Return the sections of a vGPU type: today's name, and the older one that Nova still reads."""
    return f"mdev_{kind}", f"vgpu_{kind}"


UNMISTAKABLE = (
    DEVICE_SPEC, ("pci", "passthrough_whitelist"), REPORTED, PLACED, ENABLED_FILTERS, AVAILABLE_FILTERS, MDEV_TYPES,
    ("compute", "cpu_dedicated_set"), ("compute", "cpu_shared_set"), (DEFAULT, "ram_allocation_ratio"),
    (DEFAULT, "vcpu_pin_set"), (DEFAULT, "reserved_host_cpus"),
)  # fmt: skip
SECTIONS = {key: section for section, key in UNMISTAKABLE}
"""Key -> section, for options whose names mean nothing anywhere else in Nova's files."""
PCI_OPTIONS = ("device_spec", "alias", "report_in_placement", "passthrough_whitelist")
"""All options of ``[pci]``, under their names of today and older ones."""

READERS = {
    DEVICE_SPEC: (COMPUTE,),
    REPORTED: (COMPUTE,),
    MDEV_TYPES: (COMPUTE,),
    ALIAS: (API, COMPUTE, CONDUCTOR),
    ENABLED_FILTERS: (SCHEDULER,),
    AVAILABLE_FILTERS: (SCHEDULER,),
}
"""Option -> the services that read it; for others it is not known."""

BOOLEANS = (REPORTED, PLACED)
INTEGERS = ((DEFAULT, "reserved_host_cpus"), (DEFAULT, "reserved_host_memory_mb"), (DEFAULT, "reserved_host_disk_mb"))
FLOATS = tuple(
    (DEFAULT, f"{kind}{what}_allocation_ratio") for kind in ("", "initial_") for what in ("ram", "cpu", "disk")
)
CPU_SETS = ((DEFAULT, "vcpu_pin_set"), ("compute", "cpu_dedicated_set"), ("compute", "cpu_shared_set"))
SINGLE = (*BOOLEANS, *INTEGERS, *FLOATS, *CPU_SETS, ENABLED_FILTERS, (DEFAULT, "host"), ("quota", "driver"))
"""Options of which one value counts; values of the others above add up."""
RIGHT = {"boolean": "true or false", "integer": "a whole number", "float": "a number", "cpus": "CPUs as in 4-11,^6"}
"""Kind of an option -> what it must be."""


def kind_of(option: Place) -> str:
    """Return one of `RIGHT`; empty for any text."""
    kinds = {"boolean": BOOLEANS, "integer": INTEGERS, "float": FLOATS, "cpus": CPU_SETS}
    return next((kind for kind, options in kinds.items() if option in options), "")


def not_a(option: Place, value: str) -> str | None:
    """Return why a value is not of the option's kind, by Nova's own rules; None when Nova accepts it."""
    kind = kind_of(option)
    if kind == "boolean":
        return None if value.lower() in (*TRUE, *FALSE) else "not a truth value"
    if kind == "cpus":
        return _not_cpus(value)
    if not kind or not value.strip():
        return None
    try:
        number = int(value) if kind == "integer" else float(value)
    except ValueError:
        return f"not {RIGHT[kind]}"
    return "less than 0" if number < 0 else None


def _not_cpus(text: str) -> str | None:
    """As parse_cpu_spec of nova/virt/hardware.py, and those who call it."""
    chosen: list[tuple[int, int]] = []
    without: list[tuple[int, int]] = []
    for rule in filter(None, map(str.strip, text.split(","))):
        first, dash, last = rule.removeprefix("^").partition("-")
        try:
            low = int(first)
            high = int(last) if dash else low
        except ValueError:
            return "not a set of CPUs"
        if high < low:
            return f"and the range {rule} runs backwards"
        (without if rule.startswith("^") else chosen).append((low, high))
    if not text or any(_left(cpu_range, without) for cpu_range in chosen):
        return None
    return "which leaves no CPU"


def _left(chosen: tuple[int, int], without: Sequence[tuple[int, int]]) -> bool:
    """Return whether a range has a number that none of the others has."""
    low, high = chosen
    for start, end in sorted(without):
        if start > low:
            break
        low = max(low, end + 1)
    return low <= high
