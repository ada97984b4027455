"""Makes, ends and removes one runner at GitHub and at Nova. Each call may take seconds.

The order is everything (docs/adr/0025): the intent is stored before the call, so that after a kill at any moment the
row says what to look for. Making is never continued after that, since the configuration of a runner is a secret that is
not kept: what came of it is removed, and another runner is made. Removing is done again from the start, as often as it
takes: registration, server, and only then the lease, so that a GPU is given to nobody while a server may still have it.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from gpuyard.bookings.ledger.runner_leases import Leases
from gpuyard.model.errors import UsageError
from gpuyard.openstack.servers import RunnerServers, ServerError, ServerProblem, ServerWish
from gpuyard.runners.console import Console, JobProgress, read
from gpuyard.runners.controllers.registrar import Registrar, UnknownScopeError
from gpuyard.runners.cpu_lane import has_server
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.records import Cause, Runner, RunnerEvent, RunnerState, ServerChoice
from gpuyard.runners.store import RunnerStore
from gpuyard.runners.transitions import FAILURES, become
from gpuyard.runners.user_data import UserDataError, user_data

LOG = logging.getLogger(__name__)
AGAIN = timedelta(seconds=30)
"""Pause before Nova is asked again to delete a server that it has been asked to delete."""
LATE = timedelta(seconds=20)
"""A server that Nova was asked for, and of which nothing is known, is there after this time as a rule: nova-api keeps
it (nova 34.0.0, compute/api.py, `_provision_instances`: `build_request.create()`) before it answers, and lists it from
then on. One that comes later, since nova-api hung before that while its gateway gave up, may meet another on its GPU,
which Nova then refuses; it belongs to no runner, and the sweep of runners.py deletes it."""
FORGETFUL = timedelta(minutes=30)
"""GitHub keeps a runner busy for a while when its server has gone under its job; after this time gpuyard does not wait
for that."""
READ_AGAIN = (1.0, 3.0, 9.0)
"""Pauses in seconds before what a server is made of (image, flavor, network) is read again, when that failed: it says
nothing of the runner."""
UNANSWERED = timedelta(seconds=90)
"""A runner that a booking needs is deleted without GitHub's consent after this time. With the call that is under way
then, which takes half a minute at most where GitHub says nothing at all, that makes two minutes."""

HELD_LOOKS, HELD_PAUSE_S = 40, 0.25
"""Number of checks, and seconds between them, whether what is kept back is held, before a runner is given up for
now."""
CHOSEN_LOOKS, CHOSEN_PAUSE_S = 6, 0.5
"""Number of checks, and seconds between them, which GPU Nova has chosen for a new server; later the loop of bookings
finds it."""


@dataclass
class _Removal:
    """The steps that were done about one runner that is to go. Forgotten with the process: then they are done again."""

    unregistered: bool = False
    stays: bool = False
    """It was logged that GitHub does not unregister it for now."""
    logged: bool = False
    asked: datetime | None = None
    """When Nova was asked to delete its server."""
    strange: datetime | None = None
    """When its server was first seen without our tags."""
    answered: datetime | None = None
    """Since when all cells of Nova have answered whenever they were asked."""


@dataclass(frozen=True)
class Tools:
    """The means of RunnerExecutor: stores, clients, and what it asks of and tells its controller."""

    store: RunnerStore
    leases: Leases
    servers: RunnerServers
    registrar: Registrar
    flavors: Callable[[Runner], Sequence[str]]
    """Nova's flavors for a runner on the lease that it has: one that Nova refuses is followed by the next."""
    rules: Callable[[Runner], str]
    """The rules that a runner's server checks its job against: `guest_rules`."""
    find: Callable[[str], str]
    """Id of our server with a name, by the latest list from Nova; empty when there is none."""
    looked: Callable[[], datetime | None]
    """When Nova was asked for that list."""
    broken: Callable[[Runner], None]
    """Told of each runner whose GPU did not pass its check, when it is free. May raise: then it is told again."""
    now: Callable[[], datetime]
    failed: Callable[[Runner], None] = lambda runner: None
    """Told of each runner that ends without having had a job, and through no wish of ours."""
    limited: Callable[[str, GitHubError], None] = lambda scope, error: None
    """Told when GitHub does nothing for an enrolment at the moment."""
    registered: Callable[[str], None] = lambda scope: None
    """Told of an enrolment for which GitHub has registered a runner."""
    unheld: Callable[[str], str] = lambda pool: ""
    """Why no server may be started in a pool at this moment: `HoldCheck.unheld`."""
    gpus_of: Callable[[str], tuple[str, ...]] | None = None
    """Which GPUs Nova has chosen for a server: `HoldCheck.gpus_of`. None: nobody asks at once."""
    blocked: Callable[[ServerChoice], str] = lambda choice: ""
    """Why Nova would refuse a server now, since limits are down for a booking; empty when it would not."""
    hold_group: Callable[[str], None] = lambda lease: None
    """Keeps others from the group of a lease until `lift_hold`: `GroupHolds.place`."""
    lift_hold: Callable[[str], str] = lambda lease: ""
    """Called right before Nova is asked for a server on a lease: why it may not be, else empty: `GroupHolds.lift`."""
    sleep: Callable[[float], object] = time.sleep


