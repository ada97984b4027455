"""What gpuyard takes for its own, and what it leaves alone."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gpuyard.database.engine import Database
from gpuyard.openstack.servers import NovaServers, ServerWish
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.records import Cause, RunnerState
from gpuyard.runners.store import RunnerStore
from gpuyard_lab.github.records import COMPLETED, JobOrder
from tests.support.simulated_runners import SimulatedRunners, runner_site

SET = "gpuyard-v100"


@pytest.mark.parametrize("when", ["while it boots", "while it works", "while it is deleted"])
def test_a_server_that_lost_our_tags_is_left_alone_and_its_runner_ends(tmp_path: Path, when: str) -> None:
    world = SimulatedRunners(tmp_path)
    world.github.forge.add_repository("demo/science")
    world.until(lambda: bool(world.github.forge.sets))
    (id,) = world.github.forge.push("demo/science", [JobOrder((SET,), 300)]).jobs
    target_state = {"while it boots": RunnerState.REGISTERING, "while it works": RunnerState.BUSY}.get(
        when, RunnerState.DELETING
    )
    world.until(lambda: [runner.state for runner in world.store.runners()] == [target_state])
    (server,) = world.nova.servers.values()
    server.tagged, server.deleted = False, None
    world.until(lambda: not world.store.runners(), hours=1)
    (runner,) = world.store.runners(over=True)
    assert (runner.state, runner.cause) == (RunnerState.FAILED, Cause.NOT_OURS)
    assert f"its server {server.id} has gpuyard's tags no more" in runner.reason
    assert runner.reason in [event.text for event in world.store.events(runner.name)]
    assert server.id in world.nova.servers, "nobody deletes what is not ours"
    assert server.deleted is None
    world.until(lambda: world.job(id).status == COMPLETED)
    left = [leftover for leftover in world.left_over() if not leftover.startswith("server ")]
    assert left == [], "no lease, no registration, no runner"


def test_two_sites_of_one_name_leave_each_others_registrations_alone(tmp_path: Path) -> None:
    compiled = runner_site(tmp_path, {})
    with closing(Database(f"sqlite:///{tmp_path}/a.db")) as one, closing(Database(f"sqlite:///{tmp_path}/b.db")) as two:
        inventories = [RunnerStore(one).identity("first"), RunnerStore(two).identity("second")]
        assert RunnerStore(one).identity("third") == "first", "once and for all"
    mine, theirs = (RunnerSite(compiled, "p", identity=inventory) for inventory in inventories)
    assert mine.is_ours(mine.new_name("v100"))
    assert not mine.is_ours(theirs.new_name("v100"))
    assert RunnerSite(compiled, "p", identity="first").is_ours(mine.new_name("v100")), "after a restart, too"


class OneProject:
    """As much of Nova as two sites need that are in one project."""

    name, project = "test", "p"

    def __init__(self) -> None:
        self.rows: dict[str, dict[str, Any]] = {}
        self.deleted: list[str] = []

    def pages(self, service: str, path: str, key: str, **query: Any) -> list[dict[str, Any]]:
        if key != "servers":
            return [{"id": "f", "name": "f"}]
        tags = {*str(query["tags"]).split(",")}
        return [row for row in self.rows.values() if tags <= {*row["tags"]}]

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:
        return {"images": [{"id": "i", "created_at": "2026-11-22T00:00:00Z"}]}

    def request(self, method: str, service: str, path: str, body: Any = None) -> dict[str, Any]:
        id = path.rpartition("/")[2]
        if method == "POST":
            id = f"s{len(self.rows)}"
            self.rows[id] = {**body["server"], "id": id, "status": "ACTIVE", "created": "2026-11-22T00:00:00Z"}
        elif method == "DELETE":
            self.deleted.append(id)
        return {"server": self.rows[id]}


def test_two_sites_of_one_name_in_one_project_leave_each_others_servers_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    project: Any = OneProject()
    mine, theirs, older = (
        NovaServers(project, "site", "none", identity=inventory) for inventory in ("first", "second", "")
    )
    ids = [
        servers.create(ServerWish(name, "f", "i", "data"))
        for name, servers in (("a", mine), ("b", theirs), ("c", older))
    ]
    assert [server.name for server in mine.ours()] == ["a", "c"], "what an older gpuyard made is still ours"
    (message,) = caplog.messages
    assert "1 servers (b ...) are of another gpuyard that calls its site site, too" in message
    mine.ours()
    assert len(caplog.messages) == 1, "said once"
    their_server = mine.get(ids[1])
    assert their_server is not None
    assert not their_server.ours
    for id in ids:
        mine.delete(id)
    assert project.deleted == [ids[0], ids[2]]
