"""What everybody sees of everybody, at every endpoint that there is, for each choice of a site. An endpoint that is not
named here fails."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
from starlette.routing import Route
from starlette.testclient import TestClient

from gpuyard.model.booking import Person
from gpuyard.web.settings import OthersShown
from tests.support.full_portals import CLAIMED, LEE, MAX, OFTEN, full_portal
from tests.support.health_portals import HealthPortal
from tests.support.ledgers import BOB, ROOT
from tests.support.people import token_of
from tests.support.runner_portals import RUNNING

GROUPS = {
    "now": ("turing", "enigma", "thesis, last run"),
    "past": ("zuse", "rechner"),
    "project": ("physics",),
    "hold": ("riser card",),
    "told": ("smells of smoke",),
    "jobs": ("acme/solver",),
}
"""Words by which one knows: who has something now (their name, server and comment); who had something; of which project
both are; what an operator wrote at a hold; what TURING has said of a GPU; and GitHub's jobs, whose repositories
are no projects: for whoever is logged in."""
NAMES, PROJECTS, NOTHING = OthersShown
HIDING = (PROJECTS, NOTHING)
VIEWERS: dict[str, Person | None] = {"nobody": None, "other": BOB, "member": MAX, "manager": LEE, "admin": ROOT}
SEEN: dict[str, Mapping[OthersShown, set[str]]] = {
    "nobody": {key: set() for key in OthersShown},
    "other": {NAMES: {"now", "project", "hold", "jobs"}, PROJECTS: {"project", "jobs"}, NOTHING: {"jobs"}},
    "member": {NAMES: {"now", "project", "hold", "jobs"}} | {key: {"now", "project", "jobs"} for key in HIDING},
    "manager": {NAMES: {*GROUPS} - {"told"}} | {key: {"now", "project", "past", "jobs"} for key in HIDING},
    "admin": {key: {*GROUPS} for key in OthersShown},
}
"""The most that each of them sees anywhere. Members see each other's bookings and servers; who has used what is for
managers."""

DAYS = "from=2026-11-20&to=2026-11-24"
WHOSE = "by=project&by=user&by=host"
JOB = RUNNING.id
SHOWN: dict[str, list[tuple[str, str]]] = {
    "/": [("", "now project hold")],
    "/events": [("", "now project hold")],
    "/static/{name}": [("", "")],
    "/login": [("", "")],
    "/healthz": [("", "")],
    "/readyz": [("", "")],
    "/metrics": [("", "")],
    "/openapi.json": [("", "")],
    "/docs": [("", "")],
    "/docs/{path:path}": [("", "")],
    "/status": [("", "hold")],
    "/calendar": [("", "")],
    "/bookings": [("", "")],
    "/admin": [("", "")],
    "/mine": [("", "")],
    "/overview": [("", "now project")],
    "/project": [("", "project"), ("?id=p-physics", "now past project")],
    "/gpus": [("", "now project hold"), ("?q=enigma", "now project"), ("?state=held", "hold project")],
    "/gpu": [(f"?name=gpu-1/{CLAIMED}", "now past project"), (f"?name=gpu-1/{OFTEN}", "now project told")],
    "/host": [("?name=gpu-1", "now project hold"), ("?name=gpu-2", "now")],
    "/start": [("", "project")],
    "/runners": [("", "jobs")],
    "/job": [(f"?id={JOB}", "jobs")],
    "/health": [("", "project told")],
    "/ical/{secret}.ics": [("", "now project")],
    "/v1": [("", "")],
    "/v1/status": [("", "hold")],
    "/v1/gpus": [("", "now project hold"), ("?q=turing", "now project"), ("?q=physics", "now")],
    "/v1/pools": [("", "")],
    "/v1/me": [("", "")],
    "/v1/bookings": [
        ("", "now project hold"),
        ("?user=turing", "now project"),
        ("?project=physics&limit=1", "now"),
    ],
    "/v1/bookings/{id}": [("", "now project")],
    "/v1/cases": [("", "now")],
    "/v1/uses": [("", "now project"), ("?booking=b1", "")],
    "/v1/holds": [("", "hold")],
    "/v1/troubles": [("", "")],
    "/v1/audit": [("", "now project")],
    "/v1/calendar": [("?from=2026-11-22T00:00:00Z", "now project hold"), ("?pool=t4", "now project")],
    "/v1/pools/{pool}/rules": [("", "")],
    "/v1/feeds": [("", "")],
    "/v1/sessions": [("", "")],
    "/v1/usage": [
        (f"?{DAYS}&{WHOSE}", "past project"),
        (f"?{DAYS}&by=user", "past"),
        (f"?{DAYS}&by=user&user=zuse", ""),
        (f"?{DAYS}&by=project&user=u-zuse", "project"),
        (f"?{DAYS}&by=project&project=p-physics", "project"),
    ],
    "/v1/usage/intervals": [
        (f"?{DAYS}", "past project"),
        (f"?{DAYS}&user=u-zuse", "past project"),
        (f"?{DAYS}&project=physics", "past"),
    ],
    "/v1/utilisation": [("", "")],
    "/v1/utilisation/week": [("", "")],
    "/v1/waits": [("", "")],
    "/v1/budgets": [("", "project")],
    "/v1/flavors": [("", "project")],
    "/v1/queue": [("", "jobs")],
    "/v1/jobs": [("", "jobs"), ("?repository=acme/solver", "")],
    "/v1/jobs/{id:path}": [("", "jobs")],
    "/v1/jobs/{id:path}/log": [("", "")],
    "/v1/runners": [("?ended=10", "jobs")],
    "/v1/health": [("", "now project told")],
    "/v1/health/{host}/{address}": [("", "now project told")],
    "/v1/repairs": [("", "now project told")],
    "/v1/acceptances": [("", "")],
    "/v1/acceptances/{batch}": [("", "")],
    "/v1/maintenances": [("", "")],
    "/v1/maintenances/{id}": [("", "")],
    "/v1/agents": [("", "now")],
}
"""Endpoint -> what to ask of it, and what of the above an admin finds there: else nobody would be hidden anything."""

TIME = {"start": "2026-11-23T13:00:00Z", "end": "2026-11-23T15:00:00Z"}
T4 = {"pool": "t4", "gpus": 2, **TIME}
REPAIRS = ("start", "note", "done", "abandon", "lend", "return", "clear-baseline")
CHANGES: dict[tuple[str, str], dict[str, Any]] = {
    ("POST", "/login"): {},
    ("POST", "/login/sso"): {},
    ("POST", "/logout"): {},
    ("POST", "/project"): {},
    ("POST", "/v1/bookings"): T4,
    ("POST", "/v1/bookings/check"): T4,
    ("PATCH", "/v1/bookings/{id}"): {"comment": "mine now"},
    ("DELETE", "/v1/bookings/{id}"): {},
    **{("POST", f"/v1/bookings/{{id}}/{act}"): {} for act in ("cancel", "end", "approve", "decline", "accept", "open")},
    ("POST", "/v1/bookings/{id}/extend"): {"end": "2026-11-23T18:00:00Z"},
    ("POST", "/v1/holds"): {"gpus": [f"gpu-1/{CLAIMED}"], **TIME},
    ("POST", "/v1/troubles"): {"gpus": [f"gpu-1/{CLAIMED}"]},
    ("POST", "/v1/rules/check"): {"rules": []},
    ("POST", "/v1/feeds"): {"scope": "user"},
    ("DELETE", "/v1/feeds/{id}"): {},
    ("DELETE", "/v1/sessions"): {},
    ("POST", "/v1/github/webhook"): {},
    ("POST", "/v1/acceptances"): {"hosts": ["gpu-1"]},
    ("POST", "/v1/health/{host}/{address}/report"): {"words": "x"},
    **{
        ("POST", f"/v1/health/{{host}}/{{address}}/{step}"): {"comment": "x"}
        for step in ("quarantine", "release", *(f"repair/{action}" for action in REPAIRS))
    },
    ("POST", "/v1/hosts/{host}/tokens"): {},
    ("POST", "/v1/hosts/{host}/looks"): {},
    ("POST", "/v1/hosts/{host}/scrubs"): {},
    ("POST", "/v1/maintenances"): {"host": "gpu-1", "comment": "x", **TIME},
    ("POST", "/v1/maintenances/check"): {"host": "gpu-1", **TIME},
    **{("POST", f"/v1/maintenances/{{id}}/{step}"): {} for step in ("start", "done", "cancel")},
    ("POST", "/v1/maintenances/{id}/allow"): {"servers": ["5e2a0000-0000-4000-8000-000000000001"]},
    ("POST", "/v1/maintenances/{id}/extend"): {"end": "2026-11-25T18:00:00Z"},
    ("POST", "/v1/agents/enrol"): {"server": "enigma", "code": "gye_" + "0" * 64},
    ("POST", "/v1/agents/samples"): {},
}  # fmt: skip
"""What changes something -> what is sent: what those are told who may not, or who come too late."""


@dataclass
class Asked:
    """A portal, and a browser of each of `VIEWERS`."""

    portal: HealthPortal
    others: OthersShown
    browsers: dict[str, TestClient]
    feeds: dict[str, str] = field(default_factory=dict)

    def address(self, path: str, viewer: str) -> str:
        if path.startswith("/ical/") and self.browsers[viewer].headers.get("X-CSRF-Token"):
            if viewer not in self.feeds:
                made = self.browsers[viewer].post("/v1/feeds", json={"scope": "pool", "target": "t4"})
                self.feeds[viewer] = made.json()["path"]
            return self.feeds[viewer]
        words = {
            "{path:path}": "index.html", "{host}/{address}": f"gpu-1/{OFTEN}",
            "{host}": "gpu-1", "{pool}": "v100", "{name}": "live.js",
            "{id:path}": JOB, "{id}": self._id(path), "{secret}": "x" * 43, "{batch}": "abc",
        }  # fmt: skip
        for name, value in words.items():
            path = path.replace(name, value)
        return path

    def _id(self, path: str) -> str:
        if "maintenances" in path:
            service = self.portal.services.maintenance
            assert service is not None
            return service.views("gpu-2", past=True)[0].maintenance.id
        return "0" * 64 if "feeds" in path else "b1"

    def text(self, path: str, query: str, viewer: str, **headers: str) -> str:
        """What somebody is told, without what they have said themselves."""
        address = self.address(path, viewer)
        if path == "/events":
            self._once()
        answer = self.browsers[viewer].get(address + query, headers=headers)
        assert answer.status_code < 500, (path, answer.text)
        text = answer.text + str([value for name, value in answer.headers.items() if name != "set-cookie"])
        for value in query.lstrip("?").split("&"):
            text = text.replace(value.partition("=")[2] or "?", "?")
        return text

    def _once(self) -> None:
        """The stream of the map ends when it has told what there is."""
        feed = self.portal.app.state.feed
        feed.closed, since = False, type(feed)._since

        async def last(turn: int, hidden: bool) -> tuple[bytes, int]:
            feed.closed = True
            latest: tuple[bytes, int] = await since(feed, turn, hidden)
            return latest

        feed._since = last


@pytest.fixture(scope="module", params=list(OthersShown))
def asked(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Asked]:
    portal = full_portal(tmp_path_factory.mktemp("portal"), request.param)
    yield Asked(portal, request.param, {name: portal.browser(person).client for name, person in VIEWERS.items()})
    portal.ledger.close()


def groups(text: str) -> set[str]:
    return {name for name, words in GROUPS.items() if any(word in text for word in words)}


def test_every_endpoint_is_named(asked: Asked) -> None:
    routes = [route for route in asked.portal.app.routes if isinstance(route, Route)]
    assert len(routes) == len(asked.portal.app.routes), "one hides its endpoints from this test; add them one by one"
    both = {(method, route.path) for route in routes for method in (route.methods or ()) if method != "HEAD"}
    assert both == {("GET", path) for path in SHOWN} | set(CHANGES)


def test_admins_find_it_where_it_is_looked_for(asked: Asked) -> None:
    """Or nothing would have to be hidden there, and nothing be tried."""
    for path, ways in SHOWN.items():
        for query, shown in ways:
            assert groups(asked.text(path, query, "admin")) == set(shown.split()), (path, query)


@pytest.mark.parametrize("viewer", VIEWERS)
def test_nobody_sees_more_than_they_may(asked: Asked, viewer: str) -> None:
    allowed = SEEN[viewer][asked.others]
    observed: set[str] = set()
    for path, ways in SHOWN.items():
        for query, _ in ways:
            formats: list[dict[str, str]] = [{}, {"Accept": "text/csv"}] if path.startswith("/v1/") else [{}]
            for headers in formats:
                shown = groups(asked.text(path, query, viewer, **headers))
                assert shown <= allowed, (path, query, headers)
                observed |= shown
    assert observed == allowed  # which they may see somewhere


@pytest.mark.parametrize("viewer", ["nobody", "other", "member"])
def test_a_refusal_tells_no_more(asked: Asked, viewer: str) -> None:
    person, allowed = VIEWERS[viewer], SEEN[viewer][asked.others]
    client = asked.portal.browser().client
    for (method, path), body in CHANGES.items():
        headers = {"If-Match": '"7"', **(token_of(person) if person else {})}
        answer = client.request(method, asked.address(path, viewer), json=body, headers=headers)
        assert answer.status_code < 500, (method, path)
        assert groups(answer.text) <= allowed, (method, path, answer.text)


def test_what_somebody_has_used_can_be_asked_by_who_may_know(asked: Asked) -> None:
    for viewer in ("other", "member", "manager", "admin"):
        person = VIEWERS[viewer]
        assert person is not None
        client = asked.portal.program(person)
        for of in ("user=zuse", "user=u-zuse"):
            report = client.get(f"/v1/usage?{DAYS}&by=pool&{of}").json()
            knows = viewer in ("manager", "admin")
            assert report["total"]["total"] == (24 * 3600 if knows else 0)
            lines = client.get(f"/v1/usage/intervals?{DAYS}&{of}").json()["lines"]
            assert sum(line["seconds"] for line in lines) == (24 * 3600 if knows else 0)
