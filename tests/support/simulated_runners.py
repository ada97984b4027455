"""A world for runners with a clock that tests set: the stand-in GitHub without sockets, a Nova in memory with the
contract of the real one (of which tests/integration/test_runner_servers.py is), guests that know only their user data,
and the controller's own code, which may be killed at any call that it makes.
"""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Executor, Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from ruamel.yaml import YAML

from gpuyard.bookings.controllers.site_ledger import open_ledger
from gpuyard.health.controllers.gpus_kept_from_jobs import HoldCheck
from gpuyard.model.errors import GpuyardError
from gpuyard.nova.server_states import UNKNOWN, SeenServer
from gpuyard.openstack.guarded_servers import GuardedServers
from gpuyard.openstack.servers import ServerError, ServerProblem, ServerWish
from gpuyard.runners.controllers.runner_loops import Runners
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.controllers.runners import RunnerPorts
from gpuyard.runners.github.api import RestApi
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.scale_sets import ScaleSetClient
from gpuyard.runners.records import HookDelivery, Job
from gpuyard.runners.store import RunnerStore
from gpuyard.runtime.http import HttpClientError, WireAnswer
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import load_site
from gpuyard.site.runner_rules import Enrolment
from gpuyard_lab.github.faults import FaultRates, Faults
from gpuyard_lab.github.forge import ForgeSettings
from gpuyard_lab.github.guest import orders, refused
from gpuyard_lab.github.records import COMPLETED, ForgeJob
from gpuyard_lab.github.runner_standin import read_config
from gpuyard_lab.github.standin import StandIn
from gpuyard_lab.github.wire import ForgeRequest
from gpuyard_lab.plan import EXAMPLE_SITE
from tests.support.booked_sites import copy_recordings
from tests.support.runner_storm import our_job, unfinished

BEGIN = datetime(2026, 11, 23, 9, tzinfo=UTC)
TOKEN = "ghp_of_the_yard"  # noqa: S105
LOG = logging.getLogger(__name__)


class Killed(BaseException):
    """kill -9: nothing of the process goes on."""


class Inline(Executor):
    """Does it at once."""

    def submit(self, fn: Callable[..., Any], /, *args: Any, **keywords: Any) -> Future[Any]:
        future: Future[Any] = Future()
        try:
            future.set_result(fn(*args, **keywords))
        except Exception as error:
            future.set_exception(error)
        return future


@dataclass
class Clock:
    now: datetime = BEGIN

    def __call__(self) -> datetime:
        return self.now

    def steady(self) -> float:
        return self.now.timestamp()

    def sleep(self, seconds: float) -> None:
        """Whoever waits for his turn has waited."""


@dataclass
class Mishaps:
    """How often something goes wrong at Nova, from 0 to 1, and how long things take, in seconds."""

    refused: float = 0.0
    """503, and nothing was done."""
    reply_lost: float = 0.0
    """It was done, and no answer came."""
    no_host: float = 0.0
    error: float = 0.0
    """The server goes into ERROR while it is made."""
    silent: float = 0.0
    """The guest never says a word."""
    bad_gpu: float = 0.0
    boot: float = 20.0
    start: float = 20.0
    """From ACTIVE to the runner's being online."""
    delete: float = 10.0


@dataclass
class SimServer:
    id: str
    wish: ServerWish
    made: datetime
    boot: float
    status: str = "BUILD"
    fault: str = ""
    lives: bool = True
    bad: bool = False
    deleted: datetime | None = None
    console: str = ""
    session: str = ""
    token: str = ""
    job: dict[str, Any] | None = None
    until: datetime | None = None
    active: datetime | None = None
    tagged: bool = True
    """Nobody has taken our tags off it."""


