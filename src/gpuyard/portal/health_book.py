"""What is told of the health of GPUs, to whoever asks: the API and the pages say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpuyard.health.acceptance import told
from gpuyard.health.maintenance import moment_text
from gpuyard.health.records import KEPT_BACK, GpuHealth, HealthEvent, HealthState
from gpuyard.health.repeats import By, repeats
from gpuyard.keeper.health_desk import LENT_FROM, GpuView, HealthDesk
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.records import Query
from gpuyard.ledger.rights import Verb, may
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.gpu import Claim
from gpuyard.portal.booking_documents import gpus_of
from gpuyard.portal.health_documents import (
    Eyes,
    HealthEventRow,
    HealthRow,
    RepairRow,
    RepeatRow,
    event_row,
    health_row,
    repeat_row,
)
from gpuyard.portal.others import hides, project_for, projects_of
from gpuyard.portal.people import Visitor
from gpuyard.portal.sources import Sources

S = HealthState
LATELY = timedelta(weeks=1)
"""So long after a booking its owner may still report a fault."""
BEGINNING = datetime.fromisoformat("1971-01-01T00:00:00+00:00")
YEAR = timedelta(days=365)
"""So far back failures are counted."""
MOST_EVENTS = 20_000
TRIED = 20
"""Lines of the record of a GPU that is out of use."""
STEPS: dict[str, frozenset[HealthState]] = {
    "quarantine": frozenset(S) - {S.QUARANTINED, S.IN_REPAIR},
    "start": frozenset({S.QUARANTINED, S.IN_REPAIR}),
    "note": frozenset(S),
    "done": frozenset({S.IN_REPAIR}),
    "abandon": frozenset({S.IN_REPAIR}),
    "release": frozenset({S.SUSPECT, S.QUARANTINED, S.TO_ACCEPT}),
}
"""What operators do about a GPU, and the states in which there is something to do."""


class HealthBook:
    def __init__(self, sources: Sources, desk: HealthDesk, ledger: Ledger) -> None:
        self._sources, self._desk, self._ledger = sources, desk, ledger

    def eyes(self, who: Visitor) -> Eyes:
        """What somebody sees."""
        near = {claim.server_id for _, claim in self._claims(who)}
        return Eyes(who.person.admin, not hides(self._sources.settings.others, who), near, who.person.user)

    def rows(self, who: Visitor) -> list[HealthRow]:
        """All GPUs, by host and address."""
        return self._rows(self._desk.view(), who)

    def row(self, gpu: str, who: Visitor) -> HealthRow:
        """Of ``host/address``. Raises NoSuchGpuError."""
        return self._rows([self._desk.look(gpu)], who)[0]

    def record(
        self, gpu: str, who: Visitor, limit: int, before: int | None = None
    ) -> tuple[list[HealthEventRow], int | None]:
        """Lines of a GPU's record, the newest first, and what to ask for the next page `before`; None on the last."""
        host, _, address = gpu.partition("/")
        found = self._desk.store.events(host, address.lower(), limit=limit, before=before)
        eyes = self.eyes(who)
        return [event_row(event, eyes) for event in found], found[-1].id if len(found) == limit else None

    def out(self, who: Visitor) -> list[RepairRow]:
        """GPUs that are kept back or should be, who waits longest first, and what was tried."""
        views = [one for one in self._desk.view() if one.health.state in KEPT_BACK or one.health.asked]
        views.sort(key=lambda one: (not one.health.asked, one.health.since, one.health.name))
        eyes, rows = self.eyes(who), self._rows(views, who)
        return [
            RepairRow(gpu=row, tried=[event_row(event, eyes) for event in self._tried(view.health)])
            for view, row in zip(views, rows, strict=True)
        ]

    def repeats(self, by: By) -> list[RepeatRow]:
        """What went bad most often, within a year."""
        now = self._sources.now()
        lanes = self._ledger.lanes()
        slots = {(lane.host, address): lane.name for lane in lanes for address in lane.addresses}
        events = self._desk.store.events(limit=MOST_EVENTS, since=now - YEAR)
        return [repeat_row(one) for one in repeats(events, by, slots)]

    def may_report(self, gpu: str, who: Visitor) -> bool:
        """Admins; who has a server of their own on it; who has or in the last week had a booking of it."""
        return bool(may(who.person, Verb.REPAIR)) or gpu in self._theirs(who)

    def _tried(self, gpu: GpuHealth) -> Iterable[HealthEvent]:
        """Since it went bad, the newest first."""
        for event in self._desk.store.events(gpu.host, gpu.address, limit=TRIED):
            yield event
            if event.before not in KEPT_BACK and event.after in KEPT_BACK:
                return

    def _rows(self, views: Sequence[GpuView], who: Visitor) -> list[HealthRow]:
        eyes, admin = self.eyes(who), bool(may(who.person, Verb.REPAIR))
        bad = self._desk.store.became(S.QUARANTINED, BEGINNING)
        theirs = frozenset() if admin else self._theirs(who)
        scrubbed = self._desk.scrubs.pools if self._desk.scrubs else frozenset()
        desk, host = self._desk.acceptance, views[0].health.host if len(views) == 1 else ""
        tries = desk.latest(host) if admin and desk is not None else {}

        loans, others = self._loans(), self._sources.settings.others
        repair = admin and self._desk.rules.repair is not None

        def row(view: GpuView) -> HealthRow:
            gpu, loan = view.health, loans.get(view.health.name)
            steps = [name for name, states in STEPS.items() if gpu.state in states] if admin else []
            steps += ["release"] if admin and gpu.asked and "release" not in steps else []
            if loan is not None:
                steps += ["return"] if admin and not loan.server else []
            elif repair and gpu.state in LENT_FROM:
                steps += ["lend"]
            lent = f"lent to project {project_for(loan, others, who)} until {moment_text(loan.ask.end)}" if loan else ""
            report = ["report"] if admin or gpu.name in theirs else []
            acceptance = told(tries[gpu.name]) if gpu.name in tries else ""
            return health_row(
                view, bad.get((gpu.host, gpu.address), 0), eyes, [*report, *steps], lent,
                scrubbed=gpu.pool in scrubbed,
                acceptance=acceptance,
            )  # fmt: skip

        return [row(view) for view in views]

    def _loans(self) -> dict[str, Booking]:
        """By GPU, those that are lent now."""
        names = {lane.id: [f"{lane.host}/{one}" for one in lane.addresses] for lane in self._ledger.lanes()}
        loans = self._ledger.loans.current()
        return {name: loan for loan in loans for lane in loan.lanes for name in names.get(lane, ())}

    def _theirs(self, who: Visitor) -> frozenset[str]:
        """``host/address`` of the GPUs that somebody has, or lately had."""
        now, person = self._sources.now(), who.person
        own = {gpu for gpu, claim in self._claims(who) if claim.user_id == person.user_id}
        wanted = Query(
            user_id=person.user_id,
            kinds=frozenset({BookingKind.BOOKING}),
            states=frozenset({BookingState.ACTIVE, BookingState.ENDED}),
            start=now - LATELY,
            end=now,
        )
        names = {lane.id: [f"{lane.host}/{one}" for one in lane.addresses] for lane in self._ledger.lanes()}
        return frozenset(own.union(*(gpus_of(booking, names) for booking in self._ledger.find(wanted))))

    def _claims(self, who: Visitor) -> list[tuple[str, Claim]]:
        """(GPU, server) of all servers of projects of theirs."""
        view, projects = self._sources.yard.latest(), projects_of(who)
        found = ((status.gpu, status.claim) for status in (view.statuses if view else ()))
        return [(f"{gpu.host}/{gpu.address}", claim) for gpu, claim in found if claim and claim.project_id in projects]
