"""The API of maintenances of hosts, for admins."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Path, Query, Request
from fastapi.responses import Response

from gpuyard.health.controllers.maintenance import MaintenanceService, NoSuchHostError, NoSuchMaintenanceError
from gpuyard.health.web.maintenance_documents import (
    MaintenanceAnswer,
    MaintenanceAsk,
    MaintenanceDone,
    MaintenanceExtension,
    MaintenanceList,
    MaintenancePermission,
    MaintenanceQuestion,
    MaintenanceRow,
    MaintenanceSaid,
    maintenance_answer,
    maintenance_row,
)
from gpuyard.model.rights import Verb, require
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.documents import Line
from gpuyard.web.problems import Refusal, response_to

TAG = "health"
ONE = "/v1/maintenances/{id}"
Id = Annotated[str, Path(max_length=64, pattern=r"^[A-Za-z0-9-]+$")]


def install(app: FastAPI, service: MaintenanceService) -> None:
    _install_reading(app, service)
    _install_steps(app, service)

    @app.exception_handler(NoSuchMaintenanceError)
    async def no_maintenance(request: Request, error: NoSuchMaintenanceError) -> Response:
        return response_to(Refusal(404, "not_found", f"{error}; /v1/maintenances lists all."))

    @app.exception_handler(NoSuchHostError)
    async def no_host(request: Request, error: NoSuchHostError) -> Response:
        return response_to(Refusal(404, "not_found", f"{error}."))


def _install_reading(app: FastAPI, service: MaintenanceService) -> None:
    @app.get("/v1/maintenances", tags=[TAG], responses=responses(headers=False))
    def list_maintenances(
        who: Who,
        host: Annotated[Line, Query(description="Only of this host.")] = "",
        past: Annotated[bool, Query(description="Also those that are over.")] = False,
    ) -> MaintenanceList:
        """Maintenances of hosts: where each is, who still uses the host, and what it waits for. For admins."""
        require(who.person, Verb.REPAIR)
        return MaintenanceList(maintenances=[maintenance_row(view) for view in service.views(host, past=past)])

    @app.get(ONE, tags=[TAG], responses=responses(404, headers=False))
    def show_maintenance(id: Id, who: Who) -> MaintenanceRow:
        """One of them. For admins."""
        require(who.person, Verb.REPAIR)
        return maintenance_row(service.view(id))


def _install_steps(app: FastAPI, service: MaintenanceService) -> None:
    @app.post("/v1/maintenances", tags=[TAG], status_code=201, responses=responses(404, 409, headers=False))
    def plan_maintenance(who: Who, ask: MaintenanceAsk) -> MaintenanceRow:
        """Nothing new is booked on a host in a time; bookings there move, owners of those that cannot are told."""
        require(who.person, Verb.REPAIR)
        maintenance = service.plan(ask.host, ask.start, ask.end, ask.comment, who.person, ask.may_go_down)
        return maintenance_row(service.view(maintenance.id))

    @app.post("/v1/maintenances/check", tags=[TAG], responses=responses(404, 409, headers=False))
    def check_maintenance(who: Who, question: MaintenanceQuestion) -> MaintenanceAnswer:
        """What a maintenance would mean: who is there, what would move, what cannot. Changes nothing. For admins."""
        require(who.person, Verb.REPAIR)
        return maintenance_answer(question.host, service.forecast(question.host, question.start, question.end))

    @app.post(f"{ONE}/start", tags=[TAG], responses=responses(404, 409, headers=False))
    def start_maintenance(id: Id, who: Who, body: MaintenanceSaid) -> MaintenanceRow:
        """Begin before its time, or work again on a host that is being checked. For admins."""
        require(who.person, Verb.REPAIR)
        return maintenance_row(service.view(service.start(id, body.comment, who.person).id))

    @app.post(f"{ONE}/allow", tags=[TAG], responses=responses(404, 409, headers=False))
    def allow_servers(id: Id, who: Who, permission: MaintenancePermission) -> MaintenanceRow:
        """Let work begin although these servers are on the host: they go down with it. For admins."""
        require(who.person, Verb.REPAIR)
        return maintenance_row(service.view(service.allow(id, permission.servers, permission.comment, who.person).id))

    @app.post(f"{ONE}/done", tags=[TAG], responses=responses(404, 409, headers=False))
    def end_maintenance(id: Id, who: Who, body: MaintenanceDone) -> MaintenanceRow:
        """The work is done: the host is given back when it was heard of and its GPUs are well. For admins."""
        require(who.person, Verb.REPAIR)
        service.done(id, body.comment, who.person, unchecked=body.unchecked)
        return maintenance_row(service.view(id))

    @app.post(f"{ONE}/extend", tags=[TAG], responses=responses(404, 409, headers=False))
    def extend_maintenance(id: Id, who: Who, body: MaintenanceExtension) -> MaintenanceRow:
        """It is back at another time, later or earlier. For admins."""
        require(who.person, Verb.REPAIR)
        return maintenance_row(service.view(service.extend(id, body.end, body.comment, who.person).id))

    @app.post(f"{ONE}/cancel", tags=[TAG], responses=responses(404, 409, headers=False))
    def cancel_maintenance(id: Id, who: Who, body: MaintenanceSaid) -> MaintenanceRow:
        """It is not needed. For admins."""
        require(who.person, Verb.REPAIR)
        return maintenance_row(service.view(service.cancel(id, body.comment, who.person).id))
