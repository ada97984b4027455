"""Starts and deletes the servers that gpuyard itself needs: for runners, and to accept GPUs.

Servers of one kind are in one project, and all have our tags. One that is not tagged by this site is never touched,
whatever its name. Nova is asked in their own project: either with the operator's credentials, scoped to it, or with
some that are good for nothing else (`open_servers_project`).
"""

from __future__ import annotations

import base64
import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from enum import StrEnum
from time import monotonic
from typing import Any, Protocol

from gpuyard.guest.cloud_config import MOST_BYTES
from gpuyard.model.errors import UsageError
from gpuyard.model.text import printable
from gpuyard.model.world import DOMAIN
from gpuyard.model.world import SITE_KEY as SITE_KEY  # others have it from here
from gpuyard.nova.server_states import SeenServer
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.rows import is_minimal

LOG = logging.getLogger(__name__)
TAG = "gpuyard-runner"
JOB_KEY = "gpuyard_job"
YARD_KEY = "gpuyard_yard"
NOT_FOUND, CONFLICT = 404, 409
FORBIDDEN, TOO_LARGE, TOO_MANY = 403, 413, 429
SERVER_FAULT = 500
DELETED = "DELETED"
"""Status of a server that is deleted."""
PAGE = 1000
KNOWN = 60.0
"""Seconds for which ids of flavors, images and networks are cached. An image may be made anew under its name."""
SHOWN = 5
"""Most networks that a message lists."""
CONSOLE_LINES = 2_000
"""Most lines that are asked of a console: enough for a boot and a runner's log."""
CONSOLE_BYTES = 512 * 1024
"""Most characters of a console that are kept: a guest's lines may be of any length."""
NETWORK_FIELDS = ("id", "name", "project_id", "shared", "router:external")
NO_NETWORK = "none"
"""Nova's own word in place of a network."""
OWN_NETWORK = "auto"
"""The one network that the project owns.

Nova's own ``auto`` is never sent: it takes any network that Neutron shows the project as shared
(nova/network/neutron.py, `_get_available_networks`), also one that a stranger has shared with it, and with two of
them it refuses every server.
"""


class ServerProblem(StrEnum):
    """The kind of problem when Nova does not do what it was asked."""

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
    UNREAD = "unread"
    """What must be known first (a flavor, an image, a network) could not be read: nothing was done. Ask again."""


class ServerError(CloudError):
    """Raised when Nova did not do it; `problem` is the kind of problem."""

    def __init__(self, message: str, status: int | None, problem: ServerProblem) -> None:
        super().__init__(message, status)
        self.problem = problem


@dataclass(frozen=True)
class ServerWish:
    """A server to be made."""

    name: str
    flavor: str
    """Name of its flavor."""
    image: str
    """Name of its image."""
    user_data: str
    job: str = ""
    """Id of the job that it is made for."""
    host: str = ""
    """The hypervisor on which it must be, as nova-compute names it; empty: any. Nova takes that of admins only."""


