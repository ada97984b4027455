"""Sends requests to the services of one cloud: authenticated by openstacksdk, counted, with errors that say what to
do."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence, Sized
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from time import monotonic
from typing import Any
from urllib.parse import parse_qs, urlsplit

import openstack
from keystoneauth1 import exceptions as auth_errors
from keystoneauth1.adapter import Adapter
from keystoneauth1.session import TCPKeepAliveAdapter
from openstack import exceptions as sdk_errors
from openstack.config import OpenStackConfig
from requests import Response

from gpuyard.logs.request_context import HEADER, current
from gpuyard.model.world import DOMAIN
from gpuyard.openstack.calls import CloudCalls
from gpuyard.openstack.config import ELSEWHERE, Elsewhere, find_cloud
from gpuyard.openstack.errors import CloudError as CloudError
from gpuyard.openstack.rows import service_of

FORBIDDEN = 403
TIMEOUT = 60
"""Seconds to wait for one answer; Placement may think long about a request for many GPUs."""
LINES = 64
"""Connections to a service that are kept open, as many as threads ask at a time: urllib3 warns of each one beyond."""
MAY_NOT = (
    "this takes the role admin: name a cloud that has it with --os-cloud; or, with the credentials of 'gpuyard site "
    "bootstrap', its policy files in that service"
)

# The versions of the APIs that gpuyard speaks, by service type. Nova 2.75: servers carry the extra specs of their
# flavor; Placement 1.38: the newest that has anything for us.
MICROVERSIONS = {"compute": "2.75", "placement": "1.38"}


SAME_FOR_ALL = ("region_name", "interface", "cacert", "verify")
"""Keys of clouds.yaml that hold for every user of the cloud."""

# It warns of what the error that follows says better.
logging.getLogger("keystoneauth.identity").setLevel(logging.ERROR)


class CloudApi:
    """JSON requests to one cloud. Safe to use from several threads."""

    def __init__(
        self,
        connection: openstack.connection.Connection,
        counted: CloudCalls | None = None,
        elsewhere: Elsewhere | None = None,
    ) -> None:
        """`counted`: counts requests for metrics, possibly with those of other clients. `elsewhere`: other clouds for
        requests that the credentials of this one are not good for."""
        self.counted = counted or CloudCalls()
        self._elsewhere = elsewhere or Elsewhere()
        self._clients: dict[str, CloudApi] = {}
        self.name: str = connection.config.name or "the environment"
        self.region: str = connection.config.region_name or ""
        self._connection = connection
        # A cache of clouds.yaml would have the tokens of people in its keys.
        connection.cache_enabled = False
        self._adapters: dict[str, Adapter] = {
            "compute": connection.compute,
            "placement": connection.placement,
            "identity": connection.identity,
            "image": connection.image,
            "network": connection.network,
        }
        self._lock = threading.Lock()
        self._opening = threading.Lock()
        self.calls = 0
        """Requests made so far."""
        self.date: datetime | None = None
        """What the clock of the service that answered last showed then, where it said so: to the second, UTC."""
        self._hosts_of_nodes: dict[str, str] | None = None
        self._strangers: frozenset[str] = frozenset()
        self._naming = threading.Lock()

    def get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        """Return the JSON answer. Raises CloudError."""
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
        """Make one request; return the JSON answer, or {} when it has none. Raises CloudError for any answer from 400
        up.

        `personal`: it has somebody's password or token. Then it goes without a token of ours, which a 401 would have
        thrown away, and into no log. `timeout`: seconds to wait, once; else TIMEOUT, and a second time when nothing
        came, but for a POST: that it was not answered does not mean that nothing was made.
        """
        if self._elsewhere.limits and (method, service, path) == ("GET", "identity", "/limits"):
            return self._client_of(self._elsewhere.limits).request(method, service, path, query=query)
        answer = self._answer(method, service, path, body, query, headers, personal, timeout)
        return dict(answer.json()) if answer.content else {}

    def issue_token(self, auth: Mapping[str, Any], timeout: float) -> tuple[str, dict[str, Any]]:
        """Have Keystone issue a token to somebody else; return it and its facts. `auth`: as in Keystone's
        ``POST /v3/auth/tokens``; `timeout`: seconds. Raises CloudError."""
        answer = self._answer(
            "POST", "identity", "/auth/tokens", {"auth": auth}, None, None, personal=True, timeout=timeout
        )
        return str(answer.headers["X-Subject-Token"]), dict(answer.json()["token"])

    def _answer(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | Sequence[Any] | None,
        query: Mapping[str, object] | None,
        headers: Mapping[str, str] | None,
        personal: bool,
        timeout: float | None,
    ) -> Response:
        """Make one request, as `request` says."""
        with self._lock:
            self.calls += 1
        keywords: dict[str, Any] = {"raise_exc": False, "timeout": TIMEOUT}
        keywords["connect_retries"] = 0 if method == "POST" else 1
        if timeout is not None:
            keywords |= {"connect_retries": 0, "timeout": timeout}
        if body is not None:
            keywords["json"] = body
        if query:
            keywords["params"] = query
        keywords["headers"] = {**_for_whom(), **(headers or {})}
        if personal:
            keywords |= {"authenticated": False, "log": False, **self._endpoint_of_all(service)}
        if service in MICROVERSIONS:
            keywords["microversion"] = MICROVERSIONS[service]
        began, status = monotonic(), None
        try:
            answer = self._adapters[service].request(path, method, **keywords)
            status, self.date = answer.status_code, date_of(answer.headers.get("Date"))
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: {_explain(error)}") from None
        finally:
            self.counted.add(service, status, monotonic() - began)
        if answer.status_code >= 400:
            reason = _message(answer)
            refused_by_policy = "Policy" in reason or "not authorized" in reason  # Nova's words, and Keystone's
            if answer.status_code == FORBIDDEN and refused_by_policy and not personal:
                reason = f"{reason.rstrip('.')}; {MAY_NOT}"
            text = f"cloud {self.name}: {method} {service} {path}: {answer.status_code} {reason}"
            raise CloudError(text, answer.status_code, reason)
        return answer

    def _endpoint_of_all(self, service: str) -> dict[str, str]:
        """Return the endpoint without our project in it, where the catalogue has one with it, as older deployments
        have of Nova: "%(tenant_id)s". Nova refuses it to other projects, and knows itself without."""
        if service != "compute":
            return {}
        try:
            endpoint = str(self._adapters[service].get_endpoint() or "").rstrip("/")
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: {_explain(error)}") from None
        ours = f"/{self.project}"
        return {"endpoint_override": endpoint.removesuffix(ours)} if endpoint.endswith(ours) else {}

    def send(self, service: str, path: str, content: Sized, timeout: float) -> None:
        """PUT content that is too large for memory, once: what has been sent cannot be sent again. `content` is read
        like a file. `timeout`: seconds without any answer. Raises CloudError, also when `content` cannot be read."""
        with self._lock:
            self.calls += 1
        headers = {**_for_whom(), "Content-Type": "application/octet-stream"}
        keywords: dict[str, Any] = {"raise_exc": False, "timeout": timeout, "connect_retries": 0, "headers": headers}
        began, status = monotonic(), None
        try:
            answer = self._adapters[service].request(path, "PUT", data=content, **keywords)
            status = answer.status_code
        except (auth_errors.ClientException, sdk_errors.SDKException, OSError) as error:
            raise CloudError(f"cloud {self.name}: PUT {service} {path}: {_explain(error)}") from None
        finally:
            self.counted.add(service, status, monotonic() - began)
        if answer.status_code >= 400:
            reason = _message(answer)
            raise CloudError(
                f"cloud {self.name}: PUT {service} {path}: {answer.status_code} {reason}", answer.status_code
            )

    def pages(self, service: str, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        """Yield the members of a list that may come in pages, which the service links to each other."""
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

    @property
    def sees_all_limits(self) -> bool:
        """Whether Keystone of any release shows these credentials the limits of all projects: to a token of the
        system it does."""
        return bool(self._elsewhere.limits) or self.project is None

    @property
    def user(self) -> str | None:
        """Id of the user that the credentials are of."""
        identity: str | None = self._connection.current_user_id
        return identity

    def address(self, service: str) -> str:
        """Return the address of a service, as the catalogue has it. Raises CloudError."""
        try:
            endpoint = self._connection.config.get_session_endpoint(service)
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: {_explain(error)}") from None
        if not endpoint:
            raise CloudError(f"cloud {self.name} has no service of type {service} in its catalogue")
        return str(endpoint)

    def token(self) -> None:
        """Log in. Raises CloudError."""
        try:
            self._connection.session.get_token()
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: {_explain(error)}", getattr(error, "http_status", None)) from None

    def settings(self) -> dict[str, Any]:
        """Return the settings of clouds.yaml that hold for every user of the cloud."""
        config = self._connection.config.config
        return {key: config[key] for key in SAME_FOR_ALL if config.get(key) not in (None, True, "public", "")}

    def as_user(self, name: str, password: str, project_id: str) -> CloudApi:
        """Return the same cloud as another user of the default domain, in a project."""
        login = {"auth_url": self.auth_url, "username": name, "password": password, "user_domain_id": DOMAIN}
        auth = {**login, "project_id": project_id}
        # With no clouds.yaml and no environment, which are somebody else's.
        config = OpenStackConfig(config_files=[], vendor_files=[], secure_files=[], load_envvars=False)
        region = config.get_one(auth=auth, auth_type="password", api_timeout=TIMEOUT, **self.settings())
        return CloudApi(openstack.connection.Connection(config=region))

    def _client_of(self, cloud: str) -> CloudApi:
        """Another cloud of the same clouds.yaml; its requests are counted with ours."""
        with self._opening:
            if cloud not in self._clients:
                self._clients[cloud] = connect(cloud, self._elsewhere.clouds_file, self.counted)
            return self._clients[cloud]

    def in_project(self, project_id: str) -> CloudApi:
        """Return the same user in another project, or the cloud that clouds.yaml names for it. Raises CloudError when
        the user has no role there."""
        if cloud := self._elsewhere.projects.get(project_id):
            return self._client_of(cloud)
        try:
            scoped = CloudApi(self._connection.connect_as(project_id=project_id), self.counted)
            if scoped.project != project_id:
                raise CloudError(f"cloud {self.name}: its credentials are for one project only, another one")
        except (auth_errors.ClientException, sdk_errors.SDKException) as error:
            raise CloudError(f"cloud {self.name}: project {project_id}: {_explain(error)}") from None
        return scoped

    def providers(self, **query: object) -> list[dict[str, Any]]:
        """Return rows of Placement's resource providers, with names that a site knows: ``HOST``, ``HOST_ADDRESS`` and
        ``HOST_pci_ADDRESS``, as libvirt writes an address.

        Nova names them after the hypervisor, which often has the host's full domain name.
        """
        rows: list[dict[str, Any]] = self.get("placement", "/resource_providers", **query)["resource_providers"]
        hosts = self._hosts(frozenset(row["name"] for row in rows if row["uuid"] == row["root_provider_uuid"]))
        return [{**row, "name": _by_host(row["name"], hosts)} for row in rows]

    def _hosts(self, roots: frozenset[str]) -> Mapping[str, str]:
        """Hypervisor's name -> host. Asked again when there is a root provider that was never seen."""
        with self._naming:  # several questions are asked at once, and one of them is enough to learn the names
            if self._hosts_of_nodes is None or roots - self._hosts_of_nodes.keys() - self._strangers:
                try:
                    rows = list(self.pages("compute", "/os-hypervisors/detail", "hypervisors", limit=1000))
                except CloudError:
                    # Nova lists no hypervisor at all while one of its cells is silent; see silent_cells.py.
                    services = self.get("compute", "/os-services", binary="nova-compute")["services"]
                    if not any(service_of(row).silent for row in services):
                        raise
                    return {**_guessed(roots, {row["host"] for row in services}), **(self._hosts_of_nodes or {})}
                self._hosts_of_nodes = {row["hypervisor_hostname"]: row["service"]["host"] for row in rows}
                self._strangers |= roots - self._hosts_of_nodes.keys()
            return self._hosts_of_nodes


