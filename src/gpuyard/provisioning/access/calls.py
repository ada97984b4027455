"""The table of calls to OpenStack that `gpuyard serve` makes, each with its credential and policy rules.

Access rules of its credentials, policy files, and docs/reference/grants.md are all made from it. A test runs the
portal's loops with these rights and fails when one makes a call that is not here.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from urllib.parse import urlsplit


class CallCredentials(StrEnum):
    """The credential that a call is made with."""

    PORTAL = "portal"
    """In gpuyard's own project, with its own role: looks at everything, and keeps limits, holds and deadlines."""
    SERVERS = "servers"
    """In a project that its own servers are in, as a member: starts runners, and servers that accept GPUs."""
    LIMITS = "limits"
    """On the system, with a role that no rule names: reads the limits of all projects."""


@dataclass(frozen=True)
class AllowedCall:
    """A call that the portal makes."""

    door: CallCredentials
    service: str
    """Type in the catalogue."""
    method: str
    path: str
    """Below the service's API, with ``{name}`` for a segment."""
    why: str
    rules: tuple[str, ...] = ()
    """Policy rules of that service that must let it pass and by default do not."""


P, S = CallCredentials.PORTAL, CallCredentials.SERVERS
NOVA = "os_compute_api:"
SERVER_FIELDS = (
    NOVA + "os-extended-server-attributes", NOVA + "servers:show:flavor-extra-specs",
)  # fmt: skip

CALLS = (
    # Nova.
    AllowedCall(P, "compute", "GET", "/servers/detail", "who has which GPU", (
        NOVA + "servers:detail", NOVA + "servers:detail:get_all_tenants", *SERVER_FIELDS)),
    AllowedCall(P, "compute", "GET", "/servers", "how many servers a project has, for its limits", (
        NOVA + "servers:index", NOVA + "servers:index:get_all_tenants", NOVA + "servers:allow_all_filters")),
    AllowedCall(P, "compute", "GET", "/servers/{server}", "a look before anything is done to a server", (
        NOVA + "servers:show", *SERVER_FIELDS)),
    AllowedCall(P, "compute", "GET", "/servers/{server}/os-instance-actions", "since when a server has its GPUs", (
        NOVA + "os-instance-actions:list",)),
    AllowedCall(P, "compute", "GET", "/servers/{server}/os-instance-actions/{request}", "when a shelved one gave them "
        "back", (NOVA + "os-instance-actions:show",)),
    AllowedCall(P, "compute", "POST", "/servers/{server}/metadata", "warnings that stand on a server", (
        NOVA + "server-metadata:create",)),
    AllowedCall(P, "compute", "DELETE", "/servers/{server}/metadata/{key}", "the same, taken off again", (
        NOVA + "server-metadata:delete",)),
    AllowedCall(P, "compute", "POST", "/servers/{server}/action", "to shelve or stop a server, or make an image of it, "
        "where the site's rules say so", (
        NOVA + "os-shelve:shelve", NOVA + "os-shelve:shelve_offload", NOVA + "servers:stop",
        NOVA + "servers:create_image", NOVA + "servers:create_image:allow_volume_backed")),
    AllowedCall(P, "compute", "DELETE", "/servers/{server}", "to delete a server, where the site's rules say so", (
        NOVA + "servers:delete",)),
    AllowedCall(P, "compute", "GET", "/flavors/detail", "what could be started", (
        NOVA + "os-flavor-extra-specs:index",)),
    AllowedCall(P, "compute", "GET", "/flavors/{flavor}/os-flavor-access", "who may start it", (
        NOVA + "os-flavor-access",)),
    AllowedCall(P, "compute", "GET", "/os-hypervisors/detail", "names of hosts, as Placement has them", (
        NOVA + "os-hypervisors:list-detail",)),
    AllowedCall(P, "compute", "GET", "/os-services", "which hosts are up", (NOVA + "os-services:list",)),
    AllowedCall(P, "compute", "PUT", "/os-services/{service}", "a host takes no new servers during its maintenance", (
        NOVA + "os-services:update",)),
    AllowedCall(P, "compute", "GET", "/os-migrations", "whether a server that has GPUs on two hosts is still moving, "
        "which resizes there were, and which servers are on their way to a host that is to be worked on", (
        NOVA + "os-migrations:index", NOVA + "os-migrations:index:all_projects", NOVA + "os-migrations:index:host")),
    AllowedCall(P, "compute", "GET", "/os-aggregates", "where a flavor may go", (NOVA + "os-aggregates:index",)),
    # Placement.
    AllowedCall(P, "placement", "GET", "/resource_providers", "which GPUs there are, and which can be had", (
        "placement:resource_providers:list",)),
    AllowedCall(P, "placement", "GET", "/resource_providers/{provider}/inventories", "which of them are held", (
        "placement:resource_providers:inventories:list",)),
    AllowedCall(P, "placement", "PUT", "/resource_providers/{provider}/inventories/{class}", "to hold a GPU, and let "
        "it go", ("placement:resource_providers:inventories:update",)),
    AllowedCall(P, "placement", "GET", "/resource_providers/{provider}/allocations", "who has a GPU that is no "
        "server's", ("placement:resource_providers:allocations:list",)),
    AllowedCall(P, "placement", "GET", "/resource_providers/{provider}/usages", "what is left of a host", (
        "placement:resource_providers:usages",)),
    AllowedCall(P, "placement", "GET", "/allocations/{consumer}", "which GPUs a server has", (
        "placement:allocations:list",)),
    AllowedCall(P, "placement", "GET", "/usages", "what a project uses of its limits", ("placement:usages",)),
    AllowedCall(P, "placement", "GET", "/allocation_candidates", "what could be started", (
        "placement:allocation_candidates:list",)),
    AllowedCall(P, "placement", "GET", "/resource_classes", "what hosts report of the site", (
        "placement:resource_classes:list",)),
    # Keystone.
    AllowedCall(P, "identity", "GET", "/auth/tokens", "whose token somebody shows to the API", (
        "identity:validate_token",)),
    AllowedCall(P, "identity", "GET", "/OS-REVOKE/events", "whose sessions end, since their password was changed", (
        "identity:list_revoke_events",)),
    AllowedCall(P, "identity", "GET", "/users", "users by name", ("identity:list_users",)),
    AllowedCall(P, "identity", "GET", "/users/{user}", "names and mail addresses of owners", ("identity:get_user",)),
    AllowedCall(P, "identity", "GET", "/users/{user}/projects", "where somebody may book", (
        "identity:list_user_projects",)),
    AllowedCall(P, "identity", "GET", "/role_assignments", "and as what", ("identity:list_role_assignments",)),
    AllowedCall(P, "identity", "GET", "/projects", "projects by name", ("identity:list_projects",)),
    AllowedCall(P, "identity", "GET", "/projects/{project}", "names of projects", ("identity:get_project",)),
    AllowedCall(P, "identity", "GET", "/domains", "domains by name", ("identity:list_domains",)),
    AllowedCall(P, "identity", "GET", "/domains/{domain}", "names of domains", ("identity:get_domain",)),
    AllowedCall(P, "identity", "GET", "/services", "Nova's id, which limits are kept under", (
        "identity:list_services",)),
    AllowedCall(P, "identity", "GET", "/endpoints", "its region", ("identity:list_endpoints",)),
    AllowedCall(P, "identity", "GET", "/registered_limits", "default limits"),
    AllowedCall(P, "identity", "POST", "/limits", "a booking begins", ("identity:create_limits",)),
    AllowedCall(P, "identity", "PATCH", "/limits/{limit}", "another one does", ("identity:update_limit",)),
    AllowedCall(P, "identity", "DELETE", "/limits/{limit}", "the last one ends", ("identity:delete_limit",)),
    AllowedCall(CallCredentials.LIMITS, "identity", "GET", "/limits", "which limits there are: Keystone shows those of "
        "all projects to who has some role on the system, and otherwise only to admins and services"),
    # Glance.
    AllowedCall(P, "image", "GET", "/images", "images of the site; what shelving has made", (
        "get_images", "get_image")),
    AllowedCall(P, "image", "PATCH", "/images/{image}", "gives the image of a shelved server to its project", (
        "modify_image",)),
    # Servers of our own.
    AllowedCall(S, "compute", "POST", "/servers", "starts a server; on a certain host where GPUs are accepted", (
        "compute:servers:create:requested_destination",)),
    AllowedCall(S, "compute", "GET", "/servers/detail", "our servers"),
    AllowedCall(S, "compute", "GET", "/servers/{server}", "one of them"),
    AllowedCall(S, "compute", "POST", "/servers/{server}/action", "its console, and its end where Nova keeps what was "
        "deleted"),
    AllowedCall(S, "compute", "DELETE", "/servers/{server}", "its end"),
    AllowedCall(S, "compute", "GET", "/flavors", "flavors by name"),
    AllowedCall(S, "image", "GET", "/images", "images by name"),
    AllowedCall(S, "image", "GET", "/images/{image}/members/{project}", "whether the project has accepted one that is "
        "shared with it"),
    AllowedCall(S, "network", "GET", "/networks", "networks by name"),
)  # fmt: skip

