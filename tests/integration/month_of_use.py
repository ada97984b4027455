"""A month of use of a lab: people, servers, bookings, holds, and a portal that is killed now and then, on a clock that
goes from one thing to the next. What happens is chance, by a seed; what it amounts to is for Nova to say."""

from __future__ import annotations

import json
import os
import random
import shutil
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import pairwise
from pathlib import Path
from time import monotonic, sleep
from typing import IO, Any
from zoneinfo import ZoneInfo

import pytest

from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.site.load import LoadedSite, load_site
from gpuyard_lab import control
from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.errors import LabError
from gpuyard_lab.exercise import Exercise
from gpuyard_lab.http import answers, call
from gpuyard_lab.identity import ensure_portal, log_in
from gpuyard_lab.plan import EXAMPLE_SITE, plan_of_site
from gpuyard_lab.portal import apply_site
from gpuyard_lab.settings import LabSettings
from tests.integration.booked_lab import PASSWORD, people_of
from tests.integration.conftest import RunningLab
from tests.integration.test_serve import free_port
from tests.support.moved_clock import MovedClock
from tests.support.ports import free_port_base

ZONE = ZoneInfo("Europe/Berlin")
FIRST, LAST = datetime(2027, 10, 1, tzinfo=ZONE).astimezone(UTC), datetime(2027, 11, 1, tzinfo=ZONE).astimezone(UTC)
"""The month, in which the clocks go back: 745 hours."""
HOUR, SECOND = timedelta(hours=1), timedelta(seconds=1)
GPUS = {"v100": 6, "t4": 4, "titan-xp": 2}
PRICES = {"v100": (1.20, 0.60), "t4": (0.40, 0.20), "titan-xp": (0.30, 0.15)}
"""Of a GPU-hour; and at night and on weekends."""
FLAVORS = {
    "gpu_medium": ("v100", 1), "gpu_large": ("v100", 1), "gpu_pair-a": ("v100", 2), "t4.15cores90GB": ("t4", 1),
    "t4.30cores180GB": ("t4", 2), "titan-xp.10cores120GB": ("titan-xp", 1),
}  # fmt: skip
PEOPLE = {"ada": "physics", "eve": "physics", "bob": "art", "dan": "art", "cleo": "biology"}
BOOK = {"ada": ("t4.15cores90GB", "t4.30cores180GB"), "dan": ("gpu_medium",)}
"""Who books, and starts servers on bookings alone; the others do as they like."""
DOWN_NEVER = "\n[DEFAULT]\nservice_down_time = 1000000000\n"
"""A nova-compute says every ten seconds that it is there, and the clock goes forward by hours."""
PATIENT, STRICT = 24 * 60, 1
"""Minutes between two looks after which what was between is not known: with the one the days are seen, with the other,
gpuyard's own, nearly all of them are not."""
A_STEP = timedelta(hours=22)
WAIT_S = 120.0
LIVES = 12
LARGER = {"gpu_medium": "gpu_large"}


