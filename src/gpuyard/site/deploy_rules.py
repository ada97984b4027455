"""Schema of ``deploy`` in ``site.yaml``: the machines that OpenStack is deployed to, and settings for Kolla.

Secrets are refused: a site file is readable by everybody, and Kolla has passwords.yml for them.
"""

from __future__ import annotations

import ipaddress
import re
from typing import Annotated, Literal

from pydantic import Field, StringConstraints, field_validator, model_validator

from gpuyard.site.strict import Strict

Role = Literal["control", "network", "compute", "monitoring", "storage"]
ROLES: tuple[Role, ...] = ("control", "network", "compute", "monitoring", "storage")
"""Kolla's groups of hosts that an operator fills, in the order of its inventory."""
HERE = "localhost"
"""Address of a host that is the machine on which gpuyard and Ansible run: no ssh."""

Interface = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,14}$")]
Address = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.:-]*$", max_length=253)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)]
Variable = bool | int | float | str | list[str] | None
TRUE = ("yes", "true", "on", "1", "y", "t")
BALANCERS = ("enable_haproxy", "enable_proxysql")
"""Kolla's variables of services that listen at the address of the APIs, where without a vip each service listens
itself."""
SECRET = re.compile(r"(^|_)(password|secret|passphrase|private_key|token)s?$")
OWN = {
    "kolla_base_distro": "deploy.base",
    "openstack_release": "release",
    "kolla_internal_vip_address": "deploy.vip",
    "network_interface": "deploy.interface, or that of a host",
    "neutron_external_interface": "deploy.external_interface, or that of a host",
}
"""Kolla's variables that follow from a key of the site -> the key."""


def truth_of(value: object) -> bool | None:
    """Return a value as Ansible's filter ``bool`` reads it. None when only Ansible can tell, because it is Jinja2."""
    text = str(value).strip().lower()
    if "{{" in text or "{%" in text:
        return None
    return text in TRUE


class DeployHost(Strict):
    """A machine that gets services of OpenStack."""

    address: Address | None = Field(
        None,
        description="What ssh and Ansible connect to; the host's name when left out. 'localhost': the machine that "
        "gpuyard runs on, without ssh.",
    )
    roles: list[Role] = Field(
        default_factory=lambda: list(ROLES),
        min_length=1,
        description="Kolla's groups that it is in; all of them when left out, as for a cloud of one machine.",
    )
    interface: Interface | None = Field(None, description="Where it differs from that of the others.")
    external_interface: Interface | None = Field(None, description="Where it differs from that of the others.")
    iommu_pt: bool | None = Field(None, description="As 'gpuyard host apply --iommu-pt', where GPUs are given away.")
    unsafe_interrupts: bool | None = Field(None, description="As 'gpuyard host apply --unsafe-interrupts'.")
    replace_legacy: bool | None = Field(None, description="As 'gpuyard host apply --replace-legacy'.")

    def target(self, name: str) -> str:
        """What is connected to."""
        return self.address or name

    def login(self, name: str, user: str | None) -> str:
        """What ssh is told to connect to."""
        return f"{user}@{self.target(name)}" if user else self.target(name)

    @property
    def wishes(self) -> tuple[str, ...]:
        """Options of 'gpuyard host plan' and 'apply' for it."""
        options = {
            "iommu-pt": self.iommu_pt,
            "unsafe-interrupts": self.unsafe_interrupts,
            "replace-legacy": self.replace_legacy,
        }
        return tuple(f"--{name}" if on else f"--no-{name}" for name, on in options.items() if on is not None)


