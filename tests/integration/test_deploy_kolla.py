"""What a deployment writes for Kolla, held against the released kolla-ansible: inventory, variables, passwords, roles,
and its own post-deploy, which needs no containers."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuyard.deploy.folder import DeployFolder, passwords_made
from gpuyard.deploy.planner import CONTAINERS
from gpuyard.kolla.files import write
from gpuyard.model.errors import UsageError
from gpuyard.site.deploy_rules import ROLES
from gpuyard.site.load import LoadedSite, load_site
from tests.support.kolla import Kolla, NoKolla, install
from tests.support.sites import write_site
from tests.support.sysfs import V100, epyc

CHOICES: dict[str, Any] = {
    "base": "debian",
    "interface": "eno1",
    "external_interface": "eno2",
    "vip": "192.0.2.250",
    "user": "operator",
    "variables": {"enable_cinder": False, "kolla_internal_fqdn": "cloud.example.org"},
    "hosts": {
        "ctl": {"address": "192.0.2.1", "roles": ["control", "network", "monitoring"]},
        "gpu-server": {"address": "192.0.2.2", "roles": ["compute"], "interface": "bond0"},
    },
}


@pytest.fixture(scope="session")
def kolla() -> Kolla:
    try:
        return install()
    except NoKolla as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


@pytest.fixture
def folder(kolla: Kolla, tmp_path: Path) -> DeployFolder:
    return DeployFolder(tmp_path / "kolla", str(kolla.program))


def loaded(tmp_path: Path, **changes: Any) -> LoadedSite:
    document = {
        "site": "test",
        "release": "2026.1",
        "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
        "pools": {"v100": {"models": [V100]}},
        "deploy": {**CHOICES, **changes},
    }
    return load_site(write_site(tmp_path, json.dumps(document), {"gpu-server": epyc()}))


def inventory_of(kolla: Kolla, folder: DeployFolder) -> dict[str, Any]:
    words = [str(kolla.folder / "bin/ansible-inventory"), "--list", "-i", str(folder.inventory)]
    environment = kolla.environment()
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "pars" not in done.stderr  # Kolla has dashes in names of groups, of which it warns
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def hosts_of(document: dict[str, Any], group: str) -> set[str]:
    entry = document.get(group, {})
    return {*entry.get("hosts", ())}.union(*(hosts_of(document, child) for child in entry.get("children", ())))


def test_a_containers_group_and_name_are_those_of_the_released_roles(kolla: Kolla) -> None:
    found: dict[str, str] = {}
    for role in ("keystone", "nova", "nova-cell", "placement"):
        text = (kolla.ansible / f"roles/{role}/defaults/main.yml").read_text()
        found |= dict.fromkeys(re.findall(r"^    container_name: \"?(\w+)\"?$", text, re.MULTILINE), role)
    assert {name for names in CONTAINERS.values() for name in names} <= {*found}


def test_ansible_reads_the_hosts_in_every_group_of_kolla(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    site = loaded(tmp_path).site
    folder.write(folder.machines(site).changes)
    found = inventory_of(kolla, folder)
    groups = {role: hosts_of(found, role) for role in ROLES}
    assert groups == {
        "control": {"ctl"},
        "network": {"ctl"},
        "compute": {"gpu-server"},
        "monitoring": {"ctl"},
        "storage": set(),
    }
    assert hosts_of(found, "baremetal") == {"ctl", "gpu-server"}
    assert hosts_of(found, "nova-scheduler") == hosts_of(found, "placement-api") == {"ctl"}
    variables = found["_meta"]["hostvars"]
    assert variables["ctl"] == {
        "ansible_host": "192.0.2.1",
        "ansible_user": "operator",
        "network_interface": "eno1",
        "neutron_external_interface": "eno2",
    }
    assert variables["gpu-server"]["network_interface"] == "bond0"
    assert folder.machines(site).changes == ()
    example = (kolla.ansible / "inventory/multinode").read_text()
    names = re.findall(r"^\[(.*)\]$", example, re.MULTILINE)
    assert re.findall(r"^\[(.*)\]$", folder.inventory.read_text(), re.MULTILINE) == names


def test_one_machine_alone_is_every_group(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    site = loaded(tmp_path, vip=None, user=None, hosts={"gpu-server": {"address": "192.0.2.2"}}).site
    folder.write(folder.machines(site).changes)
    found = inventory_of(kolla, folder)
    assert all(hosts_of(found, role) == {"gpu-server"} for role in ROLES)
    variables = YAML(typ="safe").load((folder.path / "globals.d/gpuyard-deploy.yml").read_text())
    assert variables["kolla_internal_vip_address"] == "192.0.2.2"
    assert variables["enable_haproxy"] is False
    here = loaded(tmp_path, hosts={"gpu-server": {"address": "localhost"}}).site
    folder.write(folder.machines(here).changes)
    assert inventory_of(kolla, folder)["_meta"]["hostvars"]["gpu-server"]["ansible_connection"] == "local"


@pytest.mark.slow
def test_passwords_are_made_once_and_stay(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    folder.path.mkdir()
    path = folder.path / "passwords.yml"
    assert not passwords_made(None)
    folder.make_passwords()
    first = path.read_text()
    assert passwords_made(first)
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(re.sub(r"^nova_keystone_password: .*$", "nova_keystone_password:", first, flags=re.MULTILINE))
    assert not passwords_made(path.read_text())
    path.chmod(0o640)
    folder.make_passwords()
    assert path.stat().st_mode & 0o777 == 0o640
    again = path.read_text()
    assert passwords_made(again)
    changed = {*first.splitlines()} ^ {*again.splitlines()}
    assert {line.split(":")[0] for line in changed} == {"nova_keystone_password"}
    assert passwords_made("$ANSIBLE_VAULT;1.1;AES256\n00\n")
    with pytest.raises(UsageError, match=r"passwords.yml is not YAML"):
        passwords_made("a: [")


def test_what_is_decided_twice_is_refused_with_its_place(folder: DeployFolder, tmp_path: Path) -> None:
    site = loaded(tmp_path).site
    (folder.path / "globals.d").mkdir(parents=True)
    (folder.path / "globals.yml").write_text("---\nnetwork_interface: eth0\nenable_cinder: true\nenable_horizon: yes\n")
    (folder.path / "globals.d/mine.yml").write_text('kolla_base_distro: "debian"\n')
    sight = folder.look(site, None)
    decided = "is set, and the site file decides it by"
    assert [text.split(": ", 1)[1] for text in sight.machine_refusals] == [
        f"enable_cinder {decided} 'deploy.variables'; delete the line",
        f"network_interface {decided} 'deploy.interface, or that of a host'; delete the line",
    ]
    assert sight.machine_refusals[1].startswith(f"{folder.path}/globals.yml line 2")
    (folder.path / "gpuyard-inventory").write_text("[control]\nmine\n")
    assert "gpuyard-inventory was not written by gpuyard" in folder.look(site, None).machine_refusals[0]


@pytest.mark.slow
def test_the_real_kolla_ansible_works_on_what_is_written(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    """Every verb that runs lists its tasks for these hosts, and post-deploy runs."""
    site = loaded(tmp_path)
    folder.write(folder.machines(site.site).changes)
    folder.make_passwords()
    for change in folder.rendering(site.compiled).changes:
        write(change)
    sight = folder.look(site.site, site.compiled)
    assert (sight.problem, sight.machines, sight.rendered, sight.passwords) == ("", (), (), True)
    assert not sight.credentials
    words = ["--configdir", str(folder.path), "--inventory", str(folder.inventory)]
    for verb in ("prechecks", "deploy"):
        done = kolla.run(verb, *words, "--list-tasks")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "nova-cell : " in done.stdout
    done = kolla.run("post-deploy", *words, ANSIBLE_PYTHON_INTERPRETER=str(kolla.folder / "bin/python"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder.look(site.site, site.compiled).credentials
    clouds = YAML(typ="safe").load(folder.credentials.read_text())["clouds"]
    assert clouds["kolla-admin"]["auth"]["auth_url"] == "http://cloud.example.org:5000"
