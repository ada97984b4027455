"""Answers refusals of the ledger, and failures of the cloud and the database, with problem documents.

A visitor without a login who asks for a page is sent to the login instead.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import RedirectResponse, Response

from gpuyard.bookings.errors import NoBookingError, RefusedError, StaleError
from gpuyard.bookings.store import StoreError
from gpuyard.bookings.web.booking_documents import BookingRows, alternative_documents
from gpuyard.model.booking_life import LifeError
from gpuyard.model.errors import ForbiddenError, UsageError
from gpuyard.openstack.errors import CloudError
from gpuyard.web.access import to_login
from gpuyard.web.people import LoginNeeded, require_visitor
from gpuyard.web.preconditions import etag
from gpuyard.web.problems import Refusal, response_to, unavailable


def install(app: FastAPI, rows: BookingRows) -> None:
    @app.exception_handler(RefusedError)
    async def refused(request: Request, error: RefusedError) -> Response:
        reasons = error.answer.reasons
        return response_to(
            Refusal(
                409,
                "refused",
                "This cannot be booked." if request.method == "POST" else "This cannot be changed so.",
                [reason.text for reason in reasons],
                codes=[reason.code for reason in reasons],
                alternatives=[
                    alternative_document.model_dump(mode="json")
                    for alternative_document in alternative_documents(error.answer.alternatives)
                ],
            )
        )

    @app.exception_handler(LifeError)
    async def cannot_become(request: Request, error: LifeError) -> Response:
        text = str(error)
        return response_to(Refusal(409, "refused", text, [text], codes=["state"], alternatives=[]))

    @app.exception_handler(StaleError)
    def stale(request: Request, error: StaleError) -> Response:
        row = rows.of(require_visitor(request), error.current.ask.pool)(error.current)
        headers = {"ETag": etag(error.current.version)}
        refusal = Refusal(412, "changed_meanwhile", str(error), headers=headers, current=row.model_dump(mode="json"))
        return response_to(refusal)

    @app.exception_handler(NoBookingError)
    async def not_there(request: Request, error: NoBookingError) -> Response:
        return response_to(Refusal(404, "not_found", f"{error}."))

    @app.exception_handler(ForbiddenError)
    async def forbidden(request: Request, error: ForbiddenError) -> Response:
        return response_to(Refusal(403, error.code, f"{str(error)[0].upper()}{str(error)[1:]}."))

    @app.exception_handler(UsageError)
    async def wrong(request: Request, error: UsageError) -> Response:
        return response_to(Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [str(error)]))

    async def not_reached(request: Request, error: Exception) -> Response:
        return response_to(unavailable(error))

    app.add_exception_handler(CloudError, not_reached)
    app.add_exception_handler(StoreError, not_reached)

    @app.exception_handler(LoginNeeded)
    async def log_in_first(request: Request, error: LoginNeeded) -> RedirectResponse:
        return to_login(request)
