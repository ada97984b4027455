"""Schema of ``gateway`` in ``site.yaml``: a small public machine in front of a cloud behind a VPN.

All of it ends up in configuration files of other programs, so every value is checked to be of a form that means
nothing else there.
"""

from __future__ import annotations

import binascii
import ipaddress
import re
from base64 import b64decode
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, StringConstraints, WithJsonSchema, model_validator

from gpuyard.site.strict import Strict

HTTP, HTTPS = 80, 443
LABEL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
NUMBER = re.compile(r"[0-9]{1,5}")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")
WAY = re.compile(r"[A-Za-z0-9_~.-]+|\{[a-z_]+\}")
SSH_KEY = re.compile(r"(ssh-ed25519|ecdsa-sha2-nistp(?:256|384|521)|ssh-rsa) ([A-Za-z0-9+/]{32,1400}={0,2})")
SIZE = re.compile(r"([1-9][0-9]{0,5}) (MiB|GiB|TiB)")
BYTES = {"MiB": 1 << 20, "GiB": 1 << 30, "TiB": 1 << 40}


def host_name(text: str) -> str:
    """Check a DNS name with a dot in it, in lower case. Raises ValueError."""
    labels = text.split(".")
    if (
        len(text) > 253
        or len(labels) < 2
        or not all(LABEL.fullmatch(label) for label in labels)
        or labels[-1].isdigit()
    ):
        raise ValueError(f"{text!r} is not the name of a machine; write one in lower case, as in 'gpus.example.org'")
    return text


def port_number(text: str) -> int:
    """Parse a port, 1 to 65535. Raises ValueError."""
    if not NUMBER.fullmatch(text) or not 1 <= int(text) <= 65535:
        raise ValueError(f"{text!r} is not a port; write a number from 1 to 65535")
    return int(text)


@dataclass(frozen=True, order=True)
class PublicName:
    """A name and port under which one service, and nothing else, is reached from outside, by TLS."""

    name: str
    port: int

    @property
    def authority(self) -> str:
        """The authority as clients write it into ``Host``."""
        return self.name if self.port == HTTPS else f"{self.name}:{self.port}"

    @property
    def url(self) -> str:
        return f"https://{self.authority}"


def public_name(text: object) -> PublicName:
    """Parse ``cloud.example.org:5000``; the port is 443 where none is given. Raises ValueError."""
    if isinstance(text, PublicName):
        return text
    if "://" in str(text):
        raise ValueError(f"{text!r} is a URL; write the name alone, as in 'gpus.example.org'")
    name, colon, port = str(text).partition(":")
    return PublicName(host_name(name), port_number(port) if colon else HTTPS)


@dataclass(frozen=True)
class Socket:
    """An address and a port that something listens at."""

    address: str
    """An IP address; for the gateway's own end it may be a name."""
    port: int

    def __str__(self) -> str:
        return f"[{self.address}]:{self.port}" if ":" in self.address else f"{self.address}:{self.port}"


def socket_of(text: object) -> Socket:
    """Parse ``10.20.0.250:5000`` or ``[fd00::1]:5000``. Raises ValueError."""
    if isinstance(text, Socket):
        return text
    address, _, port = str(text).rpartition(":")
    bare = address.removeprefix("[").removesuffix("]")
    if not address or "/" in address or (":" in bare) != address.startswith("["):
        raise ValueError(f"{text!r} is not an address and a port; write them as in '10.20.0.250:5000'")
    return Socket(ip_address(bare), port_number(port))


def endpoint(text: object) -> Socket:
    """Parse the same as `socket_of`, or a name with a port: ``gateway.example.org:51820``. Raises ValueError."""
    if isinstance(text, Socket):
        return text
    host, _, port = str(text).rpartition(":")
    if not host:
        raise ValueError(f"{text!r} has no port; write one, as in 'gateway.example.org:51820'")
    if host.startswith("[") or host.replace(".", "").isdigit():
        return socket_of(text)
    return Socket(host_name(host), port_number(port))


def ip_address(text: str) -> str:
    """Return an IP address in its usual form. Raises ValueError."""
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{text!r} is not an IP address; write one as in '10.20.0.250'") from None
    if address.version == 6 and address.scope_id is not None:
        raise ValueError(f"{text!r} is good on one machine alone; leave out what is behind the %")
    if address.is_unspecified or address.is_multicast:
        raise ValueError(f"{text!r} is the address of no machine")
    return str(address)


def network(text: str) -> str:
    """Return an address or a network in its usual form. Raises ValueError."""
    if "%" in text:  # Python takes any text behind it for the name of an interface
        raise ValueError(f"{text!r} is good on one machine alone; leave out what is behind the %")
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        if "host bits" in str(error):
            wider = ipaddress.ip_network(text, strict=False)
            raise ValueError(
                f"{text!r} is an address within a network; write '{wider}' if all of it is meant"
            ) from None
        raise ValueError(f"{text!r} is not a network; write an address or one as in '203.0.113.0/24'") from None


