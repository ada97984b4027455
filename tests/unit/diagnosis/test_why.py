"""What a flavor asks for, what stands in the way of it, and what would take that away: the rules, without a cloud."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from nova.scheduler.filters import extra_specs_ops
from nova.scheduler.filters.aggregate_multitenancy_isolation import AggregateMultiTenancyIsolation

from gpuyard.diagnosis.cli.why import lines
from gpuyard.diagnosis.why.causes import match, unmet
from gpuyard.diagnosis.why.explain import explain
from gpuyard.diagnosis.why.facts import (
    Asker,
    ComputeNode,
    Device,
    Explanation,
    HostAggregate,
    HostStock,
    Limit,
    RequestFacts,
    RunningServer,
)
from gpuyard.model.gpu import FOREIGN
from gpuyard.nova.alias import Alias, aliases_of
from gpuyard.nova.filters import TENANT_FILTER
from gpuyard.nova.request import DeviceNeed, NovaFlavor, Request, request_of

SET_A = frozenset({"CUSTOM_GPU_SET_A"})
ALIASES = {
    name: Alias({"name": name, "resource_class": resource_class, "traits": traits, "device_type": "type-PCI"})
    for name, resource_class, traits in (
        ("v100", "CUSTOM_GPU_V100", ""),
        ("v100-set-a", "CUSTOM_GPU_V100", "CUSTOM_GPU_SET_A"),
        ("v100-peer-a", "CUSTOM_GPU_V100_PEER", "CUSTOM_GPU_SET_A"),
    )
}
FILTERS = frozenset({"NUMATopologyFilter", "AggregateInstanceExtraSpecsFilter"})


def flavor(**specs: str) -> NovaFlavor:
    return NovaFlavor("f", "f", vcpus=4, ram=8192, disk=20, ephemeral=10, swap=1500, extra_specs=specs)


def one_gpu(**specs: str) -> NovaFlavor:
    return flavor(**{"pci_passthrough:alias": "v100:1", **specs})


def device(number: int, **more: object) -> Device:
    values: dict[str, object] = {
        "provider": f"h_{number}", "host": "h", "address": f"0000:0{number}:00.0", "resource_class": "CUSTOM_GPU_V100",
        "traits": frozenset(), "state": "free", "device_type": "type-PCI", **more,
    }  # fmt: skip
    return Device(**values)  # type: ignore[arg-type]


def facts(nova_flavor: NovaFlavor, **more: object) -> tuple[RequestFacts, Request]:
    """One libvirt host with one free GPU and room for everything, and Placement agrees."""
    request = request_of(nova_flavor, ALIASES)
    host = ComputeNode("h", "id-h", "h", hypervisor_type="QEMU", zone="nova")
    values: dict[str, object] = {
        "flavor": nova_flavor,
        "hosts": (host,),
        "devices": (device(1),),
        "able": {item: frozenset({"id-h"}) for item in request.amounts.items()},
        "able_devices": {(need.resource_class, need.traits): frozenset({"h_1"}) for need in request.devices},
        "with_trait": {trait: frozenset({"id-h"}) for trait in request.traits},
        "candidates": frozenset({"id-h"}),
        "filters": FILTERS,
        **more,
    }
    return RequestFacts(**values), request  # type: ignore[arg-type]


def told(nova_flavor: NovaFlavor, **more: object) -> Explanation:
    return explain(*facts(nova_flavor, **more))


def kinds(nova_flavor: NovaFlavor, **more: object) -> list[str]:
    """Kinds of all causes, those of every host first."""
    explanation = told(nova_flavor, **more)
    return [cause.code for cause in (*explanation.causes, *(c for answer in explanation.hosts for c in answer.causes))]


NONE: dict[str, Any] = {"candidates": frozenset()}
"""Placement names no host."""


# What a flavor asks.


def test_a_flavor_asks_for_its_cpus_ram_and_all_its_disks() -> None:
    request = request_of(flavor(), {})
    assert request.amounts == {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 20 + 10 + 2}


@pytest.mark.parametrize(
    ("specs", "amounts"),
    [
        ({"resources:VCPU": "0"}, {"MEMORY_MB": 8192, "DISK_GB": 32}),
        ({"resources:MEMORY_MB": "1"}, {"VCPU": 4, "MEMORY_MB": 1, "DISK_GB": 32}),
        ({"resources:CUSTOM_X": "3"}, {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 32, "CUSTOM_X": 3}),
        ({"resources:VCPU": "many"}, {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 32}),
        ({"hw:cpu_policy": "dedicated"}, {"PCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 32}),
        ({"hw:cpu_policy": "shared"}, {"VCPU": 4, "MEMORY_MB": 8192, "DISK_GB": 32}),
        ({"resources1:VCPU": "4"}, {"MEMORY_MB": 8192, "DISK_GB": 32}),
    ],
)
def test_properties_replace_or_add_amounts(specs: dict[str, str], amounts: dict[str, int]) -> None:
    assert request_of(flavor(**specs), {}).amounts == amounts


def test_pinned_cpus_are_asked_for_a_second_time_as_shared_ones() -> None:
    first, second = request_of(flavor(**{"hw:cpu_policy": "dedicated"}), {}).queries()
    assert "PCPU:4" in first["resources"]
    assert "VCPU:4" in second["resources"]


def test_the_query_is_nova_s() -> None:
    request = request_of(
        flavor(**{"pci_passthrough:alias": "v100-set-a:1,v100-peer-a:2", "trait:X": "required"}), ALIASES
    )
    (query,) = request.queries()
    assert query == {
        "limit": "1000",
        "root_required": "!COMPUTE_STATUS_DISABLED",
        "resources": "DISK_GB:32,MEMORY_MB:8192,VCPU:4",
        "required": "X",
        "resources_DEVICE0": "CUSTOM_GPU_V100:1",
        "required_DEVICE0": "CUSTOM_GPU_SET_A",
        "resources_DEVICE1": "CUSTOM_GPU_V100_PEER:1",
        "required_DEVICE1": "CUSTOM_GPU_SET_A",
        "resources_DEVICE2": "CUSTOM_GPU_V100_PEER:1",
        "required_DEVICE2": "CUSTOM_GPU_SET_A",
        "group_policy": "none",
    }


def test_aliases_are_read_as_the_site_writes_them() -> None:
    text = '{"name": "a", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PF"}'
    more = '{"name": "b", "resource_class": "b", "traits": "CUSTOM_X,y"}'
    aliases = aliases_of([text, more])
    assert {(alias.name, alias.resource_class, alias.traits, alias.device_type) for alias in aliases.values()} == {
        ("a", "CUSTOM_PCI_10DE_1DB4", frozenset(), "type-PF"),
        ("b", "CUSTOM_B", frozenset({"CUSTOM_X", "CUSTOM_Y"}), None),
    }


@pytest.mark.parametrize(
    ("specs", "nodes"),
    [
        ({}, 0),
        ({"hw:numa_nodes": "2"}, 2),
        ({"hw:mem_page_size": "large"}, 1),
        ({"hw:cpu_policy": "dedicated"}, 1),
        ({"hw:cpu_policy": "dedicated", "hw:numa_nodes": "4"}, 4),
        ({"hw:cpu_policy": "shared"}, 0),
        ({"resources:PCPU": "4"}, 1),
        ({"hw:pci_numa_affinity_policy": "required"}, 0),
    ],
)
def test_what_has_nova_want_a_numa_topology(specs: dict[str, str], nodes: int) -> None:
    assert request_of(flavor(**specs), {}).numa_nodes == nodes


# What stands in the way.


def test_a_host_with_all_of_it_takes_the_server() -> None:
    explanation = told(one_gpu())
    assert explanation.would_start
    assert (explanation.where, explanation.causes, explanation.remedies) == (("h",), (), ())
    assert explanation.answer == "f would start on h"
    assert any("NoValidHost" in doubt for doubt in explanation.doubts)


@pytest.mark.parametrize(
    ("alias", "kind"),
    [("v100", "alias-malformed"), ("v100:x", "alias-malformed"), ("", "alias-malformed"), ("k80:1", "alias-unknown")],
)
def test_aliases_that_nova_does_not_take(alias: str, kind: str) -> None:
    assert kinds(flavor(**{"pci_passthrough:alias": alias})) == [kind]


def test_a_flavor_that_is_disabled() -> None:
    assert kinds(replace(one_gpu(), disabled=True)) == ["disabled"]


def test_a_private_flavor_of_others() -> None:
    private = replace(one_gpu(), public=False, projects=frozenset({"id-a"}))
    assert kinds(private, asker=Asker("id-a", "a")) == []
    assert kinds(private, asker=Asker("id-b", "b")) == ["access"]
    assert told(private, asker=Asker("id-b", "b")).first[0].kind == "grant-access"


def test_a_class_that_nobody_has_reported_is_told_once() -> None:
    nova_flavor = flavor(**{"resources:CUSTOM_X": "1"})
    assert kinds(nova_flavor, unknown_classes=frozenset({"CUSTOM_X"}), **NONE) == ["class"]


@pytest.mark.parametrize("state", ["claimed", "booked", "held", "lost", "blocked", "taken"])
def test_a_gpu_that_cannot_be_had_says_why(state: str) -> None:
    explanation = told(one_gpu(), devices=(device(1, state=state, reason="because"),), able_devices={}, **NONE)
    (cause,) = explanation.hosts[0].causes
    assert (cause.code, cause.payload["details"][0]["state"]) == ("gpu", state)
    assert "0 of 1 can be had: 0000:01:00.0 because" in cause.reason
    assert cause.remedy != "ask again"


def test_placement_has_the_last_word_on_what_was_read_a_moment_before() -> None:
    assert kinds(one_gpu(), able_devices={}, able={}) == []
    assert kinds(one_gpu(), **NONE) == ["placement"], "and when it refuses what should fit, that is said"


def test_the_peer_that_is_of_no_use_is_told() -> None:
    nova_flavor = flavor(**{"pci_passthrough:alias": "v100-set-a:1,v100-peer-a:1"})
    devices = (
        device(1, traits=SET_A, state="claimed", reason="is held by server x", stranded=("0000:02:00.0",)),
        device(2, traits=SET_A, resource_class="CUSTOM_GPU_V100_PEER"),
    )
    able = {("CUSTOM_GPU_V100", SET_A): frozenset[str](), ("CUSTOM_GPU_V100_PEER", SET_A): frozenset({"h_2"})}
    (cause,) = told(nova_flavor, devices=devices, able_devices=able, **NONE).hosts[0].causes
    assert "with trait CUSTOM_GPU_SET_A, 0 of 1" in cause.reason
    assert "so 0000:02:00.0 is free and of no use" in cause.reason


def test_hosts_without_such_gpus_are_only_named() -> None:
    other = ComputeNode("cpu", "id-cpu", "cpu")
    explanation = told(one_gpu(), hosts=(ComputeNode("h", "id-h", "h"), other))
    assert (explanation.where, explanation.others) == (("h",), ("cpu",))
    explanation = told(one_gpu(), hosts=(other,), devices=(), **NONE)
    assert ([cause.code for cause in explanation.causes], explanation.would_start) == (["no-host"], False)


def test_an_alias_of_another_device_type_never_matches() -> None:
    assert kinds(one_gpu(), devices=(device(1, device_type="type-PF"),)) == ["device-type"]


SCHEMA_MODULE = HostStock(total=16, reserved=2, ratio=2.0, max_unit=16, used=26)


@pytest.mark.parametrize(
    ("room", "kind"),
    [
        (SCHEMA_MODULE, "room"),
        (None, "class"),
        (replace(SCHEMA_MODULE, total=3), "too-big"),
        (replace(SCHEMA_MODULE, max_unit=3), "max-unit"),
    ],
)
def test_what_a_host_is_short_of(room: HostStock | None, kind: str) -> None:
    host = ComputeNode("h", "id-h", "h", rooms={"VCPU": room})
    able = {("MEMORY_MB", 8192): frozenset({"id-h"}), ("DISK_GB", 32): frozenset({"id-h"})}
    assert kinds(flavor(), hosts=(host,), able=able, **NONE) == [kind]
    if kind == "room":
        (cause,) = told(flavor(), hosts=(host,), able=able, **NONE).hosts[0].causes
        assert cause.reason == "not enough vCPUs: 4 asked, 2 free; 26 in use of 28, which is (16 - 2 reserved) * 2"
        assert cause.remedy == "free 2 vCPUs on the host"


def test_disk_that_a_provider_shares_is_not_missed() -> None:
    able = {
        ("MEMORY_MB", 8192): frozenset({"id-h"}),
        ("VCPU", 4): frozenset({"id-h"}),
        ("DISK_GB", 32): frozenset({"nfs"}),
    }
    assert kinds(flavor(), able=able, **NONE) == ["room"]
    assert kinds(flavor(), able=able, sharing=frozenset({"nfs"}), **NONE) == ["placement"]


def test_what_counts_gpus_is_not_told_beside_the_gpus() -> None:
    nova_flavor = one_gpu(**{"resources:CUSTOM_GPU_V100_COUNT": "1"})
    all_able = facts(nova_flavor)[0].able
    able = {key: value for key, value in all_able.items() if key[0] != "CUSTOM_GPU_V100_COUNT"}
    counting = frozenset({"CUSTOM_GPU_V100_COUNT"})
    assert kinds(nova_flavor, able=able, able_devices={}, counting=counting, **NONE) == ["gpu"]
    assert kinds(nova_flavor, able=able, counting=counting, **NONE) == ["room"]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"enabled": False, "disabled_reason": "fan"}, ["service-disabled"]),
        ({"up": False}, ["service-down"]),
        ({"up": False, "forced_down": True}, ["service-forced-down"]),
        ({"up": False, "enabled": False}, ["service-disabled", "service-down"]),
        ({"has_service": False}, ["no-service"]),
    ],
)
def test_the_host_s_service(change: dict[str, object], found: list[str]) -> None:
    assert kinds(flavor(), hosts=(replace(ComputeNode("h", "id-h", "h"), **change),)) == found  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("host", "found"),
    [
        ({"hypervisor_type": "QEMU", "numa_nodes": 2}, []),
        ({"hypervisor_type": "QEMU", "numa_nodes": 1}, ["numa"]),
        ({"hypervisor_type": "QEMU", "numa_nodes": None}, []),
        ({"hypervisor_type": "fake", "numa_nodes": 2}, ["numa"]),
    ],
)
def test_numa(host: dict[str, object], found: list[str]) -> None:
    nova_flavor = flavor(**{"hw:numa_nodes": "2"})
    hosts = (replace(ComputeNode("h", "id-h", "h"), **host),)  # type: ignore[arg-type]
    assert kinds(nova_flavor, hosts=hosts) == found
    assert kinds(nova_flavor, hosts=hosts, filters=frozenset()) == []


def test_traits_of_the_host() -> None:
    nova_flavor = flavor(**{"hw:maxphysaddr_mode": "passthrough"})
    assert kinds(nova_flavor) == []
    assert kinds(nova_flavor, with_trait={}, **NONE) == ["trait"]


def test_traits_that_the_flavor_forbids() -> None:
    nova_flavor = flavor(**{"trait:CUSTOM_OLD": "forbidden"})
    assert kinds(nova_flavor, with_trait={"CUSTOM_OLD": frozenset({"id-h"})}, **NONE) == ["trait"]
    assert kinds(nova_flavor, with_trait={"CUSTOM_OLD": frozenset({"id-other"})}) == []


@pytest.mark.parametrize("asker", ["p-1", "p-2", "p-3"])
def test_hosts_that_aggregates_keep_for_projects(asker: str) -> None:
    """As the filter itself decides."""
    own = HostAggregate("own", frozenset({"h"}), {"filter_tenant_id": "p-1, p-2", "other": "p-3"})
    more = HostAggregate("more", frozenset({"h"}), {"availability_zone": "nova"})
    far = HostAggregate("far", frozenset({"other"}), {"filter_tenant_id": "p-3"})
    asks: dict[str, Any] = {"aggregates": (own, more, far), "asker": Asker(asker, asker)}
    assert kinds(flavor(), **asks) == [], "not switched on"
    host = SimpleNamespace(aggregates=[SimpleNamespace(metadata=dict(aggregate.metadata)) for aggregate in (own, more)])
    passes = AggregateMultiTenancyIsolation().host_passes(host, SimpleNamespace(project_id=asker))
    codes = kinds(flavor(), **asks, filters=FILTERS | {TENANT_FILTER})
    assert codes == ([] if passes else ["aggregate-tenants"])
    assert passes is (asker != "p-3")


def test_isolated_aggregates_want_their_trait_in_the_flavor() -> None:
    isolated = (HostAggregate("gpus", frozenset({"h"}), {"trait:CUSTOM_GPU": "required", "other": "x"}),)
    nova_flavor = flavor(**{"trait:CUSTOM_GPU": "required"})
    assert kinds(flavor(), aggregates=isolated) == [], "not switched on"
    assert kinds(flavor(), aggregates=isolated, isolated_aggregates=True) == ["aggregate-isolated"]
    assert kinds(nova_flavor, aggregates=isolated, isolated_aggregates=True) == []
    far = (replace(isolated[0], hosts=frozenset({"other"})),)
    assert kinds(flavor(), aggregates=far, isolated_aggregates=True) == []


@pytest.mark.parametrize(
    ("metadata", "found"),
    [({}, ["aggregate"]), ({"gpu": "no"}, ["aggregate"]), ({"gpu": "yes"}, []), ({"gpu": "no, yes"}, [])],
)
def test_aggregates_with_what_the_flavor_wants(metadata: dict[str, str], found: list[str]) -> None:
    aggregates = (HostAggregate("a", frozenset({"h"}), metadata),)
    nova_flavor = flavor(**{"aggregate_instance_extra_specs:gpu": "yes"})
    assert kinds(nova_flavor, aggregates=aggregates) == found
    assert kinds(flavor(gpu="yes"), aggregates=aggregates) == found, "a key without a scope counts too"
    assert kinds(nova_flavor, aggregates=aggregates, filters=frozenset()) == []


@given(
    value=st.sampled_from(["yes", "12", "12.5", "", "a b", "no"]),
    sign=st.sampled_from(["", "=", "==", "!=", ">=", "<=", "s==", "s!=", "s<", "s>=", "<in>", "<all-in>", "<or>", "@"]),
    words=st.lists(st.sampled_from(["yes", "12", "13", "a", "<or>"]), max_size=4),
)
def test_values_are_compared_as_nova_does(value: str, sign: str, words: list[str]) -> None:
    requirement = " ".join([sign, *words]).strip()
    try:
        expected = extra_specs_ops.match(value, requirement)
    except (ValueError, IndexError):  # not a number, or nothing behind <or>: Nova refuses the host with an error
        expected = False
    assert match(value, requirement) == expected


def test_zones() -> None:
    zone = (HostAggregate("a", frozenset({"other"}), {"availability_zone": "z"}),)
    assert kinds(flavor(), aggregates=zone, zone="z") == ["zone"]
    assert kinds(flavor(), aggregates=zone, zone="nova") == [], "the default zone keeps nobody out"
    assert kinds(flavor(), zone="nowhere") == ["zone"]


def limits(*entries: Limit) -> Asker:
    return Asker("id", "p", entries)


def test_limits() -> None:
    full = Limit("class:CUSTOM_GPU_V100", 4, 4, own=True)
    assert kinds(one_gpu(), asker=limits(full)) == ["quota"]
    assert kinds(one_gpu(), asker=limits(full), counts_devices=False) == [], "Nova before 2026.2"
    assert kinds(one_gpu(), asker=limits(replace(full, used=3))) == []
    assert kinds(one_gpu(), asker=limits(replace(full, limit=-1))) == []
    explanation = told(one_gpu(), asker=limits(full), pools={"CUSTOM_GPU_V100": "v100"})
    assert "its limit is 4, in use 4, asks 1; Nova answers 403" in explanation.causes[0].reason
    (action,) = explanation.first
    name = "class:CUSTOM_GPU_V100"
    assert action.values == {"project": "p", "resource": name, "to": 5, "resources": [name]}
    assert action.text == f"raise the limit of project p on {name} to 5 in Keystone"
    assert kinds(flavor(), asker=limits(Limit("class:MEMORY_MB", 9000, 1000, own=False))) == ["quota"]


POOL = {"CUSTOM_GPU_V100": "v100", "CUSTOM_GPU_V100_PEER": "v100", "CUSTOM_GPU_V100_COUNT": "v100"}
SITE: dict[str, Any] = {"pools": POOL, "counting": frozenset({"CUSTOM_GPU_V100_COUNT"})}
COUNT, LEADERS = "class:CUSTOM_GPU_V100_COUNT", "class:CUSTOM_GPU_V100"


def counted_gpu() -> NovaFlavor:
    return one_gpu(**{"resources:CUSTOM_GPU_V100_COUNT": "1"})


def test_the_limits_of_a_pool_are_one_cause_and_one_line_of_the_site_file() -> None:
    asker = limits(Limit(LEADERS, 1, 1, own=True), Limit(COUNT, 1, 2, own=True))
    explanation = told(counted_gpu(), asker=asker, site_limits={LEADERS: 1, COUNT: 1}, **SITE)
    (cause,) = explanation.causes
    assert "may not have that many GPUs of pool v100: its limit is 1, in use 2, asks 1" in cause.reason
    assert [row["resource"] for row in cause.payload["details"]] == [COUNT, LEADERS]
    (action,) = explanation.first
    assert action.text == "write projects.p.gpus.v100: 3 in the site file, and run 'gpuyard site apply'"
    assert (action.values["to"], action.values["resources"]) == (3, [COUNT, LEADERS])
    assert explanation.answer.endswith("not start now: the limit of project p on GPUs of pool v100 is reached")


def test_a_limit_of_none_is_not_called_reached() -> None:
    explanation = told(
        counted_gpu(), asker=limits(Limit(LEADERS, 0, 0, own=False), Limit(COUNT, 0, 0, own=False)), **SITE
    )
    assert explanation.answer.endswith("not start now: the limit of project p on GPUs of pool v100 is 0")


def test_over_the_limit_of_a_pool_that_can_be_booked_the_answer_is_to_book() -> None:
    full = limits(Limit(LEADERS, 0, 2, own=False), Limit(COUNT, 0, 2, own=False))
    explanation = told(counted_gpu(), asker=full, bookable=True, **SITE)
    (cause,) = explanation.causes
    assert cause.remedy.startswith("book 1 GPU of pool v100: 'gpuyard booking create --pool v100 --gpus 1 --end +4h'")
    assert [action.kind for action in explanation.first] == ["book"]


def test_a_limit_that_the_site_file_has_raised_already_is_only_to_be_applied() -> None:
    full = limits(Limit(COUNT, 1, 1, own=True))
    explanation = told(counted_gpu(), asker=full, site_limits={COUNT: 2}, **SITE)
    assert explanation.first[0].text == "run 'gpuyard site apply': the site file allows 2 already"


def test_a_limit_that_is_not_registered_is_not_called_a_limit_of_zero() -> None:
    none = limits(Limit(COUNT, 0, 0, own=False, registered=False))
    explanation = told(counted_gpu(), asker=none, site_limits={COUNT: 2}, **SITE)
    (cause,) = explanation.causes
    assert "Keystone has no registered limit on it" in cause.reason
    assert "the limit of every project is" not in cause.reason
    (action,) = explanation.first
    assert (action.kind, action.text) == (
        "register-limit",
        "run 'gpuyard site apply', which makes the registered limit",
    )
    (action,) = told(counted_gpu(), asker=none, site_limits={COUNT: 0}, **SITE).first
    assert action.text.startswith("write projects.p.gpus.v100: 1 in the site file")
    servers = limits(Limit("servers", 0, 0, own=False, registered=False))
    (action,) = told(flavor(), asker=servers).first
    assert action.text.startswith("write limits.servers: 1 or more in the site file")


@pytest.mark.parametrize(
    ("resource", "says"),
    [
        ("class:MEMORY_MB", "that much RAM: its limit is 9000 MiB, in use 1000 MiB, asks 8192 MiB"),
        ("class:DISK_GB", "that much disk: its limit is 9000 GiB, in use 9000 GiB, asks 32 GiB"),
        ("class:VCPU", "that many vCPUs: its limit is 9000, in use 9000, asks 4"),
    ],
)
def test_limits_have_units(resource: str, says: str) -> None:
    used = 1000 if resource == "class:MEMORY_MB" else 9000
    explanation = told(flavor(), asker=limits(Limit(resource, 9000, used, own=True)), site_limits={resource: 9000})
    assert says in explanation.causes[0].reason
    key = {"class:MEMORY_MB": "ram: 9192 MiB", "class:DISK_GB": "disk: 9032 GiB", "class:VCPU": "vcpus: 9004"}
    assert explanation.first[0].text.startswith(f"write projects.p.{key[resource]} in the site file")


# What would help.


def holder(name: str, project: str = "id", **more: Any) -> RunningServer:
    """A server with one GPU, counted for its project."""
    return RunningServer(f"id-{name}", name, "ACTIVE", "p", "u", {"MEMORY_MB": 10}, project, {COUNT: 1, LEADERS: 1})


def all_taken(asker: Asker, *servers: RunningServer) -> Explanation:
    devices = tuple(device(n, state="claimed", server=server.id) for n, server in enumerate(servers, 1))
    host = ComputeNode("h", "id-h", "h", rooms={}, servers=servers)
    context = {"asker": asker, "site_limits": {COUNT: 1, LEADERS: 1}, **SITE}
    return told(counted_gpu(), hosts=(host,), devices=devices, able_devices={}, **context, **NONE)


def test_a_server_of_the_project_gives_its_limits_back() -> None:
    full = limits(Limit(COUNT, 1, 1, own=True), Limit(LEADERS, 1, 1, own=True))
    explanation = all_taken(full, holder("g1"))
    assert [cause.code for cause in explanation.causes] == ["quota"]
    assert (explanation.first, chosen(explanation)) == ((), [["g1"]])
    explanation = all_taken(full, holder("a", "other"), holder("mine"))
    assert (explanation.first, chosen(explanation)) == ((), [["mine"]]), (
        "rather than one of another project, and a limit to raise"
    )
    explanation = all_taken(full, holder("a", "other"))
    assert ([action.values["to"] for action in explanation.first], chosen(explanation)) == ([2], [["a"]])


def test_what_a_deletion_leaves_short_is_raised_by_that_much_only() -> None:
    over = limits(Limit(COUNT, 1, 3, own=True))
    explanation = all_taken(over, holder("g1"))
    assert [action.values["to"] for action in explanation.first] == [3], "three, less one, and one"


def test_limits_that_only_some_remedies_leave_short_stand_with_these() -> None:
    full = limits(Limit(COUNT, 1, 1, own=True))
    host = ComputeNode("h", "id-h", "h", rooms={}, servers=(holder("mine"),))
    devices = (device(1, state="claimed", server="id-mine"), device(2, state="held"))
    context = {"asker": full, "site_limits": {COUNT: 1}, **SITE}
    explanation = told(counted_gpu(), hosts=(host,), devices=devices, able_devices={}, **context, **NONE)
    assert (explanation.first, chosen(explanation)) == ((), [["mine"], ["raise-limit", "release-hold"]])


def test_a_shelved_server_still_counts_as_one() -> None:
    explanation = all_taken(limits(Limit("servers", 1, 1, own=True)), holder("g1"))
    assert explanation.remedies[0].actions[0].text.startswith("delete server g1")
    assert all_taken(limits(), holder("g1")).remedies[0].actions[0].text.startswith("delete or shelve server g1")


@given(
    mine=st.lists(st.booleans(), min_size=1, max_size=4),
    count=st.tuples(st.integers(0, 4), st.integers(0, 4)),
    leaders=st.tuples(st.integers(0, 4), st.integers(0, 4)),
)
def test_what_is_said_leaves_no_limit_short_and_raises_none_for_nothing(
    mine: list[bool], count: tuple[int, int], leaders: tuple[int, int]
) -> None:
    """Carried out on the numbers: the deletions, then the raised limits."""
    own = {COUNT: count, LEADERS: leaders}
    asker = limits(*(Limit(name, limit, used, own=True) for name, (limit, used) in own.items()))
    explanation = all_taken(asker, *(holder(str(i), "id" if is_mine else "other") for i, is_mine in enumerate(mine)))
    for remedy in explanation.remedies:
        actions = [*explanation.first, *remedy.actions]
        freed = sum(a.kind == "delete-server" and mine[int(str(a.values["name"]))] for a in actions)
        raised = {name: int(str(a.values["to"])) for a in actions if a.kind == "raise-limit" for name in own}
        now = {name: max(0, used - freed) + 1 for name, (_, used) in own.items()}
        assert all(now[name] <= max(limit, raised.get(name, 0)) for name, (limit, _) in own.items())
        if raised:
            assert any(now[name] > limit for name, (limit, _) in own.items())
            assert set(raised.values()) == {max(now.values())}


def reserved(room: HostStock, reserve: int, **more: Any) -> Explanation:
    """A server without GPUs on a host that keeps RAM for those with."""
    nova_flavor = flavor(**{"resources:CUSTOM_NOGPU_MEMORY_MB": "8192"})
    host = ComputeNode(
        "h", "id-h", "h", rooms={"CUSTOM_NOGPU_MEMORY_MB": room}, kept={"CUSTOM_NOGPU_MEMORY_MB": reserve}
    )
    all_able = facts(nova_flavor)[0].able
    able = {key: value for key, value in all_able.items() if key[0] != "CUSTOM_NOGPU_MEMORY_MB"}
    return told(nova_flavor, hosts=(replace(host, **more),), able=able, **NONE)


def test_a_reserve_is_named_with_its_key_and_may_be_smaller() -> None:
    explanation = reserved(HostStock(94208, 0, 1.0, 94208, 90112), 32768)
    (cause,) = explanation.hosts[0].causes
    assert cause.reason == (
        "not enough RAM for servers without GPUs: 8192 MiB asked, 4096 MiB free; 90112 MiB in use of 94208 MiB; "
        "hosts.h.reserve keeps 32768 MiB for servers with GPUs"
    )
    assert cause.remedy == (
        "free 4096 MiB of RAM for servers without GPUs on the host, or write a smaller reserve (hosts.h.reserve)"
    )
    assert chosen(explanation) == [["smaller-reserve"]]
    assert "hosts.h.reserve with 4096 MiB of RAM less" in explanation.remedies[0].actions[0].text
    servers = (server("x", CUSTOM_NOGPU_MEMORY_MB=5000),)
    assert chosen(reserved(HostStock(94208, 0, 1.0, 94208, 90112), 32768, servers=servers)) == [
        ["x"],
        ["smaller-reserve"],
    ]
    assert chosen(reserved(HostStock(94208, 0, 1.0, 94208, 90112), 4000)) == [], "no reserve can be less than nothing"
    assert chosen(reserved(HostStock(4096, 0, 1.0, 4096, 0), 32768)) == [["smaller-reserve"]], "too big as it is"


def test_what_is_over_is_not_called_free() -> None:
    (cause,) = reserved(HostStock(4096 + 8192, 0, 1.0, 20000, 12288 + 28672), 1).hosts[0].causes
    assert "8192 MiB asked, none free, over by 28672 MiB; " in cause.reason
    assert (cause.payload["details"][0]["free"], cause.payload["details"][0]["over"]) == (0, 28672)
    assert "-" not in cause.reason


def test_what_placement_does_not_decide_is_not_looked_at() -> None:
    nova_flavor = one_gpu()
    request_facts, request = facts(nova_flavor, devices=(), able_devices={}, gpu_hosts=frozenset({"h"}))
    hosts = (*request_facts.hosts, ComputeNode("cpu", "id-cpu", "cpu"))
    request = request.without_devices()
    explanation = explain(replace(request_facts, hosts=hosts), request)
    assert explanation.answer == "f would start on h if a GPU is free there"
    assert (explanation.would_start, explanation.gpus_looked_at, explanation.others) == (True, False, ("cpu",))
    assert explanation.not_looked_at[0].startswith("GPUs (alias v100): the site does not have Placement decide")
    assert "Not looked at: GPUs (alias v100)" in "\n".join(lines(explanation))
    off = replace(request_facts.hosts[0], enabled=False)
    explanation = explain(replace(request_facts, hosts=(off,)), request)
    assert [cause.code for cause in explanation.hosts[0].causes] == ["service-disabled"]


def test_the_first_line_is_short_and_counts_what_it_leaves_out() -> None:
    devices = tuple(device(n, state="claimed", reason="is held by server x") for n in range(1, 5))
    explanation = told(one_gpu(), devices=devices, able_devices={}, pools=POOL, pool_sizes={("h", "v100"): 6}, **NONE)
    assert explanation.answer == "f would not start now: all GPUs of pool v100 are taken"
    assert (
        "0 of 4 can be had (the pool's 2 other GPUs there are peers, which go only with the leader of the same IOMMU "
        "group): 0000:01:00.0 is held by server x; "
    ) in explanation.hosts[0].causes[0].reason
    private = told(replace(one_gpu(), public=False), asker=Asker("x", "p", (Limit("servers", 1, 1, own=True),)))
    assert private.answer.endswith("(1 more cause below)")
    two = flavor(**{"pci_passthrough:alias": "v100:2"})
    able = {("CUSTOM_GPU_V100", frozenset[str]()): frozenset({"h_1"})}
    some = told(two, devices=devices[:2], able_devices=able, pools=POOL, **NONE)
    assert some.answer.endswith(": only 1 of the 2 GPUs of pool v100 that it asks is free")
    held = told(one_gpu(), devices=(device(1, state="held"),), able_devices={}, pools=POOL, **NONE)
    assert held.answer.endswith(": none of the GPUs of pool v100 can be had")


def test_stranded_peers_in_the_plural() -> None:
    devices = (device(1, state="claimed", reason="is held", stranded=("28:00.0", "c4:00.0")),)
    (cause,) = told(one_gpu(), devices=devices, able_devices={}, **NONE).hosts[0].causes
    assert "(so 28:00.0 and c4:00.0 are free and of no use)" in cause.reason


def server(name: str, status: str = "ACTIVE", **amounts: int) -> RunningServer:
    return RunningServer(f"id-{name}", name, status, "p", "u", amounts)


def short_of_ram(missing: int, *servers: RunningServer) -> Explanation:
    room = HostStock(total=10000, reserved=0, ratio=1.0, max_unit=10000, used=10000 - 8192 + missing)
    host = ComputeNode("h", "id-h", "h", rooms={"MEMORY_MB": room}, servers=servers)
    able = {("VCPU", 4): frozenset({"id-h"}), ("DISK_GB", 32): frozenset({"id-h"})}
    return told(flavor(), hosts=(host,), able=able, **NONE)


def chosen(explanation: Explanation) -> list[list[object]]:
    return [[action.values.get("name", action.kind) for action in remedy.actions] for remedy in explanation.remedies]


def test_the_smallest_server_that_is_enough_goes() -> None:
    explanation = short_of_ram(
        1000, server("big", MEMORY_MB=5000), server("right", MEMORY_MB=1200), server("less", MEMORY_MB=999)
    )
    assert chosen(explanation) == [["right"]]


def test_an_idle_server_goes_before_one_that_runs() -> None:
    explanation = short_of_ram(1000, server("runs", MEMORY_MB=1200), server("idle", "SHUTOFF", MEMORY_MB=5000))
    assert chosen(explanation) == [["idle"]]


def test_several_servers_where_one_is_not_enough() -> None:
    explanation = short_of_ram(1000, *(server(name, MEMORY_MB=600) for name in "abc"))
    assert [len(names) for names in chosen(explanation)] == [2]
    assert short_of_ram(1000, server("a", MEMORY_MB=100)).remedies == (), "all of them are not enough"


def test_a_held_gpu_is_an_alternative_to_a_server() -> None:
    host = ComputeNode("h", "id-h", "h", rooms={}, servers=(server("x"),))
    devices = (device(1, state="claimed", server="id-x"), device(2, state="held"))
    explanation = told(one_gpu(), hosts=(host,), devices=devices, able_devices={}, **NONE)
    assert chosen(explanation) == [["x"], ["release-hold"]]


def test_enabling_a_host_comes_with_what_else_it_lacks() -> None:
    host = ComputeNode("h", "id-h", "h", enabled=False, rooms={}, servers=(server("x"),))
    devices = (device(1, state="claimed", server="id-x"),)
    explanation = told(one_gpu(), hosts=(host,), devices=devices, able_devices={}, **NONE)
    assert chosen(explanation) == [["enable-service", "x"]]
    assert (
        "  - on h: openstack compute service set --enable h nova-compute; and delete or shelve server x"
        in "\n".join(lines(explanation))
    )


def test_a_host_that_can_never_hold_it_has_no_remedy() -> None:
    host = ComputeNode("h", "id-h", "h", enabled=False, rooms={"VCPU": replace(SCHEMA_MODULE, total=3)})
    explanation = told(flavor(), hosts=(host,), able={}, **NONE)
    assert explanation.remedies == ()
    assert "nothing simple" in "\n".join(lines(explanation))


@given(st.data())
def test_what_a_remedy_frees_is_enough_and_nothing_of_it_is_too_much(data: st.DataObject) -> None:
    sizes = data.draw(st.lists(st.integers(1, 3000), max_size=6))
    missing = data.draw(st.integers(1, 6000))
    servers = [server(str(index), MEMORY_MB=size) for index, size in enumerate(sizes)]
    explanation = short_of_ram(missing, *servers)
    if sum(sizes) < missing:
        assert explanation.remedies == ()
        return
    (names,) = chosen(explanation)
    freed = [sizes[int(str(name))] for name in names]
    assert sum(freed) >= missing
    assert all(sum(freed) - size < missing for size in freed), "each one is needed"


@given(st.lists(st.sets(st.integers(0, 4)), max_size=5))
def test_as_many_devices_as_possible_are_given_out(choices: list[set[int]]) -> None:
    """Compared with trying everything."""

    def most(left: list[set[int]], used: frozenset[int]) -> int:
        if not left:
            return 0
        skip = most(left[1:], used)
        return max([skip, *(1 + most(left[1:], used | {number}) for number in left[0] - used)])

    names = [sorted(map(str, choice)) for choice in choices]
    assert len(choices) - len(unmet(names)) == most(choices, frozenset())


def test_text_has_every_cause_and_every_fix() -> None:
    nova_flavor = replace(one_gpu(**{"hw:numa_nodes": "2"}), public=False)
    host = ComputeNode("h", "id-h", "h", enabled=False, hypervisor_type="fake", rooms={}, servers=())
    explanation = told(nova_flavor, hosts=(host,), able={}, able_devices={}, asker=Asker("x", "p"), **NONE)
    text = "\n".join(lines(explanation))
    assert text.splitlines()[0] == explanation.answer
    causes = [*explanation.causes, *explanation.hosts[0].causes]
    assert [cause.code for cause in causes] == ["access", "service-disabled", "gpu", "room", "room", "room", "numa"]
    for cause in causes:
        assert "\n".join(f"  {line}" for line in cause.lines()) in text
        assert cause.reason in text
        assert cause.remedy in text


def test_a_need_in_words() -> None:
    assert str(DeviceNeed("a", "CUSTOM_A")) == "CUSTOM_A"
    assert str(DeviceNeed("a", "CUSTOM_A", SET_A)) == "CUSTOM_A with trait CUSTOM_GPU_SET_A"


def kept_back(gpu_device: Device, **more: object) -> list[tuple[str, str]]:
    """Kinds and texts of the actions of the remedy for the one GPU."""
    explanation = told(one_gpu(), devices=(gpu_device,), able_devices={}, pools=POOL, **more, **NONE)
    return [(action.kind, action.text) for remedy in explanation.remedies for action in remedy.actions]


def test_what_gpuyard_itself_keeps_is_not_taken_out_of_placement_by_hand() -> None:
    hold = device(1, state="held", reason="held by root until 12:00: fan", booking="5f0c")
    assert kept_back(hold, bookable=True, ledger_known=True) == [
        (
            "release-hold",
            "release 0000:01:00.0 when it may be used again (held by root until 12:00: fan): gpuyard gpu release 5f0c",
        )
    ]
    booked = device(1, state="booked", reason="booked by ada", booking="77aa")
    text = "wait for 0000:01:00.0 (booked by ada), or have its owner give it up: gpuyard booking show 77aa"
    assert kept_back(booked, bookable=True, ledger_known=True) == [("wait-for-booking", text)]
    ((kind, text),) = kept_back(device(1, state="held", reason="quarantined: reads 0xff"), ledger_known=True)
    assert (kind, "reserved=0" in text) == ("repair", False)
    assert text == "have 0000:01:00.0 looked after (quarantined: reads 0xff): gpuyard gpu health h/0000:01:00.0"


def test_a_reservation_of_somebody_else_is_released_in_placement() -> None:
    by_hand = "release 0000:01:00.0 when it may be used again: openstack resource provider inventory set --amend "
    held = device(1, state="held", reason=FOREIGN)
    assert kept_back(held)[0][1].startswith(by_hand)
    assert kept_back(held, bookable=True, ledger_known=True)[0][1].startswith(by_hand)
    assert kept_back(held, bookable=True)[0][1].startswith("if gpuyard itself does not keep 0000:01:00.0 (")
