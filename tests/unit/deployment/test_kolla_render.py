"""What gpuyard writes into a Kolla folder or a plain tree, what it leaves alone, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.deployment.cli.render import changes_of
from gpuyard.deployment.kolla import ini
from gpuyard.deployment.kolla.folder import read_folder
from gpuyard.deployment.kolla.layers import OLD_NAMES, neighbours, override
from gpuyard.deployment.kolla.operator_inventory import KollaInventory, inventory_names, parse_inventory, read_inventory
from gpuyard.deployment.kolla.plain import OURS, plain_files, plan_plain
from gpuyard.deployment.kolla.render import ROLE_NOTE, Rendering, plan_kolla
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.runtime.config_files import Change, write
from gpuyard.site.compile import CompiledSite
from gpuyard.site.options import Option
from gpuyard.site.schema import Host, Overhead, Site
from tests.support.gateways import CINDER, CONSOLES, DASHBOARD
from tests.support.kolla import kolla_folder, write_override
from tests.support.services import nova_configuration
from tests.support.sites import flavor, site, write_site
from tests.support.sysfs import epyc

HOST = "gpu-server"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> CompiledSite:
    return site(tmp_path_factory.mktemp("site"), {"flavors": {"one": flavor(gpus={"v100": 1})}}).compiled


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return kolla_folder(tmp_path / "etc")


def plan(compiled: CompiledSite, folder: Path, inventory: KollaInventory | None = None) -> Rendering:
    return plan_kolla(compiled, read_folder(folder), inventory)


def carry_out(compiled: CompiledSite, folder: Path, most: int = 100) -> int:
    rendering = plan(compiled, folder)
    assert rendering.refusals == ()
    for change in rendering.changes[:most]:
        write(change)
    return len(rendering.changes)


def texts(folder: Path) -> dict[str, str]:
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def test_each_option_goes_to_the_narrowest_file(compiled: CompiledSite, folder: Path) -> None:
    carry_out(compiled, folder)
    files = texts(folder)
    assert set(files) == {
        "globals.yml",
        "globals.d/gpuyard.yml",
        "config/nova.conf",
        "config/nova/nova-scheduler.conf",
        f"config/nova/{HOST}/nova-compute.conf",
    }
    assert files["config/nova.conf"].count("\nalias = ") == 5
    assert files[f"config/nova/{HOST}/nova-compute.conf"].count("\ndevice_spec = ") == 6
    assert "device_spec" not in files["config/nova.conf"]
    assert files["globals.yml"] == '---\nkolla_base_distro: "ubuntu"\n'


def test_a_second_run_changes_nothing_and_a_killed_one_is_finished_by_the_next(
    compiled: CompiledSite, folder: Path
) -> None:
    count = carry_out(compiled, folder, most=2)
    assert count > 2
    assert carry_out(compiled, folder) == count - 2
    assert carry_out(compiled, folder) == 0


def test_what_somebody_changed_in_the_block_comes_back(compiled: CompiledSite, folder: Path) -> None:
    carry_out(compiled, folder)
    path = folder / "config/nova.conf"
    expected = path.read_text()
    path.write_text(expected.replace("alias = ", "# alias = ", 1))
    assert carry_out(compiled, folder) == 1
    assert path.read_text() == expected


OPERATORS = [
    "",
    "# mine\n[DEFAULT]\ndebug = true\n",
    "[DEFAULT]\r\ncpu_allocation_ratio = 4.0\r\n\r\n[libvirt]\r\nhw_disk_discard = unmap",
    "\n\n{% if nova_console == 'novnc' %}\n[vnc]\nenabled = {{ x }}\n{% endif %}\n",
    "[pci]\n# alias = {}\n;alias = {}\n{# alias = 1 #}\n[DEFAULT]\nalias = not the same section\n",
]


@pytest.mark.parametrize("text", OPERATORS)
def test_an_operators_own_lines_stay_and_are_left_when_gpuyards_go(
    compiled: CompiledSite, folder: Path, text: str
) -> None:
    path = write_override(folder, "nova.conf", text)
    path.chmod(0o640)
    carry_out(compiled, folder)
    written = path.read_bytes()
    assert written.startswith(ini.BEGIN.encode())
    assert written.endswith(f"{ini.END}\n{text}".encode())
    assert path.stat().st_mode & 0o777 == 0o640
    nothing = CompiledSite(**{**vars(compiled), "options": (), "provider_configs": ()})
    carry_out(nothing, folder)
    assert (path.read_bytes() if path.exists() else b"") == text.encode()
    assert not (folder / "globals.d/gpuyard.yml").exists()
    assert not (folder / f"config/nova/{HOST}/nova-compute.conf").exists()


PLAIN = st.text(st.sampled_from("ab=[]# \n{}%'\"-\t\r"), max_size=60)


@given(own=PLAIN, value=st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=30))
def test_a_block_comes_out_of_a_file_as_it_went_in(own: str, value: str) -> None:
    text = ini.join(ini.block([Option("pci", "alias", value, "why")]), own)
    halves = ini.split(text, "nova.conf")
    assert halves.own == own
    assert halves.line(1) == halves.block.count("\n") + 1


@given(st.lists(st.sampled_from(["{", "}", "{{", "{%", "{#", "%}", "#}", "x", '"', "'", "\\", "\n"])))
def test_jinja2_renders_the_values_as_they_are(parts: list[str]) -> None:
    text = f"a = {''.join(parts)}\nb = 1\n"
    environment = jinja2.Environment(trim_blocks=True, keep_trailing_newline=True)  # as Ansible has it
    assert environment.from_string(ini.literal(text)).render() == text


@pytest.mark.parametrize(
    ("path", "text", "line", "words"),
    [
        ("nova.conf", "[pci]\n# mine\nalias = {}\n", 3, "in the same file"),
        ("nova.conf", "[PCI]\nalias={}\n", 2, "in the same file"),
        ("nova.conf", "{% if x %}\n[pci]\nalias: {}\n{% endif %}\n", 3, "in the same file"),
        ("nova/nova-api.conf", "[pci]\nalias = {}\n", 2, "this hides what gpuyard sets in /"),
        ("nova/control01/nova.conf", "[filter_scheduler]\nenabled_filters = A\n", 2, "this hides"),
        ("nova/control01/nova.conf", "[scheduler]\nworkers = 3\n", 2, "this hides"),
        ("nova/gpu-server/nova.conf", "[quota]\ndriver = x\n", 2, "this hides"),
        ("nova/gpu-server/nova.conf", "[pci]\ndevice_spec = {}\n", 2, "nova-compute.conf hides this"),
        ("nova/nova-compute.conf", "[pci]\n\ndevice_spec = {}\n", 3, "nova-compute.conf hides this"),
        ("global.conf", "[pci]\nalias = {}\n", 2, "nova.conf hides this"),
        ("nova.conf", "[pci]\npassthrough_whitelist = {}\n", 2, "old name of [pci]device_spec"),
        ("nova.conf", "[DEFAULT]\npci_alias = {}\n", 2, "old name of [pci]alias"),
        ("nova/gpu-server/nova-compute.conf", "x = 1\n", 1, "it stands in no section"),
        ("nova.conf", "#jinja2: trim_blocks: False\n[a]\n", 1, "works on the first line only"),
        ("nova.conf", "\n{%- if x %}\n[a]\n{% endif %}", 1, "eats the end of the line"),
    ],
)
def test_a_key_with_two_owners_is_refused(
    compiled: CompiledSite, folder: Path, path: str, text: str, line: int, words: str
) -> None:
    write_override(folder, path, text)
    (refusal,) = plan(compiled, folder).refusals
    assert f"{folder / 'config' / path} line {line}" in refusal
    assert words in refusal


SHARING = {"overhead": {"ram": "8 GiB", "disk": "20 GiB"}, "cpu_allocation_ratio": 2.0}
SETS = {"cpu_shared_set": "0-7", "cpu_dedicated_set": "8-15"}
CPUS = {"overhead": {**SHARING["overhead"], "vcpus": 2}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("path", "text", "words"),
    [
        ("nova.conf", "[pci]\nalias = {}\n", "write your alias under `extra_aliases`"),
        ("nova.conf", "[DEFAULT]\npci_alias = {}\n", "write your alias under `extra_aliases`"),
        ("nova.conf", "[pci]\npassthrough_whitelist = {}\n", "under `hosts.HOST.extra_device_specs`"),
        (f"nova/{HOST}/nova.conf", "[pci]\ndevice_spec = {}\n", f"under `hosts.{HOST}.extra_device_specs`"),
        ("nova.conf", "[filter_scheduler]\nenabled_filters = A\n", "write your filters under `extra_filters`"),
        ("nova.conf", "[DEFAULT]\nreserved_host_cpus = 1\n", "as `vcpus` under `hosts.HOST.overhead`"),
        ("nova.conf", "[DEFAULT]\nreserved_host_memory_mb = 1\n", "as `ram` under `hosts.HOST.overhead`"),
        ("nova.conf", "[DEFAULT]\nreserved_host_disk_mb = 1\n", "as `disk` under `hosts.HOST.overhead`"),
        ("nova.conf", "[DEFAULT]\ncpu_allocation_ratio = 4\n", "as `hosts.HOST.cpu_allocation_ratio`"),
        (f"nova/{HOST}/nova-compute.conf", "[compute]\ncpu_shared_set = 1\n", f"as `hosts.{HOST}.cpu_shared_set`"),
        ("nova.conf", "[compute]\ncpu_dedicated_set = 1\n", "as `hosts.HOST.cpu_dedicated_set`"),
        ("nova.conf", "[quota]\ndriver = x\n", "`gpu_quotas` in the site file decides it"),
        ("nova.conf", "[pci]\nreport_in_placement = no\n", "`pci_in_placement` in the site file decides it"),
        ("nova.conf", "[DEFAULT]\nram_allocation_ratio = 2\n", "delete the line: the site decides it"),
    ],
)
def test_a_conflict_says_where_in_the_site_file_the_value_belongs(
    folder: Path, tmp_path: Path, path: str, text: str, words: str
) -> None:
    wish = {"recording": f"{HOST}.json", **SHARING, **(CPUS if "host_cpus" in text else SETS)}
    shared = site(tmp_path, {"hosts": {HOST: wish}}).compiled
    write_override(folder, path, text)
    (refusal,) = plan(shared, folder).refusals
    assert words in refusal
    assert " for [" not in refusal
    keys = re.findall(r"`(?:hosts\.[\w-]+\.)?(\w+)`", refusal)
    assert set(keys) <= {*Site.model_fields, *Host.model_fields, *Overhead.model_fields}


@pytest.mark.parametrize("place", ["globals.yml", "globals.d/aa.yml", "globals.d/zz.yml", "inventory"])
def test_an_own_provider_config_is_refused_also_beside_what_gpuyard_wrote(
    compiled: CompiledSite, folder: Path, place: str
) -> None:
    carry_out(compiled, folder)
    assert (folder / "globals.d/gpuyard.yml").exists()
    line = "nova_cell_compute_provider_config: {}\n"
    hosts = (HOST, "other")
    if place == "inventory":
        inventory = KollaInventory(hosts, {host: {"nova_cell_compute_provider_config": {}} for host in hosts})
    else:
        inventory = KollaInventory(hosts, {})
        (folder / place).write_text(line)
    (refusal,) = plan(compiled, folder, inventory).refusals
    assert refusal.startswith(
        f"the inventory, of host {HOST}, (and of 1 more)" if place == "inventory" else str(folder / place)
    )
    assert "`inventories` and `traits`" in refusal


def test_a_refusal_ends_the_command_before_anything_is_written(folder: Path) -> None:
    write_override(folder, "nova.conf", "[pci]\nalias = {}\n")
    before = texts(folder)
    done = gpuyard(folder.parent, "--kolla", str(folder))
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith("gpuyard: nothing was written:\n- ")
    assert texts(folder) == before


def test_lines_are_counted_in_the_file_that_has_a_block(compiled: CompiledSite, folder: Path) -> None:
    carry_out(compiled, folder)
    path = folder / "config/nova.conf"
    path.write_text(path.read_text() + "[pci]\nalias = {}\n")
    (refusal,) = plan(compiled, folder).refusals
    assert f"line {len(path.read_text().splitlines())} " in refusal


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("nova/nova-compute/notes.txt", "[pci]\nalias = {}\n"),
        ("neutron.conf", "[pci]\nalias = {}\n"),
        ("placement.conf", "[pci]\nalias = {}\n"),
        ("nova/control01/nova-scheduler.conf", "[scheduler]\nworkers = 3\n"),  # no role reads it
        ("nova/other/nova.conf", "[pci]\ndevice_spec = {}\n"),
        ("nova/other/nova-compute.conf", "[DEFAULT]\nram_allocation_ratio = 2\n"),
        ("nova.conf", "[DEFAULT]\nram_allocation_ratio = 1.0\n"),  # the same value
    ],
)
def test_what_is_merged_into_another_file_or_says_the_same_is_the_operators_business(
    compiled: CompiledSite, folder: Path, path: str, text: str
) -> None:
    write_override(folder, path, text)
    carry_out(compiled, folder)
    assert (folder / "config" / path).read_text().endswith(text)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ("", ("Cinder: enable_cinder is 'no' by default, and neither", "nova-serialproxy: enable_nova_serialconsole")),
        ("enable_cinder: yes\nenable_nova_serialconsole_proxy: 'true'\n", ()),
        (
            "enable_cinder: yes\nenable_nova_serialconsole_proxy: yes\nenable_horizon: no\nnova_console: spice\n",
            ("Horizon: enable_horizon is 'no' in ", "nova-novncproxy: nova_console is 'spice' in "),
        ),
        ("enable_cinder: '{{ x }}'\nenable_nova_serialconsole_proxy: '{{ y }}'\n", ()),
    ],
)
def test_what_kolla_does_not_deploy_cannot_be_at_the_gateway(
    tmp_path: Path, variables: str, words: tuple[str, ...]
) -> None:
    consoles = {name: CONSOLES[name] for name in ("novnc", "serial")}
    gateway = {"dashboard": DASHBOARD, "services": {"block-storage": CINDER}, "consoles": consoles}
    compiled = site(tmp_path, {"gateway": gateway}).compiled
    refusals = plan(compiled, kolla_folder(tmp_path / "etc", variables)).refusals
    assert len(refusals) == len(words)
    for refusal, part in zip(refusals, words, strict=True):
        assert refusal.startswith(f"Kolla does not deploy {part}")
    without = site(tmp_path, {"gateway": {"dashboard": DASHBOARD}}).compiled
    assert len(plan(without, kolla_folder(tmp_path / "other", variables)).refusals) == ("enable_horizon" in variables)
    by_inventory = KollaInventory((HOST,), {HOST: {"enable_cinder": "yes", "enable_nova_serialconsole_proxy": True}})
    if not variables:
        assert plan(compiled, tmp_path / "etc", by_inventory).refusals == ()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("enable_neutron_sriov: true", "globals.yml line 2: enable_neutron_sriov"),
        ('enable_neutron_sriov: "yes"\nnova_pci_passthrough_whitelist: [{devname: eth1}]', "has a devname"),
        ("nova_pci_passthrough_whitelist: \"[{'devname': 'eth1'}]\"", "has a devname"),
        ("enable_blazar: yes", "BlazarFilter"),
        ("enable_nova_fake: yes", "no virtual machines"),
        ("enable_nova: no", "needs the service"),
        ("enable_placement: 'False'", "needs the service"),
        ("openstack_release: 2025.1", "write 'release: \"2025.1\"'"),
        ("nova_cell_compute_provider_config: {}", "only one of the two"),
    ],
)
def test_a_variable_that_contradicts_the_site_is_refused_with_its_place(
    compiled: CompiledSite, tmp_path: Path, text: str, words: str
) -> None:
    folder = kolla_folder(tmp_path / "etc", f"---\n{text}\n")
    (refusal,) = plan(compiled, folder).refusals
    assert str(folder / "globals.yml") in refusal
    assert words in refusal


@pytest.mark.parametrize(
    "text",
    [
        "enable_neutron_sriov: no",
        "enable_neutron_sriov: yes\nneutron_sriov_physnet_mappings: {}",
        'enable_neutron_sriov: yes\nnova_pci_passthrough_whitelist: [{address: "0000:01:*.*", physical_network: a}]',
        "openstack_release: 2026.2",
        "openstack_release: master",
        "# enable_blazar: yes",
        "password: !vault |\n  $ANSIBLE_VAULT;1.1\n",
    ],
)
def test_other_values_are_fine(compiled: CompiledSite, tmp_path: Path, text: str) -> None:
    assert plan(compiled, kolla_folder(tmp_path / "etc", f"---\n{text}\n")).refusals == ()


def test_a_later_file_of_globals_d_wins_and_jinja2_is_only_a_doubt(compiled: CompiledSite, tmp_path: Path) -> None:
    folder = kolla_folder(tmp_path / "etc", "enable_blazar: no\nenable_nova: '{{ x }}'\n")
    (folder / "globals.d").mkdir()
    (folder / "globals.d/a.yml").write_text("enable_blazar: yes\n")
    rendering = plan(compiled, folder)
    assert "globals.d/a.yml line 1: enable_blazar" in rendering.refusals[0]
    assert "globals.yml line 2: enable_nova is '{{ x }}'" in rendering.notes[0]
    (folder / "globals.d/b.json").write_text('{"enable_blazar": false}')
    assert plan(compiled, folder).refusals == ()


@pytest.mark.parametrize(
    ("release", "globals_", "said"),
    [
        (None, "", "OpenStack 2026.2 by default, because the site file names none, and the newest Kolla"),
        ("2026.2", "", "OpenStack 2026.2, and the newest Kolla that gpuyard knows deploys 2026.1"),
        ("2026.2", "openstack_release: '2026.2'\n", None),
        ("2026.1", "", None),
    ],
)
def test_a_release_that_kolla_does_not_have_is_said(
    tmp_path: Path, release: str | None, globals_: str, said: str | None
) -> None:
    stated = {} if release is None else {"release": release}
    notes = plan(site(tmp_path, stated).compiled, kolla_folder(tmp_path / "etc", f"---\n{globals_}")).notes
    matches = [note for note in notes if "newest Kolla" in note]
    assert len(matches) == (said is not None)
    assert (said or "") in "".join(matches)


def test_the_inventory_speaks_where_globals_do_not(compiled: CompiledSite, folder: Path) -> None:
    inventory = KollaInventory((HOST,), {HOST: {"enable_neutron_sriov": True}})
    assert f"of host {HOST}" in plan(compiled, folder, inventory).refusals[0]
    (folder / "globals.yml").write_text("enable_neutron_sriov: false\n")
    assert plan(compiled, folder, inventory).refusals == ()


def test_network_cards_of_other_hosts_are_not_the_sites(compiled: CompiledSite, folder: Path) -> None:
    inventory = KollaInventory((HOST, "cpu7"), {"cpu7": {"enable_neutron_sriov": True}})
    assert plan(compiled, folder, inventory).refusals == ()


def test_an_operators_oslo_limit_is_left_to_him(compiled: CompiledSite, folder: Path) -> None:
    write_override(folder, "nova.conf", "[oslo_limit]\nauth_url = https://k\n")
    rendering = plan(compiled, folder)
    assert ROLE_NOTE in rendering.notes
    assert any("nova.conf line 1" in note or "nova.conf line 2" in note for note in rendering.notes)
    assert sum((change.after or "").count("[oslo_limit]") for change in rendering.changes) == 1


def test_no_secret_is_written_down(compiled: CompiledSite, folder: Path) -> None:
    carry_out(compiled, folder)
    assert "password = {{ nova_keystone_password }}\n" in (folder / "config/nova.conf").read_text()


def test_node_custom_config_says_where_overrides_are(compiled: CompiledSite, tmp_path: Path) -> None:
    folder = kolla_folder(tmp_path / "etc", 'node_custom_config: "{{ node_config }}/../overrides"\n')
    carry_out(compiled, folder)
    assert (tmp_path / "overrides/nova.conf").exists()
    (folder / "globals.yml").write_text('node_custom_config: "{{ lookup(1) }}"\n')
    with pytest.raises(UsageError, match=r"globals\.yml line 1: node_custom_config"):
        read_folder(folder)


def test_super_conductors_get_what_conductors_get(compiled: CompiledSite, tmp_path: Path) -> None:
    from gpuyard.site.options import ServiceOptions

    more = ServiceOptions("nova-conductor", None, (Option("conductor", "workers", "1"),))
    changed = CompiledSite(**{**vars(compiled), "options": (*compiled.options, more)})
    carry_out(changed, kolla_folder(tmp_path / "one"))
    carry_out(changed, kolla_folder(tmp_path / "cells", "enable_cells: yes\n"))
    names = {name: (tmp_path / name / "config/nova").glob("*conductor.conf") for name in ("one", "cells")}
    assert {name: sorted(path.name for path in paths) for name, paths in names.items()} == {
        "one": ["nova-conductor.conf"],
        "cells": ["nova-conductor.conf", "nova-super-conductor.conf"],
    }


def test_a_hypervisor_that_stays_must_go_on_reporting(compiled: CompiledSite, folder: Path) -> None:
    carry_out(compiled, folder)
    gone = CompiledSite(
        **{**vars(compiled), "options": tuple(options for options in compiled.options if options.host is None)}
    )
    assert any("report_in_placement would go" in note for note in plan(gone, folder).notes)
    (refusal,) = plan(gone, folder, KollaInventory((HOST,), {})).refusals
    assert f"take {HOST} out of the inventory" in refusal


def test_broken_blocks_and_folders_are_named(compiled: CompiledSite, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="has no globals"):
        read_folder(tmp_path / "nowhere")
    (folder / "globals.yml").write_text("a: [\n")
    with pytest.raises(UsageError, match=r"globals.yml line 2: not YAML"):
        read_folder(folder)
    (folder / "globals.yml").write_text("$ANSIBLE_VAULT;1.1;AES256\n")
    with pytest.raises(UsageError, match="encrypted as a whole"):
        read_folder(folder)
    (folder / "globals.yml").write_text("")
    (folder / "globals.d").mkdir()
    (folder / "globals.d/gpuyard.yml").write_text("mine: 1\n")
    assert "rename it" in plan(compiled, folder).refusals[0]
    write_override(folder, "nova.conf", f"[a]\n{ini.BEGIN}\n")
    with pytest.raises(UsageError, match=r"nova.conf: lines 2: gpuyard's block must begin once"):
        plan(compiled, folder)
    (folder / "config/nova.conf").write_bytes(b"\xff")
    with pytest.raises(UsageError, match="byte 0 is not UTF-8"):
        read_folder(folder)


def test_a_file_that_somebody_else_changes_meanwhile_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("theirs")
    with pytest.raises(GpuyardError, match="changed by somebody else"):
        write(Change(tmp_path / "a", "old", "new"))
    assert (tmp_path / "a").read_text() == "theirs"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write(Change(tmp_path / "link", "old", "new"))
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_names_in_the_inventory() -> None:
    document: dict[str, Any] = {
        "_meta": {"hostvars": {}},
        "compute": {"children": ["rack1", "compute"], "hosts": ["gpu1"]},
        "rack1": {"hosts": ["gpu2.example.com", "gpu1"]},
    }
    inventory = parse_inventory(document, "compute")
    assert inventory.computes == ("gpu1", "gpu2.example.com")
    assert inventory_names(["gpu1", "gpu2"], inventory.computes, "compute") == (
        {"gpu1": "gpu1", "gpu2": "gpu2.example.com"},
        [],
    )
    assert "is none of its hosts: gpu1, gpu2" in inventory_names(["x"], inventory.computes, "compute")[1][0]
    assert "would both be gpu1" in inventory_names(["gpu1", "gpu1.a"], inventory.computes, "compute")[1][0]
    assert "could be a.x or a.y" in inventory_names(["a"], ["a.x", "a.y"], "compute")[1][0]


def test_a_host_is_written_under_its_name_in_the_inventory(compiled: CompiledSite, folder: Path) -> None:
    rendering = plan(compiled, folder, KollaInventory((f"{HOST}.example.com",), {}))
    assert folder / f"config/nova/{HOST}.example.com/nova-compute.conf" in [change.path for change in rendering.changes]
    assert any(f"\n  {HOST}.example.com:\n" in (change.after or "") for change in rendering.changes)
    assert "is none of its hosts" in plan(compiled, folder, KollaInventory(("other",), {})).refusals[0]


def test_neighbours_know_what_hides_what() -> None:
    assert neighbours(override("nova", None), ["a"])["nova/a/nova-compute.conf"] is True
    assert neighbours(override("nova-compute", "a"), ["a", "b"]) == {
        "global.conf": False,
        "nova.conf": False,
        "nova/nova-compute.conf": False,
        "nova/a/nova.conf": False,
    }
    assert override("placement", None) == "placement.conf"


def test_every_old_name_of_what_is_rendered_is_known(compiled: CompiledSite, tmp_path: Path) -> None:
    with nova_configuration(tmp_path, "") as conf:
        for options in compiled.options:
            for option in options.options if options.service != "placement" else ():
                group = conf if option.section == "DEFAULT" else getattr(conf, option.section)
                registered = conf._opts if group is conf else conf._get_group(option.section)._opts
                if option.key in registered:
                    for old in registered[option.key]["opt"].deprecated_opts:
                        name = (old.group or "DEFAULT", old.name or option.key)
                        assert name in OLD_NAMES[(option.section, option.key)]


def test_a_plain_tree_is_kept_up_to_date_and_foreign_files_stay(compiled: CompiledSite, tmp_path: Path) -> None:
    files = plain_files(compiled)
    assert f"nova/{HOST}/provider_config/gpuyard.yaml" in files
    assert all(text.startswith(OURS) for text in files.values())
    for change in plan_plain(files, tmp_path):
        write(change)
    assert plan_plain(files, tmp_path) == ()
    (tmp_path / "nova/mine.conf").write_text("[DEFAULT]\n")
    (tmp_path / "nova/gone").mkdir()
    (tmp_path / "nova/gone/nova-compute.conf").write_text(files["nova/nova.conf"])
    (change,) = plan_plain(files, tmp_path)
    assert (change.path, change.after) == (tmp_path / "nova/gone/nova-compute.conf", None)
    (tmp_path / "nova/nova.conf").write_text("[DEFAULT]\n")
    with pytest.raises(BlockedError, match="was not written by gpuyard"):
        plan_plain(files, tmp_path)


def gpuyard(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """``gpuyard site render`` for the same site."""
    text = json.dumps(
        {
            "site": "test",
            "hosts": {HOST: {"recording": f"{HOST}.json"}},
            "pools": {"v100": {"models": ["10de:1db4"]}},
            "flavors": {"one": flavor(gpus={"v100": 1})},
        }
    )
    path = write_site(folder, text, {HOST: epyc()})
    command = [sys.executable, "-m", "gpuyard.cli.main", "site", "render", "--site", str(path), *words]
    return subprocess.run(command, capture_output=True, text=True)


def test_check_shows_a_diff_and_exits_with_3_until_there_is_none(folder: Path) -> None:
    before = texts(folder)
    checked = gpuyard(folder.parent, "--kolla", str(folder), "--check")
    assert checked.returncode == 3
    assert "+alias = {" in checked.stdout
    assert texts(folder) == before
    written = gpuyard(folder.parent, "--kolla", str(folder))
    assert (written.returncode, written.stderr.count("note: ")) == (0, 3)
    assert f"+ {folder}/config/nova.conf" in written.stdout.splitlines()
    again = gpuyard(folder.parent, "--kolla", str(folder), "--check")
    assert (again.returncode, again.stdout) == (0, f"Nothing to do: {folder} is as the site file says.\n")
    tree = folder.parent / "tree"
    assert gpuyard(folder.parent, "-o", str(tree), "--check").returncode == 3
    assert gpuyard(folder.parent, "-o", str(tree)).returncode == 0
    assert gpuyard(folder.parent, "-o", str(tree), "--check").returncode == 0


def inventory_program(path: Path, text: str, mode: int = 0o755) -> Path:
    """Stands in for ansible-inventory."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/sh\ncat <<'END'\n{text}\nEND\n")
    path.chmod(mode)
    return path


