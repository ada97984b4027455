"""How hosts fetch what they are to scrub, and what they may say: hostile input among it."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gpuyard.health.records import HealthState
from gpuyard.health.web.scrub_intake import AT_ONCE, MOST_RESULTS, read_results
from gpuyard.model.scrub import ScrubOutcome, ScrubResult
from gpuyard.web.access import MOST_BYTES
from gpuyard.web.problems import Refusal
from tests.support.health_portals import HealthPortal, fine, health_portal
from tests.support.ledgers import ADA, ROOT

PATH = "/v1/hosts/gpu-1/scrubs"
LONE = "0000:c3:00.0"


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path)
    fine(made)
    gpu = made.service.gpu(f"gpu-1/{LONE}")
    assert made.service.store.put(replace(gpu, state=HealthState.RETURNED, generation=7))
    return made


def token(portal: HealthPortal, host: str = "gpu-1", purpose: str = "scrub") -> str:
    answer = portal.program(ROOT).post(f"/v1/hosts/{host}/tokens", json={"purpose": purpose})
    assert answer.status_code == 201, answer.text
    return str(answer.json()["token"])


def send(portal: HealthPortal, token: str, body: object, path: str = PATH) -> Any:
    client = TestClient(portal.app, raise_server_exceptions=False)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return client.post(path, content=content, headers={"Authorization": f"Bearer {token}"})


def test_a_host_fetches_orders_and_says_what_came_of_them(portal: HealthPortal) -> None:
    mine = token(portal)
    first = send(portal, mine, {"results": []})
    assert first.status_code == 200
    (order,) = first.json()["orders"]
    assert order["address"] == LONE
    done = ScrubResult(order["id"], LONE, ScrubOutcome.CLEAN, "", (LONE,), "bus", 1.5, 1.0, ("seen",))
    again = send(portal, mine, {"results": [done.as_dict()]})
    assert again.json() == {"orders": []}
    gpu = portal.service.gpu(f"gpu-1/{LONE}")
    assert (gpu.state, gpu.generation) == (HealthState.CHECKED, 7)
    assert send(portal, mine, {"results": [done.as_dict()]}).json() == {"orders": []}  # a replay
    assert portal.service.gpu(f"gpu-1/{LONE}") == gpu


def test_only_the_token_of_this_host_and_purpose_lets_in(portal: HealthPortal) -> None:
    mine = token(portal)
    for wrong in ("", "gys_", mine[:-1], mine + "0", token(portal, "gpu-2"), token(portal, purpose="watch")):
        answer = send(portal, wrong, {"results": []})
        assert answer.status_code == 401, wrong
        assert "needs a token for scrub of gpu-1" in answer.json()["detail"]
    assert send(portal, mine, {"results": []}, "/v1/hosts/gpu-2/scrubs").status_code == 401
    assert portal.service.gpu(f"gpu-1/{LONE}").state is HealthState.RETURNED
    assert portal.program(ADA).post(PATH, json={"results": []}).status_code == 401  # people have no business here
    renewed = token(portal)
    assert send(portal, mine, {"results": []}).status_code == 401
    assert send(portal, renewed, {"results": []}).status_code == 200


def test_one_host_cannot_speak_for_another(portal: HealthPortal) -> None:
    (order,) = send(portal, token(portal), {"results": []}).json()["orders"]
    done = ScrubResult(order["id"], LONE, ScrubOutcome.CLEAN, functions=(LONE,)).as_dict()
    other = send(portal, token(portal, "gpu-2"), {"results": [done]}, "/v1/hosts/gpu-2/scrubs")
    assert other.json() == {"orders": []}
    assert portal.service.gpu(f"gpu-1/{LONE}").state is HealthState.SCRUBBING


def test_floods_are_stopped_and_long_bodies_not_read(portal: HealthPortal) -> None:
    mine = token(portal)
    assert send(portal, mine, b"x" * (MOST_BYTES * 100)).status_code == 413
    # More are let in as time goes by, but not as fast as they come.
    statuses = (send(portal, mine, {"results": []}).status_code for _ in range(10 * AT_ONCE))
    assert next(statuses) == 200
    assert 429 in statuses


GOOD = ScrubResult("order-1", LONE, ScrubOutcome.CLEAN, functions=(LONE,)).as_dict()


@pytest.mark.parametrize(
    "body",
    [
        b"", b"{", b"[]", b"null", b"\xff", b'{"results": 3}', b"[" * 50_000,
        *(
            json.dumps({"results": [GOOD | changed]}).encode()
            for changed in (
                {"order": ""}, {"order": "../x"}, {"order": 3}, {"address": "x"}, {"address": f"{LONE}\n"},
                {"outcome": "fine"}, {"outcome": None}, {"reason": "x" * 1001}, {"seconds": -1}, {"seconds": "1"},
                {"seconds": 1e300}, {"functions": [LONE] * 65}, {"functions": "x"}, {"evidence": ["x"] * 129},
            )
        ),
        json.dumps({"results": [GOOD] * (MOST_RESULTS + 1)}).encode(),
        b'{"results": [{"order": "a", "address": "0000:c3:00.0", "outcome": "clean", "seconds": NaN}]}',
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_refused_with_a_reason(body: bytes) -> None:
    with pytest.raises(Refusal) as refusal:
        read_results(body)
    assert refusal.value.status == 422
    assert refusal.value.detail.isprintable()
    assert len(refusal.value.detail) < 400


def test_what_a_newer_host_says_besides_is_left_alone() -> None:
    (read,) = read_results(json.dumps({"results": [{**GOOD, "wiped": True}], "more": 1}).encode())
    assert read.outcome is ScrubOutcome.CLEAN


def test_what_is_not_printable_is_made_so() -> None:
    (read,) = read_results(
        json.dumps({"results": [{**GOOD, "reason": "a\x1b[31m", "evidence": ["\n\u202e"]}]}).encode()
    )
    assert read.reason.isprintable()
    assert all(line.isprintable() for line in read.evidence)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from([*GOOD, "results"]), inner, max_size=5),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(JSON)
def test_nothing_that_is_sent_is_an_error_of_ours(document: object) -> None:
    body = document if isinstance(document, dict) else {"results": document}
    with suppress(Refusal):
        assert len(read_results(json.dumps(body).encode())) <= MOST_RESULTS
