"""What a site compiles to, read back with Nova's own parsers."""

from __future__ import annotations

import json
import re
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.model.gpu import GpuRole
from gpuyard.site.encoding import letter_of
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.options import Option, render_ini
from gpuyard.site.problems import SiteError
from tests.support.services import nova_configuration, objects, placement_configuration, request, whitelist
from tests.support.sites import flavor, site, write_site
from tests.support.sysfs import T4, TITAN_XP, V100, Sysfs, epyc


def matches(loaded: LoadedSite, host: str) -> dict[str, dict[str, str]]:
    """Address -> tags of the spec that matches it, for every function of the host, by nova.pci.whitelist."""
    specs = loaded.compiled.options_of("nova-compute", host).values("pci", "device_spec")
    parsed = whitelist.Whitelist(specs)
    tags_by_address = {}
    for function in loaded.inventories[host].functions:
        device: dict[str, Any] = {
            "address": function.address,
            "vendor_id": function.vendor_id,
            "product_id": function.product_id,
            "dev_type": function.device_type.value,
            "parent_addr": function.physical_function,
            "capabilities": {},
        }
        spec = parsed.device_assignable(device)
        if spec is not None:
            tags_by_address[function.address] = dict(spec.tags)
    return tags_by_address


def test_every_v100_of_the_epyc_matches_its_own_spec_and_no_other_device_does(tmp_path: Path) -> None:
    machine = epyc().function("41:00.0", "8086:1563", "0200", 7).function("c5:00.0", V100, group=99, boot_vga="1")
    tags_by_address = matches(site(tmp_path, hosts={"gpu-server": machine}), "gpu-server")
    assert {address: (tags["resource_class"], tags.get("traits")) for address, tags in tags_by_address.items()} == {
        "0000:27:00.0": ("CUSTOM_GPU_V100", "CUSTOM_GPU_SET_A"),
        "0000:28:00.0": ("CUSTOM_GPU_V100_PEER", "CUSTOM_GPU_SET_A"),
        "0000:44:00.0": ("CUSTOM_GPU_V100", None),
        "0000:a3:00.0": ("CUSTOM_GPU_V100", None),
        "0000:c3:00.0": ("CUSTOM_GPU_V100", "CUSTOM_GPU_SET_B"),
        "0000:c4:00.0": ("CUSTOM_GPU_V100_PEER", "CUSTOM_GPU_SET_B"),
    }


def test_nova_takes_the_aliases_and_flavors_ask_for_what_they_mean(tmp_path: Path) -> None:
    document = {
        "flavors": {"one": flavor(gpus={"v100": 1}), "pair": flavor(gpus={"v100": 2}, same_group=True)},
    }
    compiled = site(tmp_path, document).compiled
    requests_by_flavor = {}
    with nova_configuration(tmp_path, render_ini(compiled.options_of("nova").options)) as conf:
        assert conf.filter_scheduler.pci_in_placement is True
        assert "PciPassthroughFilter" in conf.filter_scheduler.enabled_filters
        for site_flavor in compiled.flavors:
            made = objects.Flavor(extra_specs=site_flavor.extra_specs)
            requests_by_flavor[site_flavor.name] = [
                (
                    pci_request.count,
                    pci_request.spec[0]["resource_class"],
                    pci_request.spec[0].get("traits"),
                    pci_request.spec[0]["dev_type"],
                )
                for pci_request in request.get_pci_requests_from_flavor(made).requests
            ]
    assert requests_by_flavor == {
        "one": [(1, "CUSTOM_GPU_V100", None, "type-PCI")],
        "pair-a": [
            (1, "CUSTOM_GPU_V100", "CUSTOM_GPU_SET_A", "type-PCI"),
            (1, "CUSTOM_GPU_V100_PEER", "CUSTOM_GPU_SET_A", "type-PCI"),
        ],
        "pair-b": [
            (1, "CUSTOM_GPU_V100", "CUSTOM_GPU_SET_B", "type-PCI"),
            (1, "CUSTOM_GPU_V100_PEER", "CUSTOM_GPU_SET_B", "type-PCI"),
        ],
    }


