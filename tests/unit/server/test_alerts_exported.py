"""Alerts with what the program itself exports: portals are brought into a state, their /metrics are read minute by
minute, and Prometheus' own promtool says whether the shipped rules fire on that.

tests/unit/server/test_monitoring.py tries every alert on series that are written by hand, and so its thresholds; here a
metric that is missing, means something else or is counted twice shows."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
from fastapi.testclient import TestClient
from starlette.types import Message

from gpuyard.bookings.admissions import Admissions
from gpuyard.bookings.controllers.channel import GIVE_UP, ChannelDownError, NeverError, NotNowError
from gpuyard.bookings.controllers.overstays import OverstayController
from gpuyard.bookings.controllers.reclaim_servers import Reclaimer
from gpuyard.bookings.records import Event, Overstay
from gpuyard.health.records import HealthState, HostContact
from gpuyard.model.booking import ReclaimAction
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.signals import Source
from gpuyard.notifications.delivery import message_loops
from gpuyard.openstack.errors import CloudError
from gpuyard.runners.github.answers import CallCount
from gpuyard.runners.overview import EnrolmentStatus, RunnerOverview
from gpuyard.runners.records import Cause, RunnerState
from gpuyard.runners.view import QueuePlace
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS, RUNNERS
from gpuyard.usage.controllers.rolling import sum_up
from gpuyard.usage.reckoning import one_tariff
from gpuyard.usage.records import Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore
from tests.support.accounting import write_history
from tests.support.exported import Scraped, fires, holds, site_portal
from tests.support.health_portals import fine, says, site_gpus, status_of, turn
from tests.support.ledgers import ADA, DAY, HOUR, NOON, ROOT, ask
from tests.support.people import token_of
from tests.support.prometheus import MISSING, dashboard, rules
from tests.support.runner_portals import BUSY, MINUTE, WAITING
from tests.support.scripted_http import ScriptedAnswer, scripted_http
from tests.support.small_clouds import cloud_at
from tests.unit.bookings.test_enforcement import MUST, server, view

pytestmark = pytest.mark.skipif(bool(MISSING), reason=MISSING)
HOSTS = ("gpu-1", "gpu-2", "gpu-3")


# Of GPUs


def hear(site: Scraped, *hosts: str) -> None:
    for host in hosts:
        site.one.service.store.hear(HostContact(host, site.one.clock()))


def look(site: Scraped, *lost: int, state: GpuState = GpuState.LOST) -> None:
    """The cloud is seen; GPUs with these numbers in another state."""
    statuses = [GpuStatus(gpu, state) if n in lost else status_of(gpu) for n, gpu in enumerate(site_gpus())]
    site.one.inventory.publish(site.one.clock(), statuses)


def bad(site: Scraped, number: int) -> None:
    gpu, now = site_gpus()[number], site.one.clock()
    name, cause = f"{gpu.host}/{gpu.address}", "its config space reads 0xff"
    turn(site.one, name, HealthState.QUARANTINED, NOON - now, cause, signal="no-answer", source=Source.HOST)


def maintained(site: Scraped, minutes: int, *, longer: bool = False) -> None:
    """One hour was promised; the loop of maintenances brings it on."""
    service = site.one.services.maintenance
    assert service is not None
    assert site.one.ledger.upkeep.leadership.try_to_lead("bookings")
    planned = service.plan("gpu-3", NOON, NOON + HOUR, "new kernel", ROOT)
    if longer:
        service.extend(planned.id, NOON + 4 * HOUR, "", ROOT)
    site.each(minutes, service.run)


def quarantined(site: Scraped, state: HealthState) -> None:
    gpu = site_gpus()[0]
    turn(site.one, f"{gpu.host}/{gpu.address}", state, timedelta(0), "it is so", by="root")
    site.until(70)


def undecided(site: Scraped, *, asked: bool) -> None:
    gpu = site_gpus()[0]
    turn(site.one, f"{gpu.host}/{gpu.address}", HealthState.FINE, timedelta(0), "it is so", asked=asked)
    site.until(10)


def go_bad(site: Scraped, count: int) -> None:
    site.at(0)
    site.at(5)
    site.one.clock.now = NOON + timedelta(minutes=9)
    for number in range(count):
        bad(site, number)
    site.until(20)


def silent(site: Scraped, *hosts: str) -> None:
    """All are heard of but these."""
    site.each(20, lambda: hear(site, *(set(HOSTS) - set(hosts))), step=4)


def viewed(site: Scraped, *lost: int, state: GpuState = GpuState.LOST) -> None:
    site.each(16, lambda: look(site, *lost, state=state), step=2)


def blocked(site: Scraped, *, without_a_break: bool) -> None:
    """For a day and an hour."""

    def see() -> None:
        free = not without_a_break and site.one.clock() == NOON + 12 * HOUR
        look(site, *(() if free else (3,)), state=GpuState.BLOCKED)

    site.each(25 * 60, see, step=60)


def hot(site: Scraped, degrees: int) -> None:
    """As the agent of ADA's server says."""
    site.each(20, lambda: says(site.one, 90, 0, degrees), step=4)


