"""``gpuyard site drift`` on the real services: each difference is made for real, is found, is the only one, and goes
away with --fix or with what the remedy says."""

from __future__ import annotations

import json
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app
from gpuyard.diagnosis.drift import drifts, find_drift, plan_fixes
from gpuyard.diagnosis.drift.apply import ATTEMPTS, DriftFixer
from gpuyard.diagnosis.drift.fixes import Allocation, AllocationStep, FixPlan
from gpuyard.diagnosis.drift.read import read_world
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.reader import compute_service
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import read_objects
from gpuyard.site.load import LoadedSite, load_site
from gpuyard.site.plan import plan_site
from gpuyard_lab import control, processes
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import EXAMPLE_SITE, LabPlan, plan_of_site
from tests.integration.conftest import RunningLab, start_lab
from tests.support.sites import plain_site

pytestmark = [pytest.mark.lab, pytest.mark.slow]

K40C, HYPER18 = "k40c.2cores", "hyper18"
"""A flavor that one GPU of one host can serve."""
COUNT = "CUSTOM_GPU_K40C_COUNT"


@pytest.fixture(scope="module", autouse=True)
def nova_starts_anew(lab: RunningLab) -> Iterator[None]:
    """What is changed past Nova here leaves its trackers with devices that it takes for used, and the lab has no
    periodic update that would find out."""
    yield
    processes.end(lab.settings.state, "nova")
    control.up(lab.settings)


@dataclass
class Cloud:
    """The lab, and how it is changed by hand."""

    api: CloudApi
    exercise: Exercise
    loaded: LoadedSite

    def found(self) -> list[Finding]:
        return find_drift(self.loaded.compiled, self.loaded.inventories, read_world(self.api, self.loaded.compiled))

    def kinds(self) -> list[str]:
        return [finding.code for finding in self.found()]

    def only(self, kind: str) -> Finding:
        """The one difference that there is, which must be of this kind."""
        findings = self.found()
        assert [finding.code for finding in findings] == [kind], findings
        return findings[0]

    def provider(self, name: str) -> str:
        return str(self.api.get("placement", "/resource_providers", name=name)["resource_providers"][0]["uuid"])

    def gpu(self, pool: str, host: str | None = None) -> tuple[str, str]:
        """Id and class of the provider of the first GPU of a pool."""
        gpu = next(g for g in self.loaded.compiled.gpus if g.pool == pool and host in (None, g.host) and not g.blocked)
        return self.provider(gpu.provider_name), gpu.resource_class

    def allocate(self, consumer: str, amounts_by_provider: dict[str, dict[str, int]]) -> None:
        """Give a consumer these amounts, by provider id, and nothing else."""
        now = self.api.get("placement", f"/allocations/{consumer}")
        body = {
            "allocations": {provider: {"resources": amounts} for provider, amounts in amounts_by_provider.items()},
            "consumer_generation": now.get("consumer_generation"),
            "consumer_type": "INSTANCE",
            "project_id": now.get("project_id", "p"),
            "user_id": now.get("user_id", "u"),
        }
        self.api.request("PUT", "placement", f"/allocations/{consumer}", body)

    def allocations(self, consumer: str) -> dict[str, dict[str, int]]:
        rows = self.api.get("placement", f"/allocations/{consumer}")["allocations"]
        return {provider: row["resources"] for provider, row in rows.items()}

    @contextmanager
    def inventory(self, provider: str, resource_class: str, **change: object) -> Iterator[None]:
        path = f"/resource_providers/{provider}/inventories/{resource_class}"
        before = self.api.get("placement", path)
        self.api.request("PUT", "placement", path, {**before, **change})
        try:
            yield
        finally:
            now = self.api.get("placement", path)["resource_provider_generation"]
            self.api.request("PUT", "placement", path, {**before, "resource_provider_generation": now})

    def service(self, host: str, **change: object) -> None:
        rows = self.api.get("compute", "/os-services", binary="nova-compute", host=host)["services"]
        self.api.request("PUT", "compute", f"/os-services/{rows[0]['id']}", change)

    def project(self, name: str) -> str:
        return str(self.api.get("identity", "/projects", name=name)["projects"][0]["id"])


@pytest.fixture(scope="module")
def loaded() -> LoadedSite:
    return load_site(plain_site())


