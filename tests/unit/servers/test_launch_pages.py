"""Starting a server from the page: what is filled in, what is refused, and that a form starts one server."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.personal import PersonalFlavor
from gpuyard.servers.keys import new_key_pair
from gpuyard.servers.web.personal_access import AT_ONCE_EACH
from tests.support.ledgers import ADA, BOB, EVE
from tests.support.people import people, token_of
from tests.support.personal_clouds import FLAVOR, LAN, PLAIN, UBUNTU, InMemoryPersonalCloud, InMemoryPersonalClouds
from tests.support.portals import BookingPortal, Browser, booking_portal

FORM = {"form": "f" * 22, "flavor": FLAVOR.name, "name": "ada-t4", "image": UBUNTU.id, "network": LAN.id, "key": ""}
ID = "00000000-0000-4000-8000-000000000001"


class Launch:
    """A portal that starts servers, and ADA's browser."""

    def __init__(self, folder: Path) -> None:
        keystone = people()
        self.clouds = InMemoryPersonalClouds(keystone)
        self.portal: BookingPortal = booking_portal(folder, other_people=keystone, clouds=self.clouds)
        self.ada = self.portal.browser(ADA)

    @property
    def cloud(self) -> InMemoryPersonalCloud:
        return self.clouds.cloud

    @property
    def client(self) -> TestClient:
        return self.ada.client


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    return Launch(tmp_path)


def selected(page: str) -> list[str]:
    return re.findall(r'<option value="([^"]*)" selected', page.partition('<form method="post" action="launch"')[2])


def test_what_has_one_choice_is_filled_in(launch: Launch) -> None:
    page = launch.client.get("/launch", params={"flavor": FLAVOR.name})
    assert (page.status_code, page.headers["cache-control"]) == (200, "no-store")
    assert selected(page.text) == [PLAIN.id, LAN.id, "+new"]  # of no GPU of the site, so by name
    assert 'value="ada"' in page.text
    assert "n-public" not in page.text, "servers are in networks of the project; floating IPs come from that one"
    launch.cloud.public_keys["laptop"] = new_key_pair("ada").public
    assert selected(launch.client.get("/launch", params={"flavor": FLAVOR.name}).text)[-1] == "laptop"


def test_the_server_is_the_person_s_own(launch: Launch) -> None:
    answer = launch.client.post("/launch", data=FORM)
    assert (answer.status_code, answer.headers["location"]) == (303, f"server?id={ID}")
    (order,) = launch.cloud.orders
    assert (order.name, order.flavor, order.image, order.network, order.key) == (
        "ada-t4", FLAVOR.id, UBUNTU.id, LAN.id, "",
    )  # fmt: skip
    assert launch.clouds.opened[-1] == ("unscoped-ada", ADA.project_id)


def test_a_form_that_is_sent_again_leads_to_the_same_server(launch: Launch) -> None:
    places = [launch.client.post("/launch", data=FORM).headers["location"] for _ in range(3)]
    assert places == [f"server?id={ID}"] * 3
    assert len(launch.cloud.orders) == 1


def test_a_new_key_is_shown_once_and_its_public_half_is_nova_s(launch: Launch) -> None:
    answer = launch.client.post("/launch", data={**FORM, "key": "+new"})
    assert (answer.status_code, answer.headers["cache-control"]) == (200, "no-store")
    assert "BEGIN OPENSSH PRIVATE KEY" in answer.text
    ((name, public),) = launch.cloud.public_keys.items()
    assert name.startswith("gpuyard-ada-")
    assert public.startswith("ssh-ed25519 ")
    assert launch.cloud.orders[0].key == name
    assert f'href="server?id={ID}"' in answer.text


def test_a_refused_server_leaves_no_key_behind(launch: Launch) -> None:
    launch.cloud.refusal = CloudError("…", 403, "Quota exceeded for class:CUSTOM_GPU_T4_COUNT")
    answer = launch.client.post("/launch", data={**FORM, "key": "+new"})
    assert answer.status_code == 403
    assert "Quota exceeded for class:CUSTOM_GPU_T4_COUNT" in answer.text
    assert "If your booking has just begun" in answer.text
    assert "BEGIN OPENSSH PRIVATE KEY" not in answer.text
    assert launch.cloud.public_keys == {}
    assert selected(answer.text)[-1] == "+new"
    launch.cloud.refusal = None
    assert "BEGIN OPENSSH PRIVATE KEY" in launch.client.post("/launch", data={**FORM, "key": "+new"}).text


