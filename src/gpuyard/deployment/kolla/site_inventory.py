"""Generates Kolla's inventory and variables for a site's machines, as gpuyard's own files beside the operator's. Pure.

Kolla's inventory names some hundred groups, other ones in each release; the operator fills five of them. So ours is
the installed kolla-ansible's own example with these five filled.
"""

from __future__ import annotations

import io
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from ruamel.yaml import YAML

from gpuyard.deployment.kolla.render import Rendering
from gpuyard.deployment.kolla.variables import Variable
from gpuyard.model.errors import GpuyardError
from gpuyard.runtime.config_files import Change
from gpuyard.site.deploy_rules import BALANCERS, HERE, OWN, ROLES, SiteDeploy, truth_of
from gpuyard.site.schema import Site

OURS = "# Written by 'gpuyard deploy'"
HEADER = f"{OURS}; what is changed in here is lost: change 'deploy' in the site file.\n"
INVENTORY = "gpuyard-inventory"
VARIABLES = "globals.d/gpuyard-deploy.yml"
"""File that is read after globals.yml, and before the file of 'gpuyard site render'."""
GLOBALS = "globals.yml"
EMPTY_GLOBALS = """\
---
# Yours. What the site file says of Kolla is in globals.d, and is read after this.

# As in Kolla's example: Ansible does not take a file without any variable.
workaround_ansible_issue_8743: true
"""
BRIDGES_HYPERVISORS = (
    "computes_need_external_bridge",
    "enable_neutron_dvr",
    "enable_neutron_provider_networks",
    "enable_ovs_dpdk",
    "neutron_ovn_distributed_fip",
)
"""Variables, each off unless somebody sets it, with which hypervisors have the external interface in a bridge as hosts
of the group network have: computes_need_external_bridge in Kolla's group_vars, and its role ovs-dpdk."""
SECTION = re.compile(r"^\[([^\]\n]+)\]$")


def render_inventory(example: str, deploy: SiteDeploy) -> str:
    """Return Kolla's multinode inventory with the site's hosts. Raises GpuyardError when `example` lacks one of the
    groups."""
    lines: list[str] = []
    section, filled = "", set()
    for line in example.splitlines():
        if match := SECTION.match(line.strip()):
            section = match[1]
            lines.append(line)
            if section in ROLES:
                filled.add(section)
                lines += [_host_line(name, deploy) for name in deploy.with_role(section)]
                lines.append("")
        elif section not in ROLES:
            lines.append(line)
    if missing := [role for role in ROLES if role not in filled]:
        raise GpuyardError(
            f"Kolla's example of an inventory has no group {missing[0]}; gpuyard knows kolla-ansible 20 to 22: "
            "install one of those"
        )
    return HEADER + "\n".join(lines) + "\n"


def _host_line(name: str, deploy: SiteDeploy) -> str:
    host = deploy.hosts[name]
    words = [name]
    if host.address == HERE:
        words.append("ansible_connection=local")
    else:
        words += [f"ansible_host={host.address}"] if host.address else []
        words += [f"ansible_user={deploy.user}"] if deploy.user else []
    # Of each host and not in globals.d, which would win over what a host says.
    words.append(f"network_interface={host.interface or deploy.interface}")
    words.append(f"neutron_external_interface={host.external_interface or deploy.external_interface}")
    return " ".join(words)


def variables_of(site: Site) -> dict[str, object]:
    """Return Kolla's variables that the site decides, but for the interfaces, which are in the inventory."""
    assert site.deploy is not None
    deploy = site.deploy
    variables: dict[str, object] = {
        "kolla_base_distro": deploy.base,
        "openstack_release": site.release,
        "kolla_internal_vip_address": deploy.api_address,
    }
    if not deploy.balanced:
        # ProxySQL stays on without HAProxy, and would listen where MariaDB does: address of the APIs, port 3306.
        variables |= dict.fromkeys(BALANCERS, False)
    return variables | dict(sorted(deploy.variables.items()))


def render_variables(site: Site) -> str:
    """Return globals.d/gpuyard-deploy.yml."""
    yaml = YAML(typ="safe", pure=True)
    yaml.default_flow_style = False
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]
    yaml.width = 10000
    text = io.StringIO()
    yaml.dump(variables_of(site), text)
    return f"---\n{HEADER}{text.getvalue()}"


def plan_machines(
    site: Site, folder: Path, example: str, files: Mapping[str, str | None], variables: Mapping[str, Variable]
) -> Rendering:
    """Plan the changes in a Kolla folder for the site's machines. `files`: the texts that INVENTORY, VARIABLES and
    GLOBALS have there, None where there is none. `variables`: the operator's own."""
    assert site.deploy is not None
    desired_texts = {INVENTORY: render_inventory(example, site.deploy), VARIABLES: render_variables(site)}
    changes = [Change(folder / name, files[name], text) for name, text in desired_texts.items() if files[name] != text]
    if files[GLOBALS] is None:
        changes.insert(0, Change(folder / GLOBALS, None, EMPTY_GLOBALS))
    refusals = [
        f"{folder / name} was not written by gpuyard, which needs a file of that name; rename it"
        for name in desired_texts
        if (before := files[name]) is not None and OURS not in before[: len(OURS) + 4]
    ]
    return Rendering(tuple(changes), (*refusals, *_said_twice(site, variables)))


def bridges_hypervisors(site: Site, variables: Mapping[str, Variable]) -> bool:
    """Return whether Kolla may put the external interface of hypervisors into a bridge. `variables`: the operator's
    own."""
    values = {**variables_of(site), **{name: variable.value for name, variable in variables.items()}}
    return any(truth_of(values.get(name, False)) is not False for name in BRIDGES_HYPERVISORS)


def _said_twice(site: Site, variables: Mapping[str, Variable]) -> Iterator[str]:
    """One of the two would be lost without a word: what is passed later wins, and over hosts' own too."""
    assert site.deploy is not None
    decided = variables_of(site)
    for name in sorted({*decided, *OWN} & {*variables}):
        if name not in decided or variables[name].value != decided[name]:
            key = OWN.get(name, "deploy.variables")
            yield f"{variables[name].place}: {name} is set, and the site file decides it by '{key}'; delete the line"
