"""Sources of the portal's pages, API and metrics about runners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.runners.overview import RunnerOverviewCache
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import SiteRunners


@dataclass(frozen=True)
class RunnerSources:
    """The sources of a site that has runners for GitHub jobs."""

    site: SiteRunners
    store: RunnerStore
    overview: RunnerOverviewCache
    kept: Callable[[], None] = lambda: None
    """Called, from any thread, when a webhook has been stored, to wake the intake."""
