"""What a deployment writes for Kolla, held against the released kolla-ansible: inventory, variables, passwords, roles,
and its own post-deploy, which needs no containers."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from gpuyard.deployment.folder import DeployFolder, read_passwords
from gpuyard.deployment.gateway.steps import kolla_variables
from gpuyard.deployment.judges import CONTAINERS
from gpuyard.deployment.kolla.site_inventory import BRIDGES_HYPERVISORS, bridges_hypervisors
from gpuyard.deployment.ports import CLOUD
from gpuyard.model.errors import UsageError
from gpuyard.runtime.config_files import write
from gpuyard.site.deploy_rules import ROLES
from gpuyard.site.gateway_problems import SWITCHES
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.schema import Site
from tests.support.gateways import VARIANTS, gateway
from tests.support.kolla import KOLLA_USER, OLDER, Kolla, Merger, NoKolla, install, install_older
from tests.support.kolla_listeners import evaluate
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


@pytest.fixture(scope="session", params=[*OLDER, "newest"])
def release(request: pytest.FixtureRequest, kolla: Kolla) -> Kolla:
    """Each released kolla-ansible that gpuyard knows; of older ones what Ansible evaluates."""
    return kolla if request.param == "newest" else install_older(request.param)


def documented_sites() -> Iterator[Site]:
    """The examples of sites that are deployed."""
    guide = Path(__file__).parents[2] / "docs/how-to/from-bare-machines-to-a-cloud.md"
    blocks = [
        YAML(typ="safe").load(text) for text in re.findall(r"^```yaml\n(.*?)^```", guide.read_text(), re.M | re.S)
    ]
    examples = [block for block in blocks if "deploy" in block]
    for example in examples:
        hosts = {name: {"recording": f"{name}.json"} for name in example["deploy"]["hosts"] if name.startswith("gpu")}
        yield Site.model_validate({**examples[0], "hosts": hosts, "deploy": example["deploy"]})


@pytest.fixture
def folder(kolla: Kolla, tmp_path: Path) -> DeployFolder:
    return DeployFolder(tmp_path / "kolla", str(kolla.program))


BARE: dict[str, Any] = {
    "site": "test",
    "release": "2026.1",
    "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
    "pools": {"v100": {"models": [V100]}},
}


def loaded(tmp_path: Path, **changes: Any) -> LoadedSite:
    document = {**BARE, "deploy": {**CHOICES, **changes}}
    return load_site(write_site(tmp_path, json.dumps(document), {"gpu-server": epyc()}))


def inventory_of(kolla: Kolla, folder: DeployFolder) -> dict[str, Any]:
    words = [str(kolla.folder / "bin/ansible-inventory"), "--list", "-i", str(folder.inventory)]
    environment = kolla.environment()
    done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stderr
    assert "pars" not in done.stderr  # Kolla has dashes in names of groups, of which it warns
    inventory: dict[str, Any] = json.loads(done.stdout)
    return inventory


def hosts_of(document: dict[str, Any], group: str) -> set[str]:
    entry = document.get(group, {})
    return {*entry.get("hosts", ())}.union(*(hosts_of(document, child) for child in entry.get("children", ())))


def test_a_containers_group_and_name_are_those_of_the_released_roles(kolla: Kolla) -> None:
    roles_by_container: dict[str, str] = {}
    for role in ("keystone", "nova", "nova-cell", "placement"):
        text = (kolla.ansible / f"roles/{role}/defaults/main.yml").read_text()
        roles_by_container |= dict.fromkeys(re.findall(r"^    container_name: \"?(\w+)\"?$", text, re.MULTILINE), role)
    assert {name for names in CONTAINERS.values() for name in names} <= {*roles_by_container}


def test_what_bridges_hypervisors_is_what_the_released_variable_names(release: Kolla) -> None:
    places = release.ansible / "group_vars"
    text = "".join(path.read_text() for path in sorted([*places.glob("all.yml"), *places.glob("all/*.yml")]))
    expression = re.search(r"^computes_need_external_bridge:(.*(?:\n .*)*)", text, re.MULTILINE)
    assert expression is not None
    switches = set(re.findall(r"(\w+) \| bool", expression[1]))
    assert switches | {"computes_need_external_bridge", "enable_ovs_dpdk"} == {*BRIDGES_HYPERVISORS}
    for name in switches:
        assert re.search(rf"^{name}: (\"no\"|false)$", text, re.MULTILINE), name
    post_config = (release.ansible / "roles/openvswitch/tasks/post-config.yml").read_text()
    assert 'inventory_hostname in groups["compute"] and computes_need_external_bridge | bool' in post_config


def test_ansible_reads_the_hosts_in_every_group_of_kolla(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    site = loaded(tmp_path).site
    folder.write(folder.machines(site).changes)
    inventory = inventory_of(kolla, folder)
    groups = {role: hosts_of(inventory, role) for role in ROLES}
    assert groups == {
        "control": {"ctl"},
        "network": {"ctl"},
        "compute": {"gpu-server"},
        "monitoring": {"ctl"},
        "storage": set(),
    }
    assert hosts_of(inventory, "baremetal") == {"ctl", "gpu-server"}
    assert hosts_of(inventory, "nova-scheduler") == hosts_of(inventory, "placement-api") == {"ctl"}
    variables = inventory["_meta"]["hostvars"]
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
    inventory = inventory_of(kolla, folder)
    assert all(hosts_of(inventory, role) == {"gpu-server"} for role in ROLES)
    variables = YAML(typ="safe").load((folder.path / "globals.d/gpuyard-deploy.yml").read_text())
    assert variables["kolla_internal_vip_address"] == "192.0.2.2"
    assert (variables["enable_haproxy"], variables["enable_proxysql"]) == (False, False)
    local_site = loaded(tmp_path, hosts={"gpu-server": {"address": "localhost"}}).site
    folder.write(folder.machines(local_site).changes)
    assert inventory_of(kolla, folder)["_meta"]["hostvars"]["gpu-server"]["ansible_connection"] == "local"


HORIZON = 80
"""Where the guide to the gateway says that it is, with a vip and without."""
AT_THE_GATEWAY = """
{{ cinder_public_endpoint }}
{{ cinder_v3_public_endpoint | default('none') }}
{{ horizon_public_endpoint }}
{{ horizon_trusted_dashboards }}
"""


def read_variables_of(release: Kolla, *roles: str) -> list[Path]:
    """Files with the defaults of roles and the group_vars, the later over the earlier."""
    common = release.ansible / "group_vars/all"
    files = sorted(common.glob("*.yml")) if common.is_dir() else [common.with_suffix(".yml")]
    return [*(release.ansible / f"roles/{role}/defaults/main.yml" for role in roles), *files]


@pytest.fixture(scope="session")
def templates(release: Kolla) -> Iterator[Merger]:
    merger = Merger(release)
    yield merger
    merger.close()


def test_what_the_gateway_has_kolla_set_reaches_catalogue_and_pages(
    release: Kolla, templates: Merger, tmp_path: Path
) -> None:
    """Variables of the released roles: the catalogue of Cinder, and by Horizon's address Keystone's and Glance's."""
    (tmp_path / "gateway.yml").write_text(kolla_variables(gateway(VARIANTS["browsers"])))
    files = read_variables_of(release, "cinder", "keystone")
    text = templates.template(AT_THE_GATEWAY, [*files, tmp_path / "gateway.yml"], KOLLA_USER)
    cinder, old, horizon, pages = text.strip().splitlines()
    assert cinder == "https://cloud.example.org:8776/v3"
    assert old in ("none", "https://cloud.example.org:8776/v3/%(tenant_id)s")
    assert horizon == "https://dashboard.example.org"
    assert "https://dashboard.example.org/auth/websso/" in pages
    glance = (release.ansible / "roles/glance/templates/glance-api.conf.j2").read_text()
    assert "[cors]\nallowed_origin = {{ horizon_public_endpoint }}\n" in glance