def date_of(header: str | None) -> datetime | None:
    """Return the time of an answer's ``Date``; None without one, or where it is none."""
    try:
        date = parsedate_to_datetime(header) if header else None
        return date.astimezone(UTC) if date and date.tzinfo else None
    except (ValueError, OverflowError):
        return None


def _for_whom() -> dict[str, str]:
    """What this is asked for, as OpenStack's services tell each other: Nova hands it on to Neutron and Placement."""
    id = current().request_id
    return {HEADER: id} if id else {}


def _guessed(roots: Iterable[str], hosts: Collection[str]) -> dict[str, str]:
    """Hypervisor's name -> host, where it is the host's with or without its domain."""
    return {root: host for root in roots for host in (root, root.partition(".")[0]) if host in hosts}


def _by_host(name: str, hosts: Mapping[str, str]) -> str:
    if name in hosts:
        return hosts[name]
    node, between, address = name.rpartition("_")
    if node not in hosts:  # a maker of vGPUs, which libvirt calls pci_0000_41_00_4
        node, between, address = name.rpartition("_pci_")
    return f"{hosts[node]}{between}{address}" if node in hosts else name


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
    gone = isinstance(error, auth_errors.NotFound) and "Application Credential" in str(error)
    if isinstance(error, auth_errors.Unauthorized) or gone:
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


def connect(cloud: str | None = None, clouds_file: Path | None = None, counted: CloudCalls | None = None) -> CloudApi:
    """Connect to a cloud of clouds.yaml; None means OS_CLOUD or the OS_* variables, as for `openstack`.

    `clouds_file` is used in place of the clouds.yaml that would be found, and of the environment. `counted`: as in
    `CloudApi`.
    """
    region = find_cloud(cloud, clouds_file, TIMEOUT)
    elsewhere = Elsewhere.of(region.config.get(ELSEWHERE), region.name, clouds_file)
    try:
        connection = openstack.connection.Connection(config=region)
        for scheme in ("http://", "https://"):
            connection.session.session.mount(scheme, TCPKeepAliveAdapter(pool_maxsize=LINES))
        return CloudApi(connection, counted, elsewhere)
    except (auth_errors.ClientException, sdk_errors.SDKException) as error:
        raise CloudError(f"cloud {cloud or 'of the environment'}: {_explain(error)}") from None