def site_file(folder: Path) -> LoadedSite:
    """Three hosts of the lab's example site, with prices and a budget."""
    shutil.copytree(EXAMPLE_SITE.parent / "recordings", folder / "recordings", dirs_exist_ok=True)

    def price(pool: str) -> dict[str, float]:
        usual, cheap = PRICES[pool]
        return {"standard": usual, "night": cheap, "weekend": cheap}

    models = {"v100": "10de:1db4", "t4": "10de:1eb8", "titan-xp": "10de:1b02"}
    small = {"vcpus": 2, "ram": "8 GiB", "disk": "10 GiB"}
    document = {
        "site": "seeds",
        "release": "2026.2",
        "hosts": {
            "gpu-server": {"recording": "recordings/epyc-v100.json"},
            "cld-dfa-gpu-01": {"recording": "recordings/titan-xp-node.json"},
            "cld-dfa-gpu-02": {"recording": "recordings/t4-node.json"},
        },
        "pools": {name: {"models": [model], "price": price(name)} for name, model in models.items()},
        "flavors": {
            "gpu_medium": {**small, "gpus": {"v100": 1}},
            "gpu_large": {**small, "ram": "12 GiB", "gpus": {"v100": 1}},
            "gpu_pair": {**small, "gpus": {"v100": 2}, "same_group": True},
            "t4.15cores90GB": {**small, "gpus": {"t4": 1}},
            "t4.30cores180GB": {**small, "gpus": {"t4": 2}},
            "titan-xp.10cores120GB": {**small, "gpus": {"titan-xp": 1}},
        },
        "booking": {"timezone": ZONE.key, "must_book": False, "most_active": 20, "dry_run": True, "ahead": "60 days"},
        "accounting": {
            "currency": "EUR",
            "tariffs": {"weekend": {"days": ["sat", "sun"]}, "night": {"hours": ["20:00-08:00"]}},
        },
        "projects": {
            name: {"gpus": dict(GPUS), "budget": {"gpu_hours": 2000, "every": "month"}}
            for name in sorted(set(PEOPLE.values()))
        },
        "limits": {"servers": 100},
    }
    (folder / "site.yaml").write_text(json.dumps(document))  # JSON is YAML too
    return load_site(folder / "site.yaml")


@dataclass
class MonthTurn:
    """A time in which a server had GPUs."""

    host: str
    pool: str
    gpus: int
    begin: datetime
    """As Nova said it then."""
    ended_by: str = ""
    """The action; empty: it was deleted, or is there."""
    nth: int = 0
    """Of the actions of that name."""


@dataclass
class Machine:
    """A server of somebody's."""

    id: str
    user: str
    flavor: str
    turns: list[MonthTurn] = field(default_factory=list)
    there: bool = True
    shelved: bool = False


@dataclass(frozen=True)
class Span:
    """Who had GPUs of a host from when to when, as Nova has it."""

    user: str
    host: str
    pool: str
    gpus: int
    start: datetime
    end: datetime
    booked: bool = False

    @property
    def project(self) -> str:
        return PEOPLE[self.user]


@dataclass(frozen=True)
class Booked:
    """A booking that was made."""

    user: str
    pool: str
    start: datetime
    end: datetime