def test_an_order_without_an_answer_keeps_its_key(launch: Launch) -> None:
    launch.cloud.refusal = CloudError("…")
    answer = launch.client.post("/launch", data={**FORM, "key": "+new"})
    assert (answer.status_code, "BEGIN OPENSSH PRIVATE KEY" in answer.text) == (503, True)
    (name,) = launch.cloud.public_keys
    assert selected(answer.text)[-1] == name
    launch.cloud.refusal = None
    assert launch.client.post("/launch", data={**FORM, "key": name}).status_code == 303


def test_a_private_key_that_was_pasted_is_not_sent_back(launch: Launch) -> None:
    private = new_key_pair("ada").private
    answer = launch.client.post("/launch", data={**FORM, "key": "+paste", "public_key": private})
    assert (answer.status_code, "keep it to yourself" in answer.text) == (422, True)
    assert private.splitlines()[1] not in answer.text


def test_a_pasted_key_is_not_passed_over(launch: Launch) -> None:
    answer = launch.client.post("/launch", data={**FORM, "key": "+new", "public_key": new_key_pair("ada").public})
    assert (answer.status_code, "there is a public key below" in answer.text) == (422, True)


def test_without_a_flavor_one_is_chosen_first(launch: Launch) -> None:
    assert launch.client.get("/launch").headers["location"] == "start"


def test_a_pasted_key_is_checked(launch: Launch) -> None:
    answer = launch.client.post("/launch", data={**FORM, "key": "+paste", "public_key": "ssh-rsa nonsense"})
    assert (answer.status_code, "This is no public key of OpenSSH" in answer.text) == (422, True)
    public = new_key_pair("ada").public
    assert launch.client.post("/launch", data={**FORM, "key": "+paste", "public_key": public}).status_code == 303
    assert [*launch.cloud.public_keys.values()] == [public]


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("name", "-x", "Name:"),
        ("name", "x" * 64, "Name:"),
        ("name", "a.*", "Name:"),
        ("image", "i-other", "Image: choose"),
        ("network", "n-public", "Network:"),
        ("key", "not-mine", "Key:"),
    ],
)
def test_what_is_wrong_is_said_and_what_was_typed_stays(launch: Launch, field: str, value: str, problem: str) -> None:
    answer = launch.client.post("/launch", data={**FORM, "name": "stays", field: value})
    assert (answer.status_code, problem in answer.text) == (422, True)
    assert field == "name" or 'value="stays"' in answer.text
    assert not launch.cloud.orders


def test_an_image_that_is_too_large_cannot_be_chosen(launch: Launch) -> None:
    launch.cloud.all_images = [replace(UBUNTU, disk=500)]
    page = launch.client.get("/launch", params={"flavor": FLAVOR.name}).text
    assert "No image fits flavor" in page
    answer = launch.client.post("/launch", data=FORM)
    assert (answer.status_code, "needs 500 GiB of disk" in answer.text) == (422, True)


def test_text_of_others_is_text(launch: Launch) -> None:
    launch.cloud.all_images = [replace(UBUNTU, name="<script>alert(1)</script>")]
    assert "<script>alert" not in launch.client.get("/launch", params={"flavor": FLAVOR.name}).text


def test_a_flavor_that_the_project_does_not_see_is_refused(launch: Launch) -> None:
    assert launch.client.get("/launch", params={"flavor": "secret"}).status_code == 404


def test_readers_start_nothing(launch: Launch) -> None:
    eve = launch.portal.browser(EVE).client
    assert eve.get("/launch", params={"flavor": FLAVOR.name}).status_code == 403
    assert eve.post("/launch", data=FORM).status_code == 403
    assert "launch?flavor" not in eve.get("/mine").text


