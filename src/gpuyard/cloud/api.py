"""Requests to the services of one cloud: authenticated by openstacksdk, counted, with errors that say what to do."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import openstack
from keystoneauth1 import exceptions as auth_errors
from keystoneauth1.adapter import Adapter
from openstack import exceptions as sdk_errors

from gpuyard.cloud.config import find_cloud
from gpuyard.cloud.errors import CloudError as CloudError  # others have it from here

FORBIDDEN = 403
TIMEOUT = 60
"""Seconds to wait for one answer; Placement may think long about a request for many GPUs."""

# The versions of the APIs that gpuyard speaks, by service type. Nova 2.75: servers carry the extra specs of their
# flavor; Placement 1.38: the newest that has anything for us.
MICROVERSIONS = {"compute": "2.75", "placement": "1.38"}


# It warns of what the error that follows says better.
logging.getLogger("keystoneauth.identity").setLevel(logging.ERROR)


class CloudApi:
    """JSON requests to one cloud. Safe to use from several threads."""

    def __init__(self, connection: openstack.connection.Connection) -> None:
        self.name: str = connection.config.name or "the environment"
        self.region: str = connection.config.region_name or ""
        self._connection = connection
        self._adapters: dict[str, Adapter] = {
            "compute": connection.compute,
            "placement": connection.placement,
            "identity": connection.identity,
            "image": connection.image,
            "network": connection.network,
        }
        self._lock = threading.Lock()
        self.calls = 0
        """Requests made so far."""
        self._hosts_of_nodes: dict[str, str] | None = None
        self._strangers: frozenset[str] = frozenset()
        self._naming = threading.Lock()

    def get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        """The JSON answer. Raises CloudError."""
        return self.request("GET", service, path, query=query)

    def request(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None = None,
        query: Mapping[str, object] | None = None,
        headers: Mapping[str, str] | None = None,
        personal: bool = False,
        timeout: float | None = None,
    ) -> dict[str, Any]:
        """One request; the JSON answer, or {} when it has none. Raises CloudError for any answer from 400 up.

        `personal`: the body has somebody's password. Then it goes without a token of ours, which a 401 would have
        thrown away, and into no log. `timeout`: seconds to wait, once; else TIMEOUT, and a second time when nothing
        came.
        """
        with self._lock:
            self.calls += 1
        keywords: dict[str, Any] = {"raise_exc": False, "connect_retries": 1, "timeout": TIMEOUT}
        if timeout is not None:
            keywords |= {"connect_retries": 0, "timeout": timeout}
        if body is not None:
            keywords["json"] = body
        if query:
            keywords["params"] = query
        if headers:
            keywords["headers"] = dict(headers)
        if personal:
            keywords |= {"authenticated": False, "log": False}
        if service in MICROVERSIONS:
            keywords["microversion"] = MICROVERSIONS[service]
        try:
            answer = self._adapters[service].request(path, method, **keywords)
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: {_explain(error)}") from None
        if answer.status_code >= 400:
            said = _message(answer)
            if answer.status_code == FORBIDDEN and ("Policy" in said or "not authorized" in said):  # Nova, Keystone
                said = f"{said.rstrip('.')}; this takes the role admin: name a cloud that has it with --os-cloud"
            raise CloudError(
                f"cloud {self.name}: {method} {service} {path}: {answer.status_code} {said}", answer.status_code
            )
        return dict(answer.json()) if answer.content else {}

    def pages(self, service: str, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        """The members of a list that may come in pages, which the service links to each other."""
        answer = self.get(service, path, **query)
        while True:
            yield from answer[key]
            following = [link["href"] for link in answer.get(f"{key}_links", ()) if link["rel"] == "next"]
            if not following or not answer[key]:
                return
            # The address is not followed, only its marker: what a proxy makes of addresses is not to be relied on.
            (marker,) = parse_qs(urlsplit(following[0]).query)["marker"]
            answer = self.get(service, path, **{**query, "marker": marker})

    @property
    def auth_url(self) -> str:
        """Keystone's address, as clouds.yaml or the environment has it."""
        return str(self._connection.config.auth.get("auth_url", ""))

    @property
    def project(self) -> str | None:
        """Id of the project that the credentials are for."""
        identity: str | None = self._connection.current_project_id
        return identity

    def in_project(self, project_id: str) -> CloudApi:
        """The same user in another project. Raises CloudError when it has no role there."""
        try:
            scoped = CloudApi(self._connection.connect_as(project_id=project_id))
            if scoped.project != project_id:
                raise CloudError(f"cloud {self.name}: its credentials are for one project only, another one")
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: project {project_id}: {_explain(error)}") from None
        return scoped

    def providers(self, **query: object) -> list[dict[str, Any]]:
        """Rows of Placement's resource providers, with names that a site knows: ``HOST`` and ``HOST_ADDRESS``.

        Nova names them after the hypervisor, which often has the host's full domain name.
        """
        rows: list[dict[str, Any]] = self.get("placement", "/resource_providers", **query)["resource_providers"]
        hosts = self._hosts(frozenset(row["name"] for row in rows if row["uuid"] == row["root_provider_uuid"]))
        return [{**row, "name": _by_host(row["name"], hosts)} for row in rows]

    def _hosts(self, roots: frozenset[str]) -> Mapping[str, str]:
        """Hypervisor's name -> host. Asked again when there is a root provider that was never seen."""
        with self._naming:  # several questions are asked at once, and one of them is enough to learn the names
            if self._hosts_of_nodes is None or roots - self._hosts_of_nodes.keys() - self._strangers:
                rows = self.pages("compute", "/os-hypervisors/detail", "hypervisors", limit=1000)
                self._hosts_of_nodes = {row["hypervisor_hostname"]: row["service"]["host"] for row in rows}
                self._strangers |= roots - self._hosts_of_nodes.keys()
            return self._hosts_of_nodes


