"""What the pages show besides health, in a portal of health_portals.py: bookings, holds, maintenances, a past."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path

from gpuyard.health.records import HostContact
from gpuyard.health.web.host_checks import RecordedChecks
from gpuyard.model.booking import Person
from gpuyard.model.gpu import Gpu
from gpuyard.model.host import HostFacts
from gpuyard.model.host_report import GpuReport, HostReport, LinkReport
from gpuyard.site.health_rules import SiteHealth
from gpuyard.usage.records import NOBODY, Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore
from tests.support.health_portals import HealthPortal, fill, health_portal, says, site_gpus
from tests.support.ledgers import ADA, BOB, DAY, HOUR, NOON, ROOT, ask
from tests.support.rooms import Knows, room_of
from tests.support.runner_portals import RunnerPortal, site_runners
from tests.support.runner_portals import fill as fill_runners
from tests.support.sites import site
from tests.support.sysfs import epyc

FLAVORS = {
    "gpu.v100": {"vcpus": 4, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 1}},
    "gpu.v100x4": {"vcpus": 40, "ram": "8 GiB", "disk": "20 GiB", "gpus": {"v100": 4}},
    "small": {"vcpus": 1, "ram": "1 GiB", "disk": "5 GiB"},
}


def whole_portal(folder: Path) -> HealthPortal:
    """One that has every page, with something to show on each: also runners, agents, and flavors."""
    (folder / "site").mkdir()
    loaded = site(folder / "site", {"flavors": FLAVORS}, {"gpu-1": epyc()})
    facts = {"gpu-1": HostFacts("gpu-1", "6.1.0", "quiet iommu=pt", "AMD EPYC 7763", 128, 1 << 20)}
    asks = SiteHealth.model_validate({"agent": {"projects": ["physics"]}})
    made = health_portal(
        folder, rules=asks, runners=site_runners(folder, public=True), capacity=Knows(room_of(loaded)), facts=facts,
        checks=RecordedChecks(loaded).of,
    )  # fmt: skip
    fill(made)
    furnish(made)
    live(made)
    made.ledger.create(ask(1, 4, gpus=2, pool="t4", comment="for the poster"), ADA, wait=True)
    says(made, 0, minutes=75)
    made.service.store.hear(HostContact("gpu-1", NOON, json.dumps(host_look().as_dict())))
    sources = made.app.state.feed._sources.runners
    fill_runners(
        RunnerPortal(made.app, made.ledger, made.store, made.people, made.clock, sources.store, sources.overview)
    )
    return made


def host_look() -> HostReport:
    """What gpu-1 says: one link is not as wide as it should be."""
    mine = [gpu for gpu in site_gpus() if gpu.host == "gpu-1"]
    widths = [4, *(16 for _ in mine[1:])]
    reports = tuple(
        GpuReport(gpu.address, ids=gpu.ids, driver="vfio-pci", group=gpu.group, link=LinkReport(8.0, width, 8.0, 16),
                power="D0")
        for gpu, width in zip(mine, widths, strict=True)
    )  # fmt: skip
    return HostReport("gpu-1", "boot", 1, "2026-11-23T12:00:00Z", "6.12.9", "AMI 2.4", "8.2.2", reports)


def furnish(portal: HealthPortal) -> None:
    """Bookings of two people, a hold of two pools' GPUs, a maintenance that is planned and one that is on."""
    ledger, maintenance = portal.ledger, portal.services.maintenance
    assert maintenance is not None
    ledger.create(ask(2, 5, comment="training, last run"), ADA)
    ledger.create(ask(30, 20, gpus=2, comment="students"), BOB)
    ledger.hold(["gpu-1/0000:c3:00.0"], NOON + 3 * DAY, NOON + 4 * DAY, ROOT, "new riser card")
    maintenance.plan("gpu-3", NOON + DAY, NOON + DAY + 3 * HOUR, "kernel 6.12", ROOT)
    maintenance.plan("gpu-2", NOON, NOON + 2 * HOUR, "power supply", ROOT)


PAST = 40
"""Days."""


def live(portal: HealthPortal, days: int = PAST) -> None:
    """Every GPU has been something until now: booked and used, idle, at times held, lost or not seen."""
    store = HistoryStore(portal.ledger.database)
    begin = NOON - days * DAY
    assert store.write(None, begin, begin, {}, [])
    assert store.write(begin, NOON, NOON, {}, lives(days))


def lives(days: int = PAST) -> list[Interval]:
    """What `live` writes."""
    begin = NOON - days * DAY
    return [interval for number, gpu in enumerate(site_gpus()) for interval in _life(gpu, number, begin, days)]


def _life(gpu: Gpu, number: int, begin: datetime, days: int) -> Iterator[Interval]:
    """A partition of the time, other for each of them."""
    who = (ADA, BOB)[number % 2]
    for day in range(days):
        start = begin + day * DAY
        whole = {(3, 1): TrackState.LOST, (5, 2): TrackState.HELD, (6, 2): TrackState.HELD}.get((day % 10, number))
        if day == days - 12:
            whole = TrackState.UNSEEN
        if whole is not None:
            yield _interval(gpu, whole, start, start + DAY, Tenure("odd") if whole is TrackState.HELD else NOBODY)
            continue
        kind = ("booking", "", "runner", "booking")[(day + number) % 4]
        own = Tenure(
            "", f"b{day}" if kind == "booking" else "", kind, f"s-{number}-{day}", f"job-{day}", who.user_id, who.user,
            who.project_id, who.project, "gpu.v100", "owner/name" if kind == "runner" else "",
        )  # fmt: skip
        hours = [2 + number % 3, 5, 6 + day % 5]
        yield _interval(gpu, TrackState.FREE, start, start + hours[0] * HOUR)
        if kind == "booking":
            booked = _of(who, f"b{day}")
            yield _interval(gpu, TrackState.BOOKED, start + hours[0] * HOUR, start + hours[1] * HOUR, booked)
        used = start + hours[1 if kind == "booking" else 0] * HOUR
        yield _interval(gpu, TrackState.STARTING, used, used + MINUTE, own)
        yield _interval(gpu, TrackState.CLAIMED, used + MINUTE, used + hours[2] * HOUR, own)
        yield _interval(gpu, TrackState.FREE, used + hours[2] * HOUR, start + DAY)


def _of(who: Person, booking: str) -> Tenure:
    return Tenure(
        "for a booking", booking, "booking", user_id=who.user_id, user=who.user, project_id=who.project_id,
        project=who.project,
    )  # fmt: skip


MINUTE = timedelta(minutes=1)


def _interval(gpu: Gpu, state: TrackState, start: datetime, end: datetime, own: Tenure = NOBODY) -> Interval:
    goes_on = None if end >= NOON else end
    return Interval(gpu.host, gpu.address, gpu.pool, state, start, goes_on, own, True, goes_on is not None)
