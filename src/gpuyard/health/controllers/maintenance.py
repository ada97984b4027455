"""Plans maintenances of hosts for people, and runs the loop that brings them from the plan to the end.

One row in the store has the state of a maintenance, and that is what keeps the host's GPUs back, as a state of health
does: the booking loop reads it at each run. The ledger's holds are made of it again and again, so that a kill between
any two steps loses nothing: the next run restores what is not as the row says.

The same goes for the host's nova-compute, which is disabled while the host is drained and worked on. Its reason in Nova
is all that is written down (`openstack/disabled_reason.py`). So a service that carries the tag of a maintenance is
enabled as soon as no maintenance wants it disabled, whoever was killed meanwhile; one that an operator or a drain has
disabled keeps its reason, and they enable it.

Work begins only after these, in this order: nova-compute is seen to be disabled; SETTLED later all that was scheduled
before has its allocations in Placement; the cloud, asked once more, has no server on the host or on its way to it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Protocol
from uuid import uuid4

from gpuyard.bookings.ledger.closing import Closing, ClosingForecast
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.controllers.health_service import WORDS, HealthService
from gpuyard.health.host_reports import LookRefusedError, look_of
from gpuyard.health.maintenance import (
    HostNow,
    Maintenance,
    MaintenanceError,
    MaintenanceState,
    next_step,
    refuse_times,
    software_of,
    transition,
)
from gpuyard.health.planner import is_required
from gpuyard.health.records import HealthEvent, HostContact
from gpuyard.model.booking import Booking, Person
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.gpu import Claim, Gpu, provider_name
from gpuyard.model.host_report import HostReport
from gpuyard.model.moments import minute_text
from gpuyard.model.signals import SIGNALS, Judgement, Source
from gpuyard.openstack.disabled_reason import Purpose, tag_of
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS

if TYPE_CHECKING:
    from gpuyard.bookings.controllers.bookings import CloudObservation
    from gpuyard.openstack.rows import ServerRow

LOG = logging.getLogger(__name__)
TRIES = 20
"""Somebody else may write the same one at the same moment, so often at most."""
STEPS = 6
"""Most steps that follow from each other in one look."""
OLD = timedelta(minutes=1)
"""The age up to which a snapshot of the cloud is taken for the present."""
SETTLED = 5.0
"""Seconds, by a clock that does not jump, for which Nova's scheduler may still place a server on a host that it looked
at before the host was closed."""
MOST_NAMED = 1000
"""Servers of one host that may go down."""
NAMED = 5
"""So many of them are in a line of a record."""
UNKNOWN = "what OpenStack has is not known at the moment"


class NoSuchMaintenanceError(GpuyardError):
    """There is no maintenance with this id."""


class NoSuchHostError(GpuyardError):
    """The site has no GPUs on this host."""


class HostCloud(Protocol):
    """The interface to Nova and Placement for hosts: `openstack/host_maintenance.py`. Methods raise GpuyardError."""

    def close(self, host: str) -> None:
        """Keep new servers away, unless the host is closed already."""

    def open(self, host: str) -> None:
        """Undo `close`; what others have closed stays so."""

    def servers(self, host: str, provider: str) -> Mapping[str, ServerRow]:
        """Return all servers that a reboot would disturb, by id: on the host, keeping a place there, or on their way to
        it."""


@dataclass(frozen=True)
class MaintenanceView:
    """A maintenance with the servers and bookings that are in its way."""

    maintenance: Maintenance
    gpus: int
    """Of its host."""
    servers: tuple[Claim, ...] | None
    """All that are there now, with GPUs or without; None: it is not known which."""
    bookings: tuple[Booking, ...]
    """And leases, that keep a GPU there in its time: they have begun, or cannot be elsewhere."""


@dataclass(frozen=True)
class MaintenanceForecast:
    """The servers and bookings that a maintenance of a host would affect."""

    servers: tuple[Claim, ...] | None
    """All that are there now; None: it is not known which."""
    bookings: ClosingForecast


class MaintenanceService:
    """Plans and runs maintenances. Safe to use from several threads, and from several processes on one database.
    Methods that change one raise MaintenanceError when that cannot be, and NoSuchMaintenanceError."""

    def __init__(
        self,
        service: HealthService,
        ledger: Ledger,
        gpus: Sequence[Gpu],
        observation: Callable[[], CloudObservation | None],
        cloud: HostCloud,
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        """`gpus`: all of the site. `observation` returns the cloud as it was seen last."""
        self._health, self._health_store, self._store = service, service.store, service.maintenances
        self._ledger, self._latest_observation, self._cloud, self._new_id = ledger, observation, cloud, new_id
        self._closed: dict[str, float] = {}
        """Host -> `CloudObservation.began` when it was first seen to be closed; a new process waits anew."""
        self._gpus: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if not gpu.blocked:
                self._gpus.setdefault(gpu.host, []).append(gpu)
        self._stale = frozenset(
            code
            for code, signal in SIGNALS.items()
            if signal.judgement is Judgement.STALE and is_required(code, service.rules)
        )

    @property
    def now(self) -> datetime:
        """The time in whole seconds, as records have it."""
        return self._health.now().replace(microsecond=0)

    # What people do

    def plan(
        self, host: str, start: datetime, until: datetime, why: str, person: Person, may_go_down: Sequence[str] = ()
    ) -> Maintenance:
        """Plan one: from then on nothing new is booked there in its time. `may_go_down`: as in `allow`. Raises
        NoSuchHostError too."""
        now = self.now
        start, until = self._times(host, start, until, now)
        maintenance = Maintenance(
            self._new_id(), host, start, until, why.strip()[:WORDS], person.user, MaintenanceState.PLANNED, now, now,
            may_go_down=tuple(sorted(set(may_go_down))), due=until,
        )  # fmt: skip
        text = f"{maintenance.title} is planned from {minute_text(start)} to {minute_text(until)}"
        if not self._store.put(maintenance, *self._lines(maintenance, text, person)):
            existing = next((m for m in self._store.open() if m.host == host), None)
            when = (
                f", from {minute_text(existing.start)} to {minute_text(existing.until)}: {existing.why}"
                if existing
                else ""
            )
            raise MaintenanceError(f"host {host} has a maintenance already{when}; end or cancel that one first")
        return self._said(maintenance.id, "maintenance.plan", text, person)

    def start(self, id: str, words: str, person: Person) -> Maintenance:
        """Begin it before its time, or work on the host again that is being checked."""

        def change(maintenance: Maintenance) -> Maintenance:
            again = maintenance.state is MaintenanceState.CHECKING
            software = maintenance.software if again else software_of(self._look(maintenance.host)[1])
            return replace(transition(maintenance, MaintenanceState.DRAINING, self.now), software=software)

        return self._change(id, change, "it begins", words, person, "maintenance.start")

    def done(self, id: str, words: str, person: Person, *, unchecked: bool = False) -> Maintenance:
        """Say that the work is done: the host is checked, and given back when it is well. `unchecked`: at once,
        `person` answers for it."""

        def change(maintenance: Maintenance) -> Maintenance:
            if unchecked:
                return replace(
                    transition(maintenance, MaintenanceState.BACK, self.now),
                    done=maintenance.done or self.now,
                    done_by=person.user,
                )
            if maintenance.state is MaintenanceState.DRAINING and maintenance.done is None:
                raise MaintenanceError(
                    f"no work has begun on {maintenance.host}, which is still drained: if none is needed, say 'gpuyard "
                    f"host maintenance cancel {maintenance.host}'; to begin although servers are there, name them: "
                    f"'gpuyard host maintenance allow {maintenance.host}'"
                )
            if maintenance.state is MaintenanceState.CHECKING:  # look again
                return replace(maintenance, since=self.now, done=self.now, done_by=person.user, problems=())
            return replace(
                transition(maintenance, MaintenanceState.CHECKING, self.now), done=self.now, done_by=person.user
            )

        text = "the host is given back without a check" if unchecked else "the work is done, and the host is checked"
        return self._change(id, change, text, words, person, "maintenance.done")

    def allow(self, id: str, servers: Sequence[str], words: str, person: Person) -> Maintenance:
        """Let work begin although these servers are on the host; `servers` has their ids. A server that is not named
        keeps it from beginning, whatever its status: one that is off or shelved has its disks there."""

        def change(maintenance: Maintenance) -> Maintenance:
            if maintenance.state not in (MaintenanceState.PLANNED, MaintenanceState.DRAINING, MaintenanceState.IN_WORK):
                raise MaintenanceError(
                    f"the maintenance of {maintenance.host} is {maintenance.state.value}: no work is to begin there"
                )
            named = tuple(sorted({*maintenance.may_go_down, *servers}))
            if len(named) > MOST_NAMED:
                raise MaintenanceError(
                    f"more than {MOST_NAMED} servers of {maintenance.host} are named: no host has as many"
                )
            return replace(maintenance, may_go_down=named)

        more = f" and {len(servers) - NAMED} more" if len(servers) > NAMED else ""
        text = f"servers that may go down with it: {', '.join(servers[:NAMED])}{more}"
        return self._change(id, change, text, words, person, "maintenance.allow")

    def cancel(self, id: str, words: str, person: Person) -> Maintenance:
        """End one that is not needed: it is planned, or drained and nobody has worked on the host yet."""

        def change(maintenance: Maintenance) -> Maintenance:
            if maintenance.state in (MaintenanceState.IN_WORK, MaintenanceState.CHECKING) or (
                maintenance.open and maintenance.done
            ):
                raise MaintenanceError(
                    f"somebody works on {maintenance.host}: say 'gpuyard host maintenance done {maintenance.host}', "
                    "and it is checked"
                )
            return transition(maintenance, MaintenanceState.CANCELLED, self.now)

        return self._change(id, change, "it is cancelled", words, person, "maintenance.cancel")

    def extend(self, id: str, until: datetime, words: str, person: Person) -> Maintenance:
        """Move the time when the host is expected back, later or earlier."""

        def change(maintenance: Maintenance) -> Maintenance:
            if not maintenance.open:
                raise MaintenanceError(f"the maintenance of {maintenance.host} is {maintenance.state.value}")
            refuse_times(maintenance.start, until, self.now)
            return replace(maintenance, until=until.replace(microsecond=0), due=until.replace(microsecond=0))

        text = f"it takes until {minute_text(until)}"
        return self._change(id, change, text, words, person, "maintenance.extend")

    def _times(self, host: str, start: datetime, until: datetime, now: datetime) -> tuple[datetime, datetime]:
        """As they are kept. Raises NoSuchHostError, MaintenanceError."""
        if host not in self._gpus:
            known_hosts = ", ".join(sorted(self._gpus))
            raise NoSuchHostError(f"there is no host {host!r} with GPUs of the site; there are {known_hosts}")
        start, until = max(start, now).replace(microsecond=0), until.replace(microsecond=0)
        refuse_times(start, until, now)
        return start, until

    # What is shown

    def forecast(self, host: str, start: datetime, until: datetime) -> MaintenanceForecast:
        """Return what planning one would mean; nothing is changed. Raises NoSuchHostError, MaintenanceError."""
        start, until = self._times(host, start, until, self.now)
        would = self._ledger.closings.forecast(Closing("forecast", host, start, until, "", ""))
        return MaintenanceForecast(self._servers(host), would)

    def view(self, id: str) -> MaintenanceView:
        return self._views([self._get(id)])[0]

    def views(self, host: str = "", *, past: bool = False) -> list[MaintenanceView]:
        """Return those that are not over, by start; `past`: and then those that are, the newest first."""
        maintenances = [maintenance for maintenance in self._store.open() if host in ("", maintenance.host)]
        return self._views([*maintenances, *(self._store.past(host) if past else ())])

    def _views(self, maintenances: Iterable[Maintenance]) -> list[MaintenanceView]:
        return [
            MaintenanceView(
                maintenance,
                len(self._gpus.get(maintenance.host, ())),
                self._servers(maintenance.host) if maintenance.open else (),
                tuple(self._ledger.closings.in_the_way(_closing(maintenance))) if maintenance.open else (),
            )
            for maintenance in maintenances
        ]

    def _servers(self, host: str) -> tuple[Claim, ...] | None:
        """All servers of a host by name, and whoever else has a GPU there, as the cloud was seen last. None: it was not
        seen lately, or not all of it."""
        observation = self._fresh()
        if observation is None or observation.snapshot.residents is None or host in observation.snapshot.silent_hosts:
            return None
        names = {provider_name(gpu.host, gpu.address) for gpu in self._gpus.get(host, ())}
        servers = {server.id: server for server in observation.snapshot.residents.get(host, ())}
        for name, id in observation.snapshot.holders.items():
            if name in names and id in observation.snapshot.servers:
                servers.setdefault(id, observation.snapshot.servers[id])
        strangers = {id for name, id in observation.snapshot.holders.items() if name in names} - servers.keys()
        claims = [
            *(Claim(server.id, server.name, server.status, server.project, server.user) for server in servers.values()),
            *(Claim(id, id, "", "", "") for id in strangers),
        ]
        return tuple(sorted(claims, key=lambda claim: (claim.server_name, claim.server_id)))

    def _fresh(self) -> CloudObservation | None:
        """What was seen of the cloud, if that was lately."""
        observation = self._latest_observation()
        return observation if observation is not None and self.now - observation.snapshot.taken_at <= OLD else None

    # The loop

    def run(self) -> None:
        """Take the steps that are due, and end the holds of those that are over. Of several processes the leader of
        bookings does it. Raises StoreError, LedgerError."""
        if not self._ledger.upkeep.leadership.is_leader(BOOKINGS):
            return
        for maintenance in (*self._store.open(), *self._store.with_holds()):
            self._keep(maintenance.id, self._close(maintenance))
        self._open_others()

    def _close(self, maintenance: Maintenance) -> tuple[str, ...] | None:
        """Have its nova-compute disabled, if it is to be. Returns why work on the host cannot begin yet, beside the
        servers that are seen there; None: that is not asked in this state."""
        if maintenance.state not in (MaintenanceState.DRAINING, MaintenanceState.IN_WORK):
            return None
        observation = self._fresh()
        service = observation.snapshot.services.get(maintenance.host) if observation else None
        if observation is None or service is None:
            self._closed.pop(maintenance.host, None)
            return (UNKNOWN if observation is None else f"nova-compute on {maintenance.host} is not known to Nova",)
        if service.silent:
            self._closed.pop(maintenance.host, None)
            return (service.unheard,)
        if not service.enabled:
            return self._since_closed(maintenance, observation)
        self._closed.pop(maintenance.host, None)
        try:
            self._cloud.close(maintenance.host)
        except GpuyardError as error:
            return (f"nova-compute on {maintenance.host} is to be disabled: {error}",)
        return (f"nova-compute on {maintenance.host} is being disabled",)

    def _since_closed(self, maintenance: Maintenance, observation: CloudObservation) -> tuple[str, ...]:
        """As `_close`, of a host that is closed: what the cloud itself says, once all else is so."""
        since = self._closed.setdefault(maintenance.host, observation.began)
        if observation.began - since < SETTLED:
            return (f"nova-compute on {maintenance.host} was disabled a moment ago",)
        servers = self._servers(maintenance.host)
        if (
            maintenance.state is not MaintenanceState.DRAINING
            or servers is None
            or any(id not in maintenance.may_go_down for id in _ids(servers))
        ):
            return ()
        host = observation.snapshot.providers.get(maintenance.host)
        if host is None:
            return (f"Placement does not know {maintenance.host}",)
        try:
            rows_by_id = self._cloud.servers(maintenance.host, host.id)
        except GpuyardError as error:
            return (str(error),)
        return tuple(
            f"server {row.name} ({row.id}) is there or on its way: {row.status}{f', {row.task}' if row.task else ''}"
            for id, row in sorted(rows_by_id.items())
            if id not in maintenance.may_go_down
        )

    def _open_others(self) -> None:
        """Have hosts used again that a maintenance has closed and that none keeps closed: it is over or being checked,
        or a killed process has left it so."""
        observation = self._fresh()
        closed_hosts = {
            maintenance.host
            for maintenance in self._store.open()
            if maintenance.state in (MaintenanceState.DRAINING, MaintenanceState.IN_WORK)
        }
        for host in self._gpus.keys() - closed_hosts:
            self._closed.pop(host, None)
            service = observation.snapshot.services.get(host) if observation else None
            if service is None or service.enabled or not service.up:  # Nova tells a nova-compute that is up
                continue
            tag = tag_of(service.disabled_reason)
            if tag is not None and tag.purpose is Purpose.MAINTENANCE:
                try:
                    self._cloud.open(host)
                except GpuyardError as error:
                    LOG.warning("nova-compute on %s stays disabled: %s", host, error)

    def _keep(self, id: str, waits: tuple[str, ...] | None = None) -> Maintenance:
        """Take the steps that are due, and make the ledger what it is to be. `waits`: as `_close` says; without it
        nothing is begun."""
        before = maintenance = self._get(id)
        for _ in range(STEPS):
            step = next_step(maintenance, self._host(maintenance, waits), self.now)
            if step is None:
                break
            new, text = step
            self._store.put(new, *(self._lines(new, text) if text else ()))
            maintenance = self._get(id)  # also when somebody else was quicker
        if maintenance.open:
            self._ledger.closings.close(_closing(maintenance))
            self._expect(maintenance, maintenance.until if maintenance.on else None)
        elif maintenance.holds:
            self._expect(maintenance, None)
            self._ledger.closings.open(maintenance.id, f"the {maintenance.title} is over")
            self._store.put(replace(maintenance, holds=False))
            maintenance = self._get(id)
        if (before.state, before.until) != (maintenance.state, maintenance.until):
            self._health.wake(f"maintenance of {maintenance.host}: {maintenance.state.value}")
        return maintenance

    def _expect(self, maintenance: Maintenance, until: datetime | None) -> None:
        """What is booked on the host from its end on stays; GPUs that are out of use for themselves are not meant."""
        bad = self._health.bad_gpus()
        mine = [lane for lane in self._ledger.lanes() if lane.host == maintenance.host and lane.trouble]
        if until is None:
            mine = [lane for lane in mine if lane.back == maintenance.until]
        lanes = {lane.id for lane in mine if not any((lane.host, address) in bad for address in lane.addresses)}
        if lanes:
            self._ledger.upkeep.expect_back(lanes, until)

    def _host(self, maintenance: Maintenance, waits: tuple[str, ...] | None) -> HostNow:
        """What is known of its host now."""
        word, look = self._look(maintenance.host)
        observation, now = self._fresh(), self.now
        # What was seen before all was held says nothing of who has got in since; nor does what was seen before the host
        # was closed, for which `waits` has its reason.
        is_current = observation is not None and not self._may_get_in(maintenance.host, observation)
        servers = self._servers(maintenance.host) if is_current and waits is not None else None
        return HostNow(
            servers=None if servers is None else [id for id in _ids(servers) if id not in maintenance.may_go_down],
            waits=maintenance.problems if waits is None else waits,
            cloud=self._service(maintenance.host, observation) if observation else (UNKNOWN,),
            missing=self._missing(maintenance.host, observation) if observation else (),
            heard=word.heard if word and word.heard <= now else None,  # else by a clock that has gone back since
            look=look,
            gpus=self._health_store.gpus(host=maintenance.host),
            observations=[
                observation
                for observation in self._health_store.open_observations()
                if observation.host == maintenance.host
            ],
            stale=self._stale,
            verdicts=self._health.verdicts,
        )

    def _may_get_in(self, host: str, observation: CloudObservation) -> bool:
        """Return whether Placement may give one of its GPUs to a new server."""
        names = {provider_name(gpu.host, gpu.address) for gpu in self._gpus.get(host, ())}
        return not names.isdisjoint(observation.snapshot.allocatable)

    def _look(self, host: str) -> tuple[HostContact | None, HostReport | None]:
        word = self._health_store.host(host)
        try:
            return word, look_of(word.look.encode()) if word and word.look else None
        except LookRefusedError:  # of another version of gpuyard
            return word, None

    def _service(self, host: str, observation: CloudObservation) -> tuple[str, ...]:
        service = observation.snapshot.services.get(host)
        if service is None:
            return (f"nova-compute on {host} is not known to Nova",)
        if service.silent:
            return (service.unheard,)
        wrong = () if service.up else (f"nova-compute on {host} is down",)
        because = f": {service.disabled_reason}" if service.disabled_reason else ""
        return (*wrong, *(() if service.enabled else (f"nova-compute on {host} is disabled{because}",)))

    def _missing(self, host: str, observation: CloudObservation) -> tuple[str, ...]:
        names = {provider_name(gpu.host, gpu.address): gpu.address for gpu in self._gpus.get(host, ())}
        return tuple(sorted(address for name, address in names.items() if name not in observation.snapshot.providers))

    # How

    def _change(
        self,
        id: str,
        change: Callable[[Maintenance], Maintenance],
        text: str,
        words: str,
        person: Person,
        action: str,
    ) -> Maintenance:
        words = words.strip()[:WORDS]
        message = f"{text}: {words}" if words else text
        for _ in range(TRIES):
            new = change(self._get(id))
            if self._store.put(new, *self._lines(new, message, person)):
                return self._said(id, action, message, person)
        raise BlockedError(f"maintenance {id} is being changed by others again and again; try again")

    def _said(self, id: str, action: str, text: str, person: Person) -> Maintenance:
        self._ledger.note(person, action, self._get(id).host, text[:WORDS])
        maintenance = self._keep(id)
        self._health.wake(f"{person.user}: {action} {maintenance.host}")
        return maintenance

    def _lines(self, maintenance: Maintenance, text: str, person: Person | None = None) -> list[HealthEvent]:
        """For the records of the GPUs of its host."""
        text = text if maintenance.title in text else f"{maintenance.title}: {text}"
        return [
            HealthEvent(
                gpu.host, gpu.address, gpu.card, self.now, gpu.state, gpu.state, text, by=person.user if person else "",
                source=Source.PERSON if person else None,
            )
            for gpu in self._health_store.gpus(host=maintenance.host)
        ]  # fmt: skip

    def _get(self, id: str) -> Maintenance:
        maintenance = self._store.get(id)
        if maintenance is None:
            raise NoSuchMaintenanceError(f"there is no maintenance {id!r}")
        return maintenance


def _ids(servers: Sequence[Claim]) -> list[str]:
    return [server.server_id for server in servers]


def _closing(maintenance: Maintenance) -> Closing:
    return Closing(
        maintenance.id, maintenance.host, maintenance.start, maintenance.until, maintenance.title, maintenance.by
    )


def maintenance_loop(service: MaintenanceService, period: float) -> Loop:
    """Return the loop ``maintenance`` that runs every `period` seconds, and at once when it is woken."""
    return Loop("maintenance", "Brings maintenances of hosts on, from the plan to the check.", period, service.run)