@dataclass
class RunnerExecutor:
    """Makes and removes runners. One runner per call, and never two calls for the same one: see WorkerPool."""

    tools: Tools
    _removals: dict[str, _Removal] = field(default_factory=dict)
    _unposted: set[str] = field(default_factory=set)
    """Runners that Nova was certainly not asked for, or has certainly refused."""
    _asked_to_forget: dict[str, datetime] = field(default_factory=dict)
    """Runners that a booking needs -> when GitHub was first asked to forget them."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    # Making

    def make(self, runner: Runner) -> None:
        """Make a runner: from REQUESTED, which is stored, to a server that Nova makes."""
        tools = self.tools
        if self._is_kept_out(runner):
            return
        if runner.lease:
            tools.hold_group(runner.lease)
        try:
            jit = tools.registrar.register(runner)
        except (GitHubError, UnknownScopeError) as error:
            if isinstance(error, GitHubError):
                tools.limited(runner.scope, error)
            self._give_up(runner, Cause.GITHUB_ERROR, f"GitHub did not register it: {error}")
            return
        tools.registered(runner.scope)
        registered = replace(become(runner, RunnerState.CREATING, tools.now()), github_id=jit.id)
        if not self.write(registered, "registered at GitHub; Nova is asked for its server"):
            LOG.warning("runner %s: another process has ended it meanwhile; Nova is not asked for it", runner.name)
            return
        try:
            text = user_data(runner.name, jit.encoded, runner.choice.gpus, tools.rules(runner))
            flavors = tools.flavors(runner)
            if self._is_kept_out(registered):  # registering has taken its time
                return
            if runner.lease and (why := tools.lift_hold(runner.lease)):
                self._give_up(registered, Cause.NO_CAPACITY, why)
                return
            server = self._create_with_one_of(flavors, registered, text)
        except (UserDataError, UsageError) as error:
            self._give_up(registered, Cause.GITHUB_ERROR, str(error))
            return
        except ServerError as error:
            if error.problem is ServerProblem.QUOTA and self._is_blocked(registered):
                return
            full = error.problem in (ServerProblem.QUOTA, ServerProblem.LIMITED, ServerProblem.UNREAD)
            cause = Cause.NO_CAPACITY if full else Cause.SERVER_ERROR
            self._give_up(registered, cause, f"Nova: {error}", unposted=error.problem is not ServerProblem.UNKNOWN)
            return
        made = replace(registered, server_id=server, changed=tools.now())
        if self.write(made, f"Nova makes server {server}") and runner.choice.gpus:
            self._learn_gpus(made)

    def _is_kept_out(self, runner: Runner) -> bool:
        """End a runner for which no server may be started now. Returns whether that was so."""
        if self._is_blocked(runner):
            return True
        why = self._not_held(runner)
        if why:
            self._give_up(runner, Cause.NO_CAPACITY, why)
        return bool(why)

    def _create_with_one_of(self, flavors: Sequence[str], runner: Runner, text: str) -> str:
        """Id of its server. A flavor that is missing, or asks for an alias that Nova does not know yet, is refused, and
        followed by the next. Raises ServerError."""
        *variants, last = flavors
        wish = ServerWish(runner.name, last, runner.choice.image, text, runner.for_job)
        for variant in variants:
            try:
                return self._create(replace(wish, flavor=variant))
            except ServerError as error:
                if error.problem is not ServerProblem.REFUSED:
                    raise
                LOG.warning(
                    "runner %s: flavor %s is refused, and another one is taken: %s", runner.name, variant, error
                )
        return self._create(wish)

    def _not_held(self, runner: Runner) -> str:
        """Return why a runner cannot be started, after a while in which a hold that is being placed comes to stand."""
        if not runner.choice.gpus:
            return ""
        why = self.tools.unheld(runner.choice.pool)
        for _ in range(HELD_LOOKS):
            if not why:
                break
            self.tools.sleep(HELD_PAUSE_S)
            why = self.tools.unheld(runner.choice.pool)
        return why

    def _learn_gpus(self, runner: Runner) -> None:
        """Write down what Nova has chosen as soon as it has: a GPU that has gone bad since it was asked is found so
        before the server has booted."""
        tools = self.tools
        if tools.gpus_of is None:
            return
        for look in range(CHOSEN_LOOKS):
            if gpus := tools.gpus_of(runner.server_id):
                self.write(replace(runner, gpus=gpus), f"Nova gave it {', '.join(gpus)}")
                return
            if look + 1 < CHOSEN_LOOKS:
                tools.sleep(CHOSEN_PAUSE_S)

    def _create(self, wish: ServerWish) -> str:
        """Id of the server. What could not be read is read again: a server is asked for once only. Raises
        ServerError."""
        for pause in READ_AGAIN:
            try:
                return self.tools.servers.create(wish)
            except ServerError as error:
                if error.problem is not ServerProblem.UNREAD:
                    raise
                LOG.info("server %s is asked for in %.0f s: %s", wish.name, pause, error)
                self.tools.sleep(pause)
        return self.tools.servers.create(wish)

    def _is_blocked(self, runner: Runner) -> bool:
        """End a runner in whose pool no server may be started now, which is nobody's failure: its job waits with that
        reason until one may. Returns whether that was so."""
        why = self.tools.blocked(runner.choice)
        if why:
            self._give_up(runner, Cause.NOT_NEEDED, f"no server can be started in pool {runner.choice.pool} now: {why}")
        return bool(why)

    def interrupted(self, runner: Runner) -> None:
        """End a runner that a process before this one was making, of which Nova has nothing. That is nobody's
        failure."""
        reason = "gpuyard was ended while it was being made"
        self._give_up(runner, Cause.NOT_NEEDED, reason, unposted=runner.state is RunnerState.REQUESTED)

    def end(self, runner: Runner, cause: Cause, reason: str) -> None:
        """Mark the runner DELETING, whatever its state; `remove` does the rest."""
        self.write(become(runner, RunnerState.DELETING, self.tools.now(), cause, reason[:500]), reason)

    def _give_up(self, runner: Runner, cause: Cause, reason: str, *, unposted: bool = True) -> None:
        if unposted:
            with self._lock:
                self._unposted.add(runner.name)
        self.end(runner, cause, reason)

    # Ending

    def let_go(self, runner: Runner, cause: Cause, reason: str) -> None:
        """Delete a runner that has no job as far as is known. GitHub is asked to forget it first, and refuses that for
        one that has been given a job in the meantime: it is BUSY from now on.

        Where GitHub does not answer, a runner that was never online goes all the same, since no job can have reached
        it, and so does one that a booking needs, after UNANSWERED; any other stays until GitHub answers. So it is where
        its console cannot be read: a booking does not wait for that either. Raises GitHubError while it stays.
        """
        tools = self.tools
        began = tools.now()
        if cause is Cause.BOOKING:
            with self._lock:
                began = self._asked_to_forget.setdefault(runner.name, began)
        forgotten = True
        try:
            tools.registrar.remove(runner)
        except UnknownScopeError:
            pass
        except GitHubError as error:
            if error.kind is GitHubTrouble.CONFLICT:
                self._has_got_a_job(runner, "GitHub has given it a job in the meantime")
                return
            tools.limited(runner.scope, error)
            overdue = cause is Cause.BOOKING and tools.now() - began >= UNANSWERED
            console = self._console(runner)
            if console is None and not overdue:
                raise
            console = console or Console()
            if console.job is JobProgress.STARTED:
                self._has_got_a_job(runner, "its console says that it has a job; GitHub does not answer")
                return
            never_online = runner.online is None and not console.online
            if not never_online and not overdue:
                raise
            LOG.warning("runner %s is deleted without GitHub's consent: %s", runner.name, error)
            forgotten = False
        with self._lock:
            self._asked_to_forget.pop(runner.name, None)
            self._removals.setdefault(runner.name, _Removal()).unregistered = forgotten
        self.end(runner, cause, reason)

    def _console(self, runner: Runner) -> Console | None:
        """Return what a runner's console says; None: it cannot be read, so it may say anything."""
        if not runner.server_id:
            return Console()
        try:
            return read(self.tools.servers.console(runner.server_id))
        except ServerError as error:
            LOG.warning("runner %s: its console cannot be read: %s", runner.name, error)
            return None

    def _has_got_a_job(self, runner: Runner, text: str) -> None:
        with self._lock:
            self._asked_to_forget.pop(runner.name, None)
        self.write(become(runner, RunnerState.BUSY, self.tools.now()), text)

    def remove(self, runner: Runner) -> None:
        """Remove a runner that is DELETING, as far as it goes now; in the end nothing is left of it."""
        tools = self.tools
        with self._lock:
            removal = self._removals.setdefault(runner.name, _Removal())
        if not removal.unregistered:
            removal.unregistered = self._unregister(runner, removal)
        if not runner.server_id and (server_id := tools.find(runner.name)):
            runner = replace(runner, server_id=server_id)
            tools.store.put_runner(runner)
        if runner.server_id and not removal.logged:
            removal.logged = self._keep_log(runner)
        if not self._server_gone(runner, removal):
            return
        if _has_room(runner):
            if runner.lease:
                tools.leases.end(runner.lease, runner.reason or "its runner is gone")
            if runner.cause is Cause.GPU_CHECK:
                tools.broken(runner)
            # From now on it takes no room, whatever GitHub still thinks.
            runner = replace(runner, lease="", ended=None if runner.choice.gpus else tools.now())
            words = "its server is gone and its GPU free" if runner.choice.gpus else "its server is gone"
            if removal.strange:
                words = f"its server {runner.server_id} has gpuyard's tags no more: it is left alone, with its GPU"
                LOG.error("runner %s: %s; delete it, or give it a booking", runner.name, words)
                runner = replace(runner, cause=Cause.NOT_OURS, reason=words)
            self.write(runner, words)
        if not removal.unregistered and tools.now() - runner.changed < FORGETFUL:
            return
        self.write(become(runner, RunnerState.GONE, tools.now()), "nothing is left of it")
        with self._lock:
            self._removals.pop(runner.name, None)
            self._asked_to_forget.pop(runner.name, None)
            self._unposted.discard(runner.name)

    def _unregister(self, runner: Runner, removal: _Removal) -> bool:
        """Remove a runner's registration. Returns whether GitHub has it no more. It keeps one whose server goes under
        its job, for some time."""
        try:
            self.tools.registrar.remove(runner)
        except UnknownScopeError as error:
            LOG.warning("runner %s: %s", runner.name, error)
        except GitHubError as error:
            if error.kind is not GitHubTrouble.CONFLICT:
                if not removal.stays:
                    LOG.warning("runner %s stays registered for now: %s", runner.name, error)
                removal.stays = True
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
        """Have Nova delete a runner's server. Returns whether Nova has it no more, for good: its GPU is free only then.
        True also for one that is not ours any more: the ledger sees by Nova who has that GPU."""
        tools, now = self.tools, self.tools.now()
        if not runner.server_id:
            with self._lock:
                if runner.name in self._unposted:
                    return True
            return self._never_made(runner, removal)
        if removal.asked is None or now - removal.asked >= AGAIN:
            tools.servers.delete(runner.server_id)
            removal.asked = now
        server = tools.servers.get(runner.server_id)
        if server is None or server.ours:
            removal.strange = None
            return server is None
        removal.strange = removal.strange or now
        return now - removal.strange >= AGAIN  # it will not be deleted by us; who waits for that waits for ever

    def _never_made(self, runner: Runner, removal: _Removal) -> bool:
        """Return whether Nova, whose answer about it was lost, has no server of that name for certain: the latest list
        is late enough, and all cells answered before it and after it."""
        tools, looked = self.tools, self.tools.looked()
        if not tools.servers.all_cells_answer():
            removal.answered = None
            return False
        removal.answered = removal.answered or tools.now()
        return looked is not None and looked >= removal.answered and looked - runner.changed >= LATE

    def write(self, runner: Runner, text: str) -> bool:
        """Store a runner, with a line for its timeline, if there is something to say; False when another process has
        taken it further already. The effect of its end on its job is stored first: after a kill between the two, it is
        found to end again."""
        if runner.state is RunnerState.DELETING and runner.cause in FAILURES and not runner.job and _has_room(runner):
            self.tools.failed(runner)
        job = runner.job or runner.for_job
        lines = [RunnerEvent(self.tools.now(), runner.name, job, text)] if text else []
        return self.tools.store.put_runner(runner, *lines)


def _has_room(runner: Runner) -> bool:
    """Return whether a runner still has its GPU, or the place of one without."""
    return bool(runner.lease) if runner.choice.gpus else has_server(runner)
