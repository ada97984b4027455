"""What the portal shows runners and their jobs from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.runners.overview import RunnerOverviewCache
from gpuyard.runners.store import RunnerStore
from gpuyard.site.runner_rules import SiteRunners


@dataclass(frozen=True)
class RunnerSources:
    """Of a site that has runners for GitHub jobs."""

    site: SiteRunners
    store: RunnerStore
    overview: RunnerOverviewCache
    kept: Callable[[], None] = lambda: None
    """Called, from any thread, when a webhook has been kept: somebody shall look."""