def test_only_our_own_form_starts_a_server(launch: Launch) -> None:
    del launch.client.headers["X-CSRF-Token"]
    assert launch.client.post("/launch", data=FORM).status_code == 403
    assert launch.client.post("/launch", data={**FORM, "csrf": launch.ada.csrf}).status_code == 303


def test_a_login_that_has_ended_at_keystone_is_said_and_bookings_go_on(launch: Launch) -> None:
    launch.portal.people.tokens.pop("unscoped-ada")
    answer = launch.client.get("/launch", params={"flavor": FLAVOR.name})
    assert (answer.status_code, "log in again" in answer.text) == (403, True)
    assert launch.client.get("/bookings").status_code == 200


def test_a_token_is_not_enough_for_a_page(launch: Launch) -> None:
    program = launch.portal.program(ADA)
    assert program.get("/launch", params={"flavor": FLAVOR.name}).status_code == 303  # to the login


def test_logging_out_ends_the_token_and_everybody_has_their_own(launch: Launch) -> None:
    bob: Browser = launch.portal.browser(BOB)
    bob.client.get("/launch", params={"flavor": FLAVOR.name})
    assert launch.clouds.opened[-1] == ("unscoped-bob", BOB.project_id)
    assert launch.client.post("/logout").status_code == 303
    assert "unscoped-ada" not in launch.portal.people.tokens
    assert "unscoped-bob" in launch.portal.people.tokens


def test_two_clicks_start_one_server_with_the_key_that_is_shown(launch: Launch) -> None:
    inside, others = threading.Barrier(2), threading.Event()
    add_key = launch.cloud.add_key

    def slow(name: str, public_key: str) -> None:
        inside.wait(10)
        others.wait(1)  # meanwhile the second click is there
        add_key(name, public_key)

    launch.cloud.add_key = slow  # type: ignore[method-assign]
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(launch.client.post, "/launch", data={**FORM, "key": "+new"})
        inside.wait(10)
        second = pool.submit(launch.client.post, "/launch", data={**FORM, "key": "+new"})
        answers = first.result(), second.result()
    assert [answer.status_code for answer in answers] == [200, 303]
    assert len(launch.cloud.orders) == len(launch.cloud.public_keys) == 1


def test_whoever_waits_for_openstack_leaves_room_for_others(launch: Launch) -> None:
    go, inside = threading.Event(), threading.Semaphore(0)
    flavors = launch.cloud.flavors

    def hanging() -> Sequence[PersonalFlavor]:
        inside.release()
        assert go.wait(10)
        return flavors()

    launch.cloud.flavors = hanging  # type: ignore[method-assign]
    with ThreadPoolExecutor(AT_ONCE_EACH) as pool:
        page = {"flavor": FLAVOR.name}
        hung = [pool.submit(launch.client.get, "/launch", params=page) for _ in range(AT_ONCE_EACH)]
        for _ in hung:
            assert inside.acquire(timeout=10)
        refused = launch.client.get("/launch", params=page)
        assert (refused.status_code, refused.headers["retry-after"]) == (503, "5")
        assert launch.client.get("/bookings").status_code == 200
        go.set()
        assert [answer.result().status_code for answer in hung] == [200] * AT_ONCE_EACH
    assert launch.client.get("/launch", params=page).status_code == 200


def test_the_database_has_no_token(launch: Launch, tmp_path: Path) -> None:
    (session,) = launch.portal.store.sessions(launch.portal.clock())
    assert session.sealed_token
    assert "unscoped-ada" not in session.sealed_token + repr(session)
    assert all(b"unscoped-ada" not in file.read_bytes() for file in tmp_path.iterdir() if file.is_file())


def test_a_site_that_forbids_it_keeps_no_token_and_shows_the_command(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    client = portal.browser(ADA).client
    (session,) = portal.store.sessions(portal.clock())
    assert session.sealed_token == ""
    assert client.get("/launch", params={"flavor": FLAVOR.name}).status_code == 404
    assert "data-launches" not in client.get("/bookings").text
    assert portal.program(ADA).get("/v1/bookings", headers=token_of(ADA)).status_code == 200
