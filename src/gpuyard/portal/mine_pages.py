"""The page of whoever looks: their servers and bookings, what ends when, and what is wrong with their GPUs."""

from __future__ import annotations

from dataclasses import replace
from urllib.parse import urlencode

from fastapi import FastAPI, Request
from fastapi.responses import HTMLResponse

from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.life import OPEN
from gpuyard.ledger.records import Query
from gpuyard.model.booking import BookingKind
from gpuyard.portal.assets import render
from gpuyard.portal.booking_documents import BookingRows, case_row
from gpuyard.portal.card_use import CardUses
from gpuyard.portal.health_book import HealthBook
from gpuyard.portal.mine_presenter import is_theirs, mine_page, servers_of
from gpuyard.portal.navigation import navigation_of
from gpuyard.portal.others import projects_of
from gpuyard.portal.people import require_page_visitor
from gpuyard.portal.search import Sought, matching
from gpuyard.portal.sources import Sources

MOST_BOOKINGS = 200


def install(app: FastAPI, sources: Sources, ledger: Ledger, rows: BookingRows, uses: CardUses,
            book: HealthBook | None) -> None:  # fmt: skip
    """`book`: where the health of GPUs is followed."""

    @app.get("/mine", include_in_schema=False)
    def my_gpus(request: Request, q: Sought = "") -> HTMLResponse:
        who, view, now = require_page_visitor(request), sources.yard.latest(), sources.now()
        user, projects = who.person.user_id, projects_of(who)
        theirs = [status for status in (view.statuses if view else ()) if is_theirs(status, user, projects)]
        wanted = Query(user_id=who.person.user_id, kinds=frozenset({BookingKind.BOOKING}), states=OPEN)
        bookings = [*map(rows.of(who), ledger.find(wanted, MOST_BOOKINGS))]
        cases = [case_row(case, who.person) for case in ledger.cases(who.person) if case.user_id == who.person.user_id]
        names = {f"{status.gpu.host}/{status.gpu.address}" for status in theirs}
        names |= {name for one in bookings for name in one.gpu_names}
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
