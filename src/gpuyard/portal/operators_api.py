"""For operators: holds, and who did what."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query
from pydantic import BaseModel, Field

from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.life import OPEN
from gpuyard.ledger.records import Query as Wanted
from gpuyard.model.booking import BookingKind
from gpuyard.portal.booking_documents import BookingList, HoldAsk, Link, Moment, rows_for
from gpuyard.portal.bookings_api import TAG, Who, responses
from gpuyard.portal.problems import Refusal


class AuditRow(BaseModel):
    id: int
    at: Moment
    actor: str = Field(description="A user's name, or gpuyard.")
    action: str = Field(examples=["booking.create", "server.shelve"])
    target: str = Field(description="Id of a booking or of a server.")
    rule: str = Field(description="The rule that caused it or was set aside; empty: none.")
    text: str


class Audit(BaseModel):
    entries: list[AuditRow] = Field(description="The newest first.")
    links: list[Link]


def install(app: FastAPI, ledger: Ledger) -> None:
    @app.get("/v1/holds", tags=[TAG], responses=responses(headers=False))
    def list_holds(who: Who) -> BookingList:
        """Holds that are not over."""
        rows = rows_for(who.person, ledger.lanes())
        found = ledger.find(Wanted(kinds=frozenset({BookingKind.HOLD}), states=OPEN))
        return BookingList(bookings=[rows(hold) for hold in found])

    @app.post("/v1/holds", tags=[TAG], status_code=201, responses=responses(409, headers=False))
    def create_hold(who: Who, ask: HoldAsk) -> BookingList:
        """Keep GPUs out of use; for admins. Bookings in the way move to other GPUs, or are named."""
        made = ledger.hold(ask.gpus, ask.start, ask.end, who.person, ask.comment)
        rows = rows_for(who.person, ledger.lanes())
        return BookingList(bookings=[rows(hold) for hold in made])

    @app.get("/v1/audit", tags=["operation"], responses=responses(headers=False))
    def audit(
        who: Who,
        limit: Annotated[int, Query(ge=1, le=1000)] = 100,
        before: Annotated[int | None, Query(ge=1, le=2**62, description="Only those with a smaller id.")] = None,
    ) -> Audit:
        """Who did what by which rule; for admins."""
        if not who.person.admin:
            raise Refusal(403, "forbidden", "The audit log is for those with the role admin.")
        entries = [AuditRow.model_validate(entry, from_attributes=True) for entry in ledger.audit(limit, before)]
        links = []
        if len(entries) == limit:
            links = [Link(rel="next", href=f"/v1/audit?limit={limit}&before={entries[-1].id}")]
        return Audit(entries=entries, links=links)
