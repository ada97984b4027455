"""Plans for flavors and limits: what is changed, what is left alone, what refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.model.plan import StepVerb
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import FlavorObject, LimitObject, SeenFlavor, SeenLimit, SeenObjects
from gpuyard.site.plan import flavor_id, plan_site
from gpuyard.site.steps import SitePlan, SiteStep
from tests.support.sites import flavor, site

MARK = "made by gpuyard for site test"
SERVERS = SeenLimit("s", LimitObject("servers", 100))


@pytest.fixture
def compiled(tmp_path: Path) -> CompiledSite:
    document = {
        "flavors": {"small": flavor(gpus={"v100": 1}), "private": flavor(projects=["demo"])},
        "projects": {"demo": {"gpus": {"v100": 2}}},
    }
    return site(tmp_path, document).compiled


def seen(
    flavors: tuple[FlavorObject, ...] = (), limits: tuple[LimitObject, ...] = (), servers: bool = True
) -> SeenObjects:
    return SeenObjects(
        flavors=tuple(SeenFlavor(flavor_id(flavor.name), flavor) for flavor in flavors),
        limits=(*(SeenLimit(str(limit), limit) for limit in limits), *([SERVERS] if servers else [])),
        projects={"demo": "1234"},
    )


def as_seen(compiled: CompiledSite) -> SeenObjects:
    """The cloud after everything was applied."""
    return seen(compiled.flavors, compiled.limits)


def steps(plan: SitePlan) -> list[str]:
    return [str(step) for step in plan.steps]


def test_an_empty_cloud_gets_everything_limits_first(compiled: CompiledSite) -> None:
    assert steps(plan_site(compiled, seen())) == [
        "create registered limit class:CUSTOM_GPU_V100_COUNT",
        "create registered limit class:CUSTOM_GPU_V100",
        "create registered limit class:CUSTOM_GPU_V100_PEER",
        "create project limit demo class:CUSTOM_GPU_V100_COUNT",
        "create project limit demo class:CUSTOM_GPU_V100",
        "create project limit demo class:CUSTOM_GPU_V100_PEER",
        "create flavor small",
        "create flavor private",
    ]


def test_a_cloud_that_is_as_wanted_gets_nothing(compiled: CompiledSite) -> None:
    assert plan_site(compiled, as_seen(compiled)) == SitePlan()
    assert plan_site(compiled, as_seen(compiled), prune=True) == SitePlan()


@pytest.mark.parametrize(
    ("change", "verb", "line"),
    [
        ({"ram": 4096}, StepVerb.REPLACE, "ram: 4096 -> 8192"),
        ({"public": False}, StepVerb.REPLACE, "public: False -> True"),
        ({"extra_specs": {"hw:x": "1"}}, StepVerb.UPDATE, "property hw:x: 1 -> (none)"),
        ({"extra_specs": {}}, StepVerb.UPDATE, "property pci_passthrough:alias: v100:1"),
    ],
)
def test_a_flavor_that_differs(compiled: CompiledSite, change: dict[str, object], verb: StepVerb, line: str) -> None:
    other = [replace(flavor, **change) if flavor.name == "small" else flavor for flavor in compiled.flavors]  # type: ignore[arg-type]
    (step,) = plan_site(compiled, seen(tuple(other), compiled.limits)).steps
    assert (step.verb, step.name) == (verb, "small")
    assert line in step.changes


def test_access_is_part_of_a_flavor(compiled: CompiledSite) -> None:
    other = [
        replace(flavor, projects=frozenset({"old"})) if not flavor.public else flavor for flavor in compiled.flavors
    ]
    (step,) = plan_site(compiled, seen(tuple(other), compiled.limits)).steps
    assert step.changes == ("access demo: yes", "access old: yes -> (none)")


def test_a_flavor_of_somebody_else_is_never_touched_and_its_name_refuses(compiled: CompiledSite) -> None:
    foreign = FlavorObject("small", 1, 512, 1, description="")
    plan = plan_site(compiled, seen((foreign,), compiled.limits))
    assert "flavor small (id small) exists already and is not of this site (somebody else)" in plan.refusals[0]
    other_site = replace(foreign, description="made by gpuyard for site other")
    assert "made by gpuyard for site other" in plan_site(compiled, seen((other_site,))).refusals[0]
    unrelated = FlavorObject("m1.small", 1, 512, 1)
    assert plan_site(compiled, seen((*compiled.flavors, unrelated), compiled.limits), prune=True) == SitePlan()


def test_what_is_no_longer_wanted_goes_only_with_prune(compiled: CompiledSite) -> None:
    old = FlavorObject("old", 1, 512, 1, description=MARK)
    limit = LimitObject("class:CUSTOM_GPU_K80", 2, None, MARK)
    own = LimitObject("class:CUSTOM_GPU_K80", 2, "demo", MARK)
    world = seen((*compiled.flavors, old), (*compiled.limits, limit, own))
    plan = plan_site(compiled, world)
    assert steps(plan) == ["delete project limit demo class:CUSTOM_GPU_K80"], "GPUs are taken away at once"
    assert "flavor old is no longer wanted; --prune deletes it" in plan.notes
    assert steps(plan_site(compiled, world, prune=True)) == [
        "delete project limit demo class:CUSTOM_GPU_K80",
        "delete flavor old",  # before the limit without which its GPUs would be everybody's
        "delete registered limit class:CUSTOM_GPU_K80",
    ]


def test_other_limits_of_the_cloud_are_left_alone(compiled: CompiledSite) -> None:
    ram = LimitObject("class:MEMORY_MB", 1024)
    other = LimitObject("class:CUSTOM_GPU_K80", 2, None, "made by gpuyard for site other")
    assert plan_site(compiled, seen(compiled.flavors, (*compiled.limits, ram, other)), prune=True) == SitePlan()


def test_a_limit_of_somebody_else_on_a_class_of_ours_refuses(compiled: CompiledSite) -> None:
    limits = tuple(replace(limit, description="") for limit in compiled.limits)
    refusals = plan_site(compiled, seen(compiled.flavors, limits)).refusals
    assert refusals[0].startswith(
        "registered limit class:CUSTOM_GPU_V100_COUNT exists already and is not of this site (somebody else): delete "
        f"it, or hand it over: openstack registered limit set --description '{MARK}'"
    )


def test_a_missing_project_refuses(compiled: CompiledSite) -> None:
    world = SeenObjects((), (SERVERS,), {})
    assert plan_site(compiled, world).refusals == (
        "project demo does not exist in Keystone; create it, or take it out of the site file",
    )


def test_without_a_limit_on_servers_nova_would_refuse_every_server(compiled: CompiledSite) -> None:
    assert "limits: {servers: 100}" in plan_site(compiled, seen(servers=False)).refusals[0]


def test_a_changed_limit_is_updated(compiled: CompiledSite) -> None:
    limits = tuple(replace(limit, value=9) if limit.project else limit for limit in compiled.limits)
    plan = plan_site(compiled, seen(compiled.flavors, limits))
    assert {step.changes for step in plan.steps} == {("limit: 9 -> 2",)}
    assert {step.verb for step in plan.steps} == {StepVerb.UPDATE}


def carry_out(world: SeenObjects, step: SiteStep, compiled: CompiledSite) -> SeenObjects:
    """What the cloud looks like after a step, as the applier would leave it."""
    flavors = {item.flavor.name: item for item in world.flavors}
    limits = {(item.limit.kind, item.limit.name): item for item in world.limits}
    if step.kind == "flavor":
        flavors.pop(step.name, None)
        if step.verb is not StepVerb.DELETE:
            wanted_flavor = next(flavor for flavor in compiled.flavors if flavor.name == step.name)
            flavors[step.name] = SeenFlavor(flavor_id(step.name), wanted_flavor)
    else:
        limits.pop((step.kind, step.name), None)
        if step.verb is not StepVerb.DELETE:
            wanted_limit = next(
                limit for limit in compiled.limits if (limit.kind, limit.name) == (step.kind, step.name)
            )
            limits[step.kind, step.name] = SeenLimit(step.name, wanted_limit)
    return SeenObjects(tuple(flavors.values()), tuple(limits.values()), world.projects)


@given(data=st.data())
def test_stopped_anywhere_the_next_plan_is_what_was_left(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    document = {"flavors": {"a": flavor(), "b": flavor(gpus={"v100": 1})}, "projects": {"demo": {"gpus": {"v100": 1}}}}
    compiled = site(tmp_path_factory.mktemp("site"), document).compiled
    have_flavors = data.draw(st.lists(st.sampled_from(compiled.flavors), unique_by=lambda one: one.name))
    changed = [replace(flavor, ram=flavor.ram + data.draw(st.sampled_from([0, 512]))) for flavor in have_flavors]
    old = data.draw(st.sampled_from([(), (FlavorObject("old", 1, 512, 1, description=MARK),)]))
    have_limits = data.draw(st.lists(st.sampled_from(compiled.limits), unique=True))
    world = seen((*changed, *old), tuple(have_limits))
    plan = plan_site(compiled, world, prune=True)
    stop = data.draw(st.integers(0, len(plan.steps)))
    for step in plan.steps[:stop]:
        world = carry_out(world, step, compiled)
    assert steps(plan_site(compiled, world, prune=True)) == [str(step) for step in plan.steps[stop:]]
