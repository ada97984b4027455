"""A cloud that was set up by hand is taken over: what is written plans to nothing, and nothing in the cloud changes.

The lab of these tests is configured the way old guides do it: aliases and whitelists by hand, Placement without a
single GPU, flavors made with plain calls. The last test has a lab that differs in one thing: its operator has told
Placement of the GPUs, with Nova's own classes.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpuyard.cli.main import app
from gpuyard.host.recording import replay_file
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.gpu import GpuState
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Boot, Exercise
from gpuyard_lab.plan import EXAMPLE_SITE, LabPlan, lab_host, plan_of_site
from tests.integration.conftest import RunningLab, start_lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

RECORDINGS = EXAMPLE_SITE.parent / "recordings"
EPYC, TITANS, TESLAS = "gpu-server", "cld-dfa-gpu-01", "cld-dfa-gpu-02"
FILES = {EPYC: "epyc-v100.json", TITANS: "titan-xp-node.json", TESLAS: "t4-node.json"}
WHITELISTS = {
    EPYC: '[{"address": "a3:00.0"}, {"address": "c3:00.0"}, {"address": "27:00.0"}, {"address": "44:00.0"}]',
    TITANS: '{"vendor_id":"10de"}',
    TESLAS: '{"vendor_id":"10de", "product_id":"1eb8"}',
}
FILTERS = "ComputeFilter,ComputeCapabilitiesFilter,ImagePropertiesFilter,PciPassthroughFilter"
ALIASES = """\
alias = {"name": "tesla-v100", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI"}
alias={"name":"T4","product_id":"1eb8","vendor_id":"10de","device_type":"type-PF"}
alias={"name":"GP102_VGA","product_id":"1b02","vendor_id":"10de","device_type":"type-PCI"}
alias={"name":"GP102_SND","product_id":"10ef","vendor_id":"10de","device_type":"type-PCI"}
"""
V100_FLAVOR = "gpu_4xlarge"
CHANGES = "What deploying the site's options will change"
T4_FLAVOR = "cloudveneto.15cores90GB20+600GB1T4"
TITAN_FLAVOR = "cloudvenetocloudveneto.10cores128GB20+500GB1TitanXP"


def hand_made_plan(*, placement: bool) -> LabPlan:
    """A lab that is configured by hand; with `placement`, PCI devices are in Placement under Nova's own classes."""
    on = str(placement).lower()
    hosts = tuple(lab_host(name, replay_file(RECORDINGS / file), whitelist(name)) for name, file in FILES.items())
    nova = (
        f"[pci]\nreport_in_placement = {on}\n{ALIASES}"
        f"[filter_scheduler]\nenabled_filters = {FILTERS}\npci_in_placement = {on}\n"
    )
    return LabPlan(hosts=hosts, nova=nova)


def whitelist(host: str) -> str:
    """As options that the lab takes for one host: under its new name, and one entry a line."""
    parsed = json.loads(WHITELISTS[host])
    entries = parsed if isinstance(parsed, list) else [parsed]
    return "[pci]\n" + "".join(f"device_spec = {json.dumps(entry)}\n" for entry in entries)


@dataclass
class HandMadeCloud:
    """The cloud, its operator's files, and those who use it."""

    running: RunningLab
    operator: CloudApi
    user: CloudApi
    files: Path

    def boot(self, flavor: str) -> Boot:
        boot = Exercise(self.operator, self.user, self.nothing(), prefix="import-").boot(flavor)
        assert boot.status == "ACTIVE", boot.fault
        return boot

    def nothing(self) -> CompiledSite:
        """An exercise wants a site, to look at GPUs with; here it only boots servers."""
        return load_site(EXAMPLE_SITE).compiled

    def command(self, folder: Path, *more: str) -> list[str]:
        config = [f"--nova-conf={self.files / 'nova-api.conf'}"]
        config += [f"--nova-conf={host}={self.files / host}.conf" for host in FILES]
        config += [f"--recording={RECORDINGS / file}" for file in FILES.values()]
        return ["site", "adopt", "--os-cloud", ADMIN_CLOUD, *config, "-o", str(folder / "site.yaml"), *more]

    def adopt(self, folder: Path, *more: str) -> Result:
        return CliRunner().invoke(app, self.command(folder, *more))

    def delete(self, boot: Boot) -> None:
        Exercise(self.operator, self.user, self.nothing()).delete([boot.server_id])


@pytest.fixture(scope="module")
def cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandMadeCloud]:
    """The cloud before Placement knows a single GPU."""
    yield from hand_made_cloud(tmp_path_factory, placement=False)


