"""Where Nova has a parser of its own, it is the judge of what the linter says."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from oslo_config.cfg import ConfigFileValueError

from gpuyard.diagnosis.lint import lint, subject_of
from gpuyard.diagnosis.lint.layout import config_files, views
from gpuyard.model.pci import PciFunction
from gpuyard.nova.alias import aliases
from gpuyard.nova.alias_spec import asked_aliases
from gpuyard.nova.class_names import class_name
from gpuyard.nova.config import View
from gpuyard.nova.device_spec import device_specs
from gpuyard.nova.filters import DEFAULTS, FILTERS, REMOVED
from gpuyard.nova.options import BOOLEANS, CPU_SETS, DEVICE_SPEC, FLOATS, INTEGERS, RENAMED, name_in, names_of
from gpuyard.nova.release import RELEASES, ReleaseName
from tests.support.services import nova_configuration, request, whitelist

HEX = st.sampled_from(["10de", "0x10de", "10DE", "*", "1db4", "27", "00", "0", " a3", "zz", "12345", "", "-1", "1_0"])
PLACES = st.sampled_from(
    ["0000:27:00.0", "27:00.0", ":27:00.", "*:27:00.*", "a3:00", "00.0", ".0", "*", "", "0:27:0.0", "1:2:3:4.5",
     "10000:27:00.0", "0000:27:20.0", "0000:27:00.8", "0000:27:00.0.1", "x", "27:00.0 "]
)  # fmt: skip
REGEX = st.dictionaries(
    st.sampled_from(["domain", "bus", "slot", "function", "func"]),
    st.sampled_from([".*", "27", "0[0-7]", "2.", "[", "0000", "", "0", "[2-7]"]) | st.none() | st.just(3),
)
TRUTHS = st.sampled_from(["yes", "no", "True", "0", "ja", True, False, None, 1, 2])
SPEC: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {},
    optional={
        "vendor_id": HEX | st.sampled_from([None, 4318]),
        "product_id": HEX | st.sampled_from([None, 7604]),
        "address": PLACES | REGEX | st.sampled_from([None, 5, []]),
        "addres": PLACES,
        "managed": TRUTHS,
        "live_migratable": TRUTHS,
        "one_time_use": TRUTHS,
        "resource_class": st.just("gpu"),
        "name": st.just("x"),
    },
)
ADDRESSES = ("0000:27:00.0", "0001:27:00.0", "0000:27:00.1", "0000:a3:00.0", "0000:44:00.0", "0000:00:00.0")


def view_of(text: str) -> View:
    (view,) = views(config_files("/etc/nova/nova.conf", text))
    return view


def devices() -> list[PciFunction]:
    return [
        PciFunction(address, vendor, product, "030200")
        for address in ADDRESSES
        for vendor, product in (("10de", "1db4"), ("10de", "10ef"), ("8086", "1572"))
    ]


def matched_by_nova(specs: Any) -> set[tuple[str, str, str]]:
    matches = set()
    for device in devices():
        row = {"vendor_id": device.vendor_id, "product_id": device.product_id, "address": device.address}
        if specs.device_assignable(row):
            matches.add((device.address, device.vendor_id, device.product_id))
    return matches


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(SPEC, min_size=1, max_size=2))
def test_device_spec_is_refused_and_matches_as_in_nova(tmp_path: Path, objects: list[dict[str, Any]]) -> None:
    text = f"[pci]\nreport_in_placement = true\ndevice_spec = {json.dumps(objects)}\n"
    specs = device_specs(view_of(text))
    with nova_configuration(tmp_path, text) as conf:
        try:
            by_nova = whitelist.Whitelist(conf.pci.device_spec)
        except Exception:  # whatever it raises keeps nova-compute from starting
            assert specs.refusals
            return
        assert not specs.refusals
        ours = {
            (device.address, device.vendor_id, device.product_id)
            for device in devices()
            if any(entry.matches(device) for entry in specs.entries)
        }
        assert ours == matched_by_nova(by_nova)
        everything = any(entry.everything for entry in specs.entries)
        assert not everything or len(ours) == len(devices())


def test_a_misspelled_matcher_does_match_everything(tmp_path: Path) -> None:
    text = '[pci]\ndevice_spec = {"addres": "0000:27:00.0"}\n'
    with nova_configuration(tmp_path, text) as conf:
        assert len(matched_by_nova(whitelist.Whitelist(conf.pci.device_spec))) == len(devices())
    subject, _ = subject_of({"nova.conf": text}, RELEASES["2026.2"])
    assert "device-spec-matches-everything" in {item.code for item in lint(subject)}


ALIAS = st.fixed_dictionaries(
    {},
    optional={
        "name": st.sampled_from(["a", "b", "", "n" * 257, 3]),
        "vendor_id": st.sampled_from(["10de", "10DE", "0x10de", "10d", "*", 4318, "10de\n"]),
        "product_id": st.sampled_from(["1db4", "1eb8", "zzzz", ""]),
        "device_type": st.sampled_from(["type-PCI", "type-PF", "type-VF", "type-pf", None]),
        "numa_policy": st.sampled_from(["legacy", "preferred", "required", "socket", "strict"]),
        "resource_class": st.sampled_from(["gpu", 1]),
        "traits": st.sampled_from(["a,b", ["a"]]),
        "live_migratable": st.sampled_from(["yes", "No", "maybe", True]),
        "capability_type": st.sampled_from(["pci", "usb"]),
        "device_typ": st.just("type-PF"),
    },
)
GOOD_ALIAS = st.fixed_dictionaries(
    {"name": st.sampled_from(["a", "b", "a "])},
    optional={
        "vendor_id": st.just("10de"),
        "product_id": st.sampled_from(["1db4", "1eb8"]),
        "device_type": st.sampled_from(["type-PCI", "type-PF"]),
        "numa_policy": st.sampled_from(["legacy", "required"]),
        "resource_class": st.just("gpu"),
    },
)
STOPS = "do not start"
PCI_FILTER_PATH = "nova.scheduler.filters.pci_passthrough_filter.PciPassthroughFilter"


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(ALIAS | st.lists(ALIAS, max_size=1) | GOOD_ALIAS, min_size=1, max_size=3), st.booleans())
def test_aliases_are_refused_as_in_nova(tmp_path: Path, items: list[Any], placed: bool) -> None:
    lines = [f"alias = {json.dumps(item)}" for item in items]
    text = "\n".join(["[filter_scheduler]", f"pci_in_placement = {placed}", "[pci]", *lines, ""])
    subject, _ = subject_of({"nova.conf": text}, RELEASES["2026.2"])
    stops = [
        item
        for item in lint(subject)
        if item.code == "alias-refused"
        or (item.code in ("alias-without-ids", "alias-repeated") and STOPS in item.reason)
    ]
    with nova_configuration(tmp_path, text):
        try:
            named = request.get_alias_from_config()
        except Exception:
            assert stops
            return
    assert not stops
    assert set(aliases(subject.views[0]).named()) == set(named)


@pytest.mark.parametrize("key", RENAMED, ids=str)
def test_nova_reads_an_old_name_or_does_not(tmp_path: Path, key: tuple[str, str]) -> None:
    section, old = key
    renamed = RENAMED[key]
    new_section, new = renamed.new
    with nova_configuration(tmp_path, f"[{section}]\n{old} = mark\n") as conf:
        assert ("mark" in conf[new_section][new]) is renamed.read_by(RELEASES["2026.2"])


def test_old_and_new_names_add_up_in_our_order(tmp_path: Path) -> None:
    text = (
        '[pci]\ndevice_spec = {"address": "0000:01:00.0"}\npassthrough_whitelist = {"address": "0000:02:00.0"}\n'
        '[DEFAULT]\npci_passthrough_whitelist = {"address": "0000:03:00.0"}\n'
    )
    ours = [entry.raw["address"] for entry in device_specs(view_of(text)).entries]
    with nova_configuration(tmp_path, text) as conf:
        by_nova = [spec.dev_spec_conf["address"] for spec in whitelist.Whitelist(conf.pci.device_spec).specs]
    assert sorted(ours) == sorted(by_nova)
    assert ours == by_nova


def test_the_filters_are_nova_s(tmp_path: Path) -> None:
    from nova.scheduler import filters

    assert sorted(FILTERS) == sorted(item.__name__ for item in filters.all_filters())
    assert not set(REMOVED) & set(FILTERS)
    with nova_configuration(tmp_path, "") as conf:
        assert list(DEFAULTS) == conf.filter_scheduler.enabled_filters


@pytest.mark.parametrize(
    "text",
    [
        "enabled_filters = RamFilter",
        "enabled_filters = nova.scheduler.filters.same_host_filter.SameHostFilter",
        "enabled_filters = 'SameHostFilter'",
        "enabled_filters = ComputeFilter, \n  PciPassthroughFilter,",
        "enabled_filters = NumaTopologyFilter",
        f"available_filters = {PCI_FILTER_PATH}\nenabled_filters = PciPassthroughFilter",
        f"available_filters = {PCI_FILTER_PATH}\nenabled_filters = ComputeFilter",
    ],
)
def test_a_filter_is_found_by_nova_or_is_not(tmp_path: Path, text: str) -> None:
    from nova.exception import SchedulerHostFilterNotFound
    from nova.scheduler import filters
    from nova.scheduler.host_manager import HostManager

    conf_text = f"[filter_scheduler]\n{text}\n"
    subject, _ = subject_of({"nova.conf": conf_text}, RELEASES["2026.2"])
    ours = {item.code for item in lint(subject)} & {"removed-filter", "unknown-filter", "filter-not-available"}
    with nova_configuration(tmp_path, conf_text) as conf:
        manager = HostManager.__new__(HostManager)  # without its database
        available = filters.HostFilterHandler().get_matching_classes(conf.filter_scheduler.available_filters)
        manager.filter_cls_map, manager.filter_obj_map = {item.__name__: item for item in available}, {}
        try:
            manager._choose_host_filters(conf.filter_scheduler.enabled_filters)
        except SchedulerHostFilterNotFound:
            assert ours
        else:
            assert not ours


@pytest.mark.parametrize(("section", "read"), [("DEFAULT", True), ("default", False), ("Default", False)])
def test_the_default_section_has_one_spelling(tmp_path: Path, section: str, read: bool) -> None:
    text = f"[{section}]\nhost = mark\n"
    with nova_configuration(tmp_path, text) as conf:
        assert (conf.host == "mark") is read
    subject, _ = subject_of({"nova.conf": text}, RELEASES["2026.2"])
    assert [item.code for item in lint(subject)] == ([] if read else ["default-section-case"])


@given(st.text(st.sampled_from("aZ09_- ."), min_size=1, max_size=12) | st.sampled_from(["custom_x", "vgpu", "PGPU"]))
def test_names_of_classes_are_nova_s(name: str) -> None:
    from nova.compute import pci_placement_translator as translator

    assert class_name(name) == translator.get_resource_class(name, "10de", "1db4")


@given(st.text(st.sampled_from("ab:,1 0-"), max_size=12) | st.just("v100:2, t4:1"))
def test_the_alias_of_a_flavor_is_read_as_in_nova(value: str) -> None:
    ours = asked_aliases(value)
    try:
        theirs = [(name.strip(), int(count)) for name, count in [part.split(":") for part in value.split(",")]]
    except ValueError:
        assert ours is None
        return
    if ours is not None:
        assert ours == theirs


VALUES = st.sampled_from(
    ["4096", "4096 #we only need 4G", "0-22 # rest", "1.5", "-1", "-0.5", "", " ", "nan", "1e3", "1_0", "true", "yes",
     "true # x", "off ; x", "TRUE", "0-3,^1", "^1", "3-1", "0-3,^0-3", "1,,2,", ",", "^", "-", "1-", "0-1-2", "4 - 6",
     "x", "#"]
) | st.text(st.sampled_from("019-^,.# "), max_size=6)  # fmt: skip


@pytest.mark.parametrize("place", [*BOOLEANS, *INTEGERS, *FLOATS, *CPU_SETS], ids=lambda place: place[1])
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(value=VALUES)
def test_values_are_refused_as_in_nova(tmp_path: Path, place: tuple[str, str], value: str) -> None:
    """Integers, floats, truth values by oslo.config with Nova's types; CPU sets by those of Nova that read them."""
    from nova.virt import hardware

    section, key = place
    text = f"[{section}]\n{key} = {value}\n"
    subject, _ = subject_of({"nova.conf": text}, RELEASES["2026.2"])
    ours = [item for item in lint(subject) if item.code in ("not-a-value", "comment-behind-value")]
    with nova_configuration(tmp_path, text) as conf:
        try:
            group = conf if section == "DEFAULT" else conf[section]
            _ = group[key]
            if place in CPU_SETS:
                getattr(hardware, f"get_{key}")()
        except Exception:  # whatever it raises keeps nova-compute from starting
            assert ours
        else:
            assert not ours


