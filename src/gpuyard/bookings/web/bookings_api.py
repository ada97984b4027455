"""The API of bookings, for programs and pages: list, make, change and end them. The ledger decides; this speaks
HTTP."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated
from urllib.parse import urlencode

from fastapi import FastAPI, Header, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.bookings.errors import RefusedError, StaleError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query as BookingQuery
from gpuyard.bookings.web.booking_documents import (
    Because,
    BookingAsk,
    BookingChanges,
    BookingEnd,
    BookingList,
    BookingRow,
    BookingRows,
    Cancelling,
    CaseList,
    CheckResult,
    Extension,
    check_result,
    overstay_row,
)
from gpuyard.model.booking import Booking, BookingKind, BookingState, Person
from gpuyard.model.rights import Verb, require
from gpuyard.web.api_requests import ETAG, Maybe, Who, responses
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.documents import Line, Link, Moment
from gpuyard.web.people import Visitor
from gpuyard.web.preconditions import etag, not_modified, wanted_version
from gpuyard.web.problems import Refusal
from gpuyard.web.projects import acting_for, colleague, in_project_of

TAG = "bookings"
IF_MATCH = {
    "name": "If-Match",
    "in": "header",
    "schema": {"type": "string"},
    "description": "The ETag that was read; the change is refused when the booking has another one by now.",
}
Id = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9-]+$", description="Of the booking.")]
Key = Annotated[
    str,
    Header(
        alias="Idempotency-Key",
        max_length=255,
        pattern=r"^[\x21-\x7e]*$",
        description="Any text that is new for each wish: asked again with the same one, nothing is booked twice.",
    ),
]


class BookingFilter(BaseModel):
    """Which bookings to list; an empty value is as none."""

    model_config = ConfigDict(extra="forbid")

    pool: Line = ""
    project: Line = Field("", description="Name or id.")
    user: Line = Field("", description="Name or id.")
    series: Line = Field("", description="Those of one recurring booking.")
    id: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9-]*$", description="Those whose id begins with this.")
    state: list[BookingState] = Field([], description="Any of these.")
    kind: list[BookingKind] = Field([], description="Any of these; all but runners when there is none.")
    start: Annotated[Moment | None, Maybe] = Field(None, alias="from", description="Only those that end after this.")
    end: Annotated[Moment | None, Maybe] = Field(None, alias="to", description="Only those that start before this.")
    mine: Annotated[bool | None, Maybe] = Field(None, description="Only those of who asks.")
    limit: int = Field(100, ge=1, le=1000)
    marker: str = Field("", max_length=64, pattern=r"^[A-Za-z0-9-]*$", description="Id of the last one that was got.")


OF_PEOPLE = frozenset({BookingKind.BOOKING, BookingKind.HOLD, BookingKind.LOAN})
"""The kinds that are listed where nobody asks for runners: of these there may be thousands a day."""


def install(
    app: FastAPI, ledger: Ledger, authenticator: Authenticator, rows: BookingRows, report: Report | None = None
) -> None:
    """Add the routes. `report`: takes what a person says is wrong with a GPU; None where the site does not follow
    health."""

    def shown(booking: Booking, who: Visitor, response: Response) -> BookingRow:
        response.headers["ETag"] = etag(booking.version)
        return rows.of(who, booking.ask.pool)(booking)

    _install_reading(app, ledger, authenticator, rows, shown)
    _install_making(app, ledger, authenticator, rows, shown)
    _install_changing(app, ledger, shown)
    _install_acts(app, ledger, shown)
    _install_ends(app, ledger, shown, rows, report)


Report = Callable[[str, str, Visitor], None]
"""(``host/address``, words, who says so); raises Refusal and LedgerError."""
Shown = Callable[[Booking, Visitor, Response], BookingRow]


def _install_reading(
    app: FastAPI, ledger: Ledger, authenticator: Authenticator, rows: BookingRows, shown: Shown
) -> None:
    @app.get("/v1/bookings", tags=[TAG], responses=responses(headers=False))
    def list_bookings(request: Request, who: Who, filters: Annotated[BookingFilter, Query()]) -> BookingList:
        """Bookings and holds, of everybody, by start."""
        bookings: list[Booking] = []
        for query in _queries(filters, who, authenticator):
            bookings += ledger.find(query, filters.limit, filters.marker)
        bookings = sorted(bookings, key=lambda booking: (booking.ask.start, booking.id))[: filters.limit]
        # Or a search, and the link to its next page, would tell whose the others are.
        if filters.user or filters.project:
            bookings = [booking for booking in bookings if rows.shows(who, booking)]
        links = []
        if len(bookings) == filters.limit:
            query_string = [(name, value) for name, value in request.query_params.multi_items() if name != "marker"]
            following = urlencode([*query_string, ("marker", bookings[-1].id)])
            links = [Link(rel="next", href=f"/v1/bookings?{following}")]
        return BookingList(bookings=list(map(rows.of(who), bookings)), links=links)

    @app.get("/v1/bookings/{id}", tags=[TAG], response_model=BookingRow, responses=responses(404))
    def show_booking(request: Request, response: Response, who: Who, id: Id) -> Response | BookingRow:
        """One booking."""
        booking = ledger.get(id)
        # Of a version others may have been told more, in this very browser.
        if rows.shows(who, booking) and not_modified(request, etag(booking.version)):
            return Response(status_code=304, headers={"ETag": etag(booking.version)})
        return shown(booking, who, response)

    @app.get("/v1/cases", tags=[TAG], responses=responses(headers=False))
    def list_cases(who: Who) -> CaseList:
        """Servers of who asks that keep a GPU without a booking, and what becomes of them; for admins those of all."""
        return CaseList(cases=[overstay_row(overstay, who.person) for overstay in ledger.overstays(who.person)])


def _queries(filters: BookingFilter, who: Visitor, authenticator: Authenticator) -> list[BookingQuery]:
    """What to ask the ledger for: one query for each project and user that is meant; a name may be several."""
    projects, users = [""], [""]
    if filters.project:
        own = [
            project.project_id for project in who.projects if filters.project in (project.project_id, project.project)
        ]
        projects = own or [project.id for project in authenticator.people.projects(filters.project)]
    if filters.mine or filters.user in (who.person.user_id, who.person.user):
        users = [who.person.user_id]
        if filters.user not in ("", who.person.user_id, who.person.user):
            users = []  # mine, and somebody else's
    elif filters.user:
        users = list(authenticator.people.users(filters.user))
    return [
        BookingQuery(
            pool=filters.pool,
            project_id=project,
            user_id=user,
            series=filters.series,
            id=filters.id,
            kinds=frozenset(filters.kind) or (frozenset() if filters.id else OF_PEOPLE),
            states=frozenset(filters.state),
            start=filters.start,
            end=filters.end,
        )
        for project in projects
        for user in users
    ]


def _install_making(
    app: FastAPI, ledger: Ledger, authenticator: Authenticator, rows: BookingRows, shown: Shown
) -> None:
    @app.post(
        "/v1/bookings",
        tags=[TAG],
        status_code=201,
        responses={201: {"headers": ETAG}, **responses(409, headers=False)},
    )
    def create_booking(response: Response, who: Who, ask: BookingAsk, key: Key = "") -> BookingRow | BookingList:
        """Book. A recurring booking is answered with all that were made."""
        person = acting_for(who, ask.project, authenticator.people)
        require(person, Verb.BOOK)
        made = ledger.create(
            ask.ask(),
            colleague(ask.user, person, authenticator),
            by=person,
            shared=ask.shared,
            wait=ask.wait,
            override=ask.override,
            key=key,
            repeat=ask.repeat,
            zone=ask.timezone,
        )
        if ask.repeat:
            return BookingList(bookings=list(map(rows.of(who, ask.pool), made)))
        response.headers["Location"] = f"/v1/bookings/{made[0].id}"
        return shown(made[0], who, response)

    @app.post("/v1/bookings/check", tags=[TAG], responses=responses(headers=False))
    def check_booking(
        who: Who,
        ask: BookingAsk,
        without: Annotated[
            str,
            Query(max_length=64, pattern=r"^[A-Za-z0-9-]*$", description="As if that booking (its id) were not there."),
        ] = "",
    ) -> CheckResult:
        """Whether that could be booked now. Nothing is kept. Of a recurring booking the first is looked at."""
        person = acting_for(who, ask.project, authenticator.people)
        if without and (hits := ledger.find(BookingQuery(id=without), 1)) and hits[0].id == without:
            require(in_project_of(who, hits[0]), Verb.CHANGE, hits[0])  # or it would tell of others' rules and limits
        try:
            return check_result(ledger.check(ask.ask(), person, without=without))
        except RefusedError as refused:
            return check_result(refused.answer)


def _install_changing(app: FastAPI, ledger: Ledger, shown: Shown) -> None:
    def booking_to_change(id: str, version: int | None) -> Booking:
        booking = ledger.get(id)
        if version is not None and booking.version != version:
            raise StaleError(f"booking {id} was changed by somebody else since you read it; look again", booking)
        return booking

    @app.patch(
        "/v1/bookings/{id}",
        tags=[TAG],
        responses=responses(404, 409, 412, 428),
        openapi_extra={"parameters": [{**IF_MATCH, "required": True}]},
    )
    def change_booking(request: Request, response: Response, who: Who, id: Id, changes: BookingChanges) -> BookingRow:
        """Another time, number or comment; also extends or shortens one that has begun."""
        version = wanted_version(request, required=True)
        booking = booking_to_change(id, version)
        person = in_project_of(who, booking)
        # Without a version ("*") the one that the changes were laid over, so that nothing of another's is lost.
        changed = ledger.edit(
            id,
            changes.apply(booking.ask),
            person,
            version or booking.version,
            override=changes.override,
            series=changes.series,
        )
        return shown(changed, who, response)

    @app.post(
        "/v1/bookings/{id}/extend",
        tags=[TAG],
        responses=responses(404, 409, 412),
        openapi_extra={"parameters": [IF_MATCH]},
    )
    def extend_booking(request: Request, response: Response, who: Who, id: Id, until: Extension) -> BookingRow:
        """Another end."""
        booking = booking_to_change(id, wanted_version(request))
        person = in_project_of(who, booking)
        ask = replace(booking.ask, end=until.end)
        changed = ledger.edit(id, ask, person, booking.version, override=until.override)
        return shown(changed, who, response)

    @app.delete(
        "/v1/bookings/{id}",
        tags=[TAG],
        responses=responses(404, 409, 412),
        openapi_extra={"parameters": [IF_MATCH]},
    )
    def give_back(request: Request, response: Response, who: Who, id: Id) -> BookingRow:
        """Cancel it, or end it when it has begun. It can still be looked at."""
        version, booking = wanted_version(request), ledger.get(id)
        person = in_project_of(who, booking)
        begun = booking.state is BookingState.ACTIVE
        work = ledger.end if begun else ledger.cancel
        return shown(work(id, person, version), who, response)


Act = Callable[[str, Person, int | None, str], Booking]


def _install_acts(app: FastAPI, ledger: Ledger, shown: Shown) -> None:
    def add(verb: str, summary: str, act: Act) -> None:
        @app.post(
            f"/v1/bookings/{{id}}/{verb}",
            tags=[TAG],
            name=f"{verb}_booking",
            summary=summary,
            responses=responses(404, 409, 412),
            openapi_extra={"parameters": [IF_MATCH]},
        )
        def handle(
            request: Request, response: Response, who: Who, id: Id, because: Because | None = None
        ) -> BookingRow:
            person = in_project_of(who, ledger.get(id))
            reason = because.reason if because else ""
            return shown(act(id, person, wanted_version(request), reason), who, response)

    def decline(id: str, who: Person, version: int | None, reason: str) -> Booking:
        booking = ledger.get(id)
        require(who, Verb.DECLINE, booking)
        if booking.state not in (BookingState.REQUESTED, BookingState.OFFERED):
            text = f"booking {id} is {booking.state.value}: there is no request and no offer to decline; cancel it"
            raise Refusal(409, "refused", text, [text], codes=["state"], alternatives=[])
        return ledger.cancel(id, who, booking.version if version is None else version, reason)

    def release(id: str, who: Person, version: int | None, reason: str) -> Booking:
        if version is not None and (booking := ledger.get(id)).version != version:
            raise StaleError(f"booking {id} was changed by somebody else since you read it; look again", booking)
        return ledger.open(id, who)

    @app.post(
        "/v1/bookings/{id}/cancel",
        tags=[TAG],
        responses=responses(404, 409, 412),
        openapi_extra={"parameters": [IF_MATCH]},
    )
    def cancel_booking(
        request: Request, response: Response, who: Who, id: Id, because: Cancelling | None = None
    ) -> BookingRow:
        """Before it begins; also takes it off the waitlist, or ends a hold."""
        person = in_project_of(who, ledger.get(id))
        reason, series = (because.reason, because.series) if because else ("", False)
        return shown(ledger.cancel(id, person, wanted_version(request), reason, series=series), who, response)

    add("approve", "For admins.", lambda id, who, version, _: ledger.approve(id, who, version))
    add("decline", "A request, as an admin, or an offer.", decline)
    add("accept", "Take an offer.", lambda id, who, version, _: ledger.accept(id, who, version))
    add("open", "In pools with unbooked use: release its GPUs for a server of its owner's, for a while.", release)


def _install_ends(app: FastAPI, ledger: Ledger, shown: Shown, rows: BookingRows, report: Report | None) -> None:
    @app.post(
        "/v1/bookings/{id}/end",
        tags=[TAG],
        responses=responses(404, 409, 412),
        openapi_extra={"parameters": [IF_MATCH]},
    )
    def end_booking(
        request: Request, response: Response, who: Who, id: Id, because: BookingEnd | None = None
    ) -> BookingRow:
        """End it now; the rest of its time is free at once. Say also when something was wrong with its GPUs."""
        booking, fault = ledger.get(id), because.fault if because else ""
        person = in_project_of(who, booking)
        if fault and report is None:
            text = "this site does not follow the health of GPUs: tell an operator what was wrong, and end it without"
            raise Refusal(409, "refused", text, [text], codes=["health"], alternatives=[])
        if fault and report is not None:
            require(person, Verb.END, booking)
            # First what would be lost: that it was said may be heard twice, and must not be forgotten.
            for gpu in rows.of(who, booking.ask.pool)(booking).gpu_names:
                report(gpu, fault, who)
        return shown(ledger.end(id, person, wanted_version(request)), who, response)
