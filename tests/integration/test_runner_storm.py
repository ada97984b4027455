"""A storm on the lab: events are lost and doubled, GitHub and Nova have a bad day, and `gpuyard serve` is killed, again
and again, while people book GPUs of the same pools. Afterwards every job has run once, or it is said why it has not,
every booking was its owner's, nothing is left of any, and the lab has the limits that it had before. What it prints
(``pytest -s``) tells how long jobs waited, and how long GPUs idled while a job waited for them.

GPUYARD_TEST_STORM=500 makes it as large as that, with the program's own waits; else it is small and hurried. Checks of
GPUs do not fail in it, since they hold GPUs afterwards, as they should; those are in tests/unit/test_runner_storm.py.
"""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import pytest

from gpuyard.bookings.records import Query
from gpuyard.client.portal import open_session
from gpuyard.model.booking import BookingKind, BookingState
from gpuyard.model.moments import second_text
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.runners.records import Runner
from gpuyard.site.load import load_site
from gpuyard_lab.clients import DEMO_CLOUD
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.github.faults import STORM, Faults
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.records import COMPLETED, ForgeJob, JobOrder
from tests.integration.conftest import RunningLab
from tests.integration.lab_state import limits_kept
from tests.integration.runner_harness import GPUYARD, RunnerHarness, YardSite, open_yard
from tests.integration.storm_people import StormPeople
from tests.integration.test_serve import ready
from tests.support.bad_nova import BadNova, NovaFaults
from tests.support.idle_times import IdleTime, Leased, Worked, idle_times, spread
from tests.support.postgres import server
from tests.support.runner_projects import runners_cloud
from tests.support.runner_storm import given_up, our_job, wronged

pytestmark = [pytest.mark.lab, pytest.mark.slow]
SIZE = "GPUYARD_TEST_STORM"
SMALL = 10
KILLS = 3
MOST = 10_000
"""Leases of one storm."""
SHOWN, LONG = 8, 60.0
"""How many of the longest idle times are told in detail, and from how many seconds on."""
SEED = 1
REPOSITORIES = ("demo/science", "demo/art", "demo/music")
SETS = {"gpuyard-v100": "gpu_tiny", "gpuyard-pair": "gpu_pair", "gpuyard-k4200": "k4200.4cores"}
CIRUN = {
    "cirun-v100": "gpu_tiny",
    "cirun-t4": "t4.15cores90GB",
    "cirun-two": "t4.30cores180GB",
    "cirun-titan": "titan-xp.10cores120GB",
    "cirun-k40c": "k40c.2cores",
}
LABELS = [*SETS, *CIRUN]
NOVA = NovaFaults(
    refused=0.02, limited=0.005, reply_lost=0.01, reply_half=0.01, broken_after=0.01, slow=0.05, nowhere=0.02
)
ODD = 0.02
"""Part of the jobs at which an operator, or a hypervisor, puts a server of ours into ERROR."""


def cirun_file() -> str:
    rows = [
        f"  - {{name: {label}, cloud: openstack, instance_type: {flavor}, machine_image: tiny, labels: [{label}]}}\n"
        for label, flavor in CIRUN.items()
    ]
    return "runners:\n" + "".join(rows)


