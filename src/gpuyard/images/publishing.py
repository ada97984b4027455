"""Plans which build of an image servers get, and which builds can be deleted. Pure.

A build is in Glance under its own name. The one that servers get has the image's name, by which they and people ask
for it; a build that is replaced gets its own name back. Properties, which no rename changes, say which build is of
which image. A promotion renames the new build first, so that the name is never without a build.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.images.manifest import Manifest
from gpuyard.images.naming import parse_built_name
from gpuyard.model.errors import BlockedError
from gpuyard.model.world import IMAGE_DRIVER_KEY

IMAGE, BUILD, DIGEST, DRIVER = "gpuyard_image", "gpuyard_build", "gpuyard_sha256", IMAGE_DRIVER_KEY
ARCHITECTURES = {"amd64": "x86_64", "arm64": "aarch64"}
ACTIVE = "active"
OF_A_SERVER = ("instance_uuid", "base_image_ref")
"""Properties that Nova gives to snapshots."""
BRANCH = re.compile(r"[1-9][0-9]{2}")


@dataclass(frozen=True)
class StoredImage:
    """A build in Glance."""

    id: str
    name: str
    image: str
    build: str
    """The build's own name."""
    status: str
    visibility: str
    created: str
    """ISO 8601, in UTC."""
    bytes: int
    protected: bool
    driver: str = ""
    """The branch of NVIDIA's driver in it; empty without one."""

    @property
    def promoted(self) -> bool:
        """Whether servers that ask for the image get this build."""
        return self.name == self.image


@dataclass(frozen=True)
class Renaming:
    """A step of a promotion."""

    id: str
    before: str
    after: str


@dataclass(frozen=True)
class PruneVerdict:
    """The decision on a build that could be deleted."""

    stored: StoredImage
    kept: str
    """Why it is kept; empty when it is deleted."""


def stored_image(row: Mapping[str, Any]) -> StoredImage | None:
    """Return the build that an image of Glance is; None when it is none: a snapshot of a server has the properties of
    the build that the server was made of, and is its owner's work."""
    image, build = row.get(IMAGE), row.get(BUILD)
    parts = parse_built_name(str(build))
    if parts is None or parts.image != image or any(row.get(key) for key in OF_A_SERVER):
        return None
    return StoredImage(
        str(row["id"]),
        str(row.get("name") or ""),
        str(image),
        str(build),
        str(row.get("status", "")),
        str(row.get("visibility", "")),
        str(row.get("created_at", "")),
        int(row.get("size") or 0),
        bool(row.get("protected")),
        driver if BRANCH.fullmatch(driver := str(row.get(DRIVER, ""))) else "",
    )


def record_of(manifest: Manifest, properties: Mapping[str, str], visibility: str) -> dict[str, Any]:
    """Return Glance's record of a build. `properties`: those of the site file."""
    base, driver = manifest.build.base, manifest.build.driver
    return {
        "name": manifest.name,
        "disk_format": "qcow2",
        "container_format": "bare",
        "visibility": visibility,
        "min_disk": manifest.min_disk_gib,
        "os_type": "linux",
        "os_distro": base.distribution,
        "os_version": base.release,
        "architecture": ARCHITECTURES[base.architecture],
        **properties,
        **({DRIVER: driver.branch} if driver is not None else {}),
        IMAGE: manifest.built.image,
        BUILD: manifest.name,
        DIGEST: manifest.disk.sha256,
    }


def plan_promotion(build: str, ours: Sequence[StoredImage], others: Collection[str]) -> list[Renaming]:
    """Return the steps after which servers get this build, in order; [] when they do. `ours`: all builds of its image;
    `others`: ids of images that have the image's name and are none of them.

    The name is never without a build: for the time of a request, two have it, and gpuyard's servers get the newer.
    Raises BlockedError.
    """
    matches = [stored for stored in ours if stored.build == build]
    if not matches:
        hint = (
            f"there are {', '.join(sorted(stored.build for stored in ours))}" if ours else "none of its image is there"
        )
        raise BlockedError(f"the build {build} is not in Glance; {hint}; bring it there with 'gpuyard image upload'")
    ready = [stored for stored in matches if stored.status == ACTIVE]
    if not ready:
        status = matches[0].status
        raise BlockedError(
            f"the build {build} is {status} in Glance; upload it again, and promote it when it is active"
        )
    target = max(ready, key=lambda stored: (stored.promoted, stored.created))
    if others:
        ids = ", ".join(sorted(others))
        raise BlockedError(f"{ids} in Glance is named {target.image}, too, and gpuyard did not build it; rename it")
    first = [] if target.promoted else [Renaming(target.id, target.name, target.image)]
    return first + [
        Renaming(stored.id, stored.name, stored.build) for stored in ours if stored.promoted and stored.id != target.id
    ]


def plan_pruning(
    ours: Sequence[StoredImage],
    keep: int,
    used: Mapping[str, int],
    named: Collection[str],
    aged: Collection[str] = (),
) -> list[PruneVerdict]:
    """Decide on each build of one image, newest first: `keep` stay of those that nothing else keeps.

    `used`: id -> servers that were made of it; `named`: names by which the site asks for images; `aged`: builds that
    are not kept for being new.
    """
    verdicts: list[PruneVerdict] = []
    spare = 0
    for stored in sorted(ours, key=lambda stored: (_day(stored), stored.created), reverse=True):
        if stored.promoted:
            reason = "servers that ask for the image get it"
        elif stored.build in named or stored.id in named:
            reason = "the site file names it"
        elif used.get(stored.id):
            reason = f"servers were made of it: {used[stored.id]}"
        elif stored.protected:
            reason = "it is protected in Glance"
        elif spare < keep and stored.build not in aged:
            spare, reason = spare + 1, f"one of the {keep} newest"
        else:
            reason = ""
        verdicts.append(PruneVerdict(stored, reason))
    return verdicts


def _day(stored: StoredImage) -> str:
    parts = parse_built_name(stored.build)
    return f"{parts.day:%Y%m%d}" if parts else ""
