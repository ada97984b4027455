"""Keeps the latest observations of runners: their servers at Nova, their registrations at GitHub, their consoles.

Each source is observed in a loop of its own, so that a slow one holds up no other. Everything is in memory, and
observed anew after a restart.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuyard.nova.server_states import UNKNOWN, SeenServer
from gpuyard.openstack.servers import RunnerServers
from gpuyard.runners.console import Console, read
from gpuyard.runners.controllers.registrar import Registrar
from gpuyard.runners.github.answers import RegisteredRunner
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.errors import GitHubError
from gpuyard.runners.progress import OFF, RunnerObservation
from gpuyard.runners.records import Job, Runner, RunnerState

TICK = timedelta(seconds=1)
"""Precision of stored times: whole seconds."""


@dataclass(frozen=True)
class ServerListing:
    """All of our servers at Nova, as of one moment."""

    at: datetime
    """A time before Nova was asked."""
    servers: Mapping[str, SeenServer]
    """By id."""
    number: int = 0

    def named(self, name: str) -> list[SeenServer]:
        return [server for server in self.servers.values() if server.name == name]


@dataclass(frozen=True)
class _Word:
    """GitHub's last answer about a registration."""

    at: datetime
    found: RegisteredRunner | None


@dataclass
class RunnerObserver:
    """The observations of one site's runners. Safe to use from several threads."""

    servers: RunnerServers
    registrar: Registrar
    clients: Mapping[str, GitHubClient]
    now: Callable[[], datetime]
    nova: ServerListing | None = None
    registered: dict[tuple[str, str], dict[str, RegisteredRunner]] = field(default_factory=dict)
    """(enrolment, repository) -> name -> registrations there, as of the last look."""
    _gone: set[str] = field(default_factory=set)
    _unknown: dict[str, SeenServer] = field(default_factory=dict)
    """Id -> a server whose cell of Nova does not answer, so that lists lack it."""
    _words: dict[str, _Word] = field(default_factory=dict)
    _consoles: dict[str, Console] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def look_at_nova(self) -> bool:
        """List our servers with one call. Returns whether anything has changed. Raises ServerError."""
        began = self.now()
        servers = {server.id: server for server in self.servers.ours()}
        with self._lock:
            before = self.nova
            self.nova = ServerListing(began, servers, before.number + 1 if before else 1)
            self._unknown = {id: server for id, server in self._unknown.items() if id not in servers}
            return before is None or before.servers != servers

    def is_missing(self, runner: Runner) -> bool:
        """Return whether the last list from Nova did not have the runner's server, though it should."""
        look, server = self.nova, runner.server_id
        if look is None or not server or server in look.servers or server in self._gone:
            return False
        return look.at > runner.changed + TICK

    def confirm_gone(self, runner: Runner) -> None:
        """Ask for a server that is missing: a list may be late, or lack those of a cell that does not answer; a 404 is
        certain. Raises ServerError."""
        server = self.servers.get(runner.server_id)
        with self._lock:
            self._unknown.pop(runner.server_id, None)
            if server is None:
                self._gone.add(runner.server_id)
            elif server.status == UNKNOWN:
                self._unknown[runner.server_id] = server

    def look_at_github(self, where: Mapping[tuple[str, str], Collection[str]]) -> list[str]:
        """List the registrations of these enrolments and repositories (with the names of ours that should be there).
        Returns why places could not be listed."""
        problems: list[str] = []
        for (scope, repository), expected in sorted(where.items()):
            began = self.now()
            try:
                runners_by_name = {runner.name: runner for runner in self.clients[scope].runners(repository)}
            except GitHubError as error:
                problems.append(str(error))
                continue
            with self._lock:
                self._words |= {name: _Word(began, runners_by_name.get(name)) for name in expected}
                self.registered[scope, repository] = runners_by_name
        return problems

    def ask_github(self, runner: Runner) -> None:
        """Ask GitHub about one runner, when a decision depends on that. Raises GitHubError."""
        began = self.now()
        registration = self.registrar.find(runner)
        with self._lock:
            self._words[runner.name] = _Word(began, registration)

    def wants_console(self, runner: Runner) -> bool:
        """Return whether the runner's console can say something that nothing else says: while it starts, and when its
        server is off and neither a job nor its end is known."""
        with self._lock:
            server = self.nova.servers.get(runner.server_id) if self.nova else None
        off = server is not None and server.status in OFF
        return bool(runner.server_id) and (
            runner.state is RunnerState.REGISTERING or (runner.state in (RunnerState.IDLE, RunnerState.BUSY) and off)
        )

    def look_at_console(self, runner: Runner) -> bool:
        """Read the runner's console. Returns whether it says anything new. Raises ServerError."""
        text = self.servers.console(runner.server_id)
        console = replace(read(text), log="")
        with self._lock:
            if self._consoles.get(runner.name) == console:
                return False
            self._consoles[runner.name] = console
            return True

    def of(self, runner: Runner, job: Job | None) -> RunnerObservation:
        """Return everything that was observed of a runner."""
        with self._lock:
            look, word = self.nova, self._words.get(runner.name)
            server = None
            if look is not None:
                mine = look.servers.get(runner.server_id)
                named = [] if runner.server_id else look.named(runner.name)
                server = mine or self._unknown.get(runner.server_id) or next(iter(named), None)
            is_fresh = word is not None and word.at > runner.changed + TICK
            registration = word.found if word is not None and is_fresh else None
            return RunnerObservation(
                server=server,
                gone=bool(runner.server_id) and runner.server_id in self._gone,
                registered=(registration is not None) if is_fresh else None,
                online=(registration is not None and registration.online) if is_fresh else None,
                busy=registration is not None and registration.busy,
                console=self._consoles.get(runner.name),
                job=job,
            )

    def word_after(self, name: str, moment: datetime) -> bool:
        """Return whether GitHub was asked about a runner since then."""
        with self._lock:
            word = self._words.get(name)
            return word is not None and word.at >= moment

    def server_of(self, name: str) -> str:
        """Return the id of the server with a name, by the last list from Nova; empty when there is none."""
        look = self.nova
        return next((server.id for server in look.named(name)), "") if look else ""

    def looked_at_nova(self) -> datetime | None:
        return self.nova.at if self.nova else None

    def forget(self, runners: Collection[Runner]) -> None:
        """Drop the observations of all runners but these."""
        live, servers = {runner.name for runner in runners}, {runner.server_id for runner in runners}
        with self._lock:
            self._gone &= servers
            self._unknown = {id: server for id, server in self._unknown.items() if id in servers}
            self._words = {name: word for name, word in self._words.items() if name in live}
            self._consoles = {name: console for name, console in self._consoles.items() if name in live}
