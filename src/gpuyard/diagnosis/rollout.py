"""Judges how far PCI devices in Placement are rolled out, and whether the next stage may be deployed. Pure.

There are three stages: off, report (nova-compute reports GPUs, one of each IOMMU group) and on (the scheduler asks
Placement). Each host's stage follows from its devices in Placement. The first stage that a host has not reached is next
when every condition holds that can be seen from outside, and blocked otherwise; what cannot be seen is reported as
unknown, and is the operator's to know. For `on`, the controllers are deployed before the hosts: a scheduler that does
not ask Placement would give the other GPUs of a group to anybody.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from gpuyard.diagnosis.drift.facts import DeviceSeen, ServerSeen, World
from gpuyard.diagnosis.drift.gpus import split_groups
from gpuyard.diagnosis.drift.subject import DriftSubject
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.gpu import Gpu
from gpuyard.model.host import Inventory
from gpuyard.nova.alias import aliases_of
from gpuyard.nova.alias_spec import ALIAS_SPEC, asked_devices
from gpuyard.nova.options import ALIAS
from gpuyard.nova.release import RELEASES
from gpuyard.nova.server_states import GONE_FROM_HOST
from gpuyard.site.compile import CompiledSite, compile_site
from gpuyard.site.encoding import encode, slot_traits
from gpuyard.site.schema import Site

SOME = 5
EITHER = "report/on"
"""A host without groups to keep together looks the same in both."""


class Stage(StrEnum):
    """A stage of the roll-out."""

    OFF = "off"
    REPORT = "report"
    ON = "on"


class StageState(StrEnum):
    """The state of a stage."""

    DONE = "done"
    NEXT = "next"
    """It may be deployed now, or its deployment may go on."""
    BLOCKED = "blocked"
    LATER = "later"


@dataclass(frozen=True)
class HostStage:
    """The stage that one host has reached."""

    host: str
    stage: str
    """``off``, ``report``, ``on``, ``report/on`` where they look alike, ``partly`` in between; ``-`` without GPUs."""
    reason: str


@dataclass(frozen=True)
class StageAnswer:
    """The state of one stage, with its conditions and its order of deployment."""

    stage: Stage
    state: StageState
    conditions: tuple[Finding, ...]
    """Conditions of the next stage: ``OK`` where they hold, ``UNKNOWN`` where that cannot be seen from outside. None of
    a stage that is done or comes later."""
    order: tuple[str, ...]
    """The steps of the deployment, in this order."""
    final: str
    """The part of it that cannot be taken back."""


@dataclass(frozen=True)
class Rollout:
    """The stages of all hosts, and the state of each stage."""

    hosts: tuple[HostStage, ...]
    stages: tuple[StageAnswer, ...]

    @property
    def go(self) -> bool:
        """Whether the next stage may be deployed, or all are done."""
        return all(stage.state is not StageState.BLOCKED for stage in self.stages)

    @property
    def findings(self) -> tuple[Finding, ...]:
        """The same as findings: the hosts, then each stage with its conditions."""
        findings = [
            Finding("host-stage", Severity.OK, host.host, host.reason, "", {"stage": host.stage}) for host in self.hosts
        ]
        for stage in self.stages:
            of = {"stage": stage.stage.value, "state": stage.state.value}
            severity = Severity.NOTE if stage.state is StageState.LATER else Severity.OK
            alone = (Finding("stage", severity, "", f"it is {stage.state}"),)
            findings += [
                replace(condition, object=f"stage {stage.stage}", payload=of) for condition in stage.conditions or alone
            ]
        return tuple(findings)


@dataclass(frozen=True)
class StagedSite:
    """A site as it would be at one stage."""

    stage: Stage
    gpus: tuple[Gpu, ...]
    """The GPUs that it offers then."""
    compiled: CompiledSite
    problems: tuple[str, ...] = ()
    """Why the site file cannot say this stage."""


def staged(site: Site, inventories: Mapping[str, Inventory], stage: Stage) -> StagedSite:
    """Return a site as it would be at a stage, whichever it names itself."""
    site_at_stage = site.model_copy(update={"pci_in_placement": stage.value})
    encoded, _ = encode(site_at_stage, inventories)
    compiled, problems = compile_site(site_at_stage, inventories)
    gpus = tuple(item.gpu for item in encoded if item.offered)
    texts = tuple(f"{'.'.join(map(str, problem.place))}: {problem.message}" for problem in problems)
    return StagedSite(stage, gpus, compiled, texts)


def world_site(site: Site, inventories: Mapping[str, Inventory]) -> CompiledSite:
    """Return the site to read the world for: with every GPU and class that any stage knows, and nothing else."""
    target = staged(site, inventories, Stage.ON)
    shares = (gpu for gpu in target.compiled.gpus if gpu.is_unit)
    return replace(target.compiled, gpus=(*target.gpus, *shares), images=(), limits=(), aggregates=())


def plan_rollout(site: Site, inventories: Mapping[str, Inventory], world: World, to: Stage = Stage.ON) -> Rollout:
    """Return the stages of hosts, and what comes next. `world` was read with the site at stage ``on``, and with
    migrations."""
    report, on = (staged(site, inventories, stage) for stage in (Stage.REPORT, Stage.ON))
    hosts = tuple(_host_stage(name, world, report, on) for name in site.hosts)
    answers = []
    reached = True
    for target in (report, on):
        if target.stage is Stage.ON and to is Stage.REPORT:
            break
        left = [host for host in hosts if not _arrived(host, target.stage, world, target)]
        in_effect = target.stage is Stage.REPORT or site.pci_in_placement == Stage.ON.value or _shows(report, on)
        if not reached:
            answers.append(StageAnswer(target.stage, StageState.LATER, (), (), _final(target.stage)))
        elif not left and in_effect:
            answers.append(StageAnswer(target.stage, StageState.DONE, (), (), _final(target.stage)))
        else:
            conditions = tuple(_conditions(site, inventories, world, report, target))
            blocked = any(condition.severity is Severity.ERROR for condition in conditions)
            order = tuple(_order(site, target.stage, [host.host for host in left]))
            state = StageState.BLOCKED if blocked else StageState.NEXT
            answers.append(StageAnswer(target.stage, state, conditions, order, _final(target.stage)))
            reached = False
    return Rollout(hosts, tuple(answers))


# Where hosts are.


def _host_stage(name: str, world: World, report: StagedSite, on: StagedSite) -> HostStage:
    devices = [device for device in world.devices.values() if device.host == name]
    fewer, all_ = _mine(report, name), _mine(on, name)
    if not all_:
        return HostStage(name, "-", "it has no GPU to offer")
    if not devices:
        return HostStage(name, Stage.OFF, f"none of its {len(all_)} GPUs is in Placement")
    if not (wrong := _wrong(all_, world, with_traits=True)):
        # Without groups to keep together, both stages look alike.
        same = {gpu.provider_name for gpu in fewer} == {gpu.provider_name for gpu in all_}
        alike = same and not any(slot_traits(gpu) for gpu in all_)
        return HostStage(name, EITHER if alike else Stage.ON, f"all {len(all_)} GPUs are in Placement")
    wrong = _wrong(fewer, world, with_traits=False)
    more = sorted({device.address for device in devices} - {gpu.address for gpu in fewer})
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
        traits = slot_traits(gpu)
        if device is None:
            texts.append(f"{gpu.address} is not in Placement")
        elif device.classes != {gpu.resource_class}:
            texts.append(f"{gpu.address} is {', '.join(sorted(device.classes)) or 'nothing'}, not {gpu.resource_class}")
        elif with_traits and device.traits != traits:
            texts.append(f"{gpu.address} does not have the trait of its group")
    return texts


def _arrived(host: HostStage, stage: Stage, world: World, target: StagedSite) -> bool:
    """Return whether a host is as the stage wants it."""
    if host.stage == "-":
        return True
    return not _wrong(_mine(target, host.host), world, with_traits=stage is Stage.ON)


def _shows(report: StagedSite, on: StagedSite) -> bool:
    """Return whether computes of the two stages can be told apart."""
    return {gpu.provider_name for gpu in report.gpus} != {gpu.provider_name for gpu in on.gpus}


# Conditions.


def _conditions(
    site: Site, inventories: Mapping[str, Inventory], world: World, report: StagedSite, target: StagedSite
) -> Iterable[Finding]:
    yield _site_file(target)
    yield _release(site, world)
    yield _computes(site, world)
    yield _cells(world)
    yield _migrations(site, world)
    yield _moving(site, world)
    if target.problems:
        yield _condition("gpus", None, "not looked at: a site file with mistakes says nothing of them")
        return
    subject = DriftSubject(target.compiled, inventories, world)
    yield _room(site, world, report, subject)
    if target.stage is Stage.ON:
        yield _reported(site, world, report)
        yield _healed(site, world, subject)
        yield _offered(subject, target)
        yield _groups(subject)
        yield _aliases(site, world, target, subject)


def _condition(code: str, holds: bool | None, reason: str, remedy: str = "") -> Finding:
    """`holds` is None where it cannot be seen from outside."""
    severity = Severity.UNKNOWN if holds is None else Severity.OK if holds else Severity.ERROR
    return Finding(code, severity, "", reason, remedy)


def _site_file(target: StagedSite) -> Finding:
    text = "; ".join(target.problems[:SOME])
    return _condition(
        "site-file", not target.problems, text or f"may say 'pci_in_placement: {target.stage}'",
        "take it out of the site file until a later stage" if text else "",
    )  # fmt: skip


def _release(site: Site, world: World) -> Finding:
    """What Nova's API tells; which release each nova-compute is of, it tells nobody."""
    version = _version(world.microversion)
    if version is None:
        return _condition("release", None, "the API does not say which microversions it speaks")
    older = version < (_version(RELEASES[site.release].microversion) or (0, 0))
    return _condition(
        "release", not older,
        f"the API speaks {world.microversion}, as {site.release} does or a newer one; it does not start with computes "
        "that are too old to report devices" if not older
        else f"the API speaks {world.microversion}, which is older than {site.release} of the site file",
        "write the release that the cloud has into the site file" if older else "",
    )  # fmt: skip