@pytest.fixture
def cloud(operator: CloudApi, exercise: Exercise, loaded: LoadedSite) -> Iterator[Cloud]:
    """The lab without drift, before and after."""
    subject = Cloud(operator, exercise, loaded)
    assert subject.found() == []
    yield subject
    exercise.clear()
    assert subject.found() == []


def command(*more: str, answer: str | None = None) -> tuple[int, str]:
    """Exit code and text of the command."""
    common = ["--os-cloud", ADMIN_CLOUD, "--site", str(plain_site())]
    result = CliRunner().invoke(app, ["site", "drift", *common, *more], input=answer)
    if isinstance(result.exception, BlockedError | UsageError):
        return result.exception.exit_code, result.output + str(result.exception)
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result.exit_code, result.output


MakeFlavor = Callable[..., str]


@pytest.fixture
def flavor(operator: CloudApi, cloud: Cloud) -> Iterator[MakeFlavor]:
    """Makes somebody else's flavors, gone after the test, servers first."""
    made: list[str] = []

    def make(name: str, **specs: str) -> str:
        identity = f"drift-{name}"
        body = {"id": identity, "name": identity, "vcpus": 1, "ram": 512, "disk": 1}
        operator.request("POST", "compute", "/flavors", {"flavor": body})
        made.append(identity)
        operator.request("POST", "compute", f"/flavors/{identity}/os-extra_specs", {"extra_specs": specs})
        return identity

    yield make
    cloud.exercise.clear()
    for identity in made:
        operator.request("DELETE", "compute", f"/flavors/{identity}")


def test_a_cloud_as_the_site_says_has_no_drift(cloud: Cloud) -> None:
    assert command() == (0, "No drift: the cloud is as the site file says.\n")
    code, text = command("-f", "json")
    assert (code, json.loads(text)) == (0, [])
    code, text = command("--fix")
    assert (code, text) == (0, "No drift: the cloud is as the site file says.\n")


def test_the_calls_are_those_of_the_table(cloud: Cloud) -> None:
    """The documented numbers, with and without servers: a server with GPUs costs one."""
    compiled = cloud.loaded.compiled
    classes = {gpu.resource_class for gpu in compiled.gpus if not gpu.blocked}
    sets = {gpu.set_letter for gpu in compiled.gpus if gpu.set_letter}
    planned = 1 + 1 + 3 + 2  # projects; flavors; limits; aggregates and services
    mine = 2 + 3 + 1 + 2 * len(classes) + len(sets) + len(compiled.site.pools) + 1 + 1
    expected = planned + mine + 1 + 2 * len(compiled.site.hosts)  # one project
    assert read_world(cloud.api, compiled).calls == expected
    cloud.exercise.boot("gpu_tiny")
    cloud.exercise.boot(K40C)
    assert read_world(cloud.api, compiled).calls == expected + 2


def test_an_allocation_of_nobody_is_deleted(cloud: Cloud) -> None:
    provider, resource_class = cloud.gpu("k40c")
    nobody = str(uuid.uuid4())
    cloud.allocate(nobody, {provider: {resource_class: 1}, cloud.provider(HYPER18): {"VCPU": 3}})
    finding = cloud.only("allocation-orphaned")
    assert "1 CUSTOM_GPU_K40C of hyper18_" in finding.reason
    assert "3 VCPU of hyper18" in finding.reason
    code, text = command()
    assert code == 3
    assert "1 difference between site and cloud; --fix can mend 1" in text
    code, text = command("--fix", answer="n\n")
    assert (code, "nothing was changed" in text) == (3, True)
    code, text = command("--fix", answer="")
    assert (code, "--yes goes on without asking" in text) == (2, True)
    assert cloud.allocations(nobody), "asked twice, answered no and not at all"
    code, text = command("--fix", answer="y\n")
    end = f"  delete allocation {nobody} ...\n\nNo drift: the cloud is as the site file says.\n"
    assert (code, text.endswith(end)) == (0, True), text


def test_a_server_is_never_taken_for_nobody(cloud: Cloud) -> None:
    """Between the look and the fix somebody may have made a server of it."""
    boot = cloud.exercise.boot(K40C)
    before = cloud.allocations(boot.server_id)
    step = AllocationStep("test", Allocation(boot.server_id))
    world = read_world(cloud.api, cloud.loaded.compiled)
    left = DriftFixer(cloud.api, cloud.loaded.compiled, world.objects).apply(FixPlan(own=(step,)), lambda _: None)
    assert [item.reason for item in left] == ["Nova has a server of that id"]
    assert cloud.allocations(boot.server_id) == before


