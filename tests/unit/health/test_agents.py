"""How servers are asked for an agent, who may say what, and what is kept of it."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from gpuyard.client.rows import use_words
from gpuyard.database.errors import StoreError
from gpuyard.health.controllers.agent_controller import ON, AgentController, open_agents
from gpuyard.health.controllers.agent_service import COUNTED, SILENT
from gpuyard.health.guests import ReplayError
from gpuyard.health.idle import lately
from gpuyard.health.limits import SitePlace
from gpuyard.health.planner import Circumstances, GpuObservation, plan_health
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.samples import report_of
from gpuyard.health.web import agent_intake
from gpuyard.health.web.agent_intake import REPORTS, AgentIntake
from gpuyard.model.booking import Person
from gpuyard.model.errors import UsageError
from gpuyard.server.server import bind, server_of, url_of
from gpuyard.site.health_rules import SiteHealth
from gpuyard.web.fast_path import FastPath
from tests.support.agent_portals import PORTAL, AgentPortal, agent_portal, report, sent
from tests.support.guests import METADATA, gpu, guest, mock_library
from tests.support.inventories import LEADER_A, LONE, PEER_A, v100
from tests.support.ledgers import ADA, BOB, EVE, NOON, ROOT, ask
from tests.support.nova_samples import silent_service
from tests.support.portals import booking_portal
from tests.support.scripted_http import ScriptedAnswer

SAMPLES, ENROL = "/v1/agents/samples", "/v1/agents/enrol"
A, PEER, B = ((gpu.host, gpu.address) for gpu in (LEADER_A, PEER_A, LONE))
WORKS: list[int | None] = [50, 50, 50, 50, 0, 0, 0]
RESTS: list[int | None] = [0, 50, 30, 50, 0, 0, 0]


@pytest.fixture
def portal(tmp_path: Path) -> AgentPortal:
    return agent_portal(tmp_path)


@pytest.fixture
def client(portal: AgentPortal) -> TestClient:
    return TestClient(portal.app, raise_server_exceptions=False)


def observed(portal: AgentPortal) -> set[tuple[str, tuple[str, str]]]:
    return {
        (observation.code, (observation.host, observation.address))
        for observation in portal.service.store.open_observations()
    }


# Enrolment


def test_servers_of_the_projects_that_are_named_are_asked_and_told_when_it_is_on(
    portal: AgentPortal, client: TestClient
) -> None:
    portal.controller.run()
    words = dict(portal.cloud.words)
    assert set(words) == {"s1", "s2"}  # s3's project is not asked
    url, code = words["s1"].split()
    assert (url, code[:4]) == (PORTAL, "gye_")
    portal.controller.run()
    assert portal.cloud.words == words

    answer = client.post(ENROL, json={"server": "s1", "code": code})
    assert answer.status_code == 200
    assert (answer.json()["period"], answer.json()["batch"]) == (10, 6)
    portal.controller.run()
    assert portal.cloud.words == words, "it is on when something was heard"
    assert client.post(SAMPLES, content=report(), headers=sent(answer.json()["token"])).status_code == 204
    portal.controller.run()
    assert portal.cloud.words["s1"] == f"{ON} {PORTAL}/v1/agents says what is sent; write off here to end it"
    assert len(portal.cloud.words["s1"]) <= 255, "what Nova takes"
    portal.cloud.written.clear()
    portal.controller.run()
    assert portal.cloud.written == []


def test_a_code_is_good_once_for_its_server_and_not_for_ever(portal: AgentPortal, client: TestClient) -> None:
    def enrol(server: str, code: str) -> tuple[int, str]:
        answer = client.post(ENROL, json={"server": server, "code": code})
        return answer.status_code, answer.json().get("code", "")

    code = portal.code("s1")
    assert enrol("s2", code) == (401, "no_code")
    assert enrol("s1", "gye_" + "0" * 64) == (401, "no_code")
    assert enrol("s1", "x" * 10_000) == (401, "no_code")
    assert enrol("s1", code)[0] == 200
    assert enrol("s1", code) == (409, "spent")
    assert enrol("s9", portal.code("s9")) == (409, "no_gpus")
    portal.controller.run()
    code = portal.cloud.words["s2"].split()[1]
    portal.clock.forward(days=1)
    assert enrol("s2", code) == (401, "expired")
    portal.controller.run()
    assert enrol("s2", code) == (401, "no_code")
    assert enrol("s2", portal.cloud.words["s2"].split()[1])[0] == 200


def test_two_who_use_a_code_at_once_are_one(portal: AgentPortal, client: TestClient) -> None:
    code, answers = portal.code("s1"), []
    together = threading.Barrier(4)

    def enrol() -> None:
        together.wait()
        answers.append(client.post(ENROL, json={"server": "s1", "code": code}).status_code)

    threads = [threading.Thread(target=enrol) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(answers)[0] == 200
    assert {*answers[1:], *answers} <= {200, 401, 409}
    assert answers.count(200) == 1


def test_who_lost_the_token_gets_another_code_and_the_old_token_ends(portal: AgentPortal, client: TestClient) -> None:
    token = portal.token("s2")
    assert client.post(SAMPLES, content=report(), headers=sent(token)).status_code == 204
    portal.controller.run()
    assert portal.cloud.words["s2"].startswith(ON)
    portal.clock.forward(minutes=14)
    portal.controller.run()
    assert portal.cloud.words["s2"].startswith(ON)
    portal.clock.forward(minutes=1)
    portal.controller.run()
    code = portal.cloud.words["s2"].split()[1]
    # It was only silent: its token is good until the code is used.
    assert client.post(SAMPLES, content=report(number=11), headers=sent(token)).status_code == 204
    new = client.post(ENROL, json={"server": "s2", "code": code}).json()["token"]
    assert client.post(SAMPLES, content=report(number=12), headers=sent(token)).status_code == 401
    assert client.post(SAMPLES, content=report(number=13), headers=sent(new)).status_code == 204


def test_an_answer_with_the_token_that_got_lost_costs_a_quarter_of_an_hour(portal: AgentPortal) -> None:
    portal.controller.run()
    word = portal.cloud.words["s2"]
    portal.service.enrol("s2", word.split()[1])
    portal.clock.forward(seconds=SILENT.total_seconds() - 1)
    portal.controller.run()
    assert portal.cloud.words["s2"] == word
    portal.clock.forward(seconds=1)
    portal.controller.run()
    portal.service.enrol("s2", portal.cloud.words["s2"].split()[1])


def test_off_is_obeyed_and_a_project_that_is_not_asked_any_more(portal: AgentPortal, client: TestClient) -> None:
    tokens = {server: portal.token(server) for server in ("s1", "s2")}
    portal.cloud.words |= {"s1": "off", "s2": f"{ON} x", "s3": "mine"}
    rules = SiteHealth.model_validate({"agent": {"projects": ["physics"]}})
    portal.service.rules = rules.agent  # type: ignore[assignment]
    portal.controller.run()
    assert portal.cloud.words == {"s1": "off", "s3": "mine"}
    for token in tokens.values():
        assert client.post(SAMPLES, content=report(), headers=sent(token)).status_code == 401
    portal.controller.run()
    assert portal.cloud.words == {"s1": "off", "s3": "mine"}
    del portal.cloud.words["s1"]
    portal.controller.run()
    assert portal.cloud.words["s1"].startswith(PORTAL)


def test_a_token_ends_with_its_server_and_not_with_a_resize(portal: AgentPortal, client: TestClient) -> None:
    token = portal.token("s2")
    gpus = portal.cloud.has.pop("s2")
    portal.controller.run()
    answer = client.post(SAMPLES, content=report(), headers=sent(token))
    assert (answer.status_code, answer.json()["code"]) == (409, "no_gpus")
    portal.clock.forward(minutes=9)
    portal.controller.run()
    portal.cloud.has["s2"] = gpus
    portal.controller.run()
    assert client.post(SAMPLES, content=report(), headers=sent(token)).status_code == 204
    del portal.cloud.has["s2"]
    portal.controller.run()
    portal.clock.forward(minutes=10)
    portal.controller.run()
    portal.cloud.has["s2"] = gpus
    assert client.post(SAMPLES, content=report(number=11), headers=sent(token)).status_code == 401
    assert portal.restarted().servers() == frozenset()


def test_a_token_outlives_a_cell_that_is_silent(portal: AgentPortal, client: TestClient) -> None:
    """Nova names none of its servers then."""
    token = portal.token("s2")
    gpus = portal.cloud.has.pop("s2")
    host = gpus[0].host
    portal.cloud.services[host] = silent_service(host)
    for _ in range(3):
        portal.clock.forward(minutes=10)
        portal.controller.run()
    portal.cloud.services.clear()
    portal.cloud.has["s2"] = gpus
    portal.controller.run()
    assert client.post(SAMPLES, content=report(), headers=sent(token)).status_code == 204


def test_a_token_that_another_process_has_given_or_ended(portal: AgentPortal) -> None:
    token, other = portal.token("s2"), portal.restarted()
    assert other.server_of(token) == "s2"
    new, mine = portal.token("s2"), portal.token("s1")
    controller = AgentController(other, portal.cloud, PORTAL, portal.clock, lambda: False)
    controller.run()
    assert (other.server_of(token), other.server_of(new), other.server_of(mine)) == (None, "s2", "s1")
    assert other.servers() == {"s1", "s2"}


def test_a_server_whose_metadata_is_full_is_asked_later_and_who_sleeps_is_not(portal: AgentPortal) -> None:
    portal.cloud.full.add("s1")
    portal.cloud.status["s2"] = "SHUTOFF"
    portal.controller.run()
    assert portal.cloud.words == {}
    portal.cloud.full.clear()
    portal.controller.run()
    assert portal.cloud.words == {}
    portal.clock.forward(minutes=5)
    portal.controller.run()
    assert set(portal.cloud.words) == {"s1"}


def test_a_site_that_asks_servers_has_an_address(portal: AgentPortal) -> None:
    with pytest.raises(UsageError, match="--url"):
        open_agents(portal.health, portal.ledger, [], None, portal.cloud.snapshot, "", portal.clock)  # type: ignore[arg-type]


# Reports


def test_a_report_is_kept_and_shown_to_its_project_and_admins(portal: AgentPortal, client: TestClient) -> None:
    for server, cards in (("s1", "ab"), ("s2", "c")):
        rows = [WORKS] * len(cards)
        answer = client.post(SAMPLES, content=report(*rows, cards=cards), headers=sent(portal.token(server)))
        assert (answer.status_code, answer.content) == (204, b"")

    def sees(person: object) -> list[str]:
        listing = portal.program(person).get("/v1/agents").json()  # type: ignore[arg-type]
        assert "Nothing of processes" in listing["sent"]
        return [agent["server"] for agent in listing["agents"]]

    assert sees(ROOT) == ["s1", "s2"]
    assert sees(ADA) == ["s1"]
    assert sees(replace(ADA, project="biology")) == ["s2"]
    assert client.get("/v1/agents").status_code == 401
    (row,) = portal.program(ADA).get("/v1/agents").json()["agents"]
    assert (row["name"], row["driver"]) == ("name-s1", "580.95.05")
    assert row["cards"][0] == {
        "card": "GPU-a", "gpu": None, "use": 50, "memory": 50, "temperature": 50, "power": 50, "ecc": 0,
        "idle_since": None, "minutes": [None] * 59 + [50],
    }  # fmt: skip
    # s2 has one GPU, so it is known where that is.
    (row,) = portal.program(replace(ADA, project="biology")).get("/v1/agents").json()["agents"]
    assert row["cards"][0]["gpu"] == "/".join(B)


def test_what_is_not_in_order_is_refused_with_a_reason(portal: AgentPortal, client: TestClient) -> None:
    good = sent(portal.token("s1"))
    cases: list[tuple[dict[str, str], bytes, int]] = [
        ({}, report(), 401),
        (sent("gya_" + "0" * 64), report(), 401),
        ({"Authorization": "Basic x"}, report(), 401),
        (sent("x" * 5000), report(), 401),
        (good, b"{}", 400),
        (good, b"x" * 70_000, 413),
        (good, report(number=-1), 400),
    ]
    for headers, body, status in cases:
        answer = client.post(SAMPLES, content=body, headers=headers)
        assert answer.status_code == status
        assert answer.headers["content-type"] == "application/problem+json"
        assert set(answer.json()) == {"type", "title", "status", "code", "detail", "reasons"}
    more = b'{"server": "s", "code": "c", "x": 1}'
    for body in (b"", b"[]", b"{", b'{"server": 1, "code": "x"}', more, b"[" * 16_000):
        assert client.post(ENROL, content=body).status_code == 400


def test_a_replay_is_refused_and_a_flood(portal: AgentPortal, client: TestClient) -> None:
    headers = sent(portal.token("s1"))
    assert client.post(SAMPLES, content=report(number=20), headers=headers).status_code == 204
    for number in (20, 19):
        answer = client.post(SAMPLES, content=report(number=number), headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (409, "replay")
    assert client.post(SAMPLES, content=report(boot="f" * 16, number=1), headers=headers).status_code == 204
    assert client.post(SAMPLES, content=report(number=99), headers=headers).status_code == 409, "of an earlier boot"
    statuses = [client.post(SAMPLES, content=report(number=n), headers=headers).status_code for n in range(30)]
    assert statuses.count(429) >= 20
    other = client.post(SAMPLES, content=report(), headers=sent(portal.token("s2")))
    assert other.status_code == 204, "others are not kept out by it"


def test_guesses_from_one_place_are_limited_and_those_with_a_token_are_not(tmp_path: Path) -> None:
    portal = agent_portal(tmp_path)
    client = TestClient(portal.app, client=("192.0.2.7", 4711))
    headers = sent(portal.token("s1"))
    statuses = [client.post(SAMPLES, content=report(), headers=sent(f"gya_{n}")).status_code for n in range(40)]
    assert set(statuses[:30]) == {401}
    assert 429 in statuses[30:]
    assert client.post(ENROL, json={"server": "s1", "code": "gye_x"}).status_code == 429
    assert client.post(SAMPLES, content=report(), headers=headers).status_code == 204


def test_what_is_wrong_is_observed_before_the_answer_of_its_own_gpus_only(
    portal: AgentPortal, client: TestClient
) -> None:
    one, two = sent(portal.token("s1")), sent(portal.token("s2"))
    client.post(SAMPLES, content=report(WORKS, cards="c"), headers=two)
    # s1 claims the card that s2 has, and an Xid on it.
    lie = report(WORKS, WORKS, cards="cb", xids=[[1, 0, 79]])
    assert client.post(SAMPLES, content=lie, headers=one).status_code == 204
    assert {place for _, place in observed(portal)} <= {A, PEER}
    assert ("xid-reset", A) in observed(portal), "which one it was is not known, so none is quarantined"
    assert ("contradiction", A) in observed(portal)
    truth = report(WORKS, cards="c", number=11, xids=[[1, 0, 79]])
    assert client.post(SAMPLES, content=truth, headers=two).status_code == 204
    assert ("xid-restart", B) in observed(portal)


def test_what_cannot_be_written_down_is_not_taken_and_comes_again(
    portal: AgentPortal, client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers, body = sent(portal.token("s2")), report(xids=[[1, 0, 79]])
    with monkeypatch.context() as patched:
        patched.setattr(portal.service.store, "observe", broken)
        assert client.post(SAMPLES, content=body, headers=headers).status_code == 503
    assert client.post(SAMPLES, content=body, headers=headers).status_code == 204
    assert observed(portal) == {("xid-restart", B)}


def broken(*_: object) -> None:
    raise StoreError("the disk is full")


def test_two_reports_at_once_are_not_both_taken(portal: AgentPortal) -> None:
    portal.token("s2")
    first, second = (portal.service.judge("s2", report_of(report(number=number))) for number in (10, 11))
    portal.service.take(second)
    with pytest.raises(ReplayError):
        portal.service.take(first)


def test_after_a_restart_it_is_known_where_each_stood(portal: AgentPortal, client: TestClient) -> None:
    headers = sent(portal.token("s2"))
    client.post(SAMPLES, content=report([50, 50, 50, 50, 3, 0, 0], xids=[[1, 0, 79]]), headers=headers)
    again = portal.restarted()  # without a flush: what was wrong is written down at once
    with pytest.raises(ReplayError):
        again.judge("s2", report_of(report(number=10)))
    heard = again.judge("s2", report_of(report([50, 50, 50, 50, 3, 0, 0], number=11, xids=[[1, 0, 79]])))
    assert heard.observations == []
    portal.service.flush()
    assert portal.restarted().place("GPU-a") == B


def test_hours_add_up_over_flushes_and_are_let_go_of(portal: AgentPortal, client: TestClient) -> None:
    headers, began = sent(portal.token("s2")), portal.clock()
    for number, use in enumerate((10, 20, 60)):
        client.post(SAMPLES, content=report([use, 50, 40 + number, 100, 0, 0, 0], number=number + 1), headers=headers)
        portal.service.flush()
        portal.clock.forward(seconds=10)
    (hour,) = portal.service.guests.hours(["s2"], began - timedelta(hours=1))
    assert (hour.card, hour.samples, hour.use, hour.power, hour.hottest) == ("GPU-a", 3, 90, 300, 42)
    portal.clock.forward(days=36)
    portal.service.guests.prune(portal.clock())
    assert portal.service.guests.hours(["s2"], began - timedelta(hours=1)) == []


def test_cards_that_a_guest_makes_up_are_not_counted_without_end(portal: AgentPortal) -> None:
    portal.token("s2")
    row = [[1, 0, 0, 0, 0, 0, 0]]
    for number in range(10):
        name, many = f"GPU-{number}", [f"GPU-{number}-{other}" for other in range(64)]
        cards = [name] if number % 2 else many
        hours = [[n * 36000, row * len(cards)] for n in range(60)]
        payload = json.loads(report(boot=f"{number:016x}")) | {"cards": cards, "samples": hours}
        portal.service.take(portal.service.judge("s2", report_of(json.dumps(payload, separators=(",", ":")).encode())))
    portal.service.flush()
    hours_kept = portal.service.guests.hours(["s2"], portal.clock() - timedelta(days=30))
    assert len({hour.card for hour in hours_kept}) == COUNTED
    assert len(portal.service.guests.cards()) <= 1


def test_what_a_failed_flush_had_is_there_at_the_next(portal: AgentPortal, monkeypatch: pytest.MonkeyPatch) -> None:
    portal.token("s2")
    portal.service.take(portal.service.judge("s2", report_of(report(number=1))))
    with monkeypatch.context() as patched:
        patched.setattr(portal.service.guests, "keep", broken)
        portal.controller.close()
    portal.service.take(portal.service.judge("s2", report_of(report(number=2))))
    portal.service.flush()
    (hour,) = portal.service.guests.hours(["s2"], portal.clock() - timedelta(hours=1))
    assert hour.samples == 2


def test_gpus_get_the_cards_that_guests_see_but_not_over_what_their_hosts_say(portal: AgentPortal) -> None:
    store, now = portal.service.store, portal.clock()
    store.put(GpuHealth(*B, "v100", HealthState.IN_USE, now))
    store.put(GpuHealth(*A, "v100", HealthState.IN_USE, now, card="0123456789abcdef"))
    portal.cloud.has["s1"] = (LEADER_A,)
    for server, card in (("s1", "a"), ("s2", "c")):
        portal.token(server)
        portal.service.take(portal.service.judge(server, report_of(report(cards=card))))
    portal.controller.run()
    assert {gpu.address: gpu.card for gpu in store.gpus()} == {A[1]: "0123456789abcdef", B[1]: "GPU-c"}
    assert [event.cause for event in store.events(*B)] == ["guests see card GPU-c in it"]
    portal.clock.forward(minutes=1)
    portal.controller.run()
    assert len(store.events(*B)) == 1


def test_a_guest_names_no_card_as_only_its_host_can(portal: AgentPortal) -> None:
    store = portal.service.store
    store.put(GpuHealth(*B, "v100", HealthState.IN_USE, portal.clock()))
    portal.token("s2")
    body = report().replace(b"GPU-a", b"0123456789abcdef")
    portal.service.take(portal.service.judge("s2", report_of(body)))
    portal.controller.run()
    assert {gpu.card for gpu in store.gpus()} == {""}


def test_a_server_is_idle_after_its_time_and_never_on_missing_data(portal: AgentPortal) -> None:
    portal.token("s1")
    for minute in range(12):
        rows = [RESTS, RESTS if minute else WORKS]
        portal.service.take(portal.service.judge("s1", report_of(report(*rows, number=minute * 600 + 1))))
        assert portal.service.idle_servers() == (frozenset(["s1"]) if minute >= 11 else frozenset())
        portal.clock.forward(minutes=1)
    portal.clock.forward(minutes=6)
    assert portal.service.idle_servers() == frozenset()


# What becomes of what agents send


def test_what_becomes_of_reports_is_counted(portal: AgentPortal, monkeypatch: pytest.MonkeyPatch) -> None:
    intake = AgentIntake(portal.service)
    client = TestClient(FastPath(FastAPI(), intake.fast_paths), raise_server_exceptions=False)
    code = portal.code("s2")
    for body in ({"server": "s2", "code": code}, {"server": "s2", "code": code}, {}, {"server": "s1", "code": "x"}):
        answer = client.post(ENROL, json=body)
    headers = sent(portal.token("s2"))
    for number in range(1, REPORTS + 2):
        client.post(SAMPLES, content=report(number=max(2, number)), headers=headers)
    client.post(SAMPLES, content=report(), headers=sent("x"))
    reports, enrolments = intake.outcomes
    assert {outcome: count for outcome, count in enrolments.counts().items() if count} == {
        "taken": 1, "spent": 1, "bad_request": 1, "no_code": 1,
    }  # fmt: skip
    assert {outcome: count for outcome, count in reports.counts().items() if count} == {
        "taken": REPORTS - 1, "replay": 1, "too_many": 1, "no_token": 1,
    }  # fmt: skip
    assert answer.status_code == 401


def test_notes_are_limited_and_what_is_bad_is_not(portal: AgentPortal) -> None:
    seconds = [0.0]
    intake = AgentIntake(portal.service, clock=lambda: seconds[0])
    client = TestClient(FastPath(FastAPI(), intake.fast_paths), raise_server_exceptions=False)
    headers = sent(portal.token("s2"))
    for number in range(1, 31):  # a program that fails every ten seconds
        seconds[0] += 10
        body = report(number=number, xids=[[number, 0, 31]])
        assert client.post(SAMPLES, content=body, headers=headers).status_code == 204
    assert intake.outcomes[0].counts()["throttled"] > 0
    client.post(SAMPLES, content=report(number=99, xids=[[98, 0, 31], [99, 0, 79]]), headers=headers)
    assert ("xid-restart", B) in observed(portal)


def test_the_same_suspicion_is_limited_and_another_one_is_not(portal: AgentPortal) -> None:
    seconds = [0.0]
    intake = AgentIntake(portal.service, clock=lambda: seconds[0])
    client = TestClient(FastPath(FastAPI(), intake.fast_paths), raise_server_exceptions=False)
    headers, store, codes = sent(portal.token("s2")), portal.service.store, []
    for number in range(1, 61):
        seconds[0] += 5
        body = report(number=number, xids=[[2 * number, 0, 119], [2 * number + 1, 0, 79]])
        assert client.post(SAMPLES, content=body, headers=headers).status_code == 204
        codes += [observation.code for observation in store.open_observations()]
        store.settle([observation.id for observation in store.open_observations()])
    assert codes.count("xid-restart") == 60
    assert agent_intake.SAME <= codes.count("xid-reset") <= agent_intake.SAME + 5
    assert client.post(SAMPLES, content=report([5, 5, 5, 5, 1, 0, 0], number=61), headers=headers).status_code == 204
    assert ("ecc", B) in observed(portal)


def test_an_agent_that_falls_silent_below_a_running_server_is_observed_once(portal: AgentPortal) -> None:
    portal.token("s1")  # never heard
    portal.token("s2")
    portal.service.take(portal.service.judge("s2", report_of(report(number=1))))

    def look(**more: float) -> set[tuple[str, tuple[str, str]]]:
        for _ in range(2):
            portal.clock.forward(**more)
            portal.controller.run()
        signals = observed(portal)
        portal.service.store.settle([observation.id for observation in portal.service.store.open_observations()])
        return signals

    assert look(minutes=9) == set()
    assert look(minutes=6) == {("agent-silent", B)}
    assert look(minutes=30) == set()
    portal.service.take(portal.service.judge("s2", report_of(report(number=2))))
    portal.cloud.status["s2"] = "SHUTOFF"
    assert look(hours=8) == set()
    portal.cloud.status["s2"] = "ACTIVE"
    assert look(minutes=7) == set(), "it has just started"
    assert look(minutes=5) == {("agent-silent", B)}


def test_a_gpu_that_its_guest_lost_is_quarantined_and_not_given_to_the_next(portal: AgentPortal) -> None:
    """The agent reports it once, and goes on reporting; the loops of agents and of health do the rest."""
    store, clock, rules = portal.service.store, portal.clock, portal.health.rules
    portal.token("s2")
    place, states = SitePlace(*B, "v100", "slot"), []
    for minute in range(0, 25 * 60, 5):
        judged = portal.service.judge("s2", report_of(report(None, number=minute + 1, seen=0)))
        if judged.observations:
            portal.service.observe(judged, judged.observations)
        portal.service.take(judged)
        portal.controller.run()
        around = Circumstances(clock(), {place.name: GpuObservation("s2")}, heard={place.host: clock()})
        plan = plan_health([place], store.gpus(), store.open_observations(), rules, around)
        for change in plan.changes:
            store.put(change.gpu, *change.events, settles=change.settles)
        states.append(store.gpus()[0].state)
        clock.forward(minutes=5)
    assert states == sorted(states, key=[HealthState.SUSPECT, HealthState.QUARANTINED].index)
    assert states[-1] is HealthState.QUARANTINED


# What the GPUs of bookings do


def booked(portal: AgentPortal, gpus: int = 1) -> str:
    """A booking of ada's on the yard's lone t4s, on which her server s1 is."""
    (made,) = portal.ledger.create(ask(0, 8, gpus, pool="t4"), ADA)
    portal.ledger.upkeep.advance()
    lanes = {lane.id: lane for lane in portal.ledger.lanes("t4")}
    cards = [v100(lanes[id].addresses[0], None, host=lanes[id].host) for id in made.lanes]  # type: ignore[arg-type]
    portal.cloud.has["s1"] = cards
    portal.service._providers |= {gpu.provider_name: (gpu.host, gpu.address) for gpu in cards}
    portal.ledger.upkeep.record_claims({made.id: made.lanes})
    return made.id


def uses(portal: AgentPortal, who: Person, **query: str) -> list[dict[str, Any]]:
    answer = portal.program(who).get("/v1/uses", params=query)
    assert answer.status_code == 200, answer.text
    assert answer.json()["asked"] is True
    return list(answer.json()["uses"])


def says(portal: AgentPortal, *percents: int, minutes: int = 1) -> None:
    """For so many minutes; its number is the time since the clock began."""
    for _ in range(minutes):
        rows: list[list[int | None]] = [[percent, 50, 50, 50, 0, 0, 0] for percent in percents]
        number = int((portal.clock() - NOON).total_seconds() * 10) + 1
        portal.service.take(portal.service.judge("s1", report_of(report(*rows, number=number))))
        portal.clock.forward(minutes=1)


def test_the_use_of_a_booking_is_what_its_server_tells(portal: AgentPortal) -> None:
    id = booked(portal)
    (use,) = uses(portal, ADA)
    assert (use["booking"], use["lately"], use["whole"], use["idle_since"]) == (id, None, None, None)
    (row,) = use["gpus"]
    assert (row["gpu"], row["server"], row["heard"]) == (provider_place(portal, "s1"), "s1", None)
    portal.token("s1")
    says(portal, 80, minutes=30)
    says(portal, 20, minutes=30)
    (use,) = uses(portal, ADA)
    assert (use["lately"], use["minutes"], use["whole"], use["hours"]) == (49, 59, 50, 0.17)
    assert use["idle_since"] is None
    says(portal, 0, minutes=60)
    portal.service.flush()
    says(portal, 0)
    (use,) = uses(portal, ADA)
    assert (use["lately"], use["whole"]) == (0, 25), "what is written down and what is not, together"
    assert use["idle_since"] == "2026-11-23T13:00:00Z"


def test_what_is_missing_is_not_known(portal: AgentPortal) -> None:
    booked(portal)
    portal.token("s1")
    says(portal, 0, minutes=20)
    portal.clock.forward(minutes=4)
    assert uses(portal, ADA)[0]["lately"] == 0
    portal.clock.forward(minutes=3)
    (use,) = uses(portal, ADA)
    assert (use["lately"], use["minutes"], use["idle_since"], use["whole"]) == (None, 0, None, 0)
    says(portal, 90)
    (use,) = uses(portal, ADA)
    assert (use["lately"], use["minutes"]) == (90, 1), "what was before the gap is not taken with it"


def test_of_two_gpus_that_nobody_can_tell_apart_each_counts_once(portal: AgentPortal) -> None:
    booked(portal, 2)
    portal.token("s1")
    says(portal, 100, 0, minutes=12)
    (use,) = uses(portal, ADA)
    assert (use["lately"], [row["gpu"] for row in use["gpus"]]) == (50, ["", ""])
    assert use["idle_since"] is None, "one of them works"
    portal.cloud.has["s1"] = portal.cloud.has["s1"][:1]
    (use,) = uses(portal, ADA)
    assert use["lately"] is None, "of the other nothing is known"
    assert sorted(row["server"] for row in use["gpus"]) == ["", "s1"]


def test_the_use_of_a_booking_is_for_its_owner_and_admins(portal: AgentPortal) -> None:
    id = booked(portal)
    for person, expected in ((ADA, 1), (ROOT, 1), (BOB, 0), (EVE, 0)):
        assert len(uses(portal, person)) == len(uses(portal, person, booking=id)) == expected
    assert uses(portal, ROOT, mine="true") == []
    portal.cloud.has["s3"] = portal.cloud.has.pop("s1")
    (use,) = uses(portal, ADA)
    assert use["gpus"][0]["server"] == "", "somebody else still has it"
    portal.ledger.end(id, ADA)
    assert uses(portal, ADA) == []


def provider_place(portal: AgentPortal, server: str) -> str:
    (gpu,) = portal.cloud.has[server]
    return f"{gpu.host}/{gpu.address}"


def test_where_nobody_is_asked_nothing_is_told(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    assert portal.program(ADA).get("/v1/uses").json() == {"asked": False, "uses": []}


@pytest.mark.parametrize(
    ("minutes", "found"),
    [
        ([], (None, 0)),
        ([None, None], (None, 0)),
        ([10, 20], (15, 2)),
        ([90, *[None] * 6, 10], (10, 1)),
        ([90, *[None] * 5, 10], (50, 2)),
        ([90, *[None] * 5], (90, 1)),
        ([90, *[None] * 6], (None, 0)),
    ],
)
def test_lately_is_since_the_last_gap(minutes: list[int | None], found: tuple[int | None, int]) -> None:
    assert lately(minutes) == found


AT = "2026-11-23T12:00:00Z"


@pytest.mark.parametrize(
    ("lately", "whole", "idle", "words"),
    [
        (0, 41, AT, "0 % in the last 7 min; 41 % since it has a server, of 2.5 h heard; idle since N"),
        (None, None, None, "not known now"),
        (None, 41, None, "not known now; 41 % since it has a server, of 2.5 h heard"),
    ],
)  # fmt: skip
def test_the_use_of_a_booking_in_words(lately: int | None, whole: int | None, idle: str | None, words: str) -> None:
    use = {"lately": lately, "minutes": 7, "whole": whole, "hours": 2.5, "idle_since": idle}
    assert use_words(use, ZoneInfo("UTC")).replace(AT, "N") == words


# The real agent


@contextmanager
def served(portal: AgentPortal) -> Iterator[str]:
    with bind("127.0.0.1", 0) as listener:
        ends = threading.Event()
        server = server_of(portal.app, ends=ends)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield url_of(listener)
        finally:
            ends.set()
            thread.join()


def test_the_real_agent_says_that_a_gpu_has_fallen_off_the_bus(tmp_path: Path) -> None:
    portal = agent_portal(tmp_path, rules={"agent": {"projects": ["physics"], "period": 1}})
    library = mock_library(tmp_path)
    with served(portal) as url, guest(tmp_path, library) as server:
        portal.controller._portal = url
        portal.controller.run()
        server.nvml(gpu(0), gpu(1))
        server.on_bus(2)

        def metadata(_: object) -> ScriptedAnswer:
            return ScriptedAnswer(data={"uuid": "s1", "meta": {"gpuyard_agent": portal.cloud.words["s1"]}})

        server.http.on("GET", METADATA, metadata)
        server.start()
        server.until(lambda: bool(portal.service.servers()))
        server.until(lambda: (agent_guest := portal.service.guest("s1")) is not None and len(agent_guest.cards) == 2)
        assert observed(portal) == set()
        server.say(
            "3,1,1,-;NVRM: Xid (PCI:0000:06:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        )
        server.nvml(gpu(0), gpu(1, "lost"))
        server.until(lambda: {code for code, _ in observed(portal)} == {"xid-reset", "guest-lost"})
        portal.controller.run()
        assert portal.cloud.words["s1"].startswith(ON)


def test_who_may_use_it_is_in_the_table(portal: AgentPortal) -> None:
    from tests.unit.server.test_portal_authorization import AGENT_ACCESS, BOOKING_ACCESS, OF_HISTORY, endpoints

    assert endpoints(portal.app) == set(BOOKING_ACCESS | AGENT_ACCESS) - OF_HISTORY
    for person in (EVE, BOB, ADA, ROOT):
        assert portal.browser(person).client.get("/v1/agents").status_code == 200
