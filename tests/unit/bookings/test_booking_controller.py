"""What the loop of bookings sees in a snapshot and hands on; what it does to a cloud is tested on the lab."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from gpuyard.bookings.controllers.fault_durations import PATIENCE, STUCK, FaultDurations
from gpuyard.bookings.controllers.site_ledger import site_lanes
from gpuyard.inventory.state import gpu_statuses, ledger_words
from gpuyard.model.booking import BookingKind, BookingState, Lane
from gpuyard.model.gpu import GpuState
from gpuyard.model.world import HostService, Provider, Server, Snapshot
from gpuyard.openstack.disabled_reason import ClosedTag, Purpose
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import LimitObject, SeenLimit, bookings_mark, gpu_resources, owner_mark
from gpuyard.site.plan_limits import unwanted_limits
from tests.support.sites import flavor, site
from tests.unit.bookings.test_enforcement import booking

NOW = datetime(2026, 11, 23, 9, tzinfo=UTC)
HOST = "gpu-server"


@pytest.fixture
def compiled(tmp_path: Path) -> CompiledSite:
    """The EPYC: six V100 in four slots, two of them pairs."""
    document = {
        "flavors": {"one": flavor(gpus={"v100": 1})},
        "projects": {"physics": {"gpus": {"v100": 2}, "servers": 5}},
        "booking": {},
    }
    return site(tmp_path, document).compiled


def snapshot(compiled: CompiledSite, **more: object) -> Snapshot:
    names = [gpu.provider_name for gpu in compiled.gpus]
    values = {
        "taken_at": NOW,
        "providers": {name: Provider(name, name, HOST) for name in [HOST, *names]},
        "allocatable": frozenset(names),
        "holders": {},
        "reserved": frozenset(),
        "roomy_hosts": {},
        "servers": {},
        "services": {HOST: HostService(HOST, True, True)},
        **more,
    }
    return Snapshot(**values)  # type: ignore[arg-type]


def lanes(compiled: CompiledSite) -> list[Lane]:
    return [Lane(number, *slot) for number, slot in enumerate(site_lanes(compiled.gpus), 1)]


def test_a_lane_is_a_slot_with_its_leader_first(compiled: CompiledSite) -> None:
    slots = site_lanes(compiled.gpus)
    assert [(pool, host, len(addresses)) for pool, host, addresses in slots] == [
        ("v100", HOST, size) for size in (2, 1, 1, 2)
    ]
    leaders = {gpu.address for gpu in compiled.gpus if gpu.role.value == "leader"}
    assert {addresses[0] for _, _, addresses in slots if len(addresses) > 1} == leaders


def test_what_is_blocked_is_no_lane(compiled: CompiledSite) -> None:
    gpus = [replace(gpu, blocked="no IOMMU") if gpu.set_letter == "A" else gpu for gpu in compiled.gpus]
    assert len(site_lanes(gpus)) == 3


def test_trouble_is_told_when_it_lasts_and_ends_at_once(compiled: CompiledSite) -> None:
    sightings, rows = FaultDurations(compiled), lanes(compiled)
    gone = compiled.gpus[0]
    left = {name: p for name, p in snapshot(compiled).providers.items() if name != gone.provider_name}
    bad = snapshot(compiled, providers=left)
    assert sightings.troubles(rows, bad, ()) == {}, "perhaps nova-compute only restarts"
    later = replace(bad, taken_at=NOW + PATIENCE)
    troubles = sightings.troubles(rows, later, ())
    assert list(troubles) == [1]
    assert troubles[1].startswith(f"{HOST}/{gone.address}: nova-compute on {HOST} does not report")
    marked = [replace(rows[0], trouble="bad"), *rows[1:]]
    assert list(FaultDurations(compiled).troubles(marked, bad, ())) == [1], (
        "known already, so a restart does not forget it"
    )
    assert sightings.troubles(marked, snapshot(compiled), ()) == {}


def test_a_host_that_is_down_is_trouble_at_once_also_below_our_holds_and_servers(compiled: CompiledSite) -> None:
    names = frozenset(gpu.provider_name for gpu in compiled.gpus)
    down = snapshot(compiled, services={HOST: HostService(HOST, False, True)}, reserved=names)
    troubles = FaultDurations(compiled).troubles(lanes(compiled), down, names)
    assert troubles == dict.fromkeys((1, 2, 3, 4), f"nova-compute on {HOST} is down")


@pytest.mark.parametrize("purpose", Purpose)
def test_a_host_that_gpuyard_has_closed_is_trouble_at_once(compiled: CompiledSite, purpose: Purpose) -> None:
    reason = str(ClosedTag(purpose, NOW))
    closed = snapshot(compiled, services={HOST: HostService(HOST, True, False, reason)})
    troubles = FaultDurations(compiled).troubles(lanes(compiled), closed, ())
    assert troubles.keys() == {1, 2, 3, 4}
    assert troubles[1].endswith(f"nova-compute on {HOST} is disabled: {reason}")


def test_a_host_that_somebody_else_has_disabled_is_trouble_when_it_lasts(compiled: CompiledSite) -> None:
    closed = snapshot(compiled, services={HOST: HostService(HOST, True, False, "new disks")})
    sightings = FaultDurations(compiled)
    assert not sightings.troubles(lanes(compiled), closed, ())
    assert len(sightings.troubles(lanes(compiled), replace(closed, taken_at=NOW + PATIENCE), ())) == 4


def test_a_hold_by_hand_is_trouble_and_ours_is_not(compiled: CompiledSite) -> None:
    name = compiled.gpus[0].provider_name
    others = frozenset(gpu.provider_name for gpu in compiled.gpus) - {name}
    held = snapshot(compiled, reserved=frozenset({name}), allocatable=others)
    later = replace(held, taken_at=NOW + PATIENCE)
    sightings = FaultDurations(compiled)
    sightings.troubles(lanes(compiled), held, ())
    assert 1 in sightings.troubles(lanes(compiled), later, ())
    assert 1 not in sightings.troubles(lanes(compiled), later, {name})


@pytest.mark.parametrize(
    ("status", "task", "has_gpus", "age", "coming"),
    [
        ("BUILD", "scheduling", False, timedelta(0), True),
        ("BUILD", "", False, timedelta(0), True),
        ("BUILD", "spawning", True, timedelta(0), False),
        ("RESIZE", "resize_prep", True, timedelta(days=9), True),
        ("ACTIVE", "", True, timedelta(0), False),
        ("ERROR", "", False, timedelta(0), False),
        ("BUILD", "", False, STUCK + timedelta(seconds=1), False),
    ],
)
def test_what_nova_may_still_give_a_gpu_to(
    status: str, task: str, has_gpus: bool, age: timedelta, coming: bool
) -> None:
    row = Server("id", "name", status, None, "p", "u", "one", NOW - age, task=task)
    assert FaultDurations.on_its_way(row, has_gpus, NOW) is coming


def test_the_map_says_for_whom_a_gpu_is_kept_and_who_holds_it(compiled: CompiledSite) -> None:
    rows = lanes(compiled)
    by_name = {gpu.provider_name: gpu for gpu in compiled.gpus}
    mine = booking("b", (1,), start=NOW, end=NOW + timedelta(hours=2))
    soon = booking("c", (2,), state=BookingState.CONFIRMED, start=NOW + timedelta(minutes=5))
    later = booking("d", (3,), state=BookingState.CONFIRMED, start=NOW + timedelta(days=1))
    hold = booking("e", (4,), kind=BookingKind.HOLD, user="root", ask={"comment": "fan"}, end=NOW + timedelta(hours=3))
    words = ledger_words(compiled.gpus, rows, [mine, soon, later, hold], {2: "soon", 4: "hold"})
    reserved = frozenset(name for name in by_name if by_name[name].address not in rows[0].addresses)
    statuses = {
        (s.gpu.host, s.gpu.address): s
        for s in gpu_statuses(compiled.gpus, snapshot(compiled, reserved=reserved), words)
    }
    lane_statuses = [statuses[lane.host, address] for lane in rows for address in lane.addresses]
    assert [status.booking for status in lane_statuses] == ["b", "b", "c", "", "e", "e"]
    assert [(status.state, status.reason) for status in lane_statuses] == [
        *[(GpuState.BOOKED, "booked by ada (physics) until 2026-11-23 11:00 UTC")] * 2,
        (GpuState.BOOKED, "booked by ada (physics) from 2026-11-23 09:05 UTC"),
        (GpuState.HELD, "reserved in Placement: for a booking, maintenance, quarantine or scrub"),
        *[(GpuState.HELD, "held by root until 2026-11-23 12:00 UTC: fan")] * 2,
    ]
    plain = gpu_statuses(compiled.gpus, snapshot(compiled))
    assert gpu_statuses(compiled.gpus, snapshot(compiled), {}) == plain


def test_the_map_says_which_runner_has_a_gpu(compiled: CompiledSite) -> None:
    rows = lanes(compiled)
    name = next(gpu.provider_name for gpu in compiled.gpus if gpu.address == rows[0].addresses[0])
    unnamed = booking("b", (1,), kind=BookingKind.RUNNER, server="r1", start=NOW, end=NOW + timedelta(hours=2))
    named = replace(unnamed, ask=replace(unnamed.ask, comment="runner r1 of owner/name"))
    for lease, words in ((unnamed, "runner r1"), (named, "runner r1 of owner/name")):
        what = f"{words} until 2026-11-23 11:00 UTC"
        keepings = ledger_words(compiled.gpus, rows, [lease], {})
        (waits,) = [s for s in gpu_statuses(compiled.gpus, snapshot(compiled), keepings) if s.gpu.provider_name == name]
        assert (waits.state, waits.reason, waits.booking) == (GpuState.BOOKED, what, "b")
        server = Server("s", "r1", "ACTIVE", None, "ci", "gpuyard", "one", NOW)
        observed = snapshot(compiled, holders={name: "s"}, servers={"s": server})
        (has,) = [s for s in gpu_statuses(compiled.gpus, observed, keepings) if s.gpu.provider_name == name]
        assert (has.state, has.reason, has.booking) == (GpuState.CLAIMED, what, "b")


def test_plans_leave_the_limits_of_bookings_alone(compiled: CompiledSite) -> None:
    mark = owner_mark(compiled.site.site)
    assert [(limit.project, limit.resource) for limit in compiled.limits if limit.project] == [("physics", "servers")]
    registered = [limit for limit in compiled.limits if limit.project is None and "GPU" in limit.resource]
    assert {limit.value for limit in registered} == {0}
    assert gpu_resources(compiled.site, compiled.limits) == {"v100": tuple(limit.resource for limit in registered)}
    resource = registered[0].resource
    before = SeenLimit("1", LimitObject(resource, 2, "physics", mark))
    ours = SeenLimit("2", LimitObject(resource, 2, "art", bookings_mark(compiled.site.site)))
    other = SeenLimit("3", LimitObject("servers", 2, "art", mark))
    steps = list(unwanted_limits(compiled.limits, [before, ours, other], mark, booked=True))
    assert [step.name for step in steps] == ["art servers"]
    steps = list(unwanted_limits(compiled.limits, [before, ours, other], mark))
    assert sorted(step.name for step in steps) == ["art servers", f"physics {resource}"]