def _by_host(name: str, hosts: Mapping[str, str]) -> str:
    if name in hosts:
        return hosts[name]
    node, _, address = name.rpartition("_")
    return f"{hosts[node]}_{address}" if node in hosts else name


def _message(answer: Any) -> str:
    """What an error answer says, in the three shapes that OpenStack services use."""
    try:
        body = answer.json()
    except ValueError:
        return str(answer.text)[:300].strip()
    if isinstance(body, dict):
        if isinstance(body.get("errors"), list) and body["errors"]:  # Placement
            return str(body["errors"][0].get("detail", "")).strip()
        for value in body.values():  # Keystone: error; Nova: badRequest, conflictingRequest, forbidden ...
            if isinstance(value, dict) and "message" in value:
                return str(value["message"])
    return str(body)[:300]


def _explain(error: Exception) -> str:
    if isinstance(error, auth_errors.Unauthorized):
        return "Keystone does not accept the credentials; check clouds.yaml or ask for a new password or token"
    if isinstance(error, auth_errors.EndpointNotFound):
        return f"a service is missing in the catalogue: {error}"
    if isinstance(error, auth_errors.ConnectFailure | auth_errors.DiscoveryFailure):
        address = re.search(r"https?://[^\s:/]+(:\d+)?", str(error))
        cause = re.search(r"\[Errno -?\d+\] ([^')\"]+)|timed out", str(error))
        where = f" at {address.group()}" if address else ""
        why = f": {cause.group(1) or cause.group()}" if cause else f": {error}"
        return f"cannot be reached{where}{why}; is it up, and is its auth_url right?"
    return str(error)


def connect(cloud: str | None = None, clouds_file: Path | None = None) -> CloudApi:
    """Connect to a cloud of clouds.yaml; None means OS_CLOUD or the OS_* variables, as for `openstack`.

    `clouds_file` is used in place of the clouds.yaml that would be found, and of the environment.
    """
    region = find_cloud(cloud, clouds_file, TIMEOUT)
    try:
        return CloudApi(openstack.connection.Connection(config=region))
    except (auth_errors.ClientException, sdk_errors.SDKException) as error:
        raise CloudError(f"cloud {cloud or 'of the environment'}: {_explain(error)}") from None
