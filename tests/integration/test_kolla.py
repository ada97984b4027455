"""A rendered Kolla folder, merged by the released kolla-ansible and read by Nova's and Placement's own parsers.

What a service would read must be what the site means. Nothing here starts a container: Kolla stops there anyway.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from oslo_config import cfg, iniparser

from gpuyard.deployment.kolla import ini
from gpuyard.deployment.kolla.deploy import DeployStep, Wish, all_steps
from gpuyard.deployment.kolla.folder import read_folder
from gpuyard.deployment.kolla.layers import ROLES, Role
from gpuyard.deployment.kolla.operator_inventory import read_inventory
from gpuyard.deployment.kolla.render import OSLO_LIMIT, plan_kolla
from gpuyard.runtime.config_files import write
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.options import Option, ServiceOptions, render_ini
from tests.support.kolla import (
    KOLLA_USER,
    Kolla,
    Merger,
    NoKolla,
    install,
    kolla_folder,
    local_inventory,
    write_override,
)
from tests.support.services import nova_configuration, placement_configuration, request, whitelist
from tests.support.sites import plain_site, site, write_site
from tests.support.sysfs import T4, V100, Sysfs, epyc

BASE = "[DEFAULT]\ndebug = false\n\n[scheduler]\nworkers = 5\n\n[filter_scheduler]\nenabled_filters = A,B\n"
"""In the place of the role's template: keys that gpuyard sets too."""
CONTROL = "control01"
VARIABLES = {
    "keystone_internal_url": "http://192.0.2.1:5000",
    "nova_keystone_user": "nova",
    "nova_keystone_password": "secret",
    "default_user_domain_id": "default",
    "openstack_cacert": "",
    "openstack_region_name": "RegionOne",
}


@pytest.fixture(scope="session")
def kolla() -> Kolla:
    """The released kolla-ansible; without the package index the tests are skipped, but not in CI."""
    try:
        return install()
    except NoKolla as error:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


@pytest.fixture(scope="session")
def merger(kolla: Kolla) -> Iterator[Merger]:
    merger = Merger(kolla)
    yield merger
    merger.close()


@pytest.fixture(scope="module")
def example() -> CompiledSite:
    return load_site(plain_site()).compiled


def render(compiled: CompiledSite, folder: Path) -> Path:
    """Render into a folder that may have files. Returns where the overrides are."""
    rendering = plan_kolla(compiled, read_folder(folder))
    assert rendering.refusals == ()
    for change in rendering.changes:
        write(change)
    return folder / "config"


def meant(compiled: CompiledSite, service: str, host: str) -> list[Option]:
    """The options that a service on a host shall read."""
    owner = "placement" if service == "placement-api" else "nova"
    names = {(owner, None), (owner, host), (service, None), (service, host)}
    return [
        option for options in compiled.options if (options.service, options.host) in names for option in options.options
    ]


class _Plain(iniparser.BaseParser):
    """All assignments, as oslo.config's parser sees them."""

    def __init__(self) -> None:
        self.found: dict[tuple[str, str], list[str]] = {}
        self.section = ""

    def new_section(self, section: str) -> None:
        self.section = section

    def assignment(self, key: str, value: list[str]) -> None:
        self.found.setdefault((self.section, key), []).append("\n".join(value))


def assignments(text: str) -> dict[tuple[str, str], list[str]]:
    parser = _Plain()
    parser.parse(text.splitlines())
    return parser.found


def nova_values(folder: Path, text: str, options: Sequence[Option]) -> dict[tuple[str, str], Any]:
    """What Nova makes of an ini text, for the options that it has registered."""
    values = {}
    with nova_configuration(folder, text) as conf:
        for option in options:
            try:
                group = conf if option.section == "DEFAULT" else conf[option.section]
                values[(option.section, option.key)] = group[option.key]
            except cfg.NoSuchOptError:
                continue
    return values


def check_service(merger: Merger, compiled: CompiledSite, custom: Path, role: Role, service: str, host: str) -> str:
    """What Kolla merges for a service on a host is what the site means for it. Returns the merged file."""
    base = custom.parent / "base.conf"
    base.write_text(BASE)
    text = merger.service(role.name, service, host, custom, base, VARIABLES)
    options = meant(compiled, service, host)
    values = assignments(text)
    for option in options:
        desired = [other.value for other in options if (other.section, other.key) == (option.section, option.key)]
        assert values[(option.section, option.key)] == desired
    if role.name == "placement":
        placement_configuration(custom.parent, text)
    else:
        expected = nova_values(custom.parent, render_ini(options), options)
        assert nova_values(custom.parent, text, options) == expected
        assert len(expected) >= len({(option.section, option.key) for option in options})
    return text


