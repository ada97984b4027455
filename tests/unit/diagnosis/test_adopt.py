"""Adopting a cloud: what is known of it becomes a site that plans to nothing, or it is said why not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ruamel.yaml import YAML
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.diagnosis.adopt.config import HandMade, hand_made, read_config
from gpuyard.diagnosis.adopt.document import render
from gpuyard.diagnosis.adopt.model import Adoption, AdoptOptions, CloudFacts, GpuServer
from gpuyard.diagnosis.adopt.planner import adopt
from gpuyard.diagnosis.adopt.pools import pool_name
from gpuyard.diagnosis.adopt.recordings import read_recordings, service_name
from gpuyard.diagnosis.cli.adopt import named, save, with_service_names
from gpuyard.host.recording import replay_file
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.host import Inventory
from gpuyard.nova.config import ConfigFile
from gpuyard.nova.ini import read_ini
from gpuyard.nova.release import release_of
from gpuyard.site.load import load_site
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
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.support.sysfs import T4, TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, epyc

RECORDINGS = EXAMPLE_SITE.parent / "recordings"
TESLA = 'alias = {"name": "tesla-v100", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI"}\n'
LEADERS = "[pci]\n" + "".join(
    f'device_spec = {{"address": "{address}"}}\n' for address in ("a3:00.0", "c3:00.0", "27:00.0", "44:00.0")
)
SIZE = {"cpus": 48, "memory_mib": 515072, "disk_gib": 1800}
ALIAS = "pci_passthrough:alias"


def said(made: Adoption, code: str) -> list[str]:
    """One section of the report."""
    return [finding.reason for finding in made.report if finding.code == code]


def seen(*flavors: FlavorObject, limits: tuple[LimitObject, ...] = (), **more: Any) -> SeenObjects:
    return SeenObjects(
        flavors=tuple(SeenFlavor(f"id-{index}", flavor_object) for index, flavor_object in enumerate(flavors)),
        limits=tuple(SeenLimit(str(index), limit) for index, limit in enumerate(limits)),
        projects={"demo": "1", "physics": "2"},
        **{"hosts": frozenset({"gpu-server"}), **more},
    )


def flavor(name: str, alias: str | None = None, **more: Any) -> FlavorObject:
    specs = {**({ALIAS: alias} if alias else {}), **more.pop("specs", {})}
    return FlavorObject(**{"name": name, "vcpus": 4, "ram": 8192, "disk": 20, "extra_specs": specs, **more})


def config_of(inventories: Mapping[str, Inventory], common: str, **of_hosts: str) -> HandMade:
    files = [ConfigFile("nova.conf", read_ini(common))]
    files += [ConfigFile(f"{host}.conf", read_ini(text), host=host) for host, text in of_hosts.items()]
    return hand_made(files, list(inventories))


def adopted(
    objects: SeenObjects,
    config: str,
    hosts: Mapping[str, Sysfs] | None = None,
    facts: CloudFacts | None = None,
    **more: Any,
) -> Adoption:
    """Adopt a cloud whose hosts all have the same nova.conf, and hold the result to its promise."""
    machines = hosts or {"gpu-server": epyc()}
    inventories = {name: machine.inventory(**SIZE) for name, machine in machines.items()}
    wishes = AdoptOptions("mine", more.pop("release", "2026.2"), {name: f"{name}.json" for name in inventories}, **more)
    made = adopt(objects, facts or CloudFacts(), inventories, config_of(inventories, config), wishes)
    promised(made, objects)
    return made


def promised(made: Adoption, objects: SeenObjects) -> None:
    """The file says what the document says, and its site plans to nothing and has nothing to remark."""
    text = render(made.document, made.comments, ("a header",))
    assert YAML(typ="safe", pure=True).load(text) == made.document
    assert Site.model_validate(made.document) == made.compiled.site
    plan = plan_site(made.compiled, objects)
    assert (plan.steps, plan.refusals, plan.waits, plan.notes) == ((), (), (), ())


def test_a_flavor_and_its_alias_become_a_flavor_of_a_pool() -> None:
    made = adopted(seen(flavor("gpu_4xlarge", "tesla-v100:1", ram=65536, ephemeral=5)), f"{LEADERS}{TESLA}")
    assert made.document == {
        "site": "mine",
        "release": "2026.2",
        "pci_in_placement": "off",
        "gpu_quotas": False,
        "hosts": {"gpu-server": {"recording": "gpu-server.json"}},
        "pools": {"tesla-v100": {"models": [V100]}},
        "flavors": {
            "gpu_4xlarge": {
                "vcpus": 4, "ram": "64 GiB", "disk": "20 GiB", "ephemeral": "5 GiB", "gpus": {"tesla-v100": 1},
                "foreign": True,
            }
        },
    }  # fmt: skip
    assert not said(made, "left-out")
    assert not said(made, "danger")
    assert not said(made, "change")


def test_a_pool_is_named_after_its_alias_and_keeps_it() -> None:
    machine = Sysfs().function("18:00.0", T4, group=16, sriov_totalvfs="16")
    alias = (
        '[pci]\nalias = {"name":"T4","product_id":"1eb8","vendor_id":"10de","device_type":"type-PF",'
        '"numa_policy":"required"}\n'
    )
    spec = 'passthrough_whitelist = {"vendor_id":"10de", "product_id":"1eb8", "managed": "no"}\n'
    made = adopted(seen(flavor("t4.15cores", "T4:1")), alias + spec, {"gpu-server": machine})
    assert made.document["pools"] == {"t4": {"alias": "T4", "models": [T4], "numa": "required", "managed": False}}


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("tesla-v100", "tesla-v100"), ("GP102_VGA", "gp102-vga"), ("Tesla V100 PCIe 16GB", "tesla-v100-pcie-16gb"),
        ("__", "gpu-10de-1db4"), ("é", "gpu-10de-1db4"), ("v100-peer", "v100-peers"), ("x" * 80, "x" * 36),
        ("taken", "taken-2"),
    ],
)  # fmt: skip
def test_names_of_pools(text: str, name: str) -> None:
    assert pool_name(text, V100, ["taken"]) == name


def test_a_function_that_comes_with_a_gpu_is_no_pool_and_its_flavor_says_what_to_write_later() -> None:
    machine = Sysfs()
    for address in ("18:00", "86:00"):
        machine.function(f"{address}.0", TITAN_XP, "0300", group=int(address[:2]))
        machine.function(f"{address}.1", TITAN_XP_AUDIO, "0403", group=int(address[:2]))
    config = (
        '[pci]\ndevice_spec = {"vendor_id":"10de"}\n'
        'alias={"name":"GP102_VGA","product_id":"1b02","vendor_id":"10de","device_type":"type-PCI"}\n'
        'alias={"name":"GP102_SND","product_id":"10ef","vendor_id":"10de","device_type":"type-PCI"}\n'
    )
    made = adopted(seen(flavor("titan", "GP102_VGA:1,GP102_SND:1")), config, {"gpu-server": machine})
    assert list(made.document["pools"]) == ["gp102-vga"]
    assert made.document["flavors"]["titan"]["properties"] == {ALIAS: "GP102_VGA:1,GP102_SND:1"}
    assert "write 'gpus: {gp102-vga: 1}' and no alias" in made.comments["flavors", "titan"]
    assert "GP102_SND" in made.comments["flavors", "titan"]
    changes = "\n".join(said(made, "change"))
    assert "gpu-server 18:00.1, 86:00.1 (no GPU; what comes with a GPU is bound together with it)" in changes
    assert "aliases that are gone: GP102_SND" in changes


@pytest.mark.parametrize(
    ("alias", "why"),
    [
        ("tesla-v100:5", "no host can give 5 GPUs of pool 'tesla-v100' to one server: the most is 4"),
        ("tesla-v100:0", "with a number from 1 to 64"),
        ("tesla-v100 : 1", "A site writes its alias as 'tesla-v100:NUMBER'"),
        ("tesla-v100", "Nova cannot read its alias"),
        ("tesla-v100:1,tesla-v100:1", "when you take it over: 'gpus: {tesla-v100: 2}'"),
        ("a100:1", "Alias a100 is in none of the files that were read."),
        ("other:1", "Alias other has no pool: its GPUs (10de:1db4) are those of pool tesla-v100 already."),
        ("nowhere:1", "Alias nowhere has no pool: no recording has a device 10de:2330."),
        ("wrong-type:1", "it asks for another type, class or trait than gpu-server 27:00.0"),
        ("dotted.name:1", "are those of pool tesla-v100 already"),
    ],
)
def test_what_a_site_cannot_say_stays_as_it_is_with_the_reason(alias: str, why: str) -> None:
    lines = "".join(
        f'alias = {{"name": "{name}", "vendor_id": "10de", "product_id": "{product}", "device_type": "{kind}"}}\n'
        for name, product, kind in (
            ("other", "1db4", "type-PCI"),
            ("nowhere", "2330", "type-PF"),
            ("wrong-type", "1db4", "type-PF"),
            ("dotted.name", "1db4", "type-PCI"),
        )
    )
    usual = [flavor(f"usual{number}", "tesla-v100:1") for number in range(3)]
    made = adopted(seen(*usual, flavor("odd", alias)), f"{LEADERS}{TESLA}{lines}")
    assert made.document["flavors"]["odd"]["properties"] == {ALIAS: alias}
    assert "gpus" not in made.document["flavors"]["odd"]
    assert why in made.comments["flavors", "odd"]
    assert any(line.startswith("flavor odd keeps its alias: ") for line in said(made, "left-out"))


def test_a_flavor_whose_name_a_site_cannot_have_is_left_out() -> None:
    made = adopted(seen(flavor("good", "tesla-v100:1"), flavor("with a space", "tesla-v100:1")), f"{LEADERS}{TESLA}")
    assert list(made.document["flavors"]) == ["good"]
    assert said(made, "left-out")[0].startswith("flavor 'with a space' is not in the file: ")


def test_flavors_without_gpus_come_along_only_when_asked() -> None:
    objects = seen(flavor("gpu", "tesla-v100:1"), flavor("cpu"), flavor("nic", specs={"hw:cpu_policy": "dedicated"}))
    assert list(adopted(objects, f"{LEADERS}{TESLA}").document["flavors"]) == ["gpu"]
    assert list(adopted(objects, f"{LEADERS}{TESLA}", all_flavors=True).document["flavors"]) == ["gpu", "cpu", "nic"]


def test_private_flavors_keep_their_projects_also_those_that_a_site_cannot_name() -> None:
    private = flavor("gpu", "tesla-v100:1", public=False, projects=frozenset({"physics", "0123abc"}))
    made = adopted(seen(private, flavor("nobody", "tesla-v100:1", public=False)), f"{LEADERS}{TESLA}")
    assert made.document["flavors"]["gpu"]["projects"] == ["0123abc", "physics"]
    assert made.document["flavors"]["nobody"]["projects"] == []
    assert made.document["projects"] == {"physics": {}}
    assert "0123abc: no project of the default domain" in made.comments["flavors", "gpu"]


def test_limits_of_what_a_site_knows_are_taken_over() -> None:
    limits = (
        LimitObject("servers", 15),
        LimitObject("class:MEMORY_MB", 1500),
        LimitObject("class:DISK_GB", -1),
        LimitObject("class:CUSTOM_PCI_10DE_1DB4", 4),
        LimitObject("class:VCPU", 48, "demo"),
        LimitObject("servers", 3, "0123abc"),
    )
    made = adopted(seen(flavor("gpu", "tesla-v100:1"), limits=limits), f"{LEADERS}{TESLA}")
    assert made.document["limits"] == {"servers": 15, "ram": "1500 MiB", "disk": -1}
    assert made.document["projects"] == {"demo": {"vcpus": 48}}
    left = "\n".join(said(made, "left-out"))
    assert "limits on class:CUSTOM_PCI_10DE_1DB4 stay as they are" in left
    assert "limits of project 0123abc stay as they are" in left


def test_a_flavor_that_is_tied_to_an_aggregate_names_it() -> None:
    aggregate = AggregateObject("gpunodes", frozenset({"gpu-server"}), None, {"gpu": "true"})
    objects = seen(
        flavor("g3", "tesla-v100:1", specs={"gpu": "true"}),
        flavor("scoped", "tesla-v100:1", specs={"aggregate_instance_extra_specs:gpu": "true"}),
        flavor("free", "tesla-v100:1", specs={"gpu": "false"}),
        aggregates=(SeenAggregate("7", aggregate),),
    )
    made = adopted(objects, f"{LEADERS}{TESLA}")
    assert "Tied to aggregate gpunodes (gpu-server)" in made.comments["flavors", "g3"]
    assert "gpunodes" in made.comments["flavors", "scoped"]
    assert ("flavors", "free") not in made.comments
    assert "aggregates" not in made.document


def test_the_stage_follows_placement_and_the_scheduler() -> None:
    objects = seen(flavor("gpu", "tesla-v100:1"))
    reported = CloudFacts(reported={"gpu-server": frozenset({"0000:44:00.0"})})
    assert adopted(objects, f"{LEADERS}{TESLA}", facts=reported).document["pci_in_placement"] == "report"
    on = f"{LEADERS}{TESLA}[filter_scheduler]\npci_in_placement = yes\n"
    made = adopted(objects, on, facts=reported)
    assert made.document["pci_in_placement"] == "on"
    assert said(made, "change")[-1].startswith(
        "gpu-server: 1 GPUs are CUSTOM_PCI_10DE_1DB4 in Placement, and CUSTOM_GPU_TESLA_V100 once"
    )


NIC = "8086:1572"
NIC_ALIAS = '{"name": "nic", "vendor_id": "8086", "product_id": "1572", "device_type": "type-PF"}'


def with_nics() -> Sysfs:
    machine = epyc()
    for number in (0, 1):
        machine.function(f"0b:00.{number}", NIC, "0200", group=200 + number, sriov_totalvfs="64")
    return machine


def nova_lines(made: Adoption, key: str, service: str = "nova", host: str | None = None) -> list[dict[str, str]]:
    return [json.loads(line) for line in made.compiled.options_of(service, host).values("pci", key)]


def test_what_is_for_other_devices_comes_along() -> None:
    specs = (
        'device_spec = [{"address": "0000:0b:00.0", "physical_network": "public", "trusted": true},'
        ' {"devname": "eth7", "physical_network": "x"}, {"vendor_id": "8086", "product_id": "10ed"}]\n'
    )
    absent = '{"name": "a100", "vendor_id": "10de", "product_id": "20f1", "device_type": "type-PF"}'
    config = f"{LEADERS}{TESLA}{specs}alias = {NIC_ALIAS}\nalias = {absent}\n"
    server = GpuServer("id", "vm", "demo", "gpu-server", "nic", "nic:1", ("0000:0b:00.0",))
    facts = CloudFacts(servers=(server,))
    made = adopted(seen(flavor("gpu", "tesla-v100:1")), config, {"gpu-server": with_nics()}, facts)
    assert made.document["extra_aliases"] == [json.loads(NIC_ALIAS)]
    assert made.document["hosts"]["gpu-server"]["extra_device_specs"] == [
        {"address": "0000:0b:00.0", "physical_network": "public", "trusted": "true"},
        {"devname": "eth7", "physical_network": "x"},
        {"vendor_id": "8086", "product_id": "10ed"},
    ]
    assert [nova_line["name"] for nova_line in nova_lines(made, "alias")] == ["tesla-v100", "nic"]
    assert len(nova_lines(made, "device_spec", "nova-compute", "gpu-server")) == 7
    change, gone = said(made, "change")
    assert gone.startswith("aliases that are gone: a100;")
    assert any("alias a100 is not in the file: a GPU can have its ids" in line for line in said(made, "left-out"))
    assert change.startswith("gpu-server: a nova-compute that reports PCI devices to Placement does not start with dev")
    assert "aliases for other devices: nic (under 'extra_aliases')" in said(made, "adopted")
    assert "entries of device_spec for other devices of gpu-server: 3 (under 'extra_device_specs')" in said(
        made, "adopted"
    )
    assert not said(made, "danger")


def test_what_cannot_come_along_is_named_with_the_reason() -> None:
    specs = (
        'device_spec = [{"vendor_id": "8086"}, {"address": {"bus": "0b", "function": "1"}},'
        ' {"address": "0b:00.1", "physical_network": null}]\n'
    )
    made = adopted(seen(flavor("gpu", "tesla-v100:1")), f"{LEADERS}{TESLA}{specs}", {"gpu-server": with_nics()})
    assert made.document["hosts"] == {"gpu-server": {"recording": "gpu-server.json"}}
    broad, regex, null = said(made, "left-out")
    assert "would match every device of the host" in broad
    assert "has a value that is not text" in regex
    assert "has a value that is not text" in null
    assert (
        "0b:00.0, 0b:00.1 (no GPU; an entry of its own under hosts.gpu-server.extra_device_specs would keep it)"
        in (said(made, "change")[0])
    )


def test_an_entry_for_what_comes_with_a_gpu_or_for_anothers_gpu_stays_out() -> None:
    card = Sysfs()
    card.function("18:00.0", TITAN_XP, "0300", group=18).function("18:00.1", TITAN_XP_AUDIO, "0403", group=18)
    config = '[pci]\ndevice_spec = [{"address": "18:00.0"}, {"address": "18:00.1"}, {"address": "44:00.0"}]\n' + TESLA
    objects = seen(flavor("gpu", "tesla-v100:1"), hosts=frozenset({"gpu-server", "titan"}))
    made = adopted(objects, config, {"gpu-server": epyc(), "titan": card})
    assert not any("extra_device_specs" in host for host in made.document["hosts"].values())


def test_servers_are_told_with_what_they_hold_and_what_is_dangerous() -> None:
    servers = tuple(
        GpuServer(f"id-{name}", name, "demo", "gpu-server", "gpu", "tesla-v100:1", addresses)
        for name, addresses in (
            ("one", ("0000:27:00.0",)), ("two", ("0000:28:00.0",)), ("three", ("0000:44:00.0",)),
            ("four", ("0000:ff:00.0",)), ("blind", None),
        )
    )  # fmt: skip
    facts = CloudFacts(servers=servers, reported={"gpu-server": frozenset({"0000:27:00.0"})})
    everything = f'[pci]\ndevice_spec = {{"vendor_id": "10de"}}\n{TESLA}'
    made = adopted(seen(flavor("gpu", "tesla-v100:1")), everything, facts=facts)
    assert len(said(made, "server")) == 5
    assert "server one (id-one) of project demo on gpu-server, flavor gpu (tesla-v100:1): holds 27:00.0" in "\n".join(
        said(made, "server")
    )
    dangers = "\n".join(said(made, "danger"))
    assert "IOMMU group 19 (0000:27:00.0, 0000:28:00.0) is split between server one" in dangers
    assert "server two (id-two) of project demo holds gpu-server 28:00.0" in dangers, "the site does not offer it"
    assert "holds 0000:ff:00.0, which the recording of gpu-server lacks: record again" in dangers
    assert "Nova offers c3:00.0 and c4:00.0 one by one, and they are one IOMMU group (87)" in dangers
    assert "cannot be seen whether the 1 servers there are in it" in dangers


def test_more_gpus_in_use_than_the_site_offers_are_seen_without_placement() -> None:
    servers = tuple(GpuServer(f"id-{number}", "x", "demo", "gpu-server", "gpu", "tesla-v100:1") for number in range(5))
    everything = f'[pci]\ndevice_spec = {{"vendor_id": "10de"}}\n{TESLA}'
    made = adopted(seen(flavor("gpu", "tesla-v100:1")), everything, facts=CloudFacts(servers=servers))
    assert "gpu-server: 5 servers hold 5 GPUs, and the site offers 4 there" in said(made, "danger")


def test_a_host_that_the_whitelist_leaves_out_stays_out() -> None:
    spare = Sysfs().function("01:00.0", V100, group=1)
    inventories = {"gpu-server": epyc().inventory(**SIZE)}
    inventories["spare"] = spare.inventory(cpus=8, memory_mib=65536, disk_gib=100)
    config = config_of(inventories, f"[pci]\n{TESLA}", **{"gpu-server": LEADERS, "spare": "[pci]\ndevice_spec = []\n"})
    objects = seen(flavor("gpu", "tesla-v100:1"), hosts=frozenset(inventories))
    wishes = AdoptOptions("mine", "2026.2", {name: name for name in inventories})
    made = adopt(objects, CloudFacts(), inventories, config, wishes)
    promised(made, objects)
    assert made.document["pools"]["tesla-v100"]["hosts"] == ["gpu-server"]
    assert "spare: such GPUs too" in made.comments["pools", "tesla-v100"]


def test_without_aliases_each_model_is_a_pool() -> None:
    made = adopted(seen(flavor("cpu")), LEADERS)
    assert made.document["pools"] == {"tesla-v100-pcie-16gb": {"models": [V100]}}
    assert "flavors" not in made.document


def test_hosts_without_device_spec_are_told() -> None:
    left = "\n".join(said(adopted(seen(flavor("gpu", "tesla-v100:1")), f"[pci]\n{TESLA}"), "left-out"))
    assert "gpu-server: no device_spec in the files given" in left


def test_recordings_without_gpus_are_refused() -> None:
    empty = {"gpu-server": Sysfs().function("01:00.0", "8086:1572", "0200", group=1)}
    with pytest.raises(UsageError, match="no GPU is in the recordings of gpu-server"):
        adopted(seen(), LEADERS, empty)


def test_a_name_that_a_site_cannot_have_is_refused_with_the_reason() -> None:
    inventories = {"gpu-server": epyc().inventory(**SIZE)}
    wishes = AdoptOptions("my site", "2026.2", {"gpu-server": "x.json"})
    with pytest.raises(UsageError, match="no site can be made of this cloud: site: 'my site' does not look right"):
        adopt(seen(), CloudFacts(), inventories, config_of(inventories, LEADERS), wishes)


def test_a_site_that_gpuyard_made_is_not_made_again() -> None:
    objects = seen(flavor("gpu", "tesla-v100:1", description="made by gpuyard for site mine"))
    with pytest.raises(BlockedError, match="flavor gpu is made by gpuyard for a site 'mine' already"):
        adopted(objects, f"{LEADERS}{TESLA}")
    other = seen(flavor("gpu", "tesla-v100:1", description="made by gpuyard for site other"))
    made = adopted(other, f"{LEADERS}{TESLA}")
    assert "flavors" not in made.document
    assert "flavor gpu is made by gpuyard for site other: it stays in that site's file" in said(made, "left-out")


def test_a_hosts_own_file_counts_for_what_it_sets() -> None:
    hosts = {"one": epyc().inventory(), "two": epyc().inventory()}
    config = config_of(hosts, f"{LEADERS}{TESLA}", two='[pci]\npassthrough_whitelist = {"vendor_id": "10de"}\n')
    assert [len(config.entries[host] or ()) for host in ("one", "two")] == [4, 1]
    assert list(config.aliases) == ["tesla-v100"]
    assert not config.complaints


def test_what_nova_would_not_read_is_told_and_the_rest_taken(tmp_path: Path) -> None:
    file = tmp_path / "nova.conf"
    file.write_text(
        f"[pci]\ndevice_spec = {{'address': 1}}\nalias = [1]\n{TESLA}[filter_scheduler]\npci_in_placement = ja\n"
    )
    config = hand_made(read_config([(None, file)]), ["gpu-server"])
    text = "\n".join(config.complaints)
    assert "nova-compute does not start with it" in text
    assert "Nova takes no alias at all then" in text
    assert "pci_in_placement is neither true nor false" in text
    assert list(config.aliases) == ["tesla-v100"]


def test_files_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read: No such file"):
        read_config([(None, tmp_path / "nova.conf")])
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="it is not text in UTF-8"):
        read_config([(None, tmp_path / "binary")])
    (tmp_path / "override.conf").write_text(f"{{% if x %}}\n[pci]\n{TESLA}{{% endif %}}\n")
    assert list(hand_made(read_config([(None, tmp_path / "override.conf")]), []).aliases) == ["tesla-v100"]


@pytest.mark.parametrize("file", [EXAMPLE_SITE, RECORDINGS / "epyc-v100.json"])
def test_a_file_that_nova_would_not_read_is_refused(file: Path) -> None:
    with pytest.raises(UsageError, match="Nova does not read such a file: mend it, or name") as caught:
        read_config([(None, file)])
    assert str(caught.value).startswith(f"{file}:")


def test_recordings_get_the_names_of_services(tmp_path: Path) -> None:
    file = RECORDINGS / "epyc-v100.json"
    hosts = frozenset({"gpu-server.example.org", "other"})
    name = replay_file(file).host_name
    assert name is not None
    assert read_recordings([(None, file)], {f"{name}.example.org"})[0].host == f"{name}.example.org"
    assert read_recordings([("other", file)], hosts)[0].host == "other"
    with pytest.raises(UsageError, match="is a recording of other too; leave one of them out"):
        read_recordings([("other", file), ("other", file)], hosts)
    with pytest.raises(UsageError):
        read_recordings([(None, tmp_path / "missing.json")], hosts)
    with pytest.raises(
        UsageError, match=r"no nova-compute service 'foo'; it has gpu-server\.example\.org, other; name"
    ):
        read_recordings([("foo", file)], hosts)
    with pytest.raises(UsageError, match=f"no nova-compute service {name!r}; it has none"):
        read_recordings([(None, file)], frozenset())
    assert service_name("a.one", {"a.two", "a.three"}) == "a.one"
    assert service_name("a.one", {"a"}) == "a"


@pytest.mark.parametrize(
    ("wanted", "microversion", "release"),
    [("2025.1", "2.104", "2025.1"), (None, "2.103", "2026.1"), (None, "2.104", "2026.2")],
)
def test_the_release_is_what_is_said_or_what_nova_speaks(wanted: str | None, microversion: str, release: str) -> None:
    assert release_of(wanted, microversion) == release


@pytest.mark.parametrize(
    ("wanted", "microversion", "why"),
    [
        ("zed", "2.104", "'zed' is not known"),
        (None, "2.96", "2024.1 and of 2024.2 cannot be told apart"),
        (None, "2.100", "2025.1 and of 2025.2 cannot be told apart"),
        (None, "2.90", "newest microversion of its API is 2.90"),
        (None, "", "its API does not say"),
    ],
)
def test_a_release_that_is_not_clear_must_be_said(wanted: str | None, microversion: str, why: str) -> None:
    with pytest.raises(UsageError, match=why):
        release_of(wanted, microversion)


def test_options_that_name_a_host() -> None:
    assert named("gpu1=etc/nova.conf") == ("gpu1", Path("etc/nova.conf"))
    assert named("etc/nova.conf") == (None, Path("etc/nova.conf"))
    assert named("./a=b.conf") == (None, Path("./a=b.conf"))


def test_a_nova_conf_of_a_host_without_a_recording_is_refused() -> None:
    files = [ConfigFile("nova.conf", read_ini(LEADERS), host="gpu2")]
    with pytest.raises(UsageError, match=r"no recording of gpu2; there are gpu1\.example\.org"):
        with_service_names(files, {"gpu1.example.org": None})
    (renamed,) = with_service_names([ConfigFile("nova.conf", read_ini(""), host="gpu1")], {"gpu1.example.org": None})
    assert renamed.host == "gpu1.example.org"


def test_nothing_is_asked_of_the_cloud_when_the_file_cannot_be_written(tmp_path: Path) -> None:
    common = ["site", "adopt", "--os-cloud", "nowhere", "--nova-conf", "x", "--recording", "x", "-o"]
    path = tmp_path / "site.yaml"
    path.write_text("mine")
    refused = CliRunner().invoke(app, [*common, str(path)])
    assert "exists; write to another file, or overwrite it with --force" in str(refused.exception)
    assert path.read_text() == "mine"
    refused = CliRunner().invoke(app, [*common, str(tmp_path / "missing" / "site.yaml")])
    assert "is not a folder; make it, or write elsewhere" in str(refused.exception)
    refused = CliRunner().invoke(app, [*common, str(tmp_path / "other.yaml")])
    assert str(refused.exception).startswith("x: cannot be read: No such file")


@pytest.fixture
def no_cloud(monkeypatch: pytest.MonkeyPatch) -> None:
    """A cloud that answers with one host and nothing else; the lab's tests ask a real one."""
    objects = seen(hosts=frozenset({"gpu-server"}))
    monkeypatch.setattr("gpuyard.openstack.api.connect", lambda cloud: SimpleNamespace(name="mycloud"))
    monkeypatch.setattr("gpuyard.provisioning.read.read_objects", lambda *given: objects)
    monkeypatch.setattr("gpuyard.diagnosis.adopt.read.read_facts", lambda *given: CloudFacts(microversion="2.104"))


