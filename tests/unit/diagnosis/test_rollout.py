"""When the next stage of PCI devices in Placement may come: never while anything speaks against it."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.diagnosis.drift.facts import DeviceSeen, World
from gpuyard.diagnosis.rollout import EITHER, Rollout, Stage, StageState, plan_rollout, staged
from gpuyard.model.finding import Severity
from gpuyard.model.world import HostService
from gpuyard.nova.server_states import ENDED, MigrationSeen
from gpuyard.site.load import LoadedSite
from gpuyard.site.schema import Site
from tests.support.sites import flavor, site
from tests.support.sysfs import Sysfs, epyc
from tests.support.worlds import devices_of, with_device, with_host, with_server, world_of

GROUPED, SINGLE = "gpu-server", "single"
LEADER, PEER, LONE = (f"{GROUPED}_0000:{bus}:00.0" for bus in ("27", "28", "44"))
P4 = "10de:1bb3"


@cache
def site_at(stage: Stage) -> LoadedSite:
    """A host with shared groups and one without."""
    document = {
        "pci_in_placement": stage.value,
        "pools": {"v100": {"models": ["10de:1db4"]}, "p4": {"models": [P4]}},
        "flavors": {"one": flavor(gpus={"v100": 1}), "four": flavor(gpus={"v100": 4}), "p4": flavor(gpus={"p4": 1})},
        "projects": {"demo": {"gpus": {"v100": 6}}},
        "limits": {"servers": 100},
    }
    with tempfile.TemporaryDirectory() as folder:
        hosts = {GROUPED: epyc(), SINGLE: Sysfs().function("05:00.0", P4, group=1)}
        return site(Path(folder), document, hosts)


def cloud_at(stage: Stage) -> World:
    """The cloud as it is when a stage is deployed everywhere."""
    return replace(world_of(site_at(stage)), devices=devices_of(site_at(stage), stage))


def rollout(world: World, stage: Stage, to: Stage = Stage.ON) -> Rollout:
    loaded = site_at(stage)
    return plan_rollout(loaded.site, loaded.inventories, world, to)


def states(answer: Rollout) -> list[StageState]:
    return [stage.state for stage in answer.stages]


def failed(answer: Rollout) -> set[str]:
    return {
        condition.code
        for stage in answer.stages
        for condition in stage.conditions
        if condition.severity is Severity.ERROR
    }


@pytest.mark.parametrize(
    ("stage", "hosts", "expected"),
    [
        (Stage.OFF, ["off", "off"], [StageState.NEXT, StageState.LATER]),
        (Stage.REPORT, ["report", EITHER], [StageState.DONE, StageState.NEXT]),
        (Stage.ON, ["on", EITHER], [StageState.DONE, StageState.DONE]),
    ],
)
def test_the_stage_is_told_from_what_hosts_report(stage: Stage, hosts: list[str], expected: list[StageState]) -> None:
    answer = rollout(cloud_at(stage), stage)
    assert [host.stage for host in answer.hosts] == hosts
    assert states(answer) == expected
    assert answer.go
    assert [stage_answer.state for stage_answer in rollout(cloud_at(stage), stage, Stage.REPORT).stages] == expected[:1]


def test_findings_name_every_host_and_every_stage() -> None:
    findings = rollout(cloud_at(Stage.REPORT), Stage.REPORT).findings
    assert [(finding.code, finding.object, finding.payload["stage"]) for finding in findings[:2]] == [
        ("host-stage", GROUPED, "report"),
        ("host-stage", SINGLE, EITHER),
    ]
    assert [(finding.code, finding.object, finding.payload["state"]) for finding in findings[2:4]] == [
        ("stage", "stage report", "done"),
        ("site-file", "stage on", "next"),
    ]
    assert {finding.severity for finding in findings} == {Severity.OK}


def test_the_order_keeps_groups_together() -> None:
    """With the site's aliases Placement decides; before that, a peer in device_spec would be anybody's."""
    (_, on) = rollout(cloud_at(Stage.REPORT), Stage.REPORT).stages
    scheduler, compute = (next(n for n, text in enumerate(on.order) if word in text)
                          for word in ("nova-scheduler.conf", "nova-compute's options"))  # fmt: skip
    assert scheduler < compute
    assert f"nova-compute's options to {GROUPED}, and" in on.order[compute], "the other host looks the same"
    (report, _) = rollout(cloud_at(Stage.OFF), Stage.OFF).stages
    assert "nothing changes for nova-api" in " ".join(report.order)
    assert report.final


def test_hosts_may_come_one_after_the_other() -> None:
    world = cloud_at(Stage.OFF)
    some = {
        name: device
        for name, device in devices_of(site_at(Stage.REPORT), Stage.REPORT).items()
        if device.host == SINGLE
    }
    answer = rollout(replace(world, devices=some), Stage.REPORT)
    assert [host.stage for host in answer.hosts] == ["off", EITHER]
    assert states(answer) == [StageState.NEXT, StageState.LATER]
    assert f"options to {GROUPED}, one host" in answer.stages[0].order[0]


def test_a_host_in_between_says_why() -> None:
    world = cloud_at(Stage.REPORT)
    answer = rollout(with_device(world, LONE, classes=frozenset({"CUSTOM_PCI_10DE_1DB4"})), Stage.REPORT)
    assert (answer.hosts[0].stage, states(answer)) == ("partly", [StageState.NEXT, StageState.LATER])
    assert "0000:44:00.0 is CUSTOM_PCI_10DE_1DB4, not CUSTOM_GPU_V100" in answer.hosts[0].reason


def test_more_servers_than_offered_gpus_share_a_group_or_have_others() -> None:
    """In stage 'off' nobody sees which GPUs they have, but that five servers cannot have one of four each."""
    loaded, world = site_at(Stage.OFF), cloud_at(Stage.OFF)
    for number in range(4):
        world = with_server(world, loaded, f"s{number}", "one", GROUPED)
    assert states(rollout(world, Stage.OFF)) == [StageState.NEXT, StageState.LATER]
    world = with_server(world, loaded, "s4", "one", GROUPED)
    assert failed(rollout(world, Stage.OFF)) == {"gpus-in-use"}


def test_a_site_that_says_more_than_the_stage_can() -> None:
    loaded = site_at(Stage.OFF)
    pair = replace_flavor(loaded)
    answer = plan_rollout(pair, loaded.inventories, cloud_at(Stage.OFF))
    assert failed(answer) == {"site-file"}
    assert {finding.code for finding in answer.findings if finding.severity is Severity.UNKNOWN} == {"gpus"}
    codes = {condition.code for condition in answer.stages[0].conditions}
    assert not codes & {"aliases", "whole-groups", "gpus-in-use"}, "nothing holds that was not looked at"


def replace_flavor(loaded: LoadedSite) -> Site:
    """With a flavor that only the last stage can have."""
    grouped = loaded.site.flavors["four"].model_copy(update={"gpus": {"v100": 2}, "same_group": True})
    return loaded.site.model_copy(update={"flavors": {**loaded.site.flavors, "pair": grouped}})


@pytest.mark.parametrize(
    ("microversion", "bad", "severity"),
    [
        ("2.104", False, Severity.OK),
        ("2.110", False, Severity.OK),
        ("2.100", True, Severity.ERROR),
        ("", False, Severity.UNKNOWN),
    ],
)
def test_releases(microversion: str, bad: bool, severity: Severity) -> None:
    answer = rollout(replace(cloud_at(Stage.OFF), microversion=microversion), Stage.OFF)
    (release_condition,) = (condition for condition in answer.stages[0].conditions if condition.code == "release")
    assert release_condition.severity is severity
    assert answer.go is not bad


# Everything that must stop a stage, each as a change to a cloud in which nothing does.

STOPPERS = {
    "down": "computes",
    "gone": "computes",
    "unreported": "computes",
    "silent": "cells",
    "migration": "migrations",
    "resize": "servers-at-rest",
    "task": "servers-at-rest",
    "building": "servers-at-rest",
}
LATER_STOPPERS = {"unhealed": "servers-healed", "split": "whole-groups", "unoffered": "offered-gpus-only"}


def stopped(world: World, loaded: LoadedSite, why: str, status: str) -> World:
    service = HostService(SINGLE, False, True)
    moved = MigrationSeen("m", "s", status, "resize", GROUPED, "elsewhere")
    busy = {
        "resize": {"status": "VERIFY_RESIZE"},
        "task": {"task": "rebuilding"},
        "building": {"status": "BUILD"},
    }
    if why in busy:
        return with_server(world, loaded, "busy", "p4", SINGLE, [f"{SINGLE}_0000:05:00.0"][: len(world.devices)],
                           **busy[why])  # fmt: skip
    changes = {
        "down": lambda: with_host(world, SINGLE, service=service),
        "gone": lambda: with_host(world, SINGLE, service=None),
        "unreported": lambda: with_host(world, SINGLE, provider=None),
        "silent": lambda: replace(world, silent_cells=True),
        "migration": lambda: replace(world, migrations={"m": moved}),
        "unhealed": lambda: with_server(world, loaded, "old", "one", GROUPED),
        "split": lambda: with_two(world, loaded),
        "unoffered": lambda: with_foreign(world),
    }
    return changes[why]()


def with_two(world: World, loaded: LoadedSite) -> World:
    peer = DeviceSeen(PEER, "id-peer", GROUPED, frozenset({"CUSTOM_GPU_V100"}), holders={"b": 1})
    world = with_server(world, loaded, "a", "one", GROUPED, [LEADER])
    return replace(world, devices={**world.devices, PEER: peer})


def with_foreign(world: World) -> World:
    name = f"{SINGLE}_0000:99:00.0"
    device = DeviceSeen(name, "id-foreign", SINGLE, frozenset({"CUSTOM_X"}), holders={"c": 1})
    return replace(world, devices={**world.devices, name: device})


running = st.sampled_from(["accepted", "queued", "pre-migrating", "migrating", "post-migrating", "finished", "odd"])


@given(why=st.sets(st.sampled_from(sorted(STOPPERS)), min_size=1), stage=st.sampled_from([Stage.OFF, Stage.REPORT]),
       status=running)  # fmt: skip
def test_no_stage_comes_while_anything_speaks_against_it(why: set[str], stage: Stage, status: str) -> None:
    loaded, world = site_at(stage), cloud_at(stage)
    for stopper in sorted(why, key=lambda one: one in ("down", "gone", "unreported")):
        world = stopped(world, loaded, stopper, status)
    answer = rollout(world, stage)
    assert not answer.go
    assert {STOPPERS[stopper] for stopper in why} <= failed(answer)


@given(why=st.sets(st.sampled_from(sorted(LATER_STOPPERS)), min_size=1))
def test_placement_does_not_decide_before_it_knows(why: set[str]) -> None:
    loaded, world = site_at(Stage.REPORT), cloud_at(Stage.REPORT)
    for stopper in sorted(why):
        world = stopped(world, loaded, stopper, "")
    answer = rollout(world, Stage.REPORT)
    assert {LATER_STOPPERS[stopper] for stopper in why} <= failed(answer)
    assert not answer.go


@given(status=st.sampled_from(sorted(ENDED)))
def test_migrations_that_have_ended_are_no_reason(status: str) -> None:
    moved = MigrationSeen("m", "s", status, "resize", GROUPED, SINGLE)
    assert rollout(replace(cloud_at(Stage.OFF), migrations={"m": moved}), Stage.OFF).go


@given(lost=st.sets(st.sampled_from(sorted(devices_of(site_at(Stage.REPORT), Stage.REPORT))), min_size=1))
def test_a_stage_is_not_done_while_a_gpu_is_missing(lost: set[str]) -> None:
    world = cloud_at(Stage.REPORT)
    fewer = {name: device for name, device in world.devices.items() if name not in lost}
    answer = rollout(replace(world, devices=fewer), Stage.REPORT)
    assert states(answer) == [StageState.NEXT, StageState.LATER]
    peers = {gpu.provider_name for gpu in staged(site_at(Stage.ON).site, site_at(Stage.ON).inventories, Stage.ON).gpus}
    complete = cloud_at(Stage.ON)
    missing = sorted(peers)[0]
    left = {name: device for name, device in complete.devices.items() if name != missing}
    assert rollout(replace(complete, devices=left), Stage.ON).stages[-1].state is not StageState.DONE
