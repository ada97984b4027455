"""The manifest of a built image, and the record of its check; both are kept beside it.

The manifest marks a build as complete.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from gpuyard.images.naming import BuiltName, parse_built_name
from gpuyard.model.errors import UsageError
from gpuyard.site.image_rules import ImageBuild

FORMAT = 1
MOST_BYTES = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True)
class Artifact:
    """A file of a build."""

    file: str
    """Its name in the folder of the manifest."""
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The record of one build."""

    format: int
    name: str
    """Name of the build: image, day, digest."""
    made: datetime
    """Time of the build, with its time zone."""
    gpuyard: str
    """Version of gpuyard."""
    elements: tuple[str, ...]
    build: ImageBuild
    module: str
    """The kernel module of NVIDIA's driver, open or proprietary; empty without one."""
    disk: Artifact
    virtual_bytes: int
    """Size of the disk that a server sees before it grows."""
    bill: Artifact
    """The bill of materials, CycloneDX."""
    kernels: tuple[str, ...]
    packages: int
    seconds: dict[str, float]
    """Part of the build -> its duration; a part that was done before is not there."""

    @property
    def built(self) -> BuiltName:
        """Its name, in parts."""
        built_name = parse_built_name(self.name)
        assert built_name is not None  # read_manifest refuses another
        return built_name

    @property
    def min_disk_gib(self) -> int:
        """The least disk of a flavor, in GiB."""
        return -(-self.virtual_bytes // GIB)

    def text(self) -> str:
        """Return it as it is written."""
        shown = {**asdict(self), "build": self.build.model_dump(mode="json", exclude_defaults=True)}
        return json.dumps({**shown, "made": self.made.isoformat(timespec="seconds")}, indent=2) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Read a manifest. Raises UsageError when it cannot be read, or is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path}: larger than {MOST_BYTES >> 20} MiB, which no manifest of an image is")
    return manifest_of(content, str(path))


def manifest_of(content: bytes, where: str) -> Manifest:
    """Parse a manifest. Raises UsageError when it is none."""
    try:
        manifest = TypeAdapter(Manifest).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{where}: not the manifest of an image: {place}: {first['msg']}") from None
    if manifest.format != FORMAT:
        raise UsageError(
            f"{where}: a manifest of format {manifest.format}, and this gpuyard reads {FORMAT}; build it anew"
        )
    bad = [
        artifact.file
        for artifact in (manifest.disk, manifest.bill)
        if "/" in artifact.file or artifact.file in ("", ".", "..")
    ]
    if bad or parse_built_name(manifest.name) is None or manifest.made.tzinfo is None:
        raise UsageError(f"{where}: not the manifest of an image: its name, time or files cannot be")
    return manifest


def manifest_path(folder: Path, name: BuiltName | str) -> Path:
    """Return the path of a build's manifest."""
    return folder / f"{name}.json"


@dataclass(frozen=True)
class CheckRecord:
    """The result of a check of a build, kept beside it."""

    sha256: str
    """Digest of the disk that was checked."""
    checked: datetime
    """Time of the check, with its time zone."""
    errors: tuple[str, ...]
    """Reasons; none when it is good."""

    def text(self) -> str:
        """Return it as it is written."""
        return json.dumps({**asdict(self), "checked": self.checked.isoformat(timespec="seconds")}, indent=2) + "\n"


def check_path(disk: Path) -> Path:
    """Return the path of the record of the last check of a disk."""
    return disk.with_suffix(".check.json")


def read_check(path: Path) -> CheckRecord | None:
    """Return the record; None when there is none. Raises UsageError when it cannot be read."""
    if not path.exists():
        return None
    try:
        return TypeAdapter(CheckRecord).validate_json(path.read_bytes()[: MOST_BYTES + 1])
    except (OSError, ValidationError):
        raise UsageError(f"{path}: not the record of a check; delete it, and check the image again") from None


def to_json(value: Any) -> bytes:
    """Return the bill of materials as JSON."""
    return (json.dumps(value, indent=1) + "\n").encode()
