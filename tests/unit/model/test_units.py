"""Units of shared devices: arithmetic of who is on which, and what a look at Placement makes of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.presenter import present
from gpuyard.model.gpu import Gpu, GpuKind, GpuRole, GpuState, GpuStatus, is_unit
from gpuyard.model.units import hold_of, seats
from gpuyard.model.world import Provider, Stock
from gpuyard.nova.alias_spec import asked_classes, takes_devices
from gpuyard.openstack.units import Seated, UnitReader, UnitsSeen
from tests.support.inventories import NOON

CLASS = "CUSTOM_GPU_PART"
UNITS = [f"host_0000:41:00.0~{number}" for number in range(1, 7)]
CONSUMERS = ("a", "b", "c", "d")


@st.composite
def devices(draw: st.DrawFn) -> tuple[list[str], dict[str, int], frozenset[str], dict[str, str]]:
    """Units, who has how many, which are held, and what was said before; as a cloud may have it, and as it may not."""
    units = UNITS[: draw(st.integers(0, len(UNITS)))]
    taken = draw(st.dictionaries(st.sampled_from(CONSUMERS), st.integers(0, 4)))
    held_units = frozenset(draw(st.lists(st.sampled_from(units)))) if units else frozenset[str]()
    before = draw(st.dictionaries(st.sampled_from(UNITS), st.sampled_from(CONSUMERS)))
    return units, taken, held_units, before


@given(devices())
def test_nobody_has_more_units_than_placement_says_and_all_are_seated_that_fit(
    case: tuple[list[str], dict[str, int], frozenset[str], dict[str, str]],
) -> None:
    units, taken, held_units, before = case
    seating = seats(units, taken, held_units, before)
    assert seating.keys() <= set(units)
    assert all(number <= taken[who] for who, number in Counter(seating.values()).items())
    assert len(seating) == min(len(units), sum(taken.values()))
    if sum(taken.values()) <= len(units) - len(held_units):
        assert not seating.keys() & held_units, "a unit that is held is nobody's as long as there are others"


@given(devices())
def test_who_has_a_unit_keeps_it_whatever_the_others_do(
    case: tuple[list[str], dict[str, int], frozenset[str], dict[str, str]],
) -> None:
    units, taken, held_units, _ = case
    first = seats(units, taken, held_units, {})
    assert seats(units, taken, held_units, first) == first
    for gone in taken:
        rest = {who: number for who, number in taken.items() if who != gone}
        after = seats(units, rest, frozenset(), first)
        assert all(after[unit] == who for unit, who in first.items() if who != gone)


def test_each_unit_has_a_hold_of_its_own() -> None:
    assert len({hold_of(name) for name in UNITS}) == len(UNITS)
    assert hold_of(UNITS[0]) == hold_of(UNITS[0])
    assert is_unit(UNITS[0])
    assert not is_unit("host_0000:41:00.0")


def part(number: int, kind: GpuKind = GpuKind.VF) -> Gpu:
    return Gpu("host", f"0000:41:00.0~{number}", "part", "H200", "10de:2335", GpuRole.LONE, CLASS, None, kind=kind)


class Placement:
    """One device, and who has how many of it."""

    def __init__(self, total: int, consumers: Mapping[str, int], reserved: int = 0, name: str = CLASS) -> None:
        self.total, self.taken, self.reserved, self.name = total, dict(consumers), reserved, name
        self.asked = 0

    @property
    def free(self) -> int:
        return self.total - self.reserved - sum(self.taken.values())

    def stock(self, provider: str) -> dict[str, Stock]:
        self.asked += 1
        return {self.name: Stock(self.total, self.reserved)}

    def consumers(self, provider: str) -> dict[str, dict[str, int]]:
        self.asked += 1
        return {who: {self.name: number} for who, number in self.taken.items()}

    def each(self, ask: Any, keys: list[str]) -> dict[str, Any]:
        return {key: ask(key) for key in keys}

    def look(self, reader: UnitReader, servers: tuple[str, ...]) -> UnitsSeen:
        device = Provider("id", "host_0000:41:00.0", "root", "root")
        able = {
            (name, number): frozenset({device.name} if name == self.name and number <= self.free else ())
            for name, number in reader.questions
        }
        held = {server: {"id": self.taken[server]} for server in servers if server in self.taken}
        return reader.see(self, {device.name: device}, able, held)  # type: ignore[arg-type]


def names(*numbers: int) -> set[str]:
    return {f"host_0000:41:00.0~{number}" for number in numbers}


@given(
    st.integers(1, 6),
    st.integers(0, 6),
    st.dictionaries(st.sampled_from(CONSUMERS), st.integers(1, 3)),
    st.sets(st.integers(1, 6)),
    st.integers(0, 2),
    st.sets(st.sampled_from(CONSUMERS)),
)
def test_what_is_seen_of_units_adds_up(
    wanted: int, total: int, taken: dict[str, int], held: set[int], reserved: int, listed: set[str]
) -> None:
    """Whatever Placement has: no unit is two things at once, none is given away that is not free, and none is lost that
    is there. Server or not, who has a unit is said to have one."""
    holds = {hold_of(name): 1 for name in names(*held) if name in {part(n).provider_name for n in range(1, wanted + 1)}}
    cloud = Placement(total, {**taken, **holds}, min(reserved, total))
    if sum(cloud.taken.values()) + cloud.reserved > total:
        return  # Placement would not have let it come to this
    observed = cloud.look(
        UnitReader([part(number) for number in range(1, wanted + 1)], Seated()), tuple(sorted(listed))
    )
    states = [observed.allocatable, set(observed.holders), observed.reserved]
    assert sum(map(len, states)) == len(set().union(*states)) == len(observed.providers) == min(wanted, total)
    assert len(observed.allocatable) <= cloud.free
    assert len(observed.holders) == min(wanted, sum(taken.values())) or wanted < total
    assert not observed.unexplained
    assert all(provider.id == "id" for provider in observed.providers.values())


def test_a_device_of_which_all_is_free_or_a_server_s_costs_no_call() -> None:
    cloud = Placement(4, {"a": 1, "b": 2})
    observed = cloud.look(UnitReader([part(number) for number in range(1, 5)], Seated()), ("a", "b"))
    assert (observed.holders, observed.allocatable, cloud.asked) == (
        dict(zip(sorted(names(1, 2, 3)), ("a", "b", "b"), strict=True)),
        names(4),
        0,
    )


def test_a_server_stays_on_its_unit_when_an_older_one_ends() -> None:
    cloud, reader = Placement(3, {"a": 1, "b": 1}), UnitReader([part(number) for number in (1, 2, 3)], Seated())
    assert cloud.look(reader, ("a", "b")).holders == {f"{UNITS[0]}": "a", f"{UNITS[1]}": "b"}
    del cloud.taken["a"]
    assert cloud.look(reader, ("b",)).holders == {f"{UNITS[1]}": "b"}
    cloud.taken["c"] = 1
    assert cloud.look(reader, ("b", "c")).holders == {f"{UNITS[1]}": "b", f"{UNITS[0]}": "c"}


def test_who_looks_later_says_the_same() -> None:
    """As the loop of bookings and the one that draws the map do."""
    cloud, seated, gpus = Placement(3, {"a": 1, "b": 1}), Seated(), [part(number) for number in (1, 2, 3)]
    reader, other = UnitReader(gpus, seated), UnitReader(gpus, seated)
    cloud.look(reader, ("a", "b"))
    del cloud.taken["a"]
    assert cloud.look(other, ("b",)).holders == {f"{UNITS[1]}": "b"}
    assert cloud.look(reader, ("b",)).holders == {f"{UNITS[1]}": "b"}


def test_units_that_nova_offers_no_more_are_lost_and_those_that_an_operator_reserves_are_reserved() -> None:
    observed = Placement(3, {"a": 1}, reserved=1).look(
        UnitReader([part(number) for number in range(1, 5)], Seated()), ("a",)
    )
    assert (set(observed.holders), observed.allocatable, observed.reserved) == (names(1), names(2), names(3))
    assert set(observed.providers) == names(1, 2, 3), "the fourth is nowhere"


def test_a_device_that_nova_has_as_something_else_is_unexplained() -> None:
    observed = Placement(2, {}, name="VGPU").look(UnitReader([part(1)], Seated()), ())
    (why,) = observed.unexplained.values()
    assert why == f"Placement has it as VGPU, not as {CLASS}: deploy the site's Nova options"


def test_nova_s_records_of_a_server_tell_its_pool_by_alias_or_by_class() -> None:
    specs = {
        "resources:CUSTOM_GPU_T4_4Q": "1",
        "resources1:VGPU": " 2 ",
        "trait:CUSTOM_X": "required",
        "resources:A": "x",
    }
    assert asked_classes(specs) == {"CUSTOM_GPU_T4_4Q": 1, "VGPU": 2}
    assert takes_devices(specs)
    assert not takes_devices({"resources:CUSTOM_NOGPU_VCPU": "1", "resources:VCPU": "1"})


def test_the_map_shows_units_in_the_order_of_their_numbers() -> None:
    gpus = [part(number) for number in (10, 2, 1)]
    shown = present(InventoryView(7, NOON, tuple(GpuStatus(gpu, GpuState.FREE) for gpu in gpus)), NOON)
    (host,) = shown.hosts
    assert [slot.label for slot in host.slots] == ["share of 0000:41:00.0"] * 3
    assert [gpu.address for slot in host.slots for gpu in slot.gpus] == ["41:00.0~1", "41:00.0~2", "41:00.0~10"]


@pytest.mark.parametrize(
    ("kind", "provider"), [(GpuKind.VF, "host_0000:41:00.0"), (GpuKind.VGPU, "host_pci_0000_41_00_0")]
)
def test_units_of_a_device_have_its_provider_in_common(kind: GpuKind, provider: str) -> None:
    assert {part(number, kind).provider for number in (1, 2)} == {provider}
    assert len({part(number, kind).provider_name for number in (1, 2)}) == 2
