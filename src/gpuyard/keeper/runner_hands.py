"""What is done about one runner at GitHub and at Nova: made, let go of, removed. Each call may take seconds.

The order is everything (docs/adr/0025): what is about to be asked for is written down first, so that after a kill at
any moment the row says what to look for. Making is never gone on with after that, since the configuration of a runner
is a secret that is not kept: what came of it is removed, and another runner is made. Removing is done again from the
start, as often as it takes.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuyard.cloud.servers import RunnerServers, ServerError, ServerProblem, ServerWish
from gpuyard.keeper.registrar import Registrar, UnknownScopeError
from gpuyard.ledger.leases import Leases
from gpuyard.runners.console import read
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.life import FAILURES, become
from gpuyard.runners.records import Cause, Runner, RunnerEvent, RunnerState, ServerChoice
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.user_data import UserDataError, user_data

LOG = logging.getLogger(__name__)
S = RunnerState
AGAIN = timedelta(seconds=30)
"""After this time Nova is asked again to delete what it has been asked to delete."""
LATE = timedelta(seconds=60)
"""A server that Nova was asked for, and of which nothing is known, would be there after this time."""
FORGETFUL = timedelta(minutes=30)
"""GitHub keeps a runner busy for a while when its server has gone under it; after this time ours is not waited for."""


@dataclass
class _Removal:
    """What has been done about one runner that is to go. Forgotten with the process: then it is done again."""

    unregistered: bool = False
    logged: bool = False
    asked: datetime | None = None
    """When Nova was asked to delete its server."""
    strange: datetime | None = None
    """When its server was first seen without our tags."""


@dataclass(frozen=True)
class Tools:
    """What hands work with."""

    store: RunnerStore
    leases: Leases
    servers: RunnerServers
    registrar: Registrar
    flavor: Callable[[Runner], str]
    """Nova's flavor for a runner on the lease that it has."""
    find: Callable[[str], str]
    """Id of our server with a name, by the latest look at Nova; empty when there is none."""
    looked: Callable[[], datetime | None]
    """When Nova was asked for that look."""
    broken: Callable[[Runner], None]
    """Told of each runner whose GPU did not pass its check, when it is free. May raise: then it is told again."""
    now: Callable[[], datetime]
    failed: Callable[[Runner], None] = lambda runner: None
    """Told of each runner that ends without having had a job, and through no wish of ours."""
    limited: Callable[[str, GitHubError], None] = lambda scope, error: None
    """Told when GitHub does nothing for an enrolment at the moment."""
    crowded: Callable[[ServerChoice, ServerError], None] = lambda choice, error: None
    """Told when Nova does nothing at the moment, or has no room."""
    late: timedelta = LATE


