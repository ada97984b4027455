"""Metrics of operation: requests, calls to OpenStack, and the ledger of bookings with its deliveries and reclaims."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.reclaim import RULES
from gpuyard.bookings.records import LiveBookings
from gpuyard.dashboard.sources import Sources
from gpuyard.database.errors import StoreError
from gpuyard.model.booking import BookingKind, BookingState, ReclaimAction
from gpuyard.model.booking_life import OPEN, TAKES_LANES
from gpuyard.model.counts import Durations
from gpuyard.runtime.leader_roles import BOOKINGS, RUNNERS
from gpuyard.server.tallies import Tallies
from gpuyard.web.requests import RequestCounts

GIVES_BACK = frozenset({ReclaimAction.SHELVE, ReclaimAction.DELETE, ReclaimAction.SNAPSHOT_AND_DELETE})


class RequestCollector(Collector):
    """Metrics of every portal: requests to it, and its calls to OpenStack."""

    def __init__(self, requests: RequestCounts, tallies: Tallies) -> None:
        self._requests, self._tallies = requests, tallies

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "gpuyard_http_requests",
            "Requests to the portal since the start, by route as the API has it and status; 429: too many.",
            labels=["method", "route", "status"],
        )
        for labels, count in sorted(self._requests.outcomes.all().items()):
            requests.add_metric(labels, count)
        yield requests
        words = "From a request until its answer began, since the start."
        yield _histogram("gpuyard_http_request_seconds", words, "", {"": self._requests.seconds})
        calls = CounterMetricFamily(
            "gpuyard_openstack_calls",
            "Calls to OpenStack since the start, by outcome: good, refused (4xx), failed (5xx), unanswered.",
            labels=["service", "outcome"],
        )
        for labels, count in sorted(self._tallies.cloud.outcomes().items()):
            calls.add_metric(labels, count)
        yield calls
        words = "How long calls to OpenStack took, since the start."
        yield _histogram("gpuyard_openstack_call_seconds", words, "service", self._tallies.cloud.seconds())


class LedgerCollector(Collector):
    """Metrics of a site with bookings."""

    def __init__(self, sources: Sources, ledger: Ledger, tallies: Tallies, details: bool) -> None:
        """`details`: whether channels are named; else all of a kind count together, as ``webhook``."""
        self._now, self._ledger, self._tallies, self._details = sources.now, ledger, tallies, details
        self._roles = (BOOKINGS, RUNNERS) if sources.runners is not None else (BOOKINGS,)

    def collect(self) -> Iterator[Metric]:
        words = (
            "How long the answer to a wish for a booking took, since the start; taken: booked, waiting or requested."
        )
        yield _histogram("gpuyard_admission_seconds", words, "outcome", self._ledger.admissions.seconds())
        led, mine = (
            self._ledger.upkeep.leadership.led_roles(),
            "1: of several portals on one database this one does the work.",
        )
        # Its name is from before roles were called so; alerts and dashboards have it.
        leads = GaugeMetricFamily("gpuyard_turn", mine, labels=["turn"])
        for name in self._roles:
            leads.add_metric([name], name in led)
        yield leads
        yield self._of_deliveries()
        reclaims = CounterMetricFamily(
            "gpuyard_reclaim_steps",
            "What was done about servers that keep GPUs without a booking, since the start; failed: OpenStack refused.",
            labels=["step", "rule", "outcome"],
        )
        for labels, count in sorted(self._tallies.reclaims.all().items()):
            reclaims.add_metric(labels, count)
        yield reclaims
        try:
            live, now = self._ledger.live(), self._now()
            yield from _of_bookings(self._ledger.book.pools, live, now)
            yield from self._of_outbox(now)
            yield from self._of_overstays(now)
        except StoreError:  # the other metrics say that something is wrong
            return

    def _of_deliveries(self) -> Metric:
        counts: Counter[tuple[str, str]] = Counter()
        for (channel, outcome), count in self._tallies.told.all().items():
            counts[self._shown(channel), outcome] += count
        deliveries = CounterMetricFamily(
            "gpuyard_deliveries",
            "Tries to tell people and programs of an event since the start; put_off: it is tried again.",
            labels=["channel", "outcome"],
        )
        for labels, count in sorted(counts.items()):
            deliveries.add_metric(labels, count)
        return deliveries

    def _of_outbox(self, now: datetime) -> Iterator[Metric]:
        many = GaugeMetricFamily(
            "gpuyard_deliveries_waiting", "Events that a channel has still to tell.", labels=["channel"]
        )
        oldest = GaugeMetricFamily(
            "gpuyard_deliveries_oldest_seconds", "How long ago the first of them happened.", labels=["channel"]
        )
        waiting_by_channel: dict[str, tuple[int, float]] = defaultdict(lambda: (0, 0.0))
        for channel, (count, first) in self._ledger.upkeep.outbox.waiting().items():
            before, age = waiting_by_channel[self._shown(channel)]
            waiting_by_channel[self._shown(channel)] = before + count, max(age, _age(now, first))
        for channel, (count, age) in sorted(waiting_by_channel.items()):
            many.add_metric([channel], count)
            oldest.add_metric([channel], age)
        yield from (many, oldest)

    def _of_overstays(self, now: datetime) -> Iterator[Metric]:
        overstays = self._ledger.upkeep.records.open_overstays()
        by_rule = Counter((overstay.pool, overstay.rule) for overstay in overstays)
        late = [
            _age(now, overstay.due) for overstay in overstays if not overstay.dry_run and overstay.action in GIVES_BACK
        ]
        open_ = GaugeMetricFamily(
            "gpuyard_reclaim_cases", "Servers that keep GPUs without a booking, by the rule.", labels=["pool", "rule"]
        )
        for pool in self._ledger.book.pools:
            for rule in RULES:
                open_.add_metric([pool, rule], by_rule[pool, rule])
        yield open_
        yield GaugeMetricFamily(
            "gpuyard_reclaim_overdue_seconds",
            "For how long a server keeps its GPU after the time at which it was to be taken; the longest.",
            max(late, default=0.0),
        )

    def _shown(self, channel: str) -> str:
        """Addresses of webhooks are other people's."""
        return channel if self._details else channel.partition(" ")[0]


