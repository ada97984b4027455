"""The API of health: how each GPU is, its record, reports of faults, and what operators do about a bad one."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import timedelta
from typing import Annotated
from urllib.parse import urlencode

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.health.controllers.health_service import HealthService, NoSuchGpuError
from gpuyard.health.records import HealthState
from gpuyard.health.repeats import By
from gpuyard.health.web.health_documents import (
    FaultReport,
    GpuRecord,
    HealthList,
    HealthRow,
    LentGpu,
    RepairComment,
    RepairList,
    RepairLoan,
    RepairStart,
)
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.model.booking import Person
from gpuyard.model.errors import BlockedError, ForbiddenError
from gpuyard.model.rights import Verb, require
from gpuyard.openstack.people import People
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.documents import Line, Link
from gpuyard.web.people import Visitor
from gpuyard.web.problems import Refusal, response_to
from gpuyard.web.projects import acting_for
from gpuyard.web.token_bucket import RateLimit

TAG = "health"
GPU = "/v1/health/{host}/{address}"
REPORTS, REPORT_EVERY = 10, 300.0
"""Reports of one person at once, and the seconds until one more."""
STARTED = "somebody looks after it"
Host = Annotated[str, Path(max_length=253, pattern=r"^[A-Za-z0-9._-]+$")]
Address = Annotated[str, Path(max_length=32, pattern=r"^[0-9A-Fa-f.:]+$", examples=["0000:27:00.0"])]


class HealthFilter(BaseModel):
    """Each parameter can be repeated: a GPU is listed when it matches one value of each."""

    model_config = ConfigDict(extra="forbid")

    pool: list[Line] = Field([], max_length=100, description="Only these pools.")
    host: list[Line] = Field([], max_length=1000, description="Only these hosts.")
    state: list[HealthState] = Field([], description="Only these states.")
    card: list[Line] = Field([], max_length=100, description="Only where this card is.")

    def matches(self, row: HealthRow) -> bool:
        pairs = ((self.pool, row.pool), (self.host, row.host), (self.state, row.state), (self.card, row.card))
        return all(not allowed or value in allowed for allowed, value in pairs)


class RecordPage(BaseModel):
    """Which part of a record."""

    model_config = ConfigDict(extra="forbid")

    limit: int = Field(100, ge=1, le=500)
    before: int | None = Field(None, ge=1, le=2**62, description="Only older lines; the link to the next page has it.")


class FaultReports:
    """Takes reports of people about GPUs that they have or lately had."""

    def __init__(self, book: HealthReader, service: HealthService, clock: Callable[[], float] = time.monotonic) -> None:
        self._book, self._service = book, service
        self._limit = RateLimit(REPORTS, REPORT_EVERY, clock)

    def report(self, gpu: str, words: str, who: Visitor) -> None:
        """Record a person's report of a fault. Durable when this returns. Raises ForbiddenError; Refusal 429."""
        require(who.person, Verb.REPORT)
        if not self._book.may_report(gpu, who):
            text = f"{who.person.user} has no server on GPU {gpu}, and had no booking of it in the last week"
            raise ForbiddenError(f"{text}; only who has, and admins, can report a fault of it", "forbidden")
        if seconds := self._limit.take(who.person.user_id):
            text = f"You have reported many faults; try again in {seconds} s, or tell an operator."
            raise Refusal(429, "too_many", text, retry_after=seconds)
        self._service.report(gpu, words, who.person)


def install(
    app: FastAPI, book: HealthReader, service: HealthService, faults: FaultReports, people: People, rows: BookingRows
) -> None:
    _install_reading(app, book)
    _install_reports(app, book, faults)
    _install_steps(app, book, service)
    _install_loans(app, book, service, people, rows)

    @app.exception_handler(BlockedError)
    async def blocked(request: Request, error: BlockedError) -> Response:
        return response_to(Refusal(409, "refused", f"{error}.", [str(error)], codes=["state"]))

    @app.exception_handler(NoSuchGpuError)
    async def no_gpu(request: Request, error: NoSuchGpuError) -> Response:
        return response_to(Refusal(404, "not_found", f"{error}; /v1/health lists all."))