def hand_made_cloud(tmp_path_factory: pytest.TempPathFactory, *, placement: bool) -> Iterator[HandMadeCloud]:
    # Never one that is kept: a host that has once reported its devices to Placement cannot go back.
    running = start_lab(tmp_path_factory.mktemp("hand-made"), plan=hand_made_plan(placement=placement))
    files = tmp_path_factory.mktemp("files")
    write_files(files, placement=placement)
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("OS_CLIENT_CONFIG_FILE", str(running.status.clouds_file))
        made = HandMadeCloud(running, connect(ADMIN_CLOUD), connect(DEMO_CLOUD), files)
        make_objects(made.operator)
        for flavor in (V100_FLAVOR, T4_FLAVOR, TITAN_FLAVOR):
            made.boot(flavor)
        try:
            yield made
        finally:
            control.down(running.settings)


def write_files(folder: Path, *, placement: bool = False) -> None:
    """What the operator has in /etc/nova: the names of options are as old as the guides."""
    stage = "pci_in_placement = True\n" if placement else ""
    (folder / "nova-api.conf").write_text(
        f"[DEFAULT]\ndebug = False\n[pci]\n{ALIASES}[filter_scheduler]\nenabled_filters = {FILTERS}\n{stage}"
    )
    for host, entries in WHITELISTS.items():
        name = "device_spec" if host == EPYC else "passthrough_whitelist"
        (folder / f"{host}.conf").write_text(f"[pci]\n{name} = {entries}\n{ALIASES}")


def make_objects(operator: CloudApi) -> None:
    """What 'openstack flavor create' and 'openstack flavor set --property' make."""
    existing = {item.flavor.name for item in read_objects(operator).flavors}
    demo = read_objects(operator).projects["demo"]
    for name, identity, size, ephemeral, properties, public in (
        (V100_FLAVOR, V100_FLAVOR, (8, 65536, 60), 0, {"pci_passthrough:alias": "tesla-v100:1"}, True),
        ("gpu_six", "gpu_six", (8, 65536, 60), 0, {"pci_passthrough:alias": "tesla-v100:6"}, True),
        (T4_FLAVOR, None, (15, 92160, 20), 600, {"pci_passthrough:alias": "T4:1"}, False),
        (
            TITAN_FLAVOR,
            None,
            (10, 131072, 20),
            500,
            {"pci_passthrough:alias": "GP102_VGA:1,GP102_SND:1", "hw:hide_hypervisor_id": "true"},
            False,
        ),
        ("with a space", None, (1, 1024, 10), 0, {"pci_passthrough:alias": "T4:1"}, True),
        ("gpu.large.g3", None, (2, 4096, 20), 0, {"pci_passthrough:alias": "T4:1", "gpu": "true"}, True),
        ("ci_medium", "ci_medium", (4, 8192, 60), 0, {}, True),
    ):
        if name in existing:
            continue
        vcpus, ram, disk = size
        body = {"name": name, "vcpus": vcpus, "ram": ram, "disk": disk, "OS-FLV-EXT-DATA:ephemeral": ephemeral}
        body |= {"id": identity, "os-flavor-access:is_public": public}
        made = operator.request("POST", "compute", "/flavors", {"flavor": body})["flavor"]["id"]
        if properties:
            operator.request("POST", "compute", f"/flavors/{made}/os-extra_specs", {"extra_specs": properties})
        if not public:
            access = {"addTenantAccess": {"tenant": demo}}
            operator.request("POST", "compute", f"/flavors/{made}/action", access)
    if "segregated" not in {item.aggregate.name for item in read_objects(operator).aggregates}:
        made = operator.request("POST", "compute", "/os-aggregates", {"aggregate": {"name": "segregated"}})
        path = f"/os-aggregates/{made['aggregate']['id']}/action"
        operator.request("POST", "compute", path, {"add_host": {"host": TESLAS}})
        operator.request("POST", "compute", path, {"set_metadata": {"metadata": {"gpu": "true"}}})


def lines_of(result: Result, title: str) -> Sequence[str]:
    """One section of the report."""
    _, _, rest = result.stdout.partition(f"{title}:\n")
    lines = []
    for line in rest.splitlines():
        if not line.startswith("  "):
            break
        lines.append(line.strip().removeprefix("- "))
    return lines


