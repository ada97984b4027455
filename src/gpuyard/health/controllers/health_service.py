"""Records observations of GPUs and operators' requests, and wakes the health controller.

Hosts, guest agents and runners report observations; people quarantine, repair and release. Every method commits before
it returns, so a crash loses nothing that was reported. The consequences (suspect, quarantined, fine again) are not
computed here: the loop in health.py reconciles them from the store. Callers check authorization.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.baseline import OF_SIGNALS, Baseline, Facts, facts_words, renewed
from gpuyard.health.cloud_signals import HostUse
from gpuyard.health.host_reports import LookRefusedError, look_of
from gpuyard.health.life import become, with_card
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.health.planner import is_required, kept_back
from gpuyard.health.records import (
    KEPT_BACK,
    UUIDS,
    GpuHealth,
    HealthEvent,
    HealthState,
    HostContact,
    Observation,
    Software,
)
from gpuyard.health.store import HealthStore, MaintenanceStore
from gpuyard.health.verdicts import SignalVerdicts
from gpuyard.model.booking import Booking, Person
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.host_report import LinkReport
from gpuyard.model.moments import minute_text
from gpuyard.model.signals import SIGNALS, Judgement, Source
from gpuyard.runtime.wake_signal import WakeSignal
from gpuyard.site.health_rules import SiteHealth

LENT_FROM = frozenset({HealthState.QUARANTINED, HealthState.IN_REPAIR})
"""States in which a GPU can be lent for its repair."""
WORDS = 500
"""Characters of what somebody says, at most."""
TRIES = 20
"""Somebody else may write the same GPU at the same moment, so often at most."""


class NoSuchGpuError(GpuyardError):
    """The site has no such GPU."""


@dataclass(frozen=True)
class GpuView:
    """The health of a GPU, for pages and API."""

    health: GpuHealth
    heard: datetime | None
    """When its host was last heard of; None: never."""
    silent: bool
    """Its host was not heard of for longer than the site's `silence`: what is said of it is as old as that."""
    maintenance: str = ""
    """The maintenance of its host, when it is on; it is then not `silent` either: whoever works on a host turns it
    off."""
    question: Observation | None = None
    """Of one for which a person is asked: the worst that was seen and nothing has become of."""