def test_kolla_deploys_by_default_what_the_gateway_takes_for_it(release: Kolla, templates: Merger) -> None:
    for switch in SWITCHES.values():
        value = templates.template(f"{{{{ {switch.variable} }}}}", read_variables_of(release), KOLLA_USER)
        assert switch.deploys(value) == switch.deploys(switch.default), (switch, value)


def test_options_of_consoles_are_those_of_the_released_nova_conf(
    release: Kolla, templates: Merger, tmp_path: Path
) -> None:
    """Section, name, and the address that it would have where Kolla itself speaks TLS at that name."""
    common = load_site(
        write_site(tmp_path, json.dumps({**BARE, "gateway": VARIANTS["browsers"]}), {"gpu-server": epyc()})
    )
    expected = {(option.section, option.key): option.value for option in common.compiled.options[0].options}
    conf = (release.ansible / "roles/nova-cell/templates/nova.conf.j2").read_text()
    tls = {"kolla_enable_tls_internal": True, "kolla_internal_fqdn": "cloud.example.org", **KOLLA_USER}
    (tmp_path / "globals.yml").write_text(json.dumps(tls))
    files = [*read_variables_of(release), tmp_path / "globals.yml"]
    for section, key in (
        ("vnc", "novncproxy_base_url"),
        ("spice", "html5proxy_base_url"),
        ("serial_console", "base_url"),
    ):
        (line,) = re.finditer(rf"^\s*{key} = (.*)$", conf, re.MULTILINE)
        assert re.findall(r"^\[(\w+)\]$", conf[: line.start()], re.MULTILINE)[-1] == section
        assert templates.template(line[1], files, {}) == expected[section, key]


