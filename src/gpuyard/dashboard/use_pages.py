"""The overview of the site: uses of its GPUs and waiting times over time, as a page and as numbers."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import BaseModel, ConfigDict, Field

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query as BookingQuery
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.dashboard.sources import Sources
from gpuyard.dashboard.use_presenter import WAITS, overview
from gpuyard.dashboard.waits import WaitCache, Waiter
from gpuyard.model.booking import BookingKind
from gpuyard.runners.web.runner_figures import FigureCache
from gpuyard.usage.accounts import UseKind
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.web.utilisation import SPANS, UtilisationCache
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.assets import render
from gpuyard.web.documents import Moment
from gpuyard.web.navigation import navigation_of
from gpuyard.web.people import require_page_visitor
from gpuyard.web.problems import Refusal
from gpuyard.web.search import matching

MOST_WAITING = 100
"""Waiting bookings on the page, at most."""


class SpanAsked(BaseModel):
    """Of which time."""

    model_config = ConfigDict(extra="forbid")

    days: int = Field(7, description="So many, until now: 1, 7, 30, 90 or 365.")
    pool: str = Field("", max_length=64, description="Empty: all.")


class OverviewAsked(SpanAsked):
    """And of those who wait."""

    q: str = Field("", max_length=200)


class UtilisationRow(BaseModel):
    """A pool in a step of time."""

    pool: str
    start: Moment
    end: Moment = Field(description="The end of the step; of the last one, the last look at the cloud.")
    seconds: dict[UseKind, int] = Field(description="GPU-seconds of each use; they add up to all GPU time.")


class UtilisationList(BaseModel):
    timezone: str = Field(description="Of the days.")
    steps: list[UtilisationRow] = Field(description="By pool and time; steps without a look are left out.")


class WeekRow(BaseModel):
    """An hour of the week."""

    weekday: int = Field(description="0 is Monday.", ge=0, le=6)
    hour: int = Field(description="Local, 0 to 23.", ge=0, le=23)
    share: float = Field(description="Of the time that was seen, that GPUs were used: 0 to 1; the mean of four weeks.")


class WeekList(BaseModel):
    timezone: str = Field(description="Of the hours.")
    hours: list[WeekRow] = Field(description="By time; those of which nothing is known are left out.")


class PoolAsked(BaseModel):
    """Of which pool."""

    model_config = ConfigDict(extra="forbid")

    pool: str = Field("", max_length=64, description="Empty: all.")


class WaitRow(BaseModel):
    """All of a pool that got their GPUs in a step of time; of bookings those that were not cancelled before they
    began."""

    pool: str
    of: Waiter = Field(description="What waited.")
    start: Moment
    end: Moment
    count: int
    waited: int = Field(description="How many of them did not get their GPUs at once.")
    p50: float = Field(description="Seconds: half of them waited no longer.")
    p90: float = Field(description="Seconds: nine of ten waited no longer.")


class WaitList(BaseModel):
    timezone: str = Field(description="Of the days.")
    steps: list[WaitRow] = Field(description="By time and pool; those without any are left out.")


def install(app: FastAPI, sources: Sources, history: History, ledger: Ledger, rows: BookingRows) -> None:
    book = UtilisationCache(history, sources.now)
    figures = FigureCache(sources.runners.store, sources.now) if sources.runners is not None else None

    waits = WaitCache(ledger, sources.runners.store if sources.runners else None, history.zone, sources.now)

    def checked(query: SpanAsked) -> SpanAsked:
        if query.days not in SPANS:
            raise _wrong(f"days: is one of {', '.join(map(str, SPANS))}")
        known(query.pool)
        return query

    def known(pool: str) -> str:
        if pool and pool not in ledger.book.pools:
            raise _wrong(f"pool: there is no pool {pool!r}; there are {', '.join(ledger.book.pools)}")
        return pool

    @app.get("/v1/utilisation", tags=["gpus"], responses=responses(headers=False))
    def utilisation(who: Who, filters: Annotated[SpanAsked, Query()]) -> UtilisationList:
        """What GPUs were there for, by pool and step: of an hour, 4 hours, a day, or for a year a week."""
        pools = book.of(checked(filters).days).pools
        return UtilisationList(
            timezone=history.zone,
            steps=[
                UtilisationRow(pool=name, start=column.start, end=column.end, seconds=dict(column.seconds))
                for name, columns in pools.items()
                if filters.pool in ("", name)
                for column in columns
            ],
        )

    @app.get("/v1/utilisation/week", tags=["gpus"], responses=responses(headers=False))
    def mean_week(who: Who, filters: Annotated[PoolAsked, Query()]) -> WeekList:
        """How much of the GPUs is used in which hour of the week."""
        week = book.of(1).weeks.get(known(filters.pool), {})
        hours = [WeekRow(weekday=day, hour=hour, share=round(share, 4)) for (day, hour), share in sorted(week.items())]
        return WeekList(timezone=history.zone, hours=hours)

    @app.get("/v1/waits", tags=["gpus"], responses=responses(headers=False))
    def waiting_times(who: Who, filters: Annotated[SpanAsked, Query()]) -> WaitList:
        """How long bookings and jobs waited for their GPUs, by pool and step: a day, or of more than 30 a week."""
        steps = waits.of(checked(filters).days).steps
        wait_rows = [WaitRow.model_validate(asdict(step)) for step in steps if filters.pool in ("", step.pool)]
        return WaitList(timezone=history.zone, steps=wait_rows)

    @app.get("/overview", include_in_schema=False)
    def over_all(request: Request, filters: Annotated[OverviewAsked, Query()]) -> HTMLResponse:
        who, usage = require_page_visitor(request), book.of(checked(filters).days)
        waiting = ledger.find(
            BookingQuery(kinds=frozenset({BookingKind.BOOKING}), states=WAITS, pool=filters.pool), MOST_WAITING
        )
        board = sources.runners.overview.latest() if sources.runners is not None else None
        shown = overview(
            usage, waits.of(filters.days), filters.days, filters.pool, [*map(rows.of(who), waiting)],
            figures.figures() if figures else None, len(board.queue) if board else None, history.zone, sources.now(),
        )  # fmt: skip
        shown = replace(shown, waiting=matching(shown.waiting, filters.q))
        nav = navigation_of(who, request)
        html = render("overview.html", site=sources.site_name, nav=nav, page=shown, q=filters.q)
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})


def _wrong(reason: str) -> Refusal:
    return Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [reason])
