"""Outermost layer of the portal: gives each request an id, and logs and counts its outcome.

It replaces uvicorn's access log, which would contain secrets: addresses of feeds are some.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from time import monotonic

from starlette.datastructures import Headers, MutableHeaders
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.logs.lines import FIELDS
from gpuyard.logs.request_context import HEADER, RequestContext, new_request_id, request_id_of, work_for
from gpuyard.model.counts import Counts, Durations

LOG = logging.getLogger(__name__)
METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})
OTHER = "other"
SENT_BY = (HEADER, "X-Request-Id")
"""Headers in which clients and gateways send an id; the first that is well-formed is taken."""
ID = "gpuyard.request_id"
"""The key of the id in a request's scope."""
BUG = 500
QUIET = frozenset({"/healthz", "/readyz", "/metrics", "/static", "/v1/agents/samples", "/v1/hosts/{host}/looks",
    "/v1/hosts/{host}/scrubs"})  # fmt: skip
"""Routes that programs ask again and again: logged only when something is wrong."""


class RequestCounts:
    """Counts and durations of requests since the start."""

    def __init__(self) -> None:
        self.outcomes = Counts()
        """(method, route, status): routes as the API documents them; empty: none, or refused before that was clear."""
        self.seconds = Durations()
        """From the whole head of the request to the first byte of the answer."""


class Numbered:
    def __init__(self, app: ASGIApp, counts: RequestCounts, routes: Iterable[BaseRoute]) -> None:
        """`routes` of the app, which may become more until the first request."""
        self.app, self._counts, self._routes = app, counts, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, began, status, seconds = Headers(scope=scope), monotonic(), 0, 0.0
        id = next((id for name in SENT_BY if (id := request_id_of(headers.get(name, "")))), "") or new_request_id()

        async def send_with_id(message: Message) -> None:
            nonlocal status, seconds
            if message["type"] == "http.response.start":
                status, seconds = message["status"], monotonic() - began
                MutableHeaders(scope=message)[HEADER] = id
            await send(message)

        scope[ID] = id
        work_for(RequestContext(id))
        try:
            await self.app(scope, receive, send_with_id)
        except Exception:
            status = status or BUG
            raise
        finally:
            if status:  # else who asked has gone
                self._tell(scope, status, seconds)

    def _tell(self, scope: Scope, status: int, seconds: float) -> None:
        method = scope["method"] if scope["method"] in METHODS else OTHER
        route = route_of(scope, self._routes)
        self._counts.outcomes.add(method, route, str(status))
        self._counts.seconds.add(seconds)
        level = logging.DEBUG if status < 400 and route in QUIET else logging.INFO
        fields = {"method": method, "route": route, "status": status, "seconds": round(seconds, 4)}
        LOG.log(level, "%s %s: %d", method, route or "(no such address)", status, extra={FIELDS: fields})


def route_of(scope: Scope, routes: Iterable[BaseRoute]) -> str:
    """Return the route of a request, with names in place of ids and secrets: ``/v1/bookings/{id}``."""
    matched = scope.get("route")
    if matched is None:  # refused by a layer before the routes, or answered by one
        matched = next((route for route in routes if route.matches(scope)[0] is not Match.NONE), None)
    return str(getattr(matched, "path", ""))
