"""The example sites, one after the other on real services: applied, and doing what they were written for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from tools.examples import EXAMPLES

from gpuyard.diagnosis.why.read import why
from gpuyard.host.recording import replay_file
from gpuyard.model.gpu import GpuState
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.provisioning.apply import apply_plan
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite, compile_site
from gpuyard.site.load import load_site
from gpuyard.site.objects import LimitObject
from gpuyard.site.plan import plan_site
from gpuyard.site.schema import Reserve
from gpuyard_lab import control, portal
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import Boot, Exercise
from gpuyard_lab.plan import EXAMPLE_SITE, LabHost, plan_of_site
from tests.integration.conftest import start_lab

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FORBIDDEN = 403
RECORDING = EXAMPLE_SITE.parent / "recordings/hyper18.json"


@dataclass
class ExampleCloud:
    """A lab of one example site, with the site applied."""

    name: str
    compiled: CompiledSite
    operator: CloudApi
    user: CloudApi

    def exercise(self) -> Exercise:
        """As the demo user; it knows the flavors that there are now."""
        return Exercise(self.operator, self.user, self.compiled)

    def apply(self, compiled: CompiledSite) -> None:
        observed = read_objects(self.operator, compiled)
        plan = plan_site(compiled, observed)
        assert (plan.refusals, plan.waits) == ((), ())
        apply_plan(self.operator, compiled, observed, plan, lambda step: None)

    def clear(self) -> None:
        """Take the site's objects away again, for the next site: a cloud has one."""
        empty = replace(self.compiled, flavors=(), limits=(), aggregates=(), images=())
        observed = read_objects(self.operator)
        apply_plan(
            self.operator, empty, observed, plan_site(empty, observed, prune=True), lambda step: None, prune=True
        )

    def host_of(self, boot: Boot) -> str:
        row = self.operator.get("compute", f"/servers/{boot.server_id}")["server"]
        return str(row["OS-EXT-SRV-ATTR:host"])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One lab for all examples: the next site comes to a cloud that has served another."""
    return tmp_path_factory.mktemp("examples")


@pytest.fixture(scope="module")
def cloud(request: pytest.FixtureRequest, folder: Path) -> Iterator[ExampleCloud]:
    name: str = request.param
    site = EXAMPLES / name / "site.yaml"
    plan = plan_of_site(site)
    if name == "workstation-cards":  # a hypervisor often has a domain, and its host none
        plan = replace(plan, hosts=tuple(with_domain(host) for host in plan.hosts))
    running = start_lab(folder, plan, site)
    try:
        loaded = load_site(site)
        portal.apply_site(running.lab, loaded)
        clouds = running.status.clouds_file
        made = ExampleCloud(name, loaded.compiled, connect(ADMIN_CLOUD, clouds), connect(DEMO_CLOUD, clouds))
        yield made
        made.clear()
    finally:
        control.down(running.settings)


def with_domain(host: LabHost) -> LabHost:
    node = f"{host.name}.example.org"
    return replace(host, node=node, provider_config=host.provider_config.replace(f"name: {host.name}", f"name: {node}"))


@pytest.fixture
def servers(cloud: ExampleCloud) -> Iterator[Exercise]:
    exercise = cloud.exercise()
    yield exercise
    exercise.clear()


def on(*names: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("cloud", names, indirect=True)


ALL = sorted(path.parent.name for path in EXAMPLES.glob("*/site.yaml"))


@on(*ALL)
def test_a_second_plan_is_empty_and_every_flavor_boots(cloud: ExampleCloud, servers: Exercise) -> None:
    plan = plan_site(cloud.compiled, read_objects(cloud.operator, cloud.compiled))
    assert (plan.steps, plan.refusals, plan.waits, plan.notes) == ((), (), (), ())
    for flavor in cloud.compiled.flavors:
        boot = servers.boot(flavor.name)
        assert (flavor.name, boot.status, boot.fault) == (flavor.name, "ACTIVE", "")
        servers.delete([boot.server_id])


@on("mixed-hypervisor")
def test_however_many_others_there_are_the_gpu_finds_its_room(cloud: ExampleCloud, servers: Exercise) -> None:
    others: list[Boot] = []
    for flavor in ("m1.large", "m1.medium"):
        while (boot := servers.boot(flavor)).status == "ACTIVE":
            others.append(boot)
        assert "No valid host" in boot.fault
    # 94208 MiB for servers without GPUs: 3 x 24576 + 2 x 8192 leaves 4096.
    assert [boot.flavor for boot in others] == ["m1.large"] * 3 + ["m1.medium"] * 2
    largest = servers.boot("g1.gpu.large")
    assert (largest.status, largest.fault) == ("ACTIVE", "")


@on("mixed-hypervisor")
def test_flavors_of_others_stay_off_the_host(cloud: ExampleCloud) -> None:
    foreign = {"id": "foreign", "name": "foreign", "vcpus": 1, "ram": 512, "disk": 1}
    cloud.operator.request("POST", "compute", "/flavors", {"flavor": foreign})
    try:
        servers = cloud.exercise()
        boot = servers.boot("foreign")
        servers.clear()
        assert (boot.status, "No valid host" in boot.fault) == ("ERROR", True)
    finally:
        cloud.operator.request("DELETE", "compute", "/flavors/foreign")


@contextmanager
def most(cloud: ExampleCloud, gpus: int) -> Iterator[None]:
    """The demo project may use so many GPUs; what the site file says comes back after."""
    limits = tuple(
        replace(limit, value=gpus) if limit.project and limit.resource.startswith("class:CUSTOM_GPU") else limit
        for limit in cloud.compiled.limits
    )
    cloud.apply(replace(cloud.compiled, limits=limits))
    try:
        yield
    finally:
        cloud.apply(cloud.compiled)


@on("v100-server")
@pytest.mark.parametrize(
    ("before", "one_too_many"),
    [
        (["gpu_tiny"] * 4, "gpu_tiny"),
        (["gpu_pair-a", "gpu_pair-b"], "gpu_tiny"),
        (["gpu_pair-a", "gpu_tiny"], "gpu_pair-b"),
    ],
)
def test_the_fifth_gpu_is_refused_with_the_reason(
    cloud: ExampleCloud, servers: Exercise, before: list[str], one_too_many: str
) -> None:
    with most(cloud, 4):
        assert [servers.boot(flavor).status for flavor in before] == ["ACTIVE"] * len(before)
        with pytest.raises(CloudError, match="CUSTOM_GPU_TESLA_V100_COUNT is over limit of 4") as refused:
            servers.boot(one_too_many)
        assert refused.value.status == FORBIDDEN


@on("v100-server")
def test_a_server_cannot_be_resized_past_the_limit(cloud: ExampleCloud, servers: Exercise) -> None:
    """Nova 34 does not count the classes of GPUs here, but it does count what flavors name."""
    with most(cloud, 1):
        assert servers.boot("gpu_tiny").status == "ACTIVE"
        small = servers.boot("ci_medium")
        assert small.status == "ACTIVE"
        resize = {"resize": {"flavorRef": "gpu_medium"}}
        with pytest.raises(CloudError, match="CUSTOM_GPU_TESLA_V100_COUNT is over limit of 1") as refused:
            cloud.user.request("POST", "compute", f"/servers/{small.server_id}/action", resize)
        assert refused.value.status == FORBIDDEN


@on("v100-server")
def test_a_limit_that_somebody_deletes_is_a_limit_of_zero(cloud: ExampleCloud, servers: Exercise) -> None:
    gone = LimitObject("class:CUSTOM_GPU_TESLA_V100_COUNT", 0)
    observed = read_objects(cloud.operator)
    for item in sorted(observed.limits, key=lambda item: item.limit.project is None):
        if item.limit.resource == gone.resource:
            kind = "limits" if item.limit.project else "registered_limits"
            cloud.operator.request("DELETE", "identity", f"/{kind}/{item.id}")
    try:
        with pytest.raises(CloudError, match="COUNT is over limit of 0") as refused:
            servers.boot("gpu_tiny")
        assert refused.value.status == FORBIDDEN
    finally:
        cloud.apply(cloud.compiled)
    assert servers.boot("gpu_tiny").status == "ACTIVE"


@on("research-cloud")
def test_flavors_run_where_their_aggregates_say(cloud: ExampleCloud, servers: Exercise) -> None:
    two = servers.boot("t4.30cores180GB20+1200GB")
    assert cloud.host_of(two) == "cld-dfa-gpu-02"
    titans = [servers.boot("titan-xp.10cores120GB20+500GB") for _ in range(3)]
    assert sorted(cloud.host_of(boot) for boot in titans) == ["cld-dfa-gpu-01", "cld-dfa-gpu-01", "cld-dfa-gpu-03"]
    other_model = servers.boot("gtx-titan.8cores64GB")
    assert (other_model.status, cloud.host_of(other_model)) == ("ACTIVE", "cld-dfa-gpu-03")
    servers.clear()
    moved = tuple(
        replace(aggregate, hosts=frozenset({"cld-dfa-gpu-01"})) if aggregate.name == "big" else aggregate
        for aggregate in cloud.compiled.aggregates
    )
    cloud.apply(replace(cloud.compiled, aggregates=moved))
    try:
        assert "No valid host" in servers.boot("t4.15cores90GB20+600GB").fault
    finally:
        cloud.apply(cloud.compiled)
    assert servers.boot("t4.15cores90GB20+600GB").status == "ACTIVE"


@on("workstation-cards")
def test_gpus_are_found_although_the_hypervisor_has_a_domain(cloud: ExampleCloud, servers: Exercise) -> None:
    names = {row["name"] for row in cloud.operator.get("placement", "/resource_providers")["resource_providers"]}
    assert "c4130.example.org_0000:84:00.0" in names
    assert [status.state for status in servers.statuses()] == [GpuState.FREE] * 2
    boot = servers.boot("k4200.8cores")
    claims = [status.claim for status in servers.statuses() if status.claim]
    assert [claim.server_id for claim in claims] == [boot.server_id] * 2
    explanation = why(cloud.operator, load_site(EXAMPLES / cloud.name / "site.yaml"), "k4200.4cores", "demo")
    assert [(host.host, [cause.code for cause in host.causes]) for host in explanation.hosts] == [("c4130", ["gpu"])]


@on("workstation-cards")
def test_images_have_what_the_site_says(cloud: ExampleCloud) -> None:
    (image,) = cloud.operator.get("image", "/images", name="ubuntu-24.04-cuda")["images"]
    assert (image["img_hide_hypervisor_id"], image["hw_disk_bus"]) == ("true", "virtio")


@on("mixed-hypervisor")
def test_a_changed_reserve_and_a_class_that_is_in_use_are_said(cloud: ExampleCloud, servers: Exercise) -> None:
    """nova-compute goes on with what it has read, and would not start without what servers consume."""
    host = cloud.compiled.site.hosts["hyper18"]
    copy = cloud.compiled.site.model_copy
    smaller = copy(update={"hosts": {"hyper18": host.model_copy(update={"reserve": Reserve(vcpus=2, per_gpu=False)})}})
    inventories = {"hyper18": replay_file(RECORDING)}
    changed, problems = compile_site(smaller, inventories)
    assert problems == []
    waits = plan_site(changed, read_objects(cloud.operator, changed)).waits
    assert "provider.yaml of hyper18: CUSTOM_NOGPU_VCPU is 40 and not 46; deploy" in waits[0]
    servers.boot("m1.medium")
    without, problems = compile_site(
        copy(update={"hosts": {"hyper18": host.model_copy(update={"reserve": None})}}), inventories
    )
    assert problems == []
    waits = plan_site(without, read_objects(cloud.operator, without)).waits
    (text,) = [text for text in waits if "nova-compute does not start without" in text]
    assert "servers there consume CUSTOM_NOGPU_DISK_GB, CUSTOM_NOGPU_MEMORY_MB, CUSTOM_NOGPU_VCPU" in text
