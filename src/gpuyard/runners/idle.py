"""Decides which runners should wait for jobs now: by the site's scale sets, and by `.cirun.yml` within the site's
bounds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from datetime import datetime
from zoneinfo import ZoneInfo

from gpuyard.runners.cirun.labels import bare
from gpuyard.runners.cirun.records import CirunRunner, IdleByUse
from gpuyard.runners.resolve import Configuration, IdleRunners, as_runner, served, server_spec
from gpuyard.site.runner_rules import Enrolment
from gpuyard.site.schema import Site

LastJob = Callable[[str, str], datetime | None]
"""(repository, kind) -> when a runner of the kind last got a job; the repository is empty for the organisation's."""


def idle_runners(
    site: Site, configurations: Mapping[tuple[str, str], Configuration], last_job: LastJob, now: datetime
) -> list[IdleRunners]:
    """Return the runners that should wait for jobs now. `configurations`: (enrolment, ``owner/name``) -> its files.
    Repositories together get the site's ``most_idle`` at most, in the order of `configurations`; sets are not counted
    there."""
    if site.runners is None:
        return []
    wishes = list(_of_sets(site, now))
    left = site.runners.most_idle
    for repository in _of_repositories(site, configurations, last_job, now):
        if count := min(repository.count, left):
            wishes.append(replace(repository, count=count))
            left -= count
    return wishes


def _of_sets(site: Site, now: datetime) -> Iterator[IdleRunners]:
    assert site.runners is not None
    local = now.astimezone(ZoneInfo(site.runners.timezone))
    for name, scale_set in site.runners.sets.items():
        count = max((idle.count for idle in scale_set.idle if idle.on(local)), default=0)
        choices, _ = served(as_runner(name, scale_set).ways, site, ask_allowed=False)
        if count and choices:
            scope = scale_set.enrolment or site.runners.enrolments[0].name
            spec = server_spec(name, choices, site.runners.rules("", name))
            yield IdleRunners(scope, "", name, (name,), spec, count)


def _of_repositories(
    site: Site, configurations: Mapping[tuple[str, str], Configuration], last_job: LastJob, now: datetime
) -> Iterator[IdleRunners]:
    assert site.runners is not None
    enrolments = {enrolment.name: enrolment for enrolment in site.runners.enrolments if enrolment.cirun}
    yielded: set[tuple[str, str, str]] = set()
    for (scope, repository), configuration in configurations.items():
        enrolment = enrolments.get(scope)
        if enrolment is None or not enrolment.includes(repository):
            continue
        for at, runner in _kinds(enrolment, repository, configuration):
            count = _count(runner, at, last_job, now)
            choices, _ = served(runner.ways, site)
            if not count or not choices or (scope, at, runner.name) in yielded:
                continue
            yielded.add((scope, at, runner.name))
            spec = server_spec(runner.name, choices, site.runners.rules(at))
            labels = tuple(dict.fromkeys(bare(label) for label in runner.labels))
            yield IdleRunners(scope, at, "", labels, spec, count)


def _kinds(enrolment: Enrolment, repository: str, configuration: Configuration) -> Iterator[tuple[str, CirunRunner]]:
    """Yield the runners of a configuration, each with the repository that it is registered at. Those of
    `.cirun.global.yml` are the organisation's."""
    if (
        configuration.access is None and not enrolment.access_required
    ):  # else a repository's own are not used, as in resolve.py
        yield from ((repository, runner) for runner in configuration.own.runners if runner.ours)
    shared = "" if enrolment.organization else repository
    yield from ((shared, runner) for runner in configuration.shared.runners if runner.ours)


def _count(runner: CirunRunner, repository: str, last_job: LastJob, now: datetime) -> int:
    if isinstance(runner.idle, IdleByUse):
        last = last_job(repository, runner.name)
        return runner.idle.count if last is not None and last <= now < last + runner.idle.duration else 0
    return max((time.count for time in runner.idle if time.on(now)), default=0)