class HealthService:
    """Takes observations and requests. Safe to use from several threads. GPUs are named ``host/address``. Every method
    that changes something raises NoSuchGpuError, and HealthLifeError when the GPU cannot go there from its state."""

    def __init__(
        self,
        store: HealthStore,
        ledger: Ledger,
        rules: SiteHealth,
        now: Callable[[], datetime],
    ) -> None:
        """`ledger`: its audit log records people's actions."""
        self.store, self.rules, self.now = store, rules, now
        self.verdicts = SignalVerdicts(rules)
        """The verdicts on signals of this site."""
        self.wake = WakeSignal()
        """Sent after every change."""
        self.maintenances = MaintenanceStore(store.database)
        self._ledger = ledger
        self._uses: dict[str, HostUse] = {}

    # What is seen

    def observe(self, observations: Sequence[Observation]) -> None:
        """Write observations; several at once cost one commit. Those of GPUs that the site does not have are dropped by
        the loop. Raises ValueError for an unknown code."""
        unknown = {observation.code for observation in observations} - SIGNALS.keys()
        if unknown:
            raise ValueError(f"no such signals: {', '.join(sorted(unknown))}")
        if self.store.observe(observations):
            self.wake(f"{observations[0].code} of {observations[0].gpu}")

    def hear(self, word: HostContact, in_use: Mapping[str, bool | None]) -> None:
        """Write the contact of a host. `in_use`: address of a GPU -> whether a process has it open there."""
        self.store.hear(word)
        for address, is_used in in_use.items():
            name = f"{word.host}/{address}"
            last = self._uses.get(name)
            if is_used is not None:
                self._uses[name] = last.then(word.heard, is_used) if last else HostUse(word.heard, is_used)

    def uses(self) -> Mapping[str, HostUse]:
        """Return by GPU whether hosts reported it open, as this process has heard since it began."""
        return dict(self._uses)

    def know_card(self, gpu: str, card: str) -> None:
        """Write the serial number of a GPU's card, as its host sees it. Another one than before is also observed as
        `changed`: it was never accepted."""
        for _ in range(TRIES):
            record = self.gpu(gpu)
            if not card or card == record.card:
                return
            former_card = (
                "" if record.card.startswith(UUIDS) else record.card
            )  # what a guest sees is a name of the same card
            text = f"its card is {card}" + (f", and was {former_card}" if former_card else "")
            event = HealthEvent(
                record.host, record.address, card, self.now(), record.state, record.state, text, source=Source.HOST
            )
            new = with_card(record, card)
            if former_card:
                new = replace(new, accepted=None, software=Software())
            if self.store.put(new, event):
                if former_card:
                    self.observe([Observation(record.host, record.address, "changed", self.now(), text)])
                return
        raise _crowd(gpu)

    def show(self, gpu: str, facts: Facts) -> None:
        """Write the facts that its host has seen of a GPU."""
        for _ in range(TRIES):
            record = self.gpu(gpu)
            if facts == record.shown or self.store.put(replace(record, shown=dict(facts))):
                return
        raise _crowd(gpu)

    def report(self, gpu: str, words: str, person: Person) -> None:
        """Record a person's report that a GPU is not as it should be, as an observation."""
        record = self.gpu(gpu)
        self._audit(person, "gpu.report", gpu, words)
        self.observe(
            [Observation(record.host, record.address, "reported", self.now(), words.strip()[:WORDS], person.user)]
        )

    # What people do

    def quarantine(self, gpu: str, why: str, person: Person) -> GpuHealth:
        """Take a GPU out of use, whatever share of its pool is so already."""
        return self._become(gpu, lambda health: HealthState.QUARANTINED, why, person, "gpu.quarantine")

    def release(self, gpu: str, why: str, person: Person) -> GpuHealth:
        """Give a GPU back into use; the person answers for it. After quarantine it is to be accepted first where the
        site wants that after repairs; one that is to be accepted is so by this. One for which a person is asked is left
        in use. What it shows is its baseline from then on."""

        def target(health: GpuHealth) -> HealthState:
            return self._after_repair(health) if health.state is HealthState.QUARANTINED else HealthState.FINE

        if (record := self.gpu(gpu)).asked and record.state not in KEPT_BACK:
            mine = [observation for observation in self.store.open_observations() if observation.gpu == record.name]
            bad = [
                observation.code
                for observation in mine
                if self._in_force(observation, record) not in (None, Judgement.NOTE)
            ]
            signal = bad[0] if bad else record.signal
            settles = [observation.id for observation in mine if observation.code == signal]
            return self._keep(
                gpu, why, person, "gpu.release", settles, asked=False, signal=signal, by=person.user,
                baseline=self._answered_for(record, person),
            )  # fmt: skip
        if record.state is HealthState.IN_REPAIR:
            raise BlockedError(f"GPU {gpu} is in repair: say that this is over with 'gpuyard gpu repair done {gpu}'")
        accepted = self.software(record.host) if record.state is HealthState.TO_ACCEPT else None
        new = self._become(gpu, target, why, person, "gpu.release", accepted=accepted, answers=True)
        self._end_loan(record, "it needs no repair", person)
        return new

    def _answered_for(self, record: GpuHealth, person: Person) -> Baseline | None:
        facts = {**record.shown, **OF_SIGNALS.get(record.signal, {})}
        return renewed(record.baseline, facts, record.card, person.user, self.now())

    def software(self, host: str) -> Software:
        """Return the versions that a host runs now, as far as they were heard."""
        word = self.store.host(host)
        look = json.loads(word.look) if word is not None and word.look else {}
        return Software(*(str(look.get(name, "")) for name in ("kernel", "firmware", "qemu")))

    def link(self, gpu: GpuHealth) -> LinkReport | None:
        """Return the GPU's link as its host saw it last; None: nothing was heard of it."""
        word = self.store.host(gpu.host)
        try:
            look = look_of(word.look.encode()) if word is not None and word.look else None
        except LookRefusedError:  # of another version of gpuyard
            return None
        return (
            next((gpu_report.link for gpu_report in look.gpus if gpu_report.address == gpu.address), None)
            if look is not None
            else None
        )

    def clear_baseline(self, gpu: str, why: str, person: Person) -> GpuHealth:
        """Forget the GPU's baseline: it is judged as a new one, until it is accepted or released again."""
        record = self.gpu(gpu)
        if record.baseline is None:
            raise BlockedError(f"GPU {gpu} has no baseline: it is judged by what its slot and card can")
        text = f"its baseline was cleared, {facts_words(record.baseline.facts)}: {why}"
        return self._keep(gpu, text, person, "gpu.clear_baseline", baseline=None)

    def start_repair(self, gpu: str, words: str, person: Person) -> GpuHealth:
        """Put a quarantined GPU into repair by `person`, or hand the repair over to them."""
        if self.gpu(gpu).state is HealthState.IN_REPAIR:
            return self._keep(gpu, words, person, "gpu.repair", keeper=person.user)
        return self._become(gpu, lambda health: HealthState.IN_REPAIR, words, person, "gpu.repair", keeper=person.user)

    def note(self, gpu: str, words: str, person: Person) -> GpuHealth:
        """Add a line to the GPU's record: what was tried, what the vendor said."""
        return self._keep(gpu, words, person, "gpu.note")

    def end_repair(self, gpu: str, words: str, person: Person, *, repaired: bool = True) -> GpuHealth:
        """End the repair: the GPU is well, or to be accepted where the site wants that; not `repaired`: it is
        quarantined again."""
        record = self.gpu(gpu)
        if record.state is not HealthState.IN_REPAIR:
            raise BlockedError(
                f"GPU {gpu} is {record.state.value}: a repair begins with 'gpuyard gpu repair start {gpu}'"
            )
        to = self._after_repair(record) if repaired else HealthState.QUARANTINED
        new = self._become(gpu, lambda health: to, words, person, "gpu.repaired" if repaired else "gpu.repair_left")
        if repaired:
            self._end_loan(record, "its repair is done", person)
        return new

    def lend(self, gpu: str, until: datetime, words: str, person: Person, to: Person) -> Booking:
        """Let a project, that of `to`, start a server on a GPU that is out of use, to see what is wrong with it. Raises
        RefusedError too, when a booking is in the way that cannot go elsewhere."""
        record = self.gpu(gpu)
        if record.state not in LENT_FROM:
            raise BlockedError(f"GPU {gpu} is {record.state.value}: one that is quarantined or in repair can be lent")
        if (loan := self._ledger.loans.of(record.name)) is not None:
            raise BlockedError(f"GPU {gpu} is lent to project {loan.project} until {minute_text(loan.ask.end)} already")
        words = words.strip()[:WORDS]
        comment = f"repair of {record.name}" + (f": {words}" if words else "")
        loan = self._ledger.loans.lend(record.name, to.project_id, to.project, until, comment, person)
        text = f"it is lent to project {to.project} until {minute_text(loan.ask.end)}"
        self._keep(gpu, f"{text}: {words}" if words else text, person, "gpu.lend")
        return loan

    def take_back(self, gpu: str, words: str, person: Person) -> GpuHealth:
        """End the loan for a repair. A server that is left on the GPU is one without a booking."""
        loan = self._ledger.loans.of(self.gpu(gpu).name)
        if loan is None or loan.server:  # one with a server is gpuyard's own
            raise BlockedError(f"GPU {gpu} is not lent for its repair")
        self._ledger.loans.end(loan.id, words.strip()[:WORDS] or "it was given back", person.user)
        return self._keep(gpu, f"it is given back by project {loan.project}: {words}", person, "gpu.return")

    def _end_loan(self, record: GpuHealth, why: str, person: Person) -> None:
        """One for its repair: nobody keeps a GPU that is well without a booking."""
        loan = self._ledger.loans.of(record.name)
        if loan is not None and not loan.server:
            self._ledger.loans.end(loan.id, why, person.user)

    def _after_repair(self, record: GpuHealth) -> HealthState:
        """It may have got another card meanwhile, or its host another kernel."""
        observations = [
            observation
            for observation in self.store.open_observations()
            if observation.gpu == record.name and observation.code in SIGNALS
        ]
        stale = {
            observation.code for observation in observations if self._in_force(observation, record) is Judgement.STALE
        }
        return (
            HealthState.TO_ACCEPT
            if any(is_required(what, self.rules) for what in ("repair", *stale))
            else HealthState.FINE
        )

    def _in_force(self, observation: Observation, record: GpuHealth) -> Judgement | None:
        return self.verdicts.of(observation.code, record.name, record.pool).in_force

    # What follows for others

    def kept_back(self) -> dict[tuple[str, str], str]:
        """Return (host, address) of GPUs that nobody is to get, each with why, in words for everybody: bad ones, and
        those of hosts that are maintained."""
        bad, now = self.bad_gpus(), self.now()
        on = [maintenance for maintenance in self.maintenances.open() if maintenance.on or maintenance.start <= now]
        work = {
            (gpu.host, gpu.address): maintenance.words
            for maintenance in on
            for gpu in self.store.gpus(host=maintenance.host)
        }
        both = {gpu: f"{work[gpu]}; {bad[gpu]}" for gpu in work.keys() & bad.keys()}
        return bad | work | both

    def worked_on(self) -> frozenset[str]:
        """Return hosts that may go down at any moment: somebody works on them."""
        return frozenset(
            maintenance.host
            for maintenance in self.maintenances.open()
            if maintenance.state is MaintenanceState.IN_WORK
        )

    def bad_gpus(self) -> dict[tuple[str, str], str]:
        """Return those kept-back GPUs that are bad themselves, not just on a maintained host."""
        return kept_back(self.store.gpus(KEPT_BACK))

    # What is shown

    def view(self) -> list[GpuView]:
        """Return the health of all GPUs, by host and address."""
        return self._views(self.store.gpus())

    def look(self, name: str) -> GpuView:
        """Return the health of one GPU. Raises NoSuchGpuError."""
        return self._views([self.gpu(name)])[0]

    def _views(self, gpus: Sequence[GpuHealth]) -> list[GpuView]:
        heard, now = self.store.heard(), self.now()
        works = {maintenance.host: maintenance.words for maintenance in self.maintenances.open() if maintenance.on}
        questions = self._questions(gpus) if any(gpu.asked for gpu in gpus) else {}
        return [
            GpuView(
                gpu,
                heard.get(gpu.host),
                gpu.host not in works and is_silent(heard.get(gpu.host), now, self.rules),
                works.get(gpu.host, ""),
                questions.get(gpu.name) if gpu.asked else None,
            )
            for gpu in gpus
        ]

    def _questions(self, gpus: Sequence[GpuHealth]) -> dict[str, Observation]:
        """By GPU, the worst of what is open and would keep it back."""
        worst_by_gpu: dict[str, Observation] = {}
        gpus_by_name = {gpu.name: gpu for gpu in gpus}
        for judgement in (Judgement.STALE, Judgement.SUSPECT, Judgement.BAD):
            observations = [
                observation
                for observation in self.store.open_observations()
                if observation.code in SIGNALS and observation.gpu in gpus_by_name
            ]
            worst_by_gpu |= {
                observation.gpu: observation
                for observation in observations
                if self._in_force(observation, gpus_by_name[observation.gpu]) is judgement
            }
        return worst_by_gpu

    def gpu(self, name: str) -> GpuHealth:
        host, _, address = name.partition("/")
        record = self.store.gpu(host, address.lower())
        if record is None:
            raise NoSuchGpuError(f"there is no GPU {name!r}; name one as in host/0000:3b:00.0")
        return record

    # How

    def _become(
        self,
        gpu: str,
        target: Callable[[GpuHealth], HealthState],
        words: str,
        person: Person,
        action: str,
        keeper: str = "",
        accepted: Software | None = None,
        answers: bool = False,
    ) -> GpuHealth:
        """`accepted`: with this. `answers`: the person says that it is well as it is."""
        words = words.strip()[:WORDS]
        for _ in range(TRIES):
            record = self.gpu(gpu)
            if accepted is not None:
                record = replace(record, accepted=self.now(), software=accepted)
            if answers:
                record = replace(record, baseline=self._answered_for(record, person))
            new, event = become(
                replace(record, asked=False, until=None, keeper=keeper),
                target(record),
                self.now(),
                words,
                by=person.user,
                source=Source.PERSON,
            )
            if self.store.put(new, event):
                self._done(person, action, gpu, words)
                return self.gpu(gpu)
        raise _crowd(gpu)

    def _keep(
        self, gpu: str, words: str, person: Person, action: str, settles: Collection[int] = (), **changes: object
    ) -> GpuHealth:
        """A line of its record, and a change that leaves it in its state."""
        words = words.strip()[:WORDS]
        for _ in range(TRIES):
            record = self.gpu(gpu)
            event = HealthEvent(
                record.host, record.address, record.card, self.now(), record.state, record.state, words, by=person.user,
                source=Source.PERSON,
            )  # fmt: skip
            if self.store.put(replace(record, **changes), event, settles=settles):  # type: ignore[arg-type]
                self._done(person, action, gpu, words)
                return self.gpu(gpu)
        raise _crowd(gpu)

    def _done(self, person: Person, action: str, gpu: str, words: str) -> None:
        self._audit(person, action, gpu, words)
        self.wake(f"{person.user}: {action} {gpu}")

    def _audit(self, person: Person, action: str, gpu: str, words: str) -> None:
        self._ledger.note(person, action, gpu, words.strip()[:WORDS])


def is_silent(heard: datetime | None, now: datetime, rules: SiteHealth) -> bool:
    """Return whether a host was not heard for too long, or never."""
    return heard is None or abs(now - heard) > rules.silence


def _crowd(gpu: str) -> BlockedError:
    return BlockedError(f"GPU {gpu} is being changed by others again and again; try again")