def test_the_layers_are_those_of_the_released_roles(kolla: Kolla) -> None:
    from ruamel.yaml import YAML

    for role in ROLES:
        template, *overrides = kolla.sources(role.name)
        assert template.startswith("{{ role_path }}")
        plain = [
            source.replace("{{ node_custom_config }}/", "")
            .replace("{{ item.key }}", "{service}")
            .replace("{{ inventory_hostname }}", "{host}")
            for source in overrides
        ]
        assert tuple(plain) == role.layers
        text = (kolla.ansible / f"roles/{role.name}/defaults/main.yml").read_text()
        defaults = YAML(typ="safe", pure=True).load(text)
        name = {
            "nova": "nova_services",
            "nova-cell": "nova_cell_services_require_nova_conf",
            "placement": "placement_services",
        }
        assert set(role.services) == set(defaults[name[role.name]])


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_what_nova_reads_of_the_example_is_what_it_means(
    merger: Merger, example: CompiledSite, tmp_path: Path, role: Role
) -> None:
    custom = render(example, kolla_folder(tmp_path / "etc"))
    for service in role.services:
        for host in (*example.site.hosts, CONTROL):
            text = check_service(merger, example, custom, role, service, host)
            if role.name != "placement":
                values = assignments(text)
                shown = {key: values[("oslo_limit", key)] for key in OSLO_LIMIT}
                assert shown == {key: [_rendered(value)] for key, value in OSLO_LIMIT.items()}


def _rendered(value: str) -> str:
    match = re.fullmatch(r"\{\{ (\w+) \}\}", value)
    return VARIABLES[match[1]] if match else value


EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*/site.yaml"))


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.parent.name)
def test_the_other_examples_reach_nova_too(merger: Merger, tmp_path: Path, path: Path) -> None:
    compiled = load_site(path).compiled
    custom = render(compiled, kolla_folder(tmp_path / "etc"))
    for role, service in ((ROLES[0], "nova-scheduler"), (ROLES[1], "nova-compute"), (ROLES[2], "placement-api")):
        for host in compiled.site.hosts:
            check_service(merger, compiled, custom, role, service, host)


def test_nova_takes_the_devices_and_aliases_of_the_merged_files(
    merger: Merger, example: CompiledSite, tmp_path: Path
) -> None:
    custom = render(example, kolla_folder(tmp_path / "etc"))
    role = ROLES[1]
    for host in example.site.hosts:
        text = check_service(merger, example, custom, role, "nova-compute", host)
        with nova_configuration(tmp_path, text) as conf:
            specs = [dict(spec.dev_spec_conf) for spec in whitelist.Whitelist(conf.pci.device_spec).specs]
            aliases = request.get_alias_from_config()
        assert specs == [
            json.loads(value) for value in example.options_of("nova-compute", host).values("pci", "device_spec")
        ]
        assert set(aliases) == {
            json.loads(value)["name"] for value in example.options_of("nova").values("pci", "alias")
        }


def test_each_host_gets_its_own_provider_configuration_and_others_get_none(
    kolla: Kolla, merger: Merger, example: CompiledSite, tmp_path: Path
) -> None:
    from nova.compute import provider_config

    folder = kolla_folder(tmp_path / "etc")
    render(example, folder)
    (task,) = (task for task in kolla.tasks("nova-cell") if "provider config" in task["name"])
    content = task["ansible.builtin.copy"]["content"]
    assert "nova_cell_compute_provider_config is defined" in task["when"]
    files = [folder / "globals.yml", folder / "globals.d/gpuyard.yml"]
    configs = {config.host: config for config in example.provider_configs if not config.empty}
    assert configs
    for host in (*configs, CONTROL):
        text = merger.template(
            "{% if nova_cell_compute_provider_config is defined %}" + content + "{% endif %}",
            files,
            {"inventory_hostname": host},
        )
        if host not in configs:
            assert text == ""
            continue
        target = tmp_path / host
        target.mkdir()
        (target / "provider_config.yaml").write_text(text)
        (parsed,) = provider_config.get_provider_configs(str(target)).values()
        totals = {
            name: fields["total"]
            for entry in parsed.get("inventories", {}).get("additional", [])
            for name, fields in entry.items()
        }
        assert parsed["identification"] == {"uuid": "$COMPUTE_NODE"}
        assert totals == {name: total for name, total in configs[host].inventories.items() if total}
        assert tuple(parsed.get("traits", {}).get("additional", ())) == configs[host].traits


