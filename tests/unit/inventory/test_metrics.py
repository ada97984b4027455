"""What a site's metrics say of requests, of calls to OpenStack, of bookings and of what follows from them."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.records import Overstay
from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.web.metrics import Exposition
from gpuyard.model.booking import ReclaimAction
from gpuyard.model.counts import Counts, Durations
from gpuyard.notifications.delivery import message_loops
from gpuyard.openstack.calls import CloudCalls
from gpuyard.openstack.errors import CloudError
from gpuyard.server.app import create_app
from gpuyard.server.tallies import Tallies
from gpuyard.site.booking_rules import SiteBooking
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.reckoning import one_tariff
from gpuyard.usage.records import Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore
from gpuyard.web.prepared_body import accepts_gzip
from gpuyard.web.store import PortalStore
from tests.support.accounting import accounting_site
from tests.support.agent_portals import AgentPortal, agent_portal, report, sent
from tests.support.inventories import GPUS, LEADER_A, LONE, driver, filled
from tests.support.ledgers import ADA, NOON, Clock, ask, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal, booking_portal, limits_stand_still
from tests.support.scripted_http import ScriptedAnswer, scripted_http
from tests.support.small_clouds import cloud_at

SHOWN = replace(ROOMY, anonymous_details=True)


def read(client: TestClient) -> dict[str, dict[tuple[tuple[str, str], ...], float]]:
    """Sample's name -> its labels, by name -> value."""
    values_by_name: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for family in text_string_to_metric_families(client.get("/metrics").text):
        for sample in family.samples:
            values_by_name.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
    return values_by_name


def of(**labels: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(labels.items()))


def client_of(portal: BookingPortal, tallies: Tallies | None = None, *, details: bool = True) -> TestClient:
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test",
            gpus=GPUS,
            now=portal.clock,
            ledger=portal.ledger,
            sessions=portal.store,
            people=portal.people,
            settings=replace(ROOMY, anonymous_details=details),
        ),
        ["testserver"],
        tallies=tallies,
    )
    return TestClient(app, raise_server_exceptions=False)


# Counting


@given(st.lists(st.floats(0, 100)))
def test_a_histogram_is_what_it_was_told(seconds: list[float]) -> None:
    durations = Durations((1.0, 10.0))
    for duration in seconds:
        durations.add(duration)
    buckets, total = durations.read()
    assert [name for name, _ in buckets] == ["1.0", "10.0", "+Inf"]
    assert [count for _, count in buckets] == [sum(x <= most for x in seconds) for most in (1, 10, float("inf"))]
    assert total == pytest.approx(sum(seconds))


def test_nothing_is_lost_when_many_count() -> None:
    counts, durations = Counts([("a",), ("b",)]), Durations()

    def count() -> None:
        for _ in range(2000):
            counts.add("a")
            durations.add(0.01)

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counts.all() == {("a",): 8000, ("b",): 0}
    assert durations.read()[0][-1] == ("+Inf", 8000)


# Requests


def test_requests_are_counted_by_route_and_never_by_what_is_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits_stand_still(monkeypatch)
    portal = booking_portal(tmp_path, settings=replace(SHOWN, reads=2))
    client = portal.program(ADA)
    for _ in range(3):
        client.get("/v1/bookings/secret-id")
    client.get("/v1/secret-path")
    client.request("BREW", "/v1/gpus")
    TestClient(portal.app).get("/ical/secret-feed.ics")
    TestClient(portal.app).get("/v1/bookings")
    metrics = read(TestClient(portal.app))
    requests = metrics["gpuyard_http_requests_total"]
    assert requests[of(method="GET", route="/v1/bookings/{id}", status="404")] == 2
    assert requests[of(method="GET", route="/v1/bookings/{id}", status="429")] == 1, "a limit of rate"
    assert requests[of(method="GET", route="", status="429")] == 1
    assert {dict(request)["method"] for request in requests} == {"GET", "other"}
    assert requests[of(method="GET", route="/ical/{secret}.ics", status="404")] == 1
    assert requests[of(method="GET", route="/v1/bookings", status="401")] == 1
    assert "secret-" not in json.dumps([*map(str, requests)])
    assert metrics["gpuyard_http_request_seconds_count"][()] == sum(requests.values())


