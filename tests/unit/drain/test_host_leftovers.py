"""What is left behind on a host: what it is, whether it may be taken away, and who else does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuyard.drain.leftovers import Consumer, LeftoverFacts, Recount, TakeAway, find_leftovers, keeps_closed, steps_of
from gpuyard.model.world import HostService
from gpuyard.nova.server_states import ENDED, MigrationSeen

HERE, THERE = "gpu-1", "gpu-2"
HAS = {HERE: {"VCPU": 4}, f"{HERE}_0000:3B:00.0": {"CUSTOM_GPU_T4": 1}}
BESIDE = ("guest-left", "migration-stale")
UP = HostService(HERE, True, False)
DOWN = HostService(HERE, False, False)
DEAD = replace(DOWN, forced_down=True)


def server(status: str = "ACTIVE", host: str | None = THERE, **more: Any) -> Consumer:
    return Consumer("s-1", HAS, status, "train", "", host, **more)


def move(status: str, kind: str = "migration", **more: Any) -> MigrationSeen:
    return replace(MigrationSeen("m-1", "s-1", status, kind, HERE, THERE), **more)


def facts(
    consumer: Consumer | None, *moves: MigrationSeen, mover: Consumer | None = None, service: HostService | None = UP
) -> LeftoverFacts:
    mover = mover or (consumer if consumer and consumer.status else None)
    return LeftoverFacts(
        HERE,
        service,
        (consumer,) if consumer else (),
        {move.id: move for move in moves},
        {"s-1": mover} if mover else {},
    )


@pytest.mark.parametrize(
    ("seen", "code", "cleans"),
    [
        (facts(server(host=HERE)), None, False),
        (facts(server("BUILD", None)), None, False),
        (facts(server()), "moved-away", True),
        (facts(server("SHUTOFF"), move("confirmed")), "moved-away", True),
        (facts(server("ERROR")), "moved-badly", False),
        (facts(server("RESIZE")), "under-way", False),
        (facts(server(), move("migrating", "live-migration")), "under-way", False),
        (facts(server("SHELVED_OFFLOADED", None)), "shelved", True),
        (facts(replace(server("SHELVED_OFFLOADED", None), task="spawning")), "under-way", False),
        (facts(server(), move("done", "evacuation"), service=DEAD), "evacuated", True),
        (facts(server(), move("done", "evacuation"), service=UP), "evacuated", True),
        (facts(server(), move("done", "evacuation"), service=DOWN), "evacuated", False),
        (facts(server("REBUILD"), move("done", "evacuation"), service=DEAD), "under-way", False),
        (facts(Consumer("x", HAS)), "orphan", False),
        (facts(Consumer("m-1", HAS), move("finished"), mover=server("VERIFY_RESIZE")), "unconfirmed", False),
        (facts(Consumer("m-1", HAS), move("migrating"), mover=server("RESIZE")), "under-way", False),
        (facts(Consumer("m-1", HAS), move("error"), mover=server("ERROR")), "migration-failed", False),
        (facts(Consumer("m-1", HAS), move("confirmed"), mover=server()), "migration-left", True),
        (facts(Consumer("m-1", HAS), move("error"), mover=server(host=HERE)), "migration-left", True),
        (facts(Consumer("m-1", HAS), move("confirmed")), "migration-left", True),
    ],
)
def test_what_is_left(seen: LeftoverFacts, code: str | None, cleans: bool) -> None:
    leftovers = [leftover for leftover in find_leftovers(seen) if leftover.code not in BESIDE]
    assert [leftover.code for leftover in leftovers] == ([code] if code else [])
    steps = steps_of(leftovers)
    assert bool(steps) is cleans
    for step in steps:
        assert step == TakeAway(seen.consumers[0].id, HERE, tuple(sorted(HAS)))
    assert all(leftover.reason and leftover.remedy for leftover in leftovers)
    assert keeps_closed(leftovers) == leftovers


TWICE = {**HAS, f"{HERE}_0000:41:00.0": {"CUSTOM_GPU_T4": 1}, f"{HERE}_pci_0000_81_00_0": {"VGPU": 1}}


@pytest.mark.parametrize(
    ("seen", "cleans"),
    [
        (facts(replace(server(host=HERE, asks=1), amounts=TWICE)), True),
        (facts(replace(server("SHUTOFF", HERE, asks=1), amounts=TWICE), move("confirmed")), True),
        (facts(replace(server(host=HERE, asks=1), amounts=TWICE), service=DOWN), False),
        (facts(replace(server(host=HERE, asks=2), amounts=TWICE)), None),
        (facts(replace(server(host=HERE), amounts=TWICE)), None),
        (facts(replace(server("VERIFY_RESIZE", HERE, asks=1), amounts=TWICE)), None),
        (facts(replace(server(host=HERE, asks=1), amounts=TWICE), move("migrating")), None),
        (facts(server(host=HERE, asks=1)), None),
    ],
)
def test_devices_that_are_counted_twice_for_a_server_where_it_is(seen: LeftoverFacts, cleans: bool | None) -> None:
    """A share of a card that makes vGPUs is none of them: nova-compute would not write it back."""
    leftovers = [leftover for leftover in find_leftovers(seen) if leftover.code not in BESIDE]
    assert [leftover.code for leftover in leftovers] == ([] if cleans is None else ["counted-twice"])
    devices = (f"{HERE}_0000:3B:00.0", f"{HERE}_0000:41:00.0")
    assert steps_of(leftovers) == ([Recount("s-1", HERE, devices, 1)] if cleans else [])
    assert not keeps_closed(leftovers)


def test_what_only_nova_compute_removes_is_said_and_keeps_nothing_closed() -> None:
    (guest,) = find_leftovers(facts(None, move("done", "evacuation"), mover=replace(server(), amounts={})))
    assert guest.code == "guest-left"
    assert "pci_devices" in guest.reason
    assert not keeps_closed([guest])
    (stale,) = find_leftovers(facts(None, move("pre-migrating"), mover=replace(server(host=HERE), amounts={})))
    assert stale.code == "migration-stale"
    assert not keeps_closed([stale])


def test_whether_nova_compute_has_seen_what_was_evacuated() -> None:
    assert not facts(None, move("done", "evacuation")).has_restarted
    assert facts(None, move("completed", "evacuation")).has_restarted
    assert facts(None, move("done", "evacuation", source=THERE, target=HERE)).has_restarted


STATUSES = sorted(ENDED | {"finished", "migrating", "accepted", "pre-migrating", "confirming"})


@given(
    st.sampled_from([None, "ACTIVE", "SHUTOFF", "ERROR", "RESIZE", "VERIFY_RESIZE", "REBUILD", "SHELVED_OFFLOADED"]),
    st.sampled_from([HERE, THERE, None]),
    st.sampled_from(STATUSES),
    st.sampled_from(["migration", "resize", "evacuation", "live-migration"]),
    st.sampled_from([UP, DOWN, DEAD, None]),
    st.booleans(),
)
def test_nothing_is_taken_from_a_server_that_is_here_or_on_its_way(
    status: str | None, host: str | None, moving: str, kind: str, service: HostService | None, as_migration: bool
) -> None:
    who = Consumer("s-1", HAS, status, "train", "", host)
    consumer = Consumer("m-1", HAS) if as_migration else who
    leftover_facts = facts(consumer, move(moving, kind), mover=who if status else None, service=service)
    if steps_of(find_leftovers(leftover_facts)):
        assert not who.busy
        assert who.status != "ERROR"
        if not as_migration:
            assert status == "SHELVED_OFFLOADED" or host == THERE
        assert moving in ENDED or status == "SHELVED_OFFLOADED"
