"""Explains which runner a job would get that nobody has started: `gpuyard runner why`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuyard.model.errors import UsageError
from gpuyard.runners.cirun.labels import GENERAL, bare
from gpuyard.runners.facts import FactsUnavailableError, PersonFacts, TextFile
from gpuyard.runners.records import Job, JobState, Trust
from gpuyard.runners.resolve import Configuration, Resolution, resolve
from gpuyard.site.runner_rules import Enrolment
from gpuyard.site.schema import Site

NEVER = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Question:
    """A hypothetical job."""

    repository: str
    user: str
    event: str
    association: str = ""
    """The author's association, where the pull request is from a fork; empty where it is not."""


@dataclass(frozen=True)
class StatedFacts:
    """`PersonFacts` that were stated beforehand. Unset fields are unknown."""

    role_name: str | None = None
    teams: frozenset[str] | None = None
    users: str | None = None
    """The text of the one list of users that there is."""

    def role(self, repository: str, user: str) -> str:
        if self.role_name is None:
            raise FactsUnavailableError(f"which role {user!r} has in {repository} is not known; say --role")
        return self.role_name

    def in_team(self, organization: str, team: str, user: str) -> bool:
        if self.teams is None:
            raise FactsUnavailableError(f"whether {user!r} is in the team {team!r} is not known; say --team")
        return team.lower() in {team.lower() for team in self.teams}

    def text(self, file: TextFile) -> str | None:
        if self.users is None:
            raise FactsUnavailableError(f"the list {file.path} of {file.repository} is not here; say --users FILE")
        return self.users


def enrolment_of(repository: str, site: Site) -> Enrolment:
    """Return the enrolment that a repository's jobs come through. Raises UsageError."""
    if repository.count("/") != 1 or not all(repository.split("/")):
        raise UsageError(f"{repository!r} is no repository; write it as in 'conda-forge/pytorch-feedstock'")
    enrolments = site.runners.enrolments if site.runners is not None else []
    owner = repository.partition("/")[0].lower()
    matches = [enrolment for enrolment in enrolments if enrolment.includes(repository)]
    matches += [enrolment for enrolment in enrolments if enrolment.owner.lower() == owner and enrolment.organization]
    if not matches:
        have = ", ".join(enrolment.name for enrolment in enrolments)
        raise UsageError(f"{repository} is not enrolled: the site file has {have}; add it to 'enrolments' of 'runners'")
    return matches[0]


def every_label(site: Site, configuration: Configuration) -> list[str]:
    """Return one label of each runner that a repository could name."""
    sets = list(site.runners.sets) if site.runners is not None else []
    runners = [runner for file in (configuration.own, configuration.shared) for runner in file.runners if runner.ours]
    own = [next((label for label in runner.labels if bare(label) not in GENERAL), "") for runner in runners]
    return list(dict.fromkeys([*sets, *filter(None, own)]))


def explain(
    question: Question, labels: Sequence[str], site: Site, configuration: Configuration, facts: PersonFacts
) -> list[tuple[str, Resolution]]:
    """Return for each label what a job that asks for it would get. Raises UsageError for a repository that is not
    enrolled."""
    scope = enrolment_of(question.repository, site).name
    return [(label, resolve(_job(question, label, scope, site), site, configuration, facts)) for label in labels]


def _job(question: Question, label: str, scope: str, site: Site) -> Job:
    labels = tuple(part.strip() for part in label.strip("[] ").split(",") if part.strip())
    sets = site.runners.sets if site.runners is not None else {}
    return Job(
        id="",
        repository=question.repository,
        labels=labels,
        state=JobState.QUEUED,
        queued=NEVER,
        scope=scope,
        scale_set=labels[0] if len(labels) == 1 and labels[0] in sets else "",
        event=question.event,
        actor=question.user,
        trust=Trust.FORK if question.association else Trust.REPOSITORY,
        association=question.association,
    )
