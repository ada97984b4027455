"""The API for operators: holds, troubles of GPUs, changed rules, and the audit log."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import AuditQuery
from gpuyard.bookings.records import Query as BookingQuery
from gpuyard.bookings.web.booking_documents import BookingList, BookingRows, HoldAsk
from gpuyard.bookings.web.bookings_api import TAG
from gpuyard.model.booking import FOREVER, BookingKind, Lane
from gpuyard.model.booking_life import OPEN
from gpuyard.model.finding import Severity
from gpuyard.model.rights import Verb, require
from gpuyard.site.booking_rules import BookingRules, known_zone, resolve
from gpuyard.web.api_requests import Maybe, Who, responses
from gpuyard.web.documents import Line, Link, Moment, Sent


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


class BackAsk(Sent):
    """When GPUs that cannot be used now will be back."""

    gpus: list[Line] = Field(min_length=1, max_length=1000, description="host/address of each, or a host.")
    back: Moment | None = Field(None, description="null: as the rule `trouble` says.")


class TroubleRow(BaseModel):
    gpus: list[str] = Field(description="host/address, the leader's first.")
    pool: str
    trouble: str
    back: Moment | None = Field(description="As an operator has said; null: as the rule `trouble` says.")


class Troubles(BaseModel):
    troubles: list[TroubleRow] = Field(description="By pool, host and address.")


def _troubles(lanes: Iterable[Lane]) -> Troubles:
    def row(lane: Lane) -> TroubleRow:
        gpus = [f"{lane.host}/{address}" for address in lane.addresses]
        return TroubleRow(gpus=gpus, pool=lane.pool, trouble=lane.trouble, back=lane.back)

    return Troubles(troubles=[row(lane) for lane in lanes])


class AuditFilter(BaseModel):
    """Which entries; an empty value is as none."""

    model_config = ConfigDict(extra="forbid")

    user: Line = Field("", description="Name: who did it, or whose booking it was.")
    target: Line = Field("", description="Begin of the id of a booking or server.")
    pool: Line = ""
    project: Line = Field("", description="Name or id.")
    start: Annotated[Moment | None, Maybe] = Field(None, alias="from", description="Not before this.")
    end: Annotated[Moment | None, Maybe] = Field(None, alias="to", description="Before this.")
    limit: int = Field(100, ge=1, le=1000)
    before: int | None = Field(None, ge=1, le=2**62, description="Only those with a smaller id.")


class RulesOf(Sent):
    """What would hold for the bookings of a project in a pool."""

    pool: Line
    project: Line = Field(description="Name.")
    rules: BookingRules | None = Field(description="As the site file states them; null: the pool is gone.")


class ChangedRules(Sent):
    """Rules as a changed site file has them."""

    timezone: Annotated[str, AfterValidator(known_zone)] = Field("UTC", description="Of quiet hours.")
    rules: list[RulesOf] = Field(max_length=100, description="Projects and pools that are not named stay as they are.")


class FindingRow(BaseModel):
    code: str = Field(examples=["booking-not-allowed"])
    severity: Severity
    object: str = Field(description="The booking.")
    reason: str
    remedy: str
    payload: dict[str, str] = Field(description="The rule, and what booking it is.")


class Findings(BaseModel):
    findings: list[FindingRow] = Field(description="By pool, start and id of the booking.")


def install(app: FastAPI, ledger: Ledger, rows: BookingRows) -> None:
    @app.get("/v1/holds", tags=[TAG], responses=responses(headers=False))
    def list_holds(who: Who) -> BookingList:
        """Holds that are not over."""
        holds = ledger.find(BookingQuery(kinds=frozenset({BookingKind.HOLD}), states=OPEN))
        return BookingList(bookings=list(map(rows.of(who), holds)))

    @app.post("/v1/holds", tags=[TAG], status_code=201, responses=responses(409, headers=False))
    def create_hold(who: Who, ask: HoldAsk) -> BookingList:
        """Keep GPUs out of use; for admins. Bookings in the way move to other GPUs, or are named."""
        made = ledger.hold(
            ask.gpus, ask.start, ask.end, who.person, ask.comment,
            hosts=ask.hosts, pools=ask.pools, repeat=ask.repeat, zone=ask.timezone,
        )  # fmt: skip
        return BookingList(bookings=list(map(rows.of(who), made)))

    @app.post("/v1/troubles", tags=[TAG], responses=responses(409, headers=False))
    def expect_back(who: Who, body: BackAsk) -> Troubles:
        """Say when GPUs that cannot be used now will be back: they can be booked from then on; for admins."""
        return _troubles(ledger.expect_back(body.gpus, body.back, who.person))

    @app.get("/v1/troubles", tags=[TAG], responses=responses(headers=False))
    def list_troubles(who: Who) -> Troubles:
        """GPUs that cannot be used now."""
        return _troubles(lane for lane in ledger.lanes() if lane.trouble and lane.back != FOREVER)

    @app.post("/v1/rules/check", tags=[TAG], responses=responses(headers=False))
    def check_rules(who: Who, changed: ChangedRules) -> Findings:
        """What open bookings would lose by other rules, without changing anything; for admins."""
        require(who.person, Verb.ADMINISTER)
        rules = {
            (rule.pool, rule.project): None if rule.rules is None else resolve(site=rule.rules)
            for rule in changed.rules
        }
        findings = ledger.changed_rules(rules, changed.timezone)
        return Findings(findings=[FindingRow(**finding.as_dict()) for finding in findings])

    @app.get("/v1/audit", tags=["operation"], responses=responses(headers=False))
    def audit(request: Request, who: Who, filters: Annotated[AuditFilter, Query()]) -> Audit:
        """Who did what by which rule; for admins."""
        require(who.person, Verb.ADMINISTER)
        query = AuditQuery(filters.user, filters.target, filters.pool, filters.project, filters.start, filters.end)
        records = ledger.audit(filters.limit, filters.before, query)
        entries = [AuditRow.model_validate(entry, from_attributes=True) for entry in records]
        links = []
        if len(entries) == filters.limit:
            query_string = [(name, value) for name, value in request.query_params.multi_items() if name != "before"]
            links = [Link(rel="next", href=f"/v1/audit?{urlencode([*query_string, ('before', entries[-1].id)])}")]
        return Audit(entries=entries, links=links)