def wireguard_key(text: str) -> str:
    """Check a public key of WireGuard. Raises ValueError."""
    try:
        if len(b64decode(text, validate=True)) == 32 and len(text) == 44:
            return text
    except (binascii.Error, ValueError):
        pass
    raise ValueError("this is not a public key of WireGuard; write what 'wg pubkey' prints, 44 characters")


def ssh_key(text: str) -> str:
    """Return kind and key of an OpenSSH public key, without its comment. Raises ValueError."""
    match = SSH_KEY.fullmatch(" ".join(text.split(" ")[:2]))
    if match is None or len(text.splitlines()) != 1:
        raise ValueError("this is not a public key of OpenSSH; write the line of its .pub file")
    kind = match[1].encode()
    try:
        inside = b64decode(match[2], validate=True)
    except (binascii.Error, ValueError):
        inside = b""
    if inside[4 : 4 + len(kind)] != kind or int.from_bytes(inside[:4], "big") != len(kind):
        raise ValueError("this key of OpenSSH is damaged; write the whole line of its .pub file")
    return match[0]


def opening(text: str) -> str:
    """Check a request that is let through: ``GET,POST /v3/auth/{name}``. Raises ValueError."""
    methods, _, path = text.partition(" ")
    segments = path.removeprefix("/").split("/")
    is_valid = all(method in METHODS for method in methods.split(",")) and "{rest}" not in segments[:-1]
    if (
        not is_valid
        or not path.startswith("/")
        or not all(WAY.fullmatch(segment) and segment.strip(".") for segment in segments)
    ):
        raise ValueError(
            f"{text!r} is no request; write methods and a path, as in 'GET,POST /v3/auth/{{name}}' "
            f"(of {', '.join(METHODS)}; a name in braces stands for any one part of a path, "
            "{rest} at the end for whatever follows)"
        )
    return text


def size(text: object) -> int:
    """Return a size such as ``64 GiB`` in bytes. Raises ValueError."""
    match = SIZE.fullmatch(str(text))
    if match is None:
        raise ValueError(f"{text!r} is not a size; write a whole number and a unit, as in '64 GiB'")
    return int(match[1]) * BYTES[match[2]]


def _written(read: Callable[[object], Any], example: str) -> tuple[Any, ...]:
    return BeforeValidator(read), WithJsonSchema({"type": "string", "examples": [example]})


Public = Annotated[PublicName, *_written(public_name, "cloud.example.org:5000")]
Behind = Annotated[Socket, *_written(socket_of, "10.20.0.250:5000")]
Endpoint = Annotated[Socket, *_written(endpoint, "gateway.example.org:51820")]
Text = Annotated[str, StringConstraints(max_length=2000)]
Network = Annotated[Text, AfterValidator(network)]
Address = Annotated[Text, AfterValidator(ip_address)]
Opening = Annotated[Text, AfterValidator(opening)]
Bytes = Annotated[int, *_written(size, "64 GiB")]
Rate = Annotated[int, Field(ge=1, le=10_000, strict=True)]
ServiceName = Literal["identity", "compute", "image", "network", "placement", "block-storage"]
ConsoleName = Literal["novnc", "spice", "serial"]
DASHBOARD = "dashboard"
CONSOLES: tuple[ConsoleName, ...] = ("novnc", "spice", "serial")


class PublicEndpoint(Strict):
    """Something of the cloud that is found at the gateway."""

    public: Public = Field(description="Name, and port where it is not 443, that clients use.")
    behind: Behind = Field(
        description="Address and port in the cloud, as the cloud's end of the tunnel reaches them. HTTP."
    )
    allow: list[Network] | None = Field(None, description="Who may come here; all whom 'allow' of the gateway lets in.")
    more: list[Opening] = Field(
        default_factory=list,
        description="What is let through besides what clients need, as in 'GET,POST /v3/auth/{name}'.",
    )


class WireGuardEnd(Strict):
    """One of the two machines."""

    address: Address = Field(description="Its address within the tunnel.")
    key: Annotated[Text, AfterValidator(wireguard_key)] = Field(
        description="Its public key. The private one is made there, and stays there."
    )


class WireGuardTunnel(Strict):
    """WireGuard between the gateway and a machine of the cloud, which begins it: UDP must get out of the VPN."""

    endpoint: Endpoint = Field(
        description="Name or address of the gateway, and its UDP port, as in 'gateway.example.org:51820'."
    )
    gateway: WireGuardEnd
    cloud: WireGuardEnd
    mtu: Annotated[int, Field(ge=1280, le=8920, strict=True)] = Field(
        1380, description="80 less than that of the path between the two; Google's networks have 1460."
    )


