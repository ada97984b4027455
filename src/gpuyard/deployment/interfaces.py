"""Checks network interfaces with which a deployment would cut a host off, or services would listen in the wrong place.
Pure.

Kolla moves neutron_external_interface into an Open vSwitch bridge on hosts of its group network, and on hypervisors
where they reach external networks themselves (role openvswitch, tasks/post-config.yml). Whatever was reached by an
address of that interface, or of the bond that it belongs to, is no longer reached; no check of Kolla's asks for it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator

from gpuyard.deployment.state import HostState, KollaState
from gpuyard.host.network import HostInterface
from gpuyard.site.deploy_rules import SiteDeploy

SWITCH = "ovs-system"
"""Master of each port of Open vSwitch: Kolla has moved the interface already."""


def interface_problem(deploy: SiteDeploy, name: str, host: HostState, kolla: KollaState | None) -> str:
    """Return why a host cannot be deployed to with these interfaces, and what to do; empty when it can. The reason
    names the host, so that it is the same in each step that it blocks."""
    if host.interfaces_problem:
        return f"the network interfaces of {name} are not known: {host.interfaces_problem}"
    return next(_problems(deploy, name, host, kolla), "")


def _problems(deploy: SiteDeploy, name: str, host: HostState, kolla: KollaState | None) -> Iterator[str]:
    own = deploy.hosts[name]
    interfaces = {interface.name: interface for interface in host.interfaces}
    internal, external = own.interface or deploy.interface, own.external_interface or deploy.external_interface
    # Before Kolla's folder was looked at every hypervisor might be one with a bridge.
    bridged = "network" in own.roles or ("compute" in own.roles and (kolla is None or kolla.bridges_hypervisors))
    for key, interface in (("interface", internal), ("external_interface", external if bridged else "")):
        if interface and interface not in interfaces:
            yield (
                f"{name} has no network interface {interface}; it has {', '.join(interfaces) or 'none'}: write the "
                f"right one as deploy.hosts.{name}.{key}"
            )
    if internal in interfaces:
        yield from _wrong_address(deploy, name, interfaces[internal])
    if bridged and external in interfaces:
        yield from _cut_off(name, interfaces[external])


def _wrong_address(deploy: SiteDeploy, name: str, interface: HostInterface) -> Iterator[str]:
    """Kolla binds services to the first address of 'interface'."""
    if not interface.addresses:
        yield (
            f"interface {interface.name} has no address, and OpenStack's services would listen at it: write the one "
            f"that has as deploy.hosts.{name}.interface"
        )
        return
    if deploy.vip is not None or name != deploy.with_role("control")[0]:
        return
    address = ipaddress.ip_address(deploy.api_address)
    same_family = [text for text in interface.addresses if ipaddress.ip_address(text).version == address.version]
    if not same_family or ipaddress.ip_address(same_family[0]) != address:
        yield (
            f"the address {address} of {name} is not the first one of interface {interface.name}, which has "
            f"{', '.join(interface.addresses)}: clients would look for the APIs at the one, and services listen at the "
            f"other; write the address as deploy.hosts.{name}.address, or the interface that has it, or a 'vip'"
        )


def _cut_off(name: str, interface: HostInterface) -> Iterator[str]:
    if interface.master == SWITCH:
        return
    why = ""
    if interface.master:
        why = f"is a part of {interface.master}"
    elif interface.addresses:
        why = f"has the address {', '.join(interface.addresses)}"
    elif interface.default_route:
        why = "has the default route"
    if why:
        yield (
            f"external_interface {interface.name} {why}: Kolla would move it into a bridge, and cut off whoever "
            f"reaches the host by it; write one without an address as deploy.hosts.{name}.external_interface"
        )