@pytest.mark.usefixtures("no_cloud")
def test_a_dash_is_standard_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nova.conf").write_text(f"{LEADERS}{TESLA}")
    recording = RECORDINGS / "epyc-v100.json"
    words = [
        "site",
        "adopt",
        "--os-cloud",
        "mycloud",
        "--nova-conf",
        "nova.conf",
        "--recording",
        f"gpu-server={recording}",
        "-o",
    ]
    done = CliRunner().invoke(app, [*words, "-"])
    assert done.exit_code == 0, done.exception
    assert [path.name for path in tmp_path.iterdir()] == ["nova.conf"]
    assert done.stderr.startswith("Adopted:\n")
    assert done.stderr.endswith("standard output: written, and it plans to nothing.\n")
    assert CliRunner().invoke(app, [*words, "site.yaml"]).exit_code == 0
    assert (tmp_path / "site.yaml").read_text() == done.stdout


@pytest.mark.usefixtures("no_cloud")
def test_nothing_is_written_for_a_host_that_the_cloud_does_not_have(tmp_path: Path) -> None:
    (tmp_path / "nova.conf").write_text(f"{LEADERS}{TESLA}")
    words = [
        "site",
        "adopt",
        "--os-cloud",
        "mycloud",
        "--nova-conf",
        str(tmp_path / "nova.conf"),
        "-o",
        str(tmp_path / "site.yaml"),
    ]
    refused = CliRunner().invoke(app, [*words, "--recording", f"foo={RECORDINGS / 'epyc-v100.json'}"])
    assert isinstance(refused.exception, UsageError)
    assert not (tmp_path / "site.yaml").exists()


