"""Servers of runners on the real Nova: made in their own project with rights for nothing else, seen by their tags, and
nothing of anybody else's touched."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from io import BytesIO
from pathlib import Path
from time import monotonic, sleep

import pytest

from gpuyard.model.errors import UsageError
from gpuyard.nova.server_states import SeenServer
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.servers import NovaServers, ServerError, ServerProblem, ServerWish, open_servers_project
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.plan import IMAGE
from tests.integration.conftest import RunningLab
from tests.support.bad_nova import BadNova, NovaFaults
from tests.support.runner_projects import PROJECT, by_way_of, limit, runners_cloud

pytestmark = pytest.mark.lab
FLAVOR = "gpu_tiny"


class BytesOfAnImage(BytesIO):
    def __len__(self) -> int:
        return len(self.getbuffer())


@dataclass
class RecordingSession:
    servers: NovaServers
    api: CloudApi

    def until(self, true: Callable[[SeenServer | None], bool], server_id: str) -> SeenServer | None:
        end = monotonic() + 60
        while not true(server := self.servers.get(server_id)):
            assert monotonic() < end, server
            sleep(0.05)
        return server

    def wish(self, name: str, **more: str) -> ServerWish:
        return ServerWish(name, **{"flavor": FLAVOR, "image": IMAGE, "user_data": "#cloud-config\n", **more})


@pytest.fixture
def door(
    lab: RunningLab, operator: CloudApi, applied: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[RecordingSession]:
    clouds = runners_cloud(lab.status.clouds_file, operator, tmp_path)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    api, _ = open_servers_project(operator, PROJECT, "runners")
    made = RecordingSession(NovaServers(api, "example", "none"), api)
    with limit(operator, api.project, CUSTOM_GPU_V100=100, CUSTOM_GPU_V100_COUNT=100):
        yield made
    for row in api.get("compute", "/servers")["servers"]:
        api.request("DELETE", "compute", f"/servers/{row['id']}")
        made.until(lambda server: server is None, row["id"])


def test_a_server_is_made_seen_and_deleted_for_good(door: RecordingSession) -> None:
    id = door.servers.create(door.wish("gpuyard-v100-a", job="github.com/1"))
    assert [listed.name for listed in door.servers.ours()] == ["gpuyard-v100-a"], "also before it has a host"
    server = door.until(lambda found: found is not None and found.status != "BUILD", id)
    assert server is not None
    assert (server.status, server.fault, server.name) == ("ACTIVE", "", "gpuyard-v100-a")
    assert isinstance(door.servers.console(id), str)
    row = door.api.get("compute", f"/servers/{id}")["server"]
    assert row["metadata"] == {
        "gpuyard_runner": "gpuyard-v100-a",
        "gpuyard_site": "example",
        "gpuyard_job": "github.com/1",
    }
    assert row["config_drive"]
    door.servers.delete(id)
    door.until(lambda found: found is None, id)
    door.servers.delete(id)
    assert door.servers.ours() == []
    before = door.api.calls
    door.servers.ours()
    assert door.api.calls - before == 1


def test_what_is_not_ours_is_neither_shown_nor_deleted(door: RecordingSession, exercise: Exercise) -> None:
    other = NovaServers(door.api, "another-site", "none")
    id = other.create(door.wish("gpuyard-v100-b"))
    assert door.servers.ours() == []
    door.servers.delete(id)
    assert other.get(id) is not None
    strange = exercise.boot(FLAVOR).server_id
    assert door.servers.get(strange) is None, "of another project"
    other.delete(id)
    door.until(lambda found: found is None, id)


def test_an_image_of_others_is_used_when_it_was_shared_and_accepted_and_not_before(
    door: RecordingSession, operator: CloudApi
) -> None:
    name = "somebody-elses"
    body = {"name": name, "disk_format": "raw", "container_format": "bare", "visibility": "shared"}
    image = operator.request("POST", "image", "/images", body)["id"]
    try:
        operator.send("image", f"/images/{image}/file", BytesOfAnImage(bytes(1024)), 60)
        operator.request("POST", "image", f"/images/{image}/members", {"member": door.api.project})
        assert NovaServers(operator, "example", "none")._image(name) == image, "it is its own"
        with pytest.raises(ServerError, match=name):
            door.servers.create(door.wish("gpuyard-v100-f", image=name))
        door.api.request("PUT", "image", f"/images/{image}/members/{door.api.project}", {"status": "accepted"})
        id = door.servers.create(door.wish("gpuyard-v100-f", image=name))
        assert door.api.get("compute", f"/servers/{id}")["server"]["image"]["id"] == image
    finally:
        operator.request("DELETE", "image", f"/images/{image}")


@pytest.mark.parametrize(
    ("wrong", "problem"),
    [
        ({"image": "no-such-image"}, ServerProblem.REFUSED),
        ({"flavor": "no-such-flavor"}, ServerProblem.REFUSED),
        ({"user_data": "x" * 70_000}, ServerProblem.REFUSED),
    ],
)
def test_a_wish_that_cannot_be_says_why(door: RecordingSession, wrong: dict[str, str], problem: ServerProblem) -> None:
    with pytest.raises(ServerError, match=r"no-such|user data") as refused:
        door.servers.create(door.wish("gpuyard-v100-c", **wrong))
    assert refused.value.problem is problem


def test_no_host_is_a_fault_that_says_so(door: RecordingSession) -> None:
    ids = [door.servers.create(door.wish(f"gpuyard-v100-{n}", flavor=FLAVOR)) for n in range(8)]
    ends = [door.until(lambda found: found is not None and found.status != "BUILD", id) for id in ids]
    faults = [server.fault for server in ends if server is not None and server.status == "ERROR"]
    assert faults
    assert all("No valid host" in fault for fault in faults)


def test_a_server_is_asked_for_once_though_the_answer_is_lost(
    door: RecordingSession, lab: RunningLab, tmp_path: Path, operator: CloudApi
) -> None:
    with BadNova(str(lab.admin.compute.get_endpoint()), NovaFaults(reply_lost=1.0)).serving() as bad:
        api = connect("runners", by_way_of(tmp_path / "clouds.yaml", bad.url))
        bad.recover()
        through = NovaServers(api, "example", "none")
        assert through.ours() == []
        wish = door.wish("gpuyard-v100-d")
        through.create(replace(wish, name="gpuyard-v100-e"))  # it knows flavor and image now
        bad.begin()
        with pytest.raises(ServerError) as lost:
            through.create(wish)
    assert lost.value.problem is ServerProblem.UNKNOWN, "it may be there"
    assert sorted(server.name for server in door.servers.ours()) == ["gpuyard-v100-d", "gpuyard-v100-e"]


def test_a_quota_is_a_problem_of_its_own(door: RecordingSession, operator: CloudApi) -> None:
    with (
        limit(operator, door.api.project, servers=0),
        pytest.raises(ServerError, match="403") as refused,
    ):
        door.servers.create(door.wish("gpuyard-v100-d"))
    assert refused.value.problem is ServerProblem.QUOTA


def test_credentials_for_another_project_are_refused(
    lab: RunningLab, operator: CloudApi, door: RecordingSession
) -> None:
    with pytest.raises(UsageError, match="no project 'nowhere'"):
        open_servers_project(operator, "nowhere", None)
    with pytest.raises(UsageError, match="are for another project"):
        open_servers_project(operator, "demo", "runners")
    with pytest.raises(CloudError):  # the operator's own user has no role there
        open_servers_project(operator, PROJECT, None)
