"""Makes gpuyard and the lab importable by the Python of another release, without the packages installed beside them.

Those would come before the packages that the release has.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path

import gpuyard
import gpuyard_lab
from gpuyard import installed_version
from gpuyard_lab.files import private_folder, write_private

DRIVERS = "neutron.ml2.mechanism_drivers"
"""Group of entry points by which Neutron finds the lab's driver."""


def write_code(folder: Path) -> Path:
    """Make a folder to import both packages from, with the entry points that services look for; return it."""
    private_folder(folder)
    for package in (gpuyard, gpuyard_lab):
        link = folder / package.__name__
        link.unlink(missing_ok=True)
        assert package.__file__
        link.symlink_to(Path(package.__file__).parent, target_is_directory=True)
    version = installed_version()
    metadata = private_folder(folder / f"gpuyard_lab-{version}.dist-info")
    for old in folder.glob("gpuyard*.dist-info"):
        if old != metadata:  # of an earlier version, whose entry points may be gone
            shutil.rmtree(old)
    write_private(metadata / "METADATA", f"Metadata-Version: 2.1\nName: gpuyard-lab\nVersion: {version}\n")
    ours = [
        f"{entry_point.name} = {entry_point.value}"
        for entry_point in entry_points(group=DRIVERS)
        if entry_point.value.startswith("gpuyard_lab.")
    ]
    write_private(metadata / "entry_points.txt", "\n".join([f"[{DRIVERS}]", *ours, ""]))
    return folder


def with_code(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """Return the environment of a process that imports both packages from such a folder."""
    path = [str(folder), *filter(None, [environment.get("PYTHONPATH")])]
    return {**environment, "PYTHONPATH": ":".join(path)}
