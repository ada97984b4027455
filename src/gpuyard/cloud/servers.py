"""Servers that gpuyard itself starts and deletes, for runners. They are in one project, and all have our tags.

What is not tagged by this site is never touched, whatever its name. Nova is asked in the runners' own project: either
with the operator's credentials, scoped to it, or with some that are good for nothing else (`open_servers`).
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Any, Protocol

from gpuyard.cloud.api import CloudApi, CloudError, connect
from gpuyard.model.errors import UsageError
from gpuyard.runners.progress import SeenServer

TAG = "gpuyard-runner"
RUNNER_KEY, SITE_KEY, JOB_KEY = "gpuyard_runner", "gpuyard_site", "gpuyard_job"
NOT_FOUND, CONFLICT = 404, 409
FORBIDDEN, TOO_LARGE, TOO_MANY = 403, 413, 429
SERVER_FAULT = 500
DELETED = "DELETED"
"""Status of a server that is no more."""
PAGE = 1000
KNOWN = 60.0
"""Seconds for which ids of flavors, images and networks are believed. An image may be made anew under its name."""
MOST_USER_DATA = 65_535
"""Bytes, in base64: what Nova takes."""
CONSOLE_LINES = 2_000
"""Most that is asked of a console: enough for a boot and a runner's log."""
CONSOLE_BYTES = 512 * 1024
"""A line may be as long as a guest likes."""
WITHOUT_NETWORK = ("auto", "none")
"""Nova's own words in place of a network."""


class ServerProblem(StrEnum):
    """What is the matter when Nova does not do what it was asked."""

    QUOTA = "quota"
    """A limit of the project, 403."""
    CONFLICT = "conflict"
    """The server is busy with something else, 409: try again."""
    LIMITED = "limited"
    """Too many requests: later."""
    REFUSED = "refused"
    """It will never do it as it was asked: no such image, a flavor that is too small for it ..."""
    UNKNOWN = "unknown"
    """Nova is out of order or did not answer: it may have been done all the same."""


class ServerError(CloudError):
    """Nova did not do it; `problem` says of which kind that is."""

    def __init__(self, message: str, status: int | None, problem: ServerProblem) -> None:
        super().__init__(message, status)
        self.problem = problem


@dataclass(frozen=True)
class ServerWish:
    """A server to be made."""

    name: str
    flavor: str
    """Name."""
    image: str
    """Name."""
    user_data: str
    job: str = ""
    """Id of the job that it is made for."""


class RunnerServers(Protocol):
    """What the keeper of runners asks of Nova. Raises ServerError."""

    def create(self, wish: ServerWish) -> str:
        """Its id. One that failed with ServerProblem.UNKNOWN may be there: look for its name."""
        ...

    def ours(self) -> list[SeenServer]:
        """All of this site's runners that are not deleted, in one call per PAGE of them."""
        ...

    def get(self, server_id: str) -> SeenServer | None:
        """None when it is deleted for good, or was never there."""
        ...

    def console(self, server_id: str) -> str:
        """The end of what it wrote to its console; empty when there is nothing to be had."""
        ...

    def delete(self, server_id: str) -> None:
        """Ask Nova to delete it now, whatever state it is in. Nothing when it is gone, or is not ours."""
        ...


