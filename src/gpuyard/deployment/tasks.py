"""Tasks of a deployment: stages, their standing, and the range of a run. Plain data."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from enum import StrEnum

from gpuyard.deployment.journal import DeployJournal
from gpuyard.deployment.state import DeploymentState
from gpuyard.site.deploy_rules import HERE, SiteDeploy
from gpuyard.site.schema import Site


class TaskStanding(StrEnum):
    DONE = "done"
    DUE = "to do"
    LATER = "later"
    """It is to do, or that is not known yet: something else comes first."""
    BLOCKED = "blocked"


class Part(StrEnum):
    """The parts of a deployment's state; each is observed by itself."""

    HOSTS = "hosts"
    KOLLA = "kolla"
    CLOUD = "cloud"
    SERVICE = "service"


@dataclass(frozen=True)
class TaskVerdict:
    """The standing of a task, and its grounds: what is there, what would be changed, or what blocks it."""

    standing: TaskStanding
    says: tuple[str, ...] = ()


@dataclass(frozen=True)
class DeployTask:
    """One task of one stage. `object` is a host, an image, or empty."""

    stage: str
    object: str
    reason: str
    how: str
    """The command it runs, as one would type it."""
    verdict: TaskVerdict

    @property
    def standing(self) -> TaskStanding:
        return self.verdict.standing

    @property
    def title(self) -> str:
        return f"{self.stage} {self.object}".strip()


Judge = Callable[[Site, DeploymentState, DeployJournal, str, Collection[str]], TaskVerdict]
"""Judges the object, in a deployment to these hosts."""


@dataclass(frozen=True)
class DeployStage:
    name: str
    reason: str
    how: str
    judge: Judge
    of: str = ""
    """The kind of objects: hosts, hypervisors, images; portal and acceptance where the site has them; empty for one
    task for all."""
    whole_cloud: bool = False
    """True: a run that is limited to some hosts leaves it out."""
    again: frozenset[Part] = frozenset()
    """Parts that it may have changed, and that are observed again."""

    @property
    def of_parts(self) -> frozenset[Part]:
        """Parts that must be observed to judge it."""
        if self.again in ({Part.CLOUD}, {Part.SERVICE}):
            return self.again
        return frozenset({Part.HOSTS, Part.KOLLA})


@dataclass(frozen=True)
class DeployRange:
    """The wanted part of a deployment. Empty: all."""

    first: str = ""
    last: str = ""
    hosts: tuple[str, ...] = ()


EVERYTHING = DeployRange()


def command_of(deploy: SiteDeploy, how: str, name: str) -> str:
    """Return the command of a stage for an object, as one would type it. `how`: its template."""
    host = deploy.hosts.get(name)
    login = "" if host is None or host.address == HERE else host.login(name, deploy.user)
    return how.format(name=name, ssh=f"ssh {login} " if login else "", by_ssh=f" --ssh {login}" if login else "")
