"""The flavors that start a server on a booking, on the lab's site."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.bookings.web.flavors import fitting, start_command
from gpuyard.model.booking import Ask, Booking, BookingKind, BookingState, Lane
from gpuyard.site.load import load_site
from tests.support.ledgers import HOUR, NOON

COMPILED = load_site(Path(__file__).parents[3] / "lab/src/gpuyard_lab/site.yaml").compiled
LETTERS = {(gpu.host, gpu.address): gpu.set_letter for gpu in COMPILED.gpus}
SINGLE = ["gpu_tiny", "gpu_medium", "gpu_large", "gpu_xlarge", "gpu_2xlarge", "gpu_4xlarge"]


def lanes() -> dict[str, Lane]:
    """One for each IOMMU group: by pool and letter or number, as in ``v100 A`` and ``t4 0``."""
    lanes_by_name: dict[str, Lane] = {}
    for number, gpu in enumerate(COMPILED.gpus):
        members = [
            member for member in COMPILED.gpus if gpu.group and (member.host, member.group) == (gpu.host, gpu.group)
        ] or [gpu]
        if members[0] == gpu:
            name = (
                f"{gpu.pool} {gpu.set_letter or sum(existing.startswith(f'{gpu.pool} ') for existing in lanes_by_name)}"
            )
            lanes_by_name[name] = Lane(number, gpu.pool, gpu.host, tuple(member.address for member in members))
    return lanes_by_name


LANES = lanes()


def booked(
    *names: str, pool: str = "v100", gpus: int = 1, same_group: bool = False, same_host: bool = False
) -> list[str]:
    ask = Ask(pool, NOON, NOON + HOUR, gpus, same_group, same_host)
    booking = Booking("b1", BookingKind.BOOKING, ask, BookingState.ACTIVE, "u", "ada", "p", "demo", NOON, NOON)
    booking = replace(booking, lanes=tuple(LANES[name].id for name in names))
    return [flavor.name for flavor in fitting(booking, LANES.values(), LETTERS, COMPILED.flavors)]


@pytest.mark.parametrize("letter", ["A", "B"])
def test_a_pair_has_the_flavor_of_its_group(letter: str) -> None:
    assert booked(f"v100 {letter}", gpus=2, same_group=True) == [f"gpu_pair-{letter.lower()}"]


def test_a_pair_that_has_no_group_yet_may_get_any() -> None:
    assert booked(gpus=2, same_group=True) == ["gpu_pair-a", "gpu_pair-b"]


def test_one_gpu_has_all_flavors_with_one() -> None:
    assert booked("v100 A") == SINGLE


def test_a_server_is_on_one_host() -> None:
    hosts = {name: lane.host for name, lane in LANES.items() if lane.pool == "t4"}
    first, other = next((a, b) for a in hosts for b in hosts if a < b and hosts[a] == hosts[b])
    assert booked(first, other, pool="t4", gpus=2) == ["t4.30cores180GB", "t4.15cores90GB"]
    assert booked(pool="t4", gpus=2) == ["t4.15cores90GB"]
    assert booked(pool="t4", gpus=2, same_host=True) == ["t4.30cores180GB", "t4.15cores90GB"]


def test_private_flavors_are_for_their_projects() -> None:
    private = [replace(flavor, public=False, projects=frozenset({"demo"})) for flavor in COMPILED.flavors]
    ask = Ask("k40c", NOON, NOON + HOUR)
    mine = Booking("b1", BookingKind.BOOKING, ask, BookingState.ACTIVE, "u", "ada", "p", "demo", NOON, NOON)
    assert [flavor.name for flavor in fitting(mine, (), LETTERS, private)] == ["k40c.2cores"]
    assert not fitting(replace(mine, project="other"), (), LETTERS, private)
    assert not fitting(replace(mine, kind=BookingKind.HOLD), (), LETTERS, private)


def test_the_command_names_the_first() -> None:
    flavors = [flavor for flavor in COMPILED.flavors if flavor.name == "gpu_pair-a"]
    assert start_command(flavors) == (
        "openstack server create --flavor gpu_pair-a --image IMAGE --network NETWORK --key-name KEY --wait NAME"
    )
    assert start_command([]) == ""
    assert "--flavor 'a b'" in start_command([replace(flavors[0], name="a b")])
