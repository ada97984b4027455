"""How many servers could be started now: of rooms by chance, against giving them away one by one."""

from __future__ import annotations

import random
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuyard.bookings.lasting import PoolAhead, Span, spans
from gpuyard.diagnosis.capacity.answer import Ahead, answer, row_of
from gpuyard.diagnosis.capacity.facts import CloudResources, FreeDevice
from gpuyard.diagnosis.capacity.packing import ENOUGH, on_devices
from gpuyard.diagnosis.capacity.reckon import Bootable, Reckoning
from gpuyard.diagnosis.why.causes import unmet
from gpuyard.diagnosis.why.facts import Asker, HostAggregate, HostStock, Limit
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Lane
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.nova.request import DeviceNeed, request_of
from gpuyard.site.load import LoadedSite, load_site
from tests.support.rooms import NOON, free_of, room_of, taken
from tests.support.sites import plain_site, site

EPYC = {
    "flavors": {
        "one": {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 1}},
        "two": {"vcpus": 8, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 2}},
        "pair": {"vcpus": 8, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 2}, "same_group": True},
        "cpu": {"vcpus": 10, "ram": "100 GiB", "disk": "300 GiB"},
    }
}


@pytest.fixture(scope="module")
def epyc(tmp_path_factory: pytest.TempPathFactory) -> LoadedSite:
    return site(tmp_path_factory.mktemp("epyc"), EPYC)


@pytest.fixture(scope="module")
def lab() -> LoadedSite:
    return load_site(plain_site())


def told(resources: CloudResources, asker: Asker | None = None) -> dict[str, Bootable]:
    return {bootable.flavor.name: bootable for bootable in Reckoning(resources, free_of(resources)).all_of(asker)}


def fill(resources: CloudResources, rng: random.Random, times: int) -> CloudResources:
    """Servers of flavors by chance on hosts by chance."""
    for _ in range(times):
        flavor, host = rng.choice(resources.flavors), rng.choice(resources.hosts).node.name
        resources = taken(resources, host, request_of(flavor, resources.aliases), rng) or resources
    return resources


def test_a_remedy_names_the_limits_of_the_project_that_asks(epyc: LoadedSite) -> None:
    """One reckoning answers several projects, whose limits the site file gives them each."""
    name = "class:CUSTOM_GPU_V100_COUNT"
    resources = replace(room_of(epyc), site_limits={"": {}, "physics": {name: 8}, "art": {name: 0}})
    physics, art = (Asker(f"p-{of}", of, (Limit(name, 0, 0, True),)) for of in ("physics", "art"))
    asked_before = Reckoning(resources, free_of(resources))
    asked_before.of(resources.flavors[0], physics)
    assert asked_before.of(resources.flavors[0], art) == Reckoning(resources, free_of(resources)).of(
        resources.flavors[0], art
    )


@settings(max_examples=25)
@given(st.integers(0, 10**6), st.integers(0, 25))
def test_so_many_start_as_is_said_whatever_nova_chooses(lab: LoadedSite, seed: int, times: int) -> None:
    rng = random.Random(seed)
    resources = fill(room_of(lab), rng, times)
    bootables = told(resources)
    name = rng.choice(sorted(bootables))
    started = 0
    while True:
        bootable = told(resources)[name]
        assert bootable.now == (bootables[name].now or 0) - started
        if not bootable.now:
            break
        after = taken(
            resources, rng.choice(sorted(bootable.where)), request_of(bootable.flavor, resources.aliases), rng
        )
        assert after is not None
        resources, started = after, started + 1
        if started == 6:
            return
    assert all(
        taken(resources, host.node.name, request_of(bootable.flavor, resources.aliases), rng) is None
        for host in resources.hosts
    )


def test_every_gpu_of_the_pool_is_accounted_for(epyc: LoadedSite) -> None:
    for seed in range(30):
        room = fill(room_of(epyc), random.Random(seed), 5)
        for bootable in told(room).values():
            if bootable.gpus:
                assert (bootable.now or 0) * bootable.gpus + sum(rest.gpus for rest in bootable.others) == len(
                    room.gpus
                )


def test_leaders_peers_and_groups(epyc: LoadedSite) -> None:
    bootables = told(room_of(epyc))
    assert {name: bootable.now for name, bootable in bootables.items()} == {
        "one": 4, "two": 2, "pair-a": 1, "pair-b": 1, "cpu": 5,
    }  # fmt: skip
    assert [(rest.code, rest.gpus) for rest in bootables["one"].others] == [("peer", 2)]
    assert [(rest.code, rest.gpus) for rest in bootables["pair-a"].others] == [("left-over", 4)]


