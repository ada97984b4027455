"""Parts that API endpoints share: the visitor, the problems they answer with, parameters that may be empty."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import Depends, Request, Security
from fastapi.security import APIKeyHeader
from pydantic import BeforeValidator

from gpuyard.web.people import Visitor, require_visitor
from gpuyard.web.problems import documented

ETAG = {"ETag": {"description": "The version; send it as If-Match.", "schema": {"type": "string"}}}


TOKEN = APIKeyHeader(
    name="X-Auth-Token",
    scheme_name="KeystoneToken",
    description="A token of Keystone for a project. Browsers use the session of the login page instead.",
    auto_error=False,
)


def _who(request: Request, token: Annotated[str | None, Security(TOKEN)]) -> Visitor:
    return require_visitor(request)  # the gate has looked at the token; here it is for the OpenAPI document


Who = Annotated[Visitor, Depends(_who)]


def _absent(value: Any) -> Any:
    return None if value == "" else value


Maybe = BeforeValidator(_absent)


def responses(*statuses: int, headers: bool = True) -> dict[int | str, dict[str, Any]]:
    always = documented(400, 401, 403, 413, 422, 429, 503, *statuses)
    return {200: {"headers": ETAG}, **always} if headers else always
