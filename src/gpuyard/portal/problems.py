"""Errors as RFC 9457 problem documents: the same shape for every no, each with its reasons."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.responses import JSONResponse, Response

from gpuyard.portal.security import HEADERS

MEDIA_TYPE = "application/problem+json"


class Problem(BaseModel):
    """Why a request was refused (RFC 9457)."""

    type: str = Field("about:blank", description="The kind of problem; about:blank: what the status code says.")
    title: str = Field(description="The status code in words.")
    status: int
    code: str = Field(description="For programs: does not change when the words do.", examples=["no_data_yet"])
    detail: str = Field(description="What is wrong with this request.")
    reasons: list[str] = Field(description="Each single thing that is wrong, and what would be right.")


class Refusal(Exception):
    """Raised by a handler to answer with a problem."""

    def __init__(
        self, status: int, code: str, detail: str, reasons: list[str] | None = None, retry_after: int | None = None
    ) -> None:
        super().__init__(detail)
        self.status, self.code, self.detail, self.reasons = status, code, detail, reasons or []
        self.headers = {} if retry_after is None else {"Retry-After": str(retry_after)}


def no_data_yet() -> Refusal:
    return Refusal(503, "no_data_yet", "The cloud has not been seen yet; ask again in a few seconds.", retry_after=2)


def documented(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """For the OpenAPI document: the problems that an operation may answer with."""
    content = {MEDIA_TYPE: {"schema": Problem.model_json_schema()}}
    return {status: {"description": HTTPStatus(status).phrase, "content": content} for status in statuses}


def install(app: FastAPI) -> None:
    """Make every error of an app a problem document."""

    @app.exception_handler(Refusal)
    async def refused(request: Request, error: Refusal) -> Response:
        return _response(error.status, error.code, error.detail, error.reasons, error.headers)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        phrase = HTTPStatus(error.status_code).phrase
        detail = {
            404: f"There is nothing at {request.url.path}.",
            405: f"{request.method} is not for {request.url.path}: everything here is for reading.",
        }.get(error.status_code, str(error.detail))
        return _response(error.status_code, phrase.lower().replace(" ", "_"), detail, [], dict(error.headers or {}))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        reasons = [f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in error.errors()]
        return _response(422, "invalid_parameters", "The parameters of the request are wrong.", reasons, {})

    @app.exception_handler(Exception)
    async def failed(request: Request, error: Exception) -> Response:
        # This one answers from outside the middleware that adds the headers. What went wrong is in the log only.
        return _response(500, "internal_error", "This is a bug in gpuyard; its log says more.", [], HEADERS)


def _response(status: int, code: str, detail: str, reasons: list[str], headers: dict[str, str]) -> Response:
    problem = Problem(
        type="about:blank",
        title=HTTPStatus(status).phrase,
        status=status,
        code=code,
        detail=detail,
        reasons=reasons or [detail],
    )
    return JSONResponse(problem.model_dump(), status, headers=headers, media_type=MEDIA_TYPE)