def test_servers_on_one_host_share_its_cpus_ram_and_disk(epyc: LoadedSite) -> None:
    room = room_of(epyc)
    (host,) = room.hosts
    for name, left, now in (("VCPU", 11, 2), ("MEMORY_MB", 8192 * 3, 3), ("DISK_GB", 19, 0)):
        rooms = {**(host.node.rooms or {}), name: HostStock(left)}
        tight = replace(room, hosts=(replace(host, node=replace(host.node, rooms=rooms)),))
        bootable = told(tight)["one"]
        assert bootable.now == now
        assert {rest.code for rest in bootable.others} & {"room", "too-big"}


def test_one_server_may_have_no_more_than_max_unit(epyc: LoadedSite) -> None:
    room = room_of(epyc)
    (host,) = room.hosts
    rooms = {**(host.node.rooms or {}), "VCPU": HostStock(16, ratio=4, max_unit=7)}
    tight = replace(room, hosts=(replace(host, node=replace(host.node, rooms=rooms)),))
    assert {name: bootable.now for name, bootable in told(tight).items() if bootable.gpus} == {
        "one": 4, "two": 0, "pair-a": 0, "pair-b": 0,
    }  # fmt: skip


def test_limits_of_the_project(epyc: LoadedSite) -> None:
    room = room_of(epyc)
    of = {"class:CUSTOM_GPU_V100_COUNT": 3}
    asker = Asker("p", "physics", tuple(Limit(name, left, 0, True) for name, left in of.items()))
    bootables = told(room, asker)
    assert {name: bootable.now for name, bootable in bootables.items()} == {
        "one": 3, "two": 1, "pair-a": 1, "pair-b": 1, "cpu": 5,
    }  # fmt: skip
    assert (
        bootables["one"].others[0].reason == "with these, the limit of project physics on GPUs of pool v100 is reached"
    )
    assert bootables["one"].causes == ()
    full = Asker("p", "physics", (Limit("class:CUSTOM_GPU_V100_COUNT", 2, 2, True),))
    bootable = told(room, full)["one"]
    assert (bootable.now, [cause.code for cause in bootable.causes]) == (0, ["quota"])
    assert bootable.where == {"gpu-server": 4}


def test_private_flavors_are_for_those_who_see_them(tmp_path: Path) -> None:
    document = {"flavors": {"secret": {**EPYC["flavors"]["one"], "projects": ["physics"]}}}
    room = room_of(site(tmp_path, document))
    assert set(told(room, Asker("p-physics", "physics"))) == {"secret"}
    assert set(told(room, Asker("p-art", "art"))) == set()
    assert set(told(room)) == {"secret"}


@pytest.mark.parametrize(
    ("change", "code"),
    [
        ({"enabled": False, "disabled_reason": "kernel"}, "service-disabled"),
        ({"up": False}, "service-down"),
        ({"forced_down": True}, "service-forced-down"),
        ({"has_service": False}, "no-service"),
    ],
)
def test_hosts_that_take_nothing(epyc: LoadedSite, change: dict[str, object], code: str) -> None:
    room = room_of(epyc)
    (host,) = room.hosts
    closed = replace(room, hosts=(replace(host, node=replace(host.node, **change)),))  # type: ignore[arg-type]
    bootables = told(closed)
    assert {bootable.now for bootable in bootables.values()} == {0}
    assert bootables["one"].others[0].code == code
    assert bootables["cpu"].others[0].code == code


def test_hosts_that_are_kept_for_other_projects(epyc: LoadedSite) -> None:
    aggregate = HostAggregate(
        "lab", frozenset({"gpu-server"}), {"filter_tenant_id": "p-one,p-two", "filter_tenant_id2": "p"}
    )
    room = room_of(epyc, aggregates=(aggregate,), filters=frozenset({"AggregateMultiTenancyIsolation"}))
    assert told(room, Asker("p-two", "two"))["one"].now == 4
    assert told(room, Asker("p", "p"))["one"].now == 4
    other = told(room, Asker("p-other", "other"))["one"]
    assert (other.now, other.others[0].code) == (0, "aggregate-tenants")
    assert told(replace(room, filters=frozenset()), Asker("p-other", "other"))["one"].now == 4