def _version(text: str) -> tuple[int, int] | None:
    major, _, minor = text.partition(".")
    return (int(major), int(minor)) if major.isdigit() and minor.isdigit() else None


def _computes(site: Site, world: World) -> Finding:
    bad = []
    for name in site.hosts:
        host = world.hosts.get(name)
        if host is None or host.service is None:
            bad.append(f"{name} has no nova-compute")
        elif host.service.silent:
            bad.append(f"nothing is known of nova-compute on {name}: its cell does not answer")
        elif not host.service.up:
            bad.append(f"nova-compute on {name} is down")
        elif host.provider is None:
            bad.append(f"{name} is not in Placement")
    return _condition(
        "computes", not bad, "; ".join(bad[:SOME]) or f"all {len(site.hosts)} nova-computes are up and in Placement",
        "start them, or take the hosts out of the site file" if bad else "",
    )  # fmt: skip


def _cells(world: World) -> Finding:
    silent = world.silent_cells
    return _condition(
        "cells", not silent, "a cell of Nova does not answer" if silent else "all of Nova's cells answer",
        "see its nova-conductor and its database" if silent else "",
    )  # fmt: skip


def _migrations(site: Site, world: World) -> Finding:
    running = [
        f"{migration.kind} of server {migration.server} ({migration.status})"
        for migration in world.migrations.values()
        if migration.running and (migration.source in site.hosts or migration.target in site.hosts)
    ]
    return _condition(
        "migrations", not running, _some(running) or "none is in progress",
        "wait for them; confirm or revert resizes: Nova does not heal what moves" if running else "",
    )  # fmt: skip


