"""Bad site files: each problem with file, line, and what to write instead."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

from gpuyard.model.errors import UsageError
from gpuyard.site.load import load_site
from gpuyard.site.problems import SiteError
from gpuyard.site.schema import Site, json_schema, parse_size_gib, parse_size_mib
from tests.support.sites import write_site
from tests.support.sysfs import T4, Sysfs

GOOD = """\
site: test
hosts:
  gpu-server: {recording: gpu-server.json}
pools:
  v100: {models: ["10de:1db4"]}
flavors:
  gpu_tiny: {vcpus: 4, ram: 2 GiB, disk: 20 GiB, gpus: {v100: 1}}
projects:
  demo: {gpus: {v100: 6}}
"""
SCHEMA = Path(__file__).parents[3] / "docs/reference/site.schema.json"


def problems(folder: Path, text: str, hosts: dict[str, Sysfs] | None = None) -> list[str]:
    """The messages without the folder."""
    path = write_site(folder, text, hosts)
    with pytest.raises(SiteError) as caught:
        load_site(path)
    return [line.removeprefix(f"{folder}/") for line in caught.value.lines]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ("vcpus: 4", "vcpu: 4", "site.yaml:7: flavors.gpu_tiny.vcpu: unknown key; did you mean 'vcpus'?"),
        ("ram: 2 GiB", "ram: 2 GB", "unit 'GB'; OpenStack counts in binary units: write '2 GiB'"),
        ("ram: 2 GiB", "ram: 2048", "2048 has no unit; write '2048 MiB' or '2048 GiB'"),
        ("disk: 20 GiB", "disk: 512 MiB", "not a whole number of GiB, and disks are; write '1 GiB'"),
        ("vcpus: 4", 'vcpus: "4"', "'4' is not a whole number; write one without quotes"),
        ("vcpus: 4", "vcpus: 0", "0 is out of range; write a number that is at least 1"),
        ("{v100: 1}", "{v100: 5}", "the most is 4 (on gpu-server, one from each IOMMU group); write 4 or fewer"),
        ("{v100: 1}", "{v100: 3}, same_group: true", "no host has an IOMMU group of 3 GPUs"),
        ("{v100: 1}", "{v100: 1}, same_group: true", "same_group needs 'gpus' with two or more"),
        ("{v100: 1}", "{a100: 1}", "unknown pool 'a100'; the site has v100"),
        ("vcpus: 4", "vcpus: 49", "49 is more than any host that could run it has; write 48 or less"),
        ("ram: 2 GiB", "ram: 1 TiB", "1048576 MiB is more than any host that could run it has; write 514560 MiB"),
        ('["10de:1db4"]', '["10DE:1DB4"]', "'10DE:1DB4' does not look right; write vendor:product in lower-case hex"),
        ('["10de:1db4"]', "10de:1db4", "is not a list; write [10de:1db4]"),
        ("gpu-server.json", "other.json", "site.yaml:3: hosts.gpu-server.recording: cannot read"),
        ("{v100: 6}", "{t4: 6}", "projects.demo.gpus.t4: unknown pool 't4'"),
        (
            "site: test",
            'site: test\nextra_aliases: [{nam: "nic"}]',
            "extra_aliases.0: unknown key 'nam'; did you mean name?",
        ),
        (
            "{recording: gpu-server.json}",
            '{recording: gpu-server.json, extra_device_specs: [{address: "0000:xx:00.0"}]}',
            "the bus of address '0000:xx:00.0', 'xx' is not a hexadecimal number; mend it",
        ),
        (
            "{recording: gpu-server.json}",
            '{recording: gpu-server.json, extra_device_specs: [{vendor_id: "8086"}]}',
            "would match every device of the host",
        ),
        ("site: test", "sight: test", "unknown key; did you mean 'site'?"),
        (
            "site: test",
            "site: test\nrelease: '2016.1'",
            "'2016.1' is not supported; write '2024.1', '2024.2', '2025.1', '2025.2', '2026.1' or '2026.2'",
        ),
        ("site: test", "site: test\nrelease: 2025.2", "release: 2025.2 without quotes is a number; quote it: '2025.2'"),
        ("site: test", "site: test\nrelease: 2016.1", "2016.1 is not supported; write '2024.1', '2024.2'"),
        (
            "site: test",
            "site: test\nimages: {i: {build: {base: {distribution: debian, release: 12}}}}",
            "quote it: '12'",
        ),
        ("site: test", "site: [test]", "site: ['test'] is not a text; write a single value, in quotes"),
        ("v100: {models", "v100: {kind: mig, models", "'mig' is not supported; write 'passthrough', 'vgpu' or 'vf'"),
        (
            "site: test",
            "site: test\nhealth: {acceptance: {project: ''}}",
            "project: is empty; write it, or leave the key out",
        ),
        ("site: test\n", "", "site: is missing; add it"),
        ("  demo:", "  demo: {}\n  demo:", "'demo' stands here for the second time"),
        ("hosts:", "hosts: [", "not YAML"),
        ("{v100: 1}}", "{v100: 1}, projects: demo}", "is not a list; write [demo]"),
        ("{v100: 1}}", "{v100: 1}, projects: 'a,b'}", "is not a list; write ['a,b']"),
        ("{v100: 1}}", "{v100: 1}, projects: [dmeo]}", "unknown project 'dmeo'; did you mean 'demo'?"),
    ],
)
def test_each_mistake_is_named_with_its_place_and_a_remedy(tmp_path: Path, old: str, new: str, says: str) -> None:
    assert old in GOOD
    messages = problems(tmp_path, GOOD.replace(old, new, 1))
    assert any(says in line for line in messages), messages
    assert all(line.startswith("site.yaml:") for line in messages)


def test_all_problems_are_told_at_once_in_the_order_of_the_file(tmp_path: Path) -> None:
    messages = problems(tmp_path, GOOD.replace("vcpus: 4", "vcpus: 400").replace("{v100: 6}", "{t4: 1}"))
    assert [line.split(":")[1] for line in messages] == ["7", "9"]


def test_two_pools_must_not_claim_one_gpu(tmp_path: Path) -> None:
    text = GOOD.replace("flavors:", '  volta: {models: ["10de:1db4"]}\nflavors:')
    (message,) = problems(tmp_path, text)
    assert message.startswith(
        "site.yaml:6: pools.volta: claims 0000:27:00.0 on gpu-server (10de:1db4), which pool 'v100'"
    )


def test_a_pool_must_not_mix_device_types(tmp_path: Path) -> None:
    one = Sysfs().function("18:00.0", T4, group=1, sriov_totalvfs="16")
    two = Sysfs().function("18:00.0", T4, group=1)
    text = (
        "site: t\nhosts:\n  a: {recording: a.json}\n  b: {recording: b.json}\npools:\n  t4: {models: ['10de:1eb8']}\n"
    )
    (message,) = problems(tmp_path, text, {"a": one, "b": two})
    assert "pools.t4: mixes device types: type-PF on a (10de:1eb8), type-PCI on b (10de:1eb8)" in message


def test_a_missing_or_empty_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no such file; name the site file with --site"):
        load_site(tmp_path / "none.yaml")
    assert "the file is empty" in problems(tmp_path, "# nothing\n")[0]


def test_the_good_file_is_good_and_matches_the_schema(tmp_path: Path) -> None:
    from ruamel.yaml import YAML

    loaded = load_site(write_site(tmp_path, GOOD))
    assert [flavor.ram for flavor in loaded.compiled.flavors] == [2048]
    document = YAML(typ="safe").load(GOOD)
    jsonschema.validate(document, json_schema())
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({**document, "flavours": {}}, json_schema())


def test_the_committed_schema_is_the_generated_one() -> None:
    assert json.loads(SCHEMA.read_text()) == json_schema(), "run: make docs"


@pytest.mark.parametrize(("text", "mib"), [("1 MiB", 1), ("2GiB", 2048), ("3 TiB", 3 * 2**20)])
def test_sizes(text: str, mib: int) -> None:
    assert parse_size_mib(text) == mib


@pytest.mark.parametrize("text", ["", "GiB", "1.5 GiB", "-1 GiB", "1 GiB x"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_mib(text)
    with pytest.raises(ValueError, match="is not a size"):
        parse_size_gib(text)


def test_a_site_is_frozen() -> None:
    site = Site.model_validate(
        {"site": "x", "hosts": {"a": {"recording": "b"}}, "pools": {"p": {"models": ["10de:1db4"]}}}
    )
    with pytest.raises(ValueError, match="frozen"):
        setattr(site, "site", "y")  # noqa: B010  # as the type checker would refuse it


@pytest.mark.parametrize("where", ["b", "site", "hosts", "pools"])
def test_aliases_that_stand_for_billions_of_values_are_refused_at_once(tmp_path: Path, where: str) -> None:
    names = "ABCDEFGHIJ"
    lines = [f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise(names)]
    text = "\n".join(["A: &A [x, x, x, x, x, x, x, x, x]", *lines, f"{where}: *{names[-1]}", ""])
    (tmp_path / "site.yaml").write_text(text)
    with pytest.raises(SiteError, match="1: more than 200000 values once its aliases are written out"):
        load_site(tmp_path / "site.yaml")


def test_merged_mappings_that_grow_without_end_are_refused_at_once(tmp_path: Path) -> None:
    names = "ABCDEFGHIJ"
    lines = [f"{name}: &{name}\n  <<: [{', '.join([f'*{before}'] * 9)}]" for before, name in pairwise(names)]
    (tmp_path / "site.yaml").write_text("\n".join(["A: &A {k: x}", *lines, ""]))
    with pytest.raises(SiteError, match="1: more than 200000 values once its aliases are written out"):
        load_site(tmp_path / "site.yaml")


def test_a_mapping_may_be_merged_into_others(tmp_path: Path) -> None:
    merged = GOOD.replace("gpu_tiny: {vcpus: 4,", "gpu_tiny: &tiny {vcpus: 4,").replace(
        "projects:", "  gpu_small: {<<: *tiny, vcpus: 8}\nprojects:"
    )
    flavors = load_site(write_site(tmp_path, merged)).site.flavors
    assert [(name, flavor.vcpus, flavor.gpus) for name, flavor in flavors.items()] == [
        ("gpu_tiny", 4, {"v100": 1}),
        ("gpu_small", 8, {"v100": 1}),
    ]


def test_a_file_that_is_too_large_for_a_site_is_not_read_whole(tmp_path: Path) -> None:
    (tmp_path / "site.yaml").write_text("#" * ((4 << 20) + 1))
    with pytest.raises(UsageError, match="larger than 4 MiB"):
        load_site(tmp_path / "site.yaml")
