"""Checks ``runners`` of a site beyond what the schema can express."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import timedelta
from urllib.parse import urlsplit

from gpuyard.site.problems import Place, Problem
from gpuyard.site.runner_rules import CPU, Enrolment, RunnerLimits, SiteRunners
from gpuyard.site.schema import Site

LONGEST_JOB = timedelta(days=5)
"""GitHub ends every job after this time."""
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def runner_problems(site: Site) -> Iterable[Problem]:
    """Yield every problem of the site's `runners`."""
    runners = site.runners
    if runners is None:
        return
    if site.booking is None:
        reason = "runners get their GPUs from the ledger of bookings; add 'booking: {}' to the site file"
        yield Problem(("runners",), reason)
    if runners.project in site.projects:
        reason = (
            f"{runners.project!r} is the project of the runners, where only gpuyard starts servers; take it out here, "
            "or name another project under 'runners'"
        )
        yield Problem(("projects", runners.project), reason)
    if runners.cpu_runners and CPU in site.pools:
        reason = f"runners without GPUs are shown as pool {CPU!r}, which is a pool of GPUs here; rename that"
        yield Problem(("pools", CPU), reason)
    yield from _flavors(site, ("runners", "allowed", "flavors"), runners.allowed.flavors, runners)
    for name, scale_set in runners.sets.items():
        place: Place = ("runners", "sets", name)
        yield from _flavors(site, (*place, "flavors"), scale_set.flavors, runners)
        most = scale_set.most if scale_set.most is not None else runners.most
        for index, idle in enumerate(scale_set.idle):
            if most is not None and idle.count > most:
                reason = f"{idle.count} idle runners, and the set may have {most} GPUs at once; write {most} or less"
                yield Problem((*place, "idle", index, "count"), reason)
    for lowered, count in Counter(name.lower() for name in runners.sets).items():
        if count > 1:
            reason = f"several sets are named {lowered!r} but for letter case, which does not count at GitHub"
            yield Problem(("runners", "sets"), reason)
    yield from _limits(runners)
    yield from _enrolments(runners.enrolments)
    for pattern in runners.repositories:
        if not any(_could_be(pattern, enrolment) for enrolment in runners.enrolments):
            owners = ", ".join(enrolment.name for enrolment in runners.enrolments)
            reason = f"no enrolment includes such a repository; enrolled are {owners}"
            yield Problem(("runners", "repositories", pattern), reason)


def _flavors(site: Site, place: Place, names: Sequence[str], runners: SiteRunners) -> Iterable[Problem]:
    project = runners.project
    for index, name in enumerate(names):
        if name not in site.flavors:
            close = difflib.get_close_matches(name, site.flavors, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"the site has {', '.join(site.flavors) or 'none'}"
            yield Problem((*place, index), f"unknown flavor {name!r}; {hint}")
            continue
        flavor = site.flavors[name]
        if not flavor.gpus and not runners.cpu_runners:
            reason = f"flavor {name!r} has no GPUs; say with 'cpu_runners' how many such runners there may be at once"
            yield Problem((*place, index), reason)
            continue
        if flavor.foreign and flavor.projects is not None and project not in flavor.projects:
            reason = f"flavor {name!r} is somebody else's, and private to others than {project!r}; have them add it"
            yield Problem((*place, index), reason)


def _limits(runners: SiteRunners) -> Iterable[Problem]:
    layers: list[tuple[Place, RunnerLimits]] = [(("runners",), runners)]
    layers += [(("runners", "sets", name), scale_set) for name, scale_set in runners.sets.items()]
    layers += [(("runners", "repositories", name), limits) for name, limits in runners.repositories.items()]
    for place, layer in layers:
        if layer.longest is not None and layer.longest > LONGEST_JOB:
            yield Problem((*place, "longest"), f"GitHub ends every job after {LONGEST_JOB.days} days; write less")


def _enrolments(enrolments: Sequence[Enrolment]) -> Iterable[Problem]:
    for index, entry in enumerate(enrolments):
        place: Place = ("runners", "enrolments", index)
        url = urlsplit(entry.url)
        if url.scheme != "https" and url.hostname not in LOOPBACK:
            yield Problem(
                (*place, "url"), f"{entry.url} would be sent credentials that anybody can read; write https://"
            )
        for other in enrolments:
            if entry.repository and other.organization and other.url == entry.url and other.includes(entry.repository):
                reason = (
                    f"{entry.repository} is enrolled twice, also with the organisation {other.organization}; take this "
                    "out, or leave it out of the organisation's 'repositories'"
                )
                yield Problem(place, reason)


def _could_be(pattern: str, enrolment: Enrolment) -> bool:
    """Return whether a repository of an enrolment could match. Of patterns on both sides only the owner is compared."""
    owner = pattern.partition("/")[0].lower()
    if enrolment.repository and not set(pattern) & set("*?"):
        return pattern.lower() == enrolment.repository.lower()
    return bool(set(owner) & set("*?")) or owner == enrolment.owner.lower()
