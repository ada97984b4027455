"""Tables of pages: each can be had as CSV, searched by its address, and tells nobody more than its page."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html.parser import HTMLParser
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.dashboard.use_presenter import SpanLink
from gpuyard.model.booking import Person
from gpuyard.web.page_tables import table_csv
from gpuyard.web.search import matching
from gpuyard.web.settings import OthersShown, PortalSettings
from tests.support.health_portals import HealthPortal, fill, health_portal
from tests.support.ledgers import ADA, BOB, ROOT
from tests.support.pages_world import live, whole_portal
from tests.support.portals import BookingPortal
from tests.support.runner_portals import NASTY_JOB, RUNNING

ASKED = {
    "/gpu": "?name=gpu-1/0000:27:00.0",
    "/host": "?name=gpu-1",
    "/job": f"?id={RUNNING.id}",
    "/project": "?id=p-physics",
}
"""What pages must be asked for; all others are there by their path alone."""
NO_PAGES = {
    "/login",
    "/login/sso",
    "/logout",
    "/events",
    "/static/{name}",
    "/v1/agents/samples",
    "/docs",
    "/openapi.json",
    "/docs/{path:path}",
}
NO_TABLES = {"/", "/calendar", "/bookings", "/mine", "/start", "/job"}
"""Pages whose rows are lines and cards."""


@pytest.fixture(scope="module")
def health(tmp_path_factory: pytest.TempPathFactory) -> HealthPortal:
    """For those who only look."""
    return whole_portal(tmp_path_factory.mktemp("portal"))


@dataclass
class Found(HTMLParser):
    """Tables and links of CSV, each with the sections that it is in."""

    tables: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)
    links: list[tuple[str, tuple[int, ...]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self._sections: list[int] = []
        self._count = 0

    def handle_starttag(self, tag: str, attrs: Sequence[tuple[str, str | None]]) -> None:
        stated = dict(attrs)
        if tag == "section":
            self._count += 1
            self._sections.append(self._count)
        elif tag == "table":
            self.tables.append((stated.get("id") or "", tuple(self._sections)))
        elif tag == "a" and "csv" in (stated.get("href") or ""):
            self.links.append((stated["href"] or "", tuple(self._sections)))

    def handle_endtag(self, tag: str) -> None:
        if tag == "section":
            self._sections.pop()


def pages(portal: BookingPortal) -> Iterator[tuple[str, Found]]:
    client = portal.browser(ROOT).client
    for route in portal.app.routes:
        if not isinstance(route, APIRoute) or route.include_in_schema or "GET" not in (route.methods or ()):
            continue
        if route.path in NO_PAGES:
            continue
        answer = client.get(route.path + ASKED.get(route.path, ""))
        assert answer.status_code == 200, f"{route.path}: a page that must be asked for something belongs into ASKED"
        assert answer.headers["content-type"].startswith("text/html"), route.path
        page = Found()
        page.feed(answer.text)
        yield route.path, page


def test_every_table_of_every_page_leads_to_its_csv(health: HealthPortal) -> None:
    table_counts: dict[str, int] = {}
    client = health.browser(ROOT).client
    for path, page in pages(health):
        table_counts[path] = len(page.tables)
        for id, sections in page.tables:
            near = [href for href, around in page.links if set(around) & set(sections)]
            assert near, f"{path}: no link to table {id!r} as CSV"
            assert not id or any(f"csv={id}" in href for href in near), f"{path}: no link to table {id!r}"
        for href, _ in page.links:
            answer = client.get(f"/{href}")
            assert answer.status_code == 200, (path, href, answer.text)
            assert answer.headers["content-type"].startswith("text/csv"), (path, href)
            lines = list(csv.reader(io.StringIO(answer.text)))
            assert {len(line) for line in lines} == {len(lines[0])}, (path, href)
    assert {path for path, count in table_counts.items() if not count} == NO_TABLES
    assert table_counts.keys() >= {
        "/gpus",
        "/gpu",
        "/host",
        "/project",
        "/overview",
        "/status",
        "/runners",
        "/health",
        "/admin",
    }


def rows(portal: BookingPortal, who: Person | None, path: str) -> list[dict[str, str]]:
    answer = portal.browser(who).client.get(path)
    assert answer.status_code == 200, answer.text
    return list(csv.DictReader(io.StringIO(answer.text)))


def test_a_table_is_what_stands_on_the_page(health: HealthPortal) -> None:
    page = health.browser(ADA).client.get("/project").text
    (held,) = rows(health, ADA, "/project?csv=held")
    assert (held["GPU"], held["Server"], held["Who"]) == ("gpu-1/0000:a3:00.0", "training", "ada")
    pools = rows(health, ADA, "/project?csv=by-pool-table")
    assert [row["Pool"] for row in pools] == ["t4", "v100"]
    assert all(f">{row['Used']}</td>" in page for row in pools)
    answer = health.browser(ADA).client.get("/project?csv=held")
    assert answer.headers["content-disposition"] == 'attachment; filename="gpuyard-project-held.csv"'
    assert answer.headers["cache-control"] == "no-store"
    missing = health.browser(ADA).client.get("/project?csv=nothing")
    assert (missing.status_code, missing.json()["code"]) == (404, "no_table")


def test_rights_are_those_of_the_page(tmp_path: Path) -> None:
    portal = health_portal(tmp_path, PortalSettings(others=OthersShown.NOTHING))
    fill(portal)
    live(portal)
    assert portal.browser().client.get("/health?csv=repeats").status_code == 303
    assert portal.browser(BOB).client.get("/health?csv=repeats").status_code == 403
    names = {name: {row["Who"] for row in rows(portal, who, "/gpu?name=gpu-1/0000:27:00.0&days=30&csv=past")}
             for name, who in (("admin", ROOT), ("bob", BOB))}  # fmt: skip
    assert "ada in physics" in names["admin"]
    assert not any("ada" in who for who in names["bob"])
    assert [row["Part"] for row in rows(portal, None, "/status?csv=loops")] == ["look"]


@pytest.mark.parametrize(
    ("path", "q", "there", "gone"),
    [
        ("/mine", "5E2A0000", "runs for", "training, last run"),
        ("/mine", "last run", "training, last run", "runs for"),
        ("/project", "nobody-has-this-name", "Current and upcoming bookings", "training, last run"),
        ("/health", "0000:18", "0000:18:00.0", "gpu-1/0000:27:00.0"),
    ],
)
def test_pages_are_searched_by_their_address(health: HealthPortal, path: str, q: str, there: str, gone: str) -> None:
    client = health.browser(ROOT if path == "/health" else ADA).client
    assert gone in client.get(path).text
    page = client.get(path, params={"q": q}).text
    assert there in page
    assert gone not in page
    assert f'name="q" value="{q}"' in page


def test_who_waits_is_searched(health: HealthPortal) -> None:
    for q, shown in (("ADA", True), ("nobody", False)):
        page = health.browser(ROOT).client.get(f"/overview?q={q}").text
        assert ("ada in physics" in page.partition('id="waits-title"')[2].partition("</section>")[0]) is shown


def test_runners_are_searched_by_words_and_repository(health: HealthPortal) -> None:
    client = health.browser(ADA).client
    whole = client.get("/runners").text
    assert f'href="job?id={RUNNING.id.replace("/", "%2F")}"' in whole
    only = client.get("/runners?repository=acme/x").text
    assert "from a fork" not in only
    assert NASTY_JOB.id.replace("/", "%2F") in only
    assert RUNNING.id.replace("/", "%2F") not in only
    page = client.get("/runners?q=ci+train").text
    assert RUNNING.id.replace("/", "%2F") in page
    assert NASTY_JOB.id.replace("/", "%2F") not in page
    assert "test 200" in client.get("/runners?q=test+200").text


LETTERS = st.characters(codec="latin-1", exclude_categories=("Cc", "Cf"))
CELLS = st.lists(st.lists(st.text(LETTERS, max_size=8), min_size=2, max_size=2), min_size=1, max_size=4)


@given(CELLS)
def test_cells_are_read_as_they_are_shown(cells: list[list[str]]) -> None:
    def escaped(text: str) -> str:
        return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")

    lines = "".join("<tr>" + "".join(f"<td><b>{escaped(cell)}</b></td>" for cell in line) + "</tr>" for line in cells)
    page = f"<table id='x'><tr><th>no</table><table id=t>{lines}</table><table id=t><tr><td>no</td></tr></table>"
    read = list(csv.reader(io.StringIO(table_csv(page, "t") or "")))
    shown = [[" ".join(cell.split()) for cell in line] for line in cells]
    assert [[cell.lstrip("'") for cell in line] for line in read] == [
        [cell.lstrip("'") for cell in line] for line in shown
    ]


@given(st.text(max_size=300))
def test_any_page_is_read_without_an_error(page: str) -> None:
    table_csv(f"<table id=t>{page}", "t")


def test_each_word_must_stand_somewhere() -> None:
    some = [SpanLink("Alpha beta", "x", True), SpanLink("gamma", "beta", False)]
    assert matching(some, " ") == some
    assert matching(some, "BETA") == some
    assert matching(some, "beta alpha") == some[:1]
    assert matching(some, "delta") == []
