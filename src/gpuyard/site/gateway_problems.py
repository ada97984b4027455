"""Finds endpoints of a gateway that lead to services which Kolla does not deploy."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from gpuyard.site.deploy_rules import truth_of
from gpuyard.site.gateway_rules import CONSOLES, DASHBOARD, SiteGateway
from gpuyard.site.problems import Place, Problem
from gpuyard.site.schema import Site


@dataclass(frozen=True)
class KollaSwitch:
    """A variable of Kolla that decides whether it deploys the service behind an endpoint.

    Defaults are those of kolla-ansible 20 to 22: its group_vars/all.yml, or from 21 on files of the folder all.
    """

    what: str
    variable: str
    needed: str
    """The value it needs; 'yes' stands for every value that Ansible takes for true."""
    default: str

    def deploys(self, value: object) -> bool:
        """Return whether Kolla deploys the service with a value. Of a value that only Ansible can evaluate it is
        assumed."""
        truth = truth_of(value)
        if truth is None:
            return True
        return truth if self.needed == "yes" else str(value).strip() == self.needed


SWITCHES = {
    DASHBOARD: KollaSwitch("Horizon", "enable_horizon", "yes", "yes"),
    "block-storage": KollaSwitch("Cinder", "enable_cinder", "yes", "no"),
    "novnc": KollaSwitch("nova-novncproxy", "nova_console", "novnc", "novnc"),
    "spice": KollaSwitch("nova-spicehtml5proxy", "nova_console", "spice", "novnc"),
    "serial": KollaSwitch("nova-serialproxy", "enable_nova_serialconsole_proxy", "yes", "no"),
}
"""Switches by the name of the endpoint. Services without one are deployed by default, and a site without them is no
cloud."""


def place_of(endpoint_name: str) -> Place:
    """Return where an endpoint of SWITCHES stands in the site file."""
    if endpoint_name == DASHBOARD:
        return ("gateway", endpoint_name)
    return ("gateway", "consoles" if endpoint_name in CONSOLES else "services", endpoint_name)


def undeployed(
    gateway: SiteGateway, values: Callable[[KollaSwitch], Iterable[tuple[str, object]]]
) -> Iterable[tuple[str, str]]:
    """Yield (endpoint, the problem and its remedy) for endpoints that lead nowhere. `values`: where a switch's variable
    is set, and to what."""
    for endpoint_name, switch in SWITCHES.items():
        if endpoint_name not in gateway.endpoints:
            continue
        for source, value in values(switch):
            if not switch.deploys(value):
                place = ".".join(map(str, place_of(endpoint_name)))
                message = (
                    f"Kolla does not deploy {switch.what}: {switch.variable} is {value!r} {source}; set it to "
                    f"{switch.needed!r} and deploy, or take {place} out of the site file"
                )
                yield endpoint_name, message
                break


def gateway_problems(site: Site) -> Iterable[Problem]:
    """Yield a problem for each endpoint whose service the site file itself has Kolla leave out."""
    if site.gateway is None or site.deploy is None:
        return
    variables = site.deploy.variables

    def values(switch: KollaSwitch) -> Iterable[tuple[str, object]]:
        if switch.variable in variables:
            yield "in deploy.variables", variables[switch.variable]

    for endpoint_name, message in undeployed(site.gateway, values):
        yield Problem(place_of(endpoint_name), message)
