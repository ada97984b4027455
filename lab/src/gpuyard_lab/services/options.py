"""Applies options to one service alone while several share a process, and with it oslo.config's one global object.

A file's options are overrides of the global object while the service of that file is created and started, and are gone
after. That is enough for what a service reads once, when it starts. Options that it reads again later need something
else, or the file would silently not be followed; so only options of a given list are accepted, and any other is an
error.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# Read when nova-compute starts: by ResourceTracker (the ratios, provider.yaml) and PciDevTracker (device_spec).
# RecordedHostDriver keeps a copy of those that a driver reads again, the ratios and what is reserved.
# report_in_placement is read again by Nova itself, so the lab sets it for all hosts.
HOST_OPTIONS = {
    ("pci", "device_spec"),
    ("pci", "report_in_placement"),
    ("compute", "provider_config_location"),
    *(("DEFAULT", f"{kind}_allocation_ratio") for kind in ("cpu", "ram", "disk")),
    *(("DEFAULT", f"initial_{kind}_allocation_ratio") for kind in ("cpu", "ram", "disk")),
    ("libvirt", "live_migration_permit_post_copy"),  # read by a driver that is not the lab's
    *(("DEFAULT", f"reserved_host_{what}") for what in ("cpus", "memory_mb", "disk_mb")),
    ("devices", "enabled_mdev_types"),  # as those of each type: MdevDriver keeps what they say
}
MULTIPLE = {("pci", "device_spec")}
# The size of the pool is read when the RPC server starts; the number of workers only where there are processes to fork.
SCHEDULER_OPTIONS = {("DEFAULT", "executor_thread_pool_size"), ("scheduler", "workers")}


@contextmanager
def options_in_force(conf: Any, path: Path, known: Collection[tuple[str, str]]) -> Iterator[None]:
    """Set the options of an ini file in the given ConfigOpts for the time of a ``with`` block. Raises ValueError for
    one that is not in `known`."""
    overrides = read_options(path)
    for section, key in overrides:
        if (section, key) not in known:
            raise ValueError(f"{path}: the lab cannot set [{section}] {key} for one service alone")
    try:
        for (section, key), values in overrides.items():
            # oslo.config turns text into what the option's type says.
            value = values if (section, key) in MULTIPLE else values[-1]
            conf.set_override(key, value, _group(section))
        yield
    finally:
        for section, key in overrides:
            conf.clear_override(key, _group(section))


def mdev_options(conf: Any, path: Path) -> set[tuple[str, str]]:
    """Return the options of each mdev type that an ini file names, which Nova knows only once it knows the types."""
    from nova.conf import devices

    mdev_types = read_options(path).get(("devices", "enabled_mdev_types"), [""])[-1]
    if not mdev_types:
        return set()
    conf.set_override("enabled_mdev_types", mdev_types, "devices")
    try:
        devices.register_dynamic_opts(conf)
        sections = [f"mdev_{kind}" for kind in conf.devices.enabled_mdev_types]
        return {(section, key) for section in sections for key in conf[section]}
    finally:
        conf.clear_override("enabled_mdev_types", "devices")


def read_options(path: Path) -> dict[tuple[str, str], list[str]]:
    """Return every option of an ini file with all its values, as text."""
    from oslo_config import cfg

    sections: dict[str, dict[str, list[str]]] = {}
    cfg.ConfigParser(str(path), sections).parse()
    return {(section, key): values for section, options in sections.items() for key, values in options.items()}


def _group(section: str) -> str | None:
    return None if section == "DEFAULT" else section