def _install_reading(app: FastAPI, book: HealthReader) -> None:
    @app.get("/v1/health", tags=[TAG], responses=responses(headers=False))
    def list_health(who: Who, filters: Annotated[HealthFilter, Query()]) -> HealthList:
        """How every GPU is: its state, since when and why, and when its host was last heard."""
        return HealthList(gpus=[row for row in book.rows(who) if filters.matches(row)])

    @app.get(GPU, tags=[TAG], responses=responses(404, headers=False))
    def show_health(host: Host, address: Address, who: Who, page: Annotated[RecordPage, Query()]) -> GpuRecord:
        """One GPU, and its record."""
        row = book.row(f"{host}/{address}", who)
        events, before = book.record(f"{host}/{address}", who, page.limit, page.before)
        links = []
        if before is not None:
            query = urlencode({"limit": page.limit, "before": before})
            links = [Link(rel="next", href=f"/v1/health/{host}/{address}?{query}")]
        return GpuRecord(gpu=row, events=events, links=links)

    @app.get("/v1/repairs", tags=[TAG], responses=responses(headers=False))
    def list_repairs(who: Who, by: By = By.CARD) -> RepairList:
        """What is out of use, since when, why and what was tried; and what went bad how often. For admins."""
        require(who.person, Verb.REPAIR)
        return RepairList(out=book.out(who), repeats=book.repeats(by))


def _install_reports(app: FastAPI, book: HealthReader, faults: FaultReports) -> None:
    @app.post(f"{GPU}/report", tags=[TAG], status_code=202, responses=responses(404, headers=False))
    def report_fault(host: Host, address: Address, who: Who, fault: FaultReport) -> HealthRow:
        """Say what is wrong with a GPU that one has, or had in the last week. Operators read the words."""
        row = book.row(f"{host}/{address}", who)
        faults.report(f"{host}/{address}", fault.words, who)
        return row


def _install_steps(app: FastAPI, book: HealthReader, service: HealthService) -> None:
    def add(path: str, summary: str, step: Callable[[str, str, Person], object]) -> None:
        @app.post(
            f"{GPU}/{path}",
            tags=[TAG],
            name=path.replace("/", "_"),
            summary=summary,
            responses=responses(404, 409, headers=False),
        )
        def handle(host: Host, address: Address, who: Who, body: RepairComment) -> HealthRow:
            require(who.person, Verb.REPAIR)
            step(f"{host}/{address}", body.comment, who.person)
            return book.row(f"{host}/{address}", who)

    @app.post(f"{GPU}/repair/start", tags=[TAG], responses=responses(404, 409, headers=False))
    def start_repair(host: Host, address: Address, who: Who, start: RepairStart) -> HealthRow:
        """Look after a GPU that is quarantined, in place of who does. For admins."""
        require(who.person, Verb.REPAIR)
        service.start_repair(f"{host}/{address}", start.comment or STARTED, who.person)
        return book.row(f"{host}/{address}", who)

    def leave(gpu: str, comment: str, person: Person) -> object:
        return service.end_repair(gpu, comment, person, repaired=False)

    add("quarantine", "Keep it out of use until somebody has looked at it. For admins.", service.quarantine)
    add("release", "It is well, without a repair; also of one that is suspect or to be accepted.", service.release)
    add("repair/note", "Write down what was seen or tried. For admins.", service.note)
    add("repair/clear-baseline", "Forget what it was accepted with. For admins.", service.clear_baseline)
    add(
        "repair/done", "It is well, and to be accepted first where the site wants that. For admins.", service.end_repair
    )
    add("repair/abandon", "Nobody looks after it any more; it stays out of use. For admins.", leave)


def _install_loans(app: FastAPI, book: HealthReader, service: HealthService, people: People, rows: BookingRows) -> None:
    @app.post(f"{GPU}/repair/lend", tags=[TAG], responses=responses(404, 409, headers=False))
    def lend_gpu(host: Host, address: Address, who: Who, body: RepairLoan) -> LentGpu:
        """Let members of the site's project for repairs start a server on a GPU that is out of use. For admins."""
        require(who.person, Verb.REPAIR)
        rules = service.rules.repair
        if rules is None:
            text = "the site file names no project for repairs: say it as 'project' of 'repair' under 'health'"
            raise BlockedError(text)
        gpu, until = f"{host}/{address}", service.now() + timedelta(minutes=body.minutes)
        loan = service.lend(gpu, until, body.comment, who.person, acting_for(who, rules.project, people))
        return LentGpu(gpu=book.row(gpu, who), loan=rows.of(who, loan.ask.pool)(loan))

    @app.post(f"{GPU}/repair/return", tags=[TAG], responses=responses(404, 409, headers=False))
    def take_gpu_back(host: Host, address: Address, who: Who, body: RepairStart) -> HealthRow:
        """It is lent no more. For admins."""
        require(who.person, Verb.REPAIR)
        service.take_back(f"{host}/{address}", body.comment, who.person)
        return book.row(f"{host}/{address}", who)
