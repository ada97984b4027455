"""Lists the packages of an image: reads dpkg's own list, and writes and reads a bill of materials (CycloneDX)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote
from uuid import uuid5

from gpuyard.images.layout import NAMESPACE
from gpuyard.images.naming import BuiltName
from gpuyard.model.errors import UsageError

INSTALLED = "installed"
MOST_BYTES = 32 << 20
"""Most bytes of a bill of materials."""


@dataclass(frozen=True, order=True)
class Package:
    """An installed package."""

    name: str
    version: str
    architecture: str
    source: str
    """The source package that it was made of, by whose name distributions announce holes."""
    held: bool
    """Whether an upgrade of the whole system leaves it as it is."""


def installed_packages(status: str) -> list[Package]:
    """Return the packages in ``/var/lib/dpkg/status``, sorted, without those that are not fully installed."""
    packages = []
    for paragraph in status.split("\n\n"):
        fields = dict(fields_of(paragraph))
        want, _, state = fields.get("Status", "").partition(" ")
        if "Package" in fields and state.split()[-1:] == [INSTALLED]:
            name, source = fields["Package"], fields.get("Source", "").split(" ")[0]
            version, architecture = fields.get("Version", ""), fields.get("Architecture", "")
            packages.append(Package(name, version, architecture, source or name, held=want == "hold"))
    return sorted(packages)


def fields_of(paragraph: str) -> Iterable[tuple[str, str]]:
    """Yield the fields of one package, in a file of dpkg's or of an archive's: name, and the first line of its
    value."""
    for line in paragraph.splitlines():
        name, colon, value = line.partition(":")
        if colon and not line.startswith((" ", "\t")):
            yield name, value.strip()


def bill_of_materials(
    packages: Sequence[Package], name: BuiltName, distribution: str, release: str, made: datetime
) -> dict[str, Any]:
    """Return the bill of materials, CycloneDX 1.5, as JSON. `made`: with its time zone."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid5(NAMESPACE, f'sbom/{name}')}",
        "version": 1,
        "metadata": {
            "timestamp": made.isoformat(timespec="seconds"),
            "component": {"type": "operating-system", "name": name.image, "version": str(name)},
        },
        "components": [_component(package, distribution, release) for package in packages],
    }


def _component(package: Package, distribution: str, release: str) -> dict[str, Any]:
    name, version = quote(package.name, safe=""), quote(package.version, safe="")
    purl = f"pkg:deb/{distribution}/{name}@{version}?arch={quote(package.architecture, safe='')}&distro={release}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "properties": [{"name": "gpuyard:source", "value": package.source}],
    }


def read_bill(path: Path) -> dict[str, str]:
    """Return name -> version of the packages in a bill of materials. Raises UsageError when it cannot be read, or is
    none."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    try:
        if len(content) > MOST_BYTES:
            raise ValueError(f"larger than {MOST_BYTES >> 20} MiB")
        return {str(component["name"]): str(component["version"]) for component in json.loads(content)["components"]}
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(f"{path}: not a list of packages as 'gpuyard image build' writes it") from None