SNIPPETS = {
    "global.conf": "[DEFAULT]\ndebug = true\n[database]\nmax_pool_size = 9\n",
    "nova.conf": "# ours\n[DEFAULT]\nosapi_max_limit = 77\n\n[libvirt]\ncpu_mode = custom\n",
    "nova/nova-scheduler.conf": "[scheduler]\nmax_attempts = 7\n",
    "nova/nova-compute.conf": "[libvirt]\nnum_pcie_ports = 24\n",
    "nova/host0/nova.conf": "[libvirt]\ncpu_mode = host-model\n{# why: {{ nothing }} #}\n",
    "nova/host0/nova-compute.conf": "{% if true %}\n[compute]\nmax_concurrent_disk_ops = 3\n{% endif %}",
    "placement.conf": "[api]\nauth_strategy = keystone",
}
"""What operators have in files that gpuyard writes too, and around them."""


@settings(max_examples=10)
@given(
    groups=st.lists(
        st.lists(st.tuples(st.integers(1, 9), st.sampled_from([V100, T4])), max_size=5), min_size=1, max_size=3
    ),
    files=st.sets(st.sampled_from(sorted(SNIPPETS))),
)
def test_any_site_beside_any_files_of_the_operator(
    merger: Merger, groups: list[list[tuple[int, str]]], files: set[str]
) -> None:
    with tempfile.TemporaryDirectory() as name:
        tmp_path = Path(name)
        machines = {}
        for number, gpus in enumerate(groups):
            machine = Sysfs()
            for slot, (group, ids) in enumerate(gpus):
                machine.function(f"{slot + 1:02x}:00.0", ids, group=group)
            machines[f"host{number}"] = machine
        pools = {"v100": {"models": [V100]}, "t4": {"models": [T4]}}
        compiled = site(tmp_path, {"pools": pools}, machines).compiled
        folder = kolla_folder(tmp_path / "etc")
        for path in files:
            write_override(folder, path, SNIPPETS[path])
        custom = render(compiled, folder)
        for role, service in ((ROLES[0], "nova-scheduler"), (ROLES[1], "nova-compute"), (ROLES[2], "placement-api")):
            for host in ("host0", CONTROL):
                text = check_service(merger, compiled, custom, role, service, host)
                mine = assignments(text)
                read = [layer.format(service=service, host=host) for layer in role.layers]
                last: dict[tuple[str, str], str] = {}
                for path in (path for path in read if path in files):
                    last |= {(entry.section, entry.key): entry.value for entry in ini.settings(SNIPPETS[path])}
                assert {key: mine[key] for key in last} == {key: [value] for key, value in last.items()}
        for path in files:
            assert (custom / path).read_text().endswith(SNIPPETS[path])


ONE_LINE = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20)
NASTY = st.lists(
    st.one_of(st.sampled_from(["{{", "}}", "{%", "%}", "{#", "#}", " ", "{", "\\", "=", ":", "#"]), ONE_LINE)
)


@settings(max_examples=60)
@given(values=st.lists(NASTY.map(lambda parts: f"<{''.join(parts)}>"), min_size=1, max_size=4))
def test_values_reach_nova_as_they_are_whatever_jinja2_would_make_of_them(
    merger: Merger, example: CompiledSite, values: list[str]
) -> None:
    options = tuple(Option("pci", "alias", value, f"because {value}") for value in values)
    compiled = replace(example, options=(ServiceOptions("nova", None, options),), provider_configs=())
    with tempfile.TemporaryDirectory() as name:
        custom = render(compiled, kolla_folder(Path(name) / "etc"))
        base = Path(name) / "base.conf"
        base.write_text(BASE)
        text = merger.service("nova", "nova-api", CONTROL, custom, base, VARIABLES)
    assert assignments(text)[("pci", "alias")] == values


@given(
    st.lists(
        st.sampled_from(
            [
                "[a]\n",
                "[A b]\n",
                "k = 1\n",
                "k: 2\n",
                "j=\n",
                "  more\n",
                "# k = 3\n",
                ";k\n",
                "\n",
                "l = 'q'\n",
                "m = [x]\r\n",
            ]
        ),
        max_size=12,
    )
)
def test_settings_are_found_where_oslo_config_finds_them(lines: list[str]) -> None:
    text = "".join(["[z]\n", "first = 1\n", *lines])
    text = re.sub(r"(^|\n)((?:#|;|\[)[^\n]*\n|\s*\n)(\s+more\n)+", r"\1\2", text)  # an error to oslo.config
    try:
        expected = assignments(text)
    except iniparser.ParseError:
        return
    values: dict[tuple[str, str], list[str]] = {}
    for entry in ini.settings(text):
        values.setdefault((entry.section, entry.key), []).append(entry.value)
    assert values == expected


