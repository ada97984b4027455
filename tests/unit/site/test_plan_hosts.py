"""Plans for aggregates, images and what waits for hosts: nothing is closed before it can be opened again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import (
    AggregateObject,
    FlavorObject,
    ImageObject,
    LimitObject,
    SeenAggregate,
    SeenFlavor,
    SeenImage,
    SeenLimit,
    SeenObjects,
)
from gpuyard.site.plan import asked, plan_site
from gpuyard.site.steps import AggregateStep, FlavorStep, ImageStep, SitePlan, SiteStep
from tests.support.sites import flavor, site
from tests.support.sysfs import epyc

TRAIT = "CUSTOM_SITE_TEST"
MARK = "made by gpuyard for site test"


def compiled(folder: Path, **more: Any) -> CompiledSite:
    document = {"flavors": {"small": flavor(gpus={"v100": 1}), "cpu": flavor()}, **more}
    return site(folder, document).compiled


def everything_reported(desired: CompiledSite) -> dict[str, frozenset[str]]:
    reported: dict[str, frozenset[str]] = {}
    for config in desired.provider_configs:
        for name in (*config.inventories, *config.traits):
            reported[name] = reported.get(name, frozenset()) | {config.host}
    return reported


def seen(desired: CompiledSite | None = None, **more: Any) -> SeenObjects:
    """A cloud that is as wanted, or empty."""
    servers = SeenLimit("s", LimitObject("servers", 100))
    host = frozenset({"gpu-server"})
    base = SeenObjects((), (servers,), {"demo": "1"}, hosts=host, up=host)
    if desired:
        base = replace(
            base,
            flavors=tuple(SeenFlavor(flavor.name, flavor) for flavor in desired.flavors),
            limits=(servers, *(SeenLimit(str(limit), limit) for limit in desired.limits)),
            aggregates=tuple(SeenAggregate(aggregate.name, aggregate) for aggregate in desired.aggregates),
            images=tuple(SeenImage(image.name, image) for image in desired.images),
            reported=everything_reported(desired),
        )
    return replace(base, **more)


def names(plan: SitePlan) -> list[str]:
    return [str(step) for step in plan.steps]


def test_a_cloud_becomes_exclusive_only_after_its_hosts_have_reported(tmp_path: Path) -> None:
    plain, exclusive = compiled(tmp_path), compiled(tmp_path, exclusive=True)
    plan = plan_site(exclusive, seen(plain))
    assert plan.steps == ()
    assert [text.partition(":")[0] for text in plan.waits] == [
        "flavor small",
        "flavor cpu",
        "aggregate gpuyard-test",
        "provider.yaml of gpu-server",
    ]
    assert "CUSTOM_SITE_TEST not reported to Placement; deploy the rendered one and restart" in plan.waits[-1]
    plan = plan_site(exclusive, seen(plain, reported=everything_reported(exclusive)))
    assert names(plan) == ["update flavor small", "update flavor cpu", "create aggregate gpuyard-test"]
    assert plan.waits == ()


def two_hosts(folder: Path, **more: Any) -> CompiledSite:
    document = {"flavors": {"small": flavor(gpus={"v100": 1})}, **more}
    return site(folder, document, {"one": epyc(), "two": epyc()}).compiled


def test_one_host_that_reports_does_not_close_the_others(tmp_path: Path) -> None:
    """But one that is down holds nobody up, and comes in when it is back."""
    plain, exclusive = two_hosts(tmp_path), two_hosts(tmp_path, exclusive=True)
    both, one_host = frozenset({"one", "two"}), frozenset({"one"})
    reported = dict.fromkeys(everything_reported(exclusive), one_host)
    world = replace(seen(plain), hosts=both, up=both, reported=reported)
    plan = plan_site(exclusive, world)
    assert plan.steps == ()
    assert any("two do not report CUSTOM_SITE_TEST yet" in text for text in plan.waits)
    plan = plan_site(exclusive, replace(world, up=one_host))
    assert names(plan) == ["update flavor small", "create aggregate gpuyard-test"]
    assert plan.steps[-1].values[1]["host one"] == "yes"
    assert "host two" not in plan.steps[-1].values[1]
    assert any("cannot be migrated to its hosts until they have been resized" in note for note in plan.notes)


@pytest.mark.parametrize("trait", ["required", "forbidden"])
def test_traits_that_are_not_the_site_s_are_no_reason_to_wait(tmp_path: Path, trait: str) -> None:
    before = compiled(tmp_path)
    after = compiled(tmp_path, flavors={"small": flavor(gpus={"v100": 1}, properties={"trait:HW_CPU_X86_AVX2": trait})})
    assert names(plan_site(after, seen(before)))[0] == "update flavor small"


def test_who_may_use_a_flavor_does_not_wait_with_the_rest(tmp_path: Path) -> None:
    before = compiled(tmp_path, flavors={"small": flavor(gpus={"v100": 1}, projects=["demo", "old"])})
    more = {"flavors": {"small": flavor(gpus={"v100": 1}, projects=["demo"])}, "exclusive": True}
    plan = plan_site(compiled(tmp_path, **more), seen(before, projects={"demo": "1", "old": "2"}))
    assert [step.changes for step in plan.steps] == [("access old: yes -> (none)",)]
    assert [text.split()[0] for text in plan.waits] == ["flavor", "aggregate", "provider.yaml"]


def test_aggregates_are_there_before_flavors_ask_for_them_and_go_after(tmp_path: Path) -> None:
    big = {"aggregates": {"big": {"hosts": ["gpu-server"]}}}
    bound = {"flavors": {"small": flavor(gpus={"v100": 1}, aggregates=["big"])}, **big}
    plain = compiled(tmp_path, flavors={"small": flavor(gpus={"v100": 1})})
    assert names(plan_site(compiled(tmp_path, **bound), seen(plain))) == ["create aggregate big", "update flavor small"]
    back = plan_site(plain, seen(compiled(tmp_path, **bound)), prune=True)
    assert names(back) == ["update flavor small", "delete aggregate big"]


def test_a_class_that_is_in_use_must_stay_in_provider_yaml(tmp_path: Path) -> None:
    in_use = {"gpu-server": frozenset({"CUSTOM_NOGPU_VCPU"})}
    desired = compiled(tmp_path)
    (text,) = plan_site(desired, seen(desired, in_use=in_use)).waits
    assert "nova-compute does not start without" in text
    keep = {"gpu-server": {"recording": "gpu-server.json", "inventories": {"CUSTOM_NOGPU_VCPU": 1}}}
    assert compiled(tmp_path, hosts=keep).provider_config_of("gpu-server").inventories["CUSTOM_NOGPU_VCPU"] == 1


def test_totals_that_differ_are_said(tmp_path: Path) -> None:
    """A reserve that was changed: nova-compute goes on with what it read when it started."""
    desired = compiled(tmp_path)
    totals = {"gpu-server": {"CUSTOM_GPU_V100_COUNT": 4, "VCPU": 48}}
    (text,) = plan_site(desired, seen(desired, totals=totals)).waits
    assert text.startswith("provider.yaml of gpu-server: CUSTOM_GPU_V100_COUNT is 4 and not 6; deploy the rendered one")


def test_a_host_that_is_misspelled_is_no_host_to_come(tmp_path: Path) -> None:
    desired = compiled(tmp_path, exclusive=True)
    hosts = frozenset({"gpu-servre"})
    (refusal,) = plan_site(desired, seen(hosts=hosts, up=hosts)).refusals
    assert (
        refusal
        == "no nova-compute has the name gpu-server, and the site file does not name gpu-servre: is that the host?"
    )
    assert plan_site(desired, seen(hosts=frozenset({"cpu-1"}))).refusals == ()


def test_a_host_that_left_the_site_file_stays_isolated_until_a_prune(tmp_path: Path) -> None:
    both = two_hosts(tmp_path, exclusive=True)
    reduced = site(
        tmp_path, {"exclusive": True, "flavors": {"small": flavor(gpus={"v100": 1})}}, {"one": epyc()}
    ).compiled
    hosts = frozenset({"one", "two"})
    world = replace(seen(both), hosts=hosts, up=hosts)
    plan = plan_site(reduced, world)
    assert not [step for step in plan.steps if isinstance(step, AggregateStep)]
    assert any("host two is no longer in the site file and stays in aggregate gpuyard-test" in x for x in plan.notes)
    (step,) = [step for step in plan_site(reduced, world, prune=True).steps if isinstance(step, AggregateStep)]
    assert step.changes == ("host two: yes -> (none)",)


def test_a_flavor_of_somebody_else_is_shown_with_what_handing_it_over_means(tmp_path: Path) -> None:
    desired = compiled(tmp_path)
    theirs = replace(desired.flavors[0], vcpus=9, description="")
    plan = plan_site(desired, seen(desired, flavors=(SeenFlavor("4711", theirs),)))
    assert "create flavor small" not in names(plan)
    assert "hand it over (it is then replaced, because it differs in vcpus)" in plan.refusals[0]


def test_keystone_takes_a_project_s_limit_beside_a_registered_one_only(tmp_path: Path) -> None:
    desired = compiled(tmp_path, projects={"demo": {"ram": "64 GiB"}})
    (refusal,) = plan_site(desired, seen()).refusals
    assert "project demo is to have a limit on class:MEMORY_MB, and Keystone takes none without a default" in refusal


def test_a_limit_of_a_domain_stands_in_the_way_of_a_default(tmp_path: Path) -> None:
    desired = compiled(tmp_path, limits={"servers": 50})
    of_domain = SeenLimit("d", LimitObject("servers", 7, "(domain default)"))
    world = replace(seen(desired), limits=(SeenLimit("s", LimitObject("servers", 100)), of_domain))
    (refusal,) = [text for text in plan_site(desired, world).refusals if "servers" in text]
    assert "while project (domain default) has a limit of its own (7)" in refusal


def test_and_is_opened_before_its_flavors_stop_asking(tmp_path: Path) -> None:
    plain, exclusive = compiled(tmp_path), compiled(tmp_path, exclusive=True)
    plan = plan_site(plain, seen(exclusive))
    assert names(plan) == ["update aggregate gpuyard-test", "update flavor small", "update flavor cpu"]
    assert plan.steps[0].changes == (f"property trait:{TRAIT}: required -> (none)",)
    assert plan.notes == ("aggregate gpuyard-test is no longer wanted; --prune deletes it",)
    assert names(plan_site(plain, seen(exclusive), prune=True))[0] == "delete aggregate gpuyard-test"


def test_a_flavor_that_a_killed_apply_left_without_its_alias_does_not_wait(tmp_path: Path) -> None:
    desired = compiled(tmp_path)
    bare = replace(desired.flavors[0], extra_specs={})
    half = seen(desired, flavors=(SeenFlavor("small", bare), SeenFlavor("cpu", desired.flavors[1])), reported={})
    assert names(plan_site(desired, half)) == ["update flavor small"]


def test_aggregates_of_others_and_unfinished_ones(tmp_path: Path) -> None:
    desired = compiled(tmp_path, aggregates={"big": {"hosts": ["gpu-server"]}})
    foreign = SeenAggregate("7", AggregateObject("big", frozenset({"other"}), None, {"ssd": "true"}))
    (refusal,) = plan_site(desired, seen(desired, aggregates=(foreign,))).refusals
    assert "aggregate big (id 7) exists already and is not of this site" in refusal
    assert "openstack aggregate set --property gpuyard_site=test 7" in refusal
    unfinished = SeenAggregate("7", AggregateObject("big"))
    assert names(plan_site(desired, seen(desired, aggregates=(unfinished,)))) == ["update aggregate big"]


def test_a_host_without_nova_compute_joins_later(tmp_path: Path) -> None:
    desired = compiled(tmp_path, aggregates={"big": {"hosts": ["gpu-server"]}})
    plan = plan_site(desired, seen(hosts=frozenset()))
    assert next(step for step in plan.steps if isinstance(step, AggregateStep)).object.hosts == frozenset()
    assert any("gpu-server has no nova-compute service yet" in note for note in plan.notes)


def test_a_host_is_in_one_availability_zone(tmp_path: Path) -> None:
    zoned = compiled(tmp_path, aggregates={"big": {"hosts": ["gpu-server"], "availability_zone": "gpu"}})
    other = SeenAggregate("7", AggregateObject("racks", frozenset({"gpu-server"}), "rack-1"))
    (refusal,) = plan_site(zoned, seen(zoned, aggregates=(other,))).refusals
    assert refusal.startswith("host gpu-server is in availability zone rack-1 (aggregate racks)")
    assert refusal.endswith("it cannot be in gpu (aggregate big) as well")


def test_nova_does_not_change_the_zone_of_a_host_with_servers(tmp_path: Path) -> None:
    zoned = compiled(tmp_path, aggregates={"big": {"hosts": ["gpu-server"], "availability_zone": "gpu"}})
    plain = compiled(tmp_path, aggregates={"big": {"hosts": ["gpu-server"]}})
    busy = frozenset({"gpu-server"})
    for before, after in ((plain, zoned), (zoned, plain)):
        assert plan_site(after, seen(before)).refusals == ()
        (refusal,) = plan_site(after, seen(before, busy=busy)).refusals
        assert "it changes the availability zone of gpu-server, which has servers" in refusal
    assert plan_site(zoned, seen(zoned, busy=busy)).refusals == ()


def test_images(tmp_path: Path) -> None:
    desired = compiled(tmp_path, images={"cuda": {"big_bars": True, "properties": {"hw_video_model": "none"}}})
    properties = {"hw_machine_type": "q35", "hw_firmware_type": "uefi", "hw_video_model": "none"}
    assert plan_site(desired, seen(desired)).steps == ()
    old = SeenImage("1", ImageObject("cuda", {"hw_machine_type": "pc"}))
    (step,) = plan_site(desired, seen(desired, images=(old,))).steps
    assert step == ImageStep("differs from the site file", old.image, ImageObject("cuda", properties))
    assert "image cuda does not exist" in plan_site(desired, seen(desired, images=())).refusals[0]
    assert "image cuda exists 2 times (1, 1)" in plan_site(desired, seen(desired, images=(old, old))).refusals[0]


def test_foreign_flavors_are_compared_and_never_touched(tmp_path: Path) -> None:
    theirs = flavor(gpus={"v100": 1}, foreign=True, properties={"x": "1"})
    desired = compiled(tmp_path, flavors={"theirs": theirs}, gpu_quotas=False)
    (foreign_flavor,) = desired.flavors
    assert foreign_flavor.extra_specs == {"x": "1", "pci_passthrough:alias": "v100:1"}
    existing = replace(foreign_flavor, description="by hand", foreign=False)
    assert plan_site(desired, seen(desired, flavors=(SeenFlavor("4711", existing),))) == SitePlan()
    other = replace(existing, ram=1)
    plan = plan_site(desired, seen(desired, flavors=(SeenFlavor("4711", other),)), prune=True)
    assert (plan.steps, plan.refusals) == ((), ())
    assert plan.notes == ("flavor theirs is foreign and is not as the site file says: ram: 1 -> 8192",)
    assert plan_site(desired, seen(desired, flavors=())).notes == (
        "flavor theirs is foreign, and the cloud does not have it",
    )


def test_a_default_is_changed_although_projects_have_their_own(tmp_path: Path) -> None:
    """Keystone refuses it, so they are taken away and made again; those of others refuse the plan."""
    projects = {"demo": {"servers": 5}}
    desired = compiled(tmp_path, limits={"servers": 50}, projects=projects)
    registered = SeenLimit("r", LimitObject("servers", 100))
    own = SeenLimit("o", LimitObject("servers", 5, "demo", MARK))
    limits = [SeenLimit(str(limit), limit) for limit in desired.limits if limit.resource != "servers"]
    plan = plan_site(desired, replace(seen(desired), limits=(registered, own, *limits)))
    assert names(plan) == [
        "delete project limit demo servers",
        "update registered limit servers",
        "create project limit demo servers",
    ]
    foreign = SeenLimit("f", LimitObject("servers", 7, "physics"))
    (refusal,) = plan_site(desired, replace(seen(desired), limits=(registered, own, foreign, *limits))).refusals
    assert "while project physics has a limit of its own (7) that the site file does not state" in refusal


class Cloud:
    """Carries steps out in memory, and checks after each one that the site's servers could still start."""

    def __init__(self, start: SeenObjects) -> None:
        self.flavors = {item.flavor.name: item.flavor for item in start.flavors}
        self.aggregates = {item.aggregate.name: item.aggregate for item in start.aggregates}
        self.reported = start.reported

    def startable(self, flavor: FlavorObject) -> bool:
        needs = asked(flavor)
        if any("gpu-server" not in self.reported.get(name, ()) for name in needs):
            return False
        closed = {
            key.removeprefix("trait:")
            for aggregate in self.aggregates.values()
            for key in aggregate.metadata
            if "gpu-server" in aggregate.hosts and key.startswith("trait:")
        }
        return closed <= needs

    def apply(self, step: SiteStep) -> None:
        match step:
            case AggregateStep(after=None):
                del self.aggregates[step.name]
            case AggregateStep():
                self.aggregates[step.name] = step.object
            case FlavorStep() if step.after is not None:
                self.flavors[step.name] = step.after


