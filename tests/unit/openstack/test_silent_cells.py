"""A cell of Nova that does not answer: nothing is concluded of the hosts and servers in it, and the rest is seen.

What Nova says of such a cell comes from its own samples (tests/support/nova_samples.py)."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast

import pytest

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.bookings.controllers.fault_durations import PATIENCE, FaultDurations
from gpuyard.bookings.controllers.site_ledger import site_lanes
from gpuyard.bookings.records import LedgerSeen
from gpuyard.dashboard.gpu_presenter import service_line
from gpuyard.diagnosis.capacity.read import CapacityReader
from gpuyard.diagnosis.capacity.reckon import Reckoning
from gpuyard.diagnosis.drift import find_drift
from gpuyard.diagnosis.drift.read import known_hypervisors
from gpuyard.diagnosis.why.facts import Asker
from gpuyard.diagnosis.why.read import why
from gpuyard.drain.leftovers_apply import read_leftovers
from gpuyard.health.controllers.health import gpu_observations, site_places
from gpuyard.health.planner import GpuObservation
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.booking import Lane
from gpuyard.model.errors import SilentCellError
from gpuyard.model.gpu import GpuState
from gpuyard.model.world import Snapshot
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.host_servers import read_coming, read_host_servers
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.servers import NovaServers
from gpuyard.openstack.silent_cells import all_cells_answer
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.load import LoadedSite
from gpuyard.usage.recorder import Track
from gpuyard.usage.records import TrackState
from gpuyard.usage.tracks import tracks_of
from tests.support.nova_samples import silent_server, silent_server_listed, silent_service, silent_service_row
from tests.support.sites import flavor, site
from tests.support.worlds import world_of

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
HOST, OTHER = "gpu-server", "cpu-1"
HOLDER = "1f3a7f86-8f2f-4e9b-8f4f-6c7f0d7a1a11"
NO_GPUS: Mapping[str, str] = {}


class DownCell:
    """Stands for a CloudApi. HOST is in the cell that does not answer, with a server that has a GPU; OTHER is not."""

    name, region, date, calls = "test", "RegionOne", NOW, 0

    def __init__(self, gpus: Mapping[str, str] = NO_GPUS) -> None:
        self.gpus = gpus
        """Name of a provider -> its resource class."""
        self.back = False
        """The cell answers again when services are asked for."""
        self.alone: dict[str, dict[str, Any]] = {HOLDER: silent_server(HOLDER)}
        """Id of a server -> what Nova says when it is asked for that one."""
        self.consumers: dict[str, list[str]] = {HOST: [HOLDER]}
        self.migrations: list[dict[str, Any]] = []
        self.lists: dict[str, dict[str, Any]] = {}

    def providers(self, **query: object) -> list[dict[str, Any]]:
        roots = [(name, name, None) for name in (HOST, OTHER)]
        rows = [*roots, *((name, HOST, HOST) for name in self.gpus)]
        return [
            {"uuid": name, "name": name, "root_provider_uuid": root, "parent_provider_uuid": above}
            for name, root, above in rows
        ]

    def pages(self, service: str, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        assert "limit" in query, "or four thousand servers would end after a thousand"
        yield from self.get(service, path, **query)[key]

    def get(self, service: str, path: str, **query: object) -> dict[str, Any]:
        if path == "/os-services":
            up = {"id": "7", "status": "enabled", "state": "up", "disabled_reason": None, "zone": "nova"}
            services = [{**up, "host": HOST} if self.back else silent_service_row(HOST), {**up, "host": OTHER}]
            return {"services": [row for row in services if query.get("host", row["host"]) == row["host"]]}
        if path == "/servers/detail":
            # In a list with pages Nova leaves them out: CONF.api.list_records_by_skipping_down_cells is True.
            return {"servers": []}
        if path == "/os-migrations":
            return {"migrations": self.migrations}
        if path.startswith("/servers/"):
            return {"server": self.alone[path.removeprefix("/servers/")]}
        if path == "/resource_providers":
            return {"resource_providers": []}
        if path == "/os-hypervisors/detail":
            raise CloudError("cloud test: GET compute /os-hypervisors/detail: 500 Unexpected API Error", 500)
        if path in ("/os-aggregates", "/flavors/detail"):
            return self.lists.get(path, {"aggregates": []})
        if path == "/allocation_candidates":
            return {"provider_summaries": {}, "allocation_requests": []}
        _, _, provider, what = path.split("/")
        if what == "inventories":
            return {what: {self.gpus[provider]: {"total": 1, "reserved": 0, "allocation_ratio": 1.0, "max_unit": 1}}}
        return {what: {consumer: {"resources": {"VCPU": 1}} for consumer in self.consumers.get(provider, ())}}


@pytest.fixture
def loaded(tmp_path: Path) -> LoadedSite:
    return site(tmp_path, {"flavors": {"one": flavor(gpus={"v100": 1})}, "booking": {}})


@pytest.fixture
def seen(loaded: LoadedSite) -> Snapshot:
    """What is seen of a site all of whose hosts are in the cell that does not answer; one GPU has the server there."""
    cloud = DownCell({gpu.provider_name: gpu.resource_class for gpu in loaded.compiled.gpus})
    cloud.consumers = {loaded.compiled.gpus[0].provider_name: [HOLDER]}
    return SnapshotTaker(cloud, loaded.compiled.gpus, loaded.compiled.flavors).take(NOW)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", [silent_server(HOLDER), silent_server(HOLDER, "2.69"), silent_server_listed(HOLDER)])
def test_a_server_whose_cell_is_silent_is_not_gone(row: dict[str, Any]) -> None:
    cloud = DownCell()
    cloud.alone[HOLDER] = row
    with Reader(cloud) as reader:  # type: ignore[arg-type]
        with pytest.raises(SilentCellError, match=f"the cell of Nova that server {HOLDER} is in does not answer"):
            reader.server(HOLDER)
        assert reader.seen_server(HOLDER) is None
        assert reader.has_server(HOLDER)


@pytest.mark.parametrize("back", [False, True])
def test_a_host_in_a_silent_cell_is_not_empty(back: bool) -> None:
    """Its nova-compute says so; where the cell answers again when that is asked for, a server's own record did."""
    cloud = DownCell()
    cloud.back, cloud.consumers = back, cloud.consumers if back else {}
    move = {"id": 1, "uuid": "m", "instance_uuid": HOLDER, "status": "finished", "migration_type": "resize",
            "source_compute": HOST, "dest_compute": OTHER}  # fmt: skip
    cloud.migrations = [move] if back else []
    with Reader(cloud) as reader:  # type: ignore[arg-type]
        with pytest.raises(SilentCellError, match="does not answer"):
            read_host_servers(reader, HOST)
        with pytest.raises(SilentCellError, match="does not answer"):
            read_coming(reader, HOST, HOST)
        cloud.migrations = []
        assert (read_host_servers(reader, OTHER).rows, read_coming(reader, OTHER, OTHER)) == ((), ())
    with pytest.raises(SilentCellError, match="does not answer"):
        read_leftovers(cloud, HOST)  # type: ignore[arg-type]