@pytest.mark.parametrize(("times", "mended"), [(2, True), (ATTEMPTS, False)])
def test_who_changes_a_consumer_meanwhile_wins(
    cloud: Cloud, monkeypatch: pytest.MonkeyPatch, times: int, mended: bool
) -> None:
    provider = cloud.provider(HYPER18)
    nobody = str(uuid.uuid4())
    cloud.allocate(nobody, {provider: {"VCPU": 1}})
    other, real = Cloud(connect(ADMIN_CLOUD), cloud.exercise, cloud.loaded), cloud.api.request
    changes: list[int] = []

    def interrupted(method: str, service: str, path: str, *more: Any, **others: Any) -> dict[str, Any]:
        if method == "PUT" and nobody in path and len(changes) < times:
            changes.append(1)
            other.allocate(nobody, {provider: {"VCPU": 1 + len(changes)}})
        return real(method, service, path, *more, **others)

    (finding,) = cloud.found()
    world = read_world(cloud.api, cloud.loaded.compiled)
    with monkeypatch.context() as patch:
        patch.setattr(cloud.api, "request", interrupted)
        fixer = DriftFixer(cloud.api, cloud.loaded.compiled, world.objects)
        left = fixer.apply(plan_fixes(cloud.loaded.compiled, world, [finding]), lambda _: None)
    assert len(changes) == times
    if mended:
        assert (left, cloud.allocations(nobody)) == ([], {})
    else:
        assert "something else kept changing it" in left[0].reason
        assert "409" in left[0].reason
        cloud.allocate(nobody, {})


def test_objects_changed_by_hand_are_found_and_mended(cloud: Cloud) -> None:
    cloud.api.request("DELETE", "compute", f"/flavors/{K40C}/os-extra_specs/resources:{COUNT}")
    assert cloud.only("flavor-changed").object == f"flavor {K40C}"
    assert command("--fix", "--yes")[0] == 0
    cloud.api.request("DELETE", "compute", f"/flavors/{K40C}")
    assert cloud.only("flavor-missing").object == f"flavor {K40C}"
    assert command("--fix", "--yes")[0] == 0


def test_a_limit_that_is_gone_lets_everybody_or_nobody_in(cloud: Cloud) -> None:
    service = compute_service(cloud.api)
    for kind in ("limits", "registered_limits"):
        rows = cloud.api.get("identity", f"/{kind}", service_id=service, resource_name=f"class:{COUNT}")[kind]
        for row in rows:
            cloud.api.request("DELETE", "identity", f"/{kind}/{row['id']}")
    findings = cloud.found()
    assert [(item.code, item.object.split()[0]) for item in findings] == [
        ("limit-missing", "project"),
        ("limit-missing", "registered"),
    ]
    assert "no limit holds" in findings[1].payload["effect"]
    assert command("--fix", "--yes")[0] == 0


def test_a_limit_of_somebody_else(cloud: Cloud) -> None:
    row = {
        "project_id": cloud.project("admin"), "service_id": compute_service(cloud.api), "resource_limit": 5,
        "resource_name": f"class:{COUNT}", "region_id": cloud.api.region,
    }  # fmt: skip
    made = cloud.api.request("POST", "identity", "/limits", {"limits": [row]})["limits"][0]["id"]
    finding = cloud.only("limit-foreign")
    assert finding.object == f"project admin class:{COUNT}"
    assert finding.remedy.endswith(f"openstack limit delete {made}")
    cloud.api.request("DELETE", "identity", f"/limits/{made}")


def test_a_project_that_uses_more_than_it_may(cloud: Cloud) -> None:
    cloud.exercise.boot(K40C)
    service = compute_service(cloud.api)
    rows = cloud.api.get("identity", "/limits", service_id=service, resource_name=f"class:{COUNT}")["limits"]
    cloud.api.request("DELETE", "identity", f"/limits/{rows[0]['id']}")
    assert sorted(cloud.kinds()) == ["limit-missing", "quota-exceeded"]
    assert command("--fix", "--yes")[0] == 0