def test_a_file_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    def refuses(path: Path) -> None:
        assert path.read_text() == "text"
        raise UsageError("no")

    place = tmp_path / "site.yaml"
    with pytest.raises(UsageError, match="no"):
        save("text", place, False, refuses)
    assert list(tmp_path.iterdir()) == []
    assert save("text", place, False, lambda path: 7) == 7
    with pytest.raises(UsageError, match="overwrite it with --force"):
        save("other", place, False, lambda path: None)
    assert place.read_text() == "text"
    save("other", place, True, lambda path: None)
    assert place.read_text() == "other"
    assert list(tmp_path.iterdir()) == [place]
    with pytest.raises(UsageError, match="cannot be written: Not a directory"):
        save("text", place / "below", False, lambda path: None)


def test_a_whitelist_that_fits_no_gpu_takes_none() -> None:
    other = '[pci]\ndevice_spec = {"address": "0000:99:00.0"}\n'
    with pytest.raises(UsageError, match="no device_spec of the files given fits a GPU of the recordings"):
        adopted(seen(), other)
    inventories = {"gpu-server": epyc().inventory(**SIZE), "other": epyc().inventory(**SIZE)}
    config = config_of(inventories, f"[pci]\n{TESLA}", **{"gpu-server": LEADERS, "other": other})
    wishes = AdoptOptions("mine", "2026.2", {name: name for name in inventories})
    made = adopt(seen(hosts=frozenset(inventories)), CloudFacts(), inventories, config, wishes)
    assert made.document["pools"]["tesla-v100"]["hosts"] == ["gpu-server"]
    assert "other: none of its device_spec entries fits a GPU of its recording, so it offers none" in said(
        made, "left-out"
    )