def _moving(site: Site, world: World) -> Finding:
    """Servers that Nova works on right now; a resize that waits for its confirmation is one."""
    busy = [
        f"{server} is {server.status}" + (f" ({server.task})" if server.task else "")
        for server in world.servers.values()
        if ALIAS_SPEC in server.specs and not server.settled and (server.host is None or server.host in site.hosts)
    ]
    return _condition(
        "servers-at-rest", not busy, _some(busy) or "Nova works on none with GPUs",
        "wait for them; confirm or revert resizes" if busy else "",
    )  # fmt: skip


def _room(site: Site, world: World, report: StagedSite, subject: DriftSubject) -> Finding:
    """As long as Placement knows nothing, which GPU a server has is not to be seen; but how many there can be is."""
    bad = []
    for host in site.hosts:
        servers = [server for server in _running(world, {host}) if subject.asked(server)]
        for pool in site.pools:
            offered = sum(gpu.pool == pool for gpu in _mine(report, host))
            if any(device.host == host for device in world.devices.values()):
                continue  # the other conditions see more
            requested = sum(subject.asked(server).get(pool, 0) for server in servers)
            if requested > offered:
                bad.append(f"servers on {host} have {requested} GPUs of pool {pool}, and {offered} are offered")
    return _condition(
        "gpus-in-use", not bad,
        "; ".join(bad[:SOME]) or "no host has more of them in use than are offered",
        "some have GPUs that the site does not offer, or share a group: end or move them" if bad else "",
    )  # fmt: skip


