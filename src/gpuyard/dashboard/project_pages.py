"""The page of a project: what it has used, what it may have, and how much each member has used."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from datetime import date
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query as BookingQuery
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.dashboard.mine_presenter import mine_booking, servers_of
from gpuyard.dashboard.project_presenter import (
    ProjectCosts,
    ProjectLinks,
    ShownDays,
    budget_numbers,
    held_lines,
    pool_limit,
    project_page,
)
from gpuyard.dashboard.sources import Sources
from gpuyard.dashboard.use_presenter import SpanLink
from gpuyard.health.web.card_use import CardUses
from gpuyard.model.booking import BookingKind, Person
from gpuyard.model.booking_life import OPEN
from gpuyard.model.gpu import GpuStatus
from gpuyard.model.rights import Verb, may
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.reckoning import DAY, day_span, local_day
from gpuyard.usage.web.shown_use import use_visibility
from gpuyard.web.assets import render
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import Visitor, require_page_visitor
from gpuyard.web.projects import acting_for
from gpuyard.web.search import Sought, matching

BY = ("pool", "project_id", "project", "user_id", "user", "state", "kind", "tariff")
MOST_BOOKINGS = 100
MONTHS = 12
"""Months that the page links to, at most."""


def install(
    app: FastAPI, sources: Sources, history: History, ledger: Ledger, rows: BookingRows, authenticator: Authenticator,
    uses: CardUses,
) -> None:  # fmt: skip
    @app.get("/project", include_in_schema=False)
    def one_project(
        request: Request,
        id: Annotated[str, Query(max_length=255)] = "",
        month: Annotated[str, Query(pattern=r"^(20\d\d-(0[1-9]|1[0-2]))?$")] = "",
        q: Sought = "",
    ) -> HTMLResponse:
        who, now = require_page_visitor(request), sources.now()
        person = acting_for(who, id, authenticator.people)
        today = local_day(now, history.zone)
        first = date.fromisoformat(f"{month}-01") if month else today.replace(day=1)
        end = min(_next_month(first), today + DAY)
        use_sums = history.sums(first, end, BY, "day", {"project_id": person.project_id})
        query = BookingQuery(project_id=person.project_id, kinds=frozenset({BookingKind.BOOKING}), states=OPEN)
        book, visibility = ledger.book, use_visibility(sources.settings.others, who)
        shown = project_page(
            person.project,
            use_sums.sums,
            ShownDays(first, end, use_sums.until, lambda day: day_span(day, history.zone)),
            bookings=[mine_booking(row, now) for row in map(rows.of(who), ledger.find(query, MOST_BOOKINGS))],
            limits=[pool_limit(pool, book.rules(pool, person.project)) for pool in book.pools],
            see=lambda user_id: visibility.sees(user_id, person.project_id),
            links=ProjectLinks(
                _months(today, first, id, history), _others(who, person), _choices(who, history, first, end)
            ),
            costs=_costs(sources.accounting, person, budget=not month),
        )
        members, bookings = matching(shown.members, q), matching(shown.bookings, q)
        shown = replace(shown, members=members, bookings=bookings, pools=matching(shown.pools, q))
        view = sources.inventory.latest()
        theirs = [status for status in (view.statuses if view else ()) if is_of(status, person)]
        html = render(
            "project.html", site=sources.site_name, nav=navigation_of(who, request), page=shown, zone=history.zone,
            held=matching(held_lines(theirs, uses.of(servers_of(theirs), who), now), q), month=month, id=id, q=q,
        )  # fmt: skip
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})


def _costs(accounting: AccountingService | None, person: Person, budget: bool) -> ProjectCosts:
    """`budget`: with what is left of it now."""
    if accounting is None:
        return ProjectCosts()
    left = budget_numbers(accounting.status(person.project_id, person.project)) if budget else ()
    return ProjectCosts(left, accounting.prices, accounting.rules.currency)


def _months(today: date, shown: date, id: str, history: History) -> list[SpanLink]:
    """The last months of which anything is known."""
    links, month, extent = [], today.replace(day=1), history.extent()
    oldest = local_day(extent.first, history.zone).replace(day=1) if extent else month
    for _ in range(MONTHS):
        if month < oldest:
            break
        name = f"{month:%Y-%m}"
        links.append(SpanLink(name, f"project?{f'id={id}&' if id else ''}month={name}", month == shown))
        month = (month - DAY).replace(day=1)
    return links


def _others(who: Visitor, person: Person) -> list[SpanLink]:
    if len(who.projects) < 2:
        return []
    return [
        SpanLink(project.project, f"project?id={project.project_id}", project.project_id == person.project_id)
        for project in who.projects
    ]


def _choices(who: Visitor, history: History, first: date, end: date) -> list[str]:
    """Projects to choose from for those who may see any: theirs, and all of which something is known in the days in
    [first, end). One whose name several have is named by its id."""
    if not may(who.person, Verb.SEE_ACCOUNTS):
        return []
    names_by_id = {project.project_id: project.project for project in who.projects}
    for use_sum in history.sums(first, end, ("project_id", "project")).sums:
        if use_sum.slice.project_id:
            names_by_id[use_sum.slice.project_id] = use_sum.slice.project
    names = Counter(names_by_id.values())
    return sorted(name if name and names[name] == 1 else id for id, name in names_by_id.items())


def _next_month(day: date) -> date:
    return (day.replace(day=28) + 4 * DAY).replace(day=1)


def is_of(status: GpuStatus, person: Person) -> bool:
    """Return whether a server of a person's project has a GPU."""
    return status.claim is not None and status.claim.project_id == person.project_id
