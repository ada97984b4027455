"""Requests to the cloud in a person's own name: what they may start a server with, and what they may do with it.

A person's unscoped token is exchanged for one of the project for each `PersonalCloud`, which asks Nova, Glance and
Neutron with it: their policies, quotas and audit decide, as if the person had typed ``openstack``. The portal's own
credentials only find the addresses of the services. The token goes into no log.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote

from gpuyard.model.errors import BlockedError
from gpuyard.model.world import IMAGE_DRIVER_KEY
from gpuyard.openstack.errors import CloudError

if TYPE_CHECKING:
    from gpuyard.openstack.api import CloudApi

UNAUTHORIZED, FORBIDDEN, NOT_FOUND, CONFLICT = 401, 403, 404, 409
SOON = 10.0
"""Seconds to wait for an answer that somebody waits for in front of a page."""
START_TAG = "gpuyard-start-"
"""Beginning of a server's tag with the id of the form that started it: the same form starts no second one."""
SSH_GROUP = "gpuyard-ssh"
"""Name of the security group that lets ssh in to the servers that are in it."""
CONSOLE_LINES = 60
CONSOLES = (("vnc", "novnc"), ("spice", "spice-html5"), ("serial", "serial"))
"""Consoles for browsers, the one that shows a screen first: Nova's protocol and type."""
SWITCHED_OFF = (400, 501)
"""Nova's answers for a type of console that a cloud does not have."""
OF_A_HOST = 3.0
"""Seconds to wait for what only the server's host can tell: a dead one lets Nova wait for a minute."""
EXTERNAL = "router:external"
NETWORK_FIELDS = ["id", "name", "project_id", "shared", "subnets", EXTERNAL]
GIB = 1 << 30
BRANCH = re.compile(r"[0-9]{1,4}")
USER = re.compile(r"[a-z_][a-z0-9_-]{0,31}")
MOST = 500
"""The most images, or servers, that are listed."""
SSH = 22
ANY_IPV4 = "0.0.0.0/0"


class TokenExpiredError(BlockedError):
    """Raised when Keystone does not accept a person's token any more."""


class ServerAction(StrEnum):
    """The actions on a server that people take."""

    START = "start"
    STOP = "stop"
    SHELVE = "shelve"
    REBOOT = "reboot"
    HARD_REBOOT = "hard-reboot"
    UNSHELVE = "unshelve"
    REBUILD = "rebuild"
    DELETE = "delete"


BODIES: Mapping[ServerAction, Mapping[str, Any]] = {
    ServerAction.START: {"os-start": None},
    ServerAction.STOP: {"os-stop": None},
    ServerAction.REBOOT: {"reboot": {"type": "SOFT"}},
    ServerAction.HARD_REBOOT: {"reboot": {"type": "HARD"}},
    ServerAction.SHELVE: {"shelve": None},
    ServerAction.UNSHELVE: {"unshelve": None},
}
"""Bodies of Nova's ``POST /servers/{id}/action``."""


@dataclass(frozen=True)
class PersonalImage:
    """An image that the person may start a server with."""

    id: str
    name: str
    driver: str
    """The branch of NVIDIA's driver in an image that gpuyard has built; empty for one without, and for others."""
    disk: int
    """GiB that the root disk must have: what its owner says, and at least its size."""
    ram: int
    """MiB that the server must have."""
    user: str
    """The user for ssh; empty: unknown."""


@dataclass(frozen=True)
class PersonalNetwork:
    id: str
    name: str
    external: bool
    """True for a network that floating IPs come from."""
    attachable: bool
    """True for a network with a subnet that Nova puts servers of the project into: none that is external and not shared
    (`_check_external_network_attach` in nova/network/neutron.py)."""


@dataclass(frozen=True)
class PersonalFlavor:
    id: str
    name: str
    vcpus: int
    ram: int
    """MiB."""
    disk: int
    """GiB."""


