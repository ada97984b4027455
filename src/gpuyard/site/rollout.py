"""PCI devices in Placement, stage by stage: where a cloud is, whether the next stage may come, and in which order.

A stage may come when every condition holds that can be seen from outside. What cannot be seen is said, and is the
operator's to know. Pure.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuyard.model.gpu import Gpu
from gpuyard.model.host import Inventory
from gpuyard.site.adopt.release import RELEASES_OF
from gpuyard.site.compile import CompiledSite, compile_site
from gpuyard.site.drift.facts import ALIAS_SPEC, GONE_FROM_HOST, DeviceSeen, ServerSeen, World, asked_devices
from gpuyard.site.drift.gpus import split_groups
from gpuyard.site.drift.subject import Subject
from gpuyard.site.encoding import encode, set_trait
from gpuyard.site.schema import Site

SOME = 5
EITHER = "report/on"
"""A host without groups to keep together looks the same in both."""


class Stage(StrEnum):
    """What of the roll-out is in force."""

    OFF = "off"
    REPORT = "report"
    ON = "on"


class State(StrEnum):
    """Where a stage is."""

    DONE = "done"
    NEXT = "next"
    """It may be deployed now, or its deployment may go on."""
    BLOCKED = "blocked"
    LATER = "later"


@dataclass(frozen=True)
class Condition:
    """Something that must be so before a stage comes."""

    name: str
    holds: bool | None
    """None: it cannot be seen from outside."""
    reason: str
    remedy: str = ""


@dataclass(frozen=True)
class HostStage:
    """How far one host has come."""

    host: str
    stage: str
    """``off``, ``report``, ``on``, ``report/on`` where they look alike, ``partly`` in between; ``-`` without GPUs."""
    reason: str


@dataclass(frozen=True)
class StageAnswer:
    """One stage."""

    stage: Stage
    state: State
    conditions: tuple[Condition, ...]
    """Those of the next stage; none of one that is done or comes later."""
    order: tuple[str, ...]
    """What to do, in this order."""
    final: str
    """What of it cannot be taken back."""


@dataclass(frozen=True)
class Rollout:
    """The answer."""

    hosts: tuple[HostStage, ...]
    stages: tuple[StageAnswer, ...]

    @property
    def go(self) -> bool:
        """Whether the next stage may be deployed, or all are done."""
        return all(stage.state is not State.BLOCKED for stage in self.stages)


@dataclass(frozen=True)
class StagedSite:
    """A site as it would be at one stage."""

    stage: Stage
    gpus: tuple[Gpu, ...]
    """That it offers then."""
    compiled: CompiledSite
    problems: tuple[str, ...] = ()
    """Why the site file cannot say this stage."""


def staged(site: Site, inventories: Mapping[str, Inventory], stage: Stage) -> StagedSite:
    """A site at a stage, whichever it says itself."""
    other = site.model_copy(update={"pci_in_placement": stage.value})
    encoded, _ = encode(other, inventories)
    compiled, problems = compile_site(other, inventories)
    gpus = tuple(item.gpu for item in encoded if item.offered)
    texts = tuple(f"{'.'.join(map(str, problem.place))}: {problem.message}" for problem in problems)
    return StagedSite(stage, gpus, compiled, texts)


def world_site(site: Site, inventories: Mapping[str, Inventory]) -> CompiledSite:
    """The site to read the world for: with every GPU and class that any stage knows, and nothing else to ask about."""
    target = staged(site, inventories, Stage.ON)
    return replace(target.compiled, gpus=target.gpus, images=(), limits=(), aggregates=())


def plan_rollout(site: Site, inventories: Mapping[str, Inventory], world: World, to: Stage = Stage.ON) -> Rollout:
    """Where the cloud is and what comes next. `world` was read with the site at stage ``on``, and with migrations."""
    report, on = (staged(site, inventories, stage) for stage in (Stage.REPORT, Stage.ON))
    hosts = tuple(_host_stage(name, world, report, on) for name in site.hosts)
    answers = []
    reached = True
    for target in (report, on):
        if target.stage is Stage.ON and to is Stage.REPORT:
            break
        left = [host for host in hosts if not _arrived(host, target.stage, world, target)]
        asked = target.stage is Stage.REPORT or site.pci_in_placement == Stage.ON.value or _shows(report, on)
        if not reached:
            answers.append(StageAnswer(target.stage, State.LATER, (), (), _final(target.stage)))
        elif not left and asked:
            answers.append(StageAnswer(target.stage, State.DONE, (), (), _final(target.stage)))
        else:
            conditions = tuple(_conditions(site, inventories, world, report, target))
            blocked = any(condition.holds is False for condition in conditions)
            order = tuple(_order(site, target.stage, [host.host for host in left]))
            state = State.BLOCKED if blocked else State.NEXT
            answers.append(StageAnswer(target.stage, state, conditions, order, _final(target.stage)))
            reached = False
    return Rollout(hosts, tuple(answers))


# Where hosts are.


def _host_stage(name: str, world: World, report: StagedSite, on: StagedSite) -> HostStage:
    seen = [device for device in world.devices.values() if device.host == name]
    fewer, all_ = _mine(report, name), _mine(on, name)
    if not all_:
        return HostStage(name, "-", "it has no GPU to offer")
    if not seen:
        return HostStage(name, Stage.OFF, f"none of its {len(all_)} GPUs is in Placement")
    if not (wrong := _wrong(all_, world, with_traits=True)):
        # Without groups to keep together, both stages look alike.
        same = {gpu.provider_name for gpu in fewer} == {gpu.provider_name for gpu in all_}
        alike = same and not any(gpu.set_letter for gpu in all_)
        return HostStage(name, EITHER if alike else Stage.ON, f"all {len(all_)} GPUs are in Placement")
    wrong = _wrong(fewer, world, with_traits=False)
    more = sorted({device.address for device in seen} - {gpu.address for gpu in fewer})
    if not wrong and not more:
        return HostStage(name, Stage.REPORT, f"{len(fewer)} of {len(all_)} GPUs are in Placement, one of each group")
    also = [f"Placement also has {', '.join(more)}"] if more else []
    return HostStage(name, "partly", "; ".join([*wrong, *also]))


def _mine(target: StagedSite, host: str) -> list[Gpu]:
    return [gpu for gpu in target.gpus if gpu.host == host]


def _wrong(gpus: Iterable[Gpu], world: World, with_traits: bool) -> list[str]:
    """What keeps GPUs from being in Placement as they should."""
    texts = []
    for gpu in gpus:
        device = world.devices.get(gpu.provider_name)
        traits = {set_trait(gpu.set_letter)} if gpu.set_letter else set[str]()
        if device is None:
            texts.append(f"{gpu.address} is not in Placement")
        elif device.classes != {gpu.resource_class}:
            texts.append(f"{gpu.address} is {', '.join(sorted(device.classes)) or 'nothing'}, not {gpu.resource_class}")
        elif with_traits and device.traits != traits:
            texts.append(f"{gpu.address} has not the trait of its group")
    return texts


def _arrived(host: HostStage, stage: Stage, world: World, target: StagedSite) -> bool:
    """Whether a host is as the stage wants it."""
    if host.stage == "-":
        return True
    return not _wrong(_mine(target, host.host), world, with_traits=stage is Stage.ON)


def _shows(report: StagedSite, on: StagedSite) -> bool:
    """Whether computes of the two stages can be told apart."""
    return {gpu.provider_name for gpu in report.gpus} != {gpu.provider_name for gpu in on.gpus}


# Conditions.


def _conditions(
    site: Site, inventories: Mapping[str, Inventory], world: World, report: StagedSite, target: StagedSite
) -> Iterable[Condition]:
    subject = Subject(target.compiled, inventories, world)
    yield _site_file(target)
    yield _release(site, world)
    yield _computes(site, world)
    yield _cells(world)
    yield _migrations(site, world)
    yield _moving(site, world)
    yield _room(site, world, report, subject)
    if target.stage is Stage.ON:
        yield _reported(site, world, report)
        yield _healed(site, world, subject)
        yield _offered(subject, target)
        yield _groups(subject)
        yield _aliases(site, world, target, subject)


def _site_file(target: StagedSite) -> Condition:
    text = "; ".join(target.problems[:SOME])
    return Condition(
        "site file", not target.problems, text or f"may say 'pci_in_placement: {target.stage}'",
        "take it out of the site file until a later stage" if text else "",
    )  # fmt: skip


def _release(site: Site, world: World) -> Condition:
    """What Nova's API tells; which release each nova-compute is of, it tells nobody."""
    newest = next((version for version, names in RELEASES_OF.items() if site.release in names), "")
    said = _version(world.microversion)
    if said is None or not newest:
        return Condition("release", None, "the API does not say which microversions it speaks")
    older = said < (_version(newest) or (0, 0))
    return Condition(
        "release", not older,
        f"the API speaks {world.microversion}, as {site.release} does or a newer one; it does not start with computes "
        "that are too old to report devices" if not older
        else f"the API speaks {world.microversion}, which is older than {site.release} of the site file",
        "write the release that the cloud has into the site file" if older else "",
    )  # fmt: skip


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _computes(site: Site, world: World) -> Condition:
    bad = []
    for name in site.hosts:
        host = world.hosts.get(name)
        if host is None or host.service is None:
            bad.append(f"{name} has no nova-compute")
        elif not host.service.up:
            bad.append(f"nova-compute on {name} is down")
        elif host.provider is None:
            bad.append(f"{name} is not in Placement")
    return Condition(
        "computes", not bad, "; ".join(bad[:SOME]) or f"all {len(site.hosts)} nova-computes are up and in Placement",
        "start them, or take the hosts out of the site file" if bad else "",
    )  # fmt: skip


