"""Who had which GPU, on the real services: to the second of what Nova remembers, also while nobody looked."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from gpuyard.openstack.rows import moment
from gpuyard.usage.controllers.history import HistoryController, open_history
from gpuyard.usage.lives import ServerLife, use_spans, whole
from gpuyard.usage.reckoning import reckon
from gpuyard.usage.records import Extent, Interval, TrackState
from gpuyard.usage.store import Which
from tests.integration.booked_lab import BookedLab, Open
from tests.integration.test_enforcement import FREE, opened

__all__ = ["opened"]
pytestmark = [pytest.mark.lab, pytest.mark.slow]


def controller_of(booked: BookedLab) -> HistoryController:
    """One that remembers nothing, as after a start."""
    booked.restart()
    booked.controller.run()
    return open_history(booked.compiled, booked.operator, booked.ledger, booked.controller, booked.clock)


def look(booked: BookedLab, controller: HistoryController) -> Extent:
    """A look of a later second than the last one."""
    extent = controller.history.extent()
    until = extent.until if extent else datetime.min.replace(tzinfo=UTC)
    for _ in range(600):
        booked.controller.run()
        controller.run()
        extent = controller.history.extent()
        if extent is not None and extent.until > until:
            return extent
    raise AssertionError("no look was written")


def used(controller: HistoryController, server: str) -> int:
    extent = controller.history.extent()
    assert extent is not None
    intervals = controller.history.intervals(
        extent.first, extent.until, Which(server=server, states=[TrackState.CLAIMED])
    )
    return sum(interval.seconds(extent.first, extent.until) for interval in intervals)


def by_nova(booked: BookedLab, server: str, who: str) -> int:
    """Of one that is deleted, as Nova tells those who bill."""
    project, now = booked.people[who].project_id, datetime.now(UTC)
    span = {"start": f"{now - timedelta(days=1):%Y-%m-%dT%H:%M:%S}", "end": f"{now:%Y-%m-%dT%H:%M:%S}"}
    usage = booked.operator.get("compute", f"/os-simple-tenant-usage/{project}", **span)["tenant_usage"]
    (row,) = [row for row in usage["server_usages"] if row["instance_id"] == server]
    begin, end = (datetime.fromisoformat(row[name]).replace(microsecond=0) for name in ("started_at", "ended_at"))
    return int((end - begin).total_seconds())


def launch_of(booked: BookedLab, server: str) -> datetime:
    """As Nova says it now, in whole seconds."""
    launched = moment(booked.operator.get("compute", f"/servers/{server}")["server"]["OS-SRV-USG:launched_at"])
    assert launched is not None
    return whole(launched)


def act(booked: BookedLab, server: str, action: str, status: str) -> None:
    booked.operator.request("POST", "compute", f"/servers/{server}/action", {action: None})
    booked.exercises["ada"].wait_for_status(server, status)


def partition(controller: HistoryController, extent: Extent) -> None:
    """Of every GPU, without a hole or an overlap; all of it adds up to the time that there was."""
    intervals = controller.history.intervals(
        extent.first, extent.until + timedelta(seconds=1)
    )  # also what has just begun
    by_gpu: dict[tuple[str, str], list[Interval]] = {}
    for interval in intervals:
        if interval.address:
            by_gpu.setdefault((interval.host, interval.address), []).append(interval)
    for mine in by_gpu.values():
        assert mine[0].start == extent.first
        assert [interval.end for interval in mine[:-1]] == [interval.start for interval in mine[1:]]
        assert mine[-1].end is None
    total = sum(reckon(intervals, extent.first, extent.until).slices.values())
    assert total == len(by_gpu) * int((extent.until - extent.first).total_seconds())


def test_history_is_what_nova_remembers(opened: Open) -> None:
    booked = opened(FREE, {"physics": {"gpus": {"t4": 4}}, "art": {"gpus": {"t4": 4}}})
    controller = controller_of(booked)
    look(booked, controller)
    snapshot = booked.controller.observation.snapshot if booked.controller.observation else None
    assert snapshot is not None
    assert snapshot.clock is not None, "its answers say what time it is"
    assert abs(snapshot.clock - snapshot.taken_at) < timedelta(minutes=1)
    observed, shelved = booked.boot("ada"), booked.boot("ada")
    assert (observed.status, shelved.status) == ("ACTIVE", "ACTIVE"), (observed.fault, shelved.fault)
    launched = launch_of(booked, shelved.server_id)
    look(booked, controller)
    # Nobody looks: one ends, one comes and goes, one gives its GPU back and gets one again.
    booked.exercises["ada"].delete([observed.server_id])
    short = booked.boot("bob")
    assert short.status == "ACTIVE", short.fault
    until = datetime.now(UTC) + timedelta(seconds=2)  # so that it has some that are whole
    booked.exercises["bob"]._until(lambda: datetime.now(UTC) > until, "the clock")
    booked.exercises["bob"].delete([short.server_id])
    act(booked, shelved.server_id, "shelve", "SHELVED_OFFLOADED")
    act(booked, shelved.server_id, "unshelve", "ACTIVE")
    controller = controller_of(booked)
    extent = look(booked, controller)
    partition(controller, extent)
    assert used(controller, observed.server_id) == by_nova(booked, observed.server_id, "ada")
    assert used(controller, short.server_id) == by_nova(booked, short.server_id, "bob")
    (interval,) = controller.history.intervals(extent.first, extent.until, Which(server=short.server_id))
    assert (interval.address, interval.pool, interval.tenure.user, interval.exact_start, interval.exact_end) == (
        "",
        "t4",
        "bob",
        True,
        True,
    )
    # It is deleted, and its life is told by Nova alone.
    booked.exercises["ada"].delete([shelved.server_id])
    look(booked, controller)
    extent = look(booked, controller)  # what ended in the second of a look is for the next one
    life: ServerLife = controller._lives.read(extent.first, extent.until, ())[shelved.server_id]
    spans = use_spans(life)
    assert len(spans) == 2, life.deeds
    # Nova has overwritten when it was first launched. The look before knows it; of the action is left when it ended.
    assert timedelta(0) <= spans[0][0] - launched < timedelta(seconds=5)
    spans[0] = launched, spans[0][1]
    mine = controller.history.intervals(
        extent.first, extent.until, Which(server=shelved.server_id, states=[TrackState.CLAIMED])
    )
    expected = sum(int((b - a).total_seconds()) for a, b in spans if b is not None)
    assert used(controller, shelved.server_id) == expected, f"{mine} {life}"
    assert used(controller, shelved.server_id) > by_nova(booked, shelved.server_id, "ada"), (
        "Nova forgets what was before"
    )
    partition(controller, extent)
    now = controller.history.intervals(extent.until - timedelta(seconds=1), extent.until)
    assert TrackState.CLAIMED not in {interval.state for interval in now if interval.end is None}
