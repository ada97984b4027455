"""The loop of acceptance: starts servers on GPUs to check them, reads their consoles, and concludes.

The next step is decided in health/acceptance.py and written before it is done. So a process that is killed at any
moment is followed by one that goes on from there: a server is found by its name and our tags, a loan by the attempt's
own server, and until there is a verdict the GPU stays kept back. At the end the GPU gets its state before the loan
ends, or else somebody could have a GPU that has failed.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from secrets import token_hex

from gpuyard.bookings.controllers.bookings import CloudObservation
from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.acceptance import (
    ENDING,
    LATE,
    OPEN,
    Try,
    TryObservation,
    TryState,
    ended,
    judged,
    next_attempts,
    waited,
    with_outcome,
)
from gpuyard.health.acceptance_guest import AcceptanceOutput, accept_data, read_console
from gpuyard.health.acceptance_limits import first_facts, held_against
from gpuyard.health.baseline import Facts, confirmed, facts_words, renewed
from gpuyard.health.controllers.acceptance_service import AcceptanceService
from gpuyard.health.controllers.health_service import TRIES, HealthService
from gpuyard.health.life import become
from gpuyard.health.records import GpuHealth, HealthEvent, HealthState
from gpuyard.health.store.tries import TryStore
from gpuyard.model.booking import Booking, BookingState, Person
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.gpu import Gpu, provider_name
from gpuyard.model.signals import Source
from gpuyard.nova.server_states import UNKNOWN, SeenServer
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.guarded_servers import GuardedServers
from gpuyard.openstack.servers import (
    NovaServers,
    RunnerServers,
    ServerError,
    ServerProblem,
    ServerWish,
    open_servers_project,
)
from gpuyard.openstack.silent_cells import all_cells_answer
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import FlavorObject

LOG = logging.getLogger(__name__)
TAG = "gpuyard-accept"
"""Of our servers that accept GPUs."""
FAILED = "acceptance"
"""The signal."""
SOON = 2.0
"""Seconds between looks while something is tried."""
COMMENT = "it is accepted"
PASSING = frozenset({HealthState.IN_USE, HealthState.RETURNED, HealthState.SCRUBBING, HealthState.CHECKED})
"""States of a GPU that has, or had, a server: it will be free."""
IDENTITY = "acceptance.yard"
"""The store's key of the value that tells our servers from those of another gpuyard with a site of the same name."""


class AcceptanceError(GpuyardError):
    """A run of the loop left something undone; the message says what. It is tried again."""


@dataclass(frozen=True)
class AcceptancePorts:
    """The interfaces that the loop works with."""

    servers: RunnerServers
    project_id: str
    observation: Callable[[], CloudObservation | None]
    """The cloud as the loop of bookings saw it last."""