def test_a_plan_finds_nothing_where_the_inventory_has_other_names(
    compiled: CompiledSite, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listed = json.dumps({"compute": {"hosts": [f"{HOST}.example.org"]}, "_meta": {"hostvars": {}}})
    program = inventory_program(folder.parent / "bin/ansible-inventory", listed)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    inventory = folder.parent / "multinode"
    inventory.write_text("")
    for change in changes_of(compiled, None, folder, [inventory]):
        write(change)
    assert changes_of(compiled, None, folder, [inventory]) == ()
    assert changes_of(compiled, None, folder)
    with pytest.raises(UsageError, match="--inventory belongs to --kolla"):
        changes_of(compiled, None, None, [inventory])


def test_plan_takes_an_inventory(folder: Path) -> None:
    done = CliRunner().invoke(app, ["site", "plan", "--help"], env={"COLUMNS": "200", "TERM": "dumb"})
    assert "--inventory" in done.output


@pytest.mark.parametrize(
    ("text", "mode", "words"),
    [("not JSON", 0o755, "printed something that is not JSON"), ("{}", 0o644, "does not run: Permission denied")],
)
def test_an_ansible_inventory_that_does_not_answer_is_named(tmp_path: Path, text: str, mode: int, words: str) -> None:
    program = inventory_program(tmp_path / "bin/ansible-inventory", text, mode)
    with pytest.raises(GpuyardError) as caught:
        read_inventory([tmp_path], "compute", program)
    assert str(caught.value).startswith(str(program))
    assert words in str(caught.value)
    assert "Errno" not in str(caught.value)


@pytest.mark.parametrize("words", [("--check",), ("-o", "a", "--kolla", "b"), ("-i", "c")])
def test_words_that_do_not_go_together(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = gpuyard(tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.startswith("gpuyard: ")
