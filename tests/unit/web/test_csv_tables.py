"""Lists as CSV: the same rows as JSON has, for those who may see them, and no cell that a spreadsheet would run."""

from __future__ import annotations

import asyncio
import csv
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from gpuyard.model.text import FORMULA
from gpuyard.server.app import create_app
from gpuyard.web import csv_tables, page_tables
from gpuyard.web.csv_tables import csv_text, table_of
from tests.support.health_portals import fill, health_portal
from tests.support.inventories import plain_sources
from tests.support.ledgers import ADA, BOB, EVE, ROOT, ask
from tests.support.portals import BookingPortal, booking_portal

SPREADSHEET = {"accept": "text/csv"}


@pytest.fixture
def portal(tmp_path: Path) -> BookingPortal:
    return booking_portal(tmp_path)


def rows(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def test_a_list_is_the_same_as_in_json() -> None:
    client = TestClient(create_app(plain_sources(), ["testserver"]))
    answer = client.get("/v1/gpus?format=csv&pool=v100")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8; header=present"
    assert answer.headers["content-disposition"] == 'attachment; filename="gpuyard-gpus.csv"'
    assert "etag" not in answer.headers
    csv_rows, json_rows = rows(answer.text), client.get("/v1/gpus?pool=v100").json()["gpus"]
    assert [(row["host"], row["address"], row["state"]) for row in csv_rows] == [
        (row["host"], row["address"], row["state"]) for row in json_rows
    ]
    taken = next(row for row in csv_rows if row["state"] == "claimed")
    assert (taken["server.name"], taken["server.status"], taken["project"]) == ("training", "ACTIVE", "physics")
    assert next(row for row in csv_rows if row["state"] == "free")["server.name"] == ""


def test_the_header_says_it_too_and_json_stays_json() -> None:
    client = TestClient(create_app(plain_sources(), ["testserver"]))
    csv_rows = rows(client.get("/v1/pools", headers=SPREADSHEET).text)
    free = {pool["name"]: str(pool["free"]) for pool in client.get("/v1/pools?format=json").json()["pools"]}
    assert {row["name"]: row["states.free"] for row in csv_rows} == free
    tag = client.get("/v1/pools").headers["etag"]
    assert client.get("/v1/pools", headers={"if-none-match": tag}).status_code == 304
    assert client.get("/v1/pools", headers={"if-none-match": tag, **SPREADSHEET}).status_code == 200
    assert client.get("/v1", headers=SPREADSHEET).headers["content-type"] == "application/json"


def test_what_is_no_table_is_refused() -> None:
    client = TestClient(create_app(plain_sources(), ["testserver"]))
    assert client.get("/v1/gpus?format=xml").json()["detail"] == "format: is one of json, csv"
    assert client.get("/v1/nothing?format=csv").json()["code"] == "no_table"
    assert client.get("/v1/gpus?format=csv&pool=x").json()["code"] == "invalid_parameters"


def test_others_are_answered_while_a_list_or_a_page_is_turned(
    portal: BookingPortal, monkeypatch: pytest.MonkeyPatch
) -> None:
    turned = []

    def beside(turn: Callable[..., Any]) -> Callable[..., Any]:
        def checked(*given: Any) -> Any:
            with pytest.raises(RuntimeError, match="no running event loop"):
                asyncio.get_running_loop()
            turned.append(given)
            return turn(*given)

        return checked

    monkeypatch.setattr(csv_tables, "csv_of", beside(csv_tables.csv_of))
    monkeypatch.setattr(page_tables, "table_csv", beside(page_tables.table_csv))
    client = portal.browser(ADA).client
    assert client.get("/v1/gpus?format=csv").status_code == 200
    assert client.get("/project?csv=limits").status_code == 200
    assert len(turned) == 2
    assert client.get("/docs/index.html?csv=limits").json()["code"] == "not_found"


def test_an_empty_list_has_its_columns(portal: BookingPortal) -> None:
    text = portal.browser(ADA).client.get("/v1/bookings?format=csv").text
    assert text.startswith("id,kind,state,pool,gpus,")
    assert text.count("\r\n") == 1


def test_the_next_page_is_a_table_too(portal: BookingPortal) -> None:
    for hours in (1, 8):
        portal.ledger.create(ask(hours), ADA)
    client = portal.browser(ADA).client
    answer = client.get("/v1/bookings?format=csv&limit=1")
    following = answer.links["next"]["url"]
    assert [row["id"] for row in rows(answer.text)] == ["b1"]
    assert [row["id"] for row in rows(client.get(following).text)] == ["b2"]


def test_rights_are_those_of_the_list(portal: BookingPortal) -> None:
    assert portal.browser().client.get("/v1/bookings?format=csv").status_code == 401
    assert portal.browser(BOB).client.get("/v1/audit?format=csv").status_code == 403
    assert portal.browser(ROOT).client.get("/v1/audit?format=csv").status_code == 200


def test_every_list_of_the_api_is_a_table(tmp_path: Path) -> None:
    portal = health_portal(tmp_path)
    fill(portal)
    client = portal.browser(ROOT).client
    lists = {
        route.path: table
        for route in portal.app.routes
        if isinstance(route, APIRoute) and route.methods == {"GET"} and "{" not in route.path
        if isinstance(model := route.response_model, type) and issubclass(model, BaseModel)
        if (table := table_of(model))
    }
    assert lists.keys() >= {"/v1/gpus", "/v1/bookings", "/v1/health", "/v1/audit", "/v1/feeds", "/v1/maintenances"}
    for path, table in lists.items():
        answer, document = client.get(f"{path}?format=csv"), client.get(path).json()
        assert answer.status_code == 200, path
        assert len(rows(answer.text)) == len(document[table.key]), path


def test_no_cell_is_a_formula(portal: BookingPortal) -> None:
    portal.ledger.create(ask(comment="=HYPERLINK(1)"), ADA)
    (row,) = rows(portal.browser(EVE).client.get("/v1/bookings?format=csv").text)
    assert row["comment"] == "'=HYPERLINK(1)"


@given(
    st.lists(st.tuples(st.text(max_size=20), st.none() | st.integers() | st.booleans(), st.lists(st.text(max_size=9))))
)
def test_any_text_is_one_cell_that_nothing_runs(table: list[tuple[Any, ...]]) -> None:
    read = list(csv.reader(io.StringIO(csv_text(["a", "b", "c"], table))))
    assert len(read) == len(table) + 1
    for (text, _, words), row in zip(table, read[1:], strict=True):
        assert len(row) == 3
        assert not (row[0] + " ").startswith(FORMULA)
        assert not (row[2] + " ").startswith(FORMULA)
        assert "".join(row).isprintable()
        assert bool(text) == bool(row[0])
        assert bool(words) >= bool(row[2])