def test_nova_and_placement_know_every_option_and_take_every_value(tmp_path: Path) -> None:
    wide = Sysfs()
    for index in range(8):
        wide.function(f"{index + 16:02x}:00.0", V100, group=index)
    compiled = site(tmp_path, hosts={"wide": wide}).compiled
    placement = compiled.options_of("placement").options
    assert {option.key for option in placement} == {
        "max_allocation_candidates",
        "allocation_candidates_generation_strategy",
        "optimize_for_wide_provider_trees",
    }
    for options in compiled.options:
        if options.service == "placement":
            continue
        with nova_configuration(tmp_path, render_ini(options.options)) as conf:
            for option in options.options:
                group = conf if option.section == "DEFAULT" else conf[option.section]
                value = group[option.key]
                assert str(value).lower() == option.value or option.value in value or value == option.value.split(",")
    own = placement_configuration(tmp_path, render_ini(placement))
    assert own.placement.max_allocation_candidates == 100
    assert own.placement.allocation_candidates_generation_strategy == "breadth-first"
    assert own.workarounds.optimize_for_wide_provider_trees is True


def test_a_t4_is_asked_for_as_type_pf(tmp_path: Path) -> None:
    node = Sysfs()
    for index, address in enumerate(("18:00.0", "3b:00.0", "86:00.0", "af:00.0")):
        node.function(address, T4, group=index, sriov_totalvfs="16", sriov_numvfs="0")
    loaded = site(tmp_path, {"pools": {"t4": {"models": [T4]}}}, {"node": node})
    (alias,) = [json.loads(text) for text in loaded.compiled.options_of("nova").values("pci", "alias")]
    assert alias == {
        "name": "t4",
        "vendor_id": "10de",
        "product_id": "1eb8",
        "device_type": "type-PF",
        "resource_class": "CUSTOM_GPU_T4",
    }
    assert len(matches(loaded, "node")) == 4


def test_a_host_without_gpus_of_a_pool_goes_on_reporting(tmp_path: Path) -> None:
    """nova-compute does not start without, once it has reported; it may have had GPUs."""
    loaded = site(tmp_path, hosts={"gpu-server": epyc(), "bare": Sysfs().function("41:00.0", "8086:1563", "0200", 1)})
    (only,) = loaded.compiled.options_of("nova-compute", "bare").options
    assert (only.section, only.key, only.value) == ("pci", "report_in_placement", "true")


def test_gpus_that_the_host_needs_are_known_and_not_offered(tmp_path: Path) -> None:
    machine = epyc().function("a4:00.0", "144d:a808", "0108", 75).disk("nvme0n1", "259:0", "a4:00.0")
    loaded = site(tmp_path, hosts={"gpu-server": machine})
    assert "0000:a3:00.0" not in matches(loaded, "gpu-server")
    (blocked,) = [gpu for gpu in loaded.compiled.gpus if gpu.blocked]
    assert blocked.address == "0000:a3:00.0"
    assert "root disk" in blocked.blocked


def test_gpus_of_two_pools_in_one_group_go_to_the_leader_s_pool(tmp_path: Path) -> None:
    machine = Sysfs().function("27:00.0", V100, group=1).function("28:00.0", T4, group=1)
    loaded = site(tmp_path, {"pools": {"v100": {"models": [V100]}, "t4": {"models": [T4]}}}, {"mixed": machine})
    lone, blocked = loaded.compiled.gpus
    assert (lone.role, lone.blocked) == (GpuRole.LONE, "")
    assert "shares its IOMMU group with 0000:27:00.0 of pool v100" in blocked.blocked


