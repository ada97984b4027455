"""Plan and apply against the real services: what is made is what was meant, twice is once, and foreigners stay."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from gpuyard.cli.main import app, run
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.provisioning.apply import SiteApplier
from gpuyard.provisioning.read import OF_PROVIDER_CONFIGS, read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import OWNER_KEY, AggregateObject, ImageObject, SeenObjects, owner_mark
from gpuyard.site.plan import plan_site
from gpuyard.site.steps import SitePlan, SiteStep
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.exercise import Exercise
from tests.integration.conftest import RunningLab
from tests.support.sites import flavor, site
from tests.support.sysfs import Sysfs

pytestmark = pytest.mark.lab

P4 = "10de:1bb3"
MARK = owner_mark("small")


@pytest.fixture
def small(tmp_path: Path, operator: CloudApi, applied: None) -> Iterator[CompiledSite]:
    """A second site beside the example, on names of its own; taken away again with prune."""
    compiled = small_site(tmp_path, {"x_public": flavor(gpus={"p4": 1}), "x_private": flavor(projects=["demo"])})
    yield compiled
    empty = small_site(tmp_path, {}, {})
    observed = read_objects(operator, empty)
    SiteApplier(operator, observed).apply(plan_site(empty, observed, prune=True), lambda step: None)
    assert plan_site(empty, read_objects(operator), prune=True).steps == ()


def small_site(folder: Path, flavors: dict[str, object], projects: dict[str, object] | None = None) -> CompiledSite:
    document = {
        "site": "small",
        "pools": {"p4": {"models": [P4]}},
        "flavors": flavors,
        "projects": projects if projects is not None else {"demo": {"gpus": {"p4": 1}}},
    }
    return site(folder, document, {"host": Sysfs().function("05:00.0", P4, group=1)}).compiled


def apply(operator: CloudApi, compiled: CompiledSite) -> SeenObjects:
    observed = read_objects(operator, compiled)
    plan = plan_site(compiled, observed)
    assert not plan.refusals
    SiteApplier(operator, observed).apply(plan, lambda step: None)
    return read_objects(operator, compiled)


def test_apply_makes_what_is_wanted_and_a_second_plan_is_empty(operator: CloudApi, small: CompiledSite) -> None:
    observed = apply(operator, small)
    assert plan_site(small, observed).steps == ()
    flavors = {item.flavor.name: item for item in observed.flavors}
    assert flavors["x_public"].id == "x_public"
    specs = {"pci_passthrough:alias": "p4:1", "resources:CUSTOM_GPU_P4_COUNT": "1"}
    assert flavors["x_public"].flavor.extra_specs == specs
    assert flavors["x_private"].flavor.projects == {"demo"}
    assert not flavors["x_private"].flavor.public
    limits = {(i.limit.project, i.limit.resource): i.limit.value for i in observed.limits}
    assert limits[None, "class:CUSTOM_GPU_P4"] == 0
    assert limits["demo", "class:CUSTOM_GPU_P4"] == 1


def test_each_kind_of_change_arrives(operator: CloudApi, small: CompiledSite) -> None:
    apply(operator, small)
    public, private = small.flavors
    changed = replace(
        small,
        flavors=(
            replace(public, ram=16384, extra_specs={**public.extra_specs, "hw:hide_hypervisor_id": "true"}),
            replace(private, projects=frozenset(), extra_specs={"hw:cpu_policy": "dedicated"}),
        ),
        limits=tuple(replace(limit, value=3) if limit.project else limit for limit in small.limits),
    )
    plan = plan_site(changed, read_objects(operator))
    assert sorted(str(step) for step in plan.steps) == [
        "replace flavor x_public",
        "update flavor x_private",
        "update project limit demo class:CUSTOM_GPU_P4",
        "update project limit demo class:CUSTOM_GPU_P4_COUNT",
    ]
    assert plan_site(changed, apply(operator, changed)).steps == ()
    assert plan_site(small, apply(operator, small)).steps == (), "and back, which takes properties away again"


def test_stopped_after_any_step_the_next_apply_finishes(operator: CloudApi, small: CompiledSite) -> None:
    """A kill between two steps, and also between the calls of one: creating a flavor takes up to three."""
    observed = read_objects(operator)
    plan = plan_site(small, observed)
    for _ in range(len(plan.steps)):
        now = read_objects(operator)
        left = plan_site(small, now)
        assert left.steps, "one step at a time"
        SiteApplier(operator, now).apply(SitePlan(left.steps[:1]), lambda step: None)
    assert plan_site(small, read_objects(operator)).steps == ()


def test_a_flavor_that_was_made_but_not_finished_is_finished_and_not_taken_for_foreign(
    operator: CloudApi, small: CompiledSite, monkeypatch: pytest.MonkeyPatch
) -> None:
    observed = read_objects(operator)
    real = operator.request

    def dies(method: str, service: str, path: str, *more: object, **others: object) -> object:
        if path.endswith("os-extra_specs"):
            raise CloudError("the process is killed here")
        return real(method, service, path, *more, **others)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(operator, "request", dies)
        with pytest.raises(CloudError, match="create flavor x_public: the process is killed here; the next plan shows"):
            SiteApplier(operator, observed).apply(plan_site(small, observed), lambda step: None)
    plan = plan_site(small, read_objects(operator))
    assert not plan.refusals
    assert "update flavor x_public" in [str(step) for step in plan.steps]
    assert plan_site(small, apply(operator, small)).steps == ()


def test_a_flavor_of_somebody_else_refuses_the_plan(operator: CloudApi, small: CompiledSite) -> None:
    mine = {"id": "theirs", "name": "x_public", "vcpus": 1, "ram": 512, "disk": 1}
    operator.request("POST", "compute", "/flavors", {"flavor": mine})
    try:
        plan = plan_site(small, read_objects(operator))
        assert "flavor x_public (id theirs) exists already and is not of this site" in plan.refusals[0]
    finally:
        operator.request("DELETE", "compute", "/flavors/theirs")


def test_the_command_line_tells_and_does_the_same(lab: RunningLab, applied: None) -> None:
    runner = CliRunner()
    common = ["--os-cloud", ADMIN_CLOUD, "--site", str(lab.lab.site_file)]
    planned = runner.invoke(app, ["site", "plan", *common])
    assert (planned.exit_code, planned.stdout) == (0, "Nothing to do: the cloud is as the site file says.\n")
    done = runner.invoke(app, ["site", "apply", *common])
    assert (done.exit_code, done.stdout) == (0, "Nothing to do: the cloud is as the site file says.\n")


def test_apply_asks_and_no_means_no(lab: RunningLab, operator: CloudApi, small: CompiledSite, tmp_path: Path) -> None:
    common = ["--os-cloud", ADMIN_CLOUD, "--site", str(tmp_path / "site.yaml")]
    result = CliRunner().invoke(app, ["site", "apply", *common], input="n\n")
    assert result.exit_code == 1
    left = len(plan_site(small, read_objects(operator)).steps)
    assert f"Carry out {left} steps on cloud gpuyard-lab?" in result.stdout
    assert "x_public" not in {item.flavor.name for item in read_objects(operator).flavors}
    silence = CliRunner().invoke(app, ["site", "apply", *common], input="")
    assert isinstance(silence.exception, UsageError)
    assert "--yes goes on without asking" in str(silence.exception)
    result = CliRunner().invoke(app, ["site", "apply", *common], input="y\n")
    assert result.stdout.endswith(f"{left} steps done; the cloud is as the site file says.\n")


def test_a_project_that_is_missing_blocks_with_exit_code_3(
    lab: RunningLab, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    small_site(tmp_path, {}, {"nobody": {"gpus": {"p4": 1}}})
    command = ["gpuyard", "site", "apply", "--yes", "--os-cloud", ADMIN_CLOUD, "--site", str(tmp_path / "site.yaml")]
    monkeypatch.setattr("sys.argv", command)
    with pytest.raises(SystemExit) as ended:
        run()
    assert ended.value.code == BlockedError.exit_code
    assert "project nobody does not exist in Keystone" in capsys.readouterr().err


def with_hosts(small: CompiledSite, *hosts: str, zone: str | None = None, **metadata: str) -> CompiledSite:
    aggregate = AggregateObject("x-big", frozenset(hosts), zone, {OWNER_KEY: "small", **metadata})
    return replace(small, aggregates=(aggregate,))


def test_aggregates_follow_the_site_file(operator: CloudApi, small: CompiledSite) -> None:
    for compiled in (
        with_hosts(small, "hyper18", "c4130", zone="x-zone", ssd="true"),
        with_hosts(small, "c4130", zone="x-other", nvme="true"),
        with_hosts(small, "hyper18"),
    ):
        observed = apply(operator, compiled)
        assert plan_site(compiled, observed).steps == ()
        assert [item.aggregate for item in observed.aggregates if item.aggregate.name == "x-big"] == [
            *compiled.aggregates
        ]


def test_an_aggregate_that_was_made_but_not_finished_is_finished(operator: CloudApi, small: CompiledSite) -> None:
    compiled = with_hosts(small, "hyper18", ssd="true")
    operator.request("POST", "compute", "/os-aggregates", {"aggregate": {"name": "x-big"}})
    assert plan_site(compiled, apply(operator, compiled)).steps == ()


def test_properties_of_images(operator: CloudApi, small: CompiledSite) -> None:
    compiled = replace(small, images=(ImageObject("tiny", {"hw_machine_type": "q35", "hw_x/~y": "1"}),))
    (image,) = operator.get("image", "/images", name="tiny")["images"]
    try:
        assert plan_site(compiled, apply(operator, compiled)).steps == ()
        changed = replace(small, images=(ImageObject("tiny", {"hw_machine_type": "pc"}),))
        assert plan_site(changed, apply(operator, changed)).steps == ()
        (after,) = operator.get("image", "/images", name="tiny")["images"]
        assert (after["hw_machine_type"], after["hw_x/~y"]) == ("pc", "1"), "only what is stated is changed"
    finally:
        gone = [{"op": "remove", "path": "/hw_machine_type"}, {"op": "remove", "path": "/hw_x~1~0y"}]
        headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
        operator.request("PATCH", "image", f"/images/{image['id']}", gone, headers=headers)


def test_a_stored_plan_is_carried_out_as_it_is_or_not_at_all(
    lab: RunningLab, operator: CloudApi, small: CompiledSite, tmp_path: Path
) -> None:
    file = str(tmp_path / "plan.json")
    common = ["--os-cloud", ADMIN_CLOUD, "--site", str(tmp_path / "site.yaml")]
    planned = CliRunner().invoke(app, ["site", "plan", *common, "-o", file])
    assert planned.exit_code == 0
    assert f"carry it out with: gpuyard site apply {file}" in planned.stdout
    operator.request("POST", "compute", "/os-aggregates", {"aggregate": {"name": "x-nothing-to-do-with-it"}})
    body = {"flavor": {"id": "x_private", "name": "x_private", "vcpus": 1, "ram": 1, "disk": 1}}
    operator.request("POST", "compute", "/flavors", {"flavor": {**body["flavor"], "description": MARK}})
    moved = CliRunner().invoke(app, ["site", "apply", file, *common])
    assert isinstance(moved.exception, BlockedError)
    assert "create flavor x_private is no longer to be done" in str(moved.exception)
    assert "x_public" not in {item.flavor.name for item in read_objects(operator).flavors}, "nothing was done"
    operator.request("DELETE", "compute", "/flavors/x_private")
    done = CliRunner().invoke(app, ["site", "apply", file, *common])
    assert done.exit_code == 0, done.output
    assert plan_site(small, read_objects(operator, small)).steps == ()
    for item in read_objects(operator).aggregates:
        if item.aggregate.name == "x-nothing-to-do-with-it":
            operator.request("DELETE", "compute", f"/os-aggregates/{item.id}")


def test_a_token_that_is_revoked_on_the_way_is_replaced(
    lab: RunningLab, operator: CloudApi, small: CompiledSite
) -> None:
    api = connect(ADMIN_CLOUD)
    observed = read_objects(api, small)
    session = api._adapters["identity"].session
    plan = plan_site(small, observed)
    revoked = []

    def revoke(step: SiteStep) -> None:
        session.invalidate()  # a service that has met a token goes on taking it from its cache
        token = str(session.get_token())
        operator.request("DELETE", "identity", "/auth/tokens", headers={"X-Subject-Token": token})
        revoked.append(token)

    SiteApplier(api, observed).apply(plan, revoke)
    assert len(set(revoked)) == len(plan.steps) > 2
    assert session.get_token() not in revoked
    assert plan_site(small, read_objects(operator, small)).steps == ()


def test_a_plan_takes_a_bounded_number_of_calls(operator: CloudApi, example: CompiledSite, applied: None) -> None:
    """The table of docs/architecture.md, for the example site: none of the numbers is of GPUs."""
    before = operator.calls
    observed = read_objects(operator, example)
    made = operator.calls - before
    private = sum(not item.flavor.public for item in observed.flavors)
    resource_classes = operator.get("placement", "/resource_classes")["resource_classes"]
    ours = sum(bool(OF_PROVIDER_CONFIGS.match(row["name"])) for row in resource_classes)
    traits = {trait for config in example.provider_configs for trait in config.traits}
    hosts = len(example.provider_configs)
    assert made <= 1 + (2 + private) + 4 + 2 + len(example.images) + len(traits) + hosts + ours + 4
    assert made < 40


def test_limits_are_in_force_at_once(exercise: Exercise, operator: CloudApi, example: CompiledSite) -> None:
    """A project's limit goes down to 0, which Keystone's update ignores, and up again; Nova obeys the next request."""
    none = tuple(
        replace(limit, value=0) if (limit.project, limit.resource) == ("demo", "class:CUSTOM_GPU_K40C") else limit
        for limit in example.limits
    )
    closed = replace(example, limits=none)
    assert plan_site(closed, apply(operator, closed)).steps == ()
    try:
        with pytest.raises(CloudError, match="CUSTOM_GPU_K40C is over limit of 0") as refused:
            exercise.boot("k40c.2cores")
        assert refused.value.status == 403
    finally:
        apply(operator, example)
    assert exercise.boot("k40c.2cores").status == "ACTIVE"


def test_a_project_of_the_same_name_in_another_domain_is_not_meant(operator: CloudApi, applied: None) -> None:
    before = read_objects(operator).projects["demo"]
    domain = operator.request("POST", "identity", "/domains", {"domain": {"name": "elsewhere"}})["domain"]["id"]
    try:
        project = {"name": "demo", "domain_id": domain}
        other = operator.request("POST", "identity", "/projects", {"project": project})["project"]["id"]
        assert read_objects(operator).projects["demo"] == before != other
    finally:
        operator.request("PATCH", "identity", f"/domains/{domain}", {"domain": {"enabled": False}})
        operator.request("DELETE", "identity", f"/domains/{domain}")


@pytest.mark.parametrize(
    ("cloud", "error", "says"),
    [
        (
            "nowhere",
            UsageError,
            r"cloud nowhere cannot be used: .*[^.]; name one of clouds.yaml with --os-cloud or OS_CLOUD",
        ),
        (
            "silent",
            CloudError,
            r"cloud silent: cannot be reached at http://127.0.0.1:9: Connection refused; is it up, and",
        ),
        ("wrong", CloudError, "cloud wrong: Keystone does not accept the credentials"),
    ],
)
def test_clouds_that_cannot_be_used_say_why(
    lab: RunningLab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cloud: str, error: type[Exception], says: str
) -> None:
    login = {"username": "admin", "password": "x", "project_name": "admin", "user_domain_id": "default"}
    login["project_domain_id"] = "default"
    clouds = {
        "silent": {"auth": {**login, "auth_url": "http://127.0.0.1:9/v3"}, "region_name": "RegionOne"},
        "wrong": {"auth": {**login, "auth_url": lab.lab.endpoint("keystone")}, "region_name": "RegionOne"},
    }
    file = tmp_path / "clouds.yaml"
    file.write_text(json.dumps({"clouds": clouds}))
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(file))
    with pytest.raises(error, match=says):
        read_objects(connect(cloud))