def _cells(world: World) -> Condition:
    silent = world.silent_cells
    return Condition(
        "cells", not silent, "a cell of Nova does not answer" if silent else "all of Nova's cells answer",
        "see its nova-conductor and its database" if silent else "",
    )  # fmt: skip


def _migrations(site: Site, world: World) -> Condition:
    running = [
        f"{one.kind} of server {one.server} ({one.status})"
        for one in world.migrations.values()
        if one.running and (one.source in site.hosts or one.target in site.hosts)
    ]
    return Condition(
        "migrations", not running, _some(running) or "none is in progress",
        "wait for them; confirm or revert resizes: Nova does not heal what moves" if running else "",
    )  # fmt: skip


def _moving(site: Site, world: World) -> Condition:
    """Servers that Nova works on right now; a resize that waits for its confirmation is one."""
    busy = [
        f"{server} is {server.status}" + (f" ({server.task})" if server.task else "")
        for server in world.servers.values()
        if ALIAS_SPEC in server.specs and not server.settled and (server.host is None or server.host in site.hosts)
    ]
    return Condition(
        "servers at rest", not busy, _some(busy) or "Nova works on none with GPUs",
        "wait for them; confirm or revert resizes" if busy else "",
    )  # fmt: skip


def _room(site: Site, world: World, report: StagedSite, subject: Subject) -> Condition:
    """As long as Placement knows nothing, which GPU a server has is not to be seen; but how many there can be is."""
    bad = []
    for host in site.hosts:
        servers = [server for server in _running(world, {host}) if subject.asked(server)]
        for pool in site.pools:
            offered = sum(gpu.pool == pool for gpu in _mine(report, host))
            if any(device.host == host for device in world.devices.values()):
                continue  # the other conditions see more
            asked = sum(subject.asked(server).get(pool, 0) for server in servers)
            if asked > offered:
                bad.append(f"servers on {host} have {asked} GPUs of pool {pool}, and {offered} are offered")
    return Condition(
        "GPUs in use", not bad,
        "; ".join(bad[:SOME]) or "no host has more of them in use than are offered",
        "some have GPUs that the site does not offer, or share a group: end or move them" if bad else "",
    )  # fmt: skip