def _of_bookings(pools: Sequence[str], live: list[LiveBookings], now: datetime) -> Iterator[Metric]:
    live_by_key = {(record.pool, record.kind, record.state): record for record in live}
    labels = ["pool", "kind", "state"]
    bookings = GaugeMetricFamily(
        "gpuyard_bookings", "Bookings and what else takes GPUs of a pool, that are not over, by state.", labels=labels
    )
    gpus = GaugeMetricFamily("gpuyard_booking_gpus", "GPUs that these are for.", labels=labels)
    oldest = GaugeMetricFamily(
        "gpuyard_waitlist_oldest_seconds",
        "How long the oldest booking of a pool's waitlist has waited.",
        labels=["pool"],
    )
    for pool in pools:
        for kind in BookingKind:
            for state in sorted(OPEN if kind is BookingKind.BOOKING else TAKES_LANES):
                entry = live_by_key.get((pool, kind, state))
                bookings.add_metric([pool, kind.value, state.value], entry.bookings if entry else 0)
                gpus.add_metric([pool, kind.value, state.value], entry.gpus if entry else 0)
        first = live_by_key.get((pool, BookingKind.BOOKING, BookingState.WAITING))
        oldest.add_metric([pool], _age(now, first.oldest if first else None))
    yield from (bookings, gpus, oldest)


def _age(now: datetime, then: datetime | None) -> float:
    return max(0.0, (now - then).total_seconds()) if then else 0.0


def _histogram(name: str, words: str, label: str, durations_by_value: Mapping[str, Durations]) -> Metric:
    """By the values of `label`; empty: it has none."""
    metric = HistogramMetricFamily(name, words, labels=[label] if label else [])
    for value, durations in durations_by_value.items():
        metric.add_metric([value] if label else [], *durations.read())
    return metric