class SshTunnel(Strict):
    """SSH from a machine of the cloud to the gateway, for a VPN that lets nothing in and little out."""

    endpoint: Endpoint = Field(
        description="Name or address of the gateway, and the port of its SSH server, as in 'gateway.example.org:22'."
    )
    host_key: Annotated[Text, AfterValidator(ssh_key)] = Field(
        description="Public key of that SSH server: a line of its /etc/ssh/ssh_host_*_key.pub."
    )
    key: Annotated[Text, AfterValidator(ssh_key)] = Field(
        description="Public key of the cloud's end. The private one is made there, and stays there."
    )
    first_port: Annotated[int, Field(ge=1024, le=65000, strict=True)] = Field(
        15000, description="Of the ports on the gateway's loopback at which the tunnel comes out."
    )


class GatewayLimits(Strict):
    """Of one client: an IPv4 address, a /64 of IPv6. A whole lab course may be behind one."""

    requests: Rate = Field(default=100, description="A second, and four times that at once.")
    without_token: Rate = Field(
        default=5,
        description="Of these without token, session or signature, logins among them; ten times that at once.",
    )
    connections: Rate = Field(default=250, description="Requests that are being answered.")
    streams: Rate = Field(
        default=150, description="Of these, pages of the portal that are open and hear what happens, and open consoles."
    )
    body: Bytes = Field(default=1 << 20, description="Largest body, but for images and webhooks.")
    image: Bytes = Field(default=64 << 30, description="Largest image that can be uploaded.")


class SiteGateway(Strict):
    """What 'gpuyard gateway render' makes."""

    portal: PublicEndpoint | None = None
    dashboard: PublicEndpoint | None = Field(None, description="Horizon.")
    services: dict[ServiceName, PublicEndpoint] = Field(
        default_factory=dict, description="OpenStack's services, by their type; those that are not named stay inside."
    )
    consoles: dict[ConsoleName, PublicEndpoint] = Field(
        default_factory=dict, description="Nova's proxies of the consoles of servers, by the kind of console."
    )
    wireguard: WireGuardTunnel | None = None
    ssh: SshTunnel | None = Field(None, description="In place of 'wireguard'. Without both the gateway finds its way.")
    allow: list[Network] = Field(default_factory=list, description="Who may come; everybody when empty.")
    operators: list[Network] = Field(
        default_factory=list, description="From where all of OpenStack's APIs can be used, not only what clients need."
    )
    webhooks_from: list[Network] = Field(
        default_factory=list,
        description="From where GitHub's webhooks come ('hooks' of https://api.github.com/meta), where enrolments take "
        "any; from everywhere when empty, since they are signed.",
    )
    single_sign_on: bool = Field(False, description="Browsers log in at Keystone's pages of single sign-on.")
    limits: GatewayLimits = GatewayLimits()

    @model_validator(mode="after")
    def _fits(self) -> SiteGateway:
        if not self.endpoints:
            raise ValueError("it leads nowhere; name 'portal', 'dashboard', 'services' or 'consoles'")
        if self.wireguard is not None and self.ssh is not None:
            raise ValueError("'wireguard' and 'ssh' are two tunnels; keep one")
        taken: dict[PublicName, str] = {}
        for name, endpoint in self.endpoints.items():
            if endpoint.public.port == HTTP:
                raise ValueError(f"{name}: port {HTTP} leads to https; take another one")
            if (first := taken.setdefault(endpoint.public, name)) != name:
                raise ValueError(
                    f"{first} and {name} are both at {endpoint.public.authority}; give each its own name or port"
                )
            if self.ssh is None and ipaddress.ip_address(endpoint.behind.address).is_loopback:
                raise ValueError(
                    f"{name}: {endpoint.behind} would be the gateway itself; name an address that it reaches, or take "
                    "'ssh', for which it is a machine of the cloud"
                )
            if self.wireguard is not None and endpoint.behind.address == self.wireguard.gateway.address:
                raise ValueError(
                    f"{name}: {endpoint.behind} is the gateway's own end of the tunnel; name one in the cloud"
                )
        if self.wireguard is not None and self.wireguard.gateway.address == self.wireguard.cloud.address:
            raise ValueError("wireguard: both ends have the same address; give each its own")
        if self.wireguard is not None and self.wireguard.gateway.key == self.wireguard.cloud.key:
            raise ValueError("wireguard: both ends have the same key; make one on each of the two")
        return self

    @property
    def endpoints(self) -> dict[str, PublicEndpoint]:
        """All endpoints by name, the portal first."""
        endpoints: dict[str, PublicEndpoint] = {"portal": self.portal} if self.portal else {}
        if self.dashboard is not None:
            endpoints[DASHBOARD] = self.dashboard
        return endpoints | {str(name): endpoint for name, endpoint in (*self.services.items(), *self.consoles.items())}
