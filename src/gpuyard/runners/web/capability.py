"""The portal's capability for runners: GitHub's webhooks, the API, the pages and the metrics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.types import ASGIApp

from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.runners.hook_secrets import HookSecrets
from gpuyard.runners.web import github_webhook, runner_pages, runners_api
from gpuyard.runners.web.github_webhook import Intake
from gpuyard.runners.web.runner_metrics import RunnerCollector
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.web.capability import Capability


class RunnersCapability(Capability):
    tags = ("runners",)

    def __init__(self, context: InventoryContext, runners: RunnerSources) -> None:
        self._context, self._runners = context, runners
        self._intake = Intake(
            runners.store.keep_deliveries,
            HookSecrets(runners.site.enrolments),
            runners.site.enrolments,
            context.now,
            runners.kept,
            context.settings.trusted_gateways,
        )

    @property
    def fast_paths(self) -> Mapping[str, ASGIApp]:
        return github_webhook.fast_paths(self._intake)

    def install(self, app: FastAPI) -> None:
        github_webhook.install(app, self._intake)
        runners_api.install(app, self._runners, self._context.now, self._context.settings.others)
        runner_pages.install(app, self._context, self._runners)

    def collectors(self) -> Iterable[Collector]:
        context, runners = self._context, self._runners
        details = runners.site.public or context.settings.anonymous_details
        pools = (gpu.pool for gpu in context.gpus)
        yield RunnerCollector(runners, self._intake.outcomes, context.now, details, pools)