KINDS: list[dict[str, Any]] = [
    {},
    {"exclusive": True},
    {"gpu_quotas": False},
    {"hosts": {"gpu-server": {"recording": "gpu-server.json", "reserve": "largest-flavors"}}},
    {"exclusive": True, "gpu_quotas": False},
]


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    before=st.sampled_from(KINDS), after=st.sampled_from(KINDS),
    deployed=st.sampled_from(["old", "both", "new"]), prune=st.booleans(),
)  # fmt: skip
def test_servers_can_start_at_every_moment_of_an_apply(
    tmp_path: Path, before: dict[str, Any], after: dict[str, Any], deployed: str, prune: bool
) -> None:
    """Unless the deployment has already taken away what the old flavors ask for."""
    old, new = compiled(tmp_path, **before), compiled(tmp_path, **after)
    reported = {
        "old": everything_reported(old),
        "both": {**everything_reported(old), **everything_reported(new)},
        "new": everything_reported(new),
    }[deployed]
    start = seen(old, reported=reported)
    cloud = Cloud(start)
    started = {flavor.name: cloud.startable(flavor) for flavor in cloud.flavors.values()}
    for step in plan_site(new, start, prune).steps:
        cloud.apply(step)
        now = {flavor.name: cloud.startable(flavor) for flavor in cloud.flavors.values()}
        if deployed != "new":
            assert all(now[name] for name, before_it in started.items() if before_it), str(step)
    if deployed != "old":
        assert all(cloud.startable(flavor) for flavor in cloud.flavors.values())


@pytest.mark.parametrize("stage", ["off", "report"])
def test_without_placement_one_gpu_of_a_group_is_offered(tmp_path: Path, stage: str) -> None:
    desired = compiled(tmp_path, pci_in_placement=stage)
    offered = {gpu.address for gpu in desired.gpus if not gpu.blocked}
    assert offered == {"0000:27:00.0", "0000:44:00.0", "0000:a3:00.0", "0000:c3:00.0"}
    assert "only 'pci_in_placement: on' keeps a group together" in next(g.blocked for g in desired.gpus if g.blocked)
    specs = desired.options_of("nova-compute", "gpu-server").values("pci", "device_spec")
    assert ("resource_class" in specs[0]) == (stage == "report")
    assert not desired.options_of("nova").values("filter_scheduler", "pci_in_placement")
    (alias,) = desired.options_of("nova").values("pci", "alias")
    assert alias == '{"name": "v100", "vendor_id": "10de", "product_id": "1db4", "device_type": "type-PCI"}'
