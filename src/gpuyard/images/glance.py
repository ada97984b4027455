"""Lists, uploads, shares, renames and deletes builds of images in Glance. It decides nothing."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import quote

from gpuyard.images.publishing import ACTIVE, BUILD, IMAGE, Renaming, StoredImage, stored_image
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.world import DOMAIN
from gpuyard.openstack.api import CloudApi, CloudError

PATCH = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
NOT_FOUND, CONFLICT = 404, 409
PAGE = 1000
UPLOAD_SECONDS = 3600.0
HALF = frozenset({"queued", "saving", "killed"})
"""Statuses of an upload that did not come to its end."""


class GlanceShelf:
    """The builds of one cloud, as the credentials see it."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def builds(self, image: str | None = None) -> list[StoredImage]:
        """Return the builds of all images, or of one, in the project of the credentials: others' images are no builds,
        whatever their properties say. Raises CloudError."""
        only = {} if image is None else {IMAGE: image}
        candidates = (stored_image(row) for row in self._pages(**only) if self._own(row))
        return [stored for stored in candidates if stored is not None]

    def others_named(self, name: str) -> set[str]:
        """Return the ids of images that have this name and are no builds of it, without those that only another project
        sees. Raises CloudError."""
        return {
            str(row["id"])
            for row in self._pages(name=name)
            if (stored_image(row) is None if self._own(row) else row["visibility"] == "public")
        }

    def _own(self, row: Mapping[str, Any]) -> bool:
        return bool(row.get("owner") == self._api.project)

    def users(self) -> Counter[str]:
        """Return image's id -> servers of all projects that were made of it. Raises CloudError without the role
        admin."""
        rows = self._api.pages("compute", "/servers/detail", "servers", all_tenants=1, limit=PAGE)
        images = (row.get("image") for row in rows)  # "" for a server that was made of a volume
        return Counter(str(image["id"]) for image in images if isinstance(image, dict))

    def upload(self, record: Mapping[str, Any], disk: Path, report: Callable[[str], None]) -> str:
        """Upload a build to Glance, as its `record` says; return the image's id. One that is there is not uploaded
        again, and the rest of an interrupted upload is deleted first.

        Raises CloudError, and GpuyardError when Glance has something else than the file.
        """
        for build in self.builds(record[IMAGE]):
            if build.build == record[BUILD] and build.status == ACTIVE:
                report(f"{build.build} is there already, as {build.id}")
                return build.id
            if build.build == record[BUILD] and build.status not in HALF:
                raise GpuyardError(
                    f"{build.build} is {build.status} in Glance, as {build.id}, which no upload leaves behind: whoever "
                    "did that had a reason; 'openstack image set --activate' or 'delete' when it holds no more"
                )
            if build.build == record[BUILD]:
                report(f"{build.id} is {build.status}, of an earlier try, and is deleted")
                self.delete(build)
        made = self._api.request("POST", "image", "/images", record)
        identity = str(made["id"])
        with disk.open("rb") as file:
            sent = _HashedFile(file)
            self._api.send("image", f"/images/{quote(identity)}/file", sent, UPLOAD_SECONDS)
        shown = self._api.get("image", f"/images/{quote(identity)}")
        if shown["status"] != ACTIVE:
            raise GpuyardError(
                f"image {identity} is {shown['status']} after its upload; see Glance's log, and try again"
            )
        if shown.get("os_hash_algo") == "sha512" and shown.get("os_hash_value") != sent.whole.hexdigest():
            self._delete(identity)
            raise GpuyardError(f"image {identity} was not the same in Glance as {disk} and was deleted; try again")
        return identity

    def share(self, identity: str, projects: Sequence[str]) -> None:
        """Share an image with these projects, by name, as if it were theirs. Projects that see it already still do.

        Raises UsageError for a project that is not there, CloudError.
        """
        path = f"/images/{quote(identity)}/members"
        for name in projects:
            project = project_id(self._api, name)
            try:
                self._api.request("POST", "image", path, {"member": project})
            except CloudError as error:
                if error.status != CONFLICT:
                    raise
            # Else they would have to accept it before it is among the images that they are shown.
            self._api.request("PUT", "image", f"{path}/{project}", {"status": "accepted"})

    def rename(self, step: Renaming) -> None:
        """Rename an image. Raises CloudError."""
        patch = [{"op": "replace", "path": "/name", "value": step.after}]
        self._api.request("PATCH", "image", f"/images/{quote(step.id)}", patch, headers=PATCH)

    def delete(self, stored: StoredImage) -> None:
        """Delete a build; it may be gone already. Raises CloudError."""
        self._delete(stored.id)

    def _delete(self, identity: str) -> None:
        try:
            self._api.request("DELETE", "image", f"/images/{quote(identity)}")
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise

    def _pages(self, **query: str) -> Iterator[dict[str, Any]]:
        """Glance names the next page by an address of its own."""
        marker: dict[str, str] = {}
        while True:
            answer = self._api.get("image", "/images", limit=PAGE, **query, **marker)
            yield from answer["images"]
            if not answer.get("next") or not answer["images"]:
                return
            marker = {"marker": answer["images"][-1]["id"]}


def project_id(api: CloudApi, name: str) -> str:
    """Return the id of a project of the default domain, as all that the site file names. Raises UsageError when
    there is none."""
    rows = api.get("identity", "/projects", name=name, domain_id=DOMAIN)["projects"]
    ids = [str(row["id"]) for row in rows if row["name"] == name]
    if not ids:
        raise UsageError(f"cloud {api.name} has no project {name!r} in its default domain to share an image with")
    return ids[0]


class _HashedFile:
    """A file as it is sent. It has a length: not every Glance takes content without one."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self.whole = hashlib.sha512()

    def __len__(self) -> int:
        return os.fstat(self._file.fileno()).st_size

    def read(self, size: int = -1) -> bytes:
        part = self._file.read(size)
        self.whole.update(part)
        return part
