"""The state of the site as a page and as a document, for everybody where the site says so, even when parts of it are
down.

All visitors without a login get the same: it is made once a second, however many ask.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from datetime import datetime, timedelta

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse, Response

from gpuyard.dashboard.sources import Sources
from gpuyard.dashboard.status import SiteStatus, site_status
from gpuyard.dashboard.status_presenter import status_page
from gpuyard.web.assets import render
from gpuyard.web.navigation import Navigation, navigation_of, navigation_of_strangers
from gpuyard.web.people import Visitor, find_visitor
from gpuyard.web.preconditions import not_modified
from gpuyard.web.problems import documented
from gpuyard.web.shared import Shared
from gpuyard.web.visibility import hides

PAGE, DOCUMENT = "/status", "/v1/status"
LASTS = timedelta(seconds=1)
FRESH = "public, max-age=1"
"""Cache-Control of answers for everybody, for caches between us and visitors."""
BY_LOGIN = "Cookie, X-Auth-Token"
"""Headers that tell whether the visitor has a login."""


@dataclass(frozen=True)
class ForAll:
    """A response for everybody who has not logged in."""

    body: str
    media_type: str

    def to(self, request: Request) -> Response:
        tag = f'"{hashlib.sha256(self.body.encode()).hexdigest()[:32]}"'
        headers = {"ETag": tag, "Cache-Control": FRESH, "Vary": BY_LOGIN}
        if not_modified(request, tag):
            return Response(status_code=304, headers=headers)
        return Response(self.body, media_type=self.media_type, headers=headers)


def install(app: FastAPI, sources: Sources) -> None:
    settings = sources.settings

    def seen(who: Visitor | None) -> SiteStatus:
        sees_details = sources.ledger is None or who is not None or settings.anonymous_details
        return statuses.of((sees_details, not hides(settings.others, who)))

    def page(status: SiteStatus, nav: Navigation) -> str:
        view = sources.inventory.latest()
        shown = status_page(status, view.statuses if view else (), sources.now())
        return render("status.html", site=sources.site_name, nav=nav, page=shown)

    def for_strangers(path: str, now: datetime) -> ForAll:
        status = seen(None)
        if path == PAGE:
            return ForAll(page(status, navigation_of_strangers(app.state, path)), "text/html")
        return ForAll(status.model_dump_json(), "application/json")

    statuses: Shared[tuple[bool, bool], SiteStatus] = Shared(
        lambda visibility, now: site_status(sources, details=visibility[0], holds=visibility[1]), LASTS, sources.now
    )
    documents = Shared(for_strangers, LASTS, sources.now)

    @app.get(DOCUMENT, tags=["status"], response_model=SiteStatus, responses=documented(429))
    def status(request: Request) -> SiteStatus | Response:
        """How the site is: what there is now, what is out of use, what is planned, and how old all that is."""
        who = find_visitor(request)
        return documents.of(DOCUMENT).to(request) if who is None else seen(who)

    @app.get(PAGE, include_in_schema=False)
    def status_of_site(request: Request) -> Response:
        who = find_visitor(request)
        if who is None:
            return documents.of(PAGE).to(request)
        # The token of the session is in it.
        return HTMLResponse(page(seen(who), navigation_of(who, request)), headers={"Cache-Control": "no-store"})
