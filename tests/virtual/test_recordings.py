"""The recordings in the source tree are what a real kernel shows of the hosts in topology.py, and stay so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpuyard.host.recording import replay
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from tests.virtual_hypervisor.record_hosts import RECORDINGS, differences, record
from tests.virtual_hypervisor.testing import prepared
from tests.virtual_hypervisor.topology import HOSTS, VirtualHost, epyc_v100


def committed(name: str) -> Inventory:
    path = RECORDINGS / f"{name}.json"
    return replay(path.read_text(encoding="utf-8"), path.name)


def shape(host: VirtualHost, inventory: Inventory) -> tuple[list[PciFunction], set[frozenset[str]]]:
    """Each device that was plugged in, and which of them share a group: what no filler that moves numbers changes."""
    plugged = [f for f in inventory.functions if f.address in host.board.plugged]
    devices = [replace(f, iommu_group=None, parent=None) for f in plugged]
    sharing = {frozenset(m.address for m in group if m in plugged) for group in inventory.groups().values()}
    return devices, sharing - {frozenset()}


@pytest.mark.parametrize("name", HOSTS)
def test_recording_is_the_host_that_was_described(name: str) -> None:
    host, inventory = HOSTS[name](), committed(name)
    assert differences(host, inventory) == []
    assert inventory.facts.hostname == host.hostname
    assert inventory.facts.cpu_model == host.cpu_model
    assert inventory.facts.disk_gib == host.disk_gib
    assert inventory.facts.numa_nodes == 2


def test_every_recording_can_be_made_again() -> None:
    assert {path.stem for path in RECORDINGS.glob("*.json")} == set(HOSTS)


@pytest.mark.virtual
def test_a_real_kernel_still_shows_what_is_recorded(tmp_path: Path) -> None:
    host = epyc_v100(exact=False)
    inventory = replay(record(prepared(), host, tmp_path), "the recording made now")
    recorded = committed(host.name)
    assert differences(host, inventory) == []
    assert shape(host, inventory) == shape(host, recorded)
    assert set(inventory.needed_by_host) == set(recorded.needed_by_host)  # a newer QEMU's disk has another name
    facts = replace(inventory.facts, kernel="", address_bits=recorded.facts.address_bits)  # QEMU's are not the host's
    assert facts == replace(recorded.facts, kernel="")