class RunnerServers(Protocol):
    """The questions and requests that the controller of runners has for Nova. Methods raise ServerError."""

    def create(self, wish: ServerWish) -> str:
        """Create a server and return its id. One that failed with ServerProblem.UNKNOWN may be there: look for its
        name."""
        ...

    def ours(self) -> list[SeenServer]:
        """Return all of this site's runners that are not deleted, in one call per PAGE of them; without those of a cell
        of Nova that does not answer."""
        ...

    def all_cells_answer(self) -> bool:
        """Return whether a list of `ours` would be complete now."""
        ...

    def get(self, server_id: str) -> SeenServer | None:
        """Return a server; None when it is deleted for good, or was never there. It may be one that is not `ours` (any
        more). While its cell does not answer it is UNKNOWN, and taken for ours."""
        ...

    def console(self, server_id: str) -> str:
        """Return the end of its console's output; empty when there is none."""
        ...

    def delete(self, server_id: str) -> None:
        """Ask Nova to delete it now, whatever state it is in. Do nothing when it is gone, is not ours, or is UNKNOWN:
        ask again while `get` has it."""
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
        identity: str = "",
        tag: str = TAG,
        cells_answer: Callable[[], bool] = lambda: True,
    ) -> None:
        """`api` is scoped to the project. `tag`: what its servers are for. `network`: an id, the name of one that the
        project owns, ``none``, or ``auto`` for its only one, which None is, too. `identity` tells apart sites of one
        name, which have databases of their own: `RunnerStore.identity`. `cells_answer`: asks, as an admin, whether all
        cells of Nova answer; may raise CloudError."""
        self._api = api
        self._site = site
        self._tag = tag
        self._tags = [tag, f"gpuyard-site:{site}"]
        self._network = network or OWN_NETWORK
        self._groups = [{"name": name} for name in security_groups]
        self._steady = steady
        self._identity = identity
        self._cells_answer = cells_answer
        self._others: frozenset[str] = frozenset()
        """Servers of another gpuyard that has a site of the same name, at the last look."""
        self._known: dict[tuple[str, str], tuple[float, str]] = {}
        self._lock = threading.Lock()

    def create(self, wish: ServerWish) -> str:
        data = base64.b64encode(wish.user_data.encode()).decode()
        if len(data) > MOST_BYTES:
            raise ServerError(
                f"server {wish.name}: its user data has {len(data)} bytes, and Nova takes {MOST_BYTES}",
                None, ServerProblem.REFUSED,
            )  # fmt: skip
        body: dict[str, Any] = {
            "name": wish.name,
            **self._references(wish),
            "user_data": data,
            "config_drive": True,  # not every cloud has a metadata service that guests reach, and CVE-2024-6174
            "metadata": {
                self._tag.replace("-", "_"): wish.name,
                SITE_KEY: self._site,
                **({JOB_KEY: wish.job} if wish.job else {}),
                **({YARD_KEY: self._identity} if self._identity else {}),
            },
            "tags": self._tags,
            **({"host": wish.host} if wish.host else {}),
        }
        if self._groups:
            body["security_groups"] = self._groups
        return str(self._ask("POST", "/servers", {"server": body})["server"]["id"])

    def _references(self, wish: ServerWish) -> dict[str, object]:
        """What a server is made of, by the ids of the cloud. Raises ServerError; with ServerProblem.UNREAD where a
        service did not answer as it should, which says nothing of the server."""
        try:
            return {
                "flavorRef": self._id("flavor", wish.flavor),
                "imageRef": self._id("image", wish.image),
                "networks": self._networks(),
            }
        except ServerError as error:
            if error.problem is ServerProblem.UNKNOWN:
                raise ServerError(str(error), error.status, ServerProblem.UNREAD) from None
            raise

    def ours(self) -> list[SeenServer]:
        # Raw rows of Nova: the SDK's list would ask Neutron for the addresses of each server.
        with _told():
            rows = self._api.pages(
                "compute", "/servers/detail", "servers", tags=",".join(self._tags), limit=PAGE, deleted=False
            )
            # Nova lists one that it has just deleted for a moment more.
            existing = [row for row in rows if row["status"] != DELETED]
        self._tell_others(frozenset(str(row["name"]) for row in existing if not self._is_our_yards(row)))
        return [_seen(row) for row in existing if self._is_ours(row)]

    def all_cells_answer(self) -> bool:
        with _told():
            return self._cells_answer()

    def _tell_others(self, names: frozenset[str]) -> None:
        if names - self._others:
            LOG.error(
                "tag %s: %d servers (%s ...) are of another gpuyard that calls its site %s, too, "
                "on another database; they are left alone. Name one of the sites otherwise, or delete them if that "
                "gpuyard is no more",
                self._tag, len(names), min(names), self._site,
            )  # fmt: skip
        self._others = names

    def get(self, server_id: str) -> SeenServer | None:
        row = self._row(server_id)
        if row is None or row["status"] == DELETED:
            return None
        if is_minimal(row):
            return _seen(row)
        return replace(_seen(row), ours=self._is_ours(row))

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
        tagged = row.get("metadata", {}).get(SITE_KEY) == self._site and {*self._tags} <= {*row.get("tags", ())}
        return tagged and self._is_our_yards(row)

    def _is_our_yards(self, row: Mapping[str, Any]) -> bool:
        """One that says nothing of it was made before servers did."""
        return bool(row.get("metadata", {}).get(YARD_KEY, self._identity) == self._identity)

    def _row(self, server_id: str) -> dict[str, Any] | None:
        try:
            row: dict[str, Any] = self._ask("GET", f"/servers/{server_id}")["server"]
        except ServerError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return row

    def require_network(self) -> None:
        """Raise ServerError when it is not clear which network servers are to be in."""
        self._networks()

    def _networks(self) -> object:
        if self._network == NO_NETWORK:
            return self._network
        return [{"uuid": self._id("network", self._network)}]

    def _id(self, kind: str, name: str) -> str:
        """Of a flavor, an image or a network by its name. Raises ServerError with ServerProblem.REFUSED."""
        with self._lock:
            since, identity = self._known.get((kind, name), (0.0, ""))
        if identity and self._steady() - since < KNOWN:
            return identity
        with _told():
            identity = self._find(kind, name)
        if not identity:
            raise ServerError(
                f"cloud {self._api.name} has no {kind} {name!r} that the project of its servers can see",
                None, ServerProblem.REFUSED,
            )  # fmt: skip
        with self._lock:
            self._known[kind, name] = self._steady(), identity
        return identity

    def _find(self, kind: str, name: str) -> str:
        if kind == "flavor":
            rows = self._api.pages("compute", "/flavors", "flavors", limit=PAGE)
            return next((str(row["id"]) for row in rows if row["name"] == name), "")
        return self._image(name) if kind == "image" else self._network_id(name)

    def _image(self, name: str) -> str:
        """The newest that the project owns, that is public, or that was shared with it and accepted. An admin is shown
        others' images, too, of any name."""

        def named(limit: int, **whose: str | None) -> list[dict[str, Any]]:
            query = {"name": name, "status": "active", "sort": "created_at:desc", "limit": limit}
            return list(self._api.get("image", "/images", **query, **whose)["images"])

        candidates = [*named(1, owner=self._api.project), *named(1, visibility="public")]
        newest = max(candidates, key=lambda row: str(row["created_at"]), default=None)
        for row in named(PAGE, visibility="shared"):
            if newest is not None and row["created_at"] <= newest["created_at"]:
                break
            if self._accepted(str(row["id"])):
                return str(row["id"])
        return str(newest["id"]) if newest is not None else ""

    def _accepted(self, image: str) -> bool:
        try:
            member = self._api.get("image", f"/images/{image}/members/{self._api.project}")
        except CloudError as error:
            if error.status == NOT_FOUND:
                return False
            raise
        return bool(member["status"] == "accepted")

    def _network_id(self, name: str) -> str:
        """Of the network with that id, whoever owns it; else of the one of that name that the project owns, or of its
        only one for OWN_NETWORK. Anybody may share a network of any name with the project, which is not asked: so
        others' networks are taken by their id alone. Raises ServerError."""
        rows = list(self._api.pages("network", "/networks", "networks", fields=NETWORK_FIELDS))
        if any(row["id"] == name for row in rows):
            return name
        owned = [row for row in rows if row["project_id"] == self._api.project]
        if name == OWN_NETWORK:
            own = [row for row in owned if not row.get("router:external")]
            what = "networks of its own"
        else:
            own = [row for row in owned if row["name"] == name]
            what = f"networks {name!r} of its own"
        if len(own) == 1:
            return str(own[0]["id"])
        others = [row for row in rows if row not in owned and name in (OWN_NETWORK, row["name"])]
        usable = [row for row in others if row["shared"] or row.get("router:external")]
        if not own and not usable and name != OWN_NETWORK:
            return ""
        have = f"has {len(own)} {what}" if own else f"has no {what}"
        listed = ", ".join(f"{row['id']} ({printable(str(row['name']))[:60]})" for row in (own or usable)[:SHOWN])
        choice = f": {listed}" if own else f"; others share {listed} with it" if usable else ""
        raise ServerError(
            f"cloud {self._api.name}: the project of gpuyard's servers {have}{choice}. Write the id of the network "
            "that servers are to be in as 'network' into the site file, or 'none'",
            None, ServerProblem.REFUSED,
        )  # fmt: skip

    def _ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> dict[str, Any]:
        with _told():
            return self._api.request(method, "compute", path, body)


