"""The part of the portal for usage: the API of reports and budgets, and the metrics of history."""

from __future__ import annotations

from collections.abc import Iterable

from fastapi import FastAPI
from prometheus_client.registry import Collector

from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.web import usage_api
from gpuyard.usage.web.history_metrics import HistoryCollector
from gpuyard.web.capability import Capability


class UsageCapability(Capability):
    """Usage in the portal of a site that keeps the history of its GPUs. Without `accounting` it only gives metrics."""

    def __init__(self, context: InventoryContext, history: History, accounting: AccountingService | None) -> None:
        self._context, self._history, self._accounting = context, history, accounting
        self.tags = (usage_api.TAG,) if accounting is not None else ()

    def install(self, app: FastAPI) -> None:
        if self._accounting is not None:
            usage_api.install(app, self._accounting, self._context.settings.others)

    def collectors(self) -> Iterable[Collector]:
        yield HistoryCollector(self._history, self._accounting, sorted({gpu.pool for gpu in self._context.gpus}))
