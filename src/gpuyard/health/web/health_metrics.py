"""Metrics of the health of GPUs: states, signals, scrubs and acceptances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from itertools import pairwise

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.database.errors import StoreError
from gpuyard.health.acceptance import TryState
from gpuyard.health.controllers.health_service import GpuView
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.records import HealthEvent, HealthState
from gpuyard.health.repeats import is_failure
from gpuyard.model.counts import Durations
from gpuyard.model.signals import SIGNALS
from gpuyard.web.metric_tallies import BOUNDS, Tally
from gpuyard.web.outcomes import Outcomes

MOST_EVENTS = 5000
"""Of two hours: more are not counted."""
LONGEST_SCRUB = timedelta(hours=1)


class HealthCollector(Collector):
    def __init__(self, services: HealthServices, details: bool, intakes: Sequence[Outcomes] = ()) -> None:
        """`details`: whether hosts and GPUs are named; else all of a pool count together. `intakes`: outcomes of the
        reports of hosts and agents."""
        self._service, self._acceptance = services.gpus, services.acceptance
        self._details, self._intakes = details, intakes
        now = services.gpus.now()
        self._quarantines, self._scrubs = Tally[str](now), Tally[float](now)
        self._by_signal: Counter[str] = Counter()
        self._seconds = Durations(BOUNDS)

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "gpuyard_health_requests",
            "What hosts and agents in guests have sent since the start, by what became of it: taken, or the problem.",
            labels=["what", "outcome"],
        )
        for intake in self._intakes:
            for outcome, count in sorted(intake.counts().items()):
                requests.add_metric([intake.what, outcome], count)
        yield requests
        try:
            views, now = self._service.view(), self._service.now()
            counts = self._acceptance.tries.counts() if self._acceptance is not None else None
            begin = self._quarantines.since(now)
            events = self._service.store.events(limit=MOST_EVENTS, since=begin - LONGEST_SCRUB)
        except StoreError:  # the other metrics say that something is wrong
            return
        yield from self._of_gpus(views)
        if counts is not None:
            tries = GaugeMetricFamily(
                "gpuyard_gpu_acceptances", "Acceptances of GPUs by servers, by where they stand.", labels=["state"]
            )
            for state in TryState:
                tries.add_metric([state.value], counts.get(state, 0))
            yield tries
        yield from self._of_events([event for event in events if event.time >= begin], events, now)

    def _of_gpus(self, views: Sequence[GpuView]) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "gpuyard_gpu_health_state",
            "GPUs by their state of health; a GPU is in one.",
            labels=["pool", "host", "address", "state"],
        )
        named = [(view.health, self._details) for view in views]
        counts = Counter(
            (gpu.pool, gpu.host if all_ else "", gpu.address if all_ else "", gpu.state.value) for gpu, all_ in named
        )
        for labels, count in sorted(counts.items()):
            states.add_metric(list(labels), count)
        yield states
        trials = GaugeMetricFamily(
            "gpuyard_gpu_trial_state",
            "GPUs that signals on trial would have brought into a state, and nothing followed.",
            labels=["pool", "host", "address", "state"],
        )
        on_trial = Counter(
            (gpu.pool, gpu.host if all_ else "", gpu.address if all_ else "", gpu.trial.state.value)
            for gpu, all_ in named
            if gpu.trial is not None and gpu.trial.state is not HealthState.FINE
        )
        for labels, count in sorted(on_trial.items()):
            trials.add_metric(list(labels), count)
        yield trials
        yield GaugeMetricFamily(
            "gpuyard_gpus_undecided", "GPUs that should be kept back and are not: too much of their pool is.",
            sum(view.health.asked for view in views),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "gpuyard_gpus_not_heard_from", "GPUs whose host has not said for too long how they are.",
            sum(view.silent for view in views),
        )  # fmt: skip
        yield GaugeMetricFamily(
            "gpuyard_gpus_in_maintenance", "GPUs whose host somebody drains, works on or has checked.",
            sum(bool(view.maintenance) for view in views),
        )  # fmt: skip
        if self._details:
            yield from self._of_maintenances()
            heard = GaugeMetricFamily(
                "gpuyard_host_last_heard_timestamp_seconds", "When a host last said how its GPUs are; 0: never.",
                labels=["host"],
            )  # fmt: skip
            hosts = {view.health.host: view.heard for view in views}
            for host, at in sorted(hosts.items()):
                heard.add_metric([host], at.timestamp() if at else 0)
            yield heard

    def _of_maintenances(self) -> Iterator[Metric]:
        states = GaugeMetricFamily(
            "gpuyard_host_maintenance", "Hosts with a maintenance that is not over, by its state.",
            labels=["host", "state"],
        )  # fmt: skip
        ends = GaugeMetricFamily(
            "gpuyard_host_maintenance_end_timestamp_seconds",
            "When a host is to be back, as somebody has said last.",
            labels=["host"],
        )
        for maintenance in self._service.maintenances.open():
            states.add_metric([maintenance.host, maintenance.state.value], 1)
            ends.add_metric([maintenance.host], maintenance.promised.timestamp())
        yield states
        yield ends

    def _of_events(self, new: Sequence[HealthEvent], all_: Sequence[HealthEvent], now: datetime) -> Iterator[Metric]:
        bad = [(event.id, event.time, event.signal) for event in new if is_failure(event)]
        self._by_signal.update(self._quarantines.new(now, bad))
        for seconds in self._scrubs.new(now, scrubs(all_, self._scrubs.since(now))):
            self._seconds.add(seconds)
        quarantines = CounterMetricFamily(
            "gpuyard_gpu_quarantines", "GPUs that went bad since the start, by signal; empty: somebody's decision.",
            labels=["signal"],
        )  # fmt: skip
        for signal in ("", *SIGNALS):  # also those that were never seen: a rate needs a zero to begin from
            quarantines.add_metric([signal], self._by_signal[signal])
        yield quarantines
        buckets, total = self._seconds.read()
        yield HistogramMetricFamily(
            "gpuyard_gpu_scrub_seconds", "From the order to a host until a GPU was clean, since the start.",
            buckets=buckets, sum_value=total,
        )  # fmt: skip


def scrubs(events: Sequence[HealthEvent], since: datetime) -> list[tuple[int, datetime, float]]:
    """(id, when, seconds) of the scrubs that went well since then. `events`: the newest first."""
    of: dict[tuple[str, str], list[HealthEvent]] = {}
    for event in reversed(events):
        if event.before is not event.after:
            of.setdefault((event.host, event.address), []).append(event)
    return [
        (end.id, end.time, (end.time - start.time).total_seconds())
        for record in of.values()
        for start, end in pairwise(record)
        if start.after is HealthState.SCRUBBING and end.after is HealthState.CHECKED and end.time >= since
    ]
