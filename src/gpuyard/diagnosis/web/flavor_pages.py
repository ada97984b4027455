"""The page of servers that a person could start now, with the rows of /v1/flavors.

It is made on the server; runners.js loads it again.
"""

from __future__ import annotations

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from gpuyard.bookings.policy import spell
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.diagnosis.web.flavors_api import FlavorList, FlavorRow, flavor_list
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.web.assets import render
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import require_page_visitor


def install(app: FastAPI, sources: InventoryContext, capacity: CapacityService, authenticator: Authenticator) -> None:
    @app.get("/start", include_in_schema=False)
    def what_starts(request: Request) -> HTMLResponse:
        who = require_page_visitor(request)
        document = flavor_list(sources, capacity, who, "", "", authenticator)
        html = render("start.html", site=sources.site_name, nav=navigation_of(who, request), **parts(document))
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})


def parts(document: FlavorList) -> dict[str, object]:
    """Return the values for the template: flavors that would start before those that would not, in the document's
    order."""
    rows = [once(row) for row in document.flavors]
    with_gpus: list[FlavorRow] = [row for row in rows if row.gpus]
    return {
        "told": document,
        "able": [row for row in with_gpus if row.now],
        "unable": [row for row in with_gpus if not row.now],
        "without": [row for row in rows if not row.gpus],
    }


def once(row: FlavorRow) -> FlavorRow:
    """Return the row for a page, which repeats nothing: a cause is shown with its numbers and its remedy, and so
    neither in short in the answer nor again as what keeps GPUs back."""
    if not row.causes:
        return row
    reasons = {cause.reason for cause in row.causes}
    rest = [other for other in row.others if other.reason not in reasons]
    none, coming = "none now", row.next_booking
    if coming is not None:
        none += f"; booking {coming.id} begins {spell(coming.start)}"
    return row.model_copy(update={"answer": none if row.now == 0 else row.answer, "others": rest})