class NovaServers:
    """Runners' servers of one site in one project. Safe to use from several threads."""

    def __init__(
        self,
        api: CloudApi,
        site: str,
        network: str | None = None,
        security_groups: Sequence[str] = (),
        steady: Callable[[], float] = monotonic,
    ) -> None:
        """`api` is scoped to the project. `network`: name, id, ``auto`` or ``none``; None is ``auto``."""
        self._api = api
        self._site = site
        self._tags = [TAG, f"gpuyard-site:{site}"]
        self._network = network or "auto"
        self._groups = [{"name": name} for name in security_groups]
        self._steady = steady
        self._known: dict[tuple[str, str], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def create(self, wish: ServerWish) -> str:
        data = base64.b64encode(wish.user_data.encode()).decode()
        if len(data) > MOST_USER_DATA:
            raise ServerError(
                f"server {wish.name}: its user data has {len(data)} bytes, and Nova takes {MOST_USER_DATA}",
                None, ServerProblem.REFUSED,
            )  # fmt: skip
        body: dict[str, Any] = {
            "name": wish.name,
            "flavorRef": self._id("flavor", wish.flavor),
            "imageRef": self._id("image", wish.image),
            "networks": self._networks(),
            "user_data": data,
            "config_drive": True,  # not every cloud has a metadata service that guests reach, and CVE-2024-6174
            "metadata": {RUNNER_KEY: wish.name, SITE_KEY: self._site, **({JOB_KEY: wish.job} if wish.job else {})},
            "tags": self._tags,
        }
        if self._groups:
            body["security_groups"] = self._groups
        return str(self._ask("POST", "/servers", {"server": body})["server"]["id"])

    def ours(self) -> list[SeenServer]:
        # Raw rows of Nova: the SDK's list would ask Neutron for the addresses of each server.
        with _told():
            rows = self._api.pages(
                "compute", "/servers/detail", "servers", tags=",".join(self._tags), limit=PAGE, deleted=False
            )
            # Nova lists one that it has just deleted for a moment more.
            return [_seen(row) for row in rows if row["status"] != DELETED and self._is_ours(row)]

    def get(self, server_id: str) -> SeenServer | None:
        row = self._row(server_id)
        return _seen(row) if row is not None and row["status"] != DELETED else None

    def console(self, server_id: str) -> str:
        try:
            answer = self._ask(
                "POST", f"/servers/{server_id}/action", {"os-getConsoleOutput": {"length": CONSOLE_LINES}}
            )
        except ServerError as error:
            if error.status in (NOT_FOUND, CONFLICT):  # gone, or not begun
                return ""
            raise
        return str(answer.get("output") or "")[-CONSOLE_BYTES:]

    def delete(self, server_id: str) -> None:
        row = self._row(server_id)
        if row is None or not self._is_ours(row):
            return
        try:
            if row["status"] == "SOFT_DELETED":  # a cloud that keeps what was deleted for a while: with its GPU
                self._ask("POST", f"/servers/{server_id}/action", {"forceDelete": None})
            else:
                self._ask("DELETE", f"/servers/{server_id}")
        except ServerError as error:
            if error.status != NOT_FOUND:
                raise

    def _is_ours(self, row: Mapping[str, Any]) -> bool:
        return row.get("metadata", {}).get(SITE_KEY) == self._site and {*self._tags} <= {*row.get("tags", ())}

    def _row(self, server_id: str) -> dict[str, Any] | None:
        try:
            found: dict[str, Any] = self._ask("GET", f"/servers/{server_id}")["server"]
        except ServerError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return found

    def _networks(self) -> object:
        if self._network in WITHOUT_NETWORK:
            return self._network
        return [{"uuid": self._id("network", self._network)}]

    def _id(self, kind: str, name: str) -> str:
        """Of a flavor, an image or a network by its name. Raises ServerError with ServerProblem.REFUSED."""
        with self._lock:
            since, found = self._known.get((kind, name), (0.0, ""))
        if found and self._steady() - since < KNOWN:
            return found
        with _told():
            found = self._find(kind, name)
        if not found:
            raise ServerError(
                f"cloud {self._api.name} has no {kind} {name!r} that the runners' project can see",
                None, ServerProblem.REFUSED,
            )  # fmt: skip
        with self._lock:
            self._known[kind, name] = self._steady(), found
        return found

    def _find(self, kind: str, name: str) -> str:
        if kind == "flavor":
            rows = self._api.pages("compute", "/flavors", "flavors", limit=PAGE)
            return next((str(row["id"]) for row in rows if row["name"] == name), "")
        if kind == "image":  # of several the newest
            query = {"name": name, "status": "active", "sort": "created_at:desc", "limit": 1}
            return next((str(row["id"]) for row in self._api.get("image", "/images", **query)["images"]), "")
        rows = self._api.pages("network", "/networks", "networks", fields=["id", "name"])
        return next((str(row["id"]) for row in rows if name in (row["id"], row["name"])), "")

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with _told():
            return self._api.request(method, "compute", path, body)


class _told:  # noqa: N801
    """Errors of the cloud as ServerError."""

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, CloudError) and not isinstance(error, ServerError):
            raise ServerError(str(error), error.status, problem_of(error)) from None


def problem_of(error: CloudError) -> ServerProblem:
    """Which kind of no it is."""
    status = error.status
    if status is None or status >= SERVER_FAULT:
        return ServerProblem.UNKNOWN
    if status in (TOO_LARGE, TOO_MANY):
        return ServerProblem.LIMITED
    if status == CONFLICT:
        return ServerProblem.CONFLICT
    if status == FORBIDDEN and "role admin" not in str(error):
        return ServerProblem.QUOTA
    return ServerProblem.REFUSED


def _seen(row: Mapping[str, Any]) -> SeenServer:
    return SeenServer(
        id=row["id"],
        name=row["name"],
        status=row["status"],
        task=row.get("OS-EXT-STS:task_state") or "",
        created=datetime.strptime(row["created"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC),
        fault=str((row.get("fault") or {}).get("message", "")),
    )


def open_runners_project(api: CloudApi, project: str, cloud: str | None) -> tuple[CloudApi, str]:
    """A door to the project that runners are servers of, and the project's id. `api`: the operator's. `cloud` of
    clouds.yaml, whose credentials may be good for that project alone; None is the operator's own, which then need a
    role there. Raises UsageError and CloudError."""
    rows = [row for row in api.get("identity", "/projects", name=project)["projects"] if row["name"] == project]
    if not rows:
        raise UsageError(
            f"runners.project: cloud {api.name} has no project {project!r}; 'openstack project create {project}' "
            "makes it, or name another one"
        )
    identity = str(rows[0]["id"])
    if cloud is None:
        return api.in_project(identity), identity
    door = connect(cloud)
    if door.project != identity:
        raise UsageError(
            f"runners.cloud: the credentials of cloud {cloud} are for another project than runners.project, "
            f"{project!r}: make an application credential there"
        )
    return door, identity