@pytest.mark.slow
def test_no_two_programs_of_a_documented_site_listen_in_one_place(release: Kolla, tmp_path: Path) -> None:
    for number, site in enumerate(documented_sites()):
        assert site.deploy is not None
        addresses = {name: host.target(name) for name, host in site.deploy.hosts.items()}
        hosts = evaluate(release, site, tmp_path / str(number), addresses)
        assert {name: host.taken_twice for name, host in hosts.items()} == {name: {} for name in addresses}
        assert {host.bridges_hypervisors for host in hosts.values()} == {bridges_hypervisors(site, {})} == {False}
        database = site.deploy.api_address, 3306
        assert {host.database for host in hosts.values()} == {"{}:{}".format(*database)}
        answers = {program for host in hosts.values() for program in host.listeners.get(database, ())}
        assert answers == ({"proxysql"} if site.deploy.balanced else {"mariadb"})
        assert any((site.deploy.api_address, HORIZON) in host.listeners for host in hosts.values())
    assert number == 1


@pytest.mark.slow
def test_a_load_balancer_of_the_database_listens_where_the_database_does_without_a_vip(
    kolla: Kolla, tmp_path: Path
) -> None:
    """What `enable_proxysql: false` is written for."""
    alone = [site for site in documented_sites() if site.deploy is not None and site.deploy.vip is None]
    assert len(alone) == 1
    also = {"enable_proxysql": True, "enable_neutron_provider_networks": True}
    host = evaluate(kolla, alone[0], tmp_path / "kolla", {"gpu1": "10.0.0.11"}, **also)["gpu1"]
    assert host.bridges_hypervisors
    assert host.taken_twice == {("10.0.0.11", 3306): {"mariadb", "proxysql"}}


