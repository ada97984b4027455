"""Cards that several servers share: what a host shows of them, what a site makes of it, and Nova of that."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.diagnosis.lint import lint, subject_of
from gpuyard.diagnosis.lint.model import FlavorText
from gpuyard.host.checks import Machine, check
from gpuyard.host.judge import judge
from gpuyard.host.recording import record
from gpuyard.host.scan import MOST_TYPES, MOST_UNITS, scan
from gpuyard.host.tree import RecordedTree
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.gpu import GpuKind
from gpuyard.nova.release import RELEASES
from gpuyard.nova.request import NovaFlavor, request_of
from gpuyard.site.options import file_name, render_ini
from gpuyard.site.problems import SiteError
from gpuyard.site.schema import Site
from gpuyard.site.sharing import encode_shared
from tests.support.libvirt_driver import mdev_driver
from tests.support.services import nova_configuration, objects, request, scheduler_utils
from tests.support.shared_cards import (
    A40,
    A100,
    FLEX,
    H200,
    T4,
    TYPES,
    V620_VF,
    a40_host,
    card,
    classic,
    h200_host,
    mdev_types,
    mig_host,
    other_makers_host,
    path_of,
    t4_host,
    vf,
)
from tests.support.sites import flavor, site
from tests.support.sysfs import Sysfs, names
from tests.unit.site.test_compile import matches

GROUP_OF_A_VF = 41


def findings(machine: Sysfs, code: str) -> list[Finding]:
    tree = RecordedTree(machine.nodes)
    inventory = scan(tree, names())
    return [finding for finding in check(Machine(tree, inventory, judge(inventory))) if finding.code == code]


# Hosts.


def test_what_a_driver_can_make_is_read_by_type() -> None:
    first = a40_host().inventory().function(f"0000:{vf('41', 0)}")
    kinds = {kind.name: kind for kind in first.mdev_types}
    assert kinds["nvidia-560"].title == "NVIDIA A40-4Q"
    assert (kinds["nvidia-560"].available, kinds["nvidia-560"].made, kinds["nvidia-560"].units) == (0, 1, 1)
    assert (kinds["nvidia-558"].units, kinds["nvidia-558"].most) == (0, 24)
    assert first.vgpu_type is None


def test_a_chosen_vgpu_type_is_read_of_virtual_functions_alone() -> None:
    inventory = h200_host(chosen=1).inventory()
    assert [f.vgpu_type for f in inventory.functions] == [None, 1414, *[0] * 7]


@pytest.mark.parametrize("machine", [a40_host(), mig_host(), h200_host(), t4_host(), other_makers_host()])
def test_a_recording_has_all_that_a_scan_reads(machine: Sysfs) -> None:
    live = machine.inventory()
    written = record(RecordedTree(machine.nodes), names(), "test")
    assert scan(RecordedTree(written["tree"]), names(), {"hostname": "test"}, "test").functions == live.functions


def test_what_sysfs_says_is_input() -> None:
    machine = Sysfs().function("18:00.0", T4, group=1, driver="nvidia")
    mdev_types(machine, path_of("18:00.0"), {"nvidia-232": 4}, {})
    folder = f"{path_of('18:00.0')}/mdev_supported_types"
    machine.put(f"{folder}/nvidia-232/available_instances", "-3")
    machine.put(f"{folder}/a-many/available_instances", "999999999")
    machine.put(f"{folder}/nvidia-232/description", "max_instance=99999999999999999999")
    machine.put(f"{folder}/..\nodd/available_instances", "7")
    for number in range(MOST_TYPES + 50):
        machine.put(f"{folder}/zz-{number}/available_instances", "1")
    (function,) = machine.inventory().functions
    kinds = {kind.name: kind for kind in function.mdev_types}
    assert kinds["nvidia-232"].units == 0
    assert kinds["a-many"].units == MOST_UNITS
    assert kinds["nvidia-232"].most is None
    assert len(kinds) == MOST_TYPES
    assert not [name for name in kinds if "odd" in name]


@pytest.mark.parametrize("machine", [a40_host(), mig_host(), h200_host(), other_makers_host()])
def test_no_virtual_function_is_a_card_and_no_card_that_is_cut_up_can_be_given_away(machine: Sysfs) -> None:
    inventory = machine.inventory()
    assert inventory.virtual_gpus
    slots = judge(inventory)
    assert {gpu.address for slot in slots for gpu in slot.gpus} == {gpu.address for gpu in inventory.gpus}
    assert not [slot for slot in slots if slot.usable]
    assert all("virtual functions switched on" in " ".join(slot.reasons) for slot in slots)


def test_a_card_that_could_make_vgpus_is_given_away_with_a_word_of_warning() -> None:
    machine = Sysfs()
    classic(machine, "18:00.0", 1, {}, {"nvidia-232": 4})
    (slot,) = judge(machine.inventory())
    assert slot.usable
    assert slot.notes[0] == "18:00.0 can make vGPUs: keep it with the host (--keep) where servers are to share it"


def test_a_card_of_which_vgpus_are_made_is_not_given_away_either() -> None:
    reasons = [slot.reasons for slot in judge(t4_host().inventory())]
    assert [("has 1 mediated device (vGPU) on it" in reason[0]) for reason in reasons] == [True, True]


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        (a40_host(), "16 virtual functions on: mediated devices of 2 types (nvidia-558, nvidia-560), 2 made"),
        (mig_host(), "mediated devices of 2 types (nvidia-474, nvidia-478), 0 made"),
        (h200_host(), "8 virtual functions on: a vGPU type is chosen for 3 of them (1414)"),
        (other_makers_host(), "4 virtual functions on: to be given away one by one, with vfio-pci"),
        (t4_host(), "can be shared: mediated devices of 2 types (nvidia-232, nvidia-234), 1 made"),
    ],
)
def test_a_check_says_how_a_card_is_shared(machine: Sysfs, words: str) -> None:
    first = findings(machine, "shared")[0]
    assert first.severity is Severity.OK
    assert words in first.reason


def test_a_check_says_what_a_shared_card_lacks() -> None:
    warned = [finding for finding in findings(h200_host(chosen=0), "shared") if finding.severity is Severity.WARNING]
    assert "no vGPU type is chosen for 41:00.4" in warned[0].reason
    assert f"/sys/bus/pci/devices/0000:{vf('41', 0)}/nvidia/creatable_vgpu_types" in warned[0].remedy
    tied = other_makers_host()
    tied.put(f"{path_of(vf('41', 1))}/iommu_group", {"->": f"../../../kernel/iommu_groups/{GROUP_OF_A_VF}"})
    warned = [finding for finding in findings(tied, "shared") if finding.severity is Severity.WARNING]
    assert "2 virtual functions share an IOMMU group" in warned[0].reason


def test_sharing_on_purpose_is_no_error() -> None:
    assert {finding.severity for finding in findings(a40_host(), "groups")} == {Severity.WARNING}
    assert not findings(a40_host(), "drivers"), "its driver is what cuts it up"


# Sites.


def shared_pool(folder: Path, machine: Sysfs, models: list[str], **pool: Any) -> Any:
    document = {"pools": {"part": {"models": models, **pool}}, "flavors": {"one": flavor(gpus={"part": 1})}}
    return site(folder, document, {"host": machine})


def addresses(loaded: Any, *, blocked: bool = False) -> list[str]:
    return [gpu.address for gpu in loaded.compiled.gpus if bool(gpu.blocked) is blocked]


def test_a_card_has_as_many_vgpus_as_its_type_allows_however_many_functions_it_has(tmp_path: Path) -> None:
    loaded = shared_pool(tmp_path, a40_host(), [A40], kind="vgpu", type="nvidia-560")
    assert len(addresses(loaded)) == 2 * 12
    assert addresses(loaded)[0] == f"0000:{vf('41', 0)}~1"
    gpu = loaded.compiled.gpus[0]
    assert (gpu.kind, gpu.device, gpu.model) == (GpuKind.VGPU, "0000:41:00.4", "NVIDIA A40-4Q")
    assert gpu.provider == "host_pci_0000_41_00_4"
    assert gpu.resource_class == "CUSTOM_GPU_PART"


def test_a_card_that_can_make_none_of_the_type_now_is_shown_with_the_reason(tmp_path: Path) -> None:
    loaded = shared_pool(tmp_path, t4_host(), [T4], kind="vgpu", type="nvidia-232")
    assert addresses(loaded) == [f"0000:18:00.0~{number}" for number in (1, 2, 3, 4)]
    assert addresses(loaded, blocked=True) == ["0000:3b:00.0~1"]
    (blocked,) = (gpu.blocked for gpu in loaded.compiled.gpus if gpu.blocked)
    assert blocked == "3b:00.0 can make no nvidia-232 now: it has 1 of type nvidia-234"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=16), st.sampled_from(sorted(TYPES))
)
def test_of_a_card_there_are_never_more_units_than_it_can_make(functions: list[tuple[int, int]], kind: str) -> None:
    """`functions`: how many more each could make, and how many it has made."""
    machine = Sysfs()
    card(machine, "41", A40, len(functions), 40, driver="nvidia")
    for number, (room, made) in enumerate(functions):
        mdev_types(machine, path_of(vf("41", number)), {kind: room}, {kind: made})
    pool = {"models": [A40], "kind": "vgpu", "type": kind}
    wish = Site.model_validate({"site": "x", "hosts": {"host": {"recording": "x"}}, "pools": {"part": pool}})
    encoded, problems = encode_shared(wish, {"host": machine.inventory()})
    assert not problems
    _, most = TYPES[kind]
    assert len(encoded) <= min(most, sum(room + made for room, made in functions))
    assert len({item.gpu.provider_name for item in encoded}) == len(encoded)
    if all(room + made == 1 for room, made in functions):
        assert len(encoded) == min(most, len(functions)), "none is left out either"
    for maker in {item.function.address for item in encoded}:
        (kinds,) = (function.mdev_types for function in machine.inventory().functions if function.address == maker)
        assert sum(item.function.address == maker for item in encoded) == kinds[0].units, "what Nova counts on it"


def test_mig_backed_vgpus_are_sevenths(tmp_path: Path) -> None:
    loaded = shared_pool(tmp_path, mig_host(), [A100], kind="vgpu", type="nvidia-474")
    assert len(addresses(loaded)) == 7


def test_nova_s_libvirt_driver_takes_the_types_devices_and_classes(tmp_path: Path) -> None:
    document = {
        "pools": {
            "a40-4q": {"models": [A40], "kind": "vgpu", "type": "nvidia-560", "hosts": ["one"]},
            "t4-4q": {"models": [T4], "kind": "vgpu", "type": "nvidia-232"},
        },
    }
    both = t4_host()
    loaded = site(tmp_path, document, {"one": a40_host(), "two": both})
    offered_by_host = {}
    for host in ("one", "two"):
        text = render_ini(loaded.compiled.options_of("nova-compute", host).options)
        with nova_configuration(tmp_path, text) as conf:
            driver = mdev_driver(conf)
            makers = [f for f in loaded.inventories[host].functions if f.mdev_types]
            names = ["pci_" + f.address.replace(":", "_").replace(".", "_") for f in makers]
            given = {name: driver._get_vgpu_type_per_pgpu(name) for name in names}
            classes = {driver._get_resource_class_for_device(name) for name, kind in given.items() if kind}
            offered_by_host[host] = sum(kind is not None for kind in given.values()), classes
            assert {gpu.provider.removeprefix(f"{host}_") for gpu in loaded.compiled.gpus
                    if gpu.host == host and not gpu.blocked} == {n for n, kind in given.items() if kind}  # fmt: skip
    assert offered_by_host == {"one": (24, {"CUSTOM_GPU_A40_4Q"}), "two": (1, {"CUSTOM_GPU_T4_4Q"})}


def test_a_flavor_asks_for_a_vgpu_by_its_class_and_its_limit_is_on_that(tmp_path: Path) -> None:
    compiled = shared_pool(tmp_path, a40_host(), [A40], kind="vgpu", type="nvidia-560").compiled
    (flavor,) = compiled.flavors
    assert flavor.extra_specs == {"resources:CUSTOM_GPU_PART": "1"}
    assert [limit.resource for limit in compiled.limits if limit.project is None] == ["class:CUSTOM_GPU_PART"]
    assert not compiled.options_of("nova").values("pci", "alias")
    assert not any("CUSTOM_GPU_PART_COUNT" in config.inventories for config in compiled.provider_configs)


def test_several_vgpus_of_a_server_are_of_different_devices(tmp_path: Path) -> None:
    document = {
        "pools": {"part": {"models": [A40], "kind": "vgpu", "type": "nvidia-560"}},
        "flavors": {"two": flavor(gpus={"part": 2}), "one": flavor(gpus={"part": 1})},
    }
    two, _ = sorted(site(tmp_path, document, {"host": a40_host()}).compiled.flavors, key=lambda one: one.name != "two")
    assert two.extra_specs == {
        "resources1:CUSTOM_GPU_PART": "1",
        "resources2:CUSTOM_GPU_PART": "1",
        "group_policy": "isolate",
    }
    size = {"vcpus": 2, "memory_mb": 2048, "root_gb": 10, "ephemeral_gb": 0, "swap": 0, "is_public": True}
    nova_flavor = objects.Flavor(name="two", flavorid="two", extra_specs=two.extra_specs, **size)
    image = objects.ImageMeta(properties=objects.ImageMetaProps())
    spec = objects.RequestSpec(flavor=nova_flavor, image=image, is_bfv=False, requested_resources=[])
    query = dict(parse_qsl(scheduler_utils.ResourceRequest.from_request_spec(spec).to_querystring()))
    assert (query["resources1"], query["resources2"], query["group_policy"]) == (
        "CUSTOM_GPU_PART:1", "CUSTOM_GPU_PART:1", "isolate",
    )  # fmt: skip
    assert query["resources"] == "DISK_GB:10,MEMORY_MB:2048,VCPU:2"
    assert request_of(NovaFlavor("1", "two", 2, 2048, 10, extra_specs=two.extra_specs), {}).counted(True) == {
        "servers": 1, "class:CUSTOM_GPU_PART": 2, "class:VCPU": 2, "class:MEMORY_MB": 2048, "class:DISK_GB": 10,
    }  # fmt: skip


def test_nova_gives_the_virtual_functions_that_a_type_was_chosen_for_and_nothing_else(tmp_path: Path) -> None:
    loaded = shared_pool(tmp_path, h200_host(chosen=3), [H200], kind="vf", type="1414", live_migratable=True)
    tags_by_address = matches(loaded, "host")
    assert sorted(tags_by_address) == [f"0000:{vf('41', number)}" for number in range(3)]
    assert {tags["resource_class"] for tags in tags_by_address.values()} == {"CUSTOM_GPU_PART"}
    assert {tags["managed"] for tags in tags_by_address.values()} == {"false"}, "NVIDIA's driver keeps them"
    assert {tags["live_migratable"] for tags in tags_by_address.values()} == {"true"}
    assert addresses(loaded) == [f"0000:41:00.0~{number}" for number in (1, 2, 3)]
    assert {gpu.provider for gpu in loaded.compiled.gpus} == {"host_0000:41:00.0"}


@pytest.mark.parametrize(("model", "count", "card"), [(FLEX, 4, "0000:41:00.0"), (V620_VF, 2, "0000:81:00.0")])
def test_virtual_functions_of_other_makers(tmp_path: Path, model: str, count: int, card: str) -> None:
    loaded = shared_pool(tmp_path, other_makers_host(), [model], kind="vf")
    tags_by_address = matches(loaded, "host")
    assert len(tags_by_address) == count
    assert all("managed" not in tags for tags in tags_by_address.values()), (
        "libvirt binds them, unless the site says otherwise"
    )
    assert {gpu.device for gpu in loaded.compiled.gpus} == {card}


def test_the_alias_of_virtual_functions_is_of_their_type_and_counts_them(tmp_path: Path) -> None:
    compiled = shared_pool(tmp_path, h200_host(), [H200], kind="vf", type="1414").compiled
    (flavor,) = compiled.flavors
    with nova_configuration(tmp_path, render_ini(compiled.options_of("nova").options)):
        made = objects.Flavor(extra_specs=flavor.extra_specs)
        (pci_request,) = request.get_pci_requests_from_flavor(made).requests
    assert (pci_request.spec[0]["dev_type"], pci_request.spec[0]["resource_class"]) == ("type-VF", "CUSTOM_GPU_PART")
    assert flavor.extra_specs["resources:CUSTOM_GPU_PART_COUNT"] == "1"
    (config,) = compiled.provider_configs
    assert config.inventories == {"CUSTOM_GPU_PART_COUNT": 3}


def test_what_is_rendered_for_shares_has_no_findings(tmp_path: Path) -> None:
    document = {
        "pools": {
            "t4-4q": {"models": [T4], "kind": "vgpu", "type": "nvidia-232"},
            "h200-mig": {"models": [H200], "kind": "vf", "type": "1414"},
        },
        "flavors": {name: flavor(gpus={name: 1}) for name in ("t4-4q", "h200-mig")},
    }
    loaded = site(tmp_path, document, {"one": t4_host(), "two": h200_host()})
    files = {f"/out/{file_name(o)}": render_ini(o.options) for o in loaded.compiled.options if o.options}
    flavors = [FlavorText(item.name, item.extra_specs) for item in loaded.compiled.flavors]
    subject, unused = subject_of(files, RELEASES["2026.2"], recorded=loaded.inventories, flavors=flavors)
    assert not unused
    assert lint(subject) == []


def test_a_virtual_function_that_is_not_alone_in_its_group_is_not_offered(tmp_path: Path) -> None:
    machine = other_makers_host()
    machine.put(f"{path_of(vf('41', 1))}/iommu_group", {"->": f"../../../kernel/iommu_groups/{GROUP_OF_A_VF}"})
    loaded = shared_pool(tmp_path, machine, [FLEX], kind="vf")
    assert addresses(loaded) == ["0000:41:00.0~3", "0000:41:00.0~4"]
    assert {gpu.blocked for gpu in loaded.compiled.gpus if gpu.blocked} == {
        "41:00.4 shares its IOMMU group with 41:00.5",
        "41:00.5 shares its IOMMU group with 41:00.4",
    }


def test_a_pool_of_whole_cards_never_gets_parts_and_a_pool_of_parts_no_whole_ones(tmp_path: Path) -> None:
    machine = h200_host().function("c1:00.0", H200, group=99, driver="vfio-pci")
    document = {
        "pools": {"whole": {"models": [H200]}, "part": {"models": [H200], "kind": "vf", "type": "1414"}},
    }
    loaded = site(tmp_path, document, {"host": machine})
    offered = {(gpu.pool, gpu.address) for gpu in loaded.compiled.gpus if not gpu.blocked}
    assert offered == {("whole", "0000:c1:00.0"), *(("part", f"0000:41:00.0~{number}") for number in (1, 2, 3))}
    assert sorted(matches(loaded, "host")) == [*(f"0000:{vf('41', n)}" for n in range(3)), "0000:c1:00.0"]


VGPU = {"models": [T4], "kind": "vgpu", "type": "nvidia-232"}


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"pools": {"a": {"models": [T4], "kind": "vgpu"}}}, "needs a 'type'"),
        ({"pools": {"a": {"models": [T4], "kind": "vf", "type": "nvidia-232"}}}, "is the number of a vGPU type"),
        ({"pools": {"a": {**VGPU, "one_time_use": True}}}, "for whole GPUs only"),
        ({"pools": {"a": {**VGPU, "alias": "b"}}}, "without an alias"),
        ({"pools": {"a": {**VGPU, "managed": False}}}, "is of PCI devices"),
        (
            {"release": "2025.2", "pools": {"a": VGPU}, "flavors": {"f": flavor(gpus={"a": 2})}},
            "Nova gives a server several vGPUs from 2026.1 on, and the site's release is 2025.2; write 1",
        ),
        (
            {"pools": {"a": VGPU}, "flavors": {"f": flavor(gpus={"a": 2}, properties={"group_policy": "none"})}},
            "leave group_policy out",
        ),
        (
            {"pools": {"a": VGPU}, "flavors": {"f": flavor(gpus={"a": 9})}},
            "can give 9 shares of pool 'a' to one server: the most is ",
        ),
        (
            {"pools": {"a": {**VGPU, "type": "nvidia-999"}}, "flavors": {"f": flavor(gpus={"a": 1})}},
            "no host has a share of pool 'a'; see 'shared' in 'gpuyard host check --from RECORDING'",
        ),
        ({"pools": {"a": VGPU, "b": VGPU}}, "claims 0000:18:00.0 on host"),
        ({"pools": {"a": VGPU, "b": {"models": [T4]}}}, "which pool 'b' claims too"),
        ({"pools": {"a": VGPU, "b": {**VGPU, "models": ["10de:1db6"]}}}, "one resource class for each mdev type"),
        (
            {"pools": {"a": {"models": [T4], "kind": "vf"}}, "pci_in_placement": "report", "gpu_quotas": False},
            "needs 'pci_in_placement: on'",
        ),
    ],
)
def test_what_a_shared_pool_cannot_be(tmp_path: Path, document: dict[str, Any], words: str) -> None:
    machine = t4_host().function("5e:00.0", "10de:1db6", group=7, driver="nvidia")
    mdev_types(machine, path_of("5e:00.0"), {"nvidia-232": 2}, {})
    with pytest.raises(SiteError) as error:
        site(tmp_path, document, {"host": machine})
    assert words in str(error.value)


def test_a_recording_of_before_says_nothing_of_shares(tmp_path: Path) -> None:
    """Its cards cannot be in a shared pool until it is made anew, and nothing else changes."""
    machine = Sysfs().function("18:00.0", T4, group=1)
    with pytest.raises(SiteError, match="no host has a share of pool 'part'; see 'shared' in 'gpuyard host check"):
        shared_pool(tmp_path, machine, [T4], kind="vf")
