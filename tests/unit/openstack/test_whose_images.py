"""Whose images, networks and projects gpuyard takes for its own: an admin is shown those of everybody, and anybody may
give his own any name and any property."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any, cast

import pytest

from gpuyard.bookings.controllers.reclaim_servers import Reclaimer, hand_over_shelved
from gpuyard.bookings.records import Overstay
from gpuyard.model.booking import ReclaimAction
from gpuyard.model.errors import UsageError
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.servers import NovaServers, ServerError, ServerProblem, ServerWish, open_servers_project
from tests.unit.bookings.test_enforcement import HOUR, START

SERVER = "0c8a4f2e-server"
CASE = Overstay(
    SERVER, "neq:s", "v100", "eve", "art", "must_book", ReclaimAction.SNAPSHOT_AND_DELETE, START,
    warned=START + HOUR, due=START + 2 * HOUR, dry_run=False,
)  # fmt: skip
SHARED = "shared"


class Cloud:
    """As much of Nova, Glance, Neutron and Keystone as an admin of the project ours sees, with one server. Glance lists
    the newest first."""

    name, project = "test", "ours"

    def __init__(self) -> None:
        self.images: list[dict[str, Any]] = []
        self.members: dict[tuple[str, str], str] = {}
        self.networks: list[dict[str, Any]] = []
        self.projects: list[dict[str, Any]] = []
        self.server: dict[str, Any] | None = {
            "user_id": "eve", "tenant_id": "art", "status": "ACTIVE", "OS-EXT-STS:task_state": None,
        }  # fmt: skip
        self.asked: list[Any] = []
        """Bodies of what was asked of Nova."""

    def image(self, id: str, name: str, owner: str, **more: Any) -> dict[str, Any]:
        at = f"2026-11-23T12:00:{len(self.images):02}Z"
        row = {"id": id, "name": name, "owner": owner, "status": "active", "visibility": SHARED, "created_at": at}
        self.images.insert(0, row | more)
        return self.images[0]

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:
        if service == "identity":
            return {"projects": [row for row in self.projects if query.items() <= row.items()]}
        if service == "compute":
            if self.server is None:
                raise CloudError("no such server", 404)
            return {"server": self.server}
        if path == "/images":
            assert ":" not in str(query.get("name")), "Glance takes what stands before a colon for an operator"
            assert query.pop("sort", "created_at:desc") == "created_at:desc"
            limit = query.pop("limit", 25)
            return {"images": [row for row in self.images if query.items() <= row.items()][:limit]}
        _, _, image, _, member = path.split("/")
        if (image, member) not in self.members:
            raise CloudError("no such member", 404)
        return {"status": self.members[image, member]}

    def pages(self, service: str, path: str, key: str, **query: Any) -> Iterator[dict[str, Any]]:
        yield from self.networks if key == "networks" else [{"id": "f", "name": "f"}]

    def request(self, method: str, service: str, path: str, body: Any = None, **_: Any) -> dict[str, Any]:
        if method == "PATCH":
            (row,) = [image for image in self.images if path == f"/images/{image['id']}"]
            row["owner"] = body[0]["value"]
        elif method == "DELETE":
            self.server = None
        else:
            self.asked.append(body)
        return {"server": {"id": "made"}}

    def make_the_image(self, **more: Any) -> dict[str, Any]:
        """As Nova does, of a server whose disk is a volume: its image says nothing of the server."""
        action = self.asked[-1]["createImage"]
        return self.image("snapshot", action["name"].strip(), self.project, **action["metadata"], **more)


@pytest.fixture
def cloud() -> Cloud:
    return Cloud()


def reclaimer(cloud: Cloud) -> Reclaimer:
    return Reclaimer(cast("CloudApi", cloud))


def test_a_strangers_image_is_no_snapshot_of_a_server(cloud: Cloud) -> None:
    name = f"{CASE.server} {SERVER}"
    cloud.image("planted", name, "theirs", instance_uuid=SERVER, image_type="snapshot", gpuyard=SERVER)
    assert reclaimer(cloud).act(CASE) == "createImage"
    for number in range(30):  # also of somebody who has seen what a snapshot of ours looks like, and is quick
        cloud.image(f"copied{number}", name, "theirs", **cloud.asked[-1]["createImage"]["metadata"])
    assert reclaimer(cloud).act(CASE) == "createImage"
    assert cloud.server is not None


def test_the_server_is_deleted_when_its_image_is_there_and_then_the_image_is_its_projects(cloud: Cloud) -> None:
    reclaimer(cloud).act(CASE)
    made = cloud.make_the_image(status="queued")
    planted = cloud.image("planted", made["name"], "theirs", gpuyard=made["gpuyard"])
    assert "image snapshot of it stays queued" in reclaimer(cloud).act(CASE)
    made["status"] = "active"
    assert reclaimer(cloud).act(CASE) == "delete"
    assert len(cloud.asked) == 1, "an answer that was lost makes no second one"
    reclaimer(cloud).hand_over(CASE)
    assert (made["owner"], planted["owner"]) == ("art", "theirs")
    reclaimer(cloud).hand_over(CASE)


def test_a_snapshot_of_an_earlier_warning_is_too_old(cloud: Cloud) -> None:
    reclaimer(cloud).act(CASE)
    cloud.make_the_image()
    assert reclaimer(cloud).act(replace(CASE, warned=START + 50 * HOUR)) == "createImage"


def test_a_snapshot_of_another_server_that_was_made_of_ours_is_another(cloud: Cloud) -> None:
    reclaimer(cloud).act(CASE)
    inherited = cloud.asked[-1]["createImage"]["metadata"]
    cloud.image("shelved", "another-shelved", "ours", **inherited)
    assert reclaimer(cloud).act(CASE) == "createImage"


def test_of_a_server_that_was_shelved_only_what_we_made_is_given_away(cloud: Cloud) -> None:
    about = {"instance_uuid": SERVER, "image_type": "snapshot"}
    made = cloud.image("made", "neq:s-shelved", "ours", **about)
    planted = cloud.image("planted", "neq:s-shelved", "theirs", **about)
    reclaimer(cloud).hand_over(replace(CASE, action=ReclaimAction.SHELVE))
    assert (made["owner"], planted["owner"]) == ("art", "theirs")
    hand_over_shelved(cast("CloudApi", cloud), SERVER, "neq:s", "art")


# Servers of our own.


def booted(cloud: Cloud, network: str | None = "none") -> dict[str, Any]:
    """What Nova was asked for."""
    NovaServers(cast("CloudApi", cloud), "site", network).create(ServerWish("n", "f", "i", "data"))
    return dict(cloud.asked[-1]["server"])


def test_servers_get_the_newest_image_that_their_project_may_use(cloud: Cloud) -> None:
    cloud.image("mine", "i", "ours")
    for number in range(30):
        cloud.image(f"planted{number}", "i", "theirs", visibility="private" if number % 2 else SHARED)
    assert booted(cloud)["imageRef"] == "mine"
    cloud.image("public", "i", "theirs", visibility="public")
    assert booted(cloud)["imageRef"] == "public"
    cloud.image("accepted", "i", "theirs")
    cloud.image("offered", "i", "theirs")
    cloud.members |= {("accepted", "ours"): "accepted", ("offered", "ours"): "pending"}
    assert booted(cloud)["imageRef"] == "accepted"


def test_an_image_that_only_strangers_have_is_none(cloud: Cloud) -> None:
    cloud.image("planted", "i", "theirs")
    with pytest.raises(ServerError, match="no image 'i' that the project of its servers can see") as refused:
        booted(cloud)
    assert refused.value.problem is ServerProblem.REFUSED


def network(id: str, name: str, project: str = "theirs", shared: bool = False) -> dict[str, Any]:
    return {"id": id, "name": name, "project_id": project, "shared": shared, "router:external": False}


def test_servers_are_in_the_network_that_is_meant(cloud: Cloud) -> None:
    cloud.image("image", "i", "ours")
    cloud.networks = [network("planted", "n"), network("also planted", "id", shared=True)]
    with pytest.raises(ServerError, match="no network 'n'"):
        booted(cloud, "n")
    cloud.networks.append(network("id", "n", shared=True))
    with pytest.raises(
        ServerError, match=r"no networks 'n' of its own; others share id \(n\) with it.*the id"
    ) as refused:
        booted(cloud, "n")
    assert refused.value.problem is ServerProblem.REFUSED
    assert booted(cloud, "id")["networks"] == [{"uuid": "id"}], "not what somebody calls so"
    cloud.networks.append(network("mine", "n", "ours"))
    assert booted(cloud, "n")["networks"] == [{"uuid": "mine"}]
    cloud.networks.append(network("second", "n", "ours"))
    with pytest.raises(ServerError, match=r"2 networks 'n' of its own: mine \(n\), second \(n\)"):
        booted(cloud, "n")


@pytest.mark.parametrize("said", [None, "auto"])
def test_servers_are_in_no_network_that_somebody_shared_unasked(cloud: Cloud, said: str | None) -> None:
    """Nova's ``auto`` would take it: nova/network/neutron.py, `_get_available_networks`."""
    cloud.image("image", "i", "ours")
    with pytest.raises(ServerError, match=r"has no networks of its own\. Write the id"):
        booted(cloud, said)
    cloud.networks = [network("planted", "n", shared=True), {**network("out", "o", "ours"), "router:external": True}]
    with pytest.raises(ServerError, match=r"no networks of its own; others share planted \(n\) with it") as refused:
        booted(cloud, said)
    assert refused.value.problem is ServerProblem.REFUSED
    cloud.networks.append(network("mine", "m", "ours"))
    assert booted(cloud, said)["networks"] == [{"uuid": "mine"}]
    cloud.networks.append(network("more", "m2", "ours"))
    with pytest.raises(ServerError, match=r"2 networks of its own: mine \(m\), more \(m2\)"):
        booted(cloud, said)


def test_a_project_of_another_domain_is_another(cloud: Cloud) -> None:
    cloud.projects = [{"id": "theirs", "name": "runners", "domain_id": "elsewhere"}]
    with pytest.raises(UsageError, match="no project 'runners'"):
        open_servers_project(cast("CloudApi", cloud), "runners")
