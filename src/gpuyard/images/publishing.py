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

IMAGE, BUILD, DIGEST, DRIVER = "gpuyard_image", "gpuyard_build", "gpuyard_sha256", "gpuyard_driver"
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
    found = [one for one in ours if one.build == build]
    if not found:
        known = f"there are {', '.join(sorted(one.build for one in ours))}" if ours else "none of its image is there"
        raise BlockedError(f"the build {build} is not in Glance; {known}; bring it there with 'gpuyard image upload'")
    ready = [one for one in found if one.status == ACTIVE]
    if not ready:
        status = found[0].status
        raise BlockedError(
            f"the build {build} is {status} in Glance; upload it again, and promote it when it is active"
        )
    wanted = max(ready, key=lambda one: (one.promoted, one.created))
    if others:
        ids = ", ".join(sorted(others))
        raise BlockedError(f"{ids} in Glance is named {wanted.image}, too, and gpuyard did not build it; rename it")
    first = [] if wanted.promoted else [Renaming(wanted.id, wanted.name, wanted.image)]
    return first + [Renaming(one.id, one.name, one.build) for one in ours if one.promoted and one.id != wanted.id]


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
    for one in sorted(ours, key=lambda one: (_day(one), one.created), reverse=True):
        if one.promoted:
            kept = "servers that ask for the image get it"
        elif one.build in named or one.id in named:
            kept = "the site file names it"
        elif used.get(one.id):
            kept = f"servers were made of it: {used[one.id]}"
        elif one.protected:
            kept = "it is protected in Glance"
        elif spare < keep and one.build not in aged:
            spare, kept = spare + 1, f"one of the {keep} newest"
        else:
            kept = ""
        verdicts.append(PruneVerdict(one, kept))
    return verdicts


def _day(stored: StoredImage) -> str:
    parts = parse_built_name(stored.build)
    return f"{parts.day:%Y%m%d}" if parts else ""
