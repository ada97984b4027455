"""Metrics for Prometheus, read from the inventory and the loops when they are asked for: nothing to keep up to date.

Anybody may ask for them, and an exposition of 8,000 GPUs is most of a second of CPU. So it is made once for all
requests within a second.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard import installed_version
from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.freshness import is_late
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.inventory.web.presenter import count_states
from gpuyard.model.gpu import Gpu, GpuState
from gpuyard.runtime.control_loops import LoopStatus
from gpuyard.web.prepared_body import PreparedBody


class InventoryCollector(Collector):
    def __init__(self, sources: InventoryContext, streams: Callable[[], int], hosts: bool) -> None:
        self._sources, self._streams, self._hosts = sources, streams, hosts

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("gpuyard_build", "The running version.", {"version": installed_version()})
        view = self._sources.inventory.latest()
        if view:  # until then nothing is known, and a zero would say that no GPU is free
            yield from _of_view(view, self._sources.gpus, self._hosts)
            if self._hosts:
                yield _of_gpus(view)
        yield from _of_loops(self._sources.driver.statuses())
        yield GaugeMetricFamily("gpuyard_portal_streams", "Pages open with a live feed.", self._streams())


def registry(sources: InventoryContext, streams: Callable[[], int], hosts: bool, *more: Collector) -> CollectorRegistry:
    """Return a registry of its own, so that two apps in one process do not meet. `hosts`: whether hosts are named."""
    own = CollectorRegistry()
    for collector in (InventoryCollector(sources, streams, hosts), *more):
        own.register(collector)
    ProcessCollector(registry=own)
    return own


class Exposition:
    """The metrics of a registry in Prometheus' text format, made at most once in `age` seconds."""

    def __init__(self, registry: CollectorRegistry, age: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._registry, self._age, self._clock = registry, age, clock
        self._making = asyncio.Lock()
        self._made: PreparedBody | None = None
        self._made_at = 0.0

    async def latest(self) -> PreparedBody:
        """Return the text. While it is being made, further requests wait for it in the event loop and hold no
        thread."""
        async with self._making:
            if self._made is None or self._clock() - self._made_at >= self._age:
                self._made = await asyncio.to_thread(self._make)
                self._made_at = self._clock()
            return self._made

    def _make(self) -> PreparedBody:
        return PreparedBody(generate_latest(self._registry), CONTENT_TYPE_LATEST)


def _of_view(view: InventoryView, gpus: Iterable[Gpu], hosts: bool) -> Iterator[Metric]:
    groups: dict[tuple[str, str, str], list[GpuState]] = {_labels(gpu, hosts): [] for gpu in gpus}
    for status in view.statuses:
        groups.setdefault(_labels(status.gpu, hosts), []).append(status.state)
    metric = GaugeMetricFamily(
        "gpuyard_gpus", "GPUs by state; a state that no GPU is in is 0.", labels=["pool", "host", "model", "state"]
    )
    for labels, states in sorted(groups.items()):
        for state, count in count_states(states).items():
            metric.add_metric([*labels, state.value], count)
    yield metric
    yield GaugeMetricFamily(
        "gpuyard_view_timestamp_seconds", "When the cloud was last looked at.", view.taken_at.timestamp()
    )


def _of_gpus(view: InventoryView) -> Metric:
    metric = GaugeMetricFamily(
        "gpuyard_gpu_state", "1 for the state that a GPU is in.", labels=["pool", "host", "address", "state"]
    )
    for status in view.statuses:
        metric.add_metric([status.gpu.pool, status.gpu.host, status.gpu.address, status.state.value], 1)
    return metric


def _labels(gpu: Gpu, hosts: bool) -> tuple[str, str, str]:
    return gpu.pool, gpu.host if hosts else "", gpu.model


def _of_loops(loops: Iterable[LoopStatus]) -> Iterator[Metric]:
    success = GaugeMetricFamily(
        "gpuyard_loop_last_success_timestamp_seconds", "End of the last good run; 0: none yet.", labels=["loop"]
    )
    failures = GaugeMetricFamily("gpuyard_loop_failures", "Failed runs since the last good one.", labels=["loop"])
    seconds = GaugeMetricFamily("gpuyard_loop_run_seconds", "How long the last run took.", labels=["loop"])
    runs = CounterMetricFamily("gpuyard_loop_runs", "Runs since the start, good and failed.", labels=["loop"])
    lag = GaugeMetricFamily(
        "gpuyard_loop_lag_seconds",
        "How much longer ago than its period the last good run ended; a loop without one has none.",
        labels=["loop"],
    )
    late = GaugeMetricFamily(
        "gpuyard_loop_late",
        "1: its last good run is too long ago, or there was none; with sync or bookings the portal is not ready.",
        labels=["loop"],
    )
    for loop in loops:
        if loop.age is not None:
            lag.add_metric([loop.name], max(0.0, loop.age - loop.period))
        late.add_metric([loop.name], is_late(loop))
        success.add_metric([loop.name], loop.last_success.timestamp() if loop.last_success else 0)
        failures.add_metric([loop.name], loop.failures)
        seconds.add_metric([loop.name], loop.last_seconds)
        runs.add_metric([loop.name], loop.iterations)
    yield from (success, failures, seconds, runs, lag, late)