def test_flavors_of_others_that_reach_for_gpus(cloud: Cloud, flavor: MakeFlavor) -> None:
    past = flavor("past", **{"pci_passthrough:alias": "k40c:1"})
    finding = cloud.only("flavor-foreign-alias")
    assert finding.remedy.startswith(f"openstack flavor set --property resources:{COUNT}=1 {past}")
    counted = {"extra_specs": {f"resources:{COUNT}": "1"}}
    cloud.api.request("POST", "compute", f"/flavors/{past}/os-extra_specs", counted)
    assert cloud.found() == []
    thief = flavor("thief", **{"resources:CUSTOM_GPU_K4200": "1"})
    cloud.only("flavor-takes-gpu")
    cloud.api.request("DELETE", "compute", f"/flavors/{thief}/os-extra_specs/resources:CUSTOM_GPU_K4200")


def test_a_server_that_took_a_gpu_in_placement_alone(cloud: Cloud, flavor: MakeFlavor) -> None:
    flavor("thief", **{"resources:CUSTOM_GPU_K4200": "1"})
    exercise = Exercise(cloud.api, connect(DEMO_CLOUD), cloud.loaded.compiled)
    boot = exercise.boot("drift-thief")
    assert boot.status == "ACTIVE"
    assert sorted(cloud.kinds()) == ["flavor-takes-gpu", "server-holds-unasked"]
    exercise.delete([boot.server_id])


def test_a_hold_is_a_note(cloud: Cloud) -> None:
    with cloud.inventory(*cloud.gpu("k40c"), reserved=1):
        assert not drifts([cloud.only("gpu-held")])
        code, text = command()
        assert (code, "hyper18 0000:86:00.0: note: reserved in Placement" in text) == (0, True)


def test_a_gpu_that_placement_counts_twice(cloud: Cloud) -> None:
    with cloud.inventory(*cloud.gpu("k40c"), allocation_ratio=2.0, max_unit=2):
        assert cloud.only("gpu-counted-twice").severity == "alarm"
    cloud.exercise.boot(K40C)
    with cloud.inventory(*cloud.gpu("k40c"), total=2, max_unit=1):
        assert cloud.only("gpu-counted-twice").severity == "alarm"


def test_options_that_are_not_in_force(cloud: Cloud) -> None:
    provider = cloud.provider(HYPER18)
    with cloud.inventory(provider, "MEMORY_MB", allocation_ratio=1.5):
        finding = cloud.only("nova-options")
        assert (finding.reason, finding.payload["wanted"]) == ("ram_allocation_ratio 1.5", "ram_allocation_ratio 1")
    with cloud.inventory(provider, COUNT, total=2):
        finding = cloud.only("provider-config")
        assert (finding.reason, finding.payload["wanted"]) == (f"{COUNT} 2", f"{COUNT} 1")
    with cloud.inventory(provider, "VCPU", total=8):
        assert cloud.only("recording-old").reason == "VCPU 8"


def test_services_that_are_disabled_or_down(cloud: Cloud) -> None:
    cloud.service(HYPER18, status="disabled", disabled_reason="new fans")
    assert "new fans" in cloud.only("host-disabled").reason
    cloud.service(HYPER18, status="enabled")
    cloud.service(HYPER18, forced_down=True)
    cloud.only("host-down")
    cloud.service(HYPER18, forced_down=False)


def test_a_provider_that_was_left_behind(cloud: Cloud) -> None:
    root, child = str(uuid.uuid4()), str(uuid.uuid4())
    cloud.api.request("POST", "placement", "/resource_providers", {"name": "gone", "uuid": root})
    below = {"name": "gone_0000:01:00.0", "uuid": child, "parent_provider_uuid": root}
    cloud.api.request("POST", "placement", "/resource_providers", below)
    body = {"resource_provider_generation": 0, "inventories": {COUNT: {"total": 1}}}
    cloud.api.request("PUT", "placement", f"/resource_providers/{root}/inventories", body)
    nobody = str(uuid.uuid4())
    cloud.allocate(nobody, {root: {COUNT: 1}})
    kinds = cloud.kinds()
    assert kinds == [], "all of its class is taken, so that nothing leads there"
    cloud.allocate(nobody, {})
    found_again = cloud.only("provider-left")
    assert found_again.object == "gone"
    assert "with 1 below it" in found_again.reason
    code, text = command("--fix", "--yes")
    assert code == 0, text