def _running(world: World, hosts: Iterable[str]) -> list[ServerSeen]:
    wanted = set(hosts)
    return [s for s in world.servers.values() if s.host in wanted and s.status not in (GONE_FROM_HOST, "SOFT_DELETED")]


def _reported(site: Site, world: World, report: StagedSite) -> Condition:
    bad = [f"{host}: {text}" for host in site.hosts for text in _wrong(_mine(report, host), world, False)]
    return Condition(
        "all reported", not bad, _some(bad) or "every host has its GPUs in Placement",
        "finish stage 'report' first" if bad else "",
    )  # fmt: skip


def _healed(site: Site, world: World, subject: Subject) -> Condition:
    bad = []
    for server in _running(world, site.hosts):
        asked = sum(subject.asked(server).values())
        have = len([device for device in world.devices_of.get(server.id, ()) if device.host == server.host])
        if have < asked:
            bad.append(f"{server} has {asked} GPUs, and Placement knows of {have}")
    return Condition(
        "servers healed", not bad, _some(bad) or "Placement knows the GPUs of every server",
        "nova-compute does it at its next update; if it does not, restart it" if bad else "",
    )  # fmt: skip


def _offered(subject: Subject, target: StagedSite) -> Condition:
    names = {gpu.provider_name for gpu in target.gpus}
    bad = [
        f"{subject.world.called(consumer)} has {device.host} {device.address}"
        for device in subject.devices_on_site()
        if device.name not in names and _is_gpu(subject, device)
        for consumer in device.holders
    ]
    return Condition(
        "offered GPUs only", not bad, _some(bad) or "no server has a GPU that the site would not offer",
        "end or move them first: Nova keeps such a device as long as it is in use" if bad else "",
    )  # fmt: skip