# Of loops, turns and what is asked of others


def loop_of(site: Scraped, run: Callable[[], None]) -> Loop:
    """One of a portal, by its clock."""
    clock = site.one.clock
    made = Loop("sync", "looks", 5.0, run, now=clock, steady=lambda: (clock() - NOON).total_seconds(), essential=True)
    return site.one.loops.register(made)


def looping(site: Scraped, minutes: int, good: Callable[[int], bool]) -> None:
    """`good`: whether the run of a minute goes well."""

    def run() -> None:
        if not good(int((site.one.clock() - NOON) / MINUTE)):
            raise ConnectionError("nobody answers")

    loop = loop_of(site, run)
    site.each(minutes, lambda: loop.run_once("timer"), step=2)


def kept(site: Scraped, *turns: str) -> None:
    """By the last of the portals."""
    (*_, controller) = site.portals.values()
    assert all(controller.ledger.upkeep.leadership.try_to_lead(name) for name in turns)
    site.until(5, 1)


def called(site: Scraped, *answers: tuple[int, float]) -> None:
    """Nova answers now and then with these, each a status after so many seconds."""

    def call() -> None:
        for status, seconds in answers:
            site.one.tallies.cloud.add("compute", status, seconds)

    site.each(24, call, step=2)


def requested(site: Scraped, path: str, status: int) -> None:
    """Now and then, beside what goes well."""
    client = TestClient(site.one.app, headers=token_of(ADA), raise_server_exceptions=False)

    def ask_for_it() -> None:
        assert client.get(path).status_code == status

    site.each(16, ask_for_it, step=2)


def keystone_away(site: Scraped) -> None:
    site.one.people.down = True
    requested(site, "/v1/me", 503)


def not_ready(site: Scraped) -> None:
    """A probe is told so, and nobody else."""
    loop_of(site, lambda: None)
    requested(site, "/readyz", 503)


def flooded(site: Scraped, requests: int) -> None:
    """Somebody asks for a calendar that is not there, so often a minute."""
    headers = [(b"host", b"testserver")]
    scope = {"type": "http", "method": "GET", "path": "/ical/guessed.ics", "query_string": b"", "headers": headers,
             "scheme": "http", "client": ("192.0.2.1", 1), "server": ("testserver", 80)}  # fmt: skip

    async def nothing() -> Message:
        return {"type": "http.request"}

    async def ignore(message: Message) -> None:
        pass

    async def flood() -> None:  # without a client, which would take most of the time
        for _ in range(requests):
            await site.one.app({**scope}, nothing, ignore)

    site.each(22, lambda: asyncio.run(flood()), step=1)


# Of history, budgets and bookings


def recorded(site: Scraped, last: int) -> None:
    """Who has which GPU is written down until that minute, and read for a quarter of an hour."""
    store = HistoryStore(site.one.ledger.database)
    assert store.write(None, NOON, NOON, {}, [])

    def write() -> None:
        now = site.one.clock()
        if NOON < now <= NOON + last * MINUTE:
            extent = store.seen()
            assert extent is not None
            assert store.write(extent.until, now, now, {}, [])

    site.each(15, write, step=1)


