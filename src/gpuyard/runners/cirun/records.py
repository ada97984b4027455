"""Contents of the files as plain data. Nothing in here has been compared with what the site allows."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from zoneinfo import ZoneInfo

from gpuyard.model.finding import Finding
from gpuyard.site.runner_rules import within_week

OPENSTACK = "openstack"


@dataclass(frozen=True)
class Way:
    """One alternative of a runner, of which the first that works is taken: the i-th entries of all its lists."""

    flavor: str
    image: str
    preemptible: bool = False


@dataclass(frozen=True)
class IdleTime:
    """Runners that wait for jobs in a part of the week."""

    count: int
    days: frozenset[int] = frozenset(range(7))
    """0 is Monday."""
    start: int = 0
    """Hour of the day, 0 to 23."""
    end: int = 24
    """1 to 24; before `start` for a night, which counts to the day on which it begins."""
    timezone: str = "UTC"

    def on(self, now: datetime) -> bool:
        return within_week(self.days, self.start, self.end, now.astimezone(ZoneInfo(self.timezone)))


@dataclass(frozen=True)
class IdleByUse:
    """Runners that wait for jobs for some time after a runner of the kind got one."""

    count: int
    duration: timedelta


@dataclass(frozen=True)
class CirunRunner:
    """An entry of `.cirun.yml` or `.cirun.global.yml`."""

    name: str
    cloud: str
    labels: tuple[str, ...]
    """As they are written; letter case does not count."""
    ways: tuple[Way, ...]
    """In order. Empty for another cloud's, and for one with mistakes."""
    idle: tuple[IdleTime, ...] | IdleByUse = ()
    file: str = ""
    line: int = 0

    @property
    def ours(self) -> bool:
        return self.cloud == OPENSTACK


@dataclass(frozen=True)
class CirunFile:
    """`.cirun.yml` or `.cirun.global.yml`."""

    runners: tuple[CirunRunner, ...] = ()
    readable: bool = True
    """False: it is no YAML, or not of the form, so that its meaning is not known."""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Policy:
    """A policy: the people who may use runners for jobs of a repository. Being in one of the teams, users or lists of
    users is enough; a role is demanded of everybody. A policy that names nobody is for nobody."""

    id: str
    repository: str
    """``name``, of the organisation whose file it is; or ``owner/name``."""
    teams: tuple[str, ...] = ()
    roles: tuple[str, ...] = ()
    users: tuple[str, ...] = ()
    users_from_json: tuple[str, ...] = ()
    """URLs of lists of users."""
    pull_request: bool = False
    line: int = 0


@dataclass(frozen=True)
class Grant:
    """An entry of ``access_control``: the policies of one runner."""

    resource: str
    policies: tuple[str, ...]
    line: int = 0


@dataclass(frozen=True)
class AccessFile:
    """`.access.yml`. What is wrong in it gives nobody anything."""

    policies: tuple[Policy, ...] = ()
    grants: tuple[Grant, ...] = ()
    readable: bool = True
    """False: its meaning is not known, so nobody may use anything."""
    findings: tuple[Finding, ...] = ()
    file: str = ".access.yml"