def test_a_cloud_set_up_by_hand_plans_to_nothing_and_stays_as_it_is(cloud: HandMadeCloud, tmp_path: Path) -> None:
    before = read_objects(cloud.operator)
    result = cloud.adopt(tmp_path, "--name", "mine")
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert result.stdout.endswith("site.yaml: written, and it plans to nothing.\n")
    site = load_site(tmp_path / "site.yaml")
    after = read_objects(cloud.operator)
    assert after == before
    plan = plan_site(site.compiled, after)
    assert (plan.steps, plan.refusals, plan.waits, plan.notes) == ((), (), (), ())
    assert site.site.pci_in_placement == "off"
    assert site.site.release == "2026.2"
    pools = {name: (pool.alias, pool.models) for name, pool in site.site.pools.items()}
    assert pools == {
        "t4": ("T4", ["10de:1eb8"]),
        "tesla-v100": (None, ["10de:1db4"]),
        "gp102-vga": ("GP102_VGA", ["10de:1b02"]),
    }
    flavors = site.site.flavors
    assert all(flavor.foreign for flavor in flavors.values())
    assert flavors[V100_FLAVOR].gpus == {"tesla-v100": 1}
    assert (flavors[T4_FLAVOR].gpus, flavors[T4_FLAVOR].projects) == ({"t4": 1}, ["demo"])
    assert flavors[TITAN_FLAVOR].gpus == {}
    assert flavors[TITAN_FLAVOR].properties["pci_passthrough:alias"] == "GP102_VGA:1,GP102_SND:1"
    assert {"with a space", "ci_medium"}.isdisjoint(flavors)
    text = (tmp_path / "site.yaml").read_text()
    assert "write 'gpus: {gp102-vga: 1}' and no alias" in " ".join(text.replace("#", " ").split())
    assert "Tied to aggregate segregated (cld-dfa-gpu-02)" in text


def test_the_report_says_what_is_not_taken_over_and_who_has_gpus(cloud: HandMadeCloud, tmp_path: Path) -> None:
    result = cloud.adopt(tmp_path)
    left = "\n".join(lines_of(result, "Left out, or not in a site's own words"))
    assert "flavor 'with a space' is not in the file" in left
    assert "flavor gpu_six keeps its alias: It cannot be written as 'gpus: {tesla-v100: 6}'" in left
    servers = lines_of(result, "Servers with GPUs")
    assert len(servers) == 3
    assert all("Placement does not know which devices it holds" in line for line in servers)
    changes = "\n".join(lines_of(result, CHANGES))
    assert "offered now and not by the site: cld-dfa-gpu-01 18:00.1, 86:00.1 (no GPU" in changes
    assert "aliases that are gone: GP102_SND" in changes
    assert any("write 'pci_in_placement: report'" in line for line in lines_of(result, "What to do next"))


def test_twice_gives_the_same_file_and_never_overwrites_one(cloud: HandMadeCloud, tmp_path: Path) -> None:
    assert cloud.adopt(tmp_path).exit_code == 0
    first = (tmp_path / "site.yaml").read_text()
    refused = cloud.adopt(tmp_path)
    assert isinstance(refused.exception, UsageError)
    assert "exists; write to another file, or overwrite it with --force" in str(refused.exception)
    assert cloud.adopt(tmp_path, "--force").exit_code == 0
    assert (tmp_path / "site.yaml").read_text() == first
    assert [path.name for path in tmp_path.iterdir()] == ["site.yaml"]


def test_all_flavors_are_taken_over_when_asked(cloud: HandMadeCloud, tmp_path: Path) -> None:
    assert cloud.adopt(tmp_path, "--all-flavors").exit_code == 0
    assert "ci_medium" in load_site(tmp_path / "site.yaml").site.flavors


def test_a_server_of_an_imported_flavor_still_boots_and_apply_does_nothing(
    cloud: HandMadeCloud, tmp_path: Path
) -> None:
    assert cloud.adopt(tmp_path).exit_code == 0
    common = ["--site", str(tmp_path / "site.yaml"), "--os-cloud", ADMIN_CLOUD]
    applied = CliRunner().invoke(app, ["site", "apply", "--yes", *common])
    assert (applied.exit_code, applied.stdout) == (0, "Nothing to do: the cloud is as the site file says.\n")
    cloud.delete(cloud.boot(V100_FLAVOR))


