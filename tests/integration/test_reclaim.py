"""GPUs come back from servers without a booking, on the real services: warned, waited for, then what the rule says."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gpuyard.bookings.reclaim import MUST_BOOK, PAST_THE_END, YIELDS
from gpuyard.bookings.records import Overstay
from gpuyard_lab.exercise import Boot
from tests.integration.booked_lab import BookedLab, Open
from tests.integration.conftest import RunningLab
from tests.integration.test_enforcement import ART, FREE, MUST, opened, start

__all__ = ["opened"]
pytestmark = pytest.mark.lab


FORMATS = {"disk": "raw", "container": "bare"}


def overstay(booked: BookedLab, who: str = "ada") -> Boot:
    """A server whose booking is over."""
    booking = booked.book(who, start=0)
    booked.controller.run()
    boot = booked.boot(who)
    assert boot.status == "ACTIVE", boot.fault
    booked.controller.run()
    booked.clock.until(booking.ask.end)
    booked.controller.run()
    return boot


def case(booked: BookedLab, boot: Boot) -> Overstay:
    """The newest of a server."""
    return next(overstay for overstay in booked.ledger._store.overstays() if overstay.server_id == boot.server_id)


def run_until_gone(
    booked: BookedLab, boot: Boot, status: str | None, between: Callable[[], None] = lambda: None
) -> None:
    """Runs of the loop until the server has a status, or is gone, and its case is closed."""
    observed = None
    for _ in range(60):
        booked.controller.run()
        between()
        rows = booked.operator.get("compute", "/servers/detail", all_tenants=1)["servers"]
        observed = {row["id"]: row["status"] for row in rows}.get(boot.server_id)
        if observed == status and case(booked, boot).done is not None:
            return
    raise AssertionError(f"{observed}: {case(booked, boot)}")


def audit(booked: BookedLab, boot: Boot) -> list[tuple[str, str, str]]:
    """What was done to a server, in order."""
    entries = reversed(booked.ledger.audit(1000))
    return [(entry.action, entry.rule, entry.text) for entry in entries if entry.target == boot.server_id]


def events(booked: BookedLab) -> list[tuple[str, str]]:
    deliveries = booked.ledger._store.take_undelivered("test", booked.clock(), 1000)
    return [
        (delivery.event.kind, delivery.event.user_id)
        for delivery in deliveries
        if delivery.event.kind.startswith("reclaim")
    ]


def test_past_the_end_a_server_is_warned_and_shelved_and_keeps_its_disk(opened: Open) -> None:
    booked = opened(MUST)
    booked.ledger._store.take_undelivered("test", booked.clock(), 1)
    boot = overstay(booked)
    warned = case(booked, boot)
    assert (warned.rule, warned.dry_run, warned.done) == (PAST_THE_END, False, None)
    assert warned.due is not None
    text = booked.server(boot.server_id)["metadata"]["gpuyard"]
    assert text.startswith(f"{warned.due:%Y-%m-%d %H:%M} UTC: this server is shelved")
    booked.controller.run()
    assert booked.server(boot.server_id)["status"] == "ACTIVE", "there is time left"
    booked.clock.until(warned.due)
    run_until_gone(booked, boot, "SHELVED_OFFLOADED")
    closed = case(booked, boot)
    assert closed.done == closed.cleared
    assert [action for action, _, _ in audit(booked, boot)] == ["server.warn", "server.shelve", "server.shelve"]
    assert {rule for _, rule, _ in audit(booked, boot)} == {PAST_THE_END}
    ada = booked.people["ada"].user_id
    assert events(booked) == [("reclaim.warned", ada), ("reclaim.done", ada)]
    assert all(status.claim is None for status in booked.statuses())
    path = f"/servers/{boot.server_id}/action"
    booked.apis["ada"].request("POST", "compute", path, {"unshelve": None})
    booked.exercises["ada"]._until(lambda: booked.server(boot.server_id)["OS-EXT-STS:task_state"] is None, "Nova")
    assert booked.server(boot.server_id)["status"] == "SHELVED_OFFLOADED", "Nova's conductor refuses it"
    assert all(status.claim is None for status in booked.statuses())
    booked.book("ada", start=0)
    booked.controller.run()
    booked.apis["ada"].request("POST", "compute", path, {"unshelve": None})
    booked.exercises["ada"].wait_for_status(boot.server_id, "ACTIVE")
    left = booked.operator.get("image", "/images", instance_uuid=boot.server_id)["images"]
    assert not left, "its image was its project's, so Nova could delete it"


def test_a_dry_run_says_everything_and_does_nothing(opened: Open) -> None:
    booked = opened({**MUST, "dry_run": True})
    booked.ledger._store.take_undelivered("test", booked.clock(), 1)
    boot = overstay(booked)
    due = case(booked, boot).due
    assert due is not None
    booked.clock.until(due)
    booked.controller.run()
    booked.controller.run()
    server = booked.server(boot.server_id)
    assert (server["status"], server["metadata"]) == ("ACTIVE", {})
    assert case(booked, boot).done is not None
    assert [text for _, _, text in audit(booked, boot) if "dry run" not in text] == []
    assert [action for action, _, _ in audit(booked, boot)] == ["server.warn", "server.shelve"]
    assert [kind for kind, _ in events(booked)] == ["reclaim.warned"]


def test_a_booking_in_time_clears_the_case_and_takes_the_warning_off(opened: Open) -> None:
    booked = opened(MUST)
    boot = overstay(booked)
    assert "gpuyard" in booked.server(boot.server_id)["metadata"]
    booked.book("ada", start=0)
    booked.controller.run()
    assert case(booked, boot).cleared is not None
    assert booked.server(boot.server_id)["metadata"] == {}
    booked.clock.forward(minutes=45)
    booked.controller.run()
    assert booked.server(boot.server_id)["status"] == "ACTIVE"
    booked.exercises["ada"].delete([boot.server_id])


@pytest.mark.slow
def test_deleted_is_deleted(opened: Open) -> None:
    booked = opened({**MUST, "reclaim": "delete"})
    boot = overstay(booked)
    booked.clock.forward(minutes=31)
    run_until_gone(booked, boot, None)
    assert audit(booked, boot)[-2:] == [
        ("server.delete", PAST_THE_END, f"server {boot.name}: delete"),
        ("server.delete", PAST_THE_END, f"server {boot.name}: its GPU is free"),
    ]


@pytest.mark.slow
def test_before_it_is_deleted_a_server_becomes_an_image_of_its_own_project(lab: RunningLab, opened: Open) -> None:
    booked = opened({**MUST, "reclaim": "snapshot-and-delete"})
    boot = overstay(booked)
    booked.clock.forward(minutes=31)
    name = f"{boot.name} {boot.server_id}"

    def images() -> list[dict[str, Any]]:
        return list(booked.operator.get("image", "/images", name=name)["images"])

    def upload() -> None:
        """What the lab's hypervisor, which has no disks, leaves out."""
        for image in images():
            if image["status"] == "queued":
                path = f"/images/{image['id']}"
                patch = [{"op": "add", "path": f"/{key}_format", "value": of} for key, of in FORMATS.items()]
                headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
                booked.operator.request("PATCH", "image", path, patch, headers=headers)
                headers = {"Content-Type": "application/octet-stream"}
                lab.admin.image.put(f"{path}/file", data=b"disk", headers=headers)

    run_until_gone(booked, boot, None, upload)
    (image,) = images()
    assert image["status"] == "active"
    assert [row["id"] for row in booked.apis["ada"].get("image", "/images", name=name)["images"]] == [image["id"]]
    assert image["owner"] == booked.people["ada"].project_id
    booked.operator.request("DELETE", "image", f"/images/{image['id']}")