class SiteDeploy(Strict):
    """From bare machines to a cloud: 'gpuyard deploy'."""

    hosts: dict[Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)], DeployHost]
    base: Literal["debian", "rocky", "ubuntu"] = Field("ubuntu", description="Kolla's kolla_base_distro.")
    interface: Interface = Field(description="Kolla's network_interface: APIs, databases, tunnels.")
    external_interface: Interface = Field(
        description="Kolla's neutron_external_interface: floating addresses. It must have no address of its own."
    )
    vip: str | None = Field(
        None,
        description="Kolla's kolla_internal_vip_address: a free address on 'interface'. Left out, there is one control "
        "host, its address is an IP address, and there is no load balancer.",
    )
    user: Annotated[str, StringConstraints(pattern=r"^[a-z_][a-z0-9_-]*$", max_length=32)] | None = Field(
        None, description="Whom ssh and Ansible log in as; as ~/.ssh/config says when left out."
    )
    portal: bool = Field(
        False, description="The portal is a service of the machine on which 'gpuyard deploy' is typed, as root."
    )
    variables: dict[VariableName, Variable] = Field(
        default_factory=dict, description="Further variables of Kolla, as in 'enable_cinder: true'. No secrets."
    )

    @field_validator("vip")
    @classmethod
    def _an_address(cls, vip: str | None) -> str | None:
        if vip is not None:
            try:
                ipaddress.ip_address(vip)
            except ValueError:
                raise ValueError(f"{vip!r} is no IP address; write a free one of the network of 'interface'") from None
        return vip

    @field_validator("variables")
    @classmethod
    def _nobody_elses(cls, variables: dict[str, Variable]) -> dict[str, Variable]:
        for name in variables:
            if name in OWN:
                raise ValueError(f"{name} follows from {OWN[name]}; write it there")
            if SECRET.search(name):
                raise ValueError(f"{name} is a secret, and a site file is for everybody; write it in passwords.yml")
        return variables

    @model_validator(mode="after")
    def _hosts_fit(self) -> SiteDeploy:
        if not self.hosts:
            raise ValueError("hosts is empty; name the machines")
        control = self.with_role("control")
        if not control:
            raise ValueError("no host has the role control; give it to one, or to three")
        for role in ("network", "compute"):
            if not self.with_role(role):
                raise ValueError(f"no host has the role {role}; give it to at least one")
        local_hosts = [name for name, host in self.hosts.items() if host.address == HERE]
        if len(local_hosts) > 1:
            raise ValueError(f"{' and '.join(local_hosts)} cannot both be localhost")
        places: dict[str, str] = {}
        for name, host in self.hosts.items():
            if (first := places.setdefault(host.target(name), name)) != name:
                raise ValueError(f"{first} and {name} are both at {host.target(name)}; give each its own address")
        self._interfaces_differ()
        if self.vip is None:
            self._alone(control)
        elif self.vip in places and (self.balanced or self._set("enable_proxysql")):
            raise ValueError(f"vip {self.vip} is the address of {places[self.vip]}; write one that no machine has")
        return self

    def _interfaces_differ(self) -> None:
        """Kolla puts the second one into a bridge, and what was reached by it is reached no more."""
        for name, host in self.hosts.items():
            interface = host.interface or self.interface
            if interface == (host.external_interface or self.external_interface):
                raise ValueError(
                    f"interface and external_interface of {name} are both {interface}, and that host could not be "
                    "reached any more; external_interface is one without an address"
                )

    def _alone(self, control: list[str]) -> None:
        for name in BALANCERS:
            if self._set(name):
                raise ValueError(
                    f"vip is missing: with {name} a load balancer would listen at the control host's own address and "
                    f"port, where the services listen; add 'vip', a free address on {self.interface}, or leave {name} "
                    "out of 'variables'"
                )
        if len(control) > 1:
            raise ValueError(f"vip is missing: {' and '.join(control)} share the role control behind one address")
        address = self.hosts[control[0]].target(control[0])
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ValueError(
                f"vip is missing: without one the APIs are at the control host's own address, and that of "
                f"{control[0]}, {address!r}, is no IP address; add 'vip', a free address on {self.interface}"
            ) from None

    def with_role(self, role: str) -> list[str]:
        """Hosts, in their order."""
        return [name for name, host in self.hosts.items() if role in host.roles]

    @property
    def balanced(self) -> bool:
        """Whether HAProxy stands between clients and services."""
        return self.vip is not None and (self._set("enable_haproxy") or "enable_haproxy" not in self.variables)

    def _set(self, name: str) -> bool:
        """Return whether `variables` may turn something on."""
        return truth_of(self.variables.get(name, False)) is not False

    @property
    def api_address(self) -> str:
        """Where the APIs are."""
        control = self.with_role("control")[0]
        return self.vip or self.hosts[control].target(control)