def test_a_host_without_ram_is_not_looked_at_closer(epyc: LoadedSite) -> None:
    room = room_of(epyc)
    (host,) = room.hosts
    blind = replace(room, hosts=(replace(host, node=replace(host.node, rooms=None), devices=()),))
    bootable = Reckoning(blind, free_of(room)).of(room.flavors[0], None)
    assert bootable.now == 0
    assert "RAM" in answer(bootable)


def test_where_placement_does_not_decide_nobody_knows(epyc: LoadedSite) -> None:
    bootable = told(room_of(epyc, placed=False))["one"]
    assert bootable.now is None
    assert "cannot be seen from outside" in answer(bootable)


def test_disk_that_hosts_share_is_counted_once(lab: LoadedSite) -> None:
    room = room_of(lab)
    hosts = []
    for host in room.hosts:
        rooms = {name: has for name, has in (host.node.rooms or {}).items() if name != "DISK_GB"}
        hosts.append(replace(host, node=replace(host.node, rooms=rooms)))
    room = replace(room, hosts=tuple(hosts), sharing={"ceph": {"DISK_GB": 1100}})
    assert told(room)["titan-xp.10cores120GB"].now == 2  # 520 GiB each, on two hosts
    assert told(room)["k40c.2cores"].now == 1


# Devices.


@given(st.data())
def test_of_devices_no_more_are_counted_than_any_choice_leaves(data: st.DataObject) -> None:
    names = ["X", "Y"]
    traits = st.frozensets(st.sampled_from(["A", "B"]))
    devices = [
        FreeDevice(f"d{number}", {data.draw(st.sampled_from(names)): 1}, data.draw(traits))
        for number in range(data.draw(st.integers(0, 7)))
    ]
    needs = tuple(
        DeviceNeed("x", data.draw(st.sampled_from(names)), data.draw(traits))
        for _ in range(data.draw(st.integers(1, 3)))
    )
    reckoned = on_devices(devices, needs)
    rng = random.Random(data.draw(st.integers(0, 10**6)))
    left, started = {device.provider: device for device in devices}, 0
    while True:
        ways = [
            [
                device.provider
                for device in left.values()
                if need.resource_class in device.left and need.traits <= device.traits
            ]
            for need in needs
        ]
        if unmet(ways):
            break
        while len(set(chosen := [rng.choice(way) for way in ways])) < len(needs):
            pass
        for provider in chosen:
            del left[provider]
        started += 1
    assert reckoned <= started
    if len({(need.resource_class, need.traits) for need in needs}) == 1:
        assert reckoned == started


def test_without_devices_they_bound_nothing() -> None:
    assert on_devices((), ()) == ENOUGH


# Until when.

HOUR = timedelta(hours=1)


def lanes(*sizes: int) -> list[Lane]:
    return [
        Lane(number, "v100", "gpu-1", tuple(f"0000:{number:02x}:00.{n}" for n in range(size)))
        for number, size in enumerate(sizes, 1)
    ]


def booking(id: str, start: float, end: float, *on: int, project: str = "art", **more: object) -> Booking:
    state = BookingState.ACTIVE if start <= 0 else BookingState.CONFIRMED
    kind = more.pop("kind", BookingKind.BOOKING)
    ask = Ask("v100", NOON + start * HOUR, NOON + end * HOUR, len(on), **more)  # type: ignore[arg-type]
    return Booking(id, kind, ask, state, "u", "u", f"p-{project}", project, NOON, NOON, lanes=on)  # type: ignore[arg-type]


def ahead(of: list[Lane], *bookings: Booking, busy: tuple[int, ...] = (), hold: float = 0) -> PoolAhead:
    taken_now = {lane for booking in bookings if booking.state is BookingState.ACTIVE for lane in booking.lanes}
    free = {lane.id for lane in of} - set(busy) - taken_now
    return PoolAhead(of, bookings, lambda project: hold * HOUR, frozenset(busy), frozenset(free))


def until(pool: PoolAhead, servers: int, project: str = "p-physics") -> list[tuple[int, float | None, str]]:
    all_spans = spans(pool, project, servers, 1, False, NOON)
    return [
        (span.servers, None if span.until is None else (span.until - NOON) / HOUR, span.booking) for span in all_spans
    ]


def test_nobody_has_booked() -> None:
    assert until(ahead(lanes(1, 1)), 2) == [(2, None, "")]