def test_a_host_that_the_site_does_not_know(cloud: Cloud, tmp_path: Path) -> None:
    """The example without one of its hosts, which the lab still has."""
    lines = plain_site().read_text().splitlines()
    text = "\n".join(line for line in lines if not line.strip().startswith(("c4130:", "k4200.4cores:")))
    (tmp_path / "site.yaml").write_text(text)
    fewer = load_site(tmp_path / "site.yaml")
    finding, left = Cloud(cloud.api, cloud.exercise, fewer).found()
    assert (finding.code, finding.object) == ("host-not-in-site", "c4130")
    assert "CUSTOM_GPU_K4200_COUNT" in finding.reason
    assert (left.code, left.object) == ("flavor-left", "flavor k4200.4cores")


def test_placement_lost_what_a_server_has(cloud: Cloud) -> None:
    boot = cloud.exercise.boot(K40C)
    before = cloud.allocations(boot.server_id)
    host = cloud.provider(HYPER18)
    cloud.allocate(boot.server_id, {host: before[host]})
    finding = cloud.only("server-without-gpu")
    assert finding.severity == "alarm"
    assert "Placement knows of 0" in finding.reason
    cloud.allocate(boot.server_id, before)
    cloud.allocate(boot.server_id, {**before, host: {k: v for k, v in before[host].items() if k != COUNT}})
    assert "1 GPUs of gpuyard-exercise-" in cloud.only("servers-uncounted").reason
    cloud.allocate(boot.server_id, before)


def test_servers_that_keep_what_they_should_not(cloud: Cloud) -> None:
    boot = cloud.exercise.boot(K40C)
    before = cloud.allocations(boot.server_id)
    cloud.allocate(boot.server_id, {**before, cloud.provider("c4130"): {"VCPU": 1}})
    assert "runs on hyper18 and has room on c4130" in cloud.only("server-elsewhere").reason
    cloud.allocate(boot.server_id, before)
    state = {"os-resetState": {"state": "error"}}
    cloud.api.request("POST", "compute", f"/servers/{boot.server_id}/action", state)
    cloud.only("server-error-holds")
    cloud.exercise.delete([boot.server_id])


def test_a_resize_that_waits_for_its_confirmation_is_no_drift(cloud: Cloud) -> None:
    """The old GPU is with a consumer that is no server: the migration."""
    boot = cloud.exercise.boot("gpu_tiny")
    resize = {"resize": {"flavorRef": "gpu_medium"}}
    cloud.api.request("POST", "compute", f"/servers/{boot.server_id}/action", resize)
    cloud.exercise.wait_for_status(boot.server_id, "VERIFY_RESIZE")
    world = read_world(cloud.api, cloud.loaded.compiled)
    assert [migration.server for name, migration in world.migrations.items() if name in world.strangers] == [
        boot.server_id
    ]
    assert cloud.found() == []
    step = AllocationStep("test", Allocation(next(iter(world.strangers))))
    left = DriftFixer(cloud.api, cloud.loaded.compiled, world.objects).apply(FixPlan(own=(step,)), lambda _: None)
    assert [item.reason for item in left] == ["Nova has a migration of that id"]
    cloud.api.request("POST", "compute", f"/servers/{boot.server_id}/action", {"confirmResize": None})
    cloud.exercise.wait_for_status(boot.server_id, "ACTIVE")


def test_a_shelved_server_that_still_has_its_gpu(cloud: Cloud) -> None:
    boot = cloud.exercise.boot(K40C)
    before = cloud.allocations(boot.server_id)
    for action, status in (("shelve", "SHELVED_OFFLOADED"),):
        cloud.api.request("POST", "compute", f"/servers/{boot.server_id}/action", {action: None})
        cloud.exercise.wait_for_status(boot.server_id, status)
    assert cloud.found() == [], "it has given back what it had"
    cloud.allocate(boot.server_id, before)
    finding = cloud.only("server-shelved-holds")
    assert finding.remedy.startswith(f"openstack resource provider allocation delete {boot.server_id}")
    cloud.api.request("DELETE", "placement", f"/allocations/{boot.server_id}")
    assert cloud.found() == []