# OpenStack


def test_calls_to_openstack_are_counted_by_what_became_of_them(tmp_path: Path) -> None:
    answers = [
        ScriptedAnswer(200, {"servers": []}),
        ScriptedAnswer(404, {}),
        ScriptedAnswer(503, {}),
        ScriptedAnswer(raw=lambda taken: taken.close()),
    ]
    counted = CloudCalls()
    with scripted_http() as http:
        http.on("GET", "/servers", *answers)
        api = cloud_at(http.url, counted)
        api.get("compute", "/servers")
        for _ in range(3):
            with pytest.raises(CloudError):
                api.request("GET", "compute", "/servers", timeout=5)
    client = client_of(booking_portal(tmp_path), Tallies(cloud=counted))
    metrics = read(client)
    calls = {key: value for key, value in metrics["gpuyard_openstack_calls_total"].items() if value}
    assert calls == {
        of(service="compute", outcome="good"): 1,
        of(service="compute", outcome="refused"): 1,
        of(service="compute", outcome="failed"): 1,
        of(service="compute", outcome="unanswered"): 1,
    }
    assert metrics["gpuyard_openstack_calls_total"][of(service="placement", outcome="failed")] == 0, (
        "a rate begins at 0"
    )
    assert metrics["gpuyard_openstack_call_seconds_count"][of(service="compute")] == 4


# Bookings