def test_the_newest_goes_first_when_bookings_begin() -> None:
    pool = ahead(lanes(1, 1, 1), booking("b", 5, 9, 1), booking("c", 7, 8, 2), hold=0.5)
    assert until(pool, 3) == [(1, None, ""), (1, 6.5, ""), (1, 4.5, "")]


def test_what_ends_before_makes_room_for_what_begins() -> None:
    pool = ahead(lanes(1, 1), booking("now", -1, 5, 1), booking("b", 5, 9, 1))
    assert until(pool, 1) == [(1, None, "")]
    pool = ahead(lanes(1, 1), booking("now", -1, 6, 1), booking("b", 5, 9, 2))
    assert until(pool, 1) == [(1, 5, "")]


def test_servers_without_a_booking_stay_before_new_ones() -> None:
    pool = ahead(lanes(1, 1, 1), booking("b", 5, 9, 3), booking("c", 6, 9, 2), busy=(1,))
    assert until(pool, 2) == [(1, 6, ""), (1, 5, "")]


def test_one_s_own_booking_lasts_to_its_end() -> None:
    own = booking("own", -1, 3, 1, 2, project="physics")
    pool = ahead(lanes(1, 1, 1), own, booking("b", 2, 4, 3))
    assert until(pool, 3) == [(2, 3, "own"), (1, 2, "")]
    assert until(pool, 3, "p-art")[-1][1] is not None


def test_a_booking_of_a_certain_gpu_counts_for_all_who_may_land_on_it() -> None:
    pool = ahead(lanes(1, 1, 1), booking("b", 4, 5, 2, gpu="gpu-1/0000:02:00.0"), hold=1)
    assert until(pool, 1) == [(1, 3, "")]


def test_bookings_of_whole_groups_need_slots_of_their_size() -> None:
    pool = ahead(lanes(2, 1, 1), booking("b", 4, 5, 1, same_group=True))
    assert until(pool, 1) == [(1, 4, "")]  # Nova may put it on the pair


@given(st.data())
def test_until_when_against_trying_every_hour(data: st.DataObject) -> None:
    size = data.draw(st.integers(1, 5))
    mine = lanes(*[1] * size)
    bookings, table = [], {lane.id: [False] * 24 for lane in mine}
    for number in range(data.draw(st.integers(0, 5))):
        lane, start = data.draw(st.integers(1, size)), data.draw(st.integers(0, 20))
        end = data.draw(st.integers(start + 1, 22))
        if not any(table[lane][start:end]):
            table[lane][start:end] = [True] * (end - start)
            bookings.append(booking(f"b{number}", start, end, lane))
    idle = [lane.id for lane in mine if not table[lane.id][0]]
    busy = tuple(idle[: data.draw(st.integers(0, len(idle)))])
    pool = ahead(mine, *bookings, busy=busy)
    servers = len(idle) - len(busy)
    expected = []
    for number in range(1, servers + 1):
        full = [hour for hour in range(24) if sum(t[hour] for t in table.values()) + len(busy) + number > size]
        expected.append(full[0] if full else None)
    ends = [end for count, end, _ in until(pool, servers) for _ in range(count)]
    assert sorted(ends, key=lambda end: (end is None, end)) == sorted(expected, key=lambda end: (end is None, end))


# In words.


def test_the_answer_in_one_line(epyc: LoadedSite) -> None:
    bootable = told(room_of(epyc))["one"]
    friday = datetime(2026, 11, 27, 8, tzinfo=UTC)
    assert answer(bootable) == "4 now"
    assert answer(bootable, Ahead((Span(4, friday),))) == "4 now, until Fri 2026-11-27 08:00 UTC"
    mixed = Ahead((Span(3, None), Span(1, friday)))
    assert answer(bootable, mixed) == "4 now: 3 with no end in sight, 1 until Fri 2026-11-27 08:00 UTC"
    assert row_of(bootable, mixed)["until"] == friday
    coming = Ahead(coming=booking("b7", 20, 24, 1))
    room = room_of(epyc)
    gone = replace(room, hosts=(replace(room.hosts[0], devices=()),))
    statuses = {gpu.provider_name: GpuStatus(gpu, GpuState.CLAIMED) for gpu in room.gpus}
    none = Reckoning(gone, statuses).of(bootable.flavor, None)
    assert answer(none, coming) == (
        "none now: 6 GPUs claimed (servers have them); booking b7 begins Tue 2026-11-24 08:00 UTC"
    )
