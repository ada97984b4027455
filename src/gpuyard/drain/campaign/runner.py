"""Carries a campaign out: observes, does what the planner says, writes each act down before, and observes again.

It decides nothing, so a run that ends anywhere is continued by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol

from gpuyard.deployment.journal import DeployJournal, Happening, JournalEntry, JournalWriter, stamp
from gpuyard.drain.campaign.definition import Campaign
from gpuyard.drain.campaign.planner import (
    CampaignAct,
    CampaignCost,
    CampaignHostState,
    CampaignNow,
    CampaignPlan,
    CampaignRow,
    CampaignStanding,
    CampaignWork,
    plan_campaign,
)
from gpuyard.model.errors import GpuyardError

PATIENCE = timedelta(minutes=30)
"""Time for which a portal may be silent before the run ends."""


class CampaignUnseenError(GpuyardError):
    """The portal does not answer; whether it did what it was asked for is not known."""


class CampaignPorts(Protocol):
    """The ports through which a campaign observes and acts. Methods raise GpuyardError; CampaignUnseenError for what
    may be otherwise at the next observation."""

    def look(self, journal: DeployJournal) -> Mapping[str, CampaignHostState]:
        """Observe all hosts."""

    def costs(self, hosts: Sequence[str], start: datetime, end: datetime) -> Mapping[str, CampaignCost]:
        """Return the cost of maintaining each of the hosts in that time."""

    def begin(self, host: str) -> None: ...

    def close(self, host: str) -> None: ...

    def drain(self, host: str) -> None:
        """Begin with the next of its servers; `look` says how far that is."""

    def work(self, host: str, attempt: str) -> None:
        """Start the command; it is a new `attempt`."""

    def done(self, host: str) -> None: ...

    def open(self, host: str) -> None: ...

    def accept(self, host: str) -> None: ...

    def stop_asked(self) -> str:
        """Return the person who wants it stopped, in words; empty: nobody does."""

    def wait(self) -> None:
        """Wait a little."""


@dataclass
class CampaignRun:
    """One run of a campaign."""

    campaign: Campaign
    ports: CampaignPorts
    writer: JournalWriter
    clock: Callable[[], datetime]
    show: Callable[[CampaignPlan], None]
    unseen: Callable[[str], None] = lambda why: None
    """Called with the reason when the portal does not answer."""
    _silent: datetime | None = field(default=None, init=False)
    """Time since which the portal has been silent."""

    def run(self, journal: DeployJournal) -> CampaignPlan:
        """Run until nothing is left to do or to wait for; return the plan as it is then. Raises GpuyardError."""
        self._silent = None
        while True:
            try:
                states = self.ports.look(journal)
                journal = self._note_ends(states, journal)
                plan = self.plan(states, journal)
            except CampaignUnseenError as error:
                self._wait_for_portal(error)
                continue
            journal = self._note_failures(plan, journal)
            self.show(plan)
            if plan.acts:
                journal = self._carry_out(plan.acts, journal)
            elif plan.over:
                return plan
            else:
                self._silent = None
                self.ports.wait()

    def _wait_for_portal(self, error: CampaignUnseenError) -> None:
        """Raises it when it has been so for too long: nothing was seen, or nothing was done that was asked for."""
        self._silent = self._silent or self.clock()
        if self.clock() - self._silent > PATIENCE:
            raise error
        self.unseen(str(error))
        self.ports.wait()

    def plan(self, states: Mapping[str, CampaignHostState], journal: DeployJournal) -> CampaignPlan:
        """Plan the next acts. Where there is a choice, hosts on which nobody would lose anything are first."""
        now = CampaignNow(states, journal, self.clock(), self.ports.stop_asked())
        plan = plan_campaign(self.campaign, now)
        waiting = [row.host for row in plan.rows if row.standing is CampaignStanding.WAITING]
        if not 0 < sum(row.act is CampaignAct.BEGIN for row in plan.rows) < len(waiting) or self._is_canary(plan):
            return plan
        costs = self.ports.costs(waiting, now.time, now.time + self.campaign.takes)
        return plan_campaign(self.campaign, replace(now, costs=costs))

    def _is_canary(self, plan: CampaignPlan) -> bool:
        return any(row.host == self.campaign.first and row.act is CampaignAct.BEGIN for row in plan.rows)

    def _note_ends(self, states: Mapping[str, CampaignHostState], journal: DeployJournal) -> DeployJournal:
        """Write down how commands, and ways of servers, have ended that were begun."""
        for host in self.campaign.hosts:
            state = states[host]
            if state.work is CampaignWork.ENDED:
                why = f"its command ended with {state.code}; its output is in {state.log}" if state.code else ""
                journal = self._note_end(journal, CampaignAct.WORK, host, why)
            if state.drain is not None and state.drain.move is CampaignWork.ENDED:
                journal = self._note_end(journal, CampaignAct.DRAIN, host, state.drain.failed)
        return journal

    def _note_failures(self, plan: CampaignPlan, journal: DeployJournal) -> DeployJournal:
        """So that this run begins nothing when one gets well meanwhile, and the next one nothing before it is back."""
        for row in plan.failed:
            last = journal.last(CampaignAct.RETURN, row.host)
            if last is None or last.run != journal.run:
                journal = self._note(journal, CampaignAct.RETURN, row.host, Happening.FAILED, row.reason)
        return journal

    def _note_end(self, journal: DeployJournal, act: CampaignAct, host: str, why: str) -> DeployJournal:
        """`why`: it has failed; empty: it has not."""
        begun = journal.last(act, host)
        if begun is None or begun.happening is not Happening.BEGUN:
            return journal
        happening = Happening.FAILED if why else Happening.DONE
        return self._note(journal, act, host, happening, why or begun.about)

    def _carry_out(self, acts: Sequence[CampaignRow], journal: DeployJournal) -> DeployJournal:
        """Each of them; after one that fails, all is looked at anew."""
        for row in acts:
            assert row.act is not None
            attempt = f"{journal.run}-{len(journal.entries)}"
            journal = self._note(journal, row.act, row.host, Happening.BEGUN, attempt)
            try:
                self._do(row.act, row.host, attempt)
            except CampaignUnseenError as error:  # done or not: the next look tells
                self._wait_for_portal(error)
                return journal
            except GpuyardError as error:
                return self._note(journal, row.act, row.host, Happening.FAILED, str(error))
            self._silent = None
            if row.act not in (CampaignAct.WORK, CampaignAct.DRAIN):  # those end later
                journal = self._note(journal, row.act, row.host, Happening.DONE, attempt)
        return journal

    def _do(self, act: CampaignAct, host: str, attempt: str) -> None:
        if act is CampaignAct.BEGIN:
            self.ports.begin(host)
        elif act is CampaignAct.CLOSE:
            self.ports.close(host)
        elif act is CampaignAct.DRAIN:
            self.ports.drain(host)
        elif act is CampaignAct.WORK:
            self.ports.work(host, attempt)
        elif act is CampaignAct.DONE:
            self.ports.done(host)
        elif act is CampaignAct.OPEN:
            self.ports.open(host)
        elif act is CampaignAct.ACCEPT:
            self.ports.accept(host)

    def _note(
        self, journal: DeployJournal, act: CampaignAct, host: str, happening: Happening, about: str
    ) -> DeployJournal:
        entry = JournalEntry(journal.run, act.value, host, happening, stamp(self.clock()), about)
        self.writer.write(entry)
        return journal.with_entry(entry)
