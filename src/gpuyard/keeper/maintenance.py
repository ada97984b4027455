"""Maintenances of hosts: what people say of them, and the loop that brings them on.

One row in the store says where a maintenance is, and that is what keeps the host's GPUs back, as a state of health
does: the loop of bookings reads it at each look. The ledger's holds are made of it again and again, so that a kill
between any two steps loses nothing: what is not as the row says is made so by the next look.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING
from uuid import uuid4

from gpuyard.health.looks import LookRefusedError, look_of
from gpuyard.health.maintenance import (
    HostNow,
    Maintenance,
    MaintenanceError,
    MaintenanceState,
    moment_text,
    next_step,
    refuse_times,
    software_of,
    turn,
)
from gpuyard.health.planner import is_required
from gpuyard.health.records import HealthEvent, HostWord, Judgement, Source
from gpuyard.health.signals import SIGNALS
from gpuyard.keeper.driver import Loop
from gpuyard.keeper.health_desk import WORDS, HealthDesk
from gpuyard.keeper.turns import BOOKINGS
from gpuyard.ledger.closing import Closing, ClosingForecast
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.booking import Booking, Person
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.gpu import Claim, Gpu, provider_name
from gpuyard.model.watch import HostLook

if TYPE_CHECKING:
    from gpuyard.keeper.bookings import CloudSight

M = MaintenanceState
TRIES = 20
"""Somebody else may write the same one at the same moment, so often at most."""
STEPS = 6
"""Most steps that follow from each other in one look."""
OLD = timedelta(minutes=1)
"""What was seen of the cloud longer ago is not what it is now."""


class NoSuchMaintenanceError(GpuyardError):
    """There is none with this id."""


class NoSuchHostError(GpuyardError):
    """The site has no GPUs on it."""


@dataclass(frozen=True)
class MaintenanceView:
    """A maintenance, for those who show it."""

    maintenance: Maintenance
    gpus: int
    """Of its host."""
    servers: tuple[Claim, ...]
    """That have GPUs there now."""
    bookings: tuple[Booking, ...]
    """And leases, that keep a GPU there in its time: they have begun, or cannot be elsewhere."""


@dataclass(frozen=True)
class MaintenanceForecast:
    """What a maintenance of a host would mean."""

    servers: tuple[Claim, ...]
    """That have GPUs there now."""
    bookings: ClosingForecast


class MaintenanceDesk:
    """Safe to use from several threads, and from several processes on one database. Every method that changes something
    raises MaintenanceError when that cannot be, and NoSuchMaintenanceError."""

    def __init__(
        self,
        desk: HealthDesk,
        ledger: Ledger,
        gpus: Sequence[Gpu],
        sight: Callable[[], CloudSight | None],
        new_id: Callable[[], str] = lambda: str(uuid4()),
    ) -> None:
        """`gpus`: all of the site. `sight`: the cloud as it was seen last."""
        self._desk, self._health, self._store = desk, desk.store, desk.maintenances
        self._ledger, self._sight, self._new_id = ledger, sight, new_id
        self._gpus: dict[str, list[Gpu]] = {}
        for gpu in gpus:
            if not gpu.blocked:
                self._gpus.setdefault(gpu.host, []).append(gpu)
        self._stale = frozenset(
            code
            for code, signal in SIGNALS.items()
            if signal.judgement is Judgement.STALE and is_required(code, desk.rules)
        )

    @property
    def now(self) -> datetime:
        """Records have whole seconds."""
        return self._desk.now().replace(microsecond=0)

    # What people do

    def plan(self, host: str, start: datetime, until: datetime, why: str, person: Person) -> Maintenance:
        """From then on nothing new is booked there in its time. Raises NoSuchHostError too."""
        now = self.now
        start, until = self._times(host, start, until, now)
        one = Maintenance(
            self._new_id(), host, start, until, why.strip()[:WORDS], person.user, M.PLANNED, now, now
        )  # fmt: skip
        text = f"{one.title} is planned from {moment_text(start)} to {moment_text(until)}"
        if not self._store.put(one, *self._lines(one, text, person)):
            other = next((m for m in self._store.open() if m.host == host), None)
            when = f", from {moment_text(other.start)} to {moment_text(other.until)}: {other.why}" if other else ""
            raise MaintenanceError(f"host {host} has a maintenance already{when}; end or cancel that one first")
        return self._said(one.id, "maintenance.plan", text, person)

    def start(self, id: str, words: str, person: Person) -> Maintenance:
        """Begin it before its time, or work on the host again that is being checked."""

        def change(one: Maintenance) -> Maintenance:
            if one.state is M.CHECKING:
                return turn(one, M.IN_WORK, self.now)
            return replace(turn(one, M.DRAINING, self.now), software=software_of(self._look(one.host)[1]))

        return self._change(id, change, "it begins", words, person, "maintenance.start")

    def done(self, id: str, words: str, person: Person, *, unchecked: bool = False) -> Maintenance:
        """The work is done: the host is checked, and given back when it is well. `unchecked`: at once, `person` answers
        for it."""

        def change(one: Maintenance) -> Maintenance:
            if unchecked:
                return replace(turn(one, M.BACK, self.now), done=one.done or self.now, done_by=person.user)
            if one.state is M.CHECKING:  # look again
                return replace(one, since=self.now, done=self.now, done_by=person.user, problems=())
            return replace(turn(one, M.CHECKING, self.now), done=self.now, done_by=person.user)

        text = "the host is given back without a check" if unchecked else "the work is done, and the host is checked"
        return self._change(id, change, text, words, person, "maintenance.done")

    def cancel(self, id: str, words: str, person: Person) -> Maintenance:
        """It is not needed; of one that is planned, or that servers are still in the way of."""

        def change(one: Maintenance) -> Maintenance:
            if one.state in (M.IN_WORK, M.CHECKING):
                raise MaintenanceError(
                    f"somebody works on {one.host}: say 'gpuyard host maintenance done {one.host}', and it is checked"
                )
            return turn(one, M.CANCELLED, self.now)

        return self._change(id, change, "it is cancelled", words, person, "maintenance.cancel")

    def extend(self, id: str, until: datetime, words: str, person: Person) -> Maintenance:
        """It is back at another time, later or earlier."""

        def change(one: Maintenance) -> Maintenance:
            if not one.open:
                raise MaintenanceError(f"the maintenance of {one.host} is {one.state.value}")
            refuse_times(one.start, until, self.now)
            return replace(one, until=until.replace(microsecond=0))

        text = f"it takes until {moment_text(until)}"
        return self._change(id, change, text, words, person, "maintenance.extend")

    def _times(self, host: str, start: datetime, until: datetime, now: datetime) -> tuple[datetime, datetime]:
        """As they are kept. Raises NoSuchHostError, MaintenanceError."""
        if host not in self._gpus:
            known = ", ".join(sorted(self._gpus))
            raise NoSuchHostError(f"there is no host {host!r} with GPUs of the site; there are {known}")
        start, until = max(start, now).replace(microsecond=0), until.replace(microsecond=0)
        refuse_times(start, until, now)
        return start, until

    # What is shown

    def forecast(self, host: str, start: datetime, until: datetime) -> MaintenanceForecast:
        """What planning one would mean; nothing is changed. Raises NoSuchHostError, MaintenanceError."""
        start, until = self._times(host, start, until, self.now)
        would = self._ledger.closings.forecast(Closing("forecast", host, start, until, "", ""))
        return MaintenanceForecast(tuple(self._claims(host)), would)

    def view(self, id: str) -> MaintenanceView:
        return self._views([self._get(id)])[0]

    def views(self, host: str = "", *, past: bool = False) -> list[MaintenanceView]:
        """Those that are not over, by start; `past`: and then those that are, the newest first."""
        found = [one for one in self._store.open() if host in ("", one.host)]
        return self._views([*found, *(self._store.past(host) if past else ())])

    def _views(self, found: Iterable[Maintenance]) -> list[MaintenanceView]:
        return [
            MaintenanceView(
                one,
                len(self._gpus.get(one.host, ())),
                tuple(self._claims(one.host)) if one.open else (),
                tuple(self._ledger.closings.in_the_way(_closing(one))) if one.open else (),
            )
            for one in found
        ]

    def _claims(self, host: str) -> list[Claim]:
        """By name, each server once, as the cloud was seen last."""
        sight = self._sight()
        if sight is None:
            return []
        names = {provider_name(gpu.host, gpu.address) for gpu in self._gpus.get(host, ())}
        ids = sorted({id for name, id in sight.snapshot.holders.items() if name in names})
        servers = sight.snapshot.servers
        found = [
            Claim(id, one.name, one.status, one.project, one.user)
            if (one := servers.get(id))
            else Claim(id, id, "", "", "")
            for id in ids
        ]
        return sorted(found, key=lambda claim: (claim.server_name, claim.server_id))

    # The loop

    def run(self) -> None:
        """Bring on what is open, and end the holds of what is over. Of several processes the one does it that keeps the
        bookings. Raises StoreError, LedgerError."""
        if not self._ledger.upkeep.turns.has_turn(BOOKINGS):
            return
        for one in (*self._store.open(), *self._store.with_holds()):
            self._keep(one.id)

    def _keep(self, id: str) -> Maintenance:
        """Take the steps that are due, and make the ledger what it is to be."""
        before = one = self._get(id)
        for _ in range(STEPS):
            step = next_step(one, self._host(one), self.now)
            if step is None:
                break
            new, text = step
            self._store.put(new, *(self._lines(new, text) if text else ()))
            one = self._get(id)  # also when somebody else was quicker
        if one.open:
            self._ledger.closings.close(_closing(one))
            self._expect(one, one.until if one.on else None)
        elif one.holds:
            self._expect(one, None)
            self._ledger.closings.open(one.id, f"the {one.title} is over")
            self._store.put(replace(one, holds=False))
            one = self._get(id)
        if (before.state, before.until) != (one.state, one.until):
            self._desk.wake(f"maintenance of {one.host}: {one.state.value}")
        return one

    def _expect(self, one: Maintenance, until: datetime | None) -> None:
        """What is booked on the host from its end on stays; GPUs that are out of use for themselves are not meant."""
        bad = self._desk.bad_gpus()
        mine = [lane for lane in self._ledger.lanes() if lane.host == one.host and lane.trouble]
        if until is None:
            mine = [lane for lane in mine if lane.back == one.until]
        lanes = {lane.id for lane in mine if not any((lane.host, address) in bad for address in lane.addresses)}
        if lanes:
            self._ledger.upkeep.expect_back(lanes, until)

    def _host(self, one: Maintenance) -> HostNow:
        """What is known of its host now."""
        word, look = self._look(one.host)
        sight, now = self._sight(), self.now
        taken = sight.snapshot.taken_at if sight else None
        fresh = sight is not None and taken is not None and now - taken <= OLD
        # What was seen before it began, and before all was held, says nothing of who has got in since.
        seen = fresh and taken is not None and taken > one.since and not self._may_get_in(one.host, sight)
        return HostNow(
            servers=[claim.server_name for claim in self._claims(one.host)] if seen else None,
            cloud=self._cloud(one.host, sight)
            if sight and fresh
            else ("what OpenStack has is not known at the moment",),
            missing=self._missing(one.host, sight) if sight and fresh else (),
            heard=word.heard if word and word.heard <= now else None,  # else by a clock that has gone back since
            look=look,
            gpus=self._health.gpus(host=one.host),
            observations=[seen for seen in self._health.open_observations() if seen.host == one.host],
            stale=self._stale,
        )

    def _may_get_in(self, host: str, sight: CloudSight | None) -> bool:
        """Whether Placement may give one of its GPUs to a new server."""
        names = {provider_name(gpu.host, gpu.address) for gpu in self._gpus.get(host, ())}
        return sight is None or not names.isdisjoint(sight.snapshot.allocatable)

    def _look(self, host: str) -> tuple[HostWord | None, HostLook | None]:
        word = self._health.host(host)
        try:
            return word, look_of(word.look.encode()) if word and word.look else None
        except LookRefusedError:  # of another version of gpuyard
            return word, None

    def _cloud(self, host: str, sight: CloudSight) -> tuple[str, ...]:
        service = sight.snapshot.services.get(host)
        if service is None:
            return (f"nova-compute on {host} is not known to Nova",)
        wrong = () if service.up else (f"nova-compute on {host} is down",)
        because = f": {service.disabled_reason}" if service.disabled_reason else ""
        return (*wrong, *(() if service.enabled else (f"nova-compute on {host} is disabled{because}",)))

    def _missing(self, host: str, sight: CloudSight) -> tuple[str, ...]:
        names = {provider_name(gpu.host, gpu.address): gpu.address for gpu in self._gpus.get(host, ())}
        return tuple(sorted(address for name, address in names.items() if name not in sight.snapshot.providers))

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
        said = f"{text}: {words}" if words else text
        for _ in range(TRIES):
            new = change(self._get(id))
            if self._store.put(new, *self._lines(new, said, person)):
                return self._said(id, action, said, person)
        raise BlockedError(f"maintenance {id} is being changed by others again and again; try again")

    def _said(self, id: str, action: str, text: str, person: Person) -> Maintenance:
        self._ledger.note(person, action, self._get(id).host, text[:WORDS])
        one = self._keep(id)
        self._desk.wake(f"{person.user}: {action} {one.host}")
        return one

    def _lines(self, one: Maintenance, text: str, person: Person | None = None) -> list[HealthEvent]:
        """For the records of the GPUs of its host."""
        text = text if one.title in text else f"{one.title}: {text}"
        return [
            HealthEvent(
                gpu.host, gpu.address, gpu.card, self.now, gpu.state, gpu.state, text, by=person.user if person else "",
                source=Source.PERSON if person else None,
            )
            for gpu in self._health.gpus(host=one.host)
        ]  # fmt: skip

    def _get(self, id: str) -> Maintenance:
        found = self._store.get(id)
        if found is None:
            raise NoSuchMaintenanceError(f"there is no maintenance {id!r}")
        return found


def _closing(one: Maintenance) -> Closing:
    return Closing(one.id, one.host, one.start, one.until, one.title, one.by)


def maintenance_loop(desk: MaintenanceDesk, period: float) -> Loop:
    """A loop named ``maintenance`` that runs every `period` seconds, and at once when it is woken."""
    return Loop("maintenance", "Brings maintenances of hosts on, from the plan to the check.", period, desk.run)