def spent(site: Scraped, used: int) -> None:
    """Of the six GPU-hours of a project."""
    store, day = HistoryStore(site.one.ledger.database), NOON.replace(hour=0) - DAY
    tenure = Tenure(kind="booking", booking="b", server="s", project="art", project_id="p-art")
    end = day + used * HOUR
    both = [
        Interval("gpu-2", "0000:18:00.0", "t4", TrackState.CLAIMED, day, end, tenure=tenure),
        Interval("gpu-2", "0000:18:00.0", "t4", TrackState.FREE, end, None),
    ]
    write_history(store, day, NOON, both)
    sum_up(store, "UTC", one_tariff, 5)
    for portal in site.portals.values():
        portal.accounting.run()
    site.until(5)


def overstayed(site: Scraped, action: ReclaimAction) -> None:
    """A server without a booking has been due at NOON."""
    due = Overstay("s1", "vm", "t4", "u", "p", "must_book", action, NOON - HOUR, due=NOON, dry_run=False)
    site.one.ledger.upkeep.records.put_overstay(due)
    site.until(25)


def reclaimed(site: Scraped, failures: int) -> None:
    """Nova fails so often to take the warning to a server, and takes it then."""
    portal = site.one
    with scripted_http() as nova:
        nova.on("POST", "/servers/s1/metadata", *[ScriptedAnswer(503, {})] * failures, ScriptedAnswer(200, {}))
        cases = OverstayController(
            portal.site, portal.ledger, Reclaimer(cloud_at(nova.url, portal.tallies.cloud)), portal.clock
        )
        for labels in cases.counted.all():
            portal.tallies.reclaims.know(*labels)
        cases.counted = portal.tallies.reclaims
        scene = view([], rules=replace(MUST, grace=8 * HOUR), holders=(server("s1", (1,), created=NOON),))

        def run() -> None:
            with suppress(CloudError):  # as the loop does, which goes on
                cases.look(lambda: scene, portal.clock())

        site.each(20, run, step=1)


class Receiver:
    """A channel whose receiver does with all messages what it is told to."""

    name, batch = "webhook receiver", 5
    patience: timedelta | None = GIVE_UP

    def __init__(self, answer: Exception | None) -> None:
        self.answer = answer

    def wants(self, event: Event) -> bool:
        return True

    @contextmanager
    def open(self) -> Iterator[Callable[[object], None]]:
        yield self._send

    def _send(self, message: object) -> None:
        if self.answer is not None:
            raise self.answer


def told(site: Scraped, minutes: int, answer: Exception | None) -> None:
    """Somebody books at NOON, and all portals tell a receiver of it."""
    loops = []
    for portal in site.portals.values():
        receiver, counts = Receiver(answer), portal.tallies.told
        loops += message_loops(portal.ledger, portal.site, {}, portal.clock, outcome_counts=counts, more=[receiver])

    def tell() -> None:
        for loop in loops:
            assert loop.run_once("timer"), loop.status.error
        if site.one.clock() == NOON:
            site.one.ledger.create(ask(30), ADA)

    site.each(minutes, tell)


def waited(site: Scraped, waiting: int) -> None:
    """The T4 are booked, and more people want them than there are."""
    for _ in range(2 + waiting):
        site.one.ledger.create(ask(0, 20, pool="t4"), ADA, wait=True)
    site.each(390, lambda: look(site), step=30)


def answered(site: Scraped, seconds: float) -> None:
    """Each wish for a booking so late."""
    ledger, passed = site.one.ledger, [0.0]

    def steady() -> float:
        passed[0] += seconds
        return passed[0]

    ledger.admissions = Admissions(steady)
    starts = iter(range(20, 1000, 5))
    site.each(30, lambda: ledger.create(ask(next(starts)), ADA))


# Of runners


def boarded(site: Scraped, minutes: int, *, position: int = 1, remaining: int = 4000) -> None:
    """The last of the portals keeps runners. A job has been queued three hours and fifty minutes before NOON; its
    `position` is 0 as soon as its runner boots. `remaining`: of the calls that GitHub takes in an hour."""
    (*_, controller) = site.portals.values()
    job = replace(WAITING, queued=NOON - 230 * MINUTE)

    def plan() -> None:
        queue = (QueuePlace(job.id, "v100", position, "all are taken"),)
        github = EnrolmentStatus("acme", CallCount(120, 80, 3, 1, 5000, remaining))
        controller.board.publish(RunnerOverview(controller.clock(), (job,), (), queue, (), (github,)))

    site.each(minutes, plan)