@pytest.mark.slow
def test_stop_shuts_off_and_says_that_it_frees_nothing(opened: Open) -> None:
    booked = opened({**MUST, "reclaim": "stop"})
    boot = overstay(booked)
    booked.clock.forward(minutes=31)
    run_until_gone(booked, boot, "SHUTOFF")
    assert "this frees nothing" in audit(booked, boot)[-1][2]
    assert any(status.claim for status in booked.statuses())
    entries = audit(booked, boot)
    booked.controller.run()
    assert audit(booked, boot) == entries, "and it is said once"


def test_a_colleague_without_a_booking_is_reclaimed_and_the_owner_is_told_of_the_delay(opened: Open) -> None:
    """Limits are a project's: eve takes what ada has booked, and nobody outside the project loses anything by it."""
    booked = opened(MUST)
    booking = booked.book("ada", start=0, gpus=4)
    other = booked.book("bob", start=7200)
    booked.controller.run()
    boots = [booked.boot("eve") for _ in range(4)]
    booked.controller.run()
    assert {case(booked, boot).rule for boot in boots} == {MUST_BOOK}
    assert booked.limits() == {}, "no room for more of this project"
    assert booked.now(other).lanes
    (delayed,) = [entry for entry in booked.ledger.audit(100) if entry.action == "booking.delayed"]
    assert delayed.target == booking.id


