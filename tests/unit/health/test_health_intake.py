"""How hosts get in with their tokens, and what becomes of what they say."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.host_reports import MOST_BYTES
from gpuyard.health.records import HealthToken
from gpuyard.health.store import HealthStore
from gpuyard.health.tokens import digest_of, new_token
from gpuyard.health.web.health_intake import AT_ONCE, REFUSALS
from gpuyard.model.host_report import HostReport
from gpuyard.web.access import MOST_BYTES as MOST_OF_OTHERS
from tests.support.health_portals import HealthPortal, fine, health_portal, site_gpus
from tests.support.ledgers import ADA, ROOT
from tests.unit.health.test_host_looks import GPU, LOOK

PATH = "/v1/hosts/gpu-1/looks"
MINE = tuple(replace(GPU, address=gpu.address) for gpu in site_gpus() if gpu.host == "gpu-1")


@pytest.fixture
def woken() -> list[str]:
    return []


@pytest.fixture
def portal(tmp_path: Path, woken: list[str]) -> HealthPortal:
    made = health_portal(tmp_path)
    made.service.wake.listen(woken.append)
    fine(made)
    return made


def new(portal: HealthPortal, host: str = "gpu-1", **body: str) -> str:
    answer = portal.program(ROOT).post(f"/v1/hosts/{host}/tokens", json=body)
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


@pytest.fixture
def token(portal: HealthPortal) -> str:
    return new(portal)


def look(number: int = 1, **changed: Any) -> HostReport:
    return replace(LOOK, **{"number": number, "gpus": MINE, **changed})


def send(portal: HealthPortal, token: str, report: HostReport | bytes, path: str = PATH) -> Any:
    body = report if isinstance(report, bytes) else json.dumps(report.as_dict()).encode()
    client = TestClient(portal.app, raise_server_exceptions=False)
    return client.post(path, content=body, headers={"Authorization": f"Bearer {token}"})


def test_a_look_is_heard_and_what_it_means_is_observed(portal: HealthPortal, token: str, woken: list[str]) -> None:
    answer = send(portal, token, look())
    assert (answer.status_code, answer.content) == (204, b"")
    word = portal.service.store.host("gpu-1")
    assert word is not None
    assert (word.heard, json.loads(word.look)["kernel"]) == (portal.clock(), "6.1.0-27")
    assert portal.service.store.open_observations() == []
    portal.clock.forward(minutes=1)
    gone = replace(MINE[1], present=False)
    assert send(portal, token, look(2, gpus=(MINE[0], gone, *MINE[2:]))).status_code == 204
    (observation,) = portal.service.store.open_observations()
    assert (observation.host, observation.address, observation.code, observation.seen) == (
        "gpu-1",
        gone.address,
        "missing",
        portal.clock(),
    )
    assert woken == [f"missing of gpu-1/{gone.address}"]


def test_silence_is_not_fine(portal: HealthPortal, token: str) -> None:
    def silent() -> set[str]:
        return {view.health.host for view in portal.service.view() if view.silent}

    portal.clock.forward(minutes=3)
    assert silent() == {"gpu-1", "gpu-2", "gpu-3"}
    send(portal, token, look())
    assert silent() == {"gpu-2", "gpu-3"}
    portal.clock.forward(minutes=2)
    send(portal, token, b"not a look")
    portal.clock.forward(seconds=1)
    assert silent() == {"gpu-1", "gpu-2", "gpu-3"}, "what cannot be read says nothing"


def test_what_a_host_makes_up_is_not_remembered_without_end(portal: HealthPortal, token: str) -> None:
    others = tuple(replace(GPU, address=f"1000:{n:02x}:00.0", in_use=True) for n in range(100))
    before = len(portal.service.store.events("gpu-1"))
    for number in range(1, 9):
        cards = tuple(replace(gpu, serial=f"{number:016x}", in_use=True) for gpu in MINE)
        assert send(portal, token, look(number, gpus=(*cards, *others))).status_code == 204
        portal.clock.forward(seconds=1)
    assert len(portal.service.store.events("gpu-1")) - before == len(MINE)
    assert len(portal.service.uses()) == len(MINE)
    portal.clock.forward(minutes=10)
    assert send(portal, token, look(10, gpus=cards)).status_code == 204
    assert {gpu.card for gpu in portal.service.store.gpus(host="gpu-1")} == {f"{8:016x}"}


def test_only_the_token_of_this_host_and_purpose_lets_in(portal: HealthPortal, token: str) -> None:
    store, now = portal.service.store, portal.clock()
    expired, digest = new_token("watch")
    store.add_token(HealthToken(digest, "watch", "gpu-1", now - timedelta(days=2), now - timedelta(days=1)))
    others = ["", "gyh_", token[:-1], token.upper(), token + "0", expired, digest_of(token), "x" * 5000]
    for wrong in (*others, new(portal, "gpu-2"), new(portal, purpose="scrub")):
        answer = send(portal, wrong, look())
        assert answer.status_code == 401, wrong
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert answer.json()["detail"] == "This needs a token for watch of gpu-1, as a bearer token."
    assert send(portal, token, look(), "/v1/hosts/gpu-2/looks").status_code == 401
    client = TestClient(portal.app)
    assert client.post(PATH, content=b"{}", headers={"Authorization": f"Basic {token}"}).status_code == 401
    assert client.post(PATH, content=b"{}", headers={"X-Auth-Token": token}).status_code == 401
    assert send(portal, token, look()).status_code == 204
    assert client.get(PATH).status_code == 405


def test_a_token_opens_nothing_else(portal: HealthPortal, token: str) -> None:
    client = TestClient(portal.app, headers={"Authorization": f"Bearer {token}"}, follow_redirects=False)
    for path in ("/v1/gpus", "/v1/health", "/v1/bookings", "/openapi.json"):
        assert client.get(path).status_code == 401
    assert client.post("/v1/hosts/gpu-1/tokens", json={}).status_code == 401


def test_a_new_token_ends_the_one_before(portal: HealthPortal, token: str) -> None:
    scrub = new(portal, purpose="scrub")
    other = new(portal)
    assert send(portal, token, look()).status_code == 401
    assert send(portal, other, look()).status_code == 204
    assert portal.service.store.token(digest_of(scrub)) is not None, "that is for something else"
    entries = portal.program(ROOT).get("/v1/audit", params={"target": "gpu-1"}).json()["entries"]
    assert [entry["action"] for entry in entries] == ["host.token"] * 3
    assert not any(text in json.dumps(entries) for text in (token, other, digest_of(other)))


def test_tokens_are_made_by_admins_for_hosts_of_the_site(portal: HealthPortal) -> None:
    assert portal.program(ADA).post("/v1/hosts/gpu-1/tokens", json={}).status_code == 403
    root = portal.program(ROOT)
    assert root.post("/v1/hosts/gpu-9/tokens", json={}).json()["detail"] == "The site has no host 'gpu-9'."
    for wrong in ({"purpose": "agent"}, {"purpose": "watch", "host": "x"}):
        assert root.post("/v1/hosts/gpu-1/tokens", json=wrong).status_code == 422
    assert portal.service.store.tokens("watch") == []


def test_no_token_is_kept(portal: HealthPortal, token: str, tmp_path: Path) -> None:
    send(portal, token, look())
    stored = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert digest_of(token).encode() in stored
    assert token.encode() not in stored
    assert token.startswith("gyh_")


def test_looks_of_others_copies_and_nonsense_are_refused(portal: HealthPortal, token: str) -> None:
    answer = send(portal, token, look(host="gpu-2"))
    assert (answer.status_code, answer.json()["code"]) == (422, "bad_look")
    assert "the token is for gpu-1" in answer.json()["detail"]
    assert send(portal, token, look(5)).status_code == 204
    for copy in (5, 4):
        answer = send(portal, token, look(copy))
        assert (answer.status_code, answer.json()["code"]) == (409, "stale_look")
    assert send(portal, token, b"{}").json()["code"] == "bad_look"
    portal.clock.forward(minutes=1)
    assert send(portal, token, b"[" * (MOST_BYTES + 1)).status_code == 413
    assert send(portal, token, b" " * (MOST_OF_OTHERS + 1)).status_code == 422, "others may not be as long"


def test_a_portal_that_is_started_anew_still_knows_the_last_look(portal: HealthPortal, token: str) -> None:
    send(portal, token, look(5))
    again = HostReportIntake(portal.service, {"gpu-1"})
    with pytest.raises(Exception, match="not newer than look 5"):
        again.hear("gpu-1", json.dumps(look(5).as_dict()).encode())
    again.hear("gpu-1", json.dumps(look(6, gpus=(replace(MINE[0], ids="10de:1db1"), *MINE[1:])).as_dict()).encode())
    assert [observation.code for observation in portal.service.store.open_observations()] == ["changed"]


def test_a_token_that_is_used_too_often_waits(portal: HealthPortal, token: str) -> None:
    answers = (send(portal, token, look(number)) for number in range(1, 10 * AT_ONCE))
    assert [next(answers).status_code for _ in range(AT_ONCE)] == [204] * AT_ONCE
    refused = next(answer for answer in answers if answer.status_code != 204)  # more are let in as time goes by
    assert refused.status_code == 429
    assert int(refused.headers["Retry-After"]) >= 1
    assert send(portal, new(portal, "gpu-2"), look(host="gpu-2"), "/v1/hosts/gpu-2/looks").status_code == 204


def fails(*_: object) -> None:
    raise StoreError("the disk is full")


def test_without_its_database_the_portal_is_busy(
    portal: HealthPortal, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(HealthStore, "hear", fails)
    answer = send(portal, token, look())
    assert (answer.status_code, answer.json()["code"]) == (503, "unavailable")
    assert "disk" not in answer.text


def test_what_becomes_of_looks_is_counted(portal: HealthPortal, token: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def counted() -> dict[tuple[str, str], float]:
        text = portal.browser(ROOT).client.get("/metrics").text
        (family,) = (
            family for family in text_string_to_metric_families(text) if family.name == "gpuyard_health_requests"
        )
        return {
            (sample.labels["what"], sample.labels["outcome"]): sample.value
            for sample in family.samples
            if sample.name.endswith("_total")
        }

    zero = counted()
    assert set(zero.values()) == {0}
    looks = "looks of hosts"
    assert {"taken", *REFUSALS} == {outcome for what, outcome in zero if what == looks}
    assert ("results of scrubs", "bad_results") in zero
    for report, sender in ((look(5), token), (look(5), token), (b"{}", token), (look(6), "x"), (look(6), token)):
        send(portal, sender, report)
    monkeypatch.setattr(HealthStore, "hear", fails)
    send(portal, token, look(7))
    now = counted()
    assert {outcome: count for (what, outcome), count in now.items() if what == looks and count} == {
        "taken": 2, "stale_look": 1, "bad_look": 1, "unauthorized": 1, "unavailable": 1,
    }  # fmt: skip
