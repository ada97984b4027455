"""Lets Nova's own user read all limits in Keystone, which it needs to count what a project uses against them."""

from __future__ import annotations

from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.errors import CloudError

USER, DOMAIN, ROLE = "nova", "default", "reader"
"""As the services' documentation and Kolla name them. DOMAIN is an id."""


def nova_reads_limits(api: CloudApi) -> bool:
    """Return whether Nova's user may read all limits. Raises CloudError, also when there is no such user."""
    user, role = _user(api), _role(api)
    query = {"user.id": user, "role.id": role, "scope.system": "all"}
    return bool(api.get("identity", "/role_assignments", **query)["role_assignments"])


def let_nova_read_limits(api: CloudApi) -> None:
    """Give Nova's user the right; once more changes nothing. Raises CloudError."""
    api.request("PUT", "identity", f"/system/users/{_user(api)}/roles/{_role(api)}")


def _user(api: CloudApi) -> str:
    return _id(api, "users", USER, domain_id=DOMAIN)


def _role(api: CloudApi) -> str:
    return _id(api, "roles", ROLE)


def _id(api: CloudApi, kind: str, name: str, **query: object) -> str:
    rows = api.get("identity", f"/{kind}", name=name, **query)[kind]
    if not rows:
        raise CloudError(f"cloud {api.name}: Keystone has no {kind[:-1]} {name}, which a deployment by Kolla makes")
    return str(rows[0]["id"])