@dataclass(frozen=True)
class ServerOrder:
    """A server to start."""

    name: str
    flavor: str
    """Its id."""
    image: str
    """Its id."""
    network: str
    """Its id; empty: no network."""
    key: str
    """Name of a key pair; empty: none."""
    form: str
    """Id of the form that orders it."""


@dataclass(frozen=True)
class ServerAddress:
    ip: str
    network: str
    floating: bool


@dataclass(frozen=True)
class PersonalServer:
    """A server, as its owner sees it."""

    id: str
    name: str
    status: str
    task: str
    created: datetime
    flavor: str
    image: str
    """Its id; empty for one whose root disk is a volume."""
    key: str
    user_id: str
    addresses: Sequence[ServerAddress]
    fault: str
    """Nova's message, for a server in ERROR."""
    security_groups: Sequence[str] = field(default_factory=tuple)
    """Their names, each once."""
    launched: bool = True
    """False for one that never ran, which Nova neither reboots nor rebuilds (`must_have_launched` in
    nova/compute/api.py)."""


class PersonalCloud(Protocol):
    """The cloud as one person sees it in one project. Every method raises CloudError, and TokenExpiredError."""

    def images(self) -> Sequence[PersonalImage]:
        """Return the images that the project may start a server with, by name: its own, those that are shared with
        it, and public ones."""
        ...

    def image_user(self, image_id: str) -> str:
        """Return the user for ssh in servers of an image; empty when it is unknown."""
        ...

    def networks(self) -> Sequence[PersonalNetwork]:
        """Return the networks of the project, those that are shared with all, and external ones, by name."""
        ...

    def key_names(self) -> Sequence[str]:
        """Return the names of the person's key pairs."""
        ...

    def flavors(self) -> Sequence[PersonalFlavor]:
        """Return the flavors that the project may use."""
        ...

    def add_key(self, name: str, public_key: str) -> None:
        """Add a public key in the format of OpenSSH to the person's."""
        ...

    def delete_key(self, name: str) -> None:
        """Delete one of the person's key pairs; one that is gone is fine."""
        ...

    def servers(self, user_id: str) -> Sequence[PersonalServer]:
        """Return the servers of a user in the project, the newest first."""
        ...

    def started(self, form: str) -> str:
        """Return the id of the server that a form has started; empty when it has started none."""
        ...

    def start(self, order: ServerOrder) -> str:
        """Start a server; return its id."""
        ...

    def server(self, server_id: str) -> PersonalServer | None:
        """Return a server of the project; None when there is none (any more)."""
        ...

    def console_log(self, server_id: str) -> str:
        """Return the end of what it has written to its console; empty when that is not known."""
        ...

    def console(self, server_id: str) -> str:
        """Return the address of a console for a browser, which is good for some minutes."""
        ...

    def act(self, server_id: str, action: ServerAction) -> None:
        """Have Nova begin an action; a server that is to be deleted may be gone already."""
        ...

    def add_floating_ip(self, server_id: str) -> None:
        """Take a floating IP of an external network that a router leads to, and give it to the server."""
        ...

    def admits_ssh(self, server_id: str) -> bool:
        """Return whether a rule of the server's security groups lets ssh in from somewhere."""
        ...

    def admit_ssh(self, server_id: str) -> None:
        """Let ssh in from everywhere: put the server's ports into a security group for that, made when missing."""
        ...


class PersonalClouds(Protocol):
    def open(self, token: str, project_id: str) -> PersonalCloud:
        """Return the cloud as the owner of an unscoped token sees it in a project. Raises CloudError, and
        TokenExpiredError."""
        ...


