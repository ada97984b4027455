"""Takes GPUs back from servers: puts warnings on them, and shelves, stops, snapshots or deletes them.

It decides nothing, and reads the server from Nova before it acts.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuyard.bookings.records import Overstay
from gpuyard.model.booking import ReclaimAction
from gpuyard.openstack.api import CloudApi, CloudError

KEY = "gpuyard"
"""The key in a server's metadata that carries the warning."""
NOT_FOUND = 404
TOO_MANY = FORBIDDEN = 403
BUSY = 409
SHELVES = ("ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED")
"""States in which Nova shelves a server."""
STOPS = ("ACTIVE",)
PAGE = 1000


class Reclaimer:
    """Acts on servers of any project, as the cloud's administrator."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def warn(self, server_id: str, text: str) -> bool:
        """Put the warning on the server. False when that is not possible: it is gone, or full of metadata."""
        return self._try("POST", f"/servers/{server_id}/metadata", {"metadata": {KEY: text}}, NOT_FOUND, TOO_MANY)

    def take_warning_off(self, server_id: str) -> None:
        self._try("DELETE", f"/servers/{server_id}/metadata/{KEY}", None, NOT_FOUND, BUSY)

    def address(self, user_id: str) -> str:
        """Return a user's e-mail address as Keystone has it; empty when it has none, or does not know or tell the
        user."""
        try:
            user = self._api.get("identity", f"/users/{user_id}")["user"]
        except CloudError as error:
            if error.status not in (NOT_FOUND, FORBIDDEN):
                raise
            return ""
        return str(user.get("email") or "")

    def act(self, overstay: Overstay, still: Callable[[], bool] = lambda: True) -> str:
        """Make the next call that takes the GPU back. Returns what Nova was told, or why nothing could be said yet;
        empty when it is at work or done. Nothing happens to a server that is not the overstay's any more. `still`:
        whether there is reason for it, asked right before the call."""
        try:
            server = self._api.get("compute", f"/servers/{overstay.server_id}")["server"]
        except CloudError as error:
            if error.status == NOT_FOUND:
                return ""
            raise
        if (server["user_id"], server["tenant_id"]) != (overstay.user_id, overstay.project_id):
            return "it has another owner now"
        if server["OS-EXT-STS:task_state"] is not None or not still():
            return ""
        try:
            return self._next(overstay, server)
        except CloudError as error:
            if error.status in (NOT_FOUND, BUSY):  # it changed under our eyes; the next look sees how
                return ""
            raise

    def hand_over(self, overstay: Overstay) -> None:
        """Give the image that was made of the server to its project. Nova makes it for the caller, here the
        administrator, and shares it: the project's users could not delete it, nor Nova when they unshelve."""
        if overstay.action is ReclaimAction.SHELVE:
            hand_over_shelved(self._api, overstay.server_id, overstay.server, overstay.project_id)
        if overstay.action is ReclaimAction.SNAPSHOT_AND_DELETE:
            for image in self._snapshots(overstay):
                _give(self._api, image, overstay.project_id)

    def _next(self, overstay: Overstay, server: dict[str, Any]) -> str:
        status = server["status"]
        if overstay.action is ReclaimAction.SHELVE:
            if status == "SHELVED":
                return self._action(overstay, "shelveOffload")
            if status in SHELVES:
                return self._action(overstay, "shelve")
            return "" if status == "SHELVED_OFFLOADED" else f"a server that is {status} cannot be shelved"
        if overstay.action is ReclaimAction.STOP:
            return (
                self._action(overstay, "os-stop") if status in STOPS else f"a server that is {status} cannot be stopped"
            )
        if overstay.action is ReclaimAction.SNAPSHOT_AND_DELETE:
            return self._snapshot_and_delete(overstay, server)
        if overstay.action is ReclaimAction.DELETE:
            return self._delete(overstay)
        return ""

    def _action(self, overstay: Overstay, name: str) -> str:
        self._api.request("POST", "compute", f"/servers/{overstay.server_id}/action", {name: None})
        return name

    def _delete(self, overstay: Overstay) -> str:
        self._api.request("DELETE", "compute", f"/servers/{overstay.server_id}")
        return "delete"

    def _snapshot_and_delete(self, overstay: Overstay, server: dict[str, Any]) -> str:
        """The image is found again by the overstay that its metadata names, so an answer that is lost makes no second
        one. It goes to the server's project when the server is gone (`hand_over`): that we own it is how it is known
        for ours."""
        if self._api.project is None:
            return f"cloud {self._api.name} has credentials without a project, and an image needs one that owns it"
        images = self._snapshots(overstay)
        if any(image["status"] == "active" for image in images):
            return self._delete(overstay)
        unfinished = [image for image in images if image["status"] in ("queued", "saving", "uploading", "importing")]
        if unfinished:
            # Nova is not at work on the server any more, so this is what a failure has left.
            identity, status = unfinished[0]["id"], unfinished[0]["status"]
            return f"image {identity} of it stays {status}; delete the image, and another one is made"
        if server["status"] not in SHELVES:
            return f"a server that is {server['status']} cannot be made an image of"
        name = f"{overstay.server} {overstay.server_id}"[-255:]
        body = {"createImage": {"name": name, "metadata": {KEY: _said_of(overstay)}}}
        self._api.request("POST", "compute", f"/servers/{overstay.server_id}/action", body)
        return "createImage"

    def _snapshots(self, overstay: Overstay) -> list[dict[str, Any]]:
        """Images that we had Nova make of the server since its owner was warned. One of a server that was made of such
        an image has inherited what it says, and has another name."""
        images = images_of_ours(self._api, **{KEY: _said_of(overstay)})
        return [image for image in images if str(image["name"]).endswith(overstay.server_id)]

    def _try(self, method: str, path: str, body: dict[str, Any] | None, *allowed: int) -> bool:
        try:
            self._api.request(method, "compute", path, body)
        except CloudError as error:
            if error.status not in allowed:
                raise
            return False
        return True


def hand_over_shelved(api: CloudApi, server_id: str, name: str, project: str) -> None:
    """Give the image that shelving a server has made to the server's project, if gpuyard had it shelved."""
    for image in images_of_ours(api, instance_uuid=server_id, image_type="snapshot"):
        if image["name"] == f"{name}-shelved":
            _give(api, image, project)


def _said_of(overstay: Overstay) -> str:
    """The metadata that names the overstay that an image was made for. It is another one after another warning: what
    was on the server long ago is not what its owner has now."""
    return f"{overstay.server_id} {int((overstay.warned or overstay.seen).timestamp())}"


def images_of_ours(api: CloudApi, **properties: str) -> list[dict[str, Any]]:
    """Return images with these properties that are our project's, as are those that Nova makes for us. An admin is
    shown those of all projects, and their names and properties are whatever anybody wants."""
    if api.project is None:
        return []
    return list(api.get("image", "/images", owner=api.project, limit=PAGE, **properties)["images"])


def _give(api: CloudApi, image: dict[str, Any], project: str) -> None:
    if image["owner"] != project:
        patch = [{"op": "replace", "path": "/owner", "value": project}]
        headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
        api.request("PATCH", "image", f"/images/{image['id']}", patch, headers=headers)
