"""What is known of a built image, kept beside it: the file that says that a build is complete. Pure."""

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
    """Its name, in the folder of the manifest."""
    bytes: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """One build."""

    format: int
    name: str
    """Of the build: image, day, digest."""
    made: datetime
    """With its time zone."""
    gpuyard: str
    """Version of gpuyard."""
    elements: tuple[str, ...]
    build: ImageBuild
    module: str
    """Of NVIDIA's driver, open or proprietary; empty without one."""
    disk: Artifact
    virtual_bytes: int
    """Of the disk that a server sees before it grows."""
    bill: Artifact
    """CycloneDX."""
    kernels: tuple[str, ...]
    packages: int
    seconds: dict[str, float]
    """Part of the build -> how long it took; a part that was done before is not there."""

    @property
    def built(self) -> BuiltName:
        """Its name, in parts."""
        found = parse_built_name(self.name)
        assert found is not None  # read_manifest refuses another
        return found

    @property
    def min_disk_gib(self) -> int:
        """What a flavor's disk must have."""
        return -(-self.virtual_bytes // GIB)

    def text(self) -> str:
        """As it is written."""
        shown = {**asdict(self), "build": self.build.model_dump(mode="json", exclude_defaults=True)}
        return json.dumps({**shown, "made": self.made.isoformat(timespec="seconds")}, indent=2) + "\n"


def read_manifest(path: Path) -> Manifest:
    """Raises UsageError when it cannot be read, or is none."""
    try:
        with path.open("rb") as file:
            content = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot be read: {error.strerror}") from None
    if len(content) > MOST_BYTES:
        raise UsageError(f"{path}: larger than {MOST_BYTES >> 20} MiB, which no manifest of an image is")
    return manifest_of(content, str(path))


def manifest_of(content: bytes, where: str) -> Manifest:
    """Raises UsageError for what is none."""
    try:
        found = TypeAdapter(Manifest).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise UsageError(f"{where}: not the manifest of an image: {place}: {first['msg']}") from None
    if found.format != FORMAT:
        raise UsageError(
            f"{where}: a manifest of format {found.format}, and this gpuyard reads {FORMAT}; build it anew"
        )
    bad = [one.file for one in (found.disk, found.bill) if "/" in one.file or one.file in ("", ".", "..")]
    if bad or parse_built_name(found.name) is None or found.made.tzinfo is None:
        raise UsageError(f"{where}: not the manifest of an image: its name, time or files cannot be")
    return found


def manifest_path(folder: Path, name: BuiltName | str) -> Path:
    """Where the manifest of a build is."""
    return folder / f"{name}.json"


@dataclass(frozen=True)
class CheckRecord:
    """What a check of a build said, kept beside it."""

    sha256: str
    """Of the disk that was checked."""
    checked: datetime
    """With its time zone."""
    errors: tuple[str, ...]
    """Reasons; none when it is good."""

    def text(self) -> str:
        """As it is written."""
        return json.dumps({**asdict(self), "checked": self.checked.isoformat(timespec="seconds")}, indent=2) + "\n"


def check_path(disk: Path) -> Path:
    """Where the record of the last check of a disk is."""
    return disk.with_suffix(".check.json")


def read_check(path: Path) -> CheckRecord | None:
    """None when there is none. Raises UsageError when it cannot be read."""
    if not path.exists():
        return None
    try:
        return TypeAdapter(CheckRecord).validate_json(path.read_bytes()[: MOST_BYTES + 1])
    except (OSError, ValidationError):
        raise UsageError(f"{path}: not the record of a check; delete it, and check the image again") from None


def to_json(value: Any) -> bytes:
    """For the bill of materials."""
    return (json.dumps(value, indent=1) + "\n").encode()