class KeystonePersonalClouds:
    """The clouds of people whose tokens the Keystone of one cloud has issued. Safe to use from several threads."""

    def __init__(self, api: CloudApi) -> None:
        self._api = api

    def open(self, token: str, project_id: str) -> OpenStackPersonalCloud:
        identity = {"methods": ["token"], "token": {"id": token}}
        auth = {"identity": identity, "scope": {"project": {"id": project_id}}}
        try:
            scoped, facts = self._api.issue_token(auth, SOON)
        except CloudError as error:
            # 404: unknown, expired or revoked, or its user is disabled. 401: the project, or a role in it, is gone.
            if error.status == NOT_FOUND:
                raise _ended() from None
            if error.status == UNAUTHORIZED:
                text = "Keystone gives you no token for this project any more; ask its administrator for a role."
                raise CloudError(str(error), FORBIDDEN, text) from None
            raise
        admin = any(role["name"].lower() == "admin" for role in facts.get("roles", ()))
        return OpenStackPersonalCloud(self._api, scoped, project_id, admin)


class OpenStackPersonalCloud:
    """The services of one cloud, asked with a person's token of a project. Kept for one request of theirs.

    To admins the services show what is in all projects; here they see what is in this one, as everybody does.
    """

    def __init__(self, api: CloudApi, token: str, project_id: str, admin: bool) -> None:
        self._api, self._token, self._project, self._admin = api, token, project_id, admin

    def images(self) -> list[PersonalImage]:
        searches: list[dict[str, str]] = [{"owner": self._project}, {"visibility": "public"}] if self._admin else [{}]
        rows = {
            row["id"]: row
            for search in searches
            for row in self._get("image", "/images", limit=MOST, status="active", sort="name:asc", **search)["images"]
        }
        return [_image(row) for row in rows.values()]

    def image_user(self, image_id: str) -> str:
        if not image_id:
            return ""
        try:
            return _image(self._get("image", f"/images/{image_id}")).user
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise
            return ""  # deleted since the server was started

    def networks(self) -> list[PersonalNetwork]:
        rows = self._get("network", "/networks", fields=NETWORK_FIELDS)["networks"]
        networks = [
            PersonalNetwork(
                row["id"],
                row["name"],
                external=bool(row.get(EXTERNAL)),
                attachable=bool(row["subnets"]) and bool(row["shared"] or not row.get(EXTERNAL)),
            )
            for row in rows
            if row.get("project_id") == self._project or row["shared"] or row.get(EXTERNAL)
        ]
        return sorted(networks, key=lambda network: (network.name, network.id))

    def key_names(self) -> list[str]:
        return sorted(row["keypair"]["name"] for row in self._get("compute", "/os-keypairs")["keypairs"])

    def flavors(self) -> list[PersonalFlavor]:
        rows = self._get("compute", "/flavors/detail", limit=1000)["flavors"]
        return [PersonalFlavor(row["id"], row["name"], row["vcpus"], row["ram"], row["disk"]) for row in rows]

    def add_key(self, name: str, public_key: str) -> None:
        self._ask("POST", "compute", "/os-keypairs", {"keypair": {"name": name, "public_key": public_key}})

    def delete_key(self, name: str) -> None:
        try:
            self._ask("DELETE", "compute", f"/os-keypairs/{quote(name, safe='')}")
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise

    def servers(self, user_id: str) -> list[PersonalServer]:
        rows = self._get("compute", "/servers/detail", limit=MOST, sort_key="created_at", sort_dir="desc")["servers"]
        return [_server(row) for row in rows if (row["tenant_id"], row["user_id"]) == (self._project, user_id)]

    def started(self, form: str) -> str:
        rows = self._get("compute", "/servers", tags=f"{START_TAG}{form}")["servers"]
        return str(rows[0]["id"]) if rows else ""

    def start(self, order: ServerOrder) -> str:
        server: dict[str, Any] = {
            "name": order.name,
            "flavorRef": order.flavor,
            "imageRef": order.image,
            "networks": [{"uuid": order.network}] if order.network else "none",
            "tags": [f"{START_TAG}{order.form}"],
        }
        if order.key:
            server["key_name"] = order.key
        return str(self._ask("POST", "compute", "/servers", {"server": server})["server"]["id"])

    def server(self, server_id: str) -> PersonalServer | None:
        try:
            row = self._get("compute", f"/servers/{server_id}")["server"]
        except CloudError as error:
            if error.status == NOT_FOUND:
                return None
            raise
        return _server(row) if row["tenant_id"] == self._project else None

    def console_log(self, server_id: str) -> str:
        body = {"os-getConsoleOutput": {"length": CONSOLE_LINES}}
        try:
            answer = self._ask("POST", "compute", f"/servers/{server_id}/action", body, timeout=OF_A_HOST)
        except CloudError:
            return ""  # it has not begun, its hypervisor keeps none, or its host does not answer
        return str(answer.get("output") or "")

    def console(self, server_id: str) -> str:
        for protocol, kind in CONSOLES:
            body = {"remote_console": {"protocol": protocol, "type": kind}}
            try:
                answer = self._ask("POST", "compute", f"/servers/{server_id}/remote-consoles", body)
            except CloudError as error:
                if error.status not in SWITCHED_OFF:
                    raise
            else:
                return str(answer["remote_console"]["url"])
        text = "This cloud offers no console for browsers."
        raise CloudError(f"server {server_id}: {text}", CONFLICT, text)

    def act(self, server_id: str, action: ServerAction) -> None:
        if action is ServerAction.DELETE:
            try:
                self._ask("DELETE", "compute", f"/servers/{server_id}")
            except CloudError as error:
                if error.status != NOT_FOUND:
                    raise
            return
        body = BODIES.get(action)
        if body is None:
            server = self.server(server_id)
            body = {"rebuild": {"imageRef": server.image if server else ""}}
        self._ask("POST", "compute", f"/servers/{server_id}/action", body)

    def add_floating_ip(self, server_id: str) -> None:
        ports = self._ports(server_id)
        if not ports:
            raise CloudError("the server has no port in a network yet", CONFLICT, "The server has no network port yet.")
        first: CloudError | None = None
        for network in self.networks():
            if network.external:
                body = {"floatingip": {"floating_network_id": network.id, "port_id": ports[0]["id"]}}
                try:
                    self._ask("POST", "network", "/floatingips", body)
                except CloudError as error:
                    if error.status != NOT_FOUND:
                        raise
                    first = first or error  # no router leads from the port to this network
                else:
                    return
        text = "Your project sees no network for floating IPs."
        raise first or CloudError("there is no external network", CONFLICT, text)

    def admits_ssh(self, server_id: str) -> bool:
        ports = self._ports(server_id)
        if not ports or not all(port.get("port_security_enabled", True) for port in ports):
            return True  # nothing is filtered
        rules = (rule for group in _groups(ports) for rule in self._rules(group))
        return any(_admits_ssh(rule) for rule in rules)

    def admit_ssh(self, server_id: str) -> None:
        group = self._ssh_group()
        if not any(map(_admits_ssh, self._rules(group))):
            self._add_ssh_rule(group)
        for port in self._ports(server_id):
            groups = list(dict.fromkeys([*port["security_groups"], group]))
            self._ask("PUT", "network", f"/ports/{port['id']}", {"port": {"security_groups": groups}})

    def _add_ssh_rule(self, group: str) -> None:
        rule = {
            "security_group_id": group, "direction": "ingress", "ethertype": "IPv4", "protocol": "tcp",
            "port_range_min": SSH, "port_range_max": SSH, "remote_ip_prefix": ANY_IPV4,
        }  # fmt: skip
        self._ask("POST", "network", "/security-group-rules", {"security_group_rule": rule})

    def _ssh_group(self) -> str:
        """Return the id of the project's group, made when it is missing."""
        groups = self._get("network", "/security-groups", name=SSH_GROUP, project_id=self._project)["security_groups"]
        if groups:
            return str(groups[0]["id"])
        body = {"name": SSH_GROUP, "description": "Lets ssh in from everywhere; made by gpuyard's pages."}
        return str(self._ask("POST", "network", "/security-groups", {"security_group": body})["security_group"]["id"])

    def _ports(self, server_id: str) -> list[dict[str, Any]]:
        fields = ["id", "security_groups", "port_security_enabled"]
        return list(self._get("network", "/ports", device_id=server_id, fields=fields)["ports"])

    def _rules(self, group: str) -> list[dict[str, Any]]:
        return list(self._get("network", "/security-group-rules", security_group_id=group)["security_group_rules"])

    def _get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        return self._ask("GET", service, path, query=query)

    def _ask(
        self,
        method: str,
        service: str,
        path: str,
        body: Mapping[str, Any] | None = None,
        query: Mapping[str, object] | None = None,
        timeout: float = SOON,
    ) -> dict[str, Any]:
        headers = {"X-Auth-Token": self._token}
        try:
            return self._api.request(method, service, path, body, query, headers, personal=True, timeout=timeout)
        except CloudError as error:
            if error.status == UNAUTHORIZED:
                raise _ended() from None
            raise


