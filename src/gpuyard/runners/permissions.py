"""Permissions that gpuyard needs at GitHub: the one table, and what an app lacks for an enrolment. Pure.

Names and access are those of GitHub's API; which call needs which is in GitHub's page "Permissions required for GitHub
Apps". How-to guides have the same table, which a test compares.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from gpuyard.site.runner_rules import Enrolment, SiteRunners

ACCESS = {"": 0, "read": 1, "write": 2, "admin": 3}
ASKS_FOR_AUTHORS = frozenset({"members", "collaborators", "contributors"})


@dataclass(frozen=True)
class AppPermission:
    """A permission that an app or a fine-grained token may have."""

    name: str
    """Its name in GitHub's API."""
    access: str
    """``read`` or ``write``."""
    shown: str
    """Its name in GitHub's forms."""
    breaks: str
    """The consequence of its lack, in words."""
    needed: Callable[[Enrolment, SiteRunners], bool]
    essential: bool = True
    """Whether jobs get no runner without it; otherwise something else is missing."""


@dataclass(frozen=True)
class MissingPermission:
    """A permission that an app lacks for an enrolment."""

    enrolment: str
    permission: AppPermission

    def __str__(self) -> str:
        permission = self.permission
        return f"the app of {self.enrolment} lacks '{permission.shown}: {permission.access}': {permission.breaks}"


def _organization(enrolment: Enrolment, site: SiteRunners) -> bool:
    return enrolment.organization is not None


def _at_repositories(enrolment: Enrolment, site: SiteRunners) -> bool:
    return enrolment.repository is not None or enrolment.cirun


def _by_author(enrolment: Enrolment, site: SiteRunners) -> bool:
    stated = (site, *site.sets.values(), *site.repositories.values())
    return any(limits.forks in ASKS_FOR_AUTHORS for limits in stated)


PERMISSIONS = (
    AppPermission(
        "organization_self_hosted_runners", "write", "Organization permissions, Self-hosted runners",
        "jobs of scale sets get no runners", _organization,
    ),
    AppPermission(
        "administration", "write", "Repository permissions, Administration",
        "jobs with labels of .cirun.yml, and all of a repository that is enrolled by itself, get no runners: those are "
        "registered at the repository, so that no other repository's job can take them", _at_repositories,
    ),
    AppPermission(
        "actions", "read", "Repository permissions, Actions",
        "nobody knows who started a job and whether its code is from a fork, so it waits, and lost jobs are not found",
        lambda enrolment, site: True,
    ),
    AppPermission(
        "actions", "write", "Repository permissions, Actions",
        "runs of refused jobs are not cancelled ('cancel_refused')",
        lambda enrolment, site: enrolment.cancel_refused, essential=False,
    ),
    AppPermission(
        "contents", "read", "Repository permissions, Contents",
        ".cirun.yml, .cirun.global.yml and .access.yml of private repositories are not seen",
        lambda enrolment, site: enrolment.cirun,
    ),
    AppPermission(
        "members", "read", "Organization permissions, Members",
        "policies that name teams let nobody in",
        lambda enrolment, site: enrolment.organization is not None and enrolment.cirun, essential=False,
    ),
    AppPermission(
        "pull_requests", "read", "Repository permissions, Pull requests",
        "pull requests from forks of private repositories get no runners, as 'forks' asks who their author is",
        _by_author, essential=False,
    ),
    AppPermission(
        "statuses", "write", "Repository permissions, Commit statuses",
        "no commit says why its job waits ('statuses')",
        lambda enrolment, site: enrolment.statuses, essential=False,
    ),
)  # fmt: skip
"""GitHub adds 'Metadata: read' by itself. A token needs 'Webhooks: write', too, to ask for lost deliveries."""


def missing(enrolment: Enrolment, site: SiteRunners, granted: Mapping[str, str]) -> list[MissingPermission]:
    """Return the permissions that an app lacks. `granted`: name -> access, as GitHub reports it of the installation."""
    return [
        MissingPermission(enrolment.name, permission)
        for permission in PERMISSIONS
        if permission.needed(enrolment, site)
        and ACCESS.get(granted.get(permission.name, ""), 0) < ACCESS[permission.access]
    ]


def documented() -> dict[str, str]:
    """Return every permission that the guides tell an operator to grant: name -> access."""
    granted = {"metadata": "read"}
    for permission in PERMISSIONS:
        granted[permission.name] = max(granted.get(permission.name, ""), permission.access, key=ACCESS.__getitem__)
    return granted