class AcceptanceController:
    """The loop of one site. One run at a time; of several processes on one database the leader of bookings runs it."""

    def __init__(
        self, compiled: CompiledSite, service: HealthService, tries: TryStore, ledger: Ledger,
        open_ports: Callable[[], AcceptancePorts], now: Callable[[], datetime],
    ) -> None:  # fmt: skip
        """Made for a site that has `health.acceptance.project`. `open_ports` opens the interfaces when they are needed
        for the first time, and may raise UsageError: then nothing can be accepted, and all else goes on."""
        rules = service.rules.acceptance
        assert rules is not None
        assert rules.project is not None
        assert rules.image is not None
        self._within, self._project, self._image = rules.within, rules.project, rules.image
        self._service, self._tries, self._ledger, self._now = service, tries, ledger, now
        self._open = open_ports
        self._opened: AcceptancePorts | None = None
        self._flavors = compiled.flavors
        self._gpus: Mapping[tuple[str, str], Gpu] = {(gpu.host, gpu.address): gpu for gpu in compiled.gpus}
        self._swept = False
        self._complete = False
        """No cell of Nova was silent before or after our servers were listed."""

    def run(self) -> float | None:
        """Move every open attempt on, and begin those that `next_attempts` picks. Returns the seconds until the next
        run is due; None: the period is soon enough."""
        if not self._ledger.upkeep.leadership.is_leader(BOOKINGS):
            return None
        tries = self._tries.open()
        if not tries and (self._swept or not self._tries.counts()):
            return None
        try:
            ours = self._list_ours(tries)
        except UsageError as error:
            self._give_up(tries, str(error))
            raise AcceptanceError(str(error)) from None
        self._sweep(ours, tries)
        problems: list[str] = []
        loans = {loan.id: loan for loan in self._ledger.loans.current()}
        for attempt in tries:
            if attempt.state in OPEN and attempt.state is not TryState.WAITING:
                try:
                    self._go_on(attempt, ours, loans)
                except ServerError as error:
                    problems.append(f"acceptance of {attempt.gpu}: {error}")
        waiting = self._tries.open()
        held = self._held(waiting)
        go, skipped = next_attempts(waiting, self._now(), held)
        for attempt in skipped:
            self._write(attempt)
            self._note(attempt, attempt.cause)
        for attempt in go:
            if attempt.id in held:
                self._wait(attempt, held[attempt.id])
            else:
                self._lend(attempt)
        if problems:
            raise AcceptanceError("; ".join(problems))
        return SOON if any(attempt.state in OPEN for attempt in tries) else None

    def _sweep(self, ours: Sequence[SeenServer], tries: Sequence[Try]) -> None:
        """Delete servers of ours that no open try is for: Nova made them after all."""
        names = {attempt.name for attempt in tries if attempt.state in OPEN}
        for server in ours:
            if server.name not in names:
                LOG.info("server %s of an acceptance that is over is deleted", server.name)
                self._ports.servers.delete(server.id)
        self._swept = self._complete

    def _list_ours(self, tries: Sequence[Try]) -> list[SeenServer]:
        """Our servers, and in `_complete` whether those are all. That is asked for only where it matters: of a server
        whose create's answer was lost the list alone can say that there is none."""
        servers = self._ports.servers
        matters = not self._swept or any(_is_posted(attempt) and not attempt.server for attempt in tries)
        answered = not matters or servers.all_cells_answer()
        ours = servers.ours()
        self._complete = answered and (not matters or servers.all_cells_answer())
        return ours

    @property
    def _ports(self) -> AcceptancePorts:
        """Raises UsageError."""
        if self._opened is None:
            self._opened = self._open()
        return self._opened

    def _give_up(self, tries: Sequence[Try], why: str) -> None:
        """Those that have not begun."""
        for attempt in tries:
            if attempt.state is TryState.WAITING:
                self._finish(with_outcome(attempt, TryState.GIVEN_UP, why, self._now()))

    # One try, step by step

    def _wait(self, attempt: Try, why: str) -> None:
        """For a GPU that is not free yet, as long as a server is waited for."""
        after = waited(attempt, why, self._within, self._now().replace(microsecond=0))
        if after.state is not TryState.WAITING:
            self._finish(after)
        elif after != attempt:
            self._write(after)

    def _lend(self, attempt: Try) -> None:
        now = self._now().replace(microsecond=0)
        if why := self._cannot(attempt):
            self._finish(with_outcome(attempt, TryState.GIVEN_UP, why, now))
            return
        if not self._write(replace(attempt, state=TryState.LENT, since=now, cause="")):
            return
        self._borrow(self._again(attempt))

    def _borrow(self, attempt: Try) -> None:
        """Done twice it is the same loan."""
        who = Person(attempt.by_id, attempt.by, "", "")
        until = attempt.since + 2 * self._within + ENDING
        try:
            loan = self._ledger.loans.lend(
                attempt.gpu, self._ports.project_id, self._project, until, COMMENT, who, server=attempt.name
            )
        except RefusedError as refused:
            self._finish(with_outcome(attempt, TryState.GIVEN_UP, str(refused), self._now()))
            return
        gpus = [self._service.gpu(name) for name in attempt.names]
        for gpu in gpus:
            if gpu.state is HealthState.FINE:
                self._become(gpu, HealthState.TO_ACCEPT, "it is to be accepted", by=attempt.by)
            else:
                self._note_gpu(gpu, "a server is started on it to accept it", attempt.by)
        # The last step: without it all of this is done again.
        self._write(replace(attempt, loan=loan.id, fine=all(gpu.state is HealthState.FINE for gpu in gpus)))

    def _held(self, tries: Sequence[Try]) -> dict[str, str]:
        """Ids of tries that wait and whose GPUs are not all free: each with the server that is waited for, or with what
        is between two tenants."""
        waiting = [attempt for attempt in tries if attempt.state is TryState.WAITING]
        gpus = {gpu.name: gpu for gpu in self._service.store.gpus()} if waiting else {}
        return {
            attempt.id: why
            for attempt in waiting
            if (why := self._why_held(gpus[name] for name in attempt.names if name in gpus))
        }

    def _why_held(self, gpus: Iterable[GpuHealth]) -> str:
        observation = self._ports.observation()
        for gpu in gpus:
            holder = (
                observation.snapshot.holders.get(provider_name(gpu.host, gpu.address))
                if observation is not None
                else None
            )
            if observation is not None and holder is not None:
                server = observation.snapshot.servers.get(holder)
                name = server.name if server is not None else ""
                return f"server {name or holder} has {gpu.name}"
            if gpu.state in PASSING:
                return f"{gpu.name} is {gpu.state.value}: {gpu.cause}"
        return ""

    def _cannot(self, attempt: Try) -> str:
        """Why no server can be started on it; empty when one can."""
        if left := self._left(attempt):
            return left
        if self._flavor(attempt) is None:
            what = f"a whole group of {len(attempt.gpus)} GPUs" if len(attempt.gpus) > 1 else "one GPU"
            return f"the site has no flavor with {what} of pool {attempt.pool}"
        observation = self._ports.observation()
        if observation is None:
            return ""
        for address in attempt.gpus:
            name = provider_name(attempt.host, address)
            if name not in observation.snapshot.providers:
                return f"Placement does not have {attempt.host}/{address}: 'gpuyard gpu list' says why"
            if name in observation.snapshot.left_behind:
                return f"a server that was evacuated still counts for {attempt.host}/{address}"
            if name in observation.snapshot.reserved and name not in observation.ours:
                return (
                    f"{attempt.host}/{address} is reserved in Placement by somebody else; where Nova keeps it after a "
                    "use, its host scrubs it first: ask again when it is to be accepted once more"
                )
        return ""

    def _go_on(self, attempt: Try, ours: Sequence[SeenServer], loans: Mapping[str, Booking]) -> None:
        if attempt.state is TryState.LENT and not attempt.loan:  # killed between the two
            if left := self._left(attempt):
                self._finish(with_outcome(attempt, TryState.GIVEN_UP, left, self._now()))
            else:
                self._borrow(attempt)
            return
        if attempt.state is TryState.DELETING:
            self._delete(attempt, ours)
            return
        server = next(
            (candidate for candidate in ours if candidate.id == attempt.server or candidate.name == attempt.name), None
        )
        observed = self._observed(attempt, server, loans.get(attempt.loan))
        now = self._now()
        after = judged(attempt, observed, self._within, now)
        if server is not None and not attempt.server:
            after = replace(after, server=server.id)
        if after.state is TryState.LENT and observed.usable:
            self._create(after)
            return
        if after != attempt and self._write(after) and after.state is TryState.DELETING:
            LOG.info("acceptance of %s: %s: %s", attempt.gpu, after.outcome, after.cause)
            self._delete(self._again(after), ours)

    def _observed(self, attempt: Try, server: SeenServer | None, loan: Booking | None) -> TryObservation:
        on = loan is not None and loan.state is BookingState.ACTIVE
        claimed = loan is not None and loan.claimed is not None
        output = AcceptanceOutput()
        alone = self._ports.servers.get(attempt.server) if server is None and attempt.server else None
        silent = alone is not None and alone.status == UNKNOWN
        if attempt.state is TryState.RUNNING and server is not None:
            output = read_console(self._ports.servers.console(server.id), attempt.nonce, len(attempt.gpus))
        return TryObservation(
            lent=on,
            usable=loan is not None and loan.usable_since is not None,
            claimed=claimed,
            spoiled=self._spoiled(attempt),
            status=server.status if server else UNKNOWN if silent else "",
            fault=server.fault if server else "",
            gone=server is None and alone is None and (bool(attempt.server) or self._complete),
            output=output,
            against=held_against(output, [gpu.baseline for gpu in self._known(attempt)], fresh=attempt.fresh),
        )

    def _left(self, attempt: Try) -> str:
        """Which of its GPUs the site does not have any more, in words; empty: none."""
        known_names = {gpu.name for gpu in self._known(attempt) if (gpu.host, gpu.address) in self._gpus}
        return next((f"{name} has left the site file" for name in attempt.names if name not in known_names), "")

    def _known(self, attempt: Try) -> list[GpuHealth]:
        """Its GPUs, but those that have left."""
        return [gpu for gpu in self._service.store.gpus(host=attempt.host) if gpu.name in attempt.names]

    def _spoiled(self, attempt: Try) -> str:
        if left := self._left(attempt):
            return left
        for name in attempt.names:
            gpu = self._service.gpu(name)
            if gpu.state is not HealthState.TO_ACCEPT:
                return f"{name} became {gpu.state.value} meanwhile: {gpu.cause}"
        return ""

    def _create(self, attempt: Try) -> None:
        now, flavor = self._now().replace(microsecond=0), self._flavor(attempt)
        ids = {self._gpus[attempt.host, address].ids for address in attempt.gpus}
        creating = replace(attempt, state=TryState.CREATING, since=now, deadline=now + self._within)
        if flavor is None or not self._write(creating):
            return
        creating = self._again(creating)
        try:
            data = accept_data(attempt.nonce, len(attempt.gpus), ids)
            wish = ServerWish(attempt.name, flavor.name, self._image, data, host=attempt.host)
            server = self._ports.servers.create(wish)
        except ServerError as error:
            if error.problem is ServerProblem.UNREAD:  # nothing was asked for: the next look does it
                self._write(replace(creating, state=attempt.state, since=attempt.since, deadline=attempt.deadline))
            elif error.problem is not ServerProblem.UNKNOWN:
                self._finish(with_outcome(creating, TryState.GIVEN_UP, f"Nova: {error}", now))
            return
        self._write(replace(creating, server=server))

    def _delete(self, attempt: Try, ours: Sequence[SeenServer]) -> None:
        """Until Nova has it no more; then the verdict counts."""
        servers = self._ports.servers
        server_ids = {server.id for server in ours if server.name == attempt.name} | ({attempt.server} - {""})
        left = [id for id in sorted(server_ids) if servers.get(id) is not None]
        for id in left:
            servers.delete(id)
        if not left and _is_posted(attempt) and not attempt.server and not self._complete:
            return  # it may be in a cell of Nova that does not answer
        if not left and (not self._seems_taken(attempt) or self._now() - attempt.since > LATE):
            self._finish(attempt)

    def _seems_taken(self, attempt: Try) -> bool:
        """Return whether the last look at the cloud still had a server on it: a GPU that is given out then would be
        told to be in use, and its server to be there without a loan."""
        observation = self._ports.observation()
        holders = observation.snapshot.holders if observation is not None else {}
        return any(provider_name(attempt.host, address) in holders for address in attempt.gpus)

    def _finish(self, attempt: Try) -> None:
        """The GPUs become what the verdict says, before anybody else can have them; then the loan ends."""
        for gpu in self._known(attempt):
            self._conclude(gpu, attempt)
        if attempt.loan:
            self._ledger.loans.end(attempt.loan, f"its acceptance: {attempt.outcome}", attempt.by)
        if self._write(ended(attempt, self._now())):
            self._service.wake(f"{attempt.gpu} was to be accepted: {attempt.outcome}")

    def _conclude(self, gpu: GpuHealth, attempt: Try) -> None:
        waits = gpu.state is HealthState.TO_ACCEPT
        passed = attempt.outcome is TryState.PASSED and gpu.state is HealthState.FINE
        failed = attempt.outcome is TryState.FAILED and gpu.state is HealthState.QUARANTINED and gpu.signal == FAILED
        if passed or failed:
            return  # by a process that was killed before it could write that the try is over
        if attempt.outcome is TryState.PASSED and waits:
            software = replace(self._service.software(gpu.host), driver=attempt.driver)
            facts = self._facts(gpu, attempt)
            judge = renewed if attempt.fresh else confirmed
            baseline = judge(None if attempt.fresh else gpu.baseline, facts, gpu.card, attempt.by, self._now())
            accepted = replace(gpu, accepted=self._now(), software=software, baseline=baseline)
            text = "a server on it found nothing wrong"
            if baseline is not None and baseline != gpu.baseline:
                text += f"; its baseline is {facts_words(baseline.facts)}"
            self._become(accepted, HealthState.FINE, text, attempt.cause)
        elif attempt.outcome is TryState.FAILED and waits:
            self._become(gpu, HealthState.QUARANTINED, "its acceptance failed", attempt.cause, signal=FAILED)
        elif attempt.fine and waits:
            self._become(
                gpu,
                HealthState.FINE,
                f"nothing came of its acceptance, and it is as before: {attempt.cause}",
                by=attempt.by,
            )
        else:
            self._note_gpu(gpu, f"it could not be accepted: {attempt.cause}", attempt.by)

    def _facts(self, gpu: GpuHealth, attempt: Try) -> Facts:
        """What it showed, to become its baseline. Of several GPUs a server cannot say which is which: what their host
        says goes first."""
        shown = gpu.shown if attempt.fresh else first_facts(gpu.shown, self._service.link(gpu), gpu.baseline)
        return {**shown, **attempt.facts} if len(attempt.gpus) == 1 else {**attempt.facts, **shown}

    # How

    def _flavor(self, attempt: Try) -> FlavorObject | None:
        """The smallest that takes the whole slot; one that everybody sees before others."""
        whole = len(attempt.gpus) > 1
        letter = self._gpus[attempt.host, attempt.gpus[0]].set_letter
        able = [
            flavor
            for flavor in self._flavors
            if flavor.pool == attempt.pool
            and not flavor.variant_of
            and flavor.gpus == len(attempt.gpus)
            and (flavor.set_letter == letter if whole else True)
        ]
        return min(able, key=lambda flavor: (not flavor.public, flavor.ram, flavor.vcpus, flavor.name), default=None)

    def _write(self, attempt: Try) -> bool:
        return self._tries.put(attempt)

    def _again(self, attempt: Try) -> Try:
        """As it was just written."""
        return next(stored for stored in self._tries.batch(attempt.batch) if stored.id == attempt.id)

    def _become(
        self, gpu: GpuHealth, to: HealthState, cause: str, evidence: str = "", by: str = "", signal: str = ""
    ) -> None:
        for _ in range(TRIES):
            new, event = become(
                replace(gpu, asked=False, until=None), to, self._now(), cause, signal=signal, evidence=evidence, by=by,
                source=Source.PERSON if by else Source.GUEST,
            )  # fmt: skip
            if self._service.store.put(new, event):
                self._service.wake(f"GPU {gpu.name} is {to.value}")
                return
            now = self._service.gpu(gpu.name)
            if now.state is not gpu.state:
                return
            gpu = replace(gpu, version=now.version)

    def _note(self, attempt: Try, text: str) -> None:
        for gpu in self._known(attempt):
            self._note_gpu(gpu, text, attempt.by)

    def _note_gpu(self, gpu: GpuHealth, text: str, by: str) -> None:
        event = HealthEvent(
            gpu.host, gpu.address, gpu.card, self._now(), gpu.state, gpu.state, text, by=by, source=Source.PERSON
        )
        self._service.store.note(event)