def test_a_second_site_of_the_name_of_one_that_gpuyard_made_is_refused(cloud: HandMadeCloud, tmp_path: Path) -> None:
    body = {"id": "ours", "name": "ours", "vcpus": 1, "ram": 512, "disk": 1}
    body["description"] = "made by gpuyard for site mine"
    cloud.operator.request("POST", "compute", "/flavors", {"flavor": body})
    try:
        refused = cloud.adopt(tmp_path, "--name", "mine")
        assert isinstance(refused.exception, BlockedError)
        assert cloud.adopt(tmp_path, "--name", "other").exit_code == 0
    finally:
        cloud.operator.request("DELETE", "compute", "/flavors/ours")


def test_the_way_on_from_there_with_servers_running(cloud: HandMadeCloud, tmp_path: Path) -> None:
    """What the report says to do next: deploy the site's options stage by stage, then hand a flavor over."""
    assert cloud.adopt(tmp_path, "--name", "mine").exit_code == 0
    file = tmp_path / "site.yaml"
    for before, stage in (("off", "report"), ("report", "on")):
        edit(file, f'pci_in_placement: "{before}"', f'pci_in_placement: "{stage}"')
        cloud.running = start_lab(cloud.running.settings.state, plan=plan_of_site(file))
        assert_nothing_to_do(file)
    states = holders(cloud, file)
    assert sorted(states.values()) == [GpuState.CLAIMED] * 3 + [GpuState.FREE] * 8 + [GpuState.STRANDED]
    assert states[TITANS, "0000:18:00.0"] is GpuState.CLAIMED, "its audio function is no longer offered, and it runs"
    cloud.delete(cloud.boot(V100_FLAVOR))
    edit(file, "gpus: {tesla-v100: 1}\n    foreign: true\n", "gpus: {tesla-v100: 1}\n")
    result = CliRunner().invoke(app, ["site", "plan", "--site", str(file), "--os-cloud", ADMIN_CLOUD])
    assert "openstack flavor set --description 'made by gpuyard for site mine' gpu_4xlarge" in str(result.exception)
    description = {"flavor": {"description": "made by gpuyard for site mine"}}
    cloud.operator.request("PUT", "compute", f"/flavors/{V100_FLAVOR}", description)
    assert_nothing_to_do(file)


def edit(file: Path, old: str, new: str) -> None:
    text = file.read_text()
    assert text.count(old) == 1
    file.write_text(text.replace(old, new))


def assert_nothing_to_do(file: Path) -> None:
    planned = CliRunner().invoke(app, ["site", "plan", "--site", str(file), "--os-cloud", ADMIN_CLOUD])
    assert (planned.exit_code, planned.stdout) == (0, "Nothing to do: the cloud is as the site file says.\n")


def holders(cloud: HandMadeCloud, file: Path) -> dict[tuple[str, str], GpuState]:
    statuses = Exercise(cloud.operator, cloud.user, load_site(file).compiled).statuses()
    return {(status.gpu.host, status.gpu.address): status.state for status in statuses}


@pytest.fixture
def placement_cloud(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HandMadeCloud]:
    """The same cloud where Placement knows the devices under Nova's own classes."""
    yield from hand_made_cloud(tmp_path_factory, placement=True)


def test_devices_in_placement_show_who_holds_what_and_what_the_move_costs(
    placement_cloud: HandMadeCloud, tmp_path: Path
) -> None:
    result = placement_cloud.adopt(tmp_path)
    assert result.exit_code == 0, result.output + repr(result.exception)
    assert load_site(tmp_path / "site.yaml").site.pci_in_placement == "on"
    servers = lines_of(result, "Servers with GPUs")
    assert len(servers) == 3
    assert sum("Tesla V100 PCIe 16GB" in line for line in servers) == 1
    assert any("TITAN Xp" in line and "HDMI Audio" in line for line in servers)
    assert any("HDMI Audio" in line and "it is no GPU" in line for line in lines_of(result, "Dangerous"))
    changes = "\n".join(lines_of(result, CHANGES))
    assert "gpu-server: 4 GPUs are CUSTOM_PCI_10DE_1DB4 in Placement, and CUSTOM_GPU_TESLA_V100 once" in changes