CALLS_FOR_SHARES = (
    AllowedCall(P, "placement", "PUT", "/allocations/{consumer}", "to hold a share of a GPU", (
        "placement:allocations:update",)),
    AllowedCall(P, "placement", "DELETE", "/allocations/{consumer}", "and let it go", (
        "placement:allocations:delete",)),
)  # fmt: skip
"""Of a site with pools of shares (docs/adr/0047), and of no other: Placement has no rule for one consumer's allocations
alone."""

ROOTS = {"compute": "/v2.1", "placement": "", "identity": "/v3", "image": "/v2", "network": "/v2.0"}
"""Below the address of a service, where the catalogue does not have it already."""


def calls_of(shares: bool) -> tuple[AllowedCall, ...]:
    """Return all calls. `shares`: for a site with pools of shares."""
    return (*CALLS, *CALLS_FOR_SHARES) if shares else CALLS


def access_rules(credentials: CallCredentials, prefixes: dict[str, str], shares: bool) -> list[dict[str, str]]:
    """Return the rules of a credential, as Keystone takes them. `prefixes`: the path of each service's API, by type, as
    requests have it when they come to the service; a rule may have Keystone's wildcards. `shares`: as in `calls_of`."""
    mine = [call for call in calls_of(shares) if call.door is credentials]
    rules = [(call.service, call.method, prefixes[call.service] + call.path) for call in mine]
    # The client asks each service which versions it has, with its token.
    for service in sorted({call.service for call in mine}):
        root = prefixes[service]
        above = root.rpartition("/")[0]
        paths = {path for path in (root, f"{root}/", above, f"{above}/") if path}
        rules += [(service, "GET", path) for path in sorted(paths)]
    return [{"service": service, "method": method, "path": path} for service, method, path in rules]


def prefix(service: str, address: str, project: str | None) -> str:
    """Return the path of a service's API by its `address` in the catalogue: ``/v2.1`` of ``http://host:8774/v2.1``.
    `project`: whose id an old catalogue has in it, in which place any may be."""
    path = urlsplit(address).path.rstrip("/")
    if project and path.endswith(project):
        path = path.removesuffix(project).removesuffix("AUTH_") + "*"
    root = ROOTS[service]
    return path if root in path or not root else path + root