def _is_gpu(subject: Subject, device: DeviceSeen) -> bool:
    function = subject.function(device)
    return function is None or function.is_gpu


def _groups(subject: Subject) -> Condition:
    bad = [f"{finding.object}: {finding.seen}" for finding in split_groups(subject)]
    return Condition(
        "whole groups", not bad, _some(bad) or "no IOMMU group is with two servers",
        "end or move all but one of them" if bad else "",
    )  # fmt: skip


def _aliases(site: Site, world: World, target: StagedSite, subject: Subject) -> Condition:
    """With Placement deciding, an alias finds devices by its class."""
    values = [json.loads(value) for value in target.compiled.options_of("nova").values("pci", "alias")]
    bare = [value["name"] for value in values if "resource_class" not in value]
    if bare:
        return Condition("aliases", False, f"{_some(bare)} have no resource_class", "a bug of gpuyard: report it")
    foreign = sorted(
        {name for server in _running(world, site.hosts) for name in asked_devices(server.specs)}
        - subject.pool_of_alias.keys()
    )
    if foreign:
        reason = f"servers run with {_some(foreign)}, which the site file does not have"
        return Condition("aliases", None, f"{reason}: see that their devices have the class that these aliases name")
    return Condition("aliases", True, "all of the site's name a resource class")


def _some(texts: Sequence[str]) -> str:
    more = f" and {len(texts) - SOME} more" if len(texts) > SOME else ""
    return "; ".join(texts[:SOME]) + more


# What to do.


def _order(site: Site, stage: Stage, hosts: Sequence[str]) -> Iterable[str]:
    names = ", ".join(hosts)
    if site.pci_in_placement != stage.value:
        yield f"write 'pci_in_placement: {stage}' into the site file; gpuyard site check; gpuyard site render -o DIR"
    if stage is Stage.REPORT:
        yield f"deploy nova-compute's options to {names}, one host after the other, and restart its nova-compute"
        yield "nothing changes for nova-api, nova-scheduler and nova-conductor"
    else:
        yield "gpuyard site apply: the classes that Nova then counts need their limits before it asks for them"
        yield (
            "deploy nova.conf and nova-scheduler.conf to nova-api, nova-scheduler and nova-conductor, and restart them "
            "together: from then on Placement decides"
        )
        if names:
            yield (
                f"only then deploy nova-compute's options to {names}, and restart each: a scheduler that does not ask "
                "Placement would give the other GPUs of a group to anybody"
            )
    yield "gpuyard site rollout again" + (", and gpuyard site drift" if stage is Stage.ON else "")


def _final(stage: Stage) -> str:
    if stage is Stage.REPORT:
        return "a nova-compute that has reported its devices once does not start any more without reporting them"
    return (
        "the scheduler can be told to forget Placement again, but not while a server has a GPU that only a whole group "
        "gives; limits on the classes of GPUs end with it"
    )
