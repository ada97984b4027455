"""Table of the methods and paths that the gateway lets through: those that clients of a cloud need.

A path is matched as it was sent, before anybody decodes or shortens it. A spelling that could be read in several
ways (dots, double slashes, semicolons, escapes of slashes) is not let through at all, so that the gateway and the
service behind it cannot take one request for two different ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from gpuyard.site.gateway_rules import SiteGateway

PORTAL, HORIZON = "portal", "dashboard"
HOOK = "/v1/github/webhook"
STREAM = "/events"

LETTER = r"(?:[A-Za-z0-9_~@:+,=-]|%(?:20|2[Bb]|2[Cc]|3[Aa]|40))"
"""A character of a part of a path. The escapes are those of space + , : @ alone, which mean the same escaped or not."""
PART = rf"{LETTER}(?:{LETTER}|\.)*"
QUERY = r"(?:\?[!-~]*)?"
CLEAN = rf"/(?:{PART}(?:/{PART})*/?)?{QUERY}"
REST = "{rest}"


@dataclass(frozen=True)
class GatewayOpening:
    """A row of the table: methods and a path that pass."""

    service: str
    """Type in the catalogue; PORTAL."""
    methods: tuple[str, ...]
    path: str
    """The path, with ``{name}`` for one part, ``{a|b}`` for one of some, and ``{rest}`` at the end for whatever
    follows."""
    why: str = ""

    @property
    def pattern(self) -> str:
        """A regular expression of PCRE for ``METHOD PATH?QUERY``, to be matched as a whole."""
        return rf"(?:{'|'.join(self.methods)}) {_path(self.path)}{QUERY}"


def _path(template: str) -> str:
    if template == "/":
        return "/"
    parts = [f"/{_part(part)}" for part in template.removeprefix("/").split("/") if part != REST]
    if template.endswith(f"/{REST}"):
        return "".join(parts) + rf"(?:/{PART})*/?"
    return "".join(parts) + "/?"


def _part(part: str) -> str:
    if not part.startswith("{"):
        return re.escape(part)
    choice = part[1:-1].split("|")
    return PART if len(choice) == 1 else f"(?:{'|'.join(re.escape(alternative) for alternative in choice)})"


G, P, D = ("GET",), ("POST",), ("DELETE",)
GP, GD, GPD, GPUT = (*G, *P), (*G, *D), ("GET", "PUT", "DELETE"), ("GET", "PUT")
READ = ("GET", "HEAD")

KEYSTONE = (
    (READ, "/", "which versions there are"),
    (READ, "/v3", "and what this one is"),
    (("GET", "HEAD", "POST", "DELETE"), "/v3/auth/tokens", "to log in, look at a token, give it back"),
    (G, "/v3/auth/{catalog|projects|domains|system}", "what a token is good for"),
    (G, "/v3/users/{user}", "oneself"),
    (G, "/v3/users/{user}/projects", "one's projects"),
    (P, "/v3/users/{user}/password", "to change one's password"),
    (GP, "/v3/users/{user}/application_credentials", "credentials for programs"),
    (GD, "/v3/users/{user}/application_credentials/{credential}", "one of them"),
    (G, "/v3/users/{user}/access_rules", "what these may do"),
    (GD, "/v3/users/{user}/access_rules/{rule}", "one of them"),
    (G, "/v3/projects/{project}", "a project of one's own"),
    (G, "/v3/limits", "what one's project may have"),
    (G, "/v3/registered_limits", "and projects by default"),
)
SINGLE_SIGN_ON = (
    (GP, "/v3/auth/OS-FEDERATION/websso/{protocol}", "where browsers log in"),
    (GP, "/v3/auth/OS-FEDERATION/identity_providers/{idp}/protocols/{protocol}/websso", "the same"),
    (GP, "/redirect_uri", "where the identity provider sends them back to"),
)
NOVA = (
    (G, "/", "which versions there are"),
    (G, "/v2.1", "and what this one is"),
    (GP, "/v2.1/servers", "servers, and to start one"),
    (G, "/v2.1/servers/detail", "servers"),
    (GPD, "/v2.1/servers/{server}", "one of them"),
    (P, "/v2.1/servers/{server}/action", "what is done to it; Nova's policy says who may what"),
    (("GET", "POST", "PUT"), "/v2.1/servers/{server}/metadata", "its metadata"),
    (GPD, "/v2.1/servers/{server}/metadata/{key}", "one of them"),
    (GPD, "/v2.1/servers/{server}/tags", "its tags"),
    (GPD, "/v2.1/servers/{server}/tags/{tag}", "one of them"),
    (G, "/v2.1/servers/{server}/ips", "its addresses"),
    (G, "/v2.1/servers/{server}/ips/{network}", "those in a network"),
    (G, "/v2.1/servers/{server}/os-security-groups", "its security groups"),
    (G, "/v2.1/servers/{server}/os-instance-actions", "what was done to it"),
    (G, "/v2.1/servers/{server}/os-instance-actions/{request}", "one of them"),
    (GP, "/v2.1/servers/{server}/os-interface", "its ports"),
    (GD, "/v2.1/servers/{server}/os-interface/{port}", "one of them"),
    (GP, "/v2.1/servers/{server}/os-volume_attachments", "its volumes"),
    (GPD, "/v2.1/servers/{server}/os-volume_attachments/{volume}", "one of them"),
    (G, "/v2.1/flavors", "flavors"),
    (G, "/v2.1/flavors/{flavor}", "one of them, and 'detail'"),
    (G, "/v2.1/flavors/{flavor}/os-extra_specs", "what it asks for"),
    (GP, "/v2.1/os-keypairs", "keys of SSH"),
    (GD, "/v2.1/os-keypairs/{key}", "one of them"),
    (GP, "/v2.1/os-server-groups", "groups of servers"),
    (GD, "/v2.1/os-server-groups/{group}", "one of them"),
    (G, "/v2.1/os-availability-zone", "zones"),
    (G, "/v2.1/limits", "what one's project may have"),
    (G, "/v2.1/os-quota-sets/{project}", "the same"),
    (G, "/v2.1/os-quota-sets/{project}/{defaults|detail}", "the same"),
    (G, "/v2.1/os-simple-tenant-usage/{project}", "what it has used"),
    (G, "/v2.1/extensions", "what old clients ask for first"),
)
# Not import and stage: which import method a request means is in its body, and with web-download, which Glance offers
# by default (glance 33, common/config.py, enabled_import_methods), Glance fetches whatever address a member names.
GLANCE = (
    (G, "/", "which versions there are"),
    (G, "/versions", "the same"),
    (G, "/v2", "what this one is"),
    (GP, "/v2/images", "images, and a new one"),
    (("GET", "PATCH", "DELETE"), "/v2/images/{image}", "one of them"),
    (GPUT, "/v2/images/{image}/file", "what is in it"),
    (P, "/v2/images/{image}/actions/{deactivate|reactivate}", "whether it can be had"),
    (("PUT", "DELETE"), "/v2/images/{image}/tags/{tag}", "its tags"),
    (GP, "/v2/images/{image}/members", "who sees it"),
    (GPD, "/v2/images/{image}/members/{member}", "one of them"),
    (G, "/v2/schemas/{name}", "what clients ask for first"),
    (G, "/v2/info/{import|stores}", "how images can be brought: clients ask, also those that upload"),
)
OF_NETWORKS = "{networks|subnets|ports|routers|floatingips|security-groups|security-group-rules|trunks}"
NEUTRON = (
    (G, "/", "which versions there are"),
    (G, "/v2.0", "what this one is"),
    (GP, f"/v2.0/{OF_NETWORKS}", "networks, and what belongs to them"),
    (GPD, f"/v2.0/{OF_NETWORKS}/{{id}}", "one of them"),
    (GPUT, f"/v2.0/{OF_NETWORKS}/{{id}}/tags", "its tags"),
    (("GET", "PUT", "DELETE"), f"/v2.0/{OF_NETWORKS}/{{id}}/tags/{{tag}}", "one of them"),
    (("PUT",), "/v2.0/routers/{router}/{add_router_interface|remove_router_interface}", "what a router joins"),
    (G, "/v2.0/{subnetpools|address-scopes|availability_zones|extensions}", "what there is"),
    (G, "/v2.0/{subnetpools|address-scopes|extensions}/{id}", "one of them"),
    (G, "/v2.0/quotas/{project}", "what one's project may have"),
    (G, "/v2.0/quotas/{project}/{default|default.json|details.json}", "the same"),
)
VOLUMES = (
    (GP, "/{volumes|snapshots|backups|volume-transfers|os-volume-transfer}", "volumes, and what belongs to them"),
    (G, "/{volumes|snapshots|backups|volume-transfers|os-volume-transfer}/detail", "the same"),
    (GPUT, "/volumes/{volume}", "one of them, and 'summary'"),
    (D, "/volumes/{volume}", "to delete one"),
    (P, "/volumes/{volume}/action", "what is done to it; Cinder's policy says who may what"),
    (("GET", "PUT", "DELETE"), "/{snapshots|backups}/{id}", "a snapshot, a backup"),
    (P, "/backups/{backup}/restore", "what a backup is for"),
    (("GET", "POST", "PUT"), "/{volumes|snapshots}/{id}/metadata", "metadata of a volume or a snapshot"),
    (("GET", "PUT", "DELETE"), "/{volumes|snapshots}/{id}/metadata/{key}", "one of them"),
    (GD, "/{volume-transfers|os-volume-transfer}/{transfer}", "a volume that goes to another project"),
    (P, "/{volume-transfers|os-volume-transfer}/{transfer}/accept", "the other project takes it"),
    (G, "/messages", "why something went wrong"),
    (GD, "/messages/{message}", "one of them"),
    (G, "/types", "types of volumes"),
    (G, "/types/{type}", "one of them, and 'default'"),
    (G, "/{limits|extensions|os-availability-zone|resource_filters}", "what there is, and what one's project may have"),
    (G, "/os-quota-sets/{project}", "the same"),
    (G, "/os-quota-sets/{project}/defaults", "the same"),
)
# In the catalogue block-storage has no project in its address, and volumev3, which Kolla 20 and 21 register, too, has.
CINDER = (
    (G, "/", "which versions there are"),
    (G, "/v3", "and what this one is"),
    *((methods, f"/v3{path}", why) for methods, path, why in VOLUMES),
    *((methods, f"/v3/{{project}}{path}", why) for methods, path, why in VOLUMES),
)
# Horizon asks services from inside, where no gateway is: what only administrators need is closed in its own pages and
# calls (openstack_dashboard 27: dashboards/*, api/rest/*.py; openstack_auth/urls.py; horizon/site_urls.py).
DASHBOARD_PAGES = (
    (READ, "/", "where one logs in, or lands"),
    (READ, "/{home|header}", "where one lands; the top of each page"),
    (READ, "/static/{rest}", "what pages are made of"),
    (READ, "/i18n/{rest}", "words in one's language"),
    (P, "/i18n/setlang", "to choose it"),
    (READ, "/ngdetails/{rest}", "pages of one object"),
    (GP, "/auth/{login|logout}", "to log in and out"),
    (GP, "/auth/{password|totp}/{user}", "where a password has expired, or is not enough"),
    (G, "/auth/{switch|switch_name}/{project}", "another project"),
    (G, "/auth/{switch_services_region|switch_keystone_provider}/{name}", "another region"),
    (GP, "/project/{rest}", "what one's project has; the services say who may what"),
    (GP, "/settings/{rest}", "one's language, time zone and password"),
    (G, "/identity", "one's own projects"),
    (G, "/identity/{projects|users}", "as far as Keystone shows them"),
    (G, "/identity/{projects|users}/{id}/detail", "one of them"),
    (GP, "/identity/application_credentials/{rest}", "credentials for programs"),
)
DASHBOARD_CALLS = (
    (G, "/api/{settings|timezones}", "what pages ask for"),
    (P, "/api/policy", "what one may"),
    (G, "/api/keystone/{version|default_domain|svc-catalog|user-session}", "oneself, and what there is"),
    (G, "/api/keystone/users/current", "oneself"),
    (GP, "/api/nova/{keypairs|servers|servergroups}", "servers, and what belongs to them"),
    (P, "/api/nova/snapshots", "an image of a server"),
    (GD, "/api/nova/{keypairs|servers|servergroups}/{id}", "one of them"),
    (P, "/api/nova/servers/{server}", "what is done to it"),
    (("GET", "PATCH"), "/api/nova/servers/{server}/metadata", "its metadata"),
    (G, "/api/nova/servers/{server}/{actions|security-groups|volumes}", "what it has"),
    (P, "/api/nova/servers/{server}/{console-info|console-output}", "its console"),
    (G, "/api/nova/{availzones|flavors|limits}", "what there is"),
    (G, "/api/nova/features/{feature}", "what this Nova can do"),
    (G, "/api/nova/flavors/{flavor}", "one flavor"),
    (G, "/api/nova/flavors/{flavor}/extra-specs", "what it asks for"),
    (("GET", "POST", "PUT"), "/api/glance/images", "images, and a new one"),
    (("GET", "PATCH", "DELETE"), "/api/glance/images/{image}", "one of them"),
    (("GET", "PATCH"), "/api/glance/images/{image}/properties", "its properties"),
    (P, "/api/glance/images/{image}/actions/{deactivate|reactivate}", "whether it can be had"),
    (G, "/api/glance/version", "which Glance it is"),
    (G, "/api/glance/metadefs/{namespaces|resourcetypes}", "which properties there are"),
    (GP, "/api/neutron/{networks|subnets|trunks}", "networks, and what belongs to them"),
    (("GET", "PATCH", "DELETE"), "/api/neutron/trunks/{trunk}", "one of them"),
    (G, "/api/neutron/{ports|extensions|qos_policies}", "what there is"),
    (G, "/api/neutron/qos_policies/{policy}", "one of them"),
    (G, "/api/network/{securitygroups|floatingips|floatingippools}", "the same"),
    (("POST", "PATCH"), "/api/network/floatingip", "an address, and whose it is"),
    (GP, "/api/cinder/volumes", "volumes, and a new one"),
    (G, "/api/cinder/volumes/{volume}", "one of them"),
    (("GET", "PATCH"), "/api/cinder/{volumes|volumesnapshots}/{id}/metadata", "its metadata"),
    (G, "/api/cinder/{volumetypes|volumesnapshots|extensions|tenantabsolutelimits|availzones}", "what there is"),
    (G, "/api/cinder/volumetypes/{type}", "one of them"),
)
DASHBOARD_SIGN_ON = (
    (P, "/auth/websso", "what comes back from single sign-on"),
    (G, "/auth/error", "when it has gone wrong"),
)
DASHBOARD_UPLOAD = ((("OPTIONS",), "/v2/images/{image}/file", "Horizon's page asks whether it may upload to Glance"),)
SOCKETS = ("/", "/websockify")
"""Paths of consoles at which their WebSockets are."""
PAGES_OF_CONSOLE = (
    *((READ, path, "the WebSocket") for path in SOCKETS),
    (READ, "/{file}", "the page that draws a screen"),
    (READ, "/{app|core|vendor|src|lib|thirdparty|images}/{rest}", "what it is made of: noVNC, spice-html5"),
)
OF_PORTAL = (
    (READ, "/", "the map"),
    (READ, "/{page}", "pages"),
    (P, "/{login|logout|project}", "to log in and out, and to look at another project"),
    (P, "/{launch|server}", "to start a server, and what is done with it"),
    (P, "/login/sso", "what comes back from single sign-on"),
    (READ, "/static/{name}", "what pages are made of"),
    (READ, "/docs/{rest}", "the documentation"),
    (READ, "/ical/{feed}", "calendars"),
    (("GET", "HEAD", "POST", "PATCH", "DELETE"), "/v1/{rest}", "the API"),
)
CLOSED = (
    ("/{metrics|readyz|healthz}", "for who watches the portal, from inside"),
    ("/v1/hosts/{host}/{looks|scrubs}", "for hosts, which are inside"),
    ("/v1/agents/{samples|enrol}", "for servers, which are inside"),
    (HOOK, "for GitHub, where the site takes webhooks"),
)
"""Paths of the portal that do not pass although the table above would let them."""

OPENINGS = tuple(
    GatewayOpening(service, methods, path, why)
    for service, rows in (
        ("identity", KEYSTONE), ("compute", NOVA), ("image", GLANCE), ("network", NEUTRON), ("block-storage", CINDER),
        (PORTAL, OF_PORTAL), (HORIZON, (*DASHBOARD_PAGES, *DASHBOARD_CALLS)), ("novnc", PAGES_OF_CONSOLE),
        ("spice", PAGES_OF_CONSOLE), ("serial", PAGES_OF_CONSOLE[:1]),
    )
    for methods, path, why in rows
)  # fmt: skip
"""All openings. There are none of Placement: only operators may ask it anything."""


def openings_of(name: str, gateway: SiteGateway) -> list[GatewayOpening]:
    """Return the openings of an endpoint."""
    rows: list[tuple[tuple[str, ...], str, str]] = []
    if gateway.single_sign_on and name == "identity":
        rows += SINGLE_SIGN_ON
    if gateway.single_sign_on and name == HORIZON:
        rows += DASHBOARD_SIGN_ON
    if gateway.dashboard is not None and name == "image":
        rows += DASHBOARD_UPLOAD
    for line in gateway.endpoints[name].more:
        methods, _, path = line.partition(" ")
        rows.append((tuple(methods.split(",")), path, "the site's own"))
    table = [opening for opening in OPENINGS if opening.service == name]
    return [*table, *(GatewayOpening(name, methods, path, why) for methods, path, why in rows)]


def closed(webhook: bool) -> Iterable[str]:
    """Yield patterns of paths of the portal, with their queries, that stay inside."""
    for path, _ in CLOSED:
        if not (webhook and path == HOOK):
            yield rf"{_path(path)}{QUERY}"
