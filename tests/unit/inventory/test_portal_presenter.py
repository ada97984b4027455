"""From statuses to what stands on the map."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.presenter import (
    DENSE_ABOVE,
    LEGEND,
    MapPage,
    clock_time,
    count_states,
    duration,
    pool_cards,
    present,
)
from gpuyard.model.gpu import Claim, GpuRole, GpuState, GpuStatus
from tests.support.inventories import GPUS, NOON, STATUSES, claim, t4, v100


def page(statuses: tuple[GpuStatus, ...] = STATUSES) -> MapPage:
    return present(InventoryView(7, NOON, statuses), NOON)


def boxes(shown: MapPage) -> dict[str, object]:
    return {gpu.id: gpu for host in shown.hosts for slot in host.slots for gpu in slot.gpus}


def test_hosts_are_in_the_order_of_the_site_with_what_is_free() -> None:
    assert [(host.name, host.free, host.total) for host in page().hosts] == [
        ("epyc", 2, 6),
        ("node10", 0, 2),
        ("node2", 0, 2),
    ]


def test_slots_are_the_iommu_groups_of_a_host() -> None:
    slots = page().hosts[0].slots
    assert [(slot.label, slot.shape, slot.span) for slot in slots] == [
        ("IOMMU group 19 · pair A", "pair", 2),
        ("IOMMU group 32", "lone", 1),
        ("IOMMU group 75", "lone", 1),
        ("IOMMU group 87 · pair B", "pair", 2),
    ]
    assert [gpu.role for gpu in slots[0].gpus] == ["leader", "peer"]
    assert [gpu.role for gpu in slots[1].gpus] == [""]


def test_the_leader_comes_first_also_with_the_higher_address() -> None:
    leader, peer = v100("0000:29:00.0", 19, GpuRole.LEADER, "A"), v100("0000:28:00.0", 19, GpuRole.PEER, "A")
    shown = page((GpuStatus(peer, GpuState.FREE), GpuStatus(leader, GpuState.FREE)))
    assert [gpu.role for gpu in shown.hosts[0].slots[0].gpus] == ["leader", "peer"]


def test_the_same_group_number_on_two_hosts_is_two_slots() -> None:
    gpu, other_gpu = v100("0000:28:00.0", 19), v100("0000:28:00.0", 19, host="other")
    shown = page((GpuStatus(gpu, GpuState.FREE), GpuStatus(other_gpu, GpuState.FREE)))
    assert [len(host.slots) for host in shown.hosts] == [1, 1]


def test_gpus_without_a_group_stand_alone() -> None:
    assert [slot.label for slot in page().hosts[2].slots] == ["no IOMMU group", "no IOMMU group"]


def test_a_group_of_four_is_a_set() -> None:
    gpus = [v100(f"0000:2{n}:00.0", 19, GpuRole.PEER if n else GpuRole.LEADER, "C") for n in range(4)]
    (slot,) = page(tuple(GpuStatus(gpu, GpuState.FREE) for gpu in gpus)).hosts[0].slots
    assert (slot.label, slot.shape, slot.span) == ("IOMMU group 19 · set of 4 C", "set", 4)


def test_a_box_of_a_claimed_gpu() -> None:
    box = page().hosts[0].slots[2].gpus[0]
    assert (box.domain, box.address, box.numa, box.state) == ("0000:", "a3:00.0", "NUMA 1", "claimed")
    assert box.name == "0000:a3:00.0 on epyc"
    assert box.claim is not None
    assert (box.claim.status, box.claim.project, box.claim.user) == ("SHUTOFF", "physics", "ada")
    assert box.claim.since is not None
    assert box.claim.since.exact == "2026-11-12 08:03:10 UTC"
    assert box.claim.since.iso == "2026-11-12T08:03:10Z"
    assert box.claim.since.duration == "9 d"


def test_what_goes_without_saying_is_not_said() -> None:
    row = page().hosts[0].slots[0].gpus[0].claim
    assert row is not None
    assert row.status == ""
    assert page().hosts[2].slots[0].gpus[0].numa == ""


def test_a_server_that_nova_does_not_show_is_named_by_its_id() -> None:
    unknown = Claim("7f3c9a1e-0000", "", "", "", "")
    row = page((GpuStatus(GPUS[0], GpuState.CLAIMED, "", unknown),)).hosts[0].slots[0].gpus[0].claim
    assert row is not None
    assert (row.server, row.status, row.since) == ("7f3c9a1e-0000", "", None)


def test_ids_are_unique() -> None:
    assert len(boxes(page())) == len(STATUSES)


def test_pools_with_their_states() -> None:
    cards = pool_cards(STATUSES)
    assert [(card.name, card.free, card.total, card.models) for card in cards] == [
        ("v100", 2, 6, "Tesla V100 PCIe 16GB"),
        ("t4", 0, 4, "Tesla T4"),
    ]
    assert [(part.state, part.count, part.offset) for part in cards[0].parts] == [
        ("free", 2, 0),
        ("claimed", 3, 2),
        ("stranded", 1, 5),
    ]


@given(st.lists(st.sampled_from(STATUSES)))
def test_the_parts_of_a_pool_are_the_whole(statuses: list[GpuStatus]) -> None:
    for card in pool_cards(statuses):
        assert sum(part.count for part in card.parts) == card.total
        ends = [part.offset + part.count for part in card.parts]
        assert [0, *ends[:-1]] == [part.offset for part in card.parts]


@given(st.lists(st.sampled_from(STATUSES), unique_by=lambda status: status.gpu))
def test_every_gpu_is_on_the_map_once(statuses: list[GpuStatus]) -> None:
    shown = page(tuple(statuses))
    assert len(boxes(shown)) == len(statuses) == sum(host.total for host in shown.hosts)
    assert sum(pool.free for pool in shown.pools) == sum(host.free for host in shown.hosts)


def test_every_state_is_counted_and_explained() -> None:
    assert set(count_states([])) == set(GpuState)
    assert [meaning.state for meaning in LEGEND] == [state.value for state in GpuState]


def test_many_gpus_are_drawn_smaller_and_hosts_as_blocks() -> None:
    def site(hosts: int) -> MapPage:
        gpus = [t4(f"0000:{n:02x}:00.0", n, f"node{host}") for host in range(hosts) for n in range(8)]
        return page(tuple(GpuStatus(gpu, GpuState.FREE) for gpu in gpus))

    assert (site(1).dense, site(1).hosts[0].span) == (False, 8)
    many = site(DENSE_ABOVE // 8 + 1)
    assert (many.dense, many.hosts[0].span) == (True, 4)


def test_a_host_says_its_models_and_whether_there_is_one() -> None:
    mixed = (GpuStatus(v100("0000:01:00.0", 1), GpuState.FREE), GpuStatus(t4("0000:02:00.0", 2, "epyc"), GpuState.FREE))
    host = page(mixed).hosts[0]
    assert (host.models, host.alike) == ("Tesla T4, Tesla V100 PCIe 16GB", False)
    assert page().hosts[0].alike


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (-5, "1 min"),  # the clock of the cloud is ahead
        (0, "1 min"),
        (119, "1 min"),
        (120, "2 min"),
        (3599, "59 min"),
        (3600, "1 h"),
        (47 * 3600 + 3599, "47 h"),
        (48 * 3600, "2 d"),
        (400 * 86400, "400 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_since_is_in_utc_whatever_zone_it_came_in() -> None:
    tokyo = replace(claim(), since=(NOON - timedelta(hours=1)).astimezone(timezone(timedelta(hours=9))))
    row = page((GpuStatus(GPUS[0], GpuState.CLAIMED, "", tokyo),)).hosts[0].slots[0].gpus[0].claim
    assert row is not None
    assert row.since is not None
    assert (row.since.iso, row.since.duration) == ("2026-11-21T11:03:10Z", "1 h")


def test_a_time_of_another_day_comes_with_its_date() -> None:
    assert clock_time(NOON, NOON + timedelta(hours=1)) == "12:03:10 UTC"
    assert clock_time(datetime(2026, 11, 20, 23, 59, 59, tzinfo=UTC), NOON) == "2026-11-20 23:59:59 UTC"