def test_a_comment_behind_a_value_is_known_as_one(tmp_path: Path) -> None:
    text = "[DEFAULT]\nreserved_host_memory_mb = 4096 #we only need 4G\nvcpu_pin_set = 0-22 # the rest\n"
    subject, _ = subject_of({"nova.conf": text}, RELEASES["2026.2"])
    remedies = [(item.payload["line"], item.remedy) for item in lint(subject) if item.code == "comment-behind-value"]
    assert remedies == [(line, "move the comment to a line of its own") for line in (2, 3)]
    with nova_configuration(tmp_path, text) as conf, pytest.raises(ConfigFileValueError):
        _ = conf.reserved_host_memory_mb


def test_names_of_options_follow_the_release() -> None:
    old = replace(RELEASES["2025.1"], nova=25)
    assert name_in(DEVICE_SPEC, old) == ("pci", "passthrough_whitelist")
    for release in RELEASES.values():
        assert name_in(DEVICE_SPEC, release) == DEVICE_SPEC
    assert names_of(DEVICE_SPEC) == (
        DEVICE_SPEC,
        ("pci", "passthrough_whitelist"),
        ("DEFAULT", "pci_passthrough_whitelist"),
    )


def test_the_names_of_releases_are_those_of_the_table() -> None:
    assert get_args(ReleaseName) == tuple(RELEASES)
    assert {name: release.name for name, release in RELEASES.items()} == {name: name for name in RELEASES}