def test_bookings_are_counted_by_state_and_answers_by_how_long_they_took(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    ledger, client = portal.ledger, client_of(portal)
    portal.clock.now = NOON
    ledger.create(ask(gpus=2, pool="t4"), ADA)
    ledger.create(ask(gpus=2, pool="t4"), ADA, wait=True)
    with pytest.raises(RefusedError):
        ledger.create(ask(gpus=2, pool="t4"), ADA)
    portal.clock.forward(minutes=10)
    metrics = read(client)
    assert metrics["gpuyard_bookings"][of(pool="t4", kind="booking", state="confirmed")] == 1
    assert metrics["gpuyard_bookings"][of(pool="t4", kind="booking", state="waiting")] == 1
    assert metrics["gpuyard_booking_gpus"][of(pool="t4", kind="booking", state="waiting")] == 2
    assert metrics["gpuyard_bookings"][of(pool="v100", kind="runner", state="active")] == 0, "no series comes and goes"
    assert metrics["gpuyard_waitlist_oldest_seconds"] == {of(pool="t4"): 600, of(pool="v100"): 0}
    assert metrics["gpuyard_admission_seconds_count"] == {
        of(outcome="taken"): 2, of(outcome="refused"): 1, of(outcome="failed"): 0
    }  # fmt: skip
    assert "ada" not in client.get("/metrics").text


def test_reclaims_that_are_late_are_seen(tmp_path: Path) -> None:
    portal, reclaims = booking_portal(tmp_path), Counts()
    client = client_of(portal, Tallies(reclaims=reclaims))
    records, due = portal.ledger.upkeep.records, NOON - timedelta(minutes=5)
    case = Overstay("s1", "vm", "t4", "u", "p", "must_book", ReclaimAction.SHELVE, NOON, due=due, dry_run=False)
    records.put_overstay(case)
    records.put_overstay(replace(case, server_id="s2", dry_run=True, due=due - timedelta(hours=1)))
    records.put_overstay(replace(case, server_id="s3", action=ReclaimAction.WARN, due=due - timedelta(hours=1)))
    reclaims.add("act", "must_book", "failed")
    metrics = read(client)
    assert metrics["gpuyard_reclaim_cases"][of(pool="t4", rule="must_book")] == 3
    assert metrics["gpuyard_reclaim_overdue_seconds"] == {(): 300}, "what only warns is never late"
    assert metrics["gpuyard_reclaim_steps_total"] == {of(step="act", rule="must_book", outcome="failed"): 1}
    records.put_overstay(replace(case, cleared=NOON))
    assert read(client)["gpuyard_reclaim_overdue_seconds"] == {(): 0}


HOOK = "https://hooks.example.org/in"


@pytest.mark.parametrize("details", [False, True])
def test_messages_that_wait_are_counted_by_channel(tmp_path: Path, details: bool) -> None:
    portal, outcome_counts = booking_portal(tmp_path), Counts()
    site: Any = SimpleNamespace(site="lab", booking=SiteBooking.model_validate({"webhooks": [{"url": HOOK}]}))
    message_loops(
        portal.ledger, site, {"GPUYARD_WEBHOOK_SECRET": "s3cret"}, portal.clock, outcome_counts=outcome_counts
    )
    client, channel = (
        client_of(portal, Tallies(told=outcome_counts), details=details),
        next(iter(outcome_counts.all()))[0],
    )
    assert set(read(client)["gpuyard_deliveries_total"].values()) == {0}
    portal.ledger.upkeep.outbox.take_undelivered(channel, portal.clock())
    portal.ledger.create(ask(), ADA)
    portal.clock.forward(minutes=2)
    outcome_counts.add(channel, "given_up")
    metrics, shown = read(client), channel if details else "webhook"
    assert metrics["gpuyard_deliveries_waiting"] == {of(channel=shown): 1}
    assert metrics["gpuyard_deliveries_oldest_seconds"] == {of(channel=shown): 120}
    assert metrics["gpuyard_deliveries_total"][of(channel=shown, outcome="given_up")] == 1
    assert ("hooks.example.org" in client.get("/metrics").text) is details


# Agents


@pytest.fixture
def agents(tmp_path: Path) -> AgentPortal:
    return agent_portal(tmp_path, settings=SHOWN)


def test_what_agents_say_has_the_names_of_dcgm(agents: AgentPortal) -> None:
    client = TestClient(agents.app)
    token = agents.token("s2")
    assert read(client)["gpuyard_agents"] == {of(state="heard"): 0, of(state="silent"): 1}
    row: list[int | None] = [40, 25, 61, 250, 3, 2, 0]
    assert client.post("/v1/agents/samples", content=report(row), headers=sent(token)).status_code == 204
    labels = of(gpu=LONE.address, Hostname=LONE.host, modelName=LONE.model, pool=LONE.pool)
    metrics = {name: values for name, values in read(client).items() if name.startswith("DCGM_")}
    assert metrics == {
        "DCGM_FI_DEV_GPU_UTIL": {labels: 40},
        "DCGM_FI_DEV_FB_USED_PERCENT": {labels: 0.25},
        "DCGM_FI_DEV_GPU_TEMP": {labels: 61},
        "DCGM_FI_DEV_POWER_USAGE": {labels: 250},
        "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": {labels: 3},
        "DCGM_FI_DEV_ROW_REMAP_FAILURE": {labels: 1},
    }
    agents.clock.forward(minutes=10)
    after = read(client)
    assert "DCGM_FI_DEV_GPU_UTIL" not in after, "what was said long ago is not said again"
    assert after["gpuyard_agents"] == {of(state="heard"): 0, of(state="silent"): 1}


def test_a_guest_can_say_something_of_its_own_gpus_only(agents: AgentPortal) -> None:
    client, token = TestClient(agents.app), agents.token("s2")
    nothing: list[int | None] = [None] * 7
    rows: list[list[int | None]] = [nothing, [10, 10, 10, 10, 0, 0, 0], [20, 10, 10, 10, 0, 0, 0]]
    client.post("/v1/agents/samples", content=report(*rows), headers=sent(token))
    gpu_addresses = {dict(labels)["gpu"] for labels in read(client).get("DCGM_FI_DEV_GPU_UTIL", {})}
    assert gpu_addresses <= {LONE.address}
    agents.cloud.has = {"s2": [LEADER_A]}
    assert not read(client).get("DCGM_FI_DEV_GPU_UTIL"), "the card was seen in another GPU's place"


def test_where_hosts_are_not_named_agents_name_none(tmp_path: Path) -> None:
    portal = agent_portal(tmp_path, settings=ROOMY)
    client = TestClient(portal.app)
    assert client.post("/v1/agents/samples", content=report(), headers=sent(portal.token("s2"))).status_code == 204
    text = client.get("/metrics").text
    assert "DCGM_" not in text
    assert LONE.host not in text
    assert 'gpuyard_agents{state="heard"} 1.0' in text


# What was written down


def test_the_last_day_that_is_over_and_budgets_are_told(tmp_path: Path) -> None:
    clock = Clock(NOON)
    ledger = open_ledger(tmp_path, None, clock)
    store, day = HistoryStore(ledger.database), NOON.replace(hour=0) - timedelta(days=1)
    server = Tenure(kind="booking", booking="b", server="s", project="physics", project_id="p-physics")
    used = Interval("epyc", LONE.address, "v100", TrackState.CLAIMED, day, day + timedelta(hours=6), tenure=server)
    rest = Interval("epyc", LONE.address, "v100", TrackState.FREE, day + timedelta(hours=6), None)
    assert store.write(None, day, day, {}, [])
    assert store.write(day, NOON, NOON, {}, [used, rest])
    sum_up(store, "UTC", one_tariff, 5)
    projects = {name: {"budget": {"gpu_hours": 7}} for name in ("physics", "art")}
    site = accounting_site({"warn_at": [80]}, booking={"timezone": "UTC"}, projects=projects)
    service = AccountingService(site, ledger, History(store, "UTC"), clock)
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test",
            gpus=GPUS,
            now=clock,
            ledger=ledger,
            sessions=PortalStore(ledger.database),
            people=people(),
            settings=SHOWN,
            history=service.history,
            accounting=service,
        ),
        ["testserver"],
    )
    client = TestClient(app)
    assert set(read(client)["gpuyard_budgets_reached"].values()) == {0}
    service.run()
    metrics = read(client)
    assert metrics["gpuyard_history_seen_timestamp_seconds"] == {(): NOON.timestamp()}
    seconds = metrics["gpuyard_day_gpu_seconds"]
    assert seconds[of(pool="v100", use="booked use")] == 6 * 3600
    assert seconds[of(pool="v100", use="idle")] == 18 * 3600
    assert sum(seconds.values()) == 24 * 3600
    assert metrics["gpuyard_budgets_reached"] == {of(percent="80"): 1, of(percent="100"): 0}
    assert "physics" not in client.get("/metrics").text