@pytest.mark.slow
def test_passwords_are_made_once_and_stay(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    folder.path.mkdir()
    path = folder.path / "passwords.yml"
    assert not read_passwords(None).made
    folder.make_passwords()
    first = path.read_text()
    assert read_passwords(first).made
    assert path.stat().st_mode & 0o777 == 0o600
    path.write_text(re.sub(r"^nova_keystone_password: .*$", "nova_keystone_password:", first, flags=re.MULTILINE))
    assert not read_passwords(path.read_text()).made
    path.chmod(0o644)
    assert folder.look(loaded(tmp_path).site, None).passwords_mode == "0644"
    folder.make_passwords()
    assert path.stat().st_mode & 0o777 == 0o640
    assert folder.look(loaded(tmp_path).site, None).passwords_mode == ""
    again = path.read_text()
    assert read_passwords(again).made
    changed = {*first.splitlines()} ^ {*again.splitlines()}
    assert {line.split(":")[0] for line in changed} == {"nova_keystone_password"}
    with pytest.raises(UsageError, match=r"passwords.yml is not YAML"):
        read_passwords("a: [")


@pytest.mark.parametrize("form", ["encrypt", "encrypt_string"])
def test_passwords_of_ansible_vault_stay_as_they_are(
    kolla: Kolla, folder: DeployFolder, tmp_path: Path, form: str
) -> None:
    folder.path.mkdir()
    (tmp_path / "key").write_text("secret\n")
    path = folder.path / "passwords.yml"
    path.write_text("nova_keystone_password: of-mine\n")
    words = {"encrypt": [str(path)], "encrypt_string": ["--name", "nova_keystone_password", "of-mine"]}[form]
    command = [str(kolla.folder / "bin/ansible-vault"), form, "--vault-password-file", str(tmp_path / "key"), *words]
    output = subprocess.run(command, env=kolla.environment(), check=True, capture_output=True, text=True).stdout
    if form == "encrypt_string":
        path.write_text(output)
    text = path.read_text()
    assert "$ANSIBLE_VAULT" in text
    assert "of-mine" not in text
    path.chmod(0o644)
    folder.make_passwords()
    assert (path.read_text(), path.stat().st_mode & 0o777) == (text, 0o640)
    state = folder.look(loaded(tmp_path).site, None)
    assert (state.passwords, state.passwords_mode, state.passwords_refusal) == (True, "", "")


def test_ansible_galaxy_takes_the_note_away_with_the_collection_that_it_replaces(
    kolla: Kolla, folder: DeployFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As install-deps calls it, with a folder in the place of the git repository."""
    monkeypatch.setenv("ANSIBLE_COLLECTIONS_PATH", f"{tmp_path / 'first'}:{tmp_path / 'second'}")
    (tmp_path / "source").mkdir()
    (tmp_path / "source/README.md").touch()
    (tmp_path / "source/galaxy.yml").write_text(
        "namespace: openstack\nname: kolla\nversion: 1.0.0\nreadme: README.md\nauthors: [OpenStack]\n"
    )
    requirements = tmp_path / "requirements.yml"
    requirements.write_text(f"---\ncollections:\n  - name: {tmp_path / 'source'}\n    type: dir\n")
    words = ["collection", "install", "--requirements-file", str(requirements), "--force"]
    for _ in range(2):
        subprocess.run([str(kolla.folder / "bin/ansible-galaxy"), *words], env=kolla.environment(), check=True)
        assert (folder.has_collection(), folder.collection_is_current()) == (True, False)
        folder.keep_requirements()
        assert folder.collection_is_current()


def test_the_collection_is_of_a_branch_of_its_own_in_each_release(release: Kolla) -> None:
    share = release.ansible.parent
    branch = YAML(typ="safe").load((share / "requirements.yml").read_text())["collections"][0]["version"]
    assert re.fullmatch(r"stable/20[0-9]{2}\.[12]", branch)
    assert (share / "requirements-core.yml").is_file()


def test_what_is_decided_twice_is_refused_with_its_place(folder: DeployFolder, tmp_path: Path) -> None:
    site = loaded(tmp_path).site
    (folder.path / "globals.d").mkdir(parents=True)
    (folder.path / "globals.yml").write_text("---\nnetwork_interface: eth0\nenable_cinder: true\nenable_horizon: yes\n")
    (folder.path / "globals.d/mine.yml").write_text('kolla_base_distro: "debian"\n')
    state = folder.look(site, None)
    decided = "is set, and the site file decides it by"
    assert [text.split(": ", 1)[1] for text in state.machine_refusals] == [
        f"enable_cinder {decided} 'deploy.variables'; delete the line",
        f"network_interface {decided} 'deploy.interface, or that of a host'; delete the line",
    ]
    assert state.machine_refusals[1].startswith(f"{folder.path}/globals.yml line 2")
    (folder.path / "gpuyard-inventory").write_text("[control]\nmine\n")
    assert "gpuyard-inventory was not written by gpuyard" in folder.look(site, None).machine_refusals[0]


@pytest.mark.slow
def test_the_real_kolla_ansible_works_on_what_is_written(kolla: Kolla, folder: DeployFolder, tmp_path: Path) -> None:
    """Every verb that runs lists its tasks for these hosts, and post-deploy runs."""
    public = {"keystone_public_url": "https://gateway.example.org:5000"}
    site = loaded(tmp_path, variables={**CHOICES["variables"], **public})
    folder.write(folder.machines(site.site).changes)
    folder.make_passwords()
    for change in folder.rendering(site.compiled).changes:
        write(change)
    state = folder.look(site.site, site.compiled)
    assert (state.problem, state.machines, state.rendered, state.passwords) == ("", (), (), True)
    assert not state.credentials
    words = ["--configdir", str(folder.path), "--inventory", str(folder.inventory)]
    for verb in ("prechecks", "deploy"):
        done = kolla.run(verb, *words, "--list-tasks")
        assert done.returncode == 0, done.stdout + done.stderr
        assert "nova-cell : " in done.stdout
    done = kolla.run("post-deploy", *words, ANSIBLE_PYTHON_INTERPRETER=str(kolla.folder / "bin/python"))
    assert done.returncode == 0, done.stdout + done.stderr
    assert folder.look(site.site, site.compiled).credentials
    clouds = YAML(typ="safe").load(folder.credentials.read_text())["clouds"]
    assert clouds["kolla-admin"]["auth"]["auth_url"] == "https://gateway.example.org:5000"
    assert clouds[CLOUD]["auth"]["auth_url"] == "http://cloud.example.org:5000"
    assert (clouds[CLOUD]["interface"], clouds[CLOUD]["auth"]["username"]) == ("internal", "admin")
