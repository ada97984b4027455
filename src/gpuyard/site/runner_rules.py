"""Schema of ``runners`` in ``site.yaml``: which GitHub repositories get runners, and what these may have.

A repository's own `.cirun.yml` chooses within this, and never goes beyond it. What a repository or a scale set
states overrides what the site states.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import datetime, timedelta
from fnmatch import fnmatchcase
from functools import cached_property
from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints, model_validator

from gpuyard.site.booking_rules import SomeTime, known_zone
from gpuyard.site.strict import Strict

Label = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+:=/-]*$", max_length=100)]
OrganizationName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9](-?[A-Za-z0-9])*$", max_length=39)]
RepositoryName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]+/[A-Za-z0-9._-]+$", max_length=140)]
RepositoryPattern = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9*?-]+/[A-Za-z0-9._*?-]+$", max_length=140)]
Forks = Literal["never", "members", "collaborators", "contributors", "everybody"]
PrivateShown = Literal["names", "jobs", "nothing"]
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
WEEKDAYS = re.compile(r"(mon|tue|wed|thu|fri|sat|sun)(-(mon|tue|wed|thu|fri|sat|sun))?")
HOURS_OF_DAY = re.compile(r"([01]?\d|2[0-4])-([01]?\d|2[0-4])")
Share = Annotated[int, Field(ge=1, le=1000, strict=True)]
Many = Annotated[int, Field(ge=1, le=10_000, strict=True)]


class RunnerLimits(Strict):
    """What jobs may have. What is left out: as in the site, and then the default that is named here."""

    longest: SomeTime | None = Field(
        None, description="The server is deleted when its job has run so long. Default: 6 h."
    )
    most: Many | None = Field(None, description="Most GPUs that runners have at once. Default: any number.")
    share: Share | None = Field(
        None, description="Part of the GPUs that it gets when there are too few, beside others' parts. Default: 1."
    )
    priority: Annotated[int, Field(ge=-1000, le=1000, strict=True)] | None = Field(
        None, description="The highest goes first. Default: 0."
    )
    preemptible: bool | None = Field(
        None, description="A booking may end jobs; otherwise only idle runners make way for one. Default: false."
    )
    forks: Forks | None = Field(
        None,
        description="Whose pull requests from forks get a runner, by GitHub's author association; a policy of the "
        "organisation may only allow less. Default: never.",
    )


@dataclass(frozen=True)
class JobRules:
    """The complete rules for jobs of one repository."""

    longest: timedelta = timedelta(hours=6)
    most: int | None = None
    share: int = 1
    priority: int = 0
    preemptible: bool = False
    forks: Forks = "never"
    origins: Mapping[str, str] = field(default_factory=dict, compare=False)
    """Key -> what states it: ``runners``, ``set gpuyard-v100``, ``repository conda-forge/*``. The others are
    defaults."""


CPU = "cpu"
"""Name of the queue of runners without GPUs; the queues of others have the names of their pools."""
JOB_RULES = tuple(field.name for field in fields(JobRules) if field.name != "origins")


class GitHubApp(Strict):
    """A GitHub App that is installed where runners are wanted."""

    id: Annotated[int, Field(ge=1, strict=True)] = Field(description="App ID.")
    key_file: str = Field(description="Its private key, PEM. Readable by gpuyard alone.")


class Enrolment(Strict):
    """An organisation, or a repository of its own, whose jobs get runners."""

    organization: OrganizationName | None = None
    repository: RepositoryName | None = None
    url: Annotated[str, StringConstraints(pattern=r"^https?://[^\s/]+$")] = Field(
        "https://github.com", description="A GitHub Enterprise Server, where it is one."
    )
    app: GitHubApp | None = None
    token_file: str | None = Field(None, description="A personal access token, in place of an app.")
    webhook_secrets_file: str | None = Field(
        None,
        description="Secrets of the webhook, one per line: any of them is right. Without it no webhooks are taken.",
    )
    runner_group: str = "Default"
    repositories: list[RepositoryPattern] = Field(
        default_factory=list, description="Only these of an organisation, as in 'conda-forge/*-gpu'; all when empty."
    )
    statuses: bool = Field(
        True, description="Say at the commit why its job waits, as a commit status, where the app or token may."
    )
    cancel_refused: bool = Field(
        True,
        description="Cancel the run of a job that is refused, where the app or token may ('Actions: write'), when it "
        "is a scale set's, which would wait at GitHub for a day, or a fork's, which would take the runner of another "
        "job with the same labels. GitHub cancels a run with all of its jobs.",
    )
    cirun: bool = Field(True, description="Read .cirun.yml of repositories, and the .cirun repository.")
    access_required: bool = Field(
        False, description="Nobody gets a runner while gpuyard sees no .access.yml, as when the app lost sight of it."
    )

    @model_validator(mode="after")
    def _one_of_each(self) -> Enrolment:
        if (self.organization is None) == (self.repository is None):
            raise ValueError("name an 'organization' or a 'repository', one of them")
        if (self.app is None) == (self.token_file is None):
            raise ValueError("say 'app' (with id and key_file) or 'token_file', one of them")
        return self

    @property
    def name(self) -> str:
        """``conda-forge``, ``owner/name``; with the host where that is not github.com."""
        own = self.organization or self.repository or ""
        host = self.url.partition("://")[2]
        return own if host == "github.com" else f"{host}/{own}"

    @property
    def has_hosted_runners(self) -> bool:
        """Whether GitHub itself runs jobs that ask for ``ubuntu-latest``. A GitHub Enterprise Server does not."""
        host = self.url.partition("://")[2].lower()
        return host in {"github.com", "www.github.com"} or host.endswith(".ghe.com")

    @property
    def owner(self) -> str:
        return self.organization or (self.repository or "").partition("/")[0]

    def includes(self, repository: str) -> bool:
        """Return whether a repository (``owner/name``) gets runners here. Letter case does not count, as at GitHub."""
        full_name = repository.lower()
        if self.repository is not None:
            return full_name == self.repository.lower()
        mine = full_name.startswith(f"{self.owner.lower()}/")
        return mine and (
            not self.repositories or any(fnmatchcase(full_name, repository.lower()) for repository in self.repositories)
        )


def weekdays_of(text: str) -> frozenset[int]:
    """Parse days of the week: ``mon-fri`` -> 0 to 4; ``sat-mon`` goes over Sunday. Raises ValueError."""
    if not WEEKDAYS.fullmatch(text):
        raise ValueError(f"{text!r} is no day of the week; write 'mon', or a range as in 'mon-fri'")
    first, _, last = text.partition("-")
    start = DAYS.index(first)
    return frozenset((start + day) % 7 for day in range((DAYS.index(last or first) - start) % 7 + 1))


def hours_of(text: str) -> tuple[int, int]:
    """Parse hours of a day: ``9-17`` -> (9, 17); ``22-6`` goes over midnight. Raises ValueError."""
    match = HOURS_OF_DAY.fullmatch(text)
    start, end = (int(part) for part in match.groups()) if match else (0, 0)
    if start == end or start == 24:
        raise ValueError(f"{text!r} are no hours of a day; write them as in '9-17', or '22-6' for a night")
    return start, end


def within_week(days: frozenset[int], start: int, end: int, local: datetime) -> bool:
    """Return whether a local time is within these hours of these days; a night counts to the day on which it begins."""
    if start < end:
        return local.weekday() in days and start <= local.hour < end
    if local.hour >= start:
        return local.weekday() in days
    return local.hour < end and (local.weekday() - 1) % 7 in days


class Idle(Strict):
    """Runners that wait for jobs, in a part of the week or always."""

    count: Annotated[int, Field(ge=0, le=1000, strict=True)]
    days: str = Field("mon-sun", description="A day or a range of days, as in 'mon-fri'.")
    hours: str = Field("0-24", description="Of these days, in the site's time zone, as in '9-17' or '22-6'.")

    @model_validator(mode="after")
    def _part_of_a_week(self) -> Idle:
        weekdays_of(self.days)
        hours_of(self.hours)
        return self

    def on(self, local: datetime) -> bool:
        """Return whether they are wanted at a local time."""
        return within_week(weekdays_of(self.days), *hours_of(self.hours), local)


class ScaleSet(RunnerLimits):
    """A runner scale set: what `runs-on` with its name gets."""

    enrolment: str | None = Field(None, description="Name of its enrolment; needed where there are several.")
    flavors: list[str] = Field(min_length=1, description="Of this site. The first that can be had is taken.")
    images: list[str] = Field(min_length=1, description="The first that exists is taken.")
    idle: list[Idle] = Field(default_factory=list, description="Runners that wait for jobs; none when empty.")


class Allowed(Strict):
    """What `.cirun.yml` may name."""

    flavors: list[str] = Field(
        default_factory=list,
        description="All of the site's when empty; without GPUs only where 'cpu_runners' lets some be.",
    )
    images: list[str] = Field(default_factory=list, description="Any image of Glance when empty.")


class SiteRunners(RunnerLimits):
    """Runners for GitHub jobs."""

    project: Annotated[str, StringConstraints(min_length=1)] = Field(
        description="OpenStack project that the runners are servers of. It is gpuyard's: nobody else starts servers "
        "there."
    )
    cloud: str | None = Field(
        None,
        description="Cloud of clouds.yaml to start and delete the runners' servers with: best an application "
        "credential that is good for the role member in 'project' and nothing else. gpuyard's own when left out, whose "
        "user then needs the role member there.",
    )
    network: str | None = Field(
        None,
        description="Id, or name of one that 'project' owns; its only one when left out, 'none' for no network. One "
        "that others share with it is named by its id.",
    )
    security_groups: list[str] = Field(default_factory=list)
    enrolments: list[Enrolment] = Field(min_length=1)
    sets: dict[Label, ScaleSet] = Field(default_factory=dict, description="Runner scale sets, by the label of jobs.")
    allowed: Allowed = Allowed()
    repositories: dict[RepositoryPattern, RunnerLimits] = Field(
        default_factory=dict, description="What certain repositories may have; of several that match the last."
    )
    cpu_runners: Annotated[int, Field(ge=0, le=10_000, strict=True)] = Field(
        0,
        description="Most runners at once of flavors without GPUs, which run on the CPU, RAM and disk that are left. "
        "None when 0.",
    )
    most_idle: Annotated[int, Field(ge=0, le=1000, strict=True)] = Field(
        0, description="Most idle runners that repositories may ask for in '.cirun.yml', in all."
    )
    boot: SomeTime = Field(
        timedelta(minutes=15),
        description="A server must be ACTIVE in this time, and as much more for each 64 GiB of RAM.",
    )
    register_within: SomeTime = Field(
        timedelta(minutes=10), description="The runner of a server that is ACTIVE must be online in this time."
    )
    half_life: SomeTime = Field(
        timedelta(days=14), description="What a repository has used counts half after this time, when GPUs are shared."
    )
    timezone: Annotated[str, StringConstraints(min_length=1)] = Field(
        "UTC", description="For idle runners by the hour."
    )
    public: bool = Field(
        False, description="Show queue and history to everybody, without login. No logs, hosts or servers."
    )
    private_repositories: PrivateShown = Field(
        "jobs",
        description="What is shown without login of jobs of repositories that are private at GitHub, or of which that "
        "is not known, and where 'booking: others' hides people from each other also to them: 'names' shows all, as of "
        "public ones, 'jobs' that there is a job and how it is with it, 'nothing' leaves them out.",
    )

    @model_validator(mode="after")
    def _known(self) -> SiteRunners:
        known_zone(self.timezone)
        names = [enrolment.name for enrolment in self.enrolments]
        if len({*names}) < len(names):
            raise ValueError("an organisation or repository is enrolled twice")
        for label, scale_set in self.sets.items():
            if scale_set.enrolment is None and len(names) > 1:
                raise ValueError(f"set {label!r} must say which 'enrolment' it is for: {', '.join(names)}")
            if scale_set.enrolment is not None and scale_set.enrolment not in names:
                raise ValueError(f"set {label!r} is for {scale_set.enrolment!r}, and enrolled are {', '.join(names)}")
        return self

    @cached_property
    def _patterns(self) -> tuple[tuple[str, str, bool], ...]:
        """Keys of `repositories`, each in lower case too, and whether it is just a name."""
        return tuple(
            (repository, repository.lower(), not set("*?") & set(repository)) for repository in self.repositories
        )

    def rules(self, repository: str, label: str = "") -> JobRules:
        """What holds for jobs of a repository (``owner/name``), of a scale set where it is one's. Of priority, share
        and limits the repository's word goes last."""
        stated: dict[str, Any] = {}
        origins: dict[str, str] = {}
        layers: list[tuple[str, RunnerLimits]] = [("runners", self)]
        if label in self.sets:
            layers.append((f"set {label}", self.sets[label]))
        full_name = repository.lower()
        layers += [
            (f"repository {pattern}", self.repositories[pattern])
            for pattern, lower, is_name in self._patterns
            if lower == full_name or (not is_name and fnmatchcase(full_name, lower))
        ]
        for name, layer in layers:
            values = {key: value for key in JOB_RULES if (value := getattr(layer, key)) is not None}
            stated |= values
            origins |= dict.fromkeys(values, name)
        return JobRules(**stated, origins=origins)