def test_all_who_ask_within_a_second_get_the_same_exposition() -> None:
    time, scrapes = [10.0], []

    class Scrapes(Collector):
        def collect(self) -> Iterator[Metric]:
            scrapes.append(time[0])
            yield GaugeMetricFamily("scrapes", "", len(scrapes))

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Scrapes())
    del scrapes[:]  # registering may collect
    exposition = Exposition(registry, age=1.0, clock=lambda: time[0])

    async def ask() -> None:
        for now in (10.0, 10.5, 11.0):
            time[0] = now
            await asyncio.gather(*(exposition.latest() for _ in range(20)))

    asyncio.run(ask())
    assert scrapes == [10.0, 11.0]


def test_metrics_are_compressed_for_those_who_accept_it(tmp_path: Path) -> None:
    client = booking_portal(tmp_path).browser().client
    plain = client.get("/metrics", headers={"Accept-Encoding": "identity"})
    packed = client.get("/metrics", headers={"Accept-Encoding": "gzip"})
    assert ("content-encoding" in plain.headers, packed.headers["content-encoding"]) == (False, "gzip")
    assert "gpuyard_gpus" in plain.text
    assert "gpuyard_gpus" in packed.text


@pytest.mark.parametrize(
    ("accepted", "compressed"),
    [
        ("gzip", True),
        ("deflate, GZIP;q=0.5", True),
        ("br;q=1.0, gzip; q=0.001, *;q=0", True),
        ("*", True),
        ("", False),
        ("gzip;q=0", False),
        ("gzip;q=0.000, identity", False),
        ("*;q=0", False),
        ("gzip;q=0, *", False),
        ("x-gzip-not", False),
        ("gzip;q=x", False),
    ],
)
def test_who_forbids_compression_gets_none(accepted: str, compressed: bool) -> None:
    """By RFC 9110, 12.5.3 and 12.4.2."""
    assert accepts_gzip(accepted) is compressed