def _ended() -> TokenExpiredError:
    return TokenExpiredError("Your login at Keystone has ended; log in again.")


DEFAULT_USERS = {
    "almalinux": "almalinux",
    "debian": "debian",
    "fedora": "fedora",
    "rhel": "cloud-user",
    "rocky": "rocky",
    "ubuntu": "ubuntu",
}
"""Distribution -> the user that cloud-init makes in it: as `usernames` in config/cloud.cfg.tmpl of cloud-init says, and
else its own name. CentOS is left out: its older images have ``centos``, and newer ones ``cloud-user``."""


def _image(row: Mapping[str, Any]) -> PersonalImage:
    distribution = str(row.get("os_distro") or "").lower()
    return PersonalImage(
        id=str(row["id"]),
        name=str(row.get("name") or row["id"]),
        driver=_matching(BRANCH, row.get(IMAGE_DRIVER_KEY)),
        disk=max(int(row.get("min_disk") or 0), -(-int(row.get("size") or 0) // GIB)),
        ram=int(row.get("min_ram") or 0),
        user=_matching(USER, row.get("os_admin_user")) or DEFAULT_USERS.get(distribution, ""),
    )


def _matching(pattern: re.Pattern[str], value: object) -> str:
    """Return a property of an image, which whoever owns the image can set to anything; empty when it does not match."""
    return str(value) if value and pattern.fullmatch(str(value)) else ""


def _server(row: Mapping[str, Any]) -> PersonalServer:
    addresses = [
        ServerAddress(entry["addr"], network, entry.get("OS-EXT-IPS:type") == "floating")
        for network, entries in row.get("addresses", {}).items()
        for entry in entries
    ]
    return PersonalServer(
        id=row["id"],
        name=row.get("name") or row["id"],  # a cell that does not answer tells no name
        status=row["status"],
        task=row.get("OS-EXT-STS:task_state") or "",
        created=datetime.fromisoformat(row["created"]),
        flavor=(row.get("flavor") or {}).get("original_name", ""),
        image=(row.get("image") or {}).get("id", ""),
        key=row.get("key_name") or "",
        user_id=row["user_id"],
        addresses=addresses,
        fault=(row.get("fault") or {}).get("message", ""),
        launched=bool(row.get("OS-SRV-USG:launched_at")),
        security_groups=tuple(dict.fromkeys(group["name"] for group in row.get("security_groups", ()))),
    )


def _groups(ports: Iterable[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(group for port in ports for group in port["security_groups"]))


def _admits_ssh(rule: Mapping[str, Any]) -> bool:
    """Return whether a rule lets ssh in from addresses of IPv4, and not only from servers of a group."""
    if rule["direction"] != "ingress" or rule.get("remote_group_id") or rule["ethertype"] != "IPv4":
        return False
    if rule["protocol"] not in (None, "any", "tcp", "6"):
        return False
    first, last = rule.get("port_range_min"), rule.get("port_range_max")
    return first is None or first <= SSH <= (last or first)