@pytest.mark.slow
def test_servers_without_a_booking_make_room_the_newest_first(opened: Open) -> None:
    booked = opened({**FREE, "grace": "20 min"}, ART)
    booked.controller.run()
    old = [booked.boot("bob") for _ in range(3)]
    new = booked.boot("bob")
    assert [boot.status for boot in (*old, new)] == ["ACTIVE"] * 4, [boot.fault for boot in (*old, new)]
    assert booked.refused("bob")
    booking = booked.book("ada", start=40 * 60)
    booked.controller.run()
    assert not booked.ledger._store.open_overstays(), "too early to bother anybody"
    booked.clock.forward(minutes=11)
    booked.controller.run()
    assert [(overstay.server_id, overstay.rule) for overstay in booked.ledger._store.open_overstays()] == [
        (new.server_id, YIELDS)
    ]
    due = case(booked, new).due
    assert due is not None
    booked.clock.until(due)
    run_until_gone(booked, new, "SHELVED_OFFLOADED")
    start(booked, booking)
    boot = booked.boot("ada")
    assert boot.status == "ACTIVE", boot.fault
    assert all(booked.server(old_boot.server_id)["status"] == "ACTIVE" for old_boot in old)


KEEP = """
import os, signal, sys
from datetime import timedelta
from pathlib import Path
from gpuyard.openstack.api import connect
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.bookings.controllers.bookings import BookingController
from gpuyard.site.load import load_site
from tests.support.booked_sites import ShiftedClock, open_ledger

folder, at, shift = Path(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3])
compiled, clock, api, count = load_site(folder / "site.yaml").compiled, ShiftedClock(), connect("gpuyard-lab"), 0
clock.shift = timedelta(seconds=shift)
ledger, real = open_ledger(folder, compiled, clock), api.request

def request(method, *more, **others):
    global count
    result = real(method, *more, **others)
    count += method != "GET"
    if count == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return result

api.request = request
BookingController(api, compiled, ledger, SnapshotTaker(api, compiled.gpus, compiled.flavors), clock).run()
"""


def keep(lab: RunningLab, booked: BookedLab, folder: Path, at: int) -> int:
    """A process that runs the loop once and gets a real SIGKILL after its nth change. Returns its exit status."""
    booked.ledger._store.resign()  # the loop of this process rests meanwhile
    command = [
        sys.executable,
        "-W",
        "ignore",
        "-c",
        KEEP,
        str(folder),
        str(at),
        str(booked.clock.shift.total_seconds()),
    ]
    environment: dict[str, Any] = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(lab.status.clouds_file)}
    root = Path(__file__).parents[2]
    return subprocess.run(command, env={**environment, "PYTHONPATH": str(root)}, cwd=root, check=False).returncode


@pytest.mark.slow
def test_a_process_that_gets_kill_9_leaves_nothing_that_the_next_one_does_not_mend(
    lab: RunningLab, opened: Open, tmp_path: Path
) -> None:
    booked = opened({**MUST, "most_active": 99})
    booked.controller.run()
    for at in (1, 2, 3):
        booking = booked.book("ada", start=9 * 60)
        assert keep(lab, booked, tmp_path, at) in ((-signal.SIGKILL,) if at == 1 else (-signal.SIGKILL, 0))
        booked.clock.until(booking.ask.start)
        assert keep(lab, booked, tmp_path, at) == -signal.SIGKILL
        booked.controller.run()
        assert (booked.limits(), booked.reserved()) == ({"physics": 1}, set())
        boot = booked.boot("ada")
        assert boot.status == "ACTIVE", boot.fault
        booked.controller.run()
        booked.clock.until(booking.ask.end)
        assert keep(lab, booked, tmp_path, at) in (-signal.SIGKILL, 0)
        booked.controller.run()
        booked.clock.forward(minutes=31)
        assert keep(lab, booked, tmp_path, 1) in (-signal.SIGKILL, 0)
        run_until_gone(booked, boot, "SHELVED_OFFLOADED")
        assert booked.limits() == {}
        booked.exercises["ada"].delete([boot.server_id])
