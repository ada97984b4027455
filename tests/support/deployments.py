"""A world to deploy to, in memory: hosts, Kolla's folder and a cloud, changed bit by bit, and killed between any two.

What it does at each step is what the real one does (tests/virtual/test_deploy.py), as far as a deployment can tell.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from gpuyard.deployment.journal import DeployJournal, JournalEntry, JournalFile, JournalWriter
from gpuyard.deployment.judges import CONTAINERS
from gpuyard.deployment.runner import Deployment
from gpuyard.deployment.state import DeploymentState, HostState, KollaState, OpenStackState
from gpuyard.deployment.tasks import EVERYTHING, DeployRange, DeployTask, Part
from gpuyard.host.network import HostInterface
from gpuyard.site.schema import Site

NOW = datetime(2026, 11, 23, 9, 0, tzinfo=UTC)
NOTHING_YET = DeployJournal()
FILES = ("nova.conf", "placement.conf")
OPTION = "kernel option iommu=pt"


class Killed(BaseException):
    """As SIGKILL: nothing that is under way is finished."""


def document(**changes: Any) -> dict[str, Any]:
    """A site file: two hypervisors and a host that controls them."""
    return {
        "site": "test",
        "release": "2026.1",
        "hosts": {name: {"recording": f"{name}.json"} for name in ("gpu1", "gpu2")},
        "pools": {"v100": {"models": ["10de:1db4"]}},
        "images": {"ml": {"build": {"base": {"distribution": "debian", "release": "bookworm"}}}},
        "deploy": {
            "interface": "eno1",
            "external_interface": "eno2",
            "vip": "10.0.0.250",
            "hosts": {
                "ctl": {"roles": ["control", "network"]},
                "gpu1": {"roles": ["compute"]},
                "gpu2": {"roles": ["compute"]},
            },
        },
        **changes,
    }


def site(**changes: Any) -> Site:
    """As `document` says."""
    return Site.model_validate(document(**changes))


def interfaces_of(number: int) -> tuple[HostInterface, ...]:
    """Of the host with this number: one with its address, one without."""
    return (
        HostInterface("lo"),
        HostInterface("eno1", (f"10.0.0.{number}",), default_route=True),
        HostInterface("eno2"),
    )


@dataclass
class FakeHost:
    """A machine."""

    steps: list[str] = field(default_factory=lambda: ["+ file list", "~ group 1", "~ run update-grub"])
    """What is left to prepare."""
    pending: bool = False
    boots: int = 1
    restart: bool = False
    engine: bool = False
    containers: set[str] = field(default_factory=set)
    ready: bool = False
    """Whether Kolla came to its end with it, which nobody can see."""


@dataclass
class FakeWorld:
    """All of it, and the number of changes that it still takes before it is killed; None: as many as you like."""

    site: Site
    hosts: dict[str, FakeHost] = field(default_factory=dict)
    recorded: set[str] = field(default_factory=set)
    machines: bool = False
    variables: str = "d"
    """The digest of what is deployed from."""
    passwords: list[int] = field(default_factory=list)
    rendered: list[str] = field(default_factory=list)
    collection: bool = False
    credentials: bool = False
    reads_limits: bool = False
    applied: list[str] = field(default_factory=list)
    images: set[str] = field(default_factory=set)
    left: int | None = None
    changes: int = 0
    fails: set[str] = field(default_factory=set)
    """Titles of tasks that fail."""

    def __post_init__(self) -> None:
        assert self.site.deploy is not None
        for name in self.site.deploy.hosts:
            self.hosts.setdefault(name, FakeHost(steps=[] if name not in self.site.hosts else FakeHost().steps))

    def changed(self) -> None:
        """Before each change."""
        if self.left == 0:
            raise Killed
        self.left = None if self.left is None else self.left - 1
        self.changes += 1

    def state(self) -> object:
        """Everything but for what two ways to the same end may differ in."""
        hosts = {name: (host.steps, host.pending, host.containers, host.ready) for name, host in self.hosts.items()}
        files = (self.recorded, self.machines, len(self.passwords), self.rendered, self.collection, self.credentials)
        return hosts, files, self.reads_limits, self.applied, self.images

    # What a deployment sees.

    def look(self, before: DeploymentState, parts: frozenset[Part]) -> DeploymentState:
        return DeploymentState(
            hosts={name: self._host(name) for name in self.hosts} if Part.HOSTS in parts else before.hosts,
            recorded=frozenset(self.recorded),
            kolla=self._kolla() if Part.KOLLA in parts else before.kolla,
            cloud=self._cloud() if Part.CLOUD in parts else before.cloud,
        )

    def _host(self, name: str) -> HostState:
        host = self.hosts[name]
        gpu = name in self.site.hosts
        return HostState(
            boot_id=f"{name}-{host.boots}",
            name=name,
            interfaces=interfaces_of(list(self.hosts).index(name) + 1),
            changes=tuple(host.steps),
            reboot_later=(OPTION,) if host.steps else (),
            pending=(OPTION,) if host.pending else (),
            restart=host.restart,
            given=("0000:27:00.0",) if gpu and not host.steps else (),
            engine="docker" if host.engine else "",
            containers=frozenset(host.containers),
        )

    def _kolla(self) -> KollaState:
        return KollaState(
            machines=() if self.machines else ("+ inventory",),
            passwords=bool(self.passwords),
            rendered=tuple(f"+ {file}" for file in FILES if file not in self.rendered) if self.machines else None,
            collection=self.collection,
            collection_current=self.collection,
            credentials=self.credentials,
            digest=self.variables,
        )

    def _cloud(self) -> OpenStackState | None:
        if not self.credentials:
            return None
        steps = () if self.applied else ("create flavor gpu",)
        return OpenStackState(
            "", self.reads_limits, steps, (), {name: name in self.images for name in self.site.images}
        )

    def about(self, state: DeploymentState, stage: str, name: str) -> str:
        if stage in ("reboot", "restart"):
            return state.hosts[name].boot_id
        return state.kolla.digest if stage == "deploy" and state.kolla is not None else ""

    # What a deployment does.

    def carry_out(self, state: DeploymentState, stage: str, names: Sequence[str]) -> Mapping[str, str]:
        problems = {}
        for name in names:
            if f"{stage} {name}".strip() in self.fails:
                problems[name] = "it does not want to"
            else:
                getattr(self, f"_{stage.replace('-', '_')}")(name)
        return problems

    def _prepare(self, name: str) -> None:
        host = self.hosts[name]
        while host.steps:
            self.changed()
            host.steps.pop(0)
            host.pending = True

    def _reboot(self, name: str) -> None:
        self.changed()
        host = self.hosts[name]
        assert not host.containers, "servers would have gone down"
        host.boots += 1
        host.pending = host.restart = False

    _restart = _reboot

    def _record(self, name: str) -> None:
        assert not self.hosts[name].pending, "the recording would be of the host before its boot"
        self.changed()
        self.recorded.add(name)

    def _machines(self, name: str) -> None:
        self.changed()
        self.machines = True

    def _passwords(self, name: str) -> None:
        self.changed()
        self.passwords.append(len(self.passwords))

    def _render(self, name: str) -> None:
        assert self.recorded == {*self.site.hosts}
        for file in FILES:
            if file not in self.rendered:
                self.changed()
                self.rendered.append(file)

    def _install_deps(self, name: str) -> None:
        self.changed()
        self.collection = True

    def _bootstrap_servers(self, name: str) -> None:
        host = self.hosts[name]
        assert not host.containers, "they would have been restarted"
        self.changed()
        host.engine = host.restart = True

    def _prechecks(self, name: str) -> None:
        assert all(host.engine and not host.restart for host in self.hosts.values())

    def _deploy(self, name: str) -> None:
        assert self.passwords and self.rendered and self.machines  # noqa: PT018
        assert self.site.deploy is not None
        for host_name, host in self.hosts.items():
            self.changed()
            host.containers |= {
                box for role in self.site.deploy.hosts[host_name].roles for box in CONTAINERS.get(role, ())
            }
        for host in self.hosts.values():
            self.changed()
            host.ready = True

    def _post_deploy(self, name: str) -> None:
        assert all(host.ready for host in self.hosts.values())
        self.changed()
        self.credentials = True

    def _limits(self, name: str) -> None:
        self.changed()
        self.reads_limits = True

    def _apply(self, name: str) -> None:
        assert self.reads_limits
        self.changed()
        self.applied.append("flavor gpu")

    def _image(self, name: str) -> None:
        self.changed()
        self.images.add(name)


@dataclass(frozen=True)
class FragileJournal(JournalWriter):
    """A kill during a write leaves a part of the line. The disk of a world in memory needs no waiting for."""

    world: FakeWorld
    keeps: int

    def write(self, entry: JournalEntry) -> None:
        line = entry.line().encode()
        try:
            self.world.changed()
        except Killed:
            os.write(self.descriptor, line[: min(self.keeps, len(line) - 1)])
            raise
        os.write(self.descriptor, line)


@dataclass
class QuietScreen:
    """Remembers what was shown."""

    shown: list[str] = field(default_factory=list)

    def started(self, number: int, of: int, tasks: Sequence[DeployTask]) -> None:
        self.shown.append(f"{number}/{of} {' '.join(task.title for task in tasks)}")

    def ended(self, number: int, of: int, tasks: Sequence[DeployTask], problems: Mapping[str, str]) -> None:
        self.shown[-1] += ": failed" if any(problems.values()) else ": done"


def run_once(
    world: FakeWorld, journal: Path, run: str = "r", deploy_range: DeployRange = EVERYTHING, keeps: int = 0
) -> QuietScreen:
    """One 'deploy run', to its end or its death."""
    screen, file = QuietScreen(), JournalFile(journal)
    deployment = Deployment(world.site, world, deploy_range, lambda: NOW)
    with file.writer() as writer:
        deployment.run(deployment.first_look(), file.read(run), FragileJournal(writer.descriptor, world, keeps), screen)
    return screen
