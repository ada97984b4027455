"""The page of health: GPUs that are out of use, and maintenances, for operators.

It is made on the server; runners.js loads it again, health.js sends what is done on it.
"""

from __future__ import annotations

from dataclasses import replace

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from gpuyard.health.controllers.maintenance import MaintenanceService
from gpuyard.health.repeats import By
from gpuyard.health.web.health_presenter import health_page
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.health.web.maintenance_documents import maintenance_row
from gpuyard.health.web.maintenance_presenter import maintenance_card
from gpuyard.model.rights import Verb, require
from gpuyard.web.assets import render
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import require_page_visitor
from gpuyard.web.portal_context import PortalContext
from gpuyard.web.search import Sought, matching


def install(app: FastAPI, sources: PortalContext, book: HealthReader, maintenance: MaintenanceService | None) -> None:
    def page(request: Request, template: str, **values: object) -> HTMLResponse:
        nav = navigation_of(require_page_visitor(request), request)
        html = render(template, site=sources.site_name, nav=nav, **values)
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    @app.get("/health", include_in_schema=False)
    def all_gpus(request: Request, by: By = By.CARD, q: Sought = "") -> HTMLResponse:
        who = require_page_visitor(request)
        require(who.person, Verb.REPAIR)
        shown = health_page(book.rows(who), book.out(who), book.repeats(by), by.value, sources.now())
        out, others, repeats = matching(shown.out, q), matching(shown.others, q), matching(shown.repeats, q)
        shown = replace(shown, out=out, others=others, repeats=repeats)
        views = maintenance.views() if maintenance is not None else []
        maintenances = [maintenance_card(maintenance_row(view), sources.now()) for view in views]
        ways = [way.value for way in By]
        return page(request, "health.html", page=shown, ways=ways, maintenances=maintenances, q=q)
