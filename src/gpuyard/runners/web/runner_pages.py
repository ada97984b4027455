"""The pages of runners: all of them, and one job. Rendered on the server; runners.js reloads them."""

from __future__ import annotations

from typing import Annotated
from urllib.parse import urlencode

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse

from gpuyard.runners.web.private_repositories import runner_visibility
from gpuyard.runners.web.runner_figures import USES, WAITS, FigureCache
from gpuyard.runners.web.runner_presenter import HISTORY, job_page, runners_page
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.runners.web.runners_api import last_runner, places_of, require_job, timeline
from gpuyard.web.assets import render
from gpuyard.web.navigation import navigation
from gpuyard.web.people import find_visitor
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.search import Sought, matching

SEARCHED = 500
"""Jobs that are over and searched, the newest ones."""


def install(app: FastAPI, sources: PortalContext, runners: RunnerSources) -> None:
    book = FigureCache(runners.store, sources.now)

    def page(request: Request, template: str, **values: object) -> HTMLResponse:
        html = render(template, site=sources.site_name, nav=navigation(request), **values)
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    @app.get("/runners", include_in_schema=False)
    def all_runners(
        request: Request, q: Sought = "", repository: Annotated[str, Query(max_length=201)] = ""
    ) -> HTMLResponse:
        visitor = find_visitor(request)
        admin = visitor is not None and visitor.person.admin
        visibility = runner_visibility(runners, sources.now(), visitor, sources.settings.others)
        history = visibility.latest(
            lambda limit, before: runners.store.latest_jobs(repository=repository, limit=limit, before=before),
            SEARCHED if q else HISTORY,
            None,
        )
        board = runners.overview.latest()
        made = visibility.runners(board.runners if board else (), runners.store.repositories_of)
        shown = runners_page(
            board,
            made,
            history,
            book.figures(),
            sources.now(),
            visibility,
            admin,
            (lambda card: repository in ("", card.repository) and bool(matching([card], q)))
            if q or repository
            else None,
        )
        names = {
            job.repository for job in (*history, *(board.jobs if board else ())) if visibility.sees(job.repository)
        }
        return page(
            request, "runners.html", page=shown, days=WAITS.days, month=USES.days, q=q, repository=repository,
            repositories=sorted({*names, repository} - {""}),
            jobs_query=f"{urlencode({'repository': repository})}&" if repository else "",
        )  # fmt: skip

    @app.get("/job", include_in_schema=False)
    def one_job(request: Request, id: Annotated[str, Query(max_length=300)]) -> HTMLResponse:
        visibility = runner_visibility(runners, sources.now(), find_visitor(request), sources.settings.others)
        job, known = require_job(runners, id, visibility), visibility.known
        made = visibility.runners(runners.store.runners_of(id), runners.store.repositories_of)
        name = last_runner(job, made) if known else ""
        shown = job_page(
            job,
            places_of(runners.overview.latest()).get(id),
            made,
            timeline(runners, id, made, known),
            (name, runners.store.log(name) if name else "") if known else None,
            sources.now(),
        )
        return page(request, "job.html", page=shown)
