"""The page of a server: what it shows, what its buttons do, and for whom."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.ledgers import EVE
from tests.unit.servers.test_launch_pages import FORM, ID, Launch


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    launch = Launch(tmp_path)
    assert launch.client.post("/launch", data=FORM).status_code == 303
    return launch


def act(launch: Launch, action: str, id: str = ID) -> int:
    return launch.client.post("/server", data={"id": id, "action": action}).status_code


def test_the_way_in(launch: Launch) -> None:
    page = launch.client.get("/server", params={"id": ID})
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    assert "ssh ubuntu@10.0.0.5" in page.text
    assert "Linux version 6.8" in page.text
    assert "\x1b" not in page.text
    assert "lets ssh in" in page.text
    assert act(launch, "admit-ssh") == 303
    assert act(launch, "floating-ip") == 303
    page = launch.client.get("/server", params={"id": ID})
    assert "ssh ubuntu@192.0.2.7" in page.text
    assert "lets ssh in" not in page.text


def test_its_console_is_at_nova_s_address(launch: Launch) -> None:
    answer = launch.client.get("/console", params={"id": ID})
    assert (answer.status_code, answer.headers["location"]) == (303, "https://console.example.org/?token=once")
    launch.cloud.console = lambda server_id: "javascript:alert(1)"  # type: ignore[method-assign]
    assert launch.client.get("/console", params={"id": ID}).status_code == 502


def test_buttons(launch: Launch) -> None:
    assert act(launch, "stop") == 303
    assert launch.cloud.servers_by_id[ID].status == "SHUTOFF"
    assert act(launch, "start") == 303
    answer = launch.client.post("/server", data={"id": ID, "action": "delete"})
    assert (answer.status_code, answer.headers["location"]) == (303, "servers")
    assert launch.client.get("/server", params={"id": ID}).status_code == 404


@pytest.mark.parametrize("id", ["", "../flavors", f"{ID}/action", ID.upper() + "x", "a" * 60])
def test_what_is_no_id_reaches_nobody(launch: Launch, id: str) -> None:
    assert launch.client.get("/server", params={"id": id}).status_code == 404
    assert act(launch, "delete", id) == 404
    assert launch.client.get("/console", params={"id": id}).status_code == 404


def test_there_are_no_other_actions(launch: Launch) -> None:
    assert act(launch, "os-migrateLive") == 422
    assert ID in launch.cloud.servers_by_id


def test_readers_change_nothing_and_forged_forms_neither(launch: Launch) -> None:
    eve = launch.portal.browser(EVE).client
    assert eve.post("/server", data={"id": ID, "action": "delete"}).status_code == 403
    assert eve.get("/console", params={"id": ID}).status_code == 403
    del launch.client.headers["X-CSRF-Token"]
    assert act(launch, "delete") == 403
    assert ID in launch.cloud.servers_by_id


def test_all_servers_are_in_one_list(launch: Launch) -> None:
    assert act(launch, "shelve") == 303
    page = launch.client.get("/servers").text
    assert f'href="server?id={ID}"' in page
    assert "SHELVED_OFFLOADED" in page
    assert act(launch, "delete") == 303
    assert "You have no server" in launch.client.get("/servers").text
