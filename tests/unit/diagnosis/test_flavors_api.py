"""GET /v1/flavors: whose limits, until when, in whose words, and what becomes of a cloud that is away."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from html import escape
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from gpuyard.diagnosis.controllers.capacity import FRESH, CapacityService
from gpuyard.inventory.state import ledger_words
from gpuyard.model.booking import Rules
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.server.app import create_app
from gpuyard.site.load import LoadedSite
from gpuyard.web.settings import OthersShown
from tests.support.inventories import plain_sources
from tests.support.ledgers import ADA, BOB, HOUR, NOON, ROOT, ask
from tests.support.portals import ROOMY, BookingPortal, booking_portal
from tests.support.rooms import Knows, room_of
from tests.support.sites import site
from tests.support.sysfs import epyc

FLAVOR = {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 1}}


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> LoadedSite:
    return site(tmp_path_factory.mktemp("site"), {"flavors": {"one": FLAVOR}}, {"gpu-1": epyc()})


@pytest.fixture
def cloud(loaded: LoadedSite) -> Knows:
    return Knows(room_of(loaded), {ADA.project_id: {"class:CUSTOM_GPU_V100_COUNT": 2}})


@pytest.fixture
def portal(tmp_path: Path, cloud: Knows) -> BookingPortal:
    made = booking_portal(tmp_path, Rules(must_book=False, most_active=9, hold=HOUR), capacity=cloud)
    publish(made, [GpuStatus(gpu, GpuState.FREE) for gpu in cloud.room.gpus])
    return made


def publish(portal: BookingPortal, statuses: list[GpuStatus]) -> None:
    portal.app.state.feed._sources.inventory.publish(NOON, statuses)


def told(portal: BookingPortal, person: object = ADA, **query: str) -> dict[str, object]:
    answer = portal.program(person).get("/v1/flavors", params=query)  # type: ignore[arg-type]
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def one(portal: BookingPortal, person: object = ADA, **query: str) -> dict[str, object]:
    flavors: Any = told(portal, person, **query)["flavors"]
    assert len(flavors) == 1
    return dict(flavors[0])


def test_of_the_project_that_is_looked_at(portal: BookingPortal) -> None:
    mine, other = one(portal), one(portal, BOB)
    assert (mine["now"], other["now"]) == (2, 4)
    assert told(portal)["project"] == "physics"
    assert mine["others"][0]["reason"] == (  # type: ignore[index]
        "with these, the limit of project physics on GPUs of pool v100 is reached"
    )


def test_admins_may_name_any_project_and_others_only_theirs(portal: BookingPortal) -> None:
    assert one(portal, ROOT, project="physics")["now"] == 2
    assert portal.program(BOB).get("/v1/flavors", params={"project": "physics"}).status_code == 403
    assert portal.program(ROOT).get("/v1/flavors", params={"project": "nobody"}).status_code == 422
    assert portal.program(BOB).get("/v1/flavors", params={"pool": "nothing"}).status_code == 422
    assert told(portal, BOB, pool="t4")["flavors"] == []


def test_bookings_of_others_say_until_when(portal: BookingPortal) -> None:
    (booking,) = portal.ledger.create(ask(6, 4, 4, same_host=True), BOB)
    row = one(portal)
    until = booking.ask.start - HOUR
    # All six GPUs are in four slots, of which Nova may take any: with those of the booking none is over.
    assert row["answer"] == f"2 now, until Mon {until:%Y-%m-%d %H:%M} UTC"
    assert datetime.fromisoformat(str(row["until"])) == until
    assert row["next_booking"] is None
    assert one(portal, BOB)["next_booking"]["id"] == booking.id  # type: ignore[index]


def test_a_look_is_for_all_who_ask_in_the_next_seconds(portal: BookingPortal, cloud: Knows) -> None:
    for person in (ADA, BOB, ROOT, ADA):
        told(portal, person)
    assert cloud.reads == 1
    portal.clock.now += FRESH
    told(portal)
    assert cloud.reads == 2


def test_what_was_known_is_told_with_its_age_while_the_cloud_is_away(portal: BookingPortal, cloud: Knows) -> None:
    before = told(portal)
    cloud.down = True
    portal.clock.now += timedelta(minutes=5)
    after = told(portal)
    assert after["flavors"] == before["flavors"]
    assert (after["taken_at"], after["problem"]) == (before["taken_at"], "the cloud could not be asked again")
    assert portal.program(BOB).get("/v1/flavors").status_code == 503, "of whom nothing is known nothing is invented"
    cloud.down = False
    portal.clock.now += timedelta(minutes=5)
    assert told(portal)["problem"] == ""


def test_a_clock_that_goes_back_does_not_keep_the_answer(portal: BookingPortal, cloud: Knows) -> None:
    told(portal)
    portal.clock.now -= timedelta(days=1)
    told(portal)
    assert cloud.reads == 2


@pytest.mark.parametrize("others", list(OthersShown))
def test_words_about_others_are_those_of_the_map(tmp_path: Path, cloud: Knows, others: OthersShown) -> None:
    portal = booking_portal(tmp_path, settings=replace(ROOMY, others=others), capacity=cloud)
    gpus, (booking,) = cloud.room.gpus, portal.ledger.create(ask(1), BOB)
    words = ledger_words(gpus, portal.ledger.lanes(), [booking], dict.fromkeys(booking.lanes, ""))
    statuses = [
        GpuStatus(gpu, GpuState.BOOKED, words[gpu.provider_name].reason) if gpu.provider_name in words
        else GpuStatus(gpu, GpuState.FREE) for gpu in gpus
    ]  # fmt: skip
    assert any(status.state is GpuState.BOOKED for status in statuses)
    publish(portal, statuses)
    held = {status.gpu.provider_name for status in statuses if status.state is GpuState.BOOKED}
    (host,) = cloud.room.hosts
    devices = tuple(device for device in host.devices if device.provider not in held)
    cloud.room = replace(cloud.room, hosts=(replace(host, devices=devices),))
    names = {ADA: others is OthersShown.NAMES, BOB: True, ROOT: True}
    for person in (ADA, ROOT):
        assert ("bob" in str(one(portal, person)["others"])) is names[person]


def test_without_bookings_there_is_nobody_whose_limits_could_be_looked_at(cloud: Knows) -> None:
    service = CapacityService(cloud, lambda: datetime.now(UTC))
    client = TestClient(
        create_app(
            plain_sources(gpus=cloud.room.gpus, bootable=service),
            ["testserver"],
        )
    )
    answer = client.get("/v1/flavors").json()
    assert (answer["project"], answer["flavors"][0]["now"], answer["flavors"][0]["spans"]) == ("", 4, [])
    assert client.get("/v1/flavors", params={"project": "physics"}).status_code == 422
    assert {"rel": "flavors", "href": "/v1/flavors"} in client.get("/v1").json()["links"]


def test_the_page_says_what_the_api_says(portal: BookingPortal, cloud: Knows) -> None:
    browser = portal.browser(ADA).client
    row = one(portal)
    page = browser.get("/start").text
    assert '<a href="./start" aria-current=page>What can I start</a>' in page
    assert f'<p class="why">{row["answer"]}</p>' in page
    assert "with these, the limit of project physics on GPUs of pool v100 is reached" in page
    assert 'href="start"' in browser.get("/mine").text
    cloud.down = True
    portal.clock.now += timedelta(minutes=5)
    assert "the cloud could not be asked again" in browser.get("/start").text


def test_the_page_says_once_that_a_limit_is_in_the_way(tmp_path: Path, loaded: LoadedSite) -> None:
    cloud = Knows(room_of(loaded), {ADA.project_id: {"class:CUSTOM_GPU_V100_COUNT": 0}})
    portal = booking_portal(tmp_path, Rules(most_active=9), capacity=cloud)
    publish(portal, [GpuStatus(gpu, GpuState.FREE) for gpu in cloud.room.gpus])
    row: Any = one(portal)
    (cause,) = row["causes"]
    assert row["answer"].startswith("none now: the limit of project physics")
    assert cause["reason"] in [rest["reason"] for rest in row["others"]]
    page = portal.browser(ADA).client.get("/start").text
    assert '<p class="why">none now</p>' in page
    assert page.count("GPUs of pool v100:") == page.count(escape(cause["reason"])) == 1
    assert escape(cause["remedy"]).replace("&#x27;", "&#39;") in page
    portal.ledger.create(ask(2, 3), ADA)
    portal.clock.now += timedelta(minutes=1)  # the ledger is asked again
    assert "none now; booking b1 begins " in portal.browser(ADA).client.get("/start").text


def test_what_hosts_and_operators_say_is_text_on_the_page(portal: BookingPortal, cloud: Knows) -> None:
    (host,) = cloud.room.hosts
    nasty = "<script>alert(1)</script>"
    closed = replace(host, node=replace(host.node, enabled=False, disabled_reason=nasty))
    cloud.room = replace(cloud.room, hosts=(closed,))
    page = portal.browser(ADA).client.get("/start").text
    assert nasty not in page
    assert "&lt;script&gt;alert(1)" in page