def ended(site: Scraped, count: int, cause: Cause) -> None:
    """So many runners within a quarter of an hour."""
    site.at(0)
    site.one.clock.now = NOON + 4 * MINUTE
    for number in range(count):
        state = RunnerState.GONE if cause is Cause.FINISHED else RunnerState.FAILED
        gone = replace(BUSY, name=f"r{number}", state=state, cause=cause, ended=site.one.clock())
        site.one.runners.put_runner(gone)
    site.until(15)


Play = Callable[[Scraped], None]
Pair = tuple[Play, Play]
STATES: dict[str, Pair] = {
    "GpuyardDown": (lambda site: None, lambda site: site.until(10)),
    "GpuyardViewOld": (lambda site: site.until(10, 1), viewed),
    "GpuyardLoopLate": (
        lambda site: looping(site, 10, lambda minute: minute < 2), lambda site: looping(site, 10, lambda minute: True)
    ),
    "GpuyardNobodyKeeps": (lambda site: kept(site, RUNNERS), lambda site: kept(site, BOOKINGS, RUNNERS)),
    "GpuyardLoopFailing": (
        lambda site: looping(site, 26, lambda minute: minute < 3),
        lambda site: looping(site, 26, lambda minute: minute % 8 == 0),
    ),
    "GpuyardOpenstackFailing": (
        lambda site: called(site, (200, 0.1), (200, 0.1), (503, 0.1)),
        lambda site: called(site, (200, 0.1), (200, 0.1), (404, 0.1)),
    ),
    "GpuyardOpenstackSlow": (lambda site: called(site, (200, 12)), lambda site: called(site, (200, 8))),
    "GpuyardRequestsFailing": (keystone_away, not_ready),
    "GpuyardManyRefused": (lambda site: flooded(site, 70), lambda site: flooded(site, 10)),
    "GpuyardHistoryBehind": (lambda site: recorded(site, 2), lambda site: recorded(site, 15)),
    "GpuyardGpusLost": (lambda site: viewed(site, 3), viewed),
    "GpuyardGpusBlocked": (
        lambda site: blocked(site, without_a_break=True), lambda site: blocked(site, without_a_break=False)
    ),
    "GpuyardGpusQuarantined": (
        lambda site: quarantined(site, HealthState.QUARANTINED), lambda site: quarantined(site, HealthState.IN_REPAIR)
    ),
    "GpuyardGpusUndecided": (lambda site: undecided(site, asked=True), lambda site: undecided(site, asked=False)),
    "GpuyardManyGpusGoBad": (lambda site: go_bad(site, 4), lambda site: go_bad(site, 2)),
    "GpuyardHostsSilent": (lambda site: silent(site, "gpu-1"), silent),
    "GpuyardMaintenanceOverdue": (
        lambda site: maintained(site, 95), lambda site: maintained(site, 110, longer=True)
    ),
    "GpuyardGpuHot": (lambda site: hot(site, 95), lambda site: hot(site, 85)),
    "GpuyardReclaimOverdue": (
        lambda site: overstayed(site, ReclaimAction.SHELVE), lambda site: overstayed(site, ReclaimAction.WARN)
    ),
    "GpuyardReclaimFailing": (lambda site: reclaimed(site, 100), lambda site: reclaimed(site, 2)),
    "GpuyardMessagesGivenUp": (
        lambda site: told(site, 10, NeverError("no such user")), lambda site: told(site, 10, NotNowError("busy"))
    ),
    "GpuyardMessagesLate": (
        lambda site: told(site, 80, ChannelDownError("no answer")), lambda site: told(site, 80, None)
    ),
    "GpuyardWaitlistLong": (lambda site: waited(site, 2), lambda site: waited(site, 0)),
    "GpuyardBudgetSpent": (lambda site: spent(site, 6), lambda site: spent(site, 5)),
    "GpuyardAdmissionSlow": (lambda site: answered(site, 8), lambda site: answered(site, 2)),
    "GpuyardJobsWait": (lambda site: boarded(site, 25), lambda site: boarded(site, 25, position=0)),
    "GpuyardRunnersFail": (
        lambda site: ended(site, 7, Cause.BOOT_TIMEOUT), lambda site: ended(site, 4, Cause.BOOT_TIMEOUT)
    ),
    "GpuyardGithubLimitLow": (
        lambda site: boarded(site, 10, remaining=300), lambda site: boarded(site, 10, remaining=3000)
    ),
}  # fmt: skip
"""Alert -> what brings a portal into a state with it, and into one that is like it and well."""
MORE: dict[str, tuple[str, Pair]] = {
    "runners that nobody keeps": (
        "GpuyardNobodyKeeps", (lambda site: kept(site, BOOKINGS), lambda site: kept(site, BOOKINGS, RUNNERS))
    ),
    "runners that end as they should": (
        "GpuyardRunnersFail",
        (lambda site: ended(site, 7, Cause.LOST), lambda site: ended(site, 7, Cause.FINISHED)),
    ),
}  # fmt: skip
"""Other ways into such states."""
TWO = (
    "GpuyardNobodyKeeps", "GpuyardOpenstackFailing", "GpuyardGpusLost", "GpuyardGpusQuarantined",
    "GpuyardManyGpusGoBad", "GpuyardMaintenanceOverdue", "GpuyardReclaimFailing", "GpuyardMessagesGivenUp",
    "GpuyardWaitlistLong", "GpuyardBudgetSpent", "GpuyardJobsWait", "GpuyardRunnersFail", "GpuyardGithubLimitLow",
)  # fmt: skip
"""Tried with two portals of one site, too: those that add something up, or that only one portal knows."""
CASES = [
    *((name, name, 1, pair) for name, pair in STATES.items()),
    *((name, name, 2, STATES[name]) for name in TWO),
    *((name, alert, 1, pair) for name, (alert, pair) in MORE.items()),
]