def test_flavors_have_what_the_cards_of_their_pool_ask_of_a_vm(tmp_path: Path) -> None:
    from nova.api.validation.extra_specs import validators  # quiet once services.py has imported Nova
    from nova.virt import hardware

    machine = epyc().function("18:00.0", TITAN_XP, "0300", 39).function("19:00.0", T4, group=40)
    document = {
        "pools": {
            "v100": {"models": [V100]},
            "titan": {"models": [TITAN_XP], "hide_hypervisor": True},
            "t4": {"models": [T4], "big_bars": True},
        },
        "flavors": {
            "plain": flavor(),
            "v100": flavor(gpus={"v100": 1}),
            "titan": flavor(gpus={"titan": 1}),
            "shown": flavor(gpus={"titan": 1}, properties={"hw:hide_hypervisor_id": "false"}),
            "t4": flavor(gpus={"t4": 1}),
        },
    }
    compiled = site(tmp_path, document, {"gpu-server": machine}).compiled
    specs = {made.name: made.extra_specs for made in compiled.flavors}
    assert {name: {k: v for k, v in extra.items() if k.startswith("hw:")} for name, extra in specs.items()} == {
        "plain": {},
        "v100": {},
        "titan": {"hw:hide_hypervisor_id": "true"},
        "shown": {"hw:hide_hypervisor_id": "false"},
        "t4": {"hw:maxphysaddr_mode": "passthrough"},
    }
    validators.validate("hw:hide_hypervisor_id", "true")
    # Nova's scheduler and driver read this one, though its API takes it only from clients below microversion 2.86.
    no_image = objects.ImageMeta.from_dict({})
    assert hardware.get_maxphysaddr_mode(objects.Flavor(extra_specs=specs["t4"]), no_image) == "passthrough"


def test_names_of_sets_do_not_depend_on_other_hosts(tmp_path: Path) -> None:
    """A host that joins must not change the device_spec of others, nor the names of flavors in use."""
    trio = Sysfs()
    for bus in ("10", "11", "12"):
        trio.function(f"{bus}:00.0", V100, group=1)
    flavors = {"flavors": {"trio": flavor(gpus={"v100": 3}, same_group=True)}}
    alone = site(tmp_path, flavors, {"a": trio}).compiled
    beside = site(tmp_path, flavors, {"a": trio, "b": epyc()}).compiled
    assert [flavor.name for flavor in alone.flavors] == [flavor.name for flavor in beside.flavors] == ["trio-3a"]
    assert alone.options_of("nova-compute", "a") == beside.options_of("nova-compute", "a")


def test_candidates_reach_every_hypervisor(tmp_path: Path) -> None:
    wide = Sysfs()
    for bus in range(8):
        wide.function(f"{0x10 + bus:02x}:00.0", V100, group=bus + 1)
    for more, expected in (({}, "100"), ({"hypervisors": 300}, "1200")):
        options = site(tmp_path, more, {"wide": wide}).compiled.options_of("placement")
        assert options.values("placement", "max_allocation_candidates") == [expected]


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"flavors": {"a": flavor(properties={"pci_passthrough:alias": "v100:1"})}}, "is made from 'gpus'"),
        ({"flavors": {"a": flavor(properties={"resources:CUSTOM_GPU_V100_COUNT": "0"})}}, "is gpuyard's to set"),
        ({"flavors": {"a+b": flavor(), "a_b": flavor()}}, "two flavors come out as 'a_b'"),
        (
            {"pools": {"v100": {"models": [V100]}, "x": {"models": [T4], "alias": "v100-set-a"}}},
            "alias 'v100-set-a' is one of those of pool 'v100'",
        ),
        (
            {
                "aggregates": {
                    "one": {"hosts": ["gpu-server"], "availability_zone": "x"},
                    "two": {"hosts": ["gpu-server"], "availability_zone": "y"},
                }
            },
            "gpu-server is in another availability zone already, by aggregate 'one'",
        ),
        ({"aggregates": {"a b": {"hosts": ["gpu-server"]}}}, "does not look right"),
        ({"hosts": {"../x": {"recording": "gpu-server.json"}}}, "does not look right"),
        ({"hosts": {"gpu-server": {"recording": "gpu\0server.json"}}}, "null byte"),
    ],
)
def test_what_a_site_cannot_say(tmp_path: Path, document: dict[str, Any], message: str) -> None:
    with pytest.raises(SiteError, match=re.escape(message)):
        site(tmp_path, document)


