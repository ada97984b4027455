"""The accounts of a site: reports of use, budgets that bookings must fit into, and the warnings and mails about both.

A loop reads again and again what projects have used and keeps it in memory, so that a booking waits for no report.
Bookings count from the last reading on, so nothing is counted twice and nothing not at all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta
from zoneinfo import ZoneInfo

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.policy import spell
from gpuyard.bookings.records import AuditEntry, Event, Query
from gpuyard.model.booking import BookingKind
from gpuyard.model.booking_life import OPEN
from gpuyard.runtime.control_loops import Loop
from gpuyard.site.accounting_rules import BudgetRules, SiteAccounting, price_at
from gpuyard.site.schema import Site
from gpuyard.site.tariff_clock import TariffClock
from gpuyard.usage.accounts import CHARGED, Prices, use_of
from gpuyard.usage.budgets import BudgetStatus, ProjectBudget, hours, period_of
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.controllers.usage import UsageQuery, UsageReport, usage
from gpuyard.usage.records import Extent, Sum

PERIOD = 60.0
"""Seconds between readings of what was used."""
A_DAY = timedelta(days=1)
HALF_LIVES = 40
"""Half-lives after which use counts for nothing: a GPU-year for 30 microseconds."""
MOST_PEOPLE = 200
"""People of a project that are told of its budget, at most."""
MOST_TOLD = 100_000
MONTH_LINES = 30
"""Projects in the mail about a month."""

StatedFacts = tuple[str, str]
"""Id of the user, and address."""


@dataclass(frozen=True)
class _Known:
    """What was used, by project (id), and how far that goes."""

    used: Mapping[str, Mapping[date, int]]
    names: Mapping[str, str]
    first: date
    until: datetime


class AccountingService:
    """Reports and budgets of one site. Safe to use from several threads, and from several processes on one database."""

    def __init__(self, site: Site, ledger: Ledger, history: History, now: Callable[[], datetime]) -> None:
        """Reads what was used once. Raises StoreError."""
        self.rules = site.accounting or SiteAccounting.model_validate({})
        self.clock = site_clock(site)
        self.history = history
        prices = {name: pool.price for name, pool in site.pools.items()}
        priced = any(price is not None for price in prices.values())
        price = (lambda pool, tariff: price_at(prices.get(pool), tariff)) if priced else None
        self.prices = Prices(price, CHARGED[self.rules.charge])
        self._site, self._ledger, self.now = site, ledger, now
        self._past: tuple[tuple[date | None, date, date], list[Sum]] | None = None
        self._told: set[tuple[str, str]] = set()
        """Events that the database knows to be told: else each run would keep others from booking to find that out."""
        self._known = self._read()
        self.statuses: tuple[BudgetStatus, ...] = ()
        """The state of all budgets, as of the last run."""
        if self._budgets:
            ledger.allow(self.allowance)

    @property
    def _budgets(self) -> list[BudgetRules]:
        """All that the site states."""
        stated = [self.rules.budget, *(project.budget for project in self._site.projects.values())]
        return [budget for budget in stated if budget is not None]

    def report(self, query: UsageQuery) -> UsageReport:
        """Return a report of everybody, and with everybody's name."""
        return usage(self.history, query, self.prices)

    def allowance(self, project_id: str, project: str) -> ProjectBudget | None:
        """Return the budget of a project, with what it had used by the last reading. Waits for nothing."""
        rules, reading = self._site.budget(project), self._known
        if rules is None:
            return None
        used = reading.used.get(project_id, {})
        return ProjectBudget(project, rules, self.clock, used, reading.first, reading.until)

    def status(self, project_id: str, project: str) -> BudgetStatus | None:
        """Return the state of a project's budget; None where it has none. Raises StoreError."""
        budget = self.allowance(project_id, project)
        if budget is None:
            return None
        return budget.status(self.now(), self._ledger.booked_ahead(project_id, budget.until))

    def projects(self) -> list[tuple[str, str]]:
        """Return (id, name) of projects that have a budget and have used or booked something, or are named in the site
        file; of these the id is empty where it is not known. By name."""
        names_by_id = dict(self._known.names)
        open_ones = Query(kinds=frozenset({BookingKind.BOOKING}), states=OPEN)
        names_by_id |= {booking.project_id: booking.project for booking in self._ledger.find(open_ones, 10_000)}
        known_projects = [(id, name) for id, name in names_by_id.items() if self._site.budget(name) is not None]
        unknown = {name for name, project in self._site.projects.items() if project.budget} - {
            name for _, name in known_projects
        }
        return sorted([*known_projects, *(("", name) for name in unknown)], key=lambda pair: (pair[1], pair[0]))

    def run(self) -> None:
        """Read what was used, warn of budgets, and send the report of the last month. Raises StoreError."""
        self._known = self._read()
        statuses = [(id, status) for id, name in self.projects() if (status := self.status(id, name)) is not None]
        self.statuses = tuple(status for _, status in statuses)
        for id, status in statuses:
            self._warn(id, status)
        self._tell_month()

    def _read(self) -> _Known:
        extent, today = self.history.extent(), self.clock.day_of(self.now())
        if extent is None or not self._budgets:
            return _Known({}, {}, today, self.clock.begin(today))
        begins = self.clock.day_of(extent.first)
        days = max(begins, min(days_needed(rules, today) or begins for rules in self._budgets)).replace(day=1)
        sums = [*self._past_sums(extent, begins.replace(day=1), days)]
        after = max(days, extent.rolled + A_DAY) if extent.rolled else days
        sums += self._sums(after, today + A_DAY, "day")
        used: dict[str, Counter[date]] = {}
        names: dict[str, str] = {}
        for use_sum in sums:
            if (
                use_sum.slice.project_id
                and use_sum.period
                and use_of(use_sum.slice.state, use_sum.slice.kind) in self.prices.charged
            ):
                used.setdefault(use_sum.slice.project_id, Counter())[use_sum.period] += use_sum.seconds
                names[use_sum.slice.project_id] = use_sum.slice.project
        return _Known(used, names, begins, extent.until)

    def _past_sums(self, extent: Extent, first: date, days: date) -> list[Sum]:
        """Of what does not change any more: months before `days`, and days from then on."""
        key = (extent.rolled, first, days)
        if self._past is None or self._past[0] != key:
            months = self._sums(first, days, "month") if first < days else []
            past = self._sums(days, extent.rolled + A_DAY, "day") if extent.rolled and extent.rolled >= days else []
            self._past = (key, months + past)
        return self._past[1]

    def _sums(self, first: date, end: date, period: str) -> list[Sum]:
        return self.history.sums(first, end, ("project_id", "project", "state", "kind"), period).sums

    def _warn(self, project_id: str, status: BudgetStatus) -> None:
        """Of the highest threshold that was reached, once a period; with a half-life, once a month."""
        reached = sorted(percent for percent in self.rules.warn_at if status.percent >= percent)
        if not reached:
            return
        begins = (
            self.clock.day_of(status.start) if status.start else period_of(self.clock.day_of(self.now()), "month")[0]
        )
        text = budget_text(status)
        details = {"project": status.project, "percent": str(reached[-1]), "text": text}
        for user_id, email in self._people(project_id):
            event = Event("budget.near", self.now(), "", user_id, email, details)
            for percent in reached:
                notice = event if percent == reached[-1] else None
                self._once(f"budget {project_id or status.project}", f"{begins} {percent} {email}", notice, text)

    def _people(self, project_id: str) -> Iterator[StatedFacts]:
        """Whom a project's budget concerns: who has something booked, and whom the site names. For programs alone, if
        there is nobody."""
        mine = Query(project_id=project_id, kinds=frozenset({BookingKind.BOOKING}), states=OPEN)
        booked = self._ledger.find(mine, 10_000) if project_id else []
        people = sorted({(booking.user_id, booking.email) for booking in booked if booking.email})[:MOST_PEOPLE]
        yield from [*people, *(("", address) for address in self.rules.tell)] or [("", "")]

    def _tell_month(self) -> None:
        """Of the last month, once all of it was seen and summed up; not of one that was over before anybody looked."""
        extent, today = self.history.extent(), self.clock.day_of(self.now())
        first, end = period_of(today.replace(day=1) - A_DAY, "month")
        if not self.rules.tell or extent is None or not extent.rolled or extent.rolled < end - A_DAY:
            return
        if self.clock.begin(end) <= extent.first:
            return
        text = ""
        for address in self.rules.tell:
            subject, what = "usage", f"{first:%Y-%m} {address}"
            if (subject, what) in self._told:
                continue
            text = text or self._month_text(first, end)
            event = Event("usage.month", self.now(), "", "", address, {"month": f"{first:%Y-%m}", "text": text})
            self._once(subject, what, event, "")

    def _month_text(self, first: date, end: date) -> str:
        report = self.report(UsageQuery(first, end))
        lines = sorted((line for line in report.lines if line.key[0]), key=lambda line: -line.used)
        entries = [
            f"{line.key[0]}: {hours(line.used)} GPU-hours"
            + (f", {line.cost} {self.rules.currency}".rstrip() if self.prices.price else "")
            for line in lines[:MONTH_LINES]
        ]
        whole = report.total
        percent = 100 * whole.used / whole.total if whole.total else 0.0
        head = f"{hours(whole.used)} of {hours(whole.total)} GPU-hours were used ({percent:.0f}%)"
        more = [f"and {len(lines) - MONTH_LINES} more projects"] if len(lines) > MONTH_LINES else []
        return "; ".join([head, *entries, *more])

    def _once(self, subject: str, what: str, event: Event | None, text: str) -> None:
        if (subject, what) in self._told:
            return
        pool = self._ledger.book.pools[0]
        entries = [AuditEntry(self.now(), GPUYARD, "budget.warned", subject, "budget", text)] if event and text else []
        self._ledger.upkeep.note_once(pool, subject, what, event, *entries)
        if len(self._told) >= MOST_TOLD:
            self._told.clear()
        self._told.add((subject, what))


def site_clock(site: Site) -> TariffClock:
    """Return the tariffs of a site on its clocks."""
    zone = site.booking.zone if site.booking else ZoneInfo("UTC")
    return site.accounting.clock(zone) if site.accounting else TariffClock(zone)


def days_needed(rules: BudgetRules, today: date) -> date | None:
    """Return the day from which on a budget must know the use of each day; before that months do. None: from the first
    day on."""
    if rules.half_life is not None:
        return today - rules.half_life * HALF_LIVES - A_DAY
    start = period_of(today, rules.every)[0]
    of_months = rules.every in ("month", "quarter", "year") and (rules.since is None or rules.since.day == 1)
    return start if of_months or not rules.carry_over else None


def budget_text(status: BudgetStatus) -> str:
    """Describe a budget for people: what is used, booked and left."""
    until = f" until {spell(status.end)}" if status.end else ""
    return (
        f"project {status.project} has used {hours(status.used)} of {hours(status.limit)} GPU-hours{until} "
        f"({status.percent:.0f}%); {hours(status.ahead)} are booked, {hours(status.left)} are left"
    )


def accounting_loop(service: AccountingService, period: float = PERIOD) -> Loop:
    return Loop("accounting", "Reads what projects have used, and warns of budgets.", period, service.run)