@pytest.fixture(scope="session")
def passwords(kolla: Kolla, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """passwords.yml, as Kolla makes it."""
    path = tmp_path_factory.mktemp("kolla") / "passwords.yml"
    path.write_text((kolla.folder / "share/kolla-ansible/etc_examples/kolla/passwords.yml").read_text())
    path.chmod(0o600)
    generate = [str(kolla.folder / "bin/kolla-genpwd"), "-p", str(path)]
    subprocess.run(generate, check=True, capture_output=True, env=kolla.environment())
    return path


@pytest.fixture
def deployable(kolla: Kolla, passwords: Path, tmp_path: Path) -> Path:
    """A folder that the real kolla-ansible works on, without becoming root, and writes below. Not yet rendered."""
    variables = {
        **KOLLA_USER,
        "ansible_become": False,
        "ansible_python_interpreter": str(kolla.folder / "bin/python"),
        "node_config_directory": f"{tmp_path}/out/{{{{ inventory_hostname }}}}",
        "config_owner_user": _name(os.getuid(), "/etc/passwd"),
        "config_owner_group": _name(os.getgid(), "/etc/group"),
    }
    text = "".join(f"{name}: {json.dumps(value)}\n" for name, value in variables.items())
    folder = kolla_folder(tmp_path / "etc", text)
    shutil.copy(passwords, folder / "passwords.yml")
    return folder


def _name(number: int, file: str) -> str:
    lines = (line.split(":") for line in Path(file).read_text().splitlines())
    return next(fields[0] for fields in lines if fields[2] == str(number))


def steps(folder: Path, inventory: Path) -> tuple[DeployStep, ...]:
    wish = Wish(folder, (inventory,))
    return (*all_steps(wish, "compute"), *all_steps(replace(wish, full=True), "compute"))


def test_the_real_kolla_ansible_knows_every_verb_and_option(kolla: Kolla, tmp_path: Path) -> None:
    help_by_verb: dict[str, str] = {}
    for step in steps(tmp_path, tmp_path / "inventory"):
        verb, *words = step.words
        if verb not in help_by_verb:
            done = kolla.run(verb, "--help")
            assert done.returncode == 0
            help_by_verb[verb] = done.stdout
        for word in (word for word in words if word.startswith("--")):
            assert word in help_by_verb[verb]
    assert kolla.run("--version").stdout == "kolla-ansible 22.0.0\n"


def listed(kolla: Kolla, step: DeployStep) -> set[str]:
    """Names of the tasks that a step would run, with their roles."""
    done = kolla.run(*step.words, "--list-tasks")
    assert done.returncode == 0, done.stdout + done.stderr
    return set(re.findall(r"^ {6}(\S.*)\tTAGS: ", done.stdout, re.MULTILINE))


def test_the_real_kolla_ansible_does_the_hypervisors_and_then_the_rest(
    kolla: Kolla, deployable: Path, tmp_path: Path
) -> None:
    inventory = local_inventory(kolla, tmp_path / "inventory", ["gpu-server"])
    todo = {step.name: step for step in steps(deployable, inventory)}
    computes, control = listed(kolla, todo["computes"]), listed(kolla, todo["control-plane"])
    assert {task.split(" : ")[0] for task in computes if " : " in task} == {"nova-cell"}
    assert {"nova", "nova-cell"} <= {task.split(" : ")[0] for task in control if " : " in task}


@pytest.mark.slow
def test_the_real_kolla_ansible_takes_every_step(kolla: Kolla, deployable: Path, tmp_path: Path) -> None:
    inventory = local_inventory(kolla, tmp_path / "inventory", ["gpu-server"])
    for step in steps(deployable, inventory):
        if step.name == "bootstrap-servers":  # its role comes from a git repository, not from an index of packages
            done = kolla.run(*step.words, "--list-tasks")
            assert done.returncode == 0 or "role 'openstack.kolla.baremetal' was not found" in done.stdout + done.stderr
        else:
            assert listed(kolla, step)


def test_the_inventory_is_read_by_ansible_itself(kolla: Kolla, tmp_path: Path) -> None:
    inventory = local_inventory(kolla, tmp_path / "inventory", ["gpu-server", "hyper18"])
    parsed = read_inventory([inventory], "compute", kolla.folder / "bin/ansible-inventory")
    assert parsed.computes == ("gpu-server", "hyper18")
    assert parsed.variables["hyper18"]["ansible_connection"] == "local"


def gpuyard(
    kolla: Kolla, site_file: Path, folder: Path, inventory: Path, words: Sequence[str], *more: str
) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "gpuyard.cli.main", "site", *words]
    command += ["--site", str(site_file), "--kolla", str(folder), "-i", str(inventory), *more]
    environment = kolla.environment()
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=environment)


