"""Takes GPUs back from servers: warnings on them, and what follows. It decides nothing, and looks before it acts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.ledger.records import Case
from gpuyard.model.booking import ReclaimAction

KEY = "gpuyard"
"""The word in a server's metadata that carries the warning."""
NOT_FOUND = 404
TOO_MANY = FORBIDDEN = 403
BUSY = 409
SHELVES = ("ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED")
"""States in which Nova shelves a server."""
STOPS = ("ACTIVE",)


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
        """A user's e-mail address, as Keystone has it; empty when it has none, or does not know or tell the user."""
        try:
            user = self._api.get("identity", f"/users/{user_id}")["user"]
        except CloudError as error:
            if error.status not in (NOT_FOUND, FORBIDDEN):
                raise
            return ""
        return str(user.get("email") or "")

    def act(self, case: Case, still: Callable[[], bool] = lambda: True) -> str:
        """The next call that takes the GPU back. Returns what Nova was told, or why nothing could be said yet; empty
        when it is at work or done. Nothing happens to a server that is not the case's any more. `still`: whether there
        is reason for it, asked right before the call."""
        try:
            server = self._api.get("compute", f"/servers/{case.server_id}")["server"]
        except CloudError as error:
            if error.status == NOT_FOUND:
                return ""
            raise
        if (server["user_id"], server["tenant_id"]) != (case.user_id, case.project_id):
            return "it has another owner now"
        if server["OS-EXT-STS:task_state"] is not None or not still():
            return ""
        try:
            return self._next(case, server)
        except CloudError as error:
            if error.status in (NOT_FOUND, BUSY):  # it changed under our eyes; the next look sees how
                return ""
            raise

    def hand_over(self, case: Case) -> None:
        """Give the image that shelving has made to the server's project. Nova makes it for whoever shelves, here the
        administrator, and shares it: its owner's users could not have it deleted when they unshelve the server."""
        if case.action is ReclaimAction.SHELVE:
            hand_over_shelved(self._api, case.server_id, case.server, case.project_id)

    def _next(self, case: Case, server: dict[str, Any]) -> str:
        status = server["status"]
        if case.action is ReclaimAction.SHELVE:
            if status == "SHELVED":
                return self._action(case, "shelveOffload")
            if status in SHELVES:
                return self._action(case, "shelve")
            return "" if status == "SHELVED_OFFLOADED" else f"a server that is {status} cannot be shelved"
        if case.action is ReclaimAction.STOP:
            return self._action(case, "os-stop") if status in STOPS else f"a server that is {status} cannot be stopped"
        if case.action is ReclaimAction.SNAPSHOT_AND_DELETE:
            return self._snapshot_and_delete(case, server)
        if case.action is ReclaimAction.DELETE:
            return self._delete(case)
        return ""

    def _action(self, case: Case, name: str) -> str:
        self._api.request("POST", "compute", f"/servers/{case.server_id}/action", {name: None})
        return name

    def _delete(self, case: Case) -> str:
        self._api.request("DELETE", "compute", f"/servers/{case.server_id}")
        return "delete"

    def _snapshot_and_delete(self, case: Case, server: dict[str, Any]) -> str:
        """The image is found again by its name, so an interruption makes no second one. It goes to the server's
        project before the server is deleted."""
        name = f"{case.server} {case.server_id}"[-255:]
        images = self._api.get("image", "/images", name=name)["images"]
        usable = [image for image in images if image["status"] == "active"]
        if usable:
            _give(self._api, usable[0], case.project_id)
            return self._delete(case)
        unfinished = [image for image in images if image["status"] in ("queued", "saving", "uploading", "importing")]
        if unfinished:
            # Nova is not at work on the server any more, so this is what a failure has left.
            identity, status = unfinished[0]["id"], unfinished[0]["status"]
            return f"image {identity} of it stays {status}; delete the image, and another one is made"
        if server["status"] not in SHELVES:
            return f"a server that is {server['status']} cannot be made an image of"
        body = {"createImage": {"name": name, "metadata": {KEY: case.server_id}}}
        self._api.request("POST", "compute", f"/servers/{case.server_id}/action", body)
        return "createImage"

    def _try(self, method: str, path: str, body: dict[str, Any] | None, *allowed: int) -> bool:
        try:
            self._api.request(method, "compute", path, body)
        except CloudError as error:
            if error.status not in allowed:
                raise
            return False
        return True


def hand_over_shelved(api: CloudApi, server_id: str, name: str, project: str) -> None:
    """Give the image that shelving a server has made to the server's project."""
    for image in api.get("image", "/images", instance_uuid=server_id, image_type="snapshot")["images"]:
        if image["name"] == f"{name}-shelved":
            _give(api, image, project)


def _give(api: CloudApi, image: dict[str, Any], project: str) -> None:
    if image["owner"] != project:
        patch = [{"op": "replace", "path": "/owner", "value": project}]
        headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
        api.request("PATCH", "image", f"/images/{image['id']}", patch, headers=headers)
