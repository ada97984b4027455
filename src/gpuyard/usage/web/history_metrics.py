"""Metrics of history: how far it goes, the uses of GPUs on the last day, and the budgets that projects have reached."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import date

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.database.errors import StoreError
from gpuyard.usage.accounts import UseKind, use_of
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.reckoning import DAY

ALL = 100
"""Percent of a budget."""


class HistoryCollector(Collector):
    def __init__(self, history: History, accounting: AccountingService | None, pools: Sequence[str]) -> None:
        self._history, self._accounting, self._pools = history, accounting, pools
        self._day: tuple[date, Counter[tuple[str, UseKind]]] | None = None

    def collect(self) -> Iterator[Metric]:
        try:
            extent = self._history.extent()
            day = self._sums(extent.rolled) if extent is not None and extent.rolled is not None else None
        except StoreError:  # the other metrics say that something is wrong
            return
        if extent is not None:
            yield GaugeMetricFamily(
                "gpuyard_history_seen_timestamp_seconds",
                "Until when it is written down who had which GPU.",
                extent.until.timestamp(),
            )
        if day is not None:
            yield self._of_day(day)
        if self._accounting is not None:
            yield _of_budgets(self._accounting)

    def _sums(self, day: date) -> Counter[tuple[str, UseKind]]:
        """They do not change any more, so they are read once."""
        if self._day is None or self._day[0] != day:
            totals: Counter[tuple[str, UseKind]] = Counter()
            for use_sum in self._history.sums(day, day + DAY, ("pool", "state", "kind")).sums:
                totals[use_sum.slice.pool, use_of(use_sum.slice.state, use_sum.slice.kind)] += use_sum.seconds
            self._day = day, totals
        return self._day[1]

    def _of_day(self, day: Counter[tuple[str, UseKind]]) -> Metric:
        seconds = GaugeMetricFamily(
            "gpuyard_day_gpu_seconds",
            "GPU-seconds of the last day that is over, by what GPUs were there for; they add up to all.",
            labels=["pool", "use"],
        )
        for pool in sorted({*self._pools, *(pool for pool, _ in day)}):
            for use in UseKind:
                seconds.add_metric([pool, use.value], day[pool, use])
        return seconds


def _of_budgets(accounting: AccountingService) -> Metric:
    reached = GaugeMetricFamily(
        "gpuyard_budgets_reached", "Projects that have used so many percent of their budget.", labels=["percent"]
    )
    for percent in sorted({*accounting.rules.warn_at, ALL}):
        reached.add_metric([str(percent)], sum(status.percent >= percent for status in accounting.statuses))
    return reached
