"""Checks what the apps of a site may do at GitHub, when the site is started and every hour, and logs what is
missing."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError
from gpuyard.runners.permissions import MissingPermission, missing
from gpuyard.site.runner_rules import SiteRunners

LOG = logging.getLogger(__name__)


class PermissionCheck:
    """The check for one site. One run at a time; `problems` may be read by any thread."""

    def __init__(self, site: SiteRunners, clients: Mapping[str, GitHubClient]) -> None:
        self._site, self._clients = site, clients
        self._missing: Mapping[str, tuple[MissingPermission, ...]] = {}

    def run(self) -> None:
        """Ask about every app. Raises GitHubError when one could not be asked, after the others were."""
        before, problem = self._missing, None
        latest = dict(before)
        for scope, client in self._clients.items():
            try:
                granted = client.granted()
            except GitHubError as error:
                problem = error
                continue
            latest[scope] = () if granted is None else tuple(missing(client.enrolment, self._site, granted))
            for missing_permission in latest[scope]:
                if missing_permission not in before.get(scope, ()):
                    LOG.warning("%s", missing_permission)
        self._missing = latest
        if problem is not None:
            raise problem

    def problems(self, scope: str) -> str:
        """Return why jobs of an enrolment get no runners, by what its app lacks; empty when it has what is
        essential."""
        return "; ".join(
            str(missing_permission)
            for missing_permission in self._missing.get(scope, ())
            if missing_permission.permission.essential
        )
