"""What the portal answers over HTTP."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

import anyio
import anyio.to_thread
import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from gpuyard import installed_version
from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.gpu import GpuState
from gpuyard.runtime.control_loops import Driver, Loop
from gpuyard.server.app import create_app
from gpuyard.web.assets import assets, build
from tests.support.inventories import GPUS, HELD, LONE, NASTY, NOON, changed, claim, driver, filled, plain_sources
from tests.support.portals import ROOMY, booking_portal

API = ("/v1/gpus", "/v1/pools")
EVERYWHERE = (
    "/",
    "/v1",
    *API,
    "/status",
    "/healthz",
    "/readyz",
    "/metrics",
    "/openapi.json",
    "/static/live.js",
    "/nowhere",
)


def client(
    inventory: InventoryCache | None = None,
    loops: Driver | None = None,
    now: Callable[[], datetime] = lambda: NOON,
    hosts: Sequence[str] = ("testserver",),
) -> TestClient:
    app = create_app(
        plain_sources(inventory=inventory or filled(), driver=loops or driver(), site_name="test-site", now=now),
        hosts,
    )
    return TestClient(app, raise_server_exceptions=False)


# The page


def test_the_map_shows_every_gpu_with_its_state_in_words() -> None:
    html = client().get("/").text
    for gpu in GPUS:
        assert f'id="gpu-{gpu.host}-{gpu.address}"' in html
    for state in GpuState:
        assert f'<span class="chip is-{state.value}">{state.value}</span>' in html
    assert "<title>test-site · GPU map</title>" in html
    assert "as of <time" in html
    assert "12:03:10 UTC" in html


def test_the_map_shows_who_has_a_gpu_since_when() -> None:
    html = client().get("/").text
    since = '<time datetime="2026-11-21T07:03:10Z" title="since 2026-11-21 07:03:10 UTC" data-since>5 h</time>'
    assert since in html
    assert "<bdi>ada</bdi> in <bdi>physics</bdi>" in html
    assert "<bdi>training</bdi>" in html
    assert "for ada from 14:00" in html  # a reason


def test_names_that_users_choose_are_only_text() -> None:
    html = client().get("/").text
    assert NASTY not in html
    assert escape(NASTY, quote=False).replace("'", "&#39;") in html
    assert re.findall(r"<script[^>]*>", html) == re.findall(r'<script src="static/live.js\?v=\w+" defer>', html)


def test_every_text_of_the_cloud_is_escaped() -> None:
    nasty = claim(NASTY, NASTY)
    inventory = InventoryCache()
    inventory.publish(
        NOON, changed(LONE, GpuState.CLAIMED, NASTY, type(nasty)(NASTY, NASTY, NASTY, NASTY, NASTY, NOON))
    )
    html = client(inventory, driver(error=NASTY)).get("/").text
    assert "<script>" not in html
    assert html.count("alert(") == html.count("&lt;script&gt;alert(") >= 8


def test_the_page_does_without_scripts() -> None:
    assert '<noscript><meta http-equiv="refresh" content="30"></noscript>' in client().get("/").text


def test_the_page_before_anything_is_known() -> None:
    html = client(InventoryCache(), driver(runs=0)).get("/").text
    assert "Looking at the cloud" in html
    assert '<meta http-equiv="refresh" content="5">' in html
    assert "as of" not in html


def test_a_site_without_gpus() -> None:
    inventory = InventoryCache()
    inventory.publish(NOON, [])
    assert "The site has no GPUs." in client(inventory).get("/").text


def test_the_banner() -> None:
    page = client(loops=driver("refused")).get("/").text
    assert re.search(r"The cloud has not answered since .* UTC: ConnectionError: refused", page)
    assert 'class="notice"' not in client().get("/").text


@pytest.mark.parametrize("name", assets())
def test_assets_are_kept_for_ever_under_an_address_that_names_their_version(name: str) -> None:
    response = client().get(f"/static/{name}?v={build()}")
    assert response.status_code == 200
    assert "immutable" in response.headers["cache-control"]
    assert response.content == assets()[name].content


def test_no_asset_refers_to_another_site() -> None:
    for name, asset in assets().items():
        text = asset.content.decode().replace("http://www.w3.org/2000/svg", "")
        assert "//" not in re.sub(r"(?m)(^|\s)//.*$", "", text), name


# The API


def test_the_version_document() -> None:
    document = client().get("/v1").json()
    assert (document["id"], document["status"], document["version"]) == ("v1", "CURRENT", installed_version())
    subject = client()
    for link in document["links"]:
        assert subject.get(link["href"]).status_code == 200


def test_all_gpus() -> None:
    document = client().get("/v1/gpus").json()
    assert document["taken_at"] == "2026-11-21T12:03:10Z"
    assert document["generation"] == 1
    assert [gpu["host"] for gpu in document["gpus"]] == ["epyc"] * 6 + ["node10"] * 2 + ["node2"] * 2
    assert document["gpus"][0] == {
        "host": "epyc",
        "address": "0000:27:00.0",
        "state": "claimed",
        "reason": "",
        "pool": "v100",
        "model": "Tesla V100 PCIe 16GB",
        "ids": "10de:1db4",
        "group": 19,
        "role": "leader",
        "set": "A",
        "numa_node": 1,
        "server": {"id": "7f3c9a1e-0000", "name": "training", "status": "ACTIVE"},
        "project": "physics",
        "user": "ada",
        "since": "2026-11-21T07:03:10Z",
        "booking": None,
    }
    lost = document["gpus"][9]
    assert [lost[key] for key in ("group", "server", "project", "user", "since")] == [None] * 5


@pytest.mark.parametrize(
    ("query", "count"),
    [
        ("", 10),
        ("pool=v100", 6),
        ("pool=v100&pool=t4", 10),
        ("state=claimed", 3),
        ("state=claimed&host=epyc&pool=v100", 3),
        ("state=free&state=held", 3),
        ("state=claimed&pool=t4", 0),
    ],
)
def test_filters(query: str, count: int) -> None:
    assert len(client().get(f"/v1/gpus?{query}").json()["gpus"]) == count


@pytest.mark.parametrize(
    ("query", "reason"),
    [
        ("pool=v10", "pool: no GPU has pool 'v10'; there is v100, t4"),
        ("host=node1", "host: no GPU has host 'node1'; there is epyc, node10, node2"),
        ("state=idle", "state.0: Input should be 'free', 'claimed', "),
        ("stat=free", "stat: Extra inputs are not permitted"),
    ],
)
def test_a_misspelt_filter_is_an_error_and_not_an_empty_list(query: str, reason: str) -> None:
    response = client().get(f"/v1/gpus?{query}")
    problem = is_problem(response, 422)
    assert len(problem["reasons"]) == 1
    assert problem["reasons"][0].startswith(reason)


def test_pools() -> None:
    pools = client().get("/v1/pools").json()["pools"]
    assert [(pool["name"], pool["total"], pool["free"], pool["models"]) for pool in pools] == [
        ("v100", 6, 2, ["Tesla V100 PCIe 16GB"]),
        ("t4", 4, 0, ["Tesla T4"]),
    ]
    assert set(pools[0]["states"]) == {state.value for state in GpuState}
    assert sum(pools[0]["states"].values()) == 6


@pytest.mark.parametrize("path", API)
def test_a_client_that_has_it_already_is_told_so(path: str) -> None:
    inventory = filled()
    subject = client(inventory)
    etag = subject.get(path).headers["etag"]
    for known_etags in (etag, f'"other", {etag}'):
        response = subject.get(path, headers={"If-None-Match": known_etags})
        assert (response.status_code, response.content, response.headers["etag"]) == (304, b"", etag)
    inventory.publish(NOON + timedelta(seconds=1), inventory.latest().statuses)  # type: ignore[union-attr]
    assert subject.get(path, headers={"If-None-Match": etag}).status_code == 304  # nothing has changed
    inventory.publish(NOON, changed(HELD, GpuState.FREE))
    assert subject.get(path, headers={"If-None-Match": etag}).status_code == 200


def test_a_generation_of_another_process_is_not_taken_for_ours() -> None:
    etag = client().get("/v1/gpus").headers["etag"]
    assert client().get("/v1/gpus", headers={"If-None-Match": etag}).status_code == 200


def test_one_generation_is_not_taken_for_the_beginning_of_another() -> None:
    inventory = filled()
    subject = client(inventory)
    first = subject.get("/v1/gpus").headers["etag"]
    for _ in range(9):
        for state in (GpuState.FREE, GpuState.HELD):
            inventory.publish(NOON, changed(HELD, state))
    tenth = subject.get("/v1/gpus").headers["etag"]
    assert tenth != first
    assert subject.get("/v1/gpus", headers={"If-None-Match": first}).status_code == 200


# Errors


def is_problem(response: Any, status: int) -> dict[str, Any]:
    assert response.status_code == status
    assert response.headers["content-type"] == "application/problem+json"
    problem: dict[str, Any] = response.json()
    assert set(problem) == {"type", "title", "status", "code", "detail", "reasons"}
    assert problem["status"] == status
    assert problem["reasons"]
    return problem


@pytest.mark.parametrize("path", API)
def test_503_before_the_cloud_was_seen(path: str) -> None:
    response = client(InventoryCache(), driver(runs=0)).get(path)
    assert is_problem(response, 503)["code"] == "no_data_yet"
    assert response.headers["retry-after"] == "2"


@pytest.mark.parametrize("path", ["/nowhere", "/redoc", "/static/../app.py", "/static/nothing.css"])
def test_404(path: str) -> None:
    assert is_problem(client().get(path), 404)["code"] == "not_found"


def test_405() -> None:
    problem = is_problem(client().post("/v1/gpus"), 405)
    assert problem["detail"] == "POST is not for /v1/gpus: everything here is for reading."


def test_a_bug_says_nothing_about_itself_but_is_a_problem_with_all_headers() -> None:
    def broken() -> datetime:
        raise RuntimeError("secret")

    response = client(now=broken).get("/")
    is_problem(response, 500)
    assert "secret" not in response.text
    assert "default-src 'none'" in response.headers["content-security-policy"]


# Safety


@pytest.mark.parametrize("path", EVERYWHERE)
def test_every_answer_has_the_headers(path: str) -> None:
    headers = client().get(path).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "unsafe" not in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "cache-control" in headers


def test_the_page_has_nothing_inline() -> None:
    html = client(loops=driver("refused")).get("/").text
    assert not re.search(r"\sstyle=|\son\w+=|<style|javascript:", html)


@pytest.mark.parametrize("host", ["localhost", "localhost:8080", "127.0.0.1:8080", "[::1]:8080"])
def test_names_of_this_machine_are_answered(host: str) -> None:
    app = create_app(plain_sources())
    assert TestClient(app).get("/healthz", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", ""])
def test_other_names_are_not(host: str) -> None:
    app = create_app(plain_sources())
    response = TestClient(app).get("/v1/gpus", headers={"Host": host})
    assert response.status_code == 400
    assert "v100" not in response.text


def test_head_is_as_get() -> None:
    response = client().head("/v1/gpus")
    assert response.status_code == 200
    assert response.headers["etag"]
    assert client().head("/events").status_code == 405  # would never end


def test_large_answers_are_compressed() -> None:
    response = client().get("/", headers={"Accept-Encoding": "gzip"})
    assert response.headers["content-encoding"] == "gzip"


# Operation


def test_alive() -> None:
    response = client(InventoryCache(), driver(runs=0)).get("/healthz")
    assert (response.status_code, response.text) == (200, "ok\n")


def test_ready() -> None:
    subject = client(loops=(loops := driver()), now=lambda: loops.statuses()[0].last_success or NOON)
    assert subject.get("/readyz").json() == {"ready": True, "reasons": [], "degraded": []}


def test_not_ready_and_why() -> None:
    response = client(InventoryCache(), driver("refused", runs=0)).get("/readyz")
    assert response.status_code == 503
    assert response.json() == {
        "ready": False,
        "reasons": [
            "the cloud has not been seen yet",
            "loop look has not had a good run yet: ConnectionError: refused",
        ],
        "degraded": [],
    }


def test_ready_while_github_is_away() -> None:
    def fail() -> None:
        raise ConnectionError("api.github.com refused")

    loops = driver()
    loops.register(Loop("lost-jobs", "looks at GitHub", 1.0, fail)).run_once("timer")
    response = client(loops=loops, now=lambda: loops.statuses()[0].last_success or NOON).get("/readyz")
    assert response.status_code == 200
    assert response.json() == {
        "ready": True,
        "reasons": [],
        "degraded": ["loop lost-jobs has not had a good run yet: ConnectionError: api.github.com refused"],
    }


def metrics(subject: TestClient) -> dict[str, dict[tuple[str, ...], float]]:
    response = subject.get("/metrics")
    assert response.headers["content-type"].startswith("text/plain; version=")
    return {  # values of labels in the order of the labels' names
        family.name: {tuple(sample.labels.values()): sample.value for sample in family.samples}
        for family in text_string_to_metric_families(response.text)
    }


def test_metrics() -> None:
    samples = metrics(client(loops=driver("refused")))
    gpus = samples["gpuyard_gpus"]
    assert gpus["epyc", "Tesla V100 PCIe 16GB", "v100", "free"] == 2
    assert gpus["epyc", "Tesla V100 PCIe 16GB", "v100", "lost"] == 0
    assert len(gpus) == 3 * len(GpuState)  # no series comes and goes
    assert sum(gpus.values()) == len(GPUS)
    assert samples["gpuyard_build_info"] == {(installed_version(),): 1}
    assert samples["gpuyard_view_timestamp_seconds"] == {(): NOON.timestamp()}
    assert samples["gpuyard_loop_failures"] == {("look",): 1}
    assert samples["gpuyard_loop_runs"] == {("look",): 2}
    assert samples["gpuyard_loop_last_success_timestamp_seconds"]["look",] > NOON.timestamp() - 86400 * 3650
    assert samples["gpuyard_loop_run_seconds"]["look",] >= 0
    assert samples["gpuyard_loop_lag_seconds"]["look",] >= 0
    assert samples["gpuyard_loop_late"] == {("look",): 0}
    states = samples["gpuyard_gpu_state"]
    assert len(states) == len(GPUS), "a GPU is in one state"
    assert states["0000:02:00.0", "node2", "t4", "lost"] == 1
    assert samples["gpuyard_portal_streams"] == {(): 0}
    assert "process_resident_memory_bytes" in samples


def test_metrics_before_anything_is_known() -> None:
    samples = metrics(client(InventoryCache(), driver(runs=0)))
    assert "gpuyard_gpus" not in samples  # a zero would be a lie
    assert samples["gpuyard_loop_last_success_timestamp_seconds"] == {("look",): 0}
    assert samples["gpuyard_loop_late"] == {("look",): 1}
    assert samples["gpuyard_loop_lag_seconds"] == {}, "it has had no good run to count from"


def test_the_openapi_document_tells_of_problems() -> None:
    document = client().get("/openapi.json").json()
    assert set(document["paths"]) == {"/v1", "/v1/status", *API, "/healthz", "/readyz", "/metrics"}
    responses = document["paths"]["/v1/gpus"]["get"]["responses"]
    for status in ("422", "503"):
        assert set(responses[status]["content"]) == {"application/problem+json"}
    assert "304" in responses
    assert responses["503"]["content"]["application/problem+json"]["schema"]["title"] == "Problem"
    assert "HTTPValidationError" not in document["components"]["schemas"]
    for schema in ("GpuRow", "GpuList", "PoolList"):
        assert schema in document["components"]["schemas"]


@pytest.mark.parametrize("bookings", [False, True])
def test_it_is_alive_although_all_threads_wait(tmp_path: Path, bookings: bool) -> None:
    app = booking_portal(tmp_path).app if bookings else create_app(plain_sources(), ["testserver"])
    free, messages = threading.Event(), []
    scope = {"type": "http", "method": "GET", "path": "/healthz", "raw_path": b"/healthz", "query_string": b""}
    scope |= {"headers": [(b"host", b"testserver")], "scheme": "http", "client": ("127.0.0.1", 1), "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: MutableMapping[str, Any]) -> None:
        messages.append(message)

    async def wait() -> None:
        await anyio.to_thread.run_sync(free.wait)

    async def ask() -> None:
        threads = int(anyio.to_thread.current_default_thread_limiter().total_tokens)
        async with anyio.create_task_group() as tasks:
            for _ in range(threads):
                tasks.start_soon(wait)
            await anyio.sleep(0.1)
            try:
                with anyio.fail_after(5):
                    await app(scope, receive, send)
            finally:
                free.set()

    anyio.run(ask)
    assert messages[0]["status"] == 200
    assert messages[1]["body"] == b"ok\n"


@pytest.mark.parametrize("details", [False, True])
def test_who_has_not_logged_in_sees_no_names_unless_the_site_says_so(tmp_path: Path, details: bool) -> None:
    portal = booking_portal(tmp_path, settings=replace(ROOMY, anonymous_details=details))
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver("http://controller:8774 refused", runs=0),
            site_name="test",
            gpus=GPUS,
            ledger=portal.ledger,
            sessions=portal.store,
            people=portal.people,
            settings=replace(ROOMY, anonymous_details=details),
        ),
        ["testserver"],
    )
    subject = TestClient(app)
    assert ("controller" in subject.get("/readyz").text) is details
    assert "has not had a good run yet" in subject.get("/readyz").text
    assert ('host="epyc"' in subject.get("/metrics").text) is details
    assert 'state="free"' in subject.get("/metrics").text
