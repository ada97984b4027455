"""Who would listen where in a cloud that Kolla deploys: a release's variables and templates, evaluated by Ansible.

Covered are the containers that HAProxy stands in front of, HAProxy and ProxySQL by the files that they would get, and
MariaDB (bind-address and port of galera.cnf.j2: api_interface_address and mariadb_port). What has no such entry,
as RabbitMQ, memcached and libvirt, is not: those ports are in no other program's files.
"""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from gpuyard.deployment.kolla.site_inventory import GLOBALS, INVENTORY, VARIABLES, plan_machines
from gpuyard.runtime.config_files import write
from gpuyard.site.schema import Site
from tests.support.kolla import Kolla

PLAY = Path(__file__).with_suffix(".yml")
ROLES = ("mariadb", "keystone", "glance", "placement", "nova", "nova-cell", "neutron", "horizon", "heat", "cinder")
BIND = re.compile(r"^\s*bind ([^\s:]+):(\d+)", re.MULTILINE)
PROXYSQL = re.compile(r'^\s*(?:mysql_ifaces|interfaces): "([^"]*)"', re.MULTILINE)

Listeners = dict[tuple[str, int], set[str]]
"""Address and port -> programs that listen there."""


@dataclass(frozen=True)
class KollaHost:
    """One host of a cloud: who listens where on it, and where services look for the database."""

    listeners: Listeners
    database: str
    bridges_hypervisors: bool
    """Whether hypervisors without the role network get the external interface into a bridge."""

    @property
    def taken_twice(self) -> dict[tuple[str, int], set[str]]:
        return {place: programs for place, programs in self.listeners.items() if len(programs) > 1}


def evaluate(
    kolla: Kolla, site: Site, folder: Path, addresses: Mapping[str, str], **variables: object
) -> dict[str, KollaHost]:
    """The hosts of a site. `addresses`: host -> address of its 'interface'; `folder`: empty; `variables`: of Kolla,
    which win over those of the site. Raises AssertionError."""
    deploy = site.deploy
    assert deploy is not None
    example = (kolla.ansible / "inventory/multinode").read_text()
    for change in plan_machines(site, folder, example, dict.fromkeys((INVENTORY, VARIABLES, GLOBALS)), {}).changes:
        write(change)
    (folder / "group_vars").symlink_to(kolla.ansible / "group_vars")
    (folder / PLAY.name).write_text(PLAY.read_text())
    passed = {
        "kolla": str(kolla.ansible), "kolla_roles": list(ROLES), "addresses": addresses, "results": str(folder),
        "ansible_python_interpreter": str(kolla.folder / "bin/python"), **variables,
    }  # fmt: skip
    blank = YAML(typ="safe", pure=True).load((kolla.ansible.parent / "etc_examples/kolla/passwords.yml").read_text())
    passwords = folder / "passwords.json"
    passwords.write_text(json.dumps({name: value or "x" for name, value in blank.items()}))
    files = (passwords, folder / GLOBALS, folder / VARIABLES)
    words = [str(kolla.folder / "bin/ansible-playbook"), str(folder / PLAY.name), "-i", str(folder / INVENTORY)]
    words += [word for file in files for word in ("-e", f"@{file}")]
    run = subprocess.run(
        [*words, "-e", json.dumps(passed)],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=kolla.environment(ANSIBLE_FILTER_PLUGINS=str(kolla.ansible / "filter_plugins")),
    )
    assert run.returncode == 0, run.stdout[-3000:] + run.stderr[-3000:]
    return {name: _host(json.loads((folder / f"{name}.json").read_text())) for name in deploy.hosts}


def _host(facts: Mapping[str, Any]) -> KollaHost:
    listeners: Listeners = {}

    def listens(program: str, address: str, port: int | None) -> None:
        if port is not None:
            listeners.setdefault((address, port), set()).add(program)

    listens("mariadb", facts["address"], facts["mariadb"])
    for service in facts["services"]:
        listens(service["name"], facts["address"], service["listens"])
        if "haproxy" in facts["balancers"]:
            listens("haproxy", service["front"], service["port"])
    if "haproxy" in facts["balancers"]:
        for address, port in BIND.findall(facts["haproxy"]):
            listens("haproxy", address, int(port))
    if "proxysql" in facts["balancers"]:
        for socket in ";".join(PROXYSQL.findall(facts["proxysql"])).split(";"):
            address, _, port = socket.rpartition(":")
            if address:  # the other one is a socket of Unix
                listens("proxysql", address, int(port))
    return KollaHost(listeners, facts["database"], facts["bridges"])