def test_every_alert_that_is_shipped_has_a_state() -> None:
    assert STATES.keys() == {rule["alert"] for rule in rules() if "alert" in rule}


@contextmanager
def scraped(folder: Path, portals: int = 1) -> Iterator[Scraped]:
    """A site where all is well."""
    folder.mkdir()
    first = site_portal(folder)
    fine(first)
    portals_by_name = {"a": first} | ({"b": site_portal(folder, first.inventory)} if portals == 2 else {})
    yield Scraped(portals_by_name)
    for portal in portals_by_name.values():
        portal.ledger.close()


@pytest.mark.parametrize(
    ("alert", "portals", "pair"), [pytest.param(*rest, id=f"{name}-{rest[1]}") for name, *rest in CASES]
)
def test_an_alert_fires_on_what_portals_export(tmp_path: Path, alert: str, portals: int, pair: Pair) -> None:
    for name, play, expected in (("bad", pair[0], True), ("good", pair[1], False)):
        with scraped(tmp_path / name, portals) as site:
            play(site)
            assert fires(tmp_path / name, site, alert) is expected, name


def panel(title: str) -> str:
    """What a panel of the dashboard asks, of this site."""
    (target,) = (candidate["targets"][0] for candidate in dashboard()["panels"] if candidate["title"] == title)
    return str(target["expr"]).replace("$job", "site")


ADDED_UP: Mapping[str, Play] = {
    "Gone bad": lambda site: go_bad(site, 2),
    "Runners that ended": lambda site: ended(site, 2, Cause.LOST),
}
"""Panel -> what brings a site to two of what it shows."""


def test_a_portal_that_has_lost_its_turn_says_nothing_of_runners_any_more(tmp_path: Path) -> None:
    """It knows what was so when it planned last: a job that has a runner by now would wait for ever."""
    with scraped(tmp_path / "site", 2) as site:
        boarded(site, 0, remaining=300)
        left, controller = site.portals.values()
        board = controller.board.latest()
        assert board is not None
        left.board.publish(board)
        boarded(site, 35, position=0)
        assert not fires(tmp_path, site, "GpuyardJobsWait")
        assert not fires(tmp_path, site, "GpuyardGithubLimitLow")


@pytest.mark.parametrize("title", ADDED_UP)
def test_the_dashboard_counts_once_what_all_portals_read_from_the_database(tmp_path: Path, title: str) -> None:
    with scraped(tmp_path / "site", 2) as site:
        ADDED_UP[title](site)
        most = f"max({panel(title)})"
        assert holds(tmp_path, site, f"({most} > bool 1.5) * ({most} < bool 3)")