@pytest.mark.parametrize(
    "text",
    [
        "flavors: &a {x: *a}",
        "x: &a [*a]",
        "x: " + "[" * 3000 + "]" * 3000,
        "projects: {1: {}, '1': {}}",
        "x: " + "9" * 5000,
    ],
)
def test_yaml_that_no_site_can_be(tmp_path: Path, text: str) -> None:
    with pytest.raises(SiteError):
        load_site(write_site(tmp_path, text))


def test_limits_fail_closed(tmp_path: Path) -> None:
    compiled = site(tmp_path, {"projects": {"demo": {"gpus": {"v100": 4}}}}).compiled
    assert {(limit.project, limit.resource): limit.value for limit in compiled.limits} == {
        (None, "class:CUSTOM_GPU_V100_COUNT"): 0,
        (None, "class:CUSTOM_GPU_V100"): 0,
        (None, "class:CUSTOM_GPU_V100_PEER"): 0,
        ("demo", "class:CUSTOM_GPU_V100_COUNT"): 4,
        ("demo", "class:CUSTOM_GPU_V100"): 4,
        ("demo", "class:CUSTOM_GPU_V100_PEER"): 4,
    }


@pytest.mark.parametrize(("index", "letters"), [(0, "A"), (25, "Z"), (26, "AA"), (51, "AZ"), (52, "BA")])
def test_set_letters(index: int, letters: str) -> None:
    assert letter_of(index) == letters


def test_reasons_stand_above_the_options() -> None:
    text = render_ini([Option("pci", "alias", "1", "because"), Option("pci", "alias", "2", "because")])
    assert text == "[pci]\n# because\nalias = 1\nalias = 2\n"


group_sizes = st.lists(st.integers(1, 4), min_size=1, max_size=6)


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(hosts=st.lists(group_sizes, min_size=1, max_size=3))
def test_a_request_for_a_set_can_only_be_met_by_one_whole_group(tmp_path: Path, hosts: list[list[int]]) -> None:
    """The rule that the encoding exists for, against every combination of GPUs that Placement could pick."""
    machines = {}
    for number, sizes in enumerate(hosts):
        machine, slot = Sysfs(), 0
        for group, size in enumerate(sizes):
            for _ in range(size):
                machine.function(f"{slot:02x}:00.0", V100, group=group)
                slot += 1
        machines[f"host{number}"] = machine
    sizes_seen = {size for sizes in hosts for size in sizes if size > 1}
    document = {"flavors": {f"x{n}": flavor(gpus={"v100": n}, same_group=True) for n in sizes_seen}}
    compiled = site(tmp_path, document, machines).compiled
    for site_flavor in compiled.flavors:
        leader_alias, peer_alias = site_flavor.extra_specs["pci_passthrough:alias"].split(",")
        letter = leader_alias.split(":")[0].rsplit("-", 1)[1].upper()
        peers_wanted = int(peer_alias.split(":")[1])
        for host in machines:
            members = [gpu for gpu in compiled.gpus if gpu.host == host and gpu.set_letter == letter]
            leaders = [gpu for gpu in members if gpu.role is GpuRole.LEADER]
            peers = [gpu for gpu in members if gpu.role is GpuRole.PEER]
            groups = {(a.group, b.group) for a, b in product(leaders, peers)}
            assert all(one == other for one, other in groups), "a set letter means one group of a host"
            assert not members or len(peers) == peers_wanted, "and takes it whole"
    for host, sizes in zip(machines, hosts, strict=True):
        leaders_and_lone = [g for g in compiled.gpus if g.host == host and g.role is not GpuRole.PEER]
        assert len(leaders_and_lone) == len(sizes), "one GPU can be had from every group"
