"""The API of usage: reports of GPU time, intervals, and what is left of budgets.

Sums add up to all GPU time for every reader: of what the site hides from somebody they see how much it was, and not
whose.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date, timedelta
from typing import Annotated, Literal

from fastapi import FastAPI, Query
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from gpuyard.model.rights import Verb, may
from gpuyard.usage.accounts import UseAccount, UseKind, use_of
from gpuyard.usage.budgets import BudgetStatus
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.usage import UsageQuery, UsageReport, names, usage
from gpuyard.usage.reckoning import clipped, laid_out
from gpuyard.usage.records import Interval
from gpuyard.usage.store.sums import TooManySumsError
from gpuyard.usage.web.shown_use import use_visibility
from gpuyard.web.api_requests import Who, responses
from gpuyard.web.documents import Line, Moment
from gpuyard.web.problems import Refusal
from gpuyard.web.settings import OthersShown

TAG = "usage"
A_DAY = timedelta(days=1)
MOST_DAYS = 3700
MOST_INTERVAL_DAYS = 31
MOST_ROWS = 50_000
MOST_SUMS = 500_000
"""Sums that are read at most for a report of fewer lines."""
EARLIEST, LATEST = date(2000, 1, 1), date(2200, 1, 1)
USES = {use.value.replace(" ", "_"): use for use in UseKind}
"""Field of a document -> the use."""

Day = Annotated[date | None, BeforeValidator(lambda value: None if value == "" else value)]
By = Literal["project", "user", "pool", "host", "repository", "tariff", "day", "month"]


class UsageLine(BaseModel):
    """GPU-seconds of one line. All uses together are `total`; `used` is the first three of them together."""

    project: str | None = Field(None, description="Empty: nobody's. Null where the report is not by it; so below.")
    user: str | None = None
    pool: str | None = None
    host: str | None = None
    repository: str | None = None
    tariff: str | None = None
    day: str | None = None
    month: str | None = None
    used: int
    booked_use: int
    runner_use: int
    unbooked_use: int
    starting: int
    booked_unused: int
    idle: int
    held: int
    lost: int
    unseen: int
    total: int
    cost: str = Field(description="Of what is charged, in the currency; rounded to hundredths.", examples=["12.40"])


class UsageTotal(UsageLine):
    """All lines together. Its cost is that of the whole, rounded once."""


class UsageDocument(BaseModel):
    start: date = Field(serialization_alias="from")
    end: date = Field(serialization_alias="to", description="The first day that is not in it.")
    until: Moment | None = Field(description="The last look that is in it; null: nobody has looked yet.")
    timezone: str = Field(description="Of the days.")
    currency: str
    charge: str = Field(description="What is charged: what is `used`, or also what is `booked` and unused.")
    total: UsageTotal
    lines: list[UsageLine]


class IntervalLine(BaseModel):
    """One GPU in one state, cut to what was asked for."""

    host: str
    address: str = Field(description="Empty: one of the host's, and it is not known which.")
    pool: str
    state: str
    use: str
    start: Moment
    end: Moment
    seconds: int
    exact_start: bool = Field(description="By Nova's times, or a booking's; else by when it was seen.")
    exact_end: bool
    booking: str
    kind: str
    server: str
    server_name: str
    user_id: str
    user: str
    project_id: str
    project: str
    flavor: str
    repository: str


class IntervalDocument(BaseModel):
    until: Moment | None
    lines: list[IntervalLine] = Field(description="By start, host and address; together all GPU time.")


class BudgetLine(BaseModel):
    """GPU-seconds of a project's budget."""

    project: str
    start: Moment | None = Field(description="Of the period; null with a half-life.")
    end: Moment | None
    limit: int
    carried: int = Field(description="Of the limit, what was left before.")
    used: int
    booked: int
    left: int
    percent: float


class BudgetDocument(BaseModel):
    lines: list[BudgetLine]


class DayFilter(BaseModel):
    """Which days, and whose use; an empty value is as none."""

    model_config = ConfigDict(extra="forbid")

    start: Day = Field(None, alias="from", description="The first day; that of this month.")
    end: Day = Field(None, alias="to", description="The first day that is not in it; tomorrow.")
    project: Line = Field("", description="Name or id.")
    user: Line = Field("", description="Name or id.")
    pool: Line = ""
    host: Line = ""
    repository: Line = ""

    def days(self, today: date, most: int) -> tuple[date, date]:
        """Raises Refusal."""
        start, end = self.start or today.replace(day=1), self.end or today + A_DAY
        if not EARLIEST <= start <= LATEST or not EARLIEST <= end <= LATEST:
            raise Refusal(422, "invalid_parameters", f"from, to: are days from {EARLIEST} to {LATEST}")
        if not start < end:
            raise Refusal(422, "invalid_parameters", f"to: {end} is not after {start}")
        if (end - start).days > most:
            raise Refusal(422, "invalid_parameters", f"to: {start} to {end} is more than {most} days; ask for less")
        return start, end

    def where(self) -> dict[str, str]:
        filters = {name: getattr(self, name) for name in ("project", "user", "pool", "host", "repository")}
        return {name: value for name, value in filters.items() if value}