class SimNova:
    """`RunnerServers` with a clock. A deleted server keeps its GPUs until that is final."""

    def __init__(
        self,
        clock: Clock,
        rng: random.Random,
        mishaps: Mishaps,
        gpus: Mapping[str, int],
        flavors: Mapping[str, tuple[str, int]],
    ) -> None:
        self.clock, self.rng, self.mishaps, self.gpus, self.flavors = clock, rng, mishaps, gpus, flavors
        self.servers: dict[str, SimServer] = {}
        self.most: dict[str, int] = {}
        self.calls = 0
        self.is_silent = False
        """The cell of all servers does not answer: lists lack them, and each by itself is UNKNOWN."""
        self.posts: list[tuple[datetime, str]] = []

    def create(self, wish: ServerWish) -> str:
        self._refuse()
        id = f"srv-{len(self.posts) + 1:05}"
        self.posts.append((self.clock(), wish.job))
        server = SimServer(id, wish, self.clock(), self.mishaps.boot * self.rng.uniform(0.5, 2))
        pool, gpus = self.flavors[wish.flavor]
        used = self.used(pool)
        if self.rng.random() < self.mishaps.no_host or used + gpus > self.gpus.get(pool, 0):
            server.status, server.fault = "ERROR", "No valid host was found. There are not enough hosts available."
        elif self.rng.random() < self.mishaps.error:
            server.fault = "Build of instance aborted"
        server.lives = self.rng.random() >= self.mishaps.silent
        server.bad = self.rng.random() < self.mishaps.bad_gpu
        self.servers[id] = server
        if gpus:
            self.most[pool] = max(self.most.get(pool, 0), self.used(pool))
        self._lose()
        return id

    def used(self, pool: str) -> int:
        """GPUs that servers have: those in ERROR without a host have none."""
        return sum(
            self.flavors[server.wish.flavor][1]
            for server in self.servers.values()
            if self.flavors[server.wish.flavor][0] == pool and "No valid host" not in server.fault
        )

    def ours(self) -> list[SeenServer]:
        self._refuse()
        return [self._seen(server) for server in self.servers.values() if server.tagged and not self.is_silent]

    def all_cells_answer(self) -> bool:
        self._refuse()
        return not self.is_silent

    def get(self, server_id: str) -> SeenServer | None:
        self._refuse()
        if server_id in self.servers and self.is_silent:
            return SeenServer(server_id, "", UNKNOWN, created=self.servers[server_id].made)
        return self._seen(self.servers[server_id]) if server_id in self.servers else None

    def console(self, server_id: str) -> str:
        self._refuse()
        return self.servers[server_id].console if server_id in self.servers else ""

    def delete(self, server_id: str) -> None:
        self._refuse()
        if server_id in self.servers and self.servers[server_id].tagged and not self.is_silent:
            server = self.servers[server_id]
            server.deleted = server.deleted or self.clock()
        self._lose()

    def _seen(self, server: SimServer) -> SeenServer:
        task = "deleting" if server.deleted else ""
        fault = server.fault if server.status == "ERROR" else ""
        return SeenServer(server.id, server.wish.name, server.status, task, server.made, fault, server.tagged)

    def _refuse(self) -> None:
        self.calls += 1
        if self.rng.random() < self.mishaps.refused:
            raise ServerError("503 Service Unavailable", 503, ServerProblem.UNKNOWN)

    def _lose(self) -> None:
        if self.rng.random() < self.mishaps.reply_lost:
            raise ServerError("no answer", None, ServerProblem.UNKNOWN)

    def tick(self) -> None:
        now = self.clock()
        for server in [*self.servers.values()]:
            if server.deleted and now - server.deleted >= timedelta(seconds=self.mishaps.delete):
                del self.servers[server.id]
            elif server.status == "BUILD" and now - server.made >= timedelta(seconds=server.boot):
                server.status = "ERROR" if server.fault else "ACTIVE"
                server.active = now