def _running(world: World, hosts: Iterable[str]) -> list[ServerSeen]:
    host_names = set(hosts)
    return [
        s for s in world.servers.values() if s.host in host_names and s.status not in (GONE_FROM_HOST, "SOFT_DELETED")
    ]


def _reported(site: Site, world: World, report: StagedSite) -> Finding:
    bad = [f"{host}: {text}" for host in site.hosts for text in _wrong(_mine(report, host), world, False)]
    return _condition(
        "all-reported", not bad, _some(bad) or "every host has its GPUs in Placement",
        "finish stage 'report' first" if bad else "",
    )  # fmt: skip


def _healed(site: Site, world: World, subject: DriftSubject) -> Finding:
    bad = []
    for server in _running(world, site.hosts):
        requested = sum(subject.asked(server).values())
        have = len([device for device in world.devices_of.get(server.id, ()) if device.host == server.host])
        if have < requested:
            bad.append(f"{server} has {requested} GPUs, and Placement knows of {have}")
    return _condition(
        "servers-healed", not bad, _some(bad) or "Placement knows the GPUs of every server",
        "nova-compute does it at its next update; if it does not, restart it" if bad else "",
    )  # fmt: skip


def _offered(subject: DriftSubject, target: StagedSite) -> Finding:
    names = {gpu.provider_name for gpu in target.gpus}
    bad = [
        f"{subject.world.called(consumer)} has {device.host} {device.address}"
        for device in subject.devices_on_site()
        if device.name not in names and _is_gpu(subject, device)
        for consumer in device.holders
    ]
    return _condition(
        "offered-gpus-only", not bad, _some(bad) or "no server has a GPU that the site would not offer",
        "end or move them first: Nova keeps such a device as long as it is in use" if bad else "",
    )  # fmt: skip


def _is_gpu(subject: DriftSubject, device: DeviceSeen) -> bool:
    function = subject.function(device)
    return function is None or function.is_gpu


def _groups(subject: DriftSubject) -> Finding:
    bad = [f"{finding.object}: {finding.reason}" for finding in split_groups(subject)]
    return _condition(
        "whole-groups", not bad, _some(bad) or "no IOMMU group is with two servers",
        "end or move all but one of them" if bad else "",
    )  # fmt: skip


def _aliases(site: Site, world: World, target: StagedSite, subject: DriftSubject) -> Finding:
    """With Placement deciding, an alias finds devices by its class."""
    aliases = aliases_of(target.compiled.options_of("nova").values(*ALIAS))
    bare = [name for name, alias in aliases.items() if "resource_class" not in alias.raw]
    if bare:
        return _condition("aliases", False, f"{_some(bare)} have no resource_class", "a bug of gpuyard: report it")
    foreign = sorted(
        {name for server in _running(world, site.hosts) for name in asked_devices(server.specs)}
        - subject.pool_of_alias.keys()
    )
    if foreign:
        reason = f"servers run with {_some(foreign)}, which the site file does not have"
        return _condition("aliases", None, f"{reason}: see that their devices have the class that these aliases name")
    return _condition("aliases", True, "all of the site's name a resource class")


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