class UsageFilter(DayFilter):
    """Which report."""

    by: list[By] = Field(["project"], description="What it is by, in this order.")


def install(app: FastAPI, service: AccountingService, others: OthersShown) -> None:
    def today() -> date:
        return service.clock.day_of(service.now())

    @app.get("/v1/usage", tags=[TAG], responses=responses(headers=False))
    def show_usage(who: Who, filters: Annotated[UsageFilter, Query()]) -> UsageDocument:
        """What GPUs were used for, by project, user, pool, host, repository, tariff, day or month."""
        start, end = filters.days(today(), MOST_DAYS)
        try:
            query = UsageQuery(start, end, names(filters.by), filters.where())
        except ValueError as error:
            raise Refusal(422, "invalid_parameters", f"by: {error}") from None
        try:
            report = usage(service.history, query, service.prices, use_visibility(others, who).slice, MOST_SUMS)
        except TooManySumsError:
            raise _too_many(MOST_SUMS) from None
        _bounded(len(report.lines))
        return _usage_document(service, query, report)

    @app.get("/v1/usage/intervals", tags=[TAG], responses=responses(headers=False))
    def list_intervals(who: Who, filters: Annotated[DayFilter, Query()]) -> IntervalDocument:
        """Who had which GPU from when to when: what the sums of a report are made of."""
        first, last = filters.days(today(), MOST_INTERVAL_DAYS)
        extent = service.history.extent()
        if extent is None:
            return IntervalDocument(until=None, lines=[])
        start, end = service.clock.begin(first), min(service.clock.begin(last), extent.until)
        intervals = service.history.intervals(start, end, limit=MOST_ROWS + 1) if start < end else []
        _bounded(len(intervals))
        pieces = laid_out([cut for interval in intervals if (cut := clipped(interval, start, end))])
        visibility = use_visibility(others, who)
        ordered = sorted(
            map(visibility.interval, pieces), key=lambda interval: (interval.start, interval.host, interval.address)
        )
        lines = [_interval_line(interval) for interval in ordered]
        conditions = filters.where()
        return IntervalDocument(until=extent.until, lines=[line for line in lines if _matches(line, conditions)])

    @app.get("/v1/budgets", tags=[TAG], responses=responses(headers=False))
    def list_budgets(who: Who) -> BudgetDocument:
        """What is left of the budgets of one's projects; for admins of all."""
        mine = [(project.project_id, project.project) for project in who.projects] or [
            (who.person.project_id, who.person.project)
        ]
        projects = service.projects() if may(who.person, Verb.SEE_ACCOUNTS) else sorted(mine, key=lambda pair: pair[1])
        statuses = [status for id, name in projects if (status := service.status(id, name)) is not None]
        return BudgetDocument(lines=[*map(_budget_line, statuses)])


def _usage_document(service: AccountingService, query: UsageQuery, report: UsageReport) -> UsageDocument:
    return UsageDocument(
        start=query.first,
        end=query.end,
        until=report.until,
        timezone=service.clock.zone.key,
        currency=service.rules.currency,
        charge=service.rules.charge,
        total=UsageTotal.model_validate(_amounts(report.total)),
        lines=[
            UsageLine.model_validate({**dict(zip(query.by, line.key, strict=True)), **_amounts(line)})
            for line in report.lines
        ],
    )


def _budget_line(status: BudgetStatus) -> BudgetLine:
    return BudgetLine(
        project=status.project,
        start=status.start,
        end=status.end,
        limit=round(status.limit),
        carried=round(status.carried),
        used=round(status.used),
        booked=round(status.ahead),
        left=round(status.left),
        percent=round(status.percent, 1),
    )


def _amounts(account: UseAccount) -> dict[str, int | str]:
    amounts: dict[str, int | str] = {name: account.seconds.get(use, 0) for name, use in USES.items()}
    return {**amounts, "used": account.used, "total": account.total, "cost": str(account.cost)}


def _interval_line(interval: Interval) -> IntervalLine:
    tenure, end = interval.tenure, interval.end or interval.start
    words = {name: getattr(tenure, name) for name in IntervalLine.model_fields if hasattr(tenure, name)}
    return IntervalLine(
        host=interval.host,
        address=interval.address,
        pool=interval.pool,
        state=interval.state.value,
        use=use_of(interval.state.value, interval.tenure.kind).value,
        start=interval.start,
        end=end,
        seconds=int((end - interval.start).total_seconds()),
        exact_start=interval.exact_start,
        exact_end=interval.exact_end,
        **words,
    )


def _matches(line: IntervalLine, conditions: Mapping[str, str]) -> bool:
    return all(value in (getattr(line, name), getattr(line, f"{name}_id", "")) for name, value in conditions.items())


def _bounded(rows: int) -> None:
    """Raises Refusal."""
    if rows > MOST_ROWS:
        raise _too_many(MOST_ROWS)


def _too_many(rows: int) -> Refusal:
    return Refusal(422, "too_many_rows", f"This has more than {rows} rows; ask for fewer days, or by less.")
