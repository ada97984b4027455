"""Brings the images of the site file to Glance and promotes them, as ``gpuyard image`` does, with next to nothing in
them.

Nothing in the lab runs them, so an empty disk does, until somebody promotes a real build.
"""

from __future__ import annotations

import hashlib
import struct
from datetime import UTC, datetime
from typing import Any
from urllib.parse import quote

from gpuyard import installed_version
from gpuyard.images.element_files import own_elements
from gpuyard.images.manifest import FORMAT, Artifact, Manifest
from gpuyard.images.planner import plan_build
from gpuyard.images.publishing import ACTIVE, BUILD, IMAGE, plan_promotion, record_of, stored_image
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.schema import Image
from gpuyard_lab.http import call
from gpuyard_lab.settings import Lab

MIB = 1 << 20
CLUSTER = 1 << 16
PATCH = {"Content-Type": "application/openstack-images-v2.1-json-patch"}


def empty_qcow2() -> bytes:
    """Return a disk of 1 MiB in 256 KiB: Glance checks that an image is of its format."""
    header = struct.pack(">4sIQIIQIIQQIIQ", b"QFI\xfb", 2, 0, 0, 16, MIB, 0, 1, 3 * CLUSTER, CLUSTER, 1, 0, 0)
    refcounts = struct.pack(">Q", 2 * CLUSTER).ljust(CLUSTER, b"\0")
    used = struct.pack(">4H", 1, 1, 1, 1).ljust(CLUSTER, b"\0")
    return header.ljust(CLUSTER, b"\0") + refcounts + used + bytes(CLUSTER)


def empty_build(name: str, build: ImageBuild, disk: bytes, made: datetime) -> Manifest:
    """Return the manifest of a build with nothing but this disk, of 1 MiB, in it."""
    plan = plan_build(name, build, own_elements(), made.date())
    artifact = Artifact(f"{plan.name}.qcow2", len(disk), hashlib.sha256(disk).hexdigest())
    bill = Artifact(f"{plan.name}.cdx.json", 0, "")
    return Manifest(
        FORMAT,
        str(plan.name),
        made,
        installed_version(),
        plan.elements,
        build,
        plan.module,
        artifact,
        MIB,
        bill,
        (),
        0,
        {},
    )


def ensure_image(lab: Lab, token: str, name: str, image: Image) -> None:
    """Make sure that servers can be booted from an image of this name. `image`: of the site file; one without a `build`
    is somebody else's there, and so it is here. An image that is there already is left as it is."""
    images = f"{lab.url('glance')}/v2/images"
    if any(row["status"] == ACTIVE for row in _listed(images, token, name=name)):
        return
    if image.build is None:
        properties = {"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "public"}
        _upload(images, token, properties, bytes(MIB))
        return
    disk = empty_qcow2()
    record = record_of(
        empty_build(name, image.build, disk, datetime.now(UTC)), image.wanted_properties, image.build.visibility
    )
    ours = _listed(images, token, **{IMAGE: name})
    if not any((row[BUILD], row["status"]) == (record[BUILD], ACTIVE) for row in ours):
        _upload(images, token, record, disk)
    builds = [build for row in _listed(images, token, **{IMAGE: name}) if (build := stored_image(row)) is not None]
    for step in plan_promotion(record[BUILD], builds, ()):
        patch = [{"op": "replace", "path": "/name", "value": step.after}]
        call("PATCH", f"{images}/{step.id}", patch, token=token, headers=PATCH)


def _listed(images: str, token: str, **query: str) -> list[dict[str, Any]]:
    query_string = "&".join(f"{key}={quote(value)}" for key, value in query.items())
    rows: list[dict[str, Any]] = call("GET", f"{images}?{query_string}", token=token).body["images"]
    return rows


def _upload(images: str, token: str, record: dict[str, Any], content: bytes) -> None:
    made = call("POST", images, record, token=token).body
    call("PUT", f"{images}/{made['id']}/file", content, token=token)