class Guests:
    """What runs in ACTIVE servers: it knows its user data, speaks to GitHub and writes to its console."""

    def __init__(self, nova: SimNova, standin: StandIn, clock: Clock) -> None:
        self.nova, self.standin, self.clock = nova, standin, clock
        self.ran: list[int] = []
        """Jobs of which a step has run."""

    def tick(self) -> None:
        for server in [*self.nova.servers.values()]:
            if server.status == "ACTIVE" and server.lives and not server.deleted:
                self._live(server)

    def _live(self, server: SimServer) -> None:
        now = self.clock()
        if server.active is None or now - server.active < timedelta(seconds=self.nova.mishaps.start):
            return
        if not server.session:
            self._connect(server)
        elif server.job is None:
            status, job = self._ask(server, "GET", "/message")
            if status == 200:
                status, _ = self._ask(server, "POST", f"/jobs/{job['jobId']}/start")
                if status == 204:
                    server.job, server.until = job, now + timedelta(seconds=job["seconds"])
                    self._say(server, "job started")
                    if refused(orders(server.wish.user_data).rules, job):
                        server.job, server.until = {**job, "result": "failure"}, now
                    else:
                        self.ran.append(job["jobId"])
            elif status == 401:
                self._off(server)
        else:
            self._work(server, now)

    def _connect(self, server: SimServer) -> None:
        if server.bad:
            self._say(server, "gpu failed no GPU answers")
            self._off(server)
            return
        self._say(server, "gpu ok one of a kind")
        document = YAML(typ="safe", pure=True).load(server.wish.user_data)
        secret = next(file["content"] for file in document["write_files"] if file["path"].endswith("jitconfig"))
        _, name, token = read_config(secret.strip())
        assert name == server.wish.name
        server.token = token
        status, answer = self._ask(server, "POST", "/sessions")
        if status == 201:
            server.session = answer["session"]
            self._say(server, "online")
        elif status < 500:
            self._say(server, "failed GitHub does not know it")
            self._off(server)

    def _work(self, server: SimServer, now: datetime) -> None:
        assert server.job is not None
        assert server.until is not None
        id = server.job["jobId"]
        status, answer = self._ask(server, "POST", f"/jobs/{id}/renew")
        cancelled = status == 200 and answer["cancelled"]
        if status in (401, 404):
            self._off(server)
        elif cancelled or now >= server.until:
            result = {"success": "Succeeded", "failure": "Failed"}[server.job["result"]]
            status, _ = self._ask(server, "POST", f"/jobs/{id}/finish", {"result": "Canceled" if cancelled else result})
            if status < 500:
                self._say(server, "job finished Succeeded")
                self._say(server, "log begins")
                server.console += f"| did {id}\n"
                self._say(server, "log ends")
                self._off(server)

    def _off(self, server: SimServer) -> None:
        server.status = "SHUTOFF"

    def _say(self, server: SimServer, text: str) -> None:
        server.console += f"gpuyard-runner: {text}\n"

    def _ask(self, server: SimServer, method: str, path: str, body: Any = None) -> tuple[int, Any]:
        headers = {"authorization": f"Bearer {server.session or server.token}"}
        data = json.dumps(body or {}).encode() if method == "POST" else b""
        answer = self.standin.handle(ForgeRequest(method, f"/_services/runner{path}", {}, headers, data))
        if answer.cut:
            return 599, {}
        return answer.status, answer.body


class StandInWire:
    """In place of `HttpClient`."""

    def __init__(self, standin: StandIn, between: Callable[[str], None]) -> None:
        self.standin, self.between = standin, between

    def exchange(
        self, method: str, url: str, headers: Mapping[str, str], body: bytes | None = None, **how: Any
    ) -> WireAnswer:
        split = urlsplit(url)
        target = f"{split.path}?{split.query}" if split.query else split.path
        self.between(f"before {method} {split.path}")
        answer = self.standin.handle(ForgeRequest.of(method, target, headers, body or b""))
        self.between(f"after {method} {split.path}")
        if answer.cut:
            raise HttpClientError("the answer broke off")
        lower = {name.lower(): value for name, value in answer.headers.items()}
        return WireAnswer(answer.status, {"content-type": "application/json", **lower}, answer.encoded())

    def close(self) -> None:
        pass


class KillableServers:
    """A Nova whose callers may be killed before and after each call."""

    def __init__(self, servers: SimNova, between: Callable[[str], None]) -> None:
        self._servers, self._between = servers, between

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._servers, name)

        def wrapped(*args: Any) -> Any:
            self._between(f"before nova {name}")
            answer = call(*args)
            self._between(f"after nova {name}")
            return answer

        return wrapped


