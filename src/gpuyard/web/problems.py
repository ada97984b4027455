"""Turns errors into RFC 9457 problem documents, all of the same shape, each with its reasons."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from pydantic.json_schema import SkipJsonSchema
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Route

from gpuyard.logs.request_context import HEADER as REQUEST_ID
from gpuyard.web.requests import ID
from gpuyard.web.security import HEADERS

MEDIA_TYPE = "application/problem+json"
LOG = logging.getLogger(__name__)


class ProblemDocument(BaseModel, title="Problem"):
    """Why a request was refused (RFC 9457)."""

    type: str = Field("about:blank", description="The kind of problem; about:blank: what the status code says.")
    title: str = Field(description="The status code in words.")
    status: int
    code: str = Field(description="For programs: does not change when the words do.", examples=["no_data_yet"])
    detail: str = Field(description="What is wrong with this request.")
    reasons: list[str] = Field(description="Each single thing that is wrong, and what would be right.")
    # What some problems have besides, and others have not at all.
    codes: list[str] | SkipJsonSchema[None] = Field(None, description="Refused bookings: a code for each reason.")
    alternatives: list[dict[str, Any]] | SkipJsonSchema[None] = Field(
        None, description="Refused bookings: what would be possible, as `ask` and in words as `text`."
    )
    current: dict[str, Any] | SkipJsonSchema[None] = Field(
        None, description="Changed by somebody else meanwhile: what it is now."
    )


class Refusal(Exception):
    """Raised by a handler to answer with a problem."""

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        reasons: list[str] | None = None,
        retry_after: int | None = None,
        headers: Mapping[str, str] | None = None,
        **members: Any,
    ) -> None:
        """`members`: further members of Problem."""
        super().__init__(detail)
        self.status, self.code, self.detail, self.reasons = status, code, detail, reasons or []
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}
        self.headers |= headers or {}
        self.members = members


def no_data_yet() -> Refusal:
    return Refusal(503, "no_data_yet", "The cloud has not been seen yet; ask again in a few seconds.", retry_after=2)


def unavailable(error: Exception) -> Refusal:
    """Return the refusal for a cloud or a database that does not answer; the error itself goes to the log only."""
    LOG.error("a request could not be answered: %s", error)
    return Refusal(503, "unavailable", "What this takes cannot be reached now; try again in a while.", retry_after=10)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the problems that an operation may answer with, for the OpenAPI document."""
    return {status: {"description": HTTPStatus(status).phrase, "content": _content()} for status in statuses}


@cache
def _content() -> Mapping[str, Any]:
    """Reckoned once and shared by all operations: it takes milliseconds, and they are many."""
    return {MEDIA_TYPE: {"schema": ProblemDocument.model_json_schema()}}


def install(app: FastAPI) -> None:
    """Make every error of an app a problem document."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return response_to(error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        phrase, headers = HTTPStatus(error.status_code).phrase, dict(error.headers or {})
        detail = str(error.detail)
        if error.status_code == 404:
            detail = f"There is nothing at {request.url.path}."
        elif error.status_code == 405:
            methods = _methods(request)
            detail = f"{request.method} is not for {request.url.path}: {_what_is_for(methods)}."
            headers["Allow"] = ", ".join(methods)
        return _response(error.status_code, phrase.lower().replace(" ", "_"), detail, [], headers)

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        reasons = [f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in error.errors()]
        return _response(422, "invalid_parameters", "The parameters of the request are wrong.", reasons, {})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # This one answers from outside the middleware that adds the headers. What went wrong is in the log only.
        headers = HEADERS | {REQUEST_ID: request.scope.get(ID, "")}
        return _response(500, "internal_error", "This is a bug in gpuyard; its log says more.", [], headers)


def response_to(refusal: Refusal) -> Response:
    headers = dict(refusal.headers)
    if refusal.status == 401:
        headers.setdefault("WWW-Authenticate", "Keystone")
    return _response(refusal.status, refusal.code, refusal.detail, refusal.reasons, headers, refusal.members)


def _methods(request: Request) -> list[str]:
    """What a path takes; a route alone knows no more than its own."""
    path = request.scope["path"]
    routes = [route for route in request.app.routes if isinstance(route, Route) and route.path_regex.match(path)]
    return sorted({method for route in routes for method in route.methods or ()})


def _what_is_for(methods: list[str]) -> str:
    return f"it takes {', '.join(methods)}" if set(methods) - {"GET", "HEAD"} else "everything here is for reading"


def _response(
    status: int,
    code: str,
    detail: str,
    reasons: list[str],
    headers: Mapping[str, str],
    members: Mapping[str, Any] | None = None,
) -> Response:
    problem = ProblemDocument(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        reasons=reasons or [detail],
        **(members or {}),
    )
    return Response(problem.model_dump_json(exclude_unset=True), status, headers=headers, media_type=MEDIA_TYPE)
