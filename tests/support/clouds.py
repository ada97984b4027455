"""A small cloud in memory for the loop of bookings: what it asks of Keystone, Placement and Nova, and nothing else. It
is there to let things happen between two calls; whether the services behave like this is tested on the lab."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.openstack.api import CloudError
from gpuyard.openstack.rows import ServerRow
from gpuyard.site.compile import CompiledSite


class NoCloud:
    """Stands for the cloud of a portal whose loops do not run."""

    def close(self, host: str) -> None:
        raise CloudError("there is no cloud")

    def open(self, host: str) -> None:
        raise CloudError("there is no cloud")

    def servers(self, host: str, provider: str) -> dict[str, ServerRow]:
        raise CloudError("there is no cloud")


@dataclass
class SmallCloud:
    """Stands for a CloudApi, and for the SnapshotTaker on it (`take`)."""

    compiled: CompiledSite
    projects: dict[str, str] = field(default_factory=dict)
    """Name -> id."""
    emails: dict[str, str | None] = field(default_factory=dict)
    """User's id -> address; only these users are known."""
    registered: bool = True
    limits: dict[tuple[str, str], int] = field(default_factory=dict)
    marks: dict[tuple[str, str], str] = field(default_factory=dict)
    """Descriptions of limits."""
    """(project's id, resource) -> limit."""
    reserved: dict[str, int] = field(default_factory=dict)
    """Provider -> 1."""
    generations: dict[str, int] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    holders: dict[str, str] = field(default_factory=dict)
    """Provider -> server."""
    asked: list[str] = field(default_factory=list)
    """Every change and what was asked of users, as ``POST identity /limits``."""
    services: dict[str, HostService] = field(default_factory=dict)
    """Host -> its nova-compute, where it is not up and enabled."""
    hidden: dict[str, Server] = field(default_factory=dict)
    """Id -> a server that Nova has, and that the look at all GPUs has not shown."""
    migrations: list[dict[str, Any]] = field(default_factory=list)
    """Rows as Nova lists them."""
    coming: dict[str, set[str]] = field(default_factory=dict)
    """Host -> consumers that have an allocation of its own provider."""
    odd: dict[str, Any] = field(default_factory=dict)
    """What is otherwise in each look at all GPUs."""
    date: datetime = datetime(2026, 11, 23, 9, tzinfo=UTC)
    between: Callable[[str], None] = lambda request_line: None
    """Called before each request."""
    name: str = "small"
    region: str = "RegionOne"

    def get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        return self.request("GET", service, path, query=query)

    def request(self, method: str, service: str, path: str, body: Any = None, **more: Any) -> dict[str, Any]:
        request_line = f"{method} {service} {path}"
        self.between(request_line)
        if method != "GET" or path.startswith("/users"):
            self.asked.append(request_line)
        what = getattr(self, f"_{service}_{path.split('/')[1].replace('-', '_')}")
        self.query = dict(more.get("query") or {})
        answer: dict[str, Any] = what(method, path, body)
        return answer

    def pages(self, service: str, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        yield from self.get(service, path, **query)[key]

    def providers(self) -> list[dict[str, Any]]:
        """As CloudApi's."""
        self.between("GET placement /resource_providers")
        return [{"name": gpu.provider_name, "uuid": gpu.provider_name} for gpu in self.compiled.gpus]

    def boot(
        self, id: str, user: str, project: str, providers: Collection[str], created: datetime, name: str = ""
    ) -> None:
        """A server on these GPUs, called as its id where no name is given."""
        pool = next(gpu.pool for gpu in self.compiled.gpus if gpu.provider_name in providers)
        flavor = next(flavor.name for flavor in self.compiled.flavors if flavor.pool == pool)
        names = {identity: name for name, identity in self.projects.items()}
        host = next(gpu.host for gpu in self.compiled.gpus if gpu.provider_name in providers)
        self.servers[id] = Server(
            id, name or id, "ACTIVE", host, names[project], user, flavor, created, user_id=user, project_id=project
        )
        self.holders |= dict.fromkeys(providers, id)

    def take(self, now: datetime) -> Snapshot:
        """As SnapshotTaker does."""
        names = [gpu.provider_name for gpu in self.compiled.gpus]
        hosts = {gpu.host for gpu in self.compiled.gpus}
        snapshot = Snapshot(
            taken_at=now,
            providers={name: Provider(name, name, name) for name in (*hosts, *names)},
            allocatable=frozenset(name for name in names if name not in self.holders and name not in self.reserved),
            holders=dict(self.holders),
            reserved=frozenset(name for name in self.reserved if name not in self.holders),
            roomy_hosts={},
            servers=dict(self.servers),
            services={host: self.service(host) for host in hosts},
            residents={
                host: tuple(server for server in self.servers.values() if server.host == host) for host in hosts
            },
        )
        return replace(snapshot, **self.odd)

    def service(self, host: str) -> HostService:
        return self.services.get(host, HostService(host, True, True))

    # Keystone.

    def _identity_projects(self, method: str, path: str, body: Any) -> dict[str, Any]:
        return {"projects": [{"id": id, "name": name} for name, id in self.projects.items()]}

    def _identity_services(self, method: str, path: str, body: Any) -> dict[str, Any]:
        return {"services": [{"id": "nova"}]}

    def _identity_users(self, method: str, path: str, body: Any) -> dict[str, Any]:
        id = path.rpartition("/")[2]
        if id not in self.emails:
            raise CloudError("no such user", 404)
        return {"user": {"id": id, "name": id, **({"email": self.emails[id]} if self.emails[id] else {})}}

    def _identity_registered_limits(self, method: str, path: str, body: Any) -> dict[str, Any]:
        names = {limit.resource for limit in self.compiled.limits if limit.project is None} if self.registered else ()
        return {"registered_limits": [{"resource_name": name, "region_id": self.region} for name in names]}

    def _identity_limits(self, method: str, path: str, body: Any) -> dict[str, Any]:
        keys = {f"{project} {resource}": (project, resource) for project, resource in self.limits}
        if method == "GET":
            return {"limits": [self._limit(id, *key) for id, key in keys.items()]}
        if method == "POST":
            (row,) = body["limits"]
            if not self.registered:
                raise CloudError("POST identity /limits: 403 You are not authorized to perform the action.", 403)
            self.limits[row["project_id"], row["resource_name"]] = row["resource_limit"]
            self.marks[row["project_id"], row["resource_name"]] = row["description"]
        elif method == "PATCH":
            self.limits[keys[path.rpartition("/")[2]]] = body["limit"]["resource_limit"]
            self.marks[keys[path.rpartition("/")[2]]] = body["limit"]["description"]
        else:
            del self.limits[keys[path.rpartition("/")[2]]]
        return {}

    def _limit(self, id: str, project: str, resource: str) -> dict[str, Any]:
        limit = self.limits[project, resource]
        row = {"id": id, "project_id": project, "resource_name": resource, "resource_limit": limit}
        return {**row, "region_id": self.region, "description": self.marks.get((project, resource), "")}

    # Placement.

    def _placement_resource_providers(self, method: str, path: str, body: Any) -> dict[str, Any]:
        name = path.split("/")[2]
        if path.endswith("/allocations"):
            consumers = {server.id for server in self.servers.values() if server.host == name} | self.coming.get(
                name, set()
            )
            return {"allocations": {id: {"resources": {"VCPU": 1}} for id in consumers}}
        (gpu,) = (gpu for gpu in self.compiled.gpus if gpu.provider_name == name)
        generation = self.generations.setdefault(name, 1)
        if path.endswith("/usages"):
            return {"usages": {gpu.resource_class: int(name in self.holders)}}
        if method == "PUT":
            if body["resource_provider_generation"] != generation:
                raise CloudError("generation conflict", 409)
            self.generations[name] += 1
            self.reserved.pop(name, None)
            if body["reserved"]:
                self.reserved[name] = 1
            return {}
        inventory = {"total": 1, "reserved": self.reserved.get(name, 0)}
        return {"inventories": {gpu.resource_class: inventory}, "resource_provider_generation": generation}

    def _placement_allocations(self, method: str, path: str, body: Any) -> dict[str, Any]:
        server = path.rpartition("/")[2]
        return {"allocations": {name: {} for name, holder in self.holders.items() if holder == server}}

    # Nova.

    def _compute_os_services(self, method: str, path: str, body: Any) -> dict[str, Any]:
        host = self.query["host"] if method == "GET" else path.rpartition("/")[2]
        service = self.service(host)
        if method == "PUT":
            enabled = body["status"] == "enabled"  # as Nova does, which forgets the reason then
            service = replace(service, enabled=enabled, disabled_reason="" if enabled else body["disabled_reason"])
            self.services[host] = service
        row = {"id": host, "host": host, "state": "up" if service.up else "down"}
        status = "enabled" if service.enabled else "disabled"
        return {"services": [{**row, "status": status, "disabled_reason": service.disabled_reason or None}]}

    def _compute_os_migrations(self, method: str, path: str, body: Any) -> dict[str, Any]:
        ends = ("source_compute", "dest_compute") if "host" in self.query else ("source_compute",)
        host = self.query.get("host") or self.query["source_compute"]
        return {"migrations": [row for row in self.migrations if host in [row[end] for end in ends]]}

    def _server(self, item: Server) -> dict[str, Any]:
        flavor = {"original_name": item.flavor, "vcpus": 1, "ram": 1, "disk": 0, "ephemeral": 0, "swap": 0}
        return {
            "id": item.id, "name": item.name, "status": item.status, "OS-EXT-STS:task_state": item.task or None,
            "OS-EXT-SRV-ATTR:host": item.host, "tenant_id": item.project_id, "user_id": item.user_id, "flavor": flavor,
            "created": None, "OS-SRV-USG:launched_at": None, "updated": "",
        }  # fmt: skip

    def _compute_servers(self, method: str, path: str, body: Any) -> dict[str, Any]:
        if path == "/servers/detail":
            servers = (self.servers | self.hidden).values()
            return {
                "servers": [self._server(candidate) for candidate in servers if candidate.host == self.query["host"]]
            }
        match = re.fullmatch(r"/servers/([^/]+)(/.*)?", path)
        assert match is not None
        id, rest = match.groups()
        if id in self.hidden and method == "GET":
            return {"server": self._server(self.hidden[id])}
        if id not in self.servers:
            raise CloudError("no such server", 404)
        server = self.servers[id]
        if method == "GET":
            return {"server": self._server(server)}
        if method == "DELETE" and rest is None:
            self._take_back(id)
            del self.servers[id]
        if rest == "/action" and "shelve" in body:
            self._take_back(id)
        return {}

    def _take_back(self, id: str) -> None:
        self.holders = {name: holder for name, holder in self.holders.items() if holder != id}