@dataclass
class SimulatedRunners:
    """One test's. `between` is called around every call to GitHub, Nova and the store: it may raise Killed."""

    folder: Path
    seed: int = 0
    rates: FaultRates = field(default_factory=FaultRates)
    mishaps: Mishaps = field(default_factory=Mishaps)
    url: str = ""
    runners_rules: Mapping[str, Any] = field(default_factory=dict)
    between: Callable[[str], None] = lambda what: None
    sets: bool = True
    requests_an_hour: int = 100_000
    holds: Callable[[SimulatedRunners], HoldCheck | None] = lambda world: None
    """Made anew by each process."""
    in_slots: bool = False
    """Whether Placement knows which GPUs are alone in their groups."""

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.clock = Clock()
        faults = Faults(self.seed, self.rates, late_s=120)
        settings = ForgeSettings(poll_s=0, requests_an_hour=self.requests_an_hour)
        self.github = StandIn(self.clock, faults, settings, "https://github.test")
        self.github.forge.personal_tokens[TOKEN] = "yard"
        self.compiled = runner_site(self.folder, self.runners_rules, sets=self.sets)
        pools: dict[str, int] = {}
        for gpu in self.compiled.gpus:
            if not gpu.blocked:
                pools[gpu.pool] = pools.get(gpu.pool, 0) + 1
        flavors = {flavor.name: (flavor.pool or "", flavor.gpus) for flavor in self.compiled.flavors}
        self.nova = SimNova(self.clock, self.rng, self.mishaps, pools, flavors)
        self.guests = Guests(self.nova, self.github, self.clock)
        self.url = self.url or f"sqlite:///{self.folder / 'ledger.db'}"
        self.problems: list[str] = []
        self.deaths = 0
        self.start()

    def start(self) -> None:
        """A process begins."""
        self.ledger = open_ledger(self.compiled, self.url, self.clock)
        self.store = RunnerStore(self.ledger.database)
        clients = {enrolment.name: self._client(enrolment) for enrolment in self._site.enrolments}
        sets = {name: ScaleSetClient(client) for name, client in clients.items()}
        guarded = GuardedServers(KillableServers(self.nova, self._between), self.clock.steady, self.clock.sleep)
        letters = "".join
        site = RunnerSite(
            self.compiled, "p-runners", lambda: letters(self.rng.choices("abcdefghijkmnpqrstuvwxyz23456789", k=8))
        )
        ports = RunnerPorts(
            self._killable_store(), self.ledger, guarded, clients, sets, holds=self.holds(self),
            in_slots=lambda pool: self.in_slots,
        )  # fmt: skip
        self.runners = Runners(site, ports, self.clock, lambda name, many: Inline())
        self._due: dict[str, datetime] = {}

    @property
    def _site(self) -> Any:
        assert self.compiled.site.runners is not None
        return self.compiled.site.runners

    def _client(self, enrolment: Enrolment) -> GitHubClient:
        wire: Any = StandInWire(self.github, self._between)
        api = RestApi(
            enrolment, wire=wire, now=self.clock, clock=self.clock.steady, sleep=self.clock.sleep, rate=1e6, burst=1e6
        )
        return GitHubClient(enrolment, api)

    def _killable_store(self) -> RunnerStore:
        self._make_killable(
            self.store, "put", "put_job", "put_runner", "add_runner", "put_message", "delivery_done", "put_log"
        )
        self._make_killable(self.ledger.leases, "take", "extend", "end")
        return self.store

    def _make_killable(self, thing: object, *names: str) -> None:
        for name in names:
            call = getattr(thing, name)

            def wrapped(*args: Any, _call: Any = call, _name: str = name, **keywords: Any) -> Any:
                self._between(f"before {_name}")
                answer = _call(*args, **keywords)
                self._between(f"after {_name}")
                return answer

            setattr(thing, name, wrapped)

    def _between(self, what: str) -> None:
        self.between(what)

    def kill(self) -> None:
        """And another process begins."""
        self.deaths += 1
        self.ledger.close()
        self.start()

    # -- time

    def step(self, seconds: float = 5.0) -> None:
        """Time goes by, and every loop that is due runs."""
        self.clock.now += timedelta(seconds=seconds)
        self.github.tick()
        self._deliver()
        self.nova.tick()
        self.guests.tick()
        try:
            for name, period, run in self._loops():
                if self.clock() >= self._due.get(name, self.clock()):
                    self._due[name] = self.clock() + timedelta(seconds=period)
                    self._run(name, run)
        except Killed:
            self.kill()

    def _loops(self) -> Iterable[tuple[str, float, Callable[[], object]]]:
        runners, controller = self.runners, self.runners.controller
        for listener in runners.listeners:
            yield f"set {id(listener)}", 5, listener.run
        yield "intake", 5, runners.take_in
        yield "nova", 5, controller.look_at_nova
        yield "consoles", 5, controller.look_at_consoles
        yield "github", 60, runners.look_at_github
        yield "recover", 120, runners.recover
        yield "unclaimed", 15, runners.ask_of_unclaimed
        yield "main", 5, controller.run
        yield "intake again", 5, runners.take_in
        yield "main again", 5, controller.run

    def _run(self, name: str, run: Callable[[], object]) -> None:
        try:
            run()
        except GpuyardError as error:
            self.problems.append(f"{name}: {error}")

    def _deliver(self) -> None:
        """Webhooks to the store, as the portal does."""
        for hook, sending in self.github.hooks.take_due():
            scope = hook.url
            with suppress(Killed):
                self.store.keep_delivery(HookDelivery(sending.guid, scope, sending.event, self.clock(), sending.body))
                self.github.hooks.answered(sending, 202)

    def until(self, true: Callable[[], bool], hours: float = 6.0, seconds: float = 5.0) -> None:
        end = self.clock() + timedelta(hours=hours)
        while not true():
            assert self.clock() < end, self.report()
            self.step(seconds)

    # -- what is there

    def job(self, id: int) -> ForgeJob:
        return self.github.forge.jobs[id]

    def at_rest(self) -> bool:
        """Nothing waits, runs, or is left over."""
        return not unfinished(self.github.forge, self.store) and not self.left_over()

    def our_job(self, job: ForgeJob) -> Job | None:
        return our_job(self.github.forge, self.store, job)

    def left_over(self) -> list[str]:
        """Everything that should not be there when no job is."""
        forge = self.github.forge
        return [
            *(f"server {server.id} {server.wish.name} {server.status}" for server in self.nova.servers.values()),
            *(f"registration {runner.name}" for runner in forge.runners.values() if runner.name.startswith("gpuyard-")),
            *(f"lease {lease.id} of {lease.server}" for lease in self.ledger.leases.current()),
            *(f"runner {runner.name} {runner.state.value}" for runner in self.store.runners()),
            *(f"job {job.id} {job.state.value} {job.reason}" for job in self.store.jobs()),
        ]

    def report(self) -> str:
        left = "\n".join(self.left_over()[:40])
        waiting = [job.id for job in self.github.forge.jobs.values() if job.status != COMPLETED]
        head = f"seed {self.seed}, {self.clock()}: GitHub has jobs {waiting[:20]}; left over:"
        return f"{head}\n{left}\n{self.problems[-10:]}"


