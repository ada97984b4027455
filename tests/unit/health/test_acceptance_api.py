"""Acceptances over the API: what is asked for, by whom, and what is told of it."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.health.acceptance import TryState
from gpuyard.health.controllers.acceptance_service import AcceptanceService
from tests.support.health_portals import HealthPortal, fine, health_portal
from tests.support.ledgers import ADA, ROOT

LONE = "gpu-1/0000:a3:00.0"


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    made = health_portal(tmp_path, acceptance=True)
    fine(made)
    return made


def service_of(portal: HealthPortal) -> AcceptanceService:
    assert portal.services.acceptance is not None
    return portal.services.acceptance


def test_without_a_project_it_is_said_what_to_write(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    answer = portal.browser(ROOT).client.post("/v1/acceptances", json={})
    assert answer.status_code == 409
    assert "write 'project' and 'image' under 'health: acceptance:'" in answer.json()["detail"]


def test_what_is_asked_for_is_tried_and_told(portal: HealthPortal) -> None:
    acceptance = service_of(portal)
    admin = portal.browser(ROOT).client
    woken: list[str] = []
    acceptance.wake.listen(woken.append)
    answer = admin.post("/v1/acceptances", json={"targets": ["gpu-2", "gpu-3"]})
    assert answer.status_code == 202, answer.text
    tries = answer.json()["tries"]
    assert [(attempt["host"], attempt["canary"], attempt["state"], attempt["over"]) for attempt in tries] == [
        ("gpu-2", True, "waiting", False), ("gpu-3", False, "waiting", False),
    ]  # fmt: skip
    assert woken == ["root wants 2 slots accepted"]
    assert admin.get(f"/v1/acceptances/{tries[0]['batch']}").json()["tries"] == tries
    assert admin.get("/v1/acceptances").json()["tries"] == tries
    assert admin.get("/v1/acceptances/nothing").status_code == 404
    again = admin.post("/v1/acceptances", json={"targets": ["gpu-2"]})
    assert again.status_code == 409
    assert "is being accepted already" in again.json()["detail"]
    assert admin.post("/v1/acceptances", json={"targets": ["gpu-9"]}).status_code == 409
    assert portal.ledger.audit()[0].action == "gpu.accept"
    record = admin.get("/v1/health/gpu-2/0000:18:00.0").json()
    assert record["gpu"]["acceptance"] == "waiting"
    assert "Acceptance by a server" in admin.get("/gpu?name=gpu-2/0000:18:00.0").text
    assert portal.browser(ADA).client.get("/v1/health/gpu-2/0000:18:00.0").json()["gpu"]["acceptance"] == ""
    assert 'gpuyard_gpu_acceptances{state="waiting"} 2.0' in admin.get("/metrics").text
    assert {attempt.state for attempt in acceptance.batch(tries[0]["batch"])} == {TryState.WAITING}
