"""Reads the health of GPUs for whoever asks, so that the API and the pages say the same."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.bookings.web.booking_documents import gpus_of
from gpuyard.bookings.web.shown_bookings import project_for
from gpuyard.health.acceptance import told
from gpuyard.health.controllers.health_service import LENT_FROM, GpuView
from gpuyard.health.controllers.health_services import HealthServices
from gpuyard.health.records import KEPT_BACK, GpuHealth, HealthEvent, HealthState
from gpuyard.health.repeats import By, repeats
from gpuyard.health.web.health_documents import (
    HealthEventRow,
    HealthRow,
    RepairRow,
    RepeatRow,
    Viewer,
    event_row,
    health_row,
    repeat_row,
)
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.model.booking import Booking, BookingKind, BookingState
from gpuyard.model.gpu import Claim
from gpuyard.model.moments import minute_text
from gpuyard.model.rights import Verb, may
from gpuyard.web.people import Visitor
from gpuyard.web.visibility import hides, projects_of

LATELY = timedelta(weeks=1)
"""So long after a booking its owner may still report a fault."""
BEGINNING = datetime.fromisoformat("1971-01-01T00:00:00+00:00")
YEAR = timedelta(days=365)
"""So far back failures are counted."""
MOST_EVENTS = 20_000
TRIED = 20
"""Lines of the record of a GPU that is out of use."""
STEPS: dict[str, frozenset[HealthState]] = {
    "quarantine": frozenset(HealthState) - {HealthState.QUARANTINED, HealthState.IN_REPAIR},
    "start": frozenset({HealthState.QUARANTINED, HealthState.IN_REPAIR}),
    "note": frozenset(HealthState),
    "done": frozenset({HealthState.IN_REPAIR}),
    "abandon": frozenset({HealthState.IN_REPAIR}),
    "release": frozenset({HealthState.SUSPECT, HealthState.QUARANTINED, HealthState.TO_ACCEPT}),
}
"""Steps of operators on a GPU, and the states in which each is possible."""


class HealthReader:
    def __init__(self, sources: InventoryContext, services: HealthServices, ledger: Ledger) -> None:
        self._sources, self._services, self._service, self._ledger = sources, services, services.gpus, ledger

    def eyes(self, who: Visitor) -> Viewer:
        """Return what a person may see."""
        near = {claim.server_id for _, claim in self._claims(who)}
        return Viewer(
            who.person.admin,
            not hides(self._sources.settings.others, who),
            near,
            who.person.user,
            self._service.verdicts,
        )

    def rows(self, who: Visitor) -> list[HealthRow]:
        """Return all GPUs, by host and address."""
        return self._rows(self._service.view(), who)

    def row(self, gpu: str, who: Visitor) -> HealthRow:
        """Return one GPU by ``host/address``. Raises NoSuchGpuError."""
        return self._rows([self._service.look(gpu)], who)[0]

    def record(
        self, gpu: str, who: Visitor, limit: int, before: int | None = None
    ) -> tuple[list[HealthEventRow], int | None]:
        """Return lines of a GPU's record, the newest first, and the `before` of the next page; None on the last."""
        host, _, address = gpu.partition("/")
        events = self._service.store.events(host, address.lower(), limit=limit, before=before)
        eyes = self.eyes(who)
        return [event_row(event, eyes) for event in events], events[-1].id if len(events) == limit else None

    def out(self, who: Visitor) -> list[RepairRow]:
        """Return GPUs that are kept back or should be, the longest waiting first, and what was tried."""
        views = [view for view in self._service.view() if view.health.state in KEPT_BACK or view.health.asked]
        views.sort(key=lambda view: (not view.health.asked, view.health.since, view.health.name))
        eyes, rows = self.eyes(who), self._rows(views, who)
        return [
            RepairRow(gpu=row, tried=[event_row(event, eyes) for event in self._tried(view.health)])
            for view, row in zip(views, rows, strict=True)
        ]

    def repeats(self, by: By) -> list[RepeatRow]:
        """Return the most frequent failures within a year."""
        now = self._sources.now()
        lanes = self._ledger.lanes()
        slots = {(lane.host, address): lane.name for lane in lanes for address in lane.addresses}
        events = self._service.store.events(limit=MOST_EVENTS, since=now - YEAR)
        return [repeat_row(repeat) for repeat in repeats(events, by, slots)]

    def may_report(self, gpu: str, who: Visitor) -> bool:
        """Return whether a person may report a fault: an admin; the owner of a server on it; whoever has, or in the
        last week had, a booking of it."""
        return bool(may(who.person, Verb.REPAIR)) or gpu in self._theirs(who)

    def _tried(self, gpu: GpuHealth) -> Iterable[HealthEvent]:
        """Since it went bad, the newest first."""
        for event in self._service.store.events(gpu.host, gpu.address, limit=TRIED):
            yield event
            if event.before not in KEPT_BACK and event.after in KEPT_BACK:
                return

    def _rows(self, views: Sequence[GpuView], who: Visitor) -> list[HealthRow]:
        eyes, admin = self.eyes(who), bool(may(who.person, Verb.REPAIR))
        bad = self._service.store.became(HealthState.QUARANTINED, BEGINNING)
        theirs = frozenset() if admin else self._theirs(who)
        scrubs, acceptance_service = self._services.scrubs, self._services.acceptance
        scrubbed = scrubs.pools if scrubs else frozenset()
        host = views[0].health.host if len(views) == 1 else ""
        tries = acceptance_service.latest(host) if admin and acceptance_service is not None else {}
        loans, others = self._loans(), self._sources.settings.others
        repair = admin and self._service.rules.repair is not None

        def row(view: GpuView) -> HealthRow:
            gpu, loan = view.health, loans.get(view.health.name)
            steps = [name for name, states in STEPS.items() if gpu.state in states] if admin else []
            steps += ["clear-baseline"] if admin and gpu.baseline is not None else []
            steps += ["release"] if admin and gpu.asked and "release" not in steps else []
            if loan is not None:
                steps += ["return"] if admin and not loan.server else []
            elif repair and gpu.state in LENT_FROM:
                steps += ["lend"]
            lent = f"lent to project {project_for(loan, others, who)} until {minute_text(loan.ask.end)}" if loan else ""
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
        names = {lane.id: [f"{lane.host}/{address}" for address in lane.addresses] for lane in self._ledger.lanes()}
        loans = self._ledger.loans.current()
        return {name: loan for loan in loans for lane in loan.lanes for name in names.get(lane, ())}

    def _theirs(self, who: Visitor) -> frozenset[str]:
        """``host/address`` of the GPUs that somebody has, or lately had."""
        now, person = self._sources.now(), who.person
        own = {gpu for gpu, claim in self._claims(who) if claim.user_id == person.user_id}
        query = Query(
            user_id=person.user_id,
            kinds=frozenset({BookingKind.BOOKING}),
            states=frozenset({BookingState.ACTIVE, BookingState.ENDED}),
            start=now - LATELY,
            end=now,
        )
        names = {lane.id: [f"{lane.host}/{address}" for address in lane.addresses] for lane in self._ledger.lanes()}
        return frozenset(own.union(*(gpus_of(booking, names) for booking in self._ledger.find(query))))

    def _claims(self, who: Visitor) -> list[tuple[str, Claim]]:
        """(GPU, server) of all servers of projects of theirs."""
        view, projects = self._sources.inventory.latest(), projects_of(who)
        claims = ((status.gpu, status.claim) for status in (view.statuses if view else ()))
        return [(f"{gpu.host}/{gpu.address}", claim) for gpu, claim in claims if claim and claim.project_id in projects]