def test_an_entry_for_gpus_that_no_recording_has_is_none_of_another_device() -> None:
    entry = 'device_spec = {"vendor_id": "10de", "product_id": "20f1"}\n'
    made = adopted(seen(flavor("gpu", "tesla-v100:1")), f"{LEADERS}{entry}{TESLA}")
    assert "extra_device_specs" not in made.document["hosts"]["gpu-server"]
    assert any("10de:20f1 is not in the file: a GPU can have its ids" in line for line in said(made, "left-out"))


@pytest.mark.parametrize("command", ["adopt", "import"])
def test_files_alone_become_a_site_without_a_cloud(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    for name in ("OS_CLOUD", "OS_AUTH_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nova.conf").write_text(f"{LEADERS}{TESLA}")
    recording = RECORDINGS / "epyc-v100.json"
    words = ["site", command, "--nova-conf", "nova.conf", "--recording", f"gpu-server={recording}", "-o", "site.yaml"]
    refused = CliRunner().invoke(app, words)
    assert "--release" in str(refused.exception)
    done = CliRunner().invoke(app, [*words, "--release", "2026.2"])
    assert done.exit_code == 0, done.exception
    assert done.stdout.endswith(
        "site.yaml: written of the files alone; with --os-cloud its flavors and limits come along too.\n"
    )
    site = load_site(tmp_path / "site.yaml").site
    assert (site.site, list(site.pools), list(site.flavors)) == ("cloud", ["tesla-v100"], [])


def test_the_report_as_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "nova.conf").write_text(f"{LEADERS}{TESLA}")
    words = ["--nova-conf", "nova.conf", "--recording", f"gpu-server={RECORDINGS / 'epyc-v100.json'}", "-o", "-"]
    done = CliRunner(env={"OS_CLOUD": "", "OS_AUTH_URL": ""}).invoke(
        app, ["site", "adopt", *words, "--release", "2026.2", "-f", "json"]
    )
    assert done.exit_code == 0, done.exception
    data = json.loads(done.stderr[: done.stderr.rindex("]") + 1])
    assert {finding["code"] for finding in data} == {"adopted", "next-step"}