def runner_site(folder: Path, rules: Mapping[str, Any], *, sets: bool = True) -> CompiledSite:
    """The example site with runners for the organisation ``demo`` at ``github.test``."""
    document = YAML(typ="safe").load(EXAMPLE_SITE)
    token, secrets = folder / "token", folder / "secrets"
    token.write_text(TOKEN)
    token.chmod(0o600)
    secrets.write_text("secret-of-the-hook\n")
    secrets.chmod(0o600)
    enrolment = {
        "organization": "demo",
        "url": "https://github.test",
        "token_file": str(token),
        "webhook_secrets_file": str(secrets),
    }
    document["runners"] = {
        "project": "github-runners",
        "network": "none",
        "enrolments": [enrolment],
        "longest": "2 h",
        "boot": "5 min",
        "register_within": "5 min",
        **({"sets": {"gpuyard-v100": {"flavors": ["gpu_tiny"], "images": ["tiny"]}}} if sets else {}),
        **rules,
    }
    copy_recordings(folder)
    path = folder / "site.yaml"
    path.write_text(json.dumps(document))
    return load_site(path).compiled


CIRUN = """\
runners:
  - name: gpu
    cloud: openstack
    instance_type: gpu_tiny
    machine_image: tiny
    labels: [cirun-gpu]
"""


def cirun_repository(world: SimulatedRunners, name: str = "demo/science") -> None:
    """A repository with a `.cirun.yml`, whose jobs come by webhook."""
    world.github.forge.add_repository(name).files[".cirun.yml"] = CIRUN


def hook(world: SimulatedRunners) -> None:
    """The organisation's webhook. Its address is the enrolment, see `SimulatedRunners._deliver`."""
    world.github.forge.add_hook("demo", world._site.enrolments[0].name, "secret-of-the-hook")
