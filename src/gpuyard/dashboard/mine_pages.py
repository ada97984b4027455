"""The page of the visitor: their servers and bookings, what ends when, and what is wrong with their GPUs."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.bookings.web.booking_documents import BookingRows, overstay_row
from gpuyard.dashboard.mine_presenter import is_theirs, mine_page, servers_of
from gpuyard.dashboard.sources import Sources
from gpuyard.health.web.card_use import CardUses
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.model.booking import BookingKind
from gpuyard.model.booking_life import OPEN
from gpuyard.web.assets import render
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import require_page_visitor
from gpuyard.web.search import Sought, matching
from gpuyard.web.visibility import projects_of

MOST_BOOKINGS = 200


def install(app: FastAPI, sources: Sources, ledger: Ledger, rows: BookingRows, uses: CardUses,
            book: HealthReader | None) -> None:  # fmt: skip
    """Add the page. `book`: where the health of GPUs is followed."""

    @app.get("/mine", include_in_schema=False)
    def my_gpus(request: Request, q: Sought = "") -> HTMLResponse:
        who, view, now = require_page_visitor(request), sources.inventory.latest(), sources.now()
        user, projects = who.person.user_id, projects_of(who)
        theirs = [status for status in (view.statuses if view else ()) if is_theirs(status, user, projects)]
        query = Query(user_id=who.person.user_id, kinds=frozenset({BookingKind.BOOKING}), states=OPEN)
        bookings = [*map(rows.of(who), ledger.find(query, MOST_BOOKINGS))]
        cases = [
            overstay_row(overstay, who.person)
            for overstay in ledger.overstays(who.person)
            if overstay.user_id == who.person.user_id
        ]
        names = {f"{status.gpu.host}/{status.gpu.address}" for status in theirs}
        names |= {name for booking in bookings for name in booking.gpu_names}
        health = [row for row in book.rows(who) if f"{row.host}/{row.address}" in names] if book and names else []
        shown = mine_page(theirs, bookings, cases, health, now, uses.of(servers_of(theirs), who))
        html = render(
            "mine.html",
            site=sources.site_name,
            nav=navigation_of(who, request),
            page=replace(
                shown,
                servers=matching(shown.servers, q),
                bookings=matching(shown.bookings, q),
                notices=matching(shown.notices, q),
            ),
            q=q,
            mine_query=f"{urlencode({'q': who.person.user})}&",
            seen=view is not None,
            starts=sources.bootable is not None,
        )
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})
