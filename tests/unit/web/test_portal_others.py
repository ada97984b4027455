"""What people see of others, on every way out of the portal, for each setting of the site."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from gpuyard.web.settings import OthersShown
from tests.support.health_portals import health_portal
from tests.support.ledgers import ADA, BOB, HOUR, NOON, ROOT, ask
from tests.support.portals import ROOMY, BookingPortal, booking_portal, without_ids

SECRETS = ("ada", "thesis, last run", "7f3c9a1e-0000", "training")
"""Ada's name, the comment of her booking, and her server on the map (tests/support/inventories.py)."""
PROJECT = "physics"
WAYS = (
    "/v1/bookings", "/v1/bookings?user=ada", "/v1/bookings?project=physics", "/v1/bookings/b1", "/v1/gpus", "/",
    "/v1/gpus?format=csv", "/v1/bookings?format=csv", "/v1/gpus?q=v100", "/gpus", "/gpus?q=claimed",
    "/gpu?name=epyc/0000:27:00.0", "/host?name=epyc",
    "/v1/calendar?pool=v100&from=2026-11-23T00:00:00Z&to=2026-11-25T00:00:00Z",
)  # fmt: skip


@pytest.fixture(params=list(OthersShown))
def portal(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[BookingPortal]:
    """Ada has booked; bob of another project looks."""
    portal = booking_portal(tmp_path, settings=replace(ROOMY, others=request.param))
    portal.ledger.create(ask(comment="thesis, last run"), ADA)
    yield portal
    portal.ledger.close()


def others_of(portal: BookingPortal) -> OthersShown:
    others = portal.app.state.feed._sources.settings.others
    assert isinstance(others, OthersShown)
    return others


def said(client: TestClient, way: str) -> str:
    answer = client.get(way)
    assert answer.status_code == 200, way
    return without_ids(answer.text)


@pytest.mark.parametrize("way", WAYS)
def test_others_are_hidden_as_the_site_says(portal: BookingPortal, way: str) -> None:
    others, shown = others_of(portal), said(portal.browser(BOB).client, way)
    if others is OthersShown.NAMES:
        assert any(secret in shown for secret in SECRETS)
        return
    assert [secret for secret in SECRETS if secret in shown.replace("user=ada", "")] == []
    if others is OthersShown.NOTHING:
        assert PROJECT not in shown.replace("project=physics", "")


@pytest.mark.parametrize("way", WAYS)
def test_admins_see_all(portal: BookingPortal, way: str) -> None:
    shown = said(portal.browser(ROOT).client, way)
    assert any(secret in shown for secret in SECRETS)


def test_everybody_sees_what_is_theirs(portal: BookingPortal) -> None:
    ada = portal.browser(ADA).client
    (row,) = ada.get("/v1/bookings").json()["bookings"]
    assert (row["user"], row["project"], row["comment"]) == ("ada", "physics", "thesis, last run")
    assert "training" in said(ada, "/v1/gpus")


def test_a_refusal_does_not_tell_whose_it_is(portal: BookingPortal) -> None:
    answer = portal.browser(BOB).client.post("/v1/bookings/b1/cancel")
    assert answer.status_code == 403
    assert "ada" not in answer.text


def test_a_feed_of_a_pool_hides_the_same(portal: BookingPortal) -> None:
    bob = portal.browser(BOB).client
    made = bob.post("/v1/feeds", json={"scope": "pool", "target": "v100"}).json()
    shown = said(portal.browser().client, made["path"])
    hidden = others_of(portal) is not OthersShown.NAMES
    assert ("somebody" in shown, "thesis" in shown) == (hidden, not hidden)


def test_the_stream_of_the_map_hides_the_same(portal: BookingPortal) -> None:
    async def first_map(hidden: bool) -> str:
        stream, heard = portal.app.state.feed.stream(hidden=hidden), ""
        async with asyncio.timeout(30):
            while "event: map" not in heard or "event: pulse" not in heard:
                heard += (await anext(stream)).decode()
        await stream.aclose()
        return heard

    hides = others_of(portal) is not OthersShown.NAMES
    heard = asyncio.run(first_map(hidden=hides))
    assert heard.count("event: map") == 1
    assert ("training" in heard) == (not hides)
    if hides:
        assert "training" in asyncio.run(first_map(hidden=False))


def test_bookings_are_hidden_until_they_are_over(portal: BookingPortal) -> None:
    portal.ledger.cancel("b1", ROOT, reason="ada has left")
    shown = said(portal.browser(BOB).client, "/v1/bookings?state=cancelled")
    assert ("ada" in shown) == (others_of(portal) is OthersShown.NAMES)
    assert str(NOON.year) in shown


@pytest.mark.parametrize("way", ["/v1/gpus?q=training", "/v1/gpus?q=ada", "/gpus?q=7f3c9a1e"])
def test_a_search_finds_only_what_is_shown(portal: BookingPortal, way: str) -> None:
    shown = portal.browser(BOB).client.get(way)
    has_match = bool(shown.json()["gpus"]) if way.startswith("/v1") else "No GPU matches" not in shown.text
    assert has_match == (others_of(portal) is OthersShown.NAMES)
    assert "training" in said(portal.browser(ADA).client, "/v1/gpus?q=training")


def test_who_waits_is_hidden_alike(portal: BookingPortal) -> None:
    portal.ledger.create(ask(1, gpus=2, pool="t4"), BOB)
    portal.ledger.create(ask(1, gpus=2, pool="t4", comment="thesis, last run"), ADA, wait=True)
    others, shown = others_of(portal), said(portal.browser(BOB).client, "/overview")
    assert "2 of t4" in shown
    assert ("<bdi>ada in physics</bdi>" in shown) == (others is OthersShown.NAMES)
    assert ("physics" in shown) == (others is not OthersShown.NOTHING)
    assert "<bdi>ada in physics</bdi>" in said(portal.browser(ROOT).client, "/overview")


def test_the_page_of_a_gpu_hides_whose_booking_it_is(tmp_path: Path) -> None:
    for others in OthersShown:
        folder = tmp_path / others
        folder.mkdir()
        portal = health_portal(folder, replace(ROOMY, others=others))
        portal.ledger.create(ask(comment="thesis, last run", gpu="gpu-1/0000:c3:00.0"), ADA)
        shown = said(portal.browser(BOB).client, "/gpu?name=gpu-1/0000:c3:00.0")
        assert "2026-11-23 13:00" in shown
        assert ("thesis, last run" in shown) == ("ada" in shown) == (others is OthersShown.NAMES)
        assert ("physics" in shown) == (others is not OthersShown.NOTHING)
        assert "thesis, last run" in said(portal.browser(ADA).client, "/gpu?name=gpu-1/0000:c3:00.0")


@pytest.mark.parametrize("way", ["/v1/gpus", "/v1/bookings/b1"])
def test_what_a_browser_has_of_one_person_is_not_the_answer_to_the_next(portal: BookingPortal, way: str) -> None:
    """A browser sends the tag that it has of an address, whoever has logged in since."""
    ada, bob = portal.browser(ADA).client, portal.browser(BOB).client
    tag = {"If-None-Match": ada.get(way).headers["etag"]}
    assert ada.get(way, headers=tag).status_code == 304
    same = others_of(portal) is OthersShown.NAMES
    assert bob.get(way, headers=tag).status_code == (304 if same else 200)


def test_a_search_tells_nothing_by_its_links(portal: BookingPortal) -> None:
    page = portal.browser(BOB).client.get("/v1/bookings?user=ada&limit=1").json()
    assert bool(page["bookings"]) == bool(page["links"]) == (others_of(portal) is OthersShown.NAMES)


def test_of_a_runner_others_see_that_it_is_one(portal: BookingPortal) -> None:
    what = "runner gpuyard-t4-x1 of owner/name"
    portal.ledger.leases.take("t4", 1, False, NOON + HOUR, "gpuyard-t4-x1", "p-ci", "ci", what, yields=True)
    shown = said(portal.browser(BOB).client, "/v1/calendar?pool=t4&from=2026-11-23T00:00:00Z&to=2026-11-25T00:00:00Z")
    assert '"kind":"runner"' in shown
    assert ("owner/name" in shown) == ("gpuyard-t4-x1" in shown) == (others_of(portal) is OthersShown.NAMES)
