"""The API of the calendar: all that it shows in one answer, and the booking rules of a project in a pool."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from pydantic import BaseModel, ConfigDict, Field, create_model

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query as BookingQuery
from gpuyard.bookings.web.booking_documents import BookingRow, BookingRows, Calendar, FreeRow, LaneRow
from gpuyard.bookings.web.bookings_api import OF_PEOPLE
from gpuyard.inventory.web.inventory_context import InventoryContext
from gpuyard.model.booking import RULES, Booking, BookingState, Lane, ReclaimAction, Rules
from gpuyard.model.gpu import GpuStatus
from gpuyard.web.api_requests import ETAG, Maybe, Who, responses
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.documents import Line, Moment
from gpuyard.web.preconditions import not_modified
from gpuyard.web.problems import Refusal
from gpuyard.web.projects import acting_for

MOST_DAYS = 100
MOST_STEPS = 1000
"""Steps of free capacity, in one answer for one pool."""
MOST_BOOKINGS = 2000
SHOWN = frozenset(BookingState) - {BookingState.CANCELLED, BookingState.EXPIRED}


class Window(BaseModel):
    """What to show."""

    model_config = ConfigDict(extra="forbid")

    pool: Line = Field("", description="Empty: all.")
    start: Annotated[Moment | None, Maybe] = Field(None, alias="from", description="Default: the day that it is (UTC).")
    end: Annotated[Moment | None, Maybe] = Field(None, alias="to", description="Default: a week after `from`.")
    step: int | None = Field(None, ge=60, le=7 * 86400, description="Seconds between rows of `free`.")


class QuietDocument(BaseModel):
    start_minute: int = Field(description="Minutes after midnight, in `timezone`.")
    end_minute: int = Field(description="The same; smaller than `start_minute` when it spans midnight.")


DOCUMENTED: dict[str, Any] = {
    "bool": bool,
    "int": int,
    "Optional[int]": int | None,
    "timedelta": int,
    "Optional[timedelta]": int | None,
    "Optional[FrozenSet[str]]": list[str] | None,
    "Tuple[QuietHours, ...]": list[QuietDocument],
    "ReclaimAction": ReclaimAction,
}
"""Type of a rule -> its type in JSON."""


class RulesDocument(
    create_model(  # type: ignore[misc]
        "_RulesDocument",
        pool=str,
        project=str,
        timezone=(str, Field(description="Of quiet hours.")),
        origins=(
            dict[str, str],
            Field(description="Rule -> what states it: the site, the pool, the project. The others are defaults."),
        ),
        **{key: (DOCUMENTED[str(r.type)], Field(description=r.metadata["text"])) for key, r in RULES.items()},
    )
):
    """What holds for bookings of a project in a pool. Durations are in seconds."""


def install(
    app: FastAPI, sources: InventoryContext, ledger: Ledger, authenticator: Authenticator, rows: BookingRows
) -> None:
    @app.get(
        "/v1/calendar", tags=["calendar"], response_model=Calendar, responses={200: {"headers": ETAG}, **responses()}
    )
    def calendar(request: Request, who: Who, window: Annotated[Window, Query()]) -> Response:
        """GPUs as rows, all bookings that overlap a time and what runners have now, and how many GPUs are free when."""
        pools = [window.pool] if window.pool else list(ledger.book.pools)
        if window.pool and window.pool not in ledger.book.pools:
            raise _no_such_pool(ledger, window.pool)
        start, end = _window(window, sources.now())
        step = _step(window, start, end)
        document = calendar_document(sources, ledger, rows.of(who, window.pool), pools, start, end, step)
        text = document.model_dump_json()
        tag = f'"{hashlib.sha256(text.encode()).hexdigest()[:32]}"'
        if not_modified(request, tag):
            return Response(status_code=304, headers={"ETag": tag})
        return Response(text, media_type="application/json", headers={"ETag": tag})

    @app.get("/v1/pools/{pool}/rules", tags=["calendar"], responses=responses(404, headers=False))
    def pool_rules(
        who: Who,
        pool: Annotated[str, Path(max_length=64)],
        project: Annotated[Line, Query(description="Name or id; empty: the one that is looked at.")] = "",
    ) -> RulesDocument:
        """The rules of bookings in a pool."""
        if pool not in ledger.book.pools:
            raise _no_such_pool(ledger, pool, 404)
        name = acting_for(who, project, authenticator.people).project
        return rules_document(ledger.book.rules(pool, name), pool, name, ledger.book.zone)


def calendar_document(
    sources: InventoryContext,
    ledger: Ledger,
    row: Callable[[Booking], BookingRow],
    pools: Sequence[str],
    start: datetime,
    end: datetime,
    step: int,
) -> Calendar:
    lanes = [lane for pool in pools for lane in ledger.lanes(pool)]
    bookings: list[Booking] = []
    leases = ledger.leases.current()
    for pool in pools:
        query = BookingQuery(pool=pool, kinds=OF_PEOPLE, states=SHOWN, start=start, end=end)
        bookings += _all(ledger, query, MOST_BOOKINGS - len(bookings))
        bookings += [
            lease for lease in leases if lease.ask.pool == pool and lease.ask.start < end and lease.ask.end > start
        ]
    view = sources.inventory.latest()
    statuses = {(status.gpu.host, status.gpu.address): status for status in (view.statuses if view else ())}
    models = {(gpu.host, gpu.address): gpu.model for gpu in sources.gpus}
    return Calendar(
        start=start,
        end=end,
        lanes=[_lane_row(lane, models, statuses) for lane in lanes],
        bookings=list(map(row, bookings)),
        free=[
            FreeRow(pool=pool, start=at, lanes=count)
            for pool in pools
            for at, count in ledger.free(pool, start, end, step)
        ],
        truncated=len(bookings) >= MOST_BOOKINGS,
    )


def _lane_row(lane: Lane, models: dict[tuple[str, str], str], statuses: dict[tuple[str, str], GpuStatus]) -> LaneRow:
    first = lane.host, lane.addresses[0]
    return LaneRow(
        id=lane.id,
        pool=lane.pool,
        host=lane.host,
        gpus=list(lane.addresses),
        size=lane.size,
        model=models.get(first, ""),
        trouble=lane.trouble,
        state=statuses[first].state if first in statuses else None,
    )


def _all(ledger: Ledger, query: BookingQuery, most: int) -> list[Booking]:
    bookings: list[Booking] = []
    while len(bookings) < most:
        page = ledger.find(query, min(1000, most - len(bookings)), bookings[-1].id if bookings else "")
        bookings += page
        if len(page) < 1000:
            break
    return bookings


def _window(window: Window, now: datetime) -> tuple[datetime, datetime]:
    start = window.start or now.replace(hour=0, minute=0, second=0, microsecond=0)
    end = window.end or start + timedelta(days=7)
    if not start < end <= start + timedelta(days=MOST_DAYS):
        text = f"to: must be after from, and at most {MOST_DAYS} days later"
        raise Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [text])
    return start, end


def _step(window: Window, start: datetime, end: datetime) -> int:
    """Seconds: what was asked for, or an hour, or so many that there are not too many rows."""
    seconds = int((end - start).total_seconds())
    least = -(-seconds // MOST_STEPS)
    if window.step is not None and window.step < least:
        text = f"step: must be {least} or more for so long a time"
        raise Refusal(422, "invalid_parameters", "The parameters of the request are wrong.", [text])
    return window.step or max(3600, least)


def _no_such_pool(ledger: Ledger, pool: str, status: int = 422) -> Refusal:
    return Refusal(status, "no_such_pool", f"There is no pool {pool!r}; there are {', '.join(ledger.book.pools)}.")


def rules_document(rules: Rules, pool: str, project: str, zone: str) -> RulesDocument:
    plain = {
        name: int(value.total_seconds()) if isinstance(value, timedelta) else value
        for name, value in vars(rules).items()
    }
    plain["users"] = None if rules.users is None else sorted(rules.users)
    plain["quiet_hours"] = [vars(quiet) for quiet in rules.quiet_hours]
    return RulesDocument(pool=pool, project=project, timezone=zone, **plain)