@dataclass
class Storm:
    """One test's."""

    inventory: RunnerHarness
    operator: CloudApi
    nova: BadNova
    jobs: int
    rng: random.Random = field(default_factory=lambda: random.Random(f"storm {SEED}"))
    kills: int = 0
    struck: int = 0
    people: StormPeople | None = None
    began: float = field(default_factory=monotonic)

    @property
    def forge(self) -> Any:
        return self.inventory.github.standin.forge

    def rage(self) -> None:
        """All jobs are pushed, some at a time; the program is killed as they come to their ends."""
        pushed = 0
        while self.kills < KILLS or pushed < self.jobs:
            if pushed < self.jobs:
                pushed += self.push(min(self.rng.randint(1, 8), self.jobs - pushed))
                while self.people is not None and self.people.asked * max(4, self.jobs // 20) < pushed:
                    self.people.book()
            over = sum(job.status == COMPLETED for job in [*self.forge.jobs.values()])
            if self.kills < KILLS and over >= (self.kills + 1) * self.jobs // (KILLS + 1):
                self.kills += 1
                self.inventory.kill()
            if self.rng.random() < ODD:
                self.strike()
            assert monotonic() - self.began < self.jobs * 12 + 300, self.inventory.report()
            sleep(self.rng.uniform(0, 1.5))

    def push(self, many: int) -> int:
        orders = [
            JobOrder((label,), self.rng.uniform(0.5, 2), self.rng.choice(["success", "failure"]))
            for label in self.rng.choices(LABELS, k=many)
        ]
        with self.forge.lock:
            self.forge.push(self.rng.choice(REPOSITORIES), orders)
        return many

    def strike(self) -> None:
        """Some server of ours goes into ERROR, whatever it does."""
        with suppress(CloudError):
            if servers := self.inventory.servers.there():
                id = self.rng.choice(servers)["id"]
                action = {"os-resetState": {"state": "error"}}
                self.operator.request("POST", "compute", f"/servers/{id}/action", action)
                self.struck += 1

    def settle(self) -> None:
        """Until nothing is left. What GitHub lost is found in time; so long the storm goes on."""
        if self.people is not None:
            self.people.wait()
        end = monotonic() + 300 + self.jobs * 5
        while not self.inventory.at_rest():
            assert monotonic() < end, self.inventory.report()
            sleep(3)

    def told(self) -> str:
        """What happened."""
        jobs = [*self.forge.jobs.values()]
        with self.inventory.opened() as (store, _):
            ours = [our_job(self.forge, store, job) for job in jobs if not job.tries]
            runners = list(store.runners(over=True, limit=MOST))
            causes = Counter(str(runner.cause) for runner in runners)
        ran = sum(bool(job.tries) for job in jobs)
        ends = Counter(job.conclusion or job.status for job in jobs)
        return (
            f"{self.times(jobs, runners)}\n{self.people.told() if self.people is not None else ''}\n"
            f"{len(jobs)} jobs in {monotonic() - self.began:.0f} s, {self.kills} kills, {self.struck} put into ERROR\n"
            f"{ran} ran; at GitHub {dict(ends)}; given up {sum(map(given_up, ours))}; runners by cause {dict(causes)}\n"
            f"GitHub's faults {self.forge.faults.counts()}\nNova's faults {self.nova.counts}"
        )

    def times(self, jobs: Sequence[ForgeJob], runners: Sequence[Runner]) -> str:
        """How long jobs waited for their runners, and how long GPUs idled while a job waited for them, by pool."""
        site = load_site(self.inventory.site).compiled.site
        pools = {name: next(iter(flavor.gpus), "") for name, flavor in site.flavors.items()}
        sizes = {name: (sum(flavor.gpus.values()), flavor.same_group) for name, flavor in site.flavors.items()}
        flavors = {**SETS, **CIRUN}
        worked = [
            Worked(
                pools[flavors[job.order.labels[0]]], job.queued, job.tries[0].started if job.tries else None,
                job.tries[-1].ended or job.completed if job.tries else job.completed,
                job.tries[-1].runner if job.tries else "",
                *sizes[flavors[job.order.labels[0]]],
            )
            for job in jobs
            if job.queued is not None and job.completed is not None
        ]  # fmt: skip
        with self.inventory.opened() as (_, ledger):
            lanes = ledger.lanes()
            bookings = ledger.find(Query(), MOST)
        taken = [
            Leased(
                lane,
                booking.ask.start,
                booking.changed if booking.state is BookingState.ENDED else booking.ask.end,
                booking.server,
            )
            for booking in bookings
            for lane in booking.lanes
        ]
        lines = [f"waits of jobs {spread([(job.begun - job.queued).total_seconds() for job in worked if job.begun])}"]
        idle: list[IdleTime] = []
        for pool in sorted({job.pool for job in worked}):
            mine = idle_times(pool, [lane for lane in lanes if lane.pool == pool and not lane.trouble], taken, worked)
            lines.append(
                f"GPUs of pool {pool} that idled while a job waited {spread([idle_time.seconds for idle_time in mine])}"
            )
            idle += mine
        lines.append(f"GPUs that idled while a job waited {spread([idle_time.seconds for idle_time in idle])}")
        longest = sorted(idle, key=lambda idle_time: -idle_time.seconds)[:SHOWN]
        return "\n".join(
            [*lines, *(why_idle(idle_time, taken, runners) for idle_time in longest if idle_time.seconds >= LONG)]
        )


def why_idle(idle: IdleTime, taken: Sequence[Leased], runners: Sequence[Runner]) -> str:
    """Whose the GPU was in a long idle time, and what became of those runners."""
    by_name = {runner.name: runner for runner in runners}
    begin = idle.end - timedelta(seconds=idle.seconds)
    lines = [f"  lane {idle.lane} idled for {idle.seconds:.0f} s until {second_text(idle.end)}"]
    for lease in sorted(taken, key=lambda leased: leased.start):
        if lease.lane == idle.lane and lease.start <= idle.end and begin <= lease.end:
            holder = by_name.get(lease.runner)
            times = f"{second_text(lease.start)} to {second_text(lease.end)}"
            lines.append(f"    {times}: {_steps(holder) if holder is not None else lease.runner or 'booked'}")
    return "\n".join(lines)


def _steps(runner: Runner) -> str:
    steps = {"active": runner.active, "online": runner.online, "busy": runner.busy, "ended": runner.ended}
    timeline = ", ".join(f"{name} {second_text(at)}" for name, at in steps.items() if at is not None)
    return f"{timeline}; {runner.cause}: {runner.reason[:160]}"


def gpus_in_use(operator: CloudApi) -> dict[str, int]:
    """GPUs that Placement has given to whomever, by provider."""
    used: dict[str, int] = {}
    for row in operator.providers():
        usages = operator.get("placement", f"/resource_providers/{row['uuid']}/usages")["usages"]
        if many := sum(many for name, many in usages.items() if name.startswith("CUSTOM_GPU")):
            used[row["name"]] = many
    return used


@contextmanager
def no_room(operator: CloudApi) -> Iterator[str]:
    """A flavor for which no host has room; its id."""
    body = {"name": "storm-nowhere", "vcpus": 5000, "ram": 1024, "disk": 1}
    made = operator.request("POST", "compute", "/flavors", {"flavor": body})["flavor"]
    try:
        yield made["id"]
    finally:
        operator.request("DELETE", "compute", f"/flavors/{made['id']}")


@pytest.fixture(
    params=[
        # Its rules on SQLite are tried by the storms of tests/unit/runners.
        pytest.param("sqlite", marks=pytest.mark.skipif(SIZE not in os.environ, reason=f"takes minutes: set {SIZE}")),
        "postgresql",
    ]
)
def database(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path / 'yard.db'}"
        return
    folder = tmp_path / "postgres"
    folder.mkdir()
    with server(folder) as running:
        yield running.database()


@pytest.fixture
def storm(
    lab: RunningLab, operator: CloudApi, database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Storm]:
    given = os.environ.get(SIZE)
    rules = {
        "longest": "5 min",
        "boot": "2 min",
        "register_within": "1 min",
        "sets": {label: {"flavors": [flavor], "images": ["tiny"]} for label, flavor in SETS.items()},
    }
    settings = ForgeSettings(
        poll_s=10, pickup=timedelta(seconds=8), lost=timedelta(seconds=20), offline=timedelta(seconds=15),
        session_idle=timedelta(seconds=30), foreign=timedelta(seconds=2), assignment=timedelta(minutes=5),
        requests_an_hour=100_000,
    )  # fmt: skip
    rates = replace(STORM, guest_bad_gpu=0.0)
    faults = Faults(SEED, rates, late_s=30, waiting_s=10, cancel_s=20, slow_s=1)
    clouds = runners_cloud(lab.status.clouds_file, operator, tmp_path)
    monkeypatch.setenv("OS_CLIENT_CONFIG_FILE", str(clouds))
    endpoint = str(lab.admin.compute.get_endpoint())
    with no_room(operator) as nowhere, BadNova(endpoint, NOVA, SEED, nowhere).serving() as nova:
        about = YardSite(
            repositories=REPOSITORIES, cirun=cirun_file(), rules=rules, faults=faults, settings=settings,
            boot=timedelta(seconds=0.5), program=GPUYARD if given else ("-m", "tests.support.hurried"), nova=nova.url,
        )  # fmt: skip
        with limits_kept(operator), open_yard(lab, operator, tmp_path, clouds, database, about) as inventory:
            door = open_session(DEMO_CLOUD, f"http://127.0.0.1:{inventory.port}")
            exercise = Exercise(operator, connect(DEMO_CLOUD), load_site(inventory.site).compiled, "storm-")
            far = timedelta(minutes=10 if given else 2)
            people = StormPeople(door, exercise, far)
            try:
                yield Storm(inventory, operator, nova, int(given or SMALL), people=people)
            finally:
                people.close()


@pytest.mark.flaky(reruns=0)
def test_a_storm_on_the_lab_loses_nothing_and_leaves_nothing(storm: Storm) -> None:
    inventory, people = storm.inventory, storm.people
    assert people is not None
    assert gpus_in_use(storm.operator) == {}
    inventory.serve()
    inventory.until(lambda: ready(inventory.port) and len(storm.forge.sets) == len(SETS), 300)
    storm.rage()
    storm.settle()
    print(storm.told())
    with inventory.opened() as (store, _):
        assert wronged(storm.forge, store) == []
    with inventory.opened() as (_, ledger):
        booked = ledger.find(Query(kinds=frozenset({BookingKind.BOOKING})), MOST)
    assert people.wronged == []
    assert people.lost_or_doubled(booked) == []
    assert inventory.left_over() == []
    assert gpus_in_use(storm.operator) == {}
    assert storm.kills == KILLS
