"""The pages of bookings: frames that their scripts fill from the API, as any program could."""

from __future__ import annotations

from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from gpuyard.model.rights import Verb, require
from gpuyard.web.assets import render
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import require_page_visitor
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.search import Sought

COMMON = ("zone.js", "client.js", "form.js", "actions.js")
"""Scripts of every page, in the order in which they need each other."""


def install(app: FastAPI, sources: PortalContext, pools: Sequence[str]) -> None:
    def page(request: Request, template: str, scripts: Sequence[str], q: str = "") -> HTMLResponse:
        visitor = require_page_visitor(request)
        html = render(
            template,
            site=sources.site_name,
            nav=navigation_of(visitor, request),
            scripts=[*COMMON, *scripts],
            q=q,
            pools=list(pools),
            runners=bool(request.app.state.runners),
            health=bool(request.app.state.health),
        )
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    @app.get("/calendar", include_in_schema=False)
    def calendar(request: Request) -> HTMLResponse:
        return page(request, "calendar.html", ["rows.js", "timeline.js", "calendar.js"])

    @app.get("/bookings", include_in_schema=False)
    def my_bookings(request: Request, q: Sought = "") -> HTMLResponse:
        return page(request, "bookings.html", ["bookings.js"], q)

    @app.get("/admin", include_in_schema=False)
    def admin(request: Request) -> HTMLResponse:
        require(require_page_visitor(request).person, Verb.ADMINISTER)
        return page(request, "admin.html", ["admin.js"])
