"""Carries out what becomes of servers that keep GPUs without a booking: ledger/reclaim.py decides it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta

from gpuyard.cloud.errors import CloudError
from gpuyard.cloud.reclaim import Reclaimer
from gpuyard.ledger.desk import GPUYARD
from gpuyard.ledger.ledger import Ledger
from gpuyard.ledger.matching import may_use
from gpuyard.ledger.pool_view import PoolView
from gpuyard.ledger.reclaim import MEANS, RULES, CaseStep, Do, plan_cases, reasons, warning
from gpuyard.ledger.records import AuditEntry, Case, Event, Query
from gpuyard.ledger.shortage import shortage
from gpuyard.model.booking import BookingState, ReclaimAction
from gpuyard.site.schema import Site

LOG = logging.getLogger(__name__)
STALE = timedelta(seconds=60)
"""Nothing is done about a server that was seen longer ago."""
FRESH = timedelta(minutes=10)
"""Keystone is asked again for an address that was asked for longer ago."""
OVER = frozenset({BookingState.ENDED, BookingState.NO_SHOW})


class CaseKeeper:
    """The cases of one site."""

    def __init__(
        self,
        site: Site,
        ledger: Ledger,
        reclaimer: Reclaimer,
        now: Callable[[], datetime],
        require_turn: Callable[[], None] = lambda: None,
    ) -> None:
        """`require_turn`: raises when another process may be at the same work; asked before each thing that is done."""
        self._site = site
        self._ledger = ledger
        self._records = ledger.upkeep.records
        self._reclaimer = reclaimer
        self._now = now
        self._require_turn = require_turn
        self._addresses: dict[str, tuple[datetime, str]] = {}
        """User -> when Keystone was asked, and what it said."""

    def look(self, view_now: Callable[[], PoolView], taken_at: datetime) -> None:
        """What is due for the servers of a pool, as they were seen at `taken_at`. `view_now`: with the bookings as they
        are when it is called. An error with one server keeps nobody's case waiting; it is raised afterwards."""
        booking = self._site.booking
        assert booking is not None
        view = view_now()
        problems: list[str] = []
        for _ in range(2):  # a case that is opened is warned of at once
            now = self._now()
            if abs(now - taken_at) > STALE:
                break
            cases = [case for case in self._records.open_cases() if case.pool == view.pool]
            steps = plan_cases(view, self._reasons(view), cases, booking.dry_run, now)
            for step in steps:
                self._require_turn()
                try:
                    self._carry_out(step, view_now, taken_at)
                except CloudError as problem:
                    problems.append(f"server {step.case.server} ({step.case.server_id}): {problem}")
            if problems or not any(step.do is Do.OPEN for step in steps):
                break
        if problems:
            raise CloudError("; ".join(problems))

    def _reasons(self, view: PoolView) -> dict[str, str]:
        """Server -> why it must go. Bookings whose time has begun count, also before the clock has come to them."""
        now = self._now()
        begun = tuple(
            replace(one, state=BookingState.ACTIVE)
            if one.state is BookingState.CONFIRMED and one.ask.start <= now < one.ask.end
            else one
            for one in view.bookings
        )
        view = replace(view, bookings=begun)
        return reasons(view, self._ended(view), shortage(view, now).yielding)

    def _carry_out(self, step: CaseStep, view_now: Callable[[], PoolView], taken_at: datetime) -> None:
        case = step.case

        def still() -> bool:
            """Whether the reason is still there: since the look somebody may have booked, or have got more time."""
            self._require_turn()
            return abs(self._now() - taken_at) <= STALE and case.server_id in self._reasons(view_now())

        LOG.info("server %s (%s): %s, %s", case.server, case.server_id, step.do, case.rule)
        if step.do is Do.ACT:
            self._act(step, still)
        else:
            getattr(self, f"_{step.do.value}")(step)

    def _ended(self, view: PoolView) -> dict[tuple[str, str], datetime]:
        """When bookings that those who have servers without one could use were over last."""
        found: dict[tuple[str, str], datetime] = {}
        for holder in view.matches.unbooked:
            owner = (holder.user_id, holder.project_id)
            query = Query(pool=view.pool, project_id=holder.project_id, states=OVER, start=holder.created)
            for booking in self._ledger.find(query):
                if may_use(holder, booking):
                    found[owner] = max(booking.ask.end, found.get(owner, booking.ask.end))
        return found

    def _open(self, step: CaseStep) -> None:
        self._records.put_case(step.case)

    def _warn(self, step: CaseStep) -> None:
        case = step.case
        text = warning(case)
        if not case.dry_run:
            self._reclaimer.warn(case.server_id, text)
        self._tell(case, "reclaim.warned", "server.warn", text)
        self._records.put_case(case)

    def _act(self, step: CaseStep, still: Callable[[], bool]) -> None:
        case = step.case
        if not still():
            return
        if case.dry_run:
            self._note(case, f"server.{case.action.value}", f"dry run: {MEANS[case.action]}")
            self._records.put_case(case)
            return
        # Written first: should this process be killed in the call, it is known who has taken the GPU back.
        self._records.put_case(case)
        said = self._reclaimer.act(case, still)
        if said:
            self._note(case, f"server.{case.action.value}", said)

    def _finish(self, step: CaseStep) -> None:
        case = step.case
        self._reclaimer.hand_over(case)
        stopped = case.action is ReclaimAction.STOP
        text = "it is shut off and keeps its GPU: this frees nothing" if stopped else "its GPU is free"
        self._tell(case, "reclaim.done", f"server.{case.action.value}", text)
        self._records.put_case(case)

    def _clear(self, step: CaseStep) -> None:
        case = step.case
        if case.warned is not None and not case.dry_run:
            self._reclaimer.take_warning_off(case.server_id)
        self._note(case, "server.clear", "there is no reason for it any more")
        self._records.put_case(case)

    def _tell(self, case: Case, kind: str, action: str, text: str) -> None:
        """An event and its audit entry, once for each case and kind."""
        now = self._now()
        details = {
            "server": case.server,
            "server_id": case.server_id,
            "pool": case.pool,
            "rule": case.rule,
            "why": RULES[case.rule],
            "action": case.action.value,
            "text": text,
        }
        if case.due is not None:
            details["due"] = case.due.isoformat()
        if case.dry_run:
            details["dry_run"] = "true"
        email = self._email(case)
        event = Event(kind, now, "", case.user_id, email, details)
        entries = [_entry(case, action, text, now)]
        if not email:
            why = f"its owner could not be told: Keystone has no address of user {case.user_id}"
            entries.append(_entry(case, "message.no_address", why, now))
        what = f"{kind} {'dry run' if case.dry_run else ''}"
        self._ledger.upkeep.note_once(case.pool, _subject(case), what, event, *entries)

    def _note(self, case: Case, action: str, text: str) -> None:
        """An audit entry, once for each case and text: what is tried again at every look is not a new thing."""
        entry = _entry(case, action, text, self._now())
        self._ledger.upkeep.note_once(case.pool, _subject(case), f"{action} {text}", None, entry)

    def _email(self, case: Case) -> str:
        """Where the owner is told, by Keystone, or else by the last booking; empty when neither knows."""
        now = self._now()
        asked, email = self._addresses.get(case.user_id, (now - FRESH, ""))
        if now - asked >= FRESH:
            email = self._reclaimer.address(case.user_id)
            self._addresses[case.user_id] = (now, email)
        bookings = () if email else self._ledger.find(Query(pool=case.pool, user_id=case.user_id))
        return email or next((booking.email for booking in reversed(bookings) if booking.email), "")


def _subject(case: Case) -> str:
    return f"case {case.server_id} {int(case.seen.timestamp())}"


def _entry(case: Case, action: str, text: str, now: datetime) -> AuditEntry:
    words = f"dry run: {text}" if case.dry_run and not text.startswith("dry run") else text
    return AuditEntry(now, GPUYARD, action, case.server_id, case.rule, f"server {case.server}: {words}")