def test_a_nova_compute_of_which_nothing_is_known_is_neither_closed_nor_opened() -> None:
    service = ComputeService(DownCell(), HOST)  # type: ignore[arg-type]
    for act in (service.look, service.close_for_maintenance, service.open_after_maintenance):
        with pytest.raises(SilentCellError, match=f"the cell of Nova that {HOST} is in does not answer"):
            act()
    assert ComputeService(DownCell(), OTHER).look().up  # type: ignore[arg-type]
    assert service_line(silent_service(HOST), details=True) == ("not known: its cell of Nova does not answer", "lost")


def test_a_snapshot_is_taken_of_the_other_cells(loaded: LoadedSite, seen: Snapshot) -> None:
    assert seen.silent_hosts == {HOST}
    assert (seen.services[HOST].up, seen.services[HOST].enabled, seen.services[OTHER].up) == (False, False, True)
    assert seen.residents == {}, "nobody is said to be there, nor that nobody is"
    statuses = gpu_statuses(loaded.compiled.gpus, seen)
    first, second = statuses[:2]
    assert (first.state, first.claim and first.claim.server_id) == (GpuState.CLAIMED, HOLDER), "Placement knows it"
    assert second.reason.startswith(f"the cell of Nova that {HOST} is in does not answer: ")


def test_history_has_not_seen_a_silent_host(loaded: LoadedSite, seen: Snapshot) -> None:
    tracks = list(tracks_of(gpu_statuses(loaded.compiled.gpus, seen), seen, LedgerSeen()).values())
    assert (tracks[0].state, tracks[0].tenure.server) == (TrackState.STARTING, HOLDER)
    assert set(tracks[1:]) == {Track(TrackState.UNSEEN)}


def test_no_lane_gets_worse_or_better_by_a_silent_cell(loaded: LoadedSite, seen: Snapshot) -> None:
    rows = [Lane(number, *slot) for number, slot in enumerate(site_lanes(loaded.compiled.gpus), 1)]
    rows[0] = replace(rows[0], trouble="the fan is loose")
    sightings = FaultDurations(loaded.compiled)
    for time in (NOW, NOW + 2 * PATIENCE):
        assert sightings.troubles(rows, replace(seen, taken_at=time), ()) == {1: "the fan is loose"}


