"""What differs between the record of a host and the host, and what that means for Nova."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.host.checks.changed_since_recording import drift
from gpuyard.model.finding import Severity
from gpuyard.model.host import Inventory
from tests.support.sysfs import EPYC, T4, TITAN_XP, TITAN_XP_AUDIO, V100, Sysfs, epyc

AcceptanceOutput = list[tuple[Severity, str]]
Cards = dict[str, tuple[str, int]]
"""Address -> ids and group number."""


def host(*functions: tuple[str, str, int | None], **more: str) -> Sysfs:
    """Functions of three-part address, ids and group; a GPU unless it is audio."""
    machine = Sysfs()
    for address, ids, group in functions:
        machine.function(address, ids, "0403" if ids == TITAN_XP_AUDIO else "0302", group, **more)
    return machine


def said(recorded: Sysfs, seen: Sysfs) -> AcceptanceOutput:
    """Without what it means, which follows a colon or a semicolon."""
    findings = drift(recorded.inventory(), seen.inventory())
    return [(finding.severity, re.split("[:;] ", finding.reason)[0]) for finding in findings]


PAIR = (("27:00.0", V100, 19), ("28:00.0", V100, 19))
NAME = "Tesla V100 PCIe 16GB [10de:1db4]"


@pytest.mark.parametrize(
    ("recorded", "seen", "expected"),
    [
        (
            host(("27:00.0", V100, 1), ("44:00.0", V100, 2)),
            host(("44:00.0", V100, 2)),
            [(Severity.ERROR, f"27:00.0 {NAME} is gone")],
        ),
        (
            host(("27:00.0", V100, 1)),
            host(("27:00.0", V100, 1), ("44:00.0", V100, 2)),
            [(Severity.WARNING, f"44:00.0 {NAME} is new")],
        ),
        (
            host(("27:00.0", V100, 1)),
            host(("a3:00.0", V100, 7)),
            [(Severity.ERROR, f"27:00.0 {NAME} is at a3:00.0 now")],
        ),
        (
            host(("27:00.0", V100, 1)),
            host(("27:00.0", T4, 1)),
            [(Severity.ERROR, f"27:00.0 {NAME} is another card now, Tesla T4 [10de:1eb8]")],
        ),
        (  # two cards changed places
            host(("27:00.0", V100, 1), ("28:00.0", T4, 2)),
            host(("27:00.0", T4, 1), ("28:00.0", V100, 2)),
            [
                (Severity.ERROR, f"27:00.0 {NAME} is at 28:00.0 now"),
                (Severity.ERROR, "28:00.0 Tesla T4 [10de:1eb8] is at 27:00.0 now"),
            ],
        ),
        (  # a card moved with its audio, and its group with it
            host(("18:00.0", TITAN_XP, 39), ("18:00.1", TITAN_XP_AUDIO, 39)),
            host(("86:00.0", TITAN_XP, 50), ("86:00.1", TITAN_XP_AUDIO, 50)),
            [(Severity.ERROR, "18:00.0 10de:1b02 [10de:1b02] is at 86:00.0 now")],
        ),
        (
            host(*PAIR),
            host(("27:00.0", V100, 19), ("28:00.0", V100, 20)),
            [
                (Severity.ERROR, f"the IOMMU group of 27:00.0 {NAME} is another"),
                (Severity.ERROR, f"the IOMMU group of 28:00.0 {NAME} is another"),
            ],
        ),
        (  # said once
            host(("27:00.0", V100, 19), ("28:00.0", V100, 20)),
            host(*PAIR),
            [(Severity.ERROR, f"the IOMMU group of 27:00.0 {NAME} is another")],
        ),
        (  # a bridge is in no one's way
            host(*PAIR),
            host(*PAIR).function("25:00.0", "10b5:8747", "0604", 19),
            [],
        ),
        (
            host(("27:00.0", V100, None)),
            host(("27:00.0", V100, 1)),
            [(Severity.WARNING, "the IOMMU is on now, and was off when the host was recorded")],
        ),
        (
            host(*PAIR),
            host(("27:00.0", V100, None), ("28:00.0", V100, None)),
            [(Severity.ERROR, "the IOMMU is off now and was on")],
        ),
        (
            host(("18:00.0", T4, 1), sriov_totalvfs="16"),
            host(("18:00.0", T4, 1)),
            [(Severity.ERROR, "18:00.0 Tesla T4 [10de:1eb8] is type-PCI now and was type-PF (SR-IOV)")],
        ),
        (
            host(("27:00.0", V100, 1)),
            host(("27:00.0", V100, 1), boot_vga="1"),
            [(Severity.ERROR, "27:00.0 could be given away and cannot now")],
        ),
    ],
)  # fmt: skip
def test_each_kind(recorded: Sysfs, seen: Sysfs, expected: AcceptanceOutput) -> None:
    assert said(recorded, seen) == expected


def test_a_disk_that_came_into_a_group_is_told_with_its_use() -> None:
    machine = epyc().function("a4:00.0", "144d:a808", "0108", 75, driver="nvme").disk("nvme0n1", "259:0", "a4:00.0")
    reasons = [finding.reason for finding in drift(epyc().inventory(), machine.inventory())]
    assert any("a3:00.0" in reason and "now with 0000:a4:00.0" in reason for reason in reasons)
    assert any("cannot now" in reason and "root disk on nvme0n1" in reason for reason in reasons)


def test_every_finding_says_what_to_do() -> None:
    for finding in drift(epyc().inventory(), host(("27:00.0", T4, 1), ("90:00.0", V100, 3)).inventory()):
        assert finding.code == "drift"
        assert "Nova" in finding.reason
        assert "record the host again" in finding.remedy


@given(st.permutations(range(100)))
def test_numbers_alone_are_no_drift(numbers: list[int]) -> None:
    assert said(epyc(), host(*((address, V100, numbers[group]) for address, group in EPYC))) == []


cards = st.dictionaries(
    st.integers(1, 12).map(lambda bus: f"{bus:02x}:00.0"),
    st.tuples(st.sampled_from([V100, T4]), st.integers(0, 3)),
    max_size=8,
)


def built(functions: Cards) -> Inventory:
    return host(*((address, ids, group) for address, (ids, group) in sorted(functions.items()))).inventory()


def as_nova_knows(inventory: Inventory) -> set[tuple[str, str, frozenset[str]]]:
    """Address, ids and group members of each GPU."""
    groups = inventory.groups()
    return {
        (gpu.address, gpu.ids, frozenset(member.address for member in groups[gpu.iommu_group or 0]))
        for gpu in inventory.gpus
    }


@given(cards, cards)
def test_silence_means_that_what_nova_knows_is_true(before: Cards, after: Cards) -> None:
    recorded, observed = built(before), built(after)
    same = as_nova_knows(recorded) == as_nova_knows(observed)
    assert (drift(recorded, observed) == []) is same


@given(cards, cards)
def test_each_card_is_told_of_once(before: Cards, after: Cards) -> None:
    """Gone, new, moved and replaced add up: whoever follows them gets from the record to the host."""
    reasons = [finding.reason for finding in drift(built(before), built(after))]
    gone = sum(" is gone" in reason for reason in reasons)
    new = sum(" is new" in reason for reason in reasons)
    assert len(before) - gone + new == len(after)
