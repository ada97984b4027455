"""What a job may have: its labels, its repository's files, policies and the site's rules in, `Wanted` or a refusal out.

Pure but for the questions about people that it asks through `PersonFacts`, of which it asks as few as it can.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from gpuyard.model.finding import Finding
from gpuyard.runners.cirun.records import AccessFile, CirunFile
from gpuyard.runners.facts import PersonFacts
from gpuyard.runners.records import Job, ServerChoice, Wanted
from gpuyard.site.schema import Site


class Ruling(StrEnum):
    """What became of a job's question for a runner."""

    GRANTED = "granted"
    """`wanted` says what it may have."""
    REFUSED = "refused"
    """For good, `reasons` say why: the job is JobState.REFUSED."""
    NOT_OURS = "not-ours"
    """No runner of gpuyard has its labels: somebody else's job, to be left alone without a word."""
    UNKNOWN = "unknown"
    """GitHub must be asked first; `reasons` say what for. To be tried again."""


@dataclass(frozen=True)
class Considered:
    """One thing that was looked at on the way, for people."""

    text: str
    ok: bool


@dataclass(frozen=True)
class Resolution:
    """The answer, and how it was found."""

    ruling: Ruling
    wanted: Wanted | None = None
    reasons: tuple[str, ...] = ()
    notices: tuple[str, ...] = ()
    """What the files ask for and do not get, though there is a runner."""
    steps: tuple[Considered, ...] = ()

    @property
    def reason(self) -> str:
        """All reasons in one line, for the job."""
        return "; ".join(self.reasons)


@dataclass(frozen=True)
class RepositoryFiles:
    """Texts of the default branches. None: there is no such file. Keep what `read` makes of them by their ETags."""

    cirun: str | None = None
    """``.cirun.yml`` of the job's repository; for a pull request too it is that of the base."""
    cirun_global: str | None = None
    """``.cirun.global.yml`` of ``OWNER/.cirun``."""
    access: str | None = None
    """``.access.yml`` of ``OWNER/.cirun``."""


@dataclass(frozen=True)
class Configuration:
    """What a repository has, read."""

    own: CirunFile = field(default_factory=CirunFile)
    shared: CirunFile = field(default_factory=CirunFile)
    access: AccessFile | None = None
    """None: there is no `.access.yml`, and everybody may use what the site allows."""

    @property
    def findings(self) -> tuple[Finding, ...]:
        return (*self.own.findings, *self.shared.findings, *(self.access.findings if self.access else ()))


@dataclass(frozen=True)
class IdleRunners:
    """Runners that should wait for jobs now, of one kind."""

    scope: str
    """Name of the enrolment."""
    repository: str
    """``owner/name`` that they are registered with; empty for a scale set, whose they are."""
    scale_set: str
    labels: tuple[str, ...]
    wanted: Wanted
    count: int

    @property
    def choices(self) -> tuple[ServerChoice, ...]:
        return self.wanted.choices


def read(files: RepositoryFiles) -> Configuration:
    """Read a repository's files. Never raises; what is wrong is among the findings. Takes up to a second for files of
    the largest size, milliseconds for usual ones."""
    raise NotImplementedError


def resolve(job: Job, site: Site, configuration: Configuration, facts: PersonFacts) -> Resolution:
    """What a job may have. A job of a scale set needs `scale_set`, others `labels`; all `scope` and `repository`.

    A job's runner gets the job's own labels (suffixes and all), so that no other job has them all.
    """
    raise NotImplementedError


def idle_runners(
    site: Site,
    configurations: Mapping[tuple[str, str], Configuration],
    last_job: Callable[[str, str], datetime | None],
    now: datetime,
) -> Sequence[IdleRunners]:
    """What should wait for jobs now. `configurations`: (enrolment, ``owner/name``) -> files; `last_job`: (repository,
    kind) -> when a runner of the kind last got a job. Repositories together get the site's ``most_idle`` at most, in
    the order of `configurations`; sets are not counted there."""
    raise NotImplementedError