@dataclass
class RunnerHands:
    """One runner per call, and never two calls for the same one: see Crew."""

    tools: Tools
    _removals: dict[str, _Removal] = field(default_factory=dict)
    _unposted: set[str] = field(default_factory=set)
    """Runners that Nova was certainly not asked for, or has certainly refused."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # Making

    def make(self, runner: Runner) -> None:
        """From REQUESTED, which is written, to a server that Nova makes."""
        tools = self.tools
        try:
            jit = tools.registrar.register(runner)
        except (GitHubError, UnknownScopeError) as error:
            if isinstance(error, GitHubError):
                tools.limited(runner.scope, error)
            self._give_up(runner, Cause.GITHUB_ERROR, f"GitHub did not register it: {error}")
            return
        registered = replace(become(runner, S.CREATING, tools.now()), github_id=jit.id)
        if not self.write(registered, "registered at GitHub; Nova is asked for its server"):
            LOG.warning("runner %s: another process has ended it meanwhile; Nova is not asked for it", runner.name)
            return
        try:
            text = user_data(runner.name, jit.encoded, runner.choice.gpus)
            flavor = tools.flavor(runner)
            server = tools.servers.create(ServerWish(runner.name, flavor, runner.choice.image, text, runner.for_job))
        except UserDataError as error:
            self._give_up(registered, Cause.GITHUB_ERROR, str(error))
            return
        except ServerError as error:
            tools.crowded(runner.choice, error)
            full = error.problem in (ServerProblem.QUOTA, ServerProblem.LIMITED)
            cause = Cause.NO_CAPACITY if full else Cause.SERVER_ERROR
            self._give_up(registered, cause, f"Nova: {error}", unposted=error.problem is not ServerProblem.UNKNOWN)
            return
        self.write(replace(registered, server_id=server, changed=tools.now()), f"Nova makes server {server}")

    def interrupted(self, runner: Runner) -> None:
        """End one that a process before this one was making, of which Nova has nothing. That is nobody's failure."""
        reason = "gpuyard was ended while it was being made"
        self._give_up(runner, Cause.NOT_NEEDED, reason, unposted=runner.state is S.REQUESTED)

    def end(self, runner: Runner, cause: Cause, reason: str) -> None:
        """Whatever it does. What follows is `remove`."""
        self.write(become(runner, S.DELETING, self.tools.now(), cause, reason[:500]), reason)

    def _give_up(self, runner: Runner, cause: Cause, reason: str, *, unposted: bool = True) -> None:
        if unposted:
            with self._lock:
                self._unposted.add(runner.name)
        self.end(runner, cause, reason)

    # Ending

    def let_go(self, runner: Runner, cause: Cause, reason: str) -> None:
        """End a runner that has no job, as far as is known: GitHub decides. One that has been given a job after all is
        busy from now on."""
        tools = self.tools
        try:
            tools.registrar.remove(runner)
        except UnknownScopeError:
            pass
        except GitHubError as error:
            if error.kind is GitHubTrouble.CONFLICT:
                self.write(become(runner, S.BUSY, tools.now()), "GitHub has given it a job in the meantime")
                return
            tools.limited(runner.scope, error)
            raise
        with self._lock:
            self._removals.setdefault(runner.name, _Removal()).unregistered = True
        self.end(runner, cause, reason)

    def remove(self, runner: Runner) -> None:
        """As far as it goes now, of one that is DELETING; in the end nothing is left of it."""
        tools = self.tools
        with self._lock:
            removal = self._removals.setdefault(runner.name, _Removal())
        if not removal.unregistered:
            removal.unregistered = self._unregister(runner)
        if not runner.server_id and (found := tools.find(runner.name)):
            runner = replace(runner, server_id=found)
            tools.store.put_runner(runner)
        if runner.server_id and not removal.logged:
            removal.logged = self._keep_log(runner)
        if not self._server_gone(runner, removal):
            return
        if runner.lease:
            tools.leases.end(runner.lease, runner.reason or "its runner is gone")
            if runner.cause is Cause.GPU_CHECK:
                tools.broken(runner)
            runner = replace(runner, lease="")  # from now on it has no GPU, whatever GitHub still thinks
            words = "its server is gone and its GPU free"
            if removal.strange:
                words = f"its server {runner.server_id} has gpuyard's tags no more: it is left alone, with its GPU"
                LOG.error("runner %s: %s; delete it, or give it a booking", runner.name, words)
                runner = replace(runner, cause=Cause.NOT_OURS, reason=words)
            self.write(runner, words)
        if not removal.unregistered and tools.now() - runner.changed < FORGETFUL:
            return
        self.write(become(runner, S.GONE, tools.now()), "nothing is left of it")
        with self._lock:
            self._removals.pop(runner.name, None)
            self._unposted.discard(runner.name)

    def _unregister(self, runner: Runner) -> bool:
        """Whether GitHub has it no more. It keeps one whose server goes under its job, for some time."""
        try:
            self.tools.registrar.remove(runner)
        except UnknownScopeError as error:
            LOG.warning("runner %s: %s", runner.name, error)
        except GitHubError as error:
            if error.kind is not GitHubTrouble.CONFLICT:
                LOG.warning("runner %s stays registered for now: %s", runner.name, error)
                self.tools.limited(runner.scope, error)
            return False
        return True

    def _keep_log(self, runner: Runner) -> bool:
        try:
            text = read(self.tools.servers.console(runner.server_id)).log
        except ServerError as error:
            LOG.warning("runner %s: its log cannot be read: %s", runner.name, error)
            return error.problem is not ServerProblem.LIMITED  # the log is not worth a server that stays
        if text:
            self.tools.store.put_log(runner.name, text, self.tools.now())
        return True

    def _server_gone(self, runner: Runner, removal: _Removal) -> bool:
        """Whether Nova has no server of it, for good: its GPU is free only then. Or has one that is not ours any more:
        the ledger sees by Nova who has that GPU."""
        tools, now = self.tools, self.tools.now()
        if not runner.server_id:
            with self._lock:
                if runner.name in self._unposted:
                    return True
            looked = tools.looked()
            return looked is not None and looked - runner.changed >= tools.late
        if removal.asked is None or now - removal.asked >= AGAIN:
            tools.servers.delete(runner.server_id)
            removal.asked = now
        server = tools.servers.get(runner.server_id)
        if server is None or server.ours:
            removal.strange = None
            return server is None
        removal.strange = removal.strange or now
        return now - removal.strange >= AGAIN  # it will not be deleted by us; who waits for that waits for ever

    def write(self, runner: Runner, text: str) -> bool:
        """Down, with a line for its timeline, if there is something to say; False when it has come further already, by
        another process. What its end means for its job comes first: should we be killed between the two, it is found to
        end again."""
        if runner.state is S.DELETING and runner.cause in FAILURES and not runner.job and runner.lease:
            self.tools.failed(runner)
        job = runner.job or runner.for_job
        lines = [RunnerEvent(self.tools.now(), runner.name, job, text)] if text else []
        return self.tools.store.put_runner(runner, *lines)