def test_the_use_of_a_gpu_does_not_end_by_a_silent_cell(loaded: LoadedSite, seen: Snapshot) -> None:
    places = site_places(loaded.compiled)
    observation = CloudObservation(seen, frozenset(), words={})
    assert gpu_observations(places, observation) == {}
    answers = gpu_observations(places, replace(observation, snapshot=replace(seen, services={})))
    assert answers[places[0].name] == GpuObservation(HOLDER, False, True)


def test_drift_says_which_cell_is_silent_and_nothing_of_its_hosts(loaded: LoadedSite) -> None:
    world, service = world_of(loaded), silent_service(HOST)
    hosts = {**world.hosts, HOST: replace(world.hosts[HOST], service=service)}
    silent = replace(world, hosts=hosts, services={HOST: service}, silent_cells=True)
    before = find_drift(loaded.compiled, loaded.inventories, world, {})
    (only,) = [
        finding for finding in find_drift(loaded.compiled, loaded.inventories, silent, {}) if finding not in before
    ]
    assert only.code == "cell-silent"
    assert f"a cell does not answer, with {HOST}" in only.reason


def test_hypervisors_that_nova_cannot_list_are_not_gone() -> None:
    """As nova 34.0.0 has it (compute/api.py, `compute_node_get_all`): a cell's database that is away is an error."""

    def fails() -> list[Any]:
        raise CloudError("cloud test: GET compute /os-hypervisors/detail: 500 Unexpected API Error", 500)

    with Reader(DownCell()) as reader:  # type: ignore[arg-type]
        assert known_hypervisors(reader.later(fails), silent=True) is None
        with pytest.raises(CloudError):
            known_hypervisors(reader.later(fails), silent=False)
        assert known_hypervisors(reader.later(list), silent=True) == set()


FLAVOR = {
    "id": "f1", "name": "one", "vcpus": 4, "ram": 4096, "disk": 10, "OS-FLV-EXT-DATA:ephemeral": 0, "swap": 0,
}  # fmt: skip


def test_why_and_capacity_answer_for_the_other_hosts(loaded: LoadedSite) -> None:
    cloud = DownCell({gpu.provider_name: gpu.resource_class for gpu in loaded.compiled.gpus})
    (made,) = loaded.compiled.flavors
    cloud.lists["/flavors/detail"] = {"flavors": [{**FLAVOR, "extra_specs": dict(made.extra_specs)}]}
    explanation = why(cloud, loaded, "one")  # type: ignore[arg-type]
    (silent,) = [answer for answer in explanation.hosts if answer.host == HOST]
    assert silent.causes[0].code == "cell-silent"
    assert explanation.others == (OTHER,), "it is known, though Nova lists no hypervisor"
    room = CapacityReader(cloud, loaded).read(NOW)  # type: ignore[arg-type]
    assert {host.node.name: host.node.silent for host in room.hosts} == {HOST: True, OTHER: False}
    (answer,) = Reckoning(room, {}).all_of(Asker("p", "demo"))
    assert answer.now == 0
    assert "servers of project demo that are there are not counted here" in answer.doubts[0]


def test_hosts_have_their_names_without_a_list_of_hypervisors() -> None:
    """A command that begins while a cell is silent learns the names from services; not for good."""
    cloud = DownCell()
    api = CloudApi.__new__(CloudApi)
    api._naming, api._hosts_of_nodes, api._strangers = threading.Lock(), None, frozenset()
    api.pages, api.get = cloud.pages, cloud.get  # type: ignore[method-assign]
    hosts_by_node = api._hosts(frozenset({f"{HOST}.example.org", OTHER, "stranger"}))
    assert hosts_by_node == {f"{HOST}.example.org": HOST, OTHER: OTHER}
    assert api._hosts_of_nodes is None
    cloud.back = True
    with pytest.raises(CloudError, match="os-hypervisors"):
        api._hosts(frozenset({OTHER}))


def test_servers_of_ours_in_a_silent_cell_are_neither_gone_nor_deleted() -> None:
    cloud, methods = DownCell(), []

    def request(method: str, service: str, path: str, body: object = None) -> dict[str, Any]:
        methods.append(method)
        return cloud.get(service, path)

    cloud.request = request  # type: ignore[attr-defined]
    api = cast("CloudApi", cloud)
    servers = NovaServers(api, "site", "none", cells_answer=lambda: all_cells_answer(api))
    assert servers.ours() == []
    assert not servers.all_cells_answer()
    server = servers.get(HOLDER)
    assert server is not None
    assert (server.status, server.ours) == ("UNKNOWN", True)
    servers.delete(HOLDER)
    assert methods == ["GET", "GET"], "Nova can delete nothing there"
    cloud.back = True
    assert servers.all_cells_answer()
