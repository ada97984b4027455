"""Whatever a cloud looks like, it is taken over so that a plan changes nothing; what it offers is what Nova says."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from gpuyard.diagnosis.adopt.config import HandMade, comes_with_gpu, hand_made, offered_now
from gpuyard.diagnosis.adopt.document import render
from gpuyard.diagnosis.adopt.model import Adoption, AdoptOptions, CloudFacts, GpuServer
from gpuyard.diagnosis.adopt.planner import adopt
from gpuyard.host.recording import replay_file
from gpuyard.model.errors import GpuyardError
from gpuyard.model.host import Inventory
from gpuyard.nova.config import ConfigFile
from gpuyard.nova.ini import read_ini
from gpuyard.nova.offers import asks
from gpuyard.site.compile import compile_site
from gpuyard.site.objects import (
    AggregateObject,
    FlavorObject,
    LimitObject,
    SeenAggregate,
    SeenFlavor,
    SeenLimit,
    SeenObjects,
)
from gpuyard.site.plan import plan_site
from gpuyard.site.schema import Site
from gpuyard_lab.plan import EXAMPLE_SITE, device
from tests.support.services import nova_configuration, objects, request, whitelist

RECORDINGS = EXAMPLE_SITE.parent / "recordings"
HOSTS = tuple(sorted(path.stem for path in RECORDINGS.glob("*.json")))
MODELS = (
    "10de:1db4",
    "10de:1eb8",
    "10de:1b02",
    "10de:10ef",
    "10de:1005",
    "10de:0e1a",
    "10de:1024",
    "8086:1572",
    "8086:10d3",
)
ALIAS_NAMES = ("tesla-v100", "T4", "t4", "GP102_VGA", "GP102_SND", "with.dot", "a b", "x-peer", "é", "1", "off")
TEXTS = st.text(min_size=1, max_size=12) | st.sampled_from(
    ["true", "off", "0123", "1:2", "a\nb", " x ", "# no", "\x85", "{", "~"]
)
PROJECTS = ("demo", "physics", "1234", "null", "two words", "é")

Raw = dict[str, Any]


def said(made: Adoption, code: str) -> list[str]:
    """One section of the report."""
    return [finding.reason for finding in made.report if finding.code == code]


@cache
def recorded(host: str) -> Inventory:
    return replay_file(RECORDINGS / f"{host}.json")


ALIASES = st.lists(
    st.builds(
        lambda name, ids, more: {"name": name, "vendor_id": ids[:4], "product_id": ids[5:], **more},
        st.sampled_from(ALIAS_NAMES),
        st.sampled_from(MODELS),
        st.fixed_dictionaries(
            {},
            optional={
                "device_type": st.sampled_from(["type-PCI", "type-PF"]),
                "numa_policy": st.sampled_from(["legacy", "required"]),
                "resource_class": st.sampled_from(["CUSTOM_PCI_10DE_1DB4", "gpu"]),
                "live_migratable": st.just("yes"),
            },
        ),
    ),
    max_size=6,
)
SPECS = st.lists(
    st.fixed_dictionaries(
        {},
        optional={
            "vendor_id": st.sampled_from(["10de", "8086", "*"]),
            "product_id": st.sampled_from(["1db4", "1eb8", "1b02", "10ef", "10d3"]),
            "address": st.sampled_from(
                ["27:00.0", "0000:28:00.0", "01:00.0", "*:18:00.*", "86:00", {"bus": "[ac].", "function": "0"}]
            ),
            "managed": st.sampled_from(["yes", "no"]),
            "live_migratable": st.just("yes"),
            "one_time_use": st.just("yes"),
            "resource_class": st.sampled_from(["gpu", "CUSTOM_GPU_T4"]),
        },
    ),
    max_size=4,
)
COUNTS = st.sampled_from(["1", "2", "3", "4", "8", "0", "65", " 1", "x", ""])
ALIAS_TEXT = st.lists(
    st.builds(lambda name, count: f"{name}:{count}", st.sampled_from((*ALIAS_NAMES, "unknown")), COUNTS),
    min_size=1,
    max_size=2,
).map(",".join)
FLAVOR_NAMES = st.sampled_from(
    ["gpu_4xlarge", "cloudveneto.15cores90GB20+600GB1T4", "with a space", "1.5", "true", "null", "007", "x" * 251, "é"]
)
FLAVORS = st.lists(
    st.builds(
        lambda alias, specs, **more: FlavorObject(extra_specs={**specs, **alias}, **more),
        alias=st.builds(lambda text: {"pci_passthrough:alias": text}, ALIAS_TEXT) | st.just({}),
        specs=st.dictionaries(TEXTS, TEXTS, max_size=3),
        name=FLAVOR_NAMES,
        vcpus=st.integers(1, 200),
        ram=st.integers(1, 2**21),
        disk=st.integers(0, 3000),
        ephemeral=st.sampled_from([0, 0, 500]),
        public=st.booleans(),
        projects=st.frozensets(st.sampled_from((*PROJECTS, "0123456789abcdef0123456789abcdef")), max_size=2),
        description=st.sampled_from(["", "", "mine", "made by gpuyard for site elsewhere"]),
    ).map(lambda flavor: flavor if not flavor.public else FlavorObject(**{**vars(flavor), "projects": frozenset()})),
    max_size=5,
    unique_by=lambda flavor: flavor.name,
)
LIMITS = st.lists(
    st.builds(
        LimitObject,
        resource=st.sampled_from(["servers", "class:VCPU", "class:MEMORY_MB", "class:DISK_GB", "class:CUSTOM_GPU_T4"]),
        value=st.integers(-1, 10**7),
        project=st.none() | st.sampled_from((*PROJECTS, "stranger")),
    ),
    max_size=4,
    unique_by=lambda limit: (limit.project, limit.resource),
)
AGGREGATES = st.lists(
    st.builds(AggregateObject, TEXTS, st.frozensets(st.sampled_from(HOSTS)), st.none(), st.dictionaries(TEXTS, TEXTS)),
    max_size=2,
)


@dataclass(frozen=True)
class Cloud:
    """What a cloud is taken over from."""

    seen: SeenObjects
    facts: CloudFacts
    wishes: AdoptOptions
    files: tuple[tuple[str | None, str], ...]

    @property
    def inventories(self) -> dict[str, Inventory]:
        return {host: recorded(host) for host in self.wishes.recordings}

    @property
    def config(self) -> HandMade:
        files = [ConfigFile(host or "all", read_ini(text), host=host) for host, text in self.files]
        return hand_made(files, list(self.wishes.recordings))


@st.composite
def clouds(draw: st.DrawFn) -> Cloud:
    hosts = draw(st.lists(st.sampled_from(HOSTS), min_size=1, max_size=3, unique=True))
    files: list[tuple[str | None, str]] = [(None, ini(draw(ALIASES), draw(SPECS | st.none()), draw(st.booleans())))]
    files += [(host, ini([], draw(SPECS | st.none()))) for host in hosts if draw(st.booleans())]
    observed = SeenObjects(
        flavors=tuple(SeenFlavor(str(number), flavor) for number, flavor in enumerate(draw(FLAVORS))),
        limits=tuple(SeenLimit(str(number), limit) for number, limit in enumerate(draw(LIMITS))),
        projects={name: f"id-{name}" for name in PROJECTS},
        aggregates=tuple(SeenAggregate(str(number), aggregate) for number, aggregate in enumerate(draw(AGGREGATES))),
        hosts=frozenset(draw(st.sets(st.sampled_from(HOSTS)))),
    )
    addresses = st.sampled_from([function.address for host in hosts for function in recorded(host).functions])
    servers = st.builds(
        GpuServer, TEXTS, TEXTS, st.sampled_from(PROJECTS), st.sampled_from(HOSTS), TEXTS, ALIAS_TEXT,
        st.none() | st.lists(addresses, max_size=2).map(tuple),
    )  # fmt: skip
    facts = CloudFacts(
        servers=tuple(draw(st.lists(servers, max_size=3))),
        reported={host: frozenset(draw(st.sets(addresses))) for host in hosts if draw(st.booleans())},
        swap={flavor.flavor.name: 512 for flavor in observed.flavors if draw(st.booleans())},
    )
    wishes = AdoptOptions(
        site=draw(st.sampled_from(["mine", "mine", "mine", "not a name"])),
        release=draw(st.sampled_from(["2025.1", "2026.2"])),
        recordings={host: f"{host}.json" for host in hosts},
        all_flavors=draw(st.booleans()),
    )
    return Cloud(observed, facts, wishes, tuple(files))


def ini(aliases: list[Raw], specs: list[Raw] | None, in_placement: bool = False) -> str:
    lines = ["[pci]", *(f"alias = {json.dumps(alias)}" for alias in aliases)]
    lines += [] if specs is None else [f"device_spec = {json.dumps(specs)}"]
    return "\n".join([*lines, "[filter_scheduler]", f"pci_in_placement = {in_placement}", ""])


def offers_gpus(cloud: Cloud) -> bool:
    return any(offer.function.is_gpu for offer in offered_now(cloud.inventories, cloud.config))


@given(clouds())
def test_a_cloud_is_adopted_as_it_is_or_refused_with_a_reason(cloud: Cloud) -> None:
    observed, wishes, config = cloud.seen, cloud.wishes, cloud.config
    try:
        made = adopt(observed, cloud.facts, cloud.inventories, config, wishes)
    except GpuyardError as error:
        if wishes.site == "not a name" and "'not a name' does not look right" in str(error):
            return
        if not offers_gpus(cloud) and "fits a GPU of the recordings" in str(error):
            return
        raise
    assert offers_gpus(cloud)
    text = render(made.document, made.comments, ("header",))
    parsed = YAML(typ="safe", pure=True).load(text)
    assert parsed == made.document
    compiled, problems = compile_site(Site.model_validate(parsed), cloud.inventories)
    assert not problems
    plan = plan_site(compiled, observed)
    assert (plan.steps, plan.refusals, plan.waits) == ((), (), ())
    assert not [note for note in plan.notes if "foreign" in note]
    asking = [flavor.flavor for flavor in observed.flavors if "pci_passthrough:alias" in flavor.flavor.extra_specs]
    report = "\n".join(said(made, "left-out"))
    for flavor in asking:  # nothing goes missing without a word
        adopted = flavor.name in made.document.get("flavors", {})
        other_device = all(part.split(":")[0].strip() in config.aliases for part in alias_parts(flavor))
        assert adopted or other_device or repr(flavor.name) in report or f"flavor {flavor.name} is made by" in report


def other_devices(inventories: dict[str, Inventory], config: HandMade) -> set[tuple[str, str]]:
    """Functions that hosts offer and that are neither GPUs nor come with one."""
    return {
        (offer.host, offer.function.address)
        for offer in offered_now(inventories, config)
        if offer.entry is not None
        and not offer.function.is_gpu
        and not comes_with_gpu(offer.function, inventories[offer.host])
    }


@given(clouds())
def test_other_devices_stay_offered_or_it_is_said_which_do_not(cloud: Cloud) -> None:
    assume(offers_gpus(cloud))
    wishes = replace(cloud.wishes, site="mine")
    made = adopt(cloud.seen, cloud.facts, cloud.inventories, cloud.config, wishes)
    lines = {
        host: "".join(f"device_spec = {value}\n" for value in options.values("pci", "device_spec"))
        for host in cloud.inventories
        for options in [made.compiled.options_of("nova-compute", host)]
    }
    files = [ConfigFile(host, read_ini(f"[pci]\n{text}"), host=host) for host, text in lines.items()]
    deployed = hand_made(files, list(cloud.inventories))
    before, after = (other_devices(cloud.inventories, config) for config in (cloud.config, deployed))
    everything = {
        (offer.host, offer.function.address) for offer in offered_now(cloud.inventories, deployed) if offer.entry
    }
    assert everything - after == {(gpu.host, gpu.address) for gpu in made.compiled.gpus if not gpu.blocked}
    assert after <= before
    lost = {host for host, _ in before - after}
    for host in cloud.inventories:
        reported = any(f"under hosts.{host}.extra_device_specs" in line for line in said(made, "change"))
        assert reported is (host in lost)
    aliases = {json.loads(value)["name"].strip() for value in made.compiled.options_of("nova").values("pci", "alias")}
    for name in cloud.config.aliases.keys() - aliases:
        assert any(name in line for line in (*said(made, "change"), *said(made, "left-out")))


@given(TEXTS, TEXTS, TEXTS, TEXTS)
def test_any_text_comes_back_from_the_file(key: str, value: str, project: str, other: str) -> None:
    flavor = {"vcpus": 1, "projects": [project], "properties": {key: value}, "foreign": True}
    document = {"site": "mine", "flavors": {"x": flavor}, "projects": {other: {}}}
    text = render(document, {("flavors", "x"): value, ("projects",): other}, ("header",))
    for reader in (YAML(typ="safe", pure=True), YAML(typ="rt")):
        assert reader.load(text) == document


def alias_parts(flavor: FlavorObject) -> list[str]:
    return flavor.extra_specs["pci_passthrough:alias"].split(",")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(host=st.sampled_from(HOSTS), specs=SPECS, aliases=ALIASES)
def test_what_a_host_offers_and_an_alias_gets_is_what_nova_says(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    host: str,
    specs: list[dict[str, Any]],
    aliases: list[dict[str, Any]],
) -> None:
    from nova.pci import stats, utils

    inventory = recorded(host)
    physical = {function.address for function in inventory.functions if function.sriov_total_vfs}
    # Nova looks into the sysfs of the machine that it runs on, which is not the recorded one.
    monkeypatch.setattr(utils, "is_physical_function", lambda *parts: "{}:{}:{}.{}".format(*parts) in physical)
    aliases = [{**alias, "name": f"alias-{number}"} for number, alias in enumerate(aliases)]
    for alias in aliases:
        alias.pop("resource_class", None)  # without Placement Nova compares it with nothing of the device
    text = ini(aliases, specs).replace("[pci]", "[pci]\nreport_in_placement = true")
    config = hand_made([ConfigFile("nova.conf", read_ini(text))], [host])
    offered = {offer.function.address: offer for offer in offered_now({host: inventory}, config)}
    with nova_configuration(tmp_path, text) as conf:
        by_nova = whitelist.Whitelist(conf.pci.device_spec)
        rows = [as_nova(function) for function in inventory.functions]
        matched = [(row, by_nova.device_assignable(row)) for row in rows]
        assert set(offered) == {row["address"] for row, entry in matched if entry}
        for row, entry in matched:
            if entry:
                entry.enhanced_pci_device_with_spec_tags(row)
        for name, (_, spec) in request.get_alias_from_config().items():
            ask = objects.InstancePCIRequest(count=1, spec=spec, alias_name=name)
            ours = {
                address
                for address, offer in offered.items()
                if any(asks(line, offer, False) for line in config.aliases[name])
            }
            assert ours == {address for address in offered if gives(stats, rows, address, ask)}


def as_nova(function: Any) -> dict[str, Any]:
    made = device(function)
    return {
        "address": made.address, "vendor_id": made.vendor_id, "product_id": made.product_id,
        "dev_type": made.dev_type, "parent_addr": made.parent_addr,
    }  # fmt: skip


def gives(stats: Any, rows: list[dict[str, Any]], address: str, ask: Any) -> bool:
    """Whether Nova's own filters let a request have the device, by its properties and type."""
    pool = {**next(row for row in rows if row["address"] == address), "count": 1}
    subject = stats.PciDeviceStats.__new__(stats.PciDeviceStats)
    pools = subject._filter_pools_for_spec([pool], ask)
    return bool(subject._filter_pools_for_unrequested_pfs(pools, ask))