@dataclass
class Month:
    """One month. What has happened is what it remembers."""

    lab: RunningLab
    loaded: LoadedSite
    clock: MovedClock
    operator: CloudApi
    exercises: Mapping[str, Exercise]
    folder: Path
    log: IO[str]
    rng: random.Random
    port: int = field(default_factory=free_port)
    portal: subprocess.Popen[bytes] | None = None
    minutes: int = PATIENT
    machines: list[Machine] = field(default_factory=list)
    bookings: list[Booked] = field(default_factory=list)
    done: Counter[str] = field(default_factory=Counter)
    """What happened, and how often."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def database(self) -> Path:
        return self.folder / "bookings.db"

    # The portal.

    def serve(self, minutes: int = PATIENT) -> None:
        self.minutes = minutes
        command = [
            sys.executable, "-m", "tests.support.patient", str(minutes), "serve", "--os-cloud", ADMIN_CLOUD,
            "--port", str(self.port), "--site", str(self.loaded.path), "--log-level", "warning", "--period", "0.5",
        ]  # fmt: skip
        environment = {
            **os.environ, **self.clock.environment, "OS_CLIENT_CONFIG_FILE": str(self.lab.status.clouds_file),
            "GPUYARD_DATABASE": f"sqlite:///{self.database}",
        }  # fmt: skip
        self.portal = subprocess.Popen(command, env=environment, stdout=self.log, stderr=self.log)
        self.until(lambda: answers(f"{self.url}/readyz"), "the portal")
        self.look()

    def kill(self) -> None:
        """At once, in the middle of whatever it does."""
        if self.portal is not None:
            sleep(self.rng.random() / 2)
            self.portal.kill()
            self.portal.wait()
            self.portal = None
            self.done["killed"] += 1

    def ask(self, method: str, path: str, body: Any = None, user: str = "") -> Any:
        """The portal, as a user or as the admin."""
        return call(method, self.url + path, body, token=self.token(user) if user else log_in(self.lab.lab)).body

    def token(self, user: str) -> str:
        """A new one each time: days pass between two questions."""
        domain = {"id": "default"}
        password = {"user": {"name": user, "password": PASSWORD, "domain": domain}}
        scope = {"project": {"name": PEOPLE[user], "domain": domain}}
        auth = {"identity": {"methods": ["password"], "password": password}, "scope": scope}
        token = call("POST", f"{self.lab.lab.endpoint('keystone')}/auth/tokens", {"auth": auth}).token
        assert token is not None
        return token

    def looked(self) -> datetime:
        """When the last look was that is in history."""
        with sqlite3.connect(f"file:{self.database}?mode=ro", uri=True) as database:
            row = database.execute("select until from history_seen").fetchone()
        return datetime.fromtimestamp(row[0] if row else 0, UTC)

    def look(self) -> None:
        """Until one that began after this."""
        self.clock.until(self.clock() + SECOND)
        after = self.clock().replace(microsecond=0)
        self.until(lambda: self.looked() >= after, "a look")

    def until(self, true: Callable[[], object], what: str) -> None:
        end = monotonic() + WAIT_S
        while not true():
            assert self.portal is None or self.portal.poll() is None, f"the portal ended: {self.report()}"
            assert monotonic() < end, f"waited for {what}: {self.report()}"
            sleep(0.05)

    def report(self) -> str:
        self.log.flush()
        return f"{dict(self.done)}\n{Path(self.log.name).read_text()[-4000:]}"

    # Time.

    def leap(self, moment: datetime) -> None:
        """Go forward to a moment, if it has not come yet; in steps that are short enough to be seen."""
        while moment - self.clock() >= 2 * SECOND:
            watched = self.portal is not None and self.minutes == PATIENT
            self.clock.until(min(moment, self.clock() + A_STEP) if watched else moment)
            if self.portal is not None:
                self.look()

    # What people do.

    def boot(self, user: str, flavor: str) -> Machine | None:
        """None when Nova refuses, or has no room."""
        try:
            boot = self.exercises[user].boot(flavor)
        except CloudError as error:
            if error.status != 403:
                raise
            self.done["refused"] += 1
            return None
        if boot.status != "ACTIVE":
            assert "No valid host" in boot.fault, boot.fault
            self.exercises[user].delete([boot.server_id])
            self.done["no room"] += 1
            return None
        machine = Machine(boot.server_id, user, flavor)
        self.machines.append(machine)
        self._turn(machine)
        self.done["booted"] += 1
        return machine

    def _turn(self, machine: Machine) -> None:
        row = self.operator.get("compute", f"/servers/{machine.id}")["server"]
        pool, gpus = FLAVORS[machine.flavor]
        begin = whole(row["OS-SRV-USG:launched_at"])
        machine.turns.append(MonthTurn(row["OS-EXT-SRV-ATTR:host"], pool, gpus, begin))

    def _end_turn(self, machine: Machine, action: str) -> None:
        machine.turns[-1].ended_by = action
        machine.turns[-1].nth = sum(turn.ended_by == action for turn in machine.turns[:-1])

    def delete(self, machine: Machine) -> None:
        if machine.there:
            self.exercises[machine.user].delete([machine.id])
            machine.there = False
            self.done["deleted"] += 1

    def act(self, machine: Machine, body: dict[str, Any], status: str) -> None:
        self.operator.request("POST", "compute", f"/servers/{machine.id}/action", body)
        self.exercises[machine.user].wait_for_status(machine.id, status)

    def shelve(self, machine: Machine) -> None:
        if machine.there and not machine.shelved:
            self.act(machine, {"shelve": None}, "SHELVED_OFFLOADED")
            self._end_turn(machine, "shelve")
            machine.shelved = True
            self.done["shelved"] += 1

    def unshelve(self, machine: Machine) -> None:
        """Where Nova lets it."""
        if machine.there and machine.shelved and self._try(machine, {"unshelve": None}, "ACTIVE"):
            self._turn(machine)
            machine.shelved = False
            self.done["unshelved"] += 1

    def resize(self, machine: Machine, flavor: str) -> None:
        """Where Nova lets it, and has room for both at once."""
        id = next(row["id"] for row in self.flavors() if row["name"] == flavor)
        body = {"resize": {"flavorRef": id}}
        if machine.there and not machine.shelved and self._try(machine, body, "VERIFY_RESIZE"):
            self.act(machine, {"confirmResize": None}, "ACTIVE")
            machine.flavor = flavor
            self._end_turn(machine, "resize")
            self._turn(machine)
            self.done["resized"] += 1

    def _try(self, machine: Machine, body: dict[str, Any], status: str) -> bool:
        """Whether it has come to that status when Nova has done with it."""
        try:
            self.operator.request("POST", "compute", f"/servers/{machine.id}/action", body)
        except CloudError as error:
            if error.status != 403:
                raise
            self.done["refused"] += 1
            return False
        row: dict[str, Any] = {}

        def done() -> bool:
            row.update(self.operator.get("compute", f"/servers/{machine.id}")["server"])
            return row["OS-EXT-STS:task_state"] is None

        self.until(done, f"Nova to have done {body}")
        if row["status"] != status:
            self.done["no room"] += 1
        return bool(row["status"] == status)

    def flavors(self) -> list[dict[str, Any]]:
        return list(self.operator.get("compute", "/flavors", is_public="None")["flavors"])

    def book(self, user: str, flavor: str, start: datetime, end: datetime) -> None:
        pool, gpus = FLAVORS[flavor]
        body = {"pool": pool, "start": start.isoformat(), "end": end.isoformat(), "gpus": gpus, "same_host": True}
        try:
            self.ask("POST", "/v1/bookings", body, user)
        except LabError as error:
            if "409" not in str(error):
                raise
            self.done["not booked"] += 1
            return
        self.bookings.append(Booked(user, pool, start, end))
        self.done["booked"] += 1

    def hold(self, gpu: str, start: datetime, end: datetime, comment: str) -> None:
        body = {"gpus": [gpu], "start": start.isoformat(), "end": end.isoformat(), "comment": comment}
        try:
            self.ask("POST", "/v1/holds", body)
        except LabError as error:
            if "409" not in str(error):
                raise
            return
        self.done["held"] += 1


def whole(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(microsecond=0, tzinfo=UTC)


Event = tuple[datetime, int, Callable[[], None]]


class Script:
    """What happens in a month, by chance: most of it is decided before it begins."""

    def __init__(self, month: Month) -> None:
        self._month, self._rng = month, month.rng
        self._events: list[Event] = []
        self._made: dict[str, Machine] = {}

    def run(self) -> None:
        """From six hours before the month until its last day has been summed up."""
        for number in range(LIVES):
            self._life(str(number))
        for user, start, hours, gpus in self._windows():
            self._booking(user, start, hours, gpus)
        self._holds()
        self._outages()
        self._month.serve()
        for moment, _, happens in sorted(self._events, key=lambda event: event[:2]):
            self._month.leap(min(moment, LAST - 2 * SECOND))
            happens()
        self._month.leap(LAST - SECOND)
        self._month.leap(LAST + timedelta(minutes=30))
        self._hold(self._rng.choice(self._gpus()), LAST + 60 * HOUR, LAST + 64 * HOUR)
        self._month.look()

    def _at(self, moment: datetime, happens: Callable[[], None]) -> None:
        if FIRST - 6 * HOUR < moment < LAST - HOUR:
            self._events.append((moment, len(self._events), happens))

    def _between(self, low: float, high: float) -> timedelta:
        return timedelta(seconds=round(self._rng.uniform(low, high) * 3600))

    def _life(self, name: str) -> None:
        """A server without a booking: some are shelved for a while, some are resized."""
        user, flavor = self._rng.choice(["bob", "cleo", "eve"]), self._rng.choice(sorted(FLAVORS))
        begin = FIRST - 5 * HOUR + self._between(0, 30 * 24)
        end = begin + self._between(1, 150)
        self._at(begin, partial(self._boot, name, user, flavor))
        self._at(end, partial(self._with, name, self._month.delete))
        kind = self._rng.random()
        if kind < 0.3:
            pause = begin + (end - begin) * 0.3
            self._at(pause, partial(self._with, name, self._month.shelve))
            self._at(pause + (end - begin) * 0.3, partial(self._with, name, self._month.unshelve))
        elif kind < 0.5 and flavor in LARGER:
            self._at(begin + (end - begin) / 2, partial(self._with, name, self._larger))

    def _boot(self, name: str, user: str, flavor: str) -> None:
        machine = self._month.boot(user, flavor)
        if machine is not None:
            self._made[name] = machine

    def _larger(self, machine: Machine) -> None:
        if machine.flavor in LARGER:
            self._month.resize(machine, LARGER[machine.flavor])

    def _with(self, name: str, happens: Callable[[Machine], None]) -> None:
        if name in self._made:
            happens(self._made[name])

    def _windows(self) -> Iterator[tuple[str, datetime, timedelta, int]]:
        for user in BOOK:
            start = FIRST + self._between(30, 60)
            while start < LAST - 30 * HOUR:
                hours = self._between(4, 60)
                yield user, start.replace(second=0), hours, self._rng.choice((1, 2))
                start += hours + self._between(120, 260)

    def _booking(self, user: str, start: datetime, hours: timedelta, gpus: int) -> None:
        month, name = self._month, f"{user} {start}"
        flavor = BOOK[user][(gpus - 1) % len(BOOK[user])]
        end = start + hours
        self._at(start - self._between(1, 24), partial(self._book, user, flavor, start, end))
        self._look_at(start - 20 * SECOND, start + 10 * SECOND, end + 5 * SECOND)  # its GPUs are kept; it is on; over
        if self._rng.random() < 0.7:
            self._at(start + hours * self._rng.uniform(0.1, 0.4), partial(self._boot, name, user, flavor))
            over = hours * 0.1 + 7 * SECOND
            self._at(end + self._rng.choice([-over, over]), partial(self._with, name, month.delete))

    def _look_at(self, *moments: datetime) -> None:
        """There the clock stops although nobody does anything."""
        for moment in moments:
            self._at(moment, lambda: None)

    def _book(self, user: str, flavor: str, start: datetime, end: datetime) -> None:
        if self._month.portal is not None:
            self._month.book(user, flavor, start, end)

    def _holds(self) -> None:
        for _ in range(3):
            start = FIRST + self._between(24, 28 * 24)
            end = start + self._between(3, 40)
            gpu = self._rng.choice(self._gpus())
            self._at(start - HOUR, partial(self._hold, gpu, start, end))
            self._look_at(start + 5 * SECOND, end + 5 * SECOND)

    def _gpus(self) -> list[str]:
        return [f"{gpu.host}/{gpu.address}" for gpu in self._month.loaded.compiled.gpus]

    def _hold(self, gpu: str, start: datetime, end: datetime) -> None:
        if self._month.portal is not None:
            self._month.hold(gpu, start, end, "a new power supply")

    def _outages(self) -> None:
        """Killed, and gone for hours or days; or there again at once. Once it is gpuyard's own rule that holds for what
        nobody saw."""
        for number, day in enumerate(self._rng.sample(range(2, 29), 4)):
            begin = FIRST + day * 24 * HOUR + self._between(0, 20)
            for_ = self._between(0, 0.01) if number == 0 else self._between(3, 40)
            minutes = STRICT if number == 1 else PATIENT
            self._at(begin, self._month.kill)
            self._at(begin + for_, partial(self._again, minutes))
            if minutes == STRICT:
                self._at(begin + for_ + 30 * HOUR, self._month.kill)
                self._at(begin + for_ + 31 * HOUR, partial(self._again, PATIENT))

    def _again(self, minutes: int) -> None:
        if self._month.portal is None:
            self._month.serve(minutes)


def spans_of(month: Month) -> list[Span]:
    """Every use of a GPU, by what Nova remembers: when servers ended by its accounts for those who bill, and when they
    gave GPUs back by its list of actions. Until the end of the month."""
    ends = _ended(month)
    spans = []
    for machine in month.machines:
        path = f"/servers/{machine.id}/os-instance-actions"
        rows = month.operator.get("compute", path)["instanceActions"]
        rows.sort(key=lambda row: str(row["start_time"]))
        begin = None
        for turn in machine.turns:
            begin = begin or turn.begin
            if turn.ended_by:
                named = [row for row in rows if row["action"] == turn.ended_by and not row["message"]]
                end = whole(named[turn.nth]["updated_at"])
            else:
                end = ends[machine.id] if not machine.there else LAST
            spans += _by_booking(month, Span(machine.user, turn.host, turn.pool, turn.gpus, begin, end))
            begin = end if turn.ended_by == "resize" else None  # Nova says a bit before that it was launched anew
    return [span for span in spans if span.start < span.end]


def _ended(month: Month) -> dict[str, datetime]:
    """Id of each server that was deleted -> when."""
    ends = {}
    projects = {row["name"]: row["id"] for row in month.operator.get("identity", "/projects")["projects"]}
    span = {"start": f"{FIRST - 24 * HOUR:%Y-%m-%dT%H:%M:%S}", "end": f"{LAST + 24 * HOUR:%Y-%m-%dT%H:%M:%S}"}
    for project in set(PEOPLE.values()):
        path = f"/os-simple-tenant-usage/{projects[project]}"
        usage = month.operator.get("compute", path, **span)["tenant_usage"]
        for row in usage.get("server_usages", ()):
            if row["ended_at"]:
                ends[row["instance_id"]] = whole(row["ended_at"])
    return ends


def _by_booking(month: Month, span: Span) -> list[Span]:
    """Cut where a booking of its user's begins and ends."""
    mine = [booking for booking in month.bookings if (booking.user, booking.pool) == (span.user, span.pool)]
    cuts = {span.start, span.end} | {time for booking in mine for time in (booking.start, booking.end)}
    times = sorted(time for time in cuts if span.start <= time <= span.end)
    return [
        replace(span, start=a, end=b, booked=any(booking.start <= a < booking.end for booking in mine))
        for a, b in pairwise(times)
    ]


@contextmanager
def month_of_use(folder: Path, seed: int) -> Iterator[Month]:
    """A lab after a month of use; its portal is up."""
    clock = MovedClock(folder, FIRST - 6 * HOUR)
    loaded = site_file(folder)
    plan = plan_of_site(loaded.path)
    with pytest.MonkeyPatch.context() as environment:
        for name, value in clock.environment.items():
            environment.setenv(name, value)
        settings = LabSettings(folder / "lab", port_base=free_port_base())
        lab = RunningLab(settings, control.up(settings, replace(plan, nova=plan.nova + DOWN_NEVER)))
    month = None
    try:
        apply_site(lab.lab, loaded)
        operator = connect(ADMIN_CLOUD, lab.lab.clouds_file)
        _, apis = people_of(lab, operator, [], PEOPLE)
        exercises = {name: Exercise(operator, api, loaded.compiled, f"{name}-") for name, api in apis.items()}
        with (folder / "portal.log").open("w") as log:
            month = Month(lab, loaded, clock, operator, exercises, folder, log, random.Random(seed))
            ensure_portal(lab.lab, log_in(lab.lab), month.url)
            Script(month).run()
            yield month
    finally:
        if month is not None:
            month.kill()
        control.down(settings)
