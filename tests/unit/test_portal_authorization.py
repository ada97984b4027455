"""Who may reach what. A new endpoint fails here until somebody has decided about it and written that down."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.routing import Route

from gpuyard.portal.app import create_app
from tests.support.yards import GPUS, driver, filled

LOOPBACK = "anyone who can reach the loopback address"
"""There is no login yet: the server refuses to listen elsewhere unless it is told to."""

ACCESS = {
    ("GET", "/"): LOOPBACK,
    ("GET", "/events"): LOOPBACK,
    ("GET", "/static/{name}"): LOOPBACK,
    ("GET", "/v1"): LOOPBACK,
    ("GET", "/v1/gpus"): LOOPBACK,
    ("GET", "/v1/pools"): LOOPBACK,
    ("GET", "/openapi.json"): LOOPBACK,
    ("GET", "/healthz"): LOOPBACK,
    ("GET", "/readyz"): LOOPBACK,
    ("GET", "/metrics"): LOOPBACK,
}


@pytest.fixture
def app() -> FastAPI:
    return create_app(filled(), driver(), "test", GPUS, ["testserver"])


def endpoints(app: FastAPI) -> set[tuple[str, str]]:
    found = set()
    for route in app.routes:
        assert isinstance(route, Route), f"{route} hides its endpoints from this test; add them one by one"
        assert route.methods
        found |= {(method, route.path) for method in route.methods - {"HEAD"}}
    return found


def test_every_endpoint_is_decided_about(app: FastAPI) -> None:
    assert endpoints(app) == set(ACCESS)


def test_nothing_can_be_changed(app: FastAPI) -> None:
    assert {method for method, _ in ACCESS} == {"GET"}
    client = TestClient(app)
    for _, path in ACCESS:
        for method in ("POST", "PUT", "PATCH", "DELETE", "OPTIONS"):
            response = client.request(method, path.replace("{name}", "live.js"))
            assert response.status_code == 405, (method, path)
            assert response.headers["allow"] in ("GET", "GET, HEAD", "HEAD, GET")