@contextmanager
def _told() -> Iterator[None]:
    """Errors of the cloud as ServerError."""
    try:
        yield
    except ServerError:
        raise
    except CloudError as error:
        raise ServerError(str(error), error.status, problem_of(error)) from None


def problem_of(error: CloudError) -> ServerProblem:
    """Return the kind of problem that an error is."""
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
        name=row.get("name", ""),
        status=row["status"],
        task=row.get("OS-EXT-STS:task_state") or "",
        created=datetime.strptime(row["created"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC),
        fault=str((row.get("fault") or {}).get("message", "")),
    )


def open_servers_project(
    api: CloudApi, project: str, cloud: str | None = None, key: str = "runners"
) -> tuple[CloudApi, str]:
    """Return a client for the project that servers of ours are in, and the project's id.

    `api`: the operator's. `cloud` of clouds.yaml, whose credentials may be good for that project alone; None is the
    operator's own, which then need a role there. `key`: where the site file names it. Raises UsageError and
    CloudError.
    """
    projects = api.get("identity", "/projects", name=project, domain_id=DOMAIN)["projects"]
    rows = [row for row in projects if row["name"] == project]
    if not rows:
        raise UsageError(
            f"{key}.project: cloud {api.name} has no project {project!r} in its default domain; "
            f"'openstack project create {project}' makes it, or name another one"
        )
    identity = str(rows[0]["id"])
    if cloud is None:
        return api.in_project(identity), identity
    project_api = connect(cloud)
    if project_api.project != identity:
        raise UsageError(
            f"{key}.cloud: the credentials of cloud {cloud} are for another project than {key}.project, "
            f"{project!r}: make an application credential there"
        )
    return project_api, identity
