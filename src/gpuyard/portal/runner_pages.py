"""The pages of runners: all of them, and one job. Made on the server; runners.js loads them again."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse

from gpuyard.portal.assets import render
from gpuyard.portal.navigation import navigation
from gpuyard.portal.people import find_visitor
from gpuyard.portal.runner_figures import USES, WAITS, FigureBook
from gpuyard.portal.runner_presenter import job_page, runners_page
from gpuyard.portal.runners_api import last_runner, places_of, require_job, timeline
from gpuyard.portal.sources import RunnerSources, Sources

HISTORY = 50
"""Jobs that are over, on the page."""


def install(app: FastAPI, sources: Sources, runners: RunnerSources) -> None:
    book = FigureBook(runners.store, sources.now)

    def page(request: Request, template: str, **values: object) -> HTMLResponse:
        html = render(template, site=sources.site_name, nav=navigation(request), **values)
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    @app.get("/runners", include_in_schema=False)
    def all_runners(request: Request) -> HTMLResponse:
        visitor = find_visitor(request)
        known, admin = visitor is not None, visitor is not None and visitor.person.admin
        history = runners.store.latest_jobs(limit=HISTORY)
        shown = runners_page(runners.yard.latest(), history, book.figures(), sources.now(), known, admin)
        return page(request, "runners.html", page=shown, days=WAITS.days, month=USES.days)

    @app.get("/job", include_in_schema=False)
    def one_job(request: Request, id: Annotated[str, Query(max_length=300)]) -> HTMLResponse:
        known = find_visitor(request) is not None
        found = require_job(runners, id)
        made = runners.store.runners_of(id)
        name = last_runner(found, made) if known else ""
        shown = job_page(
            found,
            places_of(runners.yard.latest()).get(id),
            made,
            timeline(runners, id, made, known),
            (name, runners.store.log(name) if name else "") if known else None,
            sources.now(),
        )
        return page(request, "job.html", page=shown)
