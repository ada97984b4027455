"""What the Python of another release needs to run the lab's services: this package, and nothing that is installed
beside it, which would come before what that release has."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import gpuyard
from gpuyard import installed_version
from gpuyard.lab.files import private_folder, write_private

DRIVERS = "neutron.ml2.mechanism_drivers"
"""Neutron finds the lab's driver by its entry point."""


def write_code(folder: Path) -> Path:
    """Make a folder to import this package from, with the entry points that services look for; return it."""
    private_folder(folder)
    link = folder / "gpuyard"
    link.unlink(missing_ok=True)
    link.symlink_to(Path(gpuyard.__file__).parent, target_is_directory=True)
    metadata = private_folder(folder / f"gpuyard-{installed_version()}.dist-info")
    write_private(metadata / "METADATA", f"Metadata-Version: 2.1\nName: gpuyard\nVersion: {installed_version()}\n")
    ours = [
        f"{entry_point.name} = {entry_point.value}"
        for entry_point in entry_points(group=DRIVERS)
        if entry_point.value.startswith("gpuyard.")
    ]
    write_private(metadata / "entry_points.txt", "\n".join([f"[{DRIVERS}]", *ours, ""]))
    return folder


def with_code(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """The environment of a process that imports this package from such a folder."""
    path = [str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": ":".join(path)}
