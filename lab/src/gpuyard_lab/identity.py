"""Creates what Keystone needs before anybody can use the lab: accounts, the service catalogue, base limits.

Level-triggered: it compares and adds what is missing, so it may run at every start, and a start after a change of ports
puts the new addresses into the catalogue.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.nova.release import RELEASES
from gpuyard_lab.catalog import APIS, REGION
from gpuyard_lab.credentials import ADMIN, DEMO, SERVICE_USERS, passwords
from gpuyard_lab.http import call
from gpuyard_lab.settings import Lab

DOMAIN = "default"
PORTAL_TYPE = "gpu"
"""The portal's type in the catalogue."""

# With unified limits a resource without a registered limit is either unlimited or not to be had at all. These are the
# ones that Nova refuses or counts; GPU classes are left to 'gpuyard site apply'. Values of servers, VCPU, MEMORY_MB and
# DISK_GB: a site's defaults. The others: Nova's defaults.
BASE_LIMITS = {
    "servers": 100,
    "class:VCPU": -1,
    "class:MEMORY_MB": -1,
    "class:DISK_GB": -1,
    "server_metadata_items": 128,
    "server_injected_files": 5,
    "server_injected_file_content_bytes": 10240,
    "server_injected_file_path_bytes": 255,
    "server_key_pairs": 100,
    "server_groups": 10,
    "server_group_members": 10,
}


def base_limits(release: str) -> dict[str, int]:
    """Return BASE_LIMITS with the values that a release's Nova understands: for an old one -1 means that the limit is
    reached."""
    free = RELEASES[release].no_limit
    return {name: free if value == -1 else value for name, value in BASE_LIMITS.items()}


def log_in(lab: Lab) -> str:
    """Return a token of the lab's admin, in its project."""
    user = {"name": ADMIN, "password": passwords(lab)[ADMIN], "domain": {"id": DOMAIN}}
    body = {
        "auth": {
            "identity": {"methods": ["password"], "password": {"user": user}},
            "scope": {"project": {"name": ADMIN, "domain": {"id": DOMAIN}}},
        }
    }
    token = call("POST", f"{lab.endpoint('keystone')}/auth/tokens", body).token
    assert token is not None
    return token


@dataclass(frozen=True)
class Keystone:
    """Keystone's API for one admin."""

    lab: Lab
    token: str

    def get(self, path: str) -> Any:
        return self._call("GET", path)

    def put(self, path: str) -> None:
        self._call("PUT", path)

    def all(self, kind: str) -> list[dict[str, Any]]:
        """Return everything of a kind, named in the singular."""
        rows: list[dict[str, Any]] = self.get(f"/{kind}s")[f"{kind}s"]
        return rows

    def ensure(self, kind: str, name: str, **values: Any) -> str:
        """Return the id of the object with a name, which is made with these values when it is missing."""
        for row in self.all(kind):
            if row["name"] == name:
                return str(row["id"])
        return str(self._call("POST", f"/{kind}s", {kind: {"name": name, **values}})[kind]["id"])

    def _call(self, method: str, path: str, body: Any = None) -> Any:
        return call(method, self.lab.endpoint("keystone") + path, body, token=self.token).body

    def ensure_endpoint(self, service: str, url: str) -> None:
        """Set one address for all three interfaces of a service."""
        endpoints = {e["interface"]: e for e in self.get(f"/endpoints?service_id={service}")["endpoints"]}
        for interface in ("public", "internal", "admin"):
            endpoint = endpoints.get(interface)
            if endpoint is None:
                new_endpoint = {"service_id": service, "interface": interface, "url": url, "region_id": REGION}
                self._call("POST", "/endpoints", {"endpoint": new_endpoint})
            elif endpoint["url"] != url:
                self._call("PATCH", f"/endpoints/{endpoint['id']}", {"endpoint": {"url": url}})

    def ensure_limits(self, service: str) -> None:
        """Register base limits that are not registered yet; those that are keep their values."""
        registered = {limit["resource_name"] for limit in self.all("registered_limit")}
        missing = [
            {"service_id": service, "region_id": REGION, "resource_name": name, "default_limit": value}
            for name, value in base_limits(self.lab.release).items()
            if name not in registered
        ]
        if missing:
            self._call("POST", "/registered_limits", {"registered_limits": missing})


def ensure_identity(lab: Lab, token: str) -> str:
    """Create accounts of the services and of the demo user, the catalogue, and base limits. Returns the id of Nova's
    public endpoint, by which limits are kept."""
    keystone = Keystone(lab, token)
    roles = {role["name"]: role["id"] for role in keystone.all("role")}
    secrets = passwords(lab)
    project = keystone.ensure("project", "service", domain_id=DOMAIN)
    for name in SERVICE_USERS:
        user = keystone.ensure("user", name, domain_id=DOMAIN, password=secrets[name])
        for role in ("admin", "service"):
            keystone.put(f"/projects/{project}/users/{user}/roles/{roles[role]}")
        if name == "nova":  # reads the limits of every project
            keystone.put(f"/system/users/{user}/roles/{roles['reader']}")
    project = keystone.ensure("project", DEMO, domain_id=DOMAIN)
    user = keystone.ensure("user", DEMO, domain_id=DOMAIN, password=secrets[DEMO])
    for role in ("member", "reader"):
        keystone.put(f"/projects/{project}/users/{user}/roles/{roles[role]}")
    for api in APIS:
        service = keystone.ensure("service", api.name, type=api.type)
        keystone.ensure_endpoint(service, lab.endpoint(api.name))
        if api.name == "nova":
            keystone.ensure_limits(service)
            compute = service
    endpoints = keystone.get(f"/endpoints?service_id={compute}&interface=public")["endpoints"]
    return str(endpoints[0]["id"])


def ensure_portal(lab: Lab, token: str, url: str) -> None:
    """Add the portal to the catalogue, so that command lines find it."""
    keystone = Keystone(lab, token)
    service = keystone.ensure("service", "gpuyard", type=PORTAL_TYPE)
    keystone.ensure_endpoint(service, url)


def ensure_projects(
    lab: Lab, token: str, names: Iterable[str], member: str = DEMO, roles_there: Sequence[str] = ("member", "reader")
) -> None:
    """Create projects with these names, and give a user roles in each."""
    keystone = Keystone(lab, token)
    roles = {role["name"]: role["id"] for role in keystone.all("role")}
    user = keystone.ensure("user", member)
    for name in names:
        project = keystone.ensure("project", name, domain_id=DOMAIN)
        for role in roles_there:
            keystone.put(f"/projects/{project}/users/{user}/roles/{roles[role]}")
