"""Carries out what `bookings/reclaim.py` decides about servers that keep GPUs without a booking.

Nothing is done by an observation that is more than STALE old, and right before a GPU is taken the reason is checked
once more: somebody may have booked since. The action is written down before the call, so that after a kill it is known
who took the GPU back.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from types import MappingProxyType

from gpuyard.bookings.controllers.addresses import Addresses
from gpuyard.bookings.controllers.reclaim_servers import Reclaimer
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.matching import may_use
from gpuyard.bookings.pool_view import PoolView
from gpuyard.bookings.reclaim import IDLE, MEANS, RULES, Do, OverstayStep, idle_ones, plan_overstays, reasons, warning
from gpuyard.bookings.records import AuditEntry, Event, Overstay, Query
from gpuyard.bookings.shortage import shortage
from gpuyard.model.booking import BookingState, ReclaimAction
from gpuyard.model.counts import Counts
from gpuyard.openstack.errors import CloudError
from gpuyard.site.schema import Site

LOG = logging.getLogger(__name__)
STALE = timedelta(seconds=60)
"""Nothing is done about a server when it was observed longer ago than this."""
OUTCOMES = ("done", "failed")
OVER = frozenset({BookingState.ENDED, BookingState.NO_SHOW})


class OverstayController:
    """Plans and applies the overstays of one site."""

    def __init__(
        self,
        site: Site,
        ledger: Ledger,
        reclaimer: Reclaimer,
        now: Callable[[], datetime],
        require_leadership: Callable[[], None] = lambda: None,
        idle_servers: Callable[[], Collection[str]] = frozenset,
    ) -> None:
        """`require_leadership`: raises when another process may be at the same work; asked before each thing that is
        done. `idle_servers`: returns servers that do nothing with their GPUs, as their guests report."""
        self._site = site
        self._ledger = ledger
        self._records = ledger.upkeep.records
        self._reclaimer = reclaimer
        self._now = now
        self._require_leadership = require_leadership
        self.counted = Counts((do.value, rule, outcome) for do in Do for rule in RULES for outcome in OUTCOMES)
        """(step, rule, outcome) of what was tried."""
        self._idle_servers = idle_servers
        rules = site.health.idle if site.health else None
        self._only_warn = frozenset({IDLE}) if rules is not None and rules.action == "warn" else frozenset()
        self.addresses = Addresses(reclaimer.address, ledger, now)

    def look(self, view_now: Callable[[], PoolView], taken_at: datetime) -> None:
        """Do what is due for the servers of a pool, as they were observed at `taken_at`. `view_now`: returns the pool
        with the bookings as they are when it is called. An error with one server keeps no other waiting; it is raised
        afterwards as CloudError."""
        booking = self._site.booking
        assert booking is not None
        view = view_now()
        problems: list[str] = []
        for _ in range(2):  # the owner of a new overstay is warned in the same run
            now = self._now()
            if abs(now - taken_at) > STALE:
                break
            overstays = [overstay for overstay in self._records.open_overstays() if overstay.pool == view.pool]
            steps = plan_overstays(view, self._reasons(view), overstays, booking.dry_run, now, self._only_warn)
            for step in steps:
                self._require_leadership()
                outcome = "failed"
                try:
                    self._carry_out(step, view_now, taken_at)
                    outcome = "done"
                except CloudError as problem:
                    problems.append(f"server {step.overstay.server} ({step.overstay.server_id}): {problem}")
                finally:
                    self.counted.add(step.do.value, step.overstay.rule, outcome)
            if problems or not any(step.do is Do.OPEN for step in steps):
                break
        if problems:
            raise CloudError("; ".join(problems))

    def _reasons(self, view: PoolView) -> dict[str, str]:
        """Server -> why it must go. Bookings whose time has begun count, also before the clock has come to them."""
        now = self._now()
        begun = tuple(
            replace(booking, state=BookingState.ACTIVE)
            if booking.state is BookingState.CONFIRMED and booking.ask.start <= now < booking.ask.end
            else booking
            for booking in view.bookings
        )
        view = replace(view, bookings=begun)
        idle = idle_ones(view, self._idle_servers())
        return {**idle, **reasons(view, self._ended(view), shortage(view, now).yielding)}

    def _carry_out(self, step: OverstayStep, view_now: Callable[[], PoolView], taken_at: datetime) -> None:
        overstay = step.overstay

        def still() -> bool:
            """Return whether the reason is still there: since the look somebody may have booked, or have got more
            time."""
            self._require_leadership()
            return abs(self._now() - taken_at) <= STALE and overstay.server_id in self._reasons(view_now())

        LOG.info("server %s (%s): %s, %s", overstay.server, overstay.server_id, step.do, overstay.rule)
        if step.do is Do.ACT:
            self._act(step, still)
        elif step.do is Do.WARN:
            self._warn(step, view_now().matches.bookings_of.get(overstay.server_id, ()))
        else:
            getattr(self, f"_{step.do.value}")(step)

    def _ended(self, view: PoolView) -> dict[tuple[str, str], datetime]:
        """When bookings that those who have servers without one could use were over last."""
        ended: dict[tuple[str, str], datetime] = {}
        for holder in view.matches.unbooked:
            owner = (holder.user_id, holder.project_id)
            query = Query(pool=view.pool, project_id=holder.project_id, states=OVER, start=holder.created)
            for booking in self._ledger.find(query):
                if may_use(holder, booking):
                    ended[owner] = max(booking.ask.end, ended.get(owner, booking.ask.end))
        return ended

    def _open(self, step: OverstayStep) -> None:
        self._records.put_overstay(step.overstay)

    def _warn(self, step: OverstayStep, bookings: Sequence[str]) -> None:
        """`bookings`: ids of those that the server draws on, which only one that is idle has."""
        overstay = step.overstay
        text = warning(overstay)
        if not overstay.dry_run:
            self._reclaimer.warn(overstay.server_id, text)
        give_back = "; ".join(f"gpuyard booking end {id}" for id in bookings)
        kind, more = ("server.idle", {"give_back": give_back}) if overstay.rule == IDLE else ("reclaim.warned", {})
        self._tell(overstay, kind, "server.warn", text, more)
        self._records.put_overstay(overstay)

    def _act(self, step: OverstayStep, still: Callable[[], bool]) -> None:
        overstay = step.overstay
        if not still():
            return
        if overstay.dry_run:
            self._note(overstay, f"server.{overstay.action.value}", f"dry run: {MEANS[overstay.action]}")
            self._records.put_overstay(overstay)
            return
        # Written first: should this process be killed in the call, it is known who has taken the GPU back.
        self._records.put_overstay(overstay)
        outcome = self._reclaimer.act(overstay, still)
        if outcome:
            self._note(overstay, f"server.{overstay.action.value}", outcome)

    def _finish(self, step: OverstayStep) -> None:
        overstay = step.overstay
        self._reclaimer.hand_over(overstay)
        stopped = overstay.action is ReclaimAction.STOP
        text = "it is shut off and keeps its GPU: this frees nothing" if stopped else "its GPU is free"
        self._tell(overstay, "reclaim.done", f"server.{overstay.action.value}", text)
        self._records.put_overstay(overstay)

    def _clear(self, step: OverstayStep) -> None:
        overstay = step.overstay
        if overstay.warned is not None and not overstay.dry_run:
            self._reclaimer.take_warning_off(overstay.server_id)
        self._note(overstay, "server.clear", "there is no reason for it any more")
        self._records.put_overstay(overstay)

    def _tell(
        self, overstay: Overstay, kind: str, action: str, text: str, more: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        """Write an event and its audit entry, once for each overstay and kind."""
        now = self._now()
        details = {
            "server": overstay.server,
            "server_id": overstay.server_id,
            "pool": overstay.pool,
            "rule": overstay.rule,
            "why": RULES[overstay.rule],
            "action": overstay.action.value,
            "text": text,
            **more,
        }
        if overstay.due is not None:
            details["due"] = overstay.due.isoformat()
        if overstay.dry_run:
            details["dry_run"] = "true"
        email = self.addresses.of(overstay.user_id, overstay.pool)
        event = Event(kind, now, "", overstay.user_id, email, details)
        entries = [_entry(overstay, action, text, now)]
        if not email:
            why = f"its owner could not be told: Keystone has no address of user {overstay.user_id}"
            entries.append(_entry(overstay, "message.no_address", why, now))
        what = f"{kind} {'dry run' if overstay.dry_run else ''}"
        self._ledger.upkeep.note_once(overstay.pool, _subject(overstay), what, event, *entries)

    def _note(self, overstay: Overstay, action: str, text: str) -> None:
        """Write an audit entry, once for each overstay and text: what every run tries again is not news."""
        entry = _entry(overstay, action, text, self._now())
        self._ledger.upkeep.note_once(overstay.pool, _subject(overstay), f"{action} {text}", None, entry)


def _subject(overstay: Overstay) -> str:
    """The key under which events of an overstay are recorded. Databases have it, so it keeps its old word: with another
    one each open overstay would be told of twice after an upgrade."""
    return f"case {overstay.server_id} {int(overstay.seen.timestamp())}"


def _entry(overstay: Overstay, action: str, text: str, now: datetime) -> AuditEntry:
    words = f"dry run: {text}" if overstay.dry_run and not text.startswith("dry run") else text
    return AuditEntry(now, GPUYARD, action, overstay.server_id, overstay.rule, f"server {overstay.server}: {words}")