def _is_posted(attempt: Try) -> bool:
    """Return whether Nova was asked for its server, or is about to be."""
    return attempt.deadline is not None


def acceptance_loop(controller: AcceptanceController, period: float) -> Loop:
    """A loop named ``acceptance`` that runs every `period` seconds, and at once when it is woken."""
    return Loop(
        "acceptance", "Starts servers on GPUs that are to be accepted, and reads what they say.", period, controller.run
    )


@dataclass(frozen=True)
class OpenedAcceptance:
    """The parts of acceptance that the serving process runs."""

    service: AcceptanceService
    controller: AcceptanceController


def open_acceptance(
    compiled: CompiledSite,
    api: CloudApi,
    service: HealthService,
    ledger: Ledger,
    observation: Callable[[], CloudObservation | None],
    now: Callable[[], datetime],
) -> OpenedAcceptance | None:
    """Return the service and the controller; None for a site without a project for acceptance."""
    rules = service.rules.acceptance
    if rules is None or rules.project is None:
        return None
    project, network = rules.project, rules.network
    identity = service.store.value(IDENTITY)
    if not identity:
        identity = token_hex(8)
        service.store.set_value(IDENTITY, identity)

    def open_ports() -> AcceptancePorts:
        project_api, project_id = open_servers_project(api, project, key="health.acceptance")
        servers = NovaServers(
            project_api,
            compiled.site.site,
            network,
            identity=identity,
            tag=TAG,
            cells_answer=lambda: all_cells_answer(api),
        )
        return AcceptancePorts(GuardedServers(servers), project_id, observation)

    tries = TryStore(ledger.database)
    controller = AcceptanceController(compiled, service, tries, ledger, open_ports, now)
    return OpenedAcceptance(AcceptanceService(service.store, tries, ledger, now), controller)