def test_two_servers_in_one_iommu_group_are_an_alarm(cloud: Cloud) -> None:
    """Nova never does that with the site's options; a hand in Placement can."""
    gpus = [gpu for gpu in cloud.loaded.compiled.gpus if gpu.set_letter == "A" and gpu.pool == "v100"]
    leader, peer = gpus
    one, two = cloud.exercise.boot("gpu_tiny"), cloud.exercise.boot("gpu_tiny")
    befores = {boot.server_id: cloud.allocations(boot.server_id) for boot in (one, two)}
    host = cloud.provider(leader.host)

    def move(boot: str, provider: str, resource_class: str) -> None:
        cloud.allocate(boot, {host: befores[boot][host], provider: {resource_class: 1}})

    for boot in (one, two):  # out of the way first
        cloud.allocate(boot.server_id, {host: befores[boot.server_id][host]})
    move(one.server_id, cloud.provider(leader.provider_name), leader.resource_class)
    move(two.server_id, cloud.provider(peer.provider_name), peer.resource_class)
    finding = cloud.only("group-split")
    assert finding.severity == "alarm"
    assert one.server_id in finding.reason
    assert two.server_id in finding.reason
    cloud.exercise.clear()


def test_a_token_that_is_revoked_on_the_way(cloud: Cloud, monkeypatch: pytest.MonkeyPatch) -> None:
    """keystoneauth asks for a new one when a service says that the old one is not good."""
    api = connect(ADMIN_CLOUD)
    subject = Cloud(api, cloud.exercise, cloud.loaded)
    assert subject.found() == []
    token = str(api._adapters["compute"].session.get_token())
    cloud.api.request("DELETE", "identity", "/auth/tokens", headers={"X-Subject-Token": token})
    assert subject.found() == []
    assert api._adapters["compute"].session.get_token() != token


def test_a_cloud_that_cannot_be_reached(lab: RunningLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    auth: dict[str, Any] = {"auth_url": "http://127.0.0.1:9/v3", "username": "a", "password": "b", "project_name": "c"}
    auth |= {"user_domain_id": "default", "project_domain_id": "default"}
    clouds: dict[str, Any] = {"clouds": {"silent": {"auth": auth}}}
    (tmp_path / "clouds.yaml").write_text(json.dumps(clouds))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(tmp_path / "clouds.yaml"))
    args = ["site", "drift", "--os-cloud", "silent", "--site", str(plain_site())]
    result = CliRunner().invoke(app, args)
    assert isinstance(result.exception, CloudError)
    assert "cloud silent: cannot be reached at http://127.0.0.1:9" in str(result.exception)


def test_options_that_do_not_go_together(lab: RunningLab) -> None:
    assert command("--yes")[0] == 2
    assert command("--fix", "-f", "json")[0] == 2


# Hosts that are isolated and keep something for GPUs, in a lab of its own.

RECORDINGS = EXAMPLE_SITE.parent / "recordings"
MIXED: dict[str, Any] = {
    "site": "mixed",
    "hosts": {
        "gpu-server": {"recording": str(RECORDINGS / "epyc-v100.json"), "reserve": "largest-flavors"},
        "cld-dfa-gpu-03": {"recording": str(RECORDINGS / "mixed-consumer.json")},
        "hyper18": {"recording": str(RECORDINGS / "hyper18.json"), "reserve": {"vcpus": 4, "ram": "8 GiB"}},
    },
    "pools": {"v100": {"models": ["10de:1db4"]}, "k40c": {"models": ["10de:1024"]}, "titan": {"models": ["10de:1005"]}},
    "flavors": {
        "gpu": {"vcpus": 2, "ram": "2 GiB", "disk": "1 GiB", "gpus": {"k40c": 1}},
        "v100": {"vcpus": 2, "ram": "2 GiB", "disk": "1 GiB", "gpus": {"v100": 1}},
        "pair": {"vcpus": 2, "ram": "2 GiB", "disk": "1 GiB", "gpus": {"v100": 2}, "same_group": True},
        "cpu": {"vcpus": 1, "ram": "1 GiB", "disk": "1 GiB"},
    },
    "projects": {"demo": {"gpus": {"k40c": 1, "v100": 6}}},
    "limits": {"servers": 100},
}
TRAIT = "CUSTOM_SITE_MIXED"
AUDIO = "0000:af:00.1"
"""In the IOMMU group of a GPU that the site offers."""


def without_line(config: str, text: str) -> str:
    return "".join(line for line in config.splitlines(keepends=True) if text not in line)