def test_the_real_prechecks_fail_without_a_container_engine_and_the_reason_is_theirs(
    kolla: Kolla, deployable: Path, tmp_path: Path
) -> None:
    inventory = local_inventory(kolla, tmp_path / "inventory", ["gpu-server"])
    document = {
        "site": "test",
        "release": "2026.1",
        "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
        "pools": {"v100": {"models": [V100]}},
    }
    place = write_site(tmp_path, json.dumps(document), {"gpu-server": epyc()}), deployable, inventory
    assert gpuyard(kolla, *place, ["render"]).returncode == 0
    done = gpuyard(kolla, *place, ["deploy", "prechecks"], "--yes", "--logs", str(tmp_path / "logs"))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "[1/1] prechecks: failed after" in done.stdout
    assert re.search(r"^  control01: .*: .*No module named 'docker'", done.stdout, re.MULTILINE), done.stdout
    assert "go on with: gpuyard site deploy prechecks --site " in done.stderr
    (log,) = (tmp_path / "logs").glob("*.log")
    assert "PLAY RECAP" in log.read_text()


@pytest.mark.slow
def test_the_real_kolla_ansible_writes_what_the_site_means(
    kolla: Kolla, deployable: Path, tmp_path: Path, example: CompiledSite
) -> None:
    """genconfig runs the roles with their own templates; the result is what containers would start with."""
    from nova.compute import provider_config

    hosts = ["gpu-server", "hyper18"]
    inventory = local_inventory(kolla, tmp_path / "inventory", [*example.site.hosts, "plain01"])
    write_override(deployable, "nova.conf", "[libvirt]\ncpu_mode = host-passthrough\n")
    write_override(deployable, "nova/hyper18/nova-compute.conf", "[compute]\nmax_concurrent_disk_ops = 3\n")
    site_file = tmp_path / "site.yaml"
    text = plain_site().read_text()
    site_file.write_text('release: "2026.1"\n' + re.sub(r"^release:.*\n", "", text, flags=re.MULTILINE))
    example = load_site(site_file).compiled
    assert gpuyard(kolla, site_file, deployable, inventory, ["render"]).returncode == 0
    limit = ",".join(["control01", *hosts, "plain01", "localhost"])
    words = ["genconfig", "--configdir", str(deployable), "--inventory", str(inventory), "--tags", "nova,placement"]
    done = kolla.run(*words, "--limit", limit)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr
    out = tmp_path / "out"
    for host, service in [(host, "nova-compute") for host in (*hosts, "plain01")] + [
        ("control01", name) for name in ("nova-api", "nova-scheduler", "nova-conductor", "nova-metadata")
    ]:
        text = (out / host / service / "nova.conf").read_text()
        options = meant(example, service, host)
        assert nova_values(tmp_path, text, options) == nova_values(tmp_path, render_ini(options), options)
        values = assignments(text)
        assert values[("libvirt", "cpu_mode")] == ["host-passthrough"]
        assert values[("oslo_limit", "password")] == values[("service_user", "password")]
        assert values[("oslo_limit", "auth_url")] == values[("service_user", "auth_url")]
    assert assignments((out / "hyper18/nova-compute/nova.conf").read_text())[
        ("compute", "max_concurrent_disk_ops")
    ] == ["3"]
    for host in hosts:
        (tmp_path / f"p-{host}").mkdir()
        text = (out / host / "nova-compute/provider_config.yaml").read_text()
        (tmp_path / f"p-{host}/provider_config.yaml").write_text(text)
        (found_config,) = provider_config.get_provider_configs(str(tmp_path / f"p-{host}")).values()
        assert found_config["identification"] == {"uuid": "$COMPUTE_NODE"}
        assert "provider_config.yaml" in (out / host / "nova-compute/config.json").read_text()
    assert not (out / "plain01/nova-compute/provider_config.yaml").exists()
    assert "provider_config" not in (out / "plain01/nova-compute/config.json").read_text()
    assert (out / "control01/placement-api/placement.conf").exists()