def badly_deployed(plan: LabPlan) -> LabPlan:
    """Hosts whose options are not those of the site, each in its own way."""
    hosts = {host.name: host for host in plan.hosts}
    epyc, consumer, hyper = hosts["gpu-server"], hosts["cld-dfa-gpu-03"], hosts["hyper18"]
    equal = epyc.config.replace('"CUSTOM_GPU_V100_PEER", "traits": "CUSTOM_GPU_SET_A"', '"CUSTOM_GPU_V100"')
    assert equal != epyc.config
    spec = f'[pci]\ndevice_spec = {{"address": "{AUDIO}", "resource_class": "CUSTOM_AUDIO"}}\n'
    return replace(
        plan,
        hosts=(
            replace(epyc, config=without_line(equal, '"0000:44:00.0"')),
            replace(consumer, config=consumer.config + spec),
            replace(hyper, config=hyper.config + "[DEFAULT]\nram_allocation_ratio = 1.5\n", provider_config=""),
        ),
    )


@dataclass
class Mixed(Cloud):
    """The other lab."""

    user: CloudApi

    def boot(self, flavor: str, image: str) -> str:
        """A server of the operator; its id."""
        server = {"name": "gpuyard-exercise-x", "flavorRef": flavor, "imageRef": image, "networks": "none"}
        made = self.api.request("POST", "compute", "/servers", {"server": server})["server"]["id"]
        Exercise(self.api, self.api, self.loaded.compiled).wait_for_status(made, "ACTIVE")
        return str(made)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mixed]:
    """A lab that was badly deployed, looked at, and deployed well; what was seen in between is in `seen_before`."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "site.yaml").write_text(json.dumps(MIXED))
    loaded = load_site(folder / "site.yaml")
    plan = plan_of_site(folder / "site.yaml")
    running = start_lab(folder / "lab", badly_deployed(plan))
    try:
        operator, user = (connect(name, running.status.clouds_file) for name in (ADMIN_CLOUD, DEMO_CLOUD))
        apply_site(operator, loaded)
        world = read_world(operator, loaded.compiled)
        seen_before[:] = find_drift(loaded.compiled, loaded.inventories, world)
        start_lab(folder / "lab", plan)
        apply_site(operator, loaded)
        yield Mixed(operator, Exercise(operator, user, loaded.compiled), loaded, user)
    finally:
        control.down(running.settings)


seen_before: list[Finding] = []


def apply_site(operator: CloudApi, loaded: LoadedSite) -> None:
    observed = read_objects(operator, loaded.compiled)
    SiteApplier(operator, observed).apply(plan_site(loaded.compiled, observed), lambda step: None)


def test_hosts_that_were_deployed_with_other_options(mixed: Mixed) -> None:
    differences = {(item.code, item.object) for item in seen_before}
    assert differences == {
        ("gpu-other-class", "gpu-server 0000:28:00.0"),
        ("gpu-lost", "gpu-server"),
        ("device-not-offered", f"cld-dfa-gpu-03 {AUDIO}"),
        ("provider-config", "hyper18"),
        ("nova-options", "hyper18"),
        ("waiting", "aggregate gpuyard-mixed"),
    }, seen_before
    assert mixed.found() == [], "the remedy, to deploy the site's options, makes it all go"


def test_an_image_that_opens_isolated_hosts(mixed: Mixed) -> None:
    image = {"name": "sneaky", "disk_format": "raw", "container_format": "bare", f"trait:{TRAIT}": "required"}
    made = mixed.api.request("POST", "image", "/images", image)["id"]
    mixed.only("image-trait")
    mixed.api.request("DELETE", "image", f"/images/{made}")
    tiny = mixed.api.get("image", "/images", name="tiny")["images"][0]["id"]
    headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}

    def patch(op: str, **more: str) -> None:
        change = [{"op": op, "path": f"/trait:{TRAIT}", **more}]
        mixed.api.request("PATCH", "image", f"/images/{tiny}", change, headers=headers)

    patch("add", value="required")
    body = {"id": "foreign", "name": "foreign", "vcpus": 2, "ram": 1024, "disk": 1}
    mixed.api.request("POST", "compute", "/flavors", {"flavor": body})
    server = mixed.boot("foreign", tiny)
    patch("remove")
    findings_by_code = {item.code: item for item in mixed.found()}
    assert findings_by_code.keys() <= {"servers-foreign", "reserve-uncounted"}
    assert server in findings_by_code["servers-foreign"].reason
    host = findings_by_code["servers-foreign"].object
    if host != "cld-dfa-gpu-03":  # which keeps nothing
        assert "use 2 vCPUs, 1024 MiB, 1 GiB and count as nothing" in findings_by_code["reserve-uncounted"].reason
    Exercise(mixed.api, mixed.api, mixed.loaded.compiled).delete([server])
    assert mixed.found() == []
    specs = {"extra_specs": {f"trait:{TRAIT}": "required"}}
    mixed.api.request("POST", "compute", "/flavors/foreign/os-extra_specs", specs)
    mixed.only("flavor-foreign-trait")
    mixed.api.request("DELETE", "compute", "/flavors/foreign")


def test_aggregates_changed_by_hand(mixed: Mixed) -> None:
    rows = mixed.api.get("compute", "/os-aggregates")["aggregates"]
    (mine,) = (row for row in rows if row["name"] == "gpuyard-mixed")
    action = {"remove_host": {"host": HYPER18}}
    mixed.api.request("POST", "compute", f"/os-aggregates/{mine['id']}/action", action)
    assert mixed.only("aggregate-changed").object == "aggregate gpuyard-mixed"
    apply_site(mixed.api, mixed.loaded)
    assert mixed.found() == []
    provider = mixed.provider(HYPER18)
    path = f"/resource_providers/{provider}/aggregates"
    before = mixed.api.get("placement", path)

    def put(aggregates: list[str]) -> None:
        generation = mixed.api.get("placement", path)["resource_provider_generation"]
        body = {"aggregates": aggregates, "resource_provider_generation": generation}
        mixed.api.request("PUT", "placement", path, body)

    put([])
    finding = mixed.only("aggregate-not-in-placement")
    assert finding.reason == "Placement lacks hyper18"
    put(before["aggregates"])
    assert mixed.found() == []


def test_a_host_that_lost_its_trait(mixed: Mixed) -> None:
    provider = mixed.provider(HYPER18)
    path = f"/resource_providers/{provider}/traits"
    before = mixed.api.get("placement", path)
    fewer = {**before, "traits": [trait for trait in before["traits"] if trait != TRAIT]}
    mixed.api.request("PUT", "placement", path, fewer)
    assert mixed.only("provider-config").reason == f"no trait {TRAIT}"
    generation = mixed.api.get("placement", path)["resource_provider_generation"]
    mixed.api.request("PUT", "placement", path, {**before, "resource_provider_generation": generation})
    assert mixed.found() == []


def test_servers_of_the_site_on_such_hosts_are_no_drift(mixed: Mixed) -> None:
    boots = [mixed.exercise.boot(name) for name in ("gpu", "cpu", "cpu", "pair-a", "v100")]
    assert {boot.status for boot in boots} == {"ACTIVE"}
    assert mixed.found() == []
    mixed.exercise.clear()


def test_a_server_on_a_gpu_that_the_site_does_not_offer_any_more(mixed: Mixed, tmp_path: Path) -> None:
    """The site file without the pool, and its server still there."""
    pools = {name: pool for name, pool in MIXED["pools"].items() if name != "k40c"}
    flavors = {name: flavor for name, flavor in MIXED["flavors"].items() if name != "gpu"}
    projects = {"demo": {"gpus": {"v100": 6}}}
    document = {**MIXED, "pools": pools, "flavors": flavors, "projects": projects}
    (tmp_path / "site.yaml").write_text(json.dumps(document))
    fewer = Mixed(mixed.api, mixed.exercise, load_site(tmp_path / "site.yaml"), mixed.user)
    boot = mixed.exercise.boot("gpu")
    findings_by_code = {item.code: item for item in fewer.found()}
    assert findings_by_code.keys() == {
        "gpu-not-offered-in-use",
        "provider-config",
        "flavor-left",
        "limit-left",
        "waiting",
    }
    assert "nova-compute does not start without" in findings_by_code["waiting"].reason
    assert findings_by_code["gpu-not-offered-in-use"].severity == "alarm"
    assert boot.server_id in findings_by_code["gpu-not-offered-in-use"].reason
    mixed.exercise.clear()
    assert "gpu-not-offered" in fewer.kinds()
