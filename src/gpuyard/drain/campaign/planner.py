"""Plans the next acts of a campaign from its file, its journal, the state of its hosts, and the time. Pure.

A host goes through a maintenance, which the portal keeps: it is emptied, worked on, checked, given back. The campaign
begins the maintenance, has the work done, and has GPUs accepted that must be. One host is out of use before all others,
as a canary; never more than the file says at once; and after one has failed none begins any more, while what is under
way goes on to its end.

Where the file says so the campaign empties hosts itself, as `gpuyard host drain` does: Nova is told to start nothing
new there, servers move elsewhere, one at a time whatever its host, and after the work Nova may use the host again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from enum import StrEnum

from gpuyard.deployment.journal import DeployJournal, Happening, JournalEntry
from gpuyard.drain.campaign.definition import Campaign
from gpuyard.health.maintenance import MaintenanceState
from gpuyard.health.records import HealthState
from gpuyard.model.moments import minute_text


class CampaignAct(StrEnum):
    """An act of the campaign. In its journal each is a stage."""

    BEGIN = "begin"
    """Begin a maintenance of the host, from now on."""
    CLOSE = "close"
    """Have Nova start no servers there."""
    DRAIN = "drain"
    """Move one of its servers elsewhere, or shelve it."""
    EMPTIED = "emptied"
    """Note in the journal, and nothing else: no server is there, with GPUs or without."""
    WORK = "work"
    """Start the command of the file."""
    DONE = "done"
    """Say that the work is done, so that the host is checked."""
    OPEN = "open"
    """Have Nova use it again: its check and servers that accept GPUs need that."""
    ACCEPT = "accept"
    """Have the GPUs accepted that must be before anybody gets them."""
    RETURN = "return"
    """Note in the journal, and nothing else: this host is through, or has failed."""


class CampaignStanding(StrEnum):
    """The stage that a host of a campaign is in."""

    WAITING = "waiting"
    TAKEN = "taken"
    """A maintenance of somebody else is on."""
    DRAINING = "draining"
    MOVING = "moving"
    """One of its servers is on its way elsewhere."""
    EMPTY = "empty"
    """No server is there, and its work has not begun."""
    AT_WORK = "at work"
    BY_HAND = "by hand"
    """A person works on it, and says when that is done."""
    CHECKING = "checking"
    ACCEPTING = "accepting"
    BACK = "back"
    FAILED = "failed"


OUT = frozenset(
    {
        CampaignStanding.DRAINING,
        CampaignStanding.MOVING,
        CampaignStanding.EMPTY,
        CampaignStanding.AT_WORK,
        CampaignStanding.BY_HAND,
        CampaignStanding.CHECKING,
        CampaignStanding.ACCEPTING,
        CampaignStanding.FAILED,
    }
)
"""Stages in which the campaign keeps the host out of use, or does not know whether it is well."""
ENDS_BY_ITSELF = frozenset(
    {CampaignStanding.MOVING, CampaignStanding.AT_WORK, CampaignStanding.CHECKING, CampaignStanding.ACCEPTING}
)
"""Stages that a run that begins nothing any more waits for: nobody else brings them on."""


class CampaignWork(StrEnum):
    """The state of what was last started for a host: its command, or the move of one of its servers."""

    NONE = "none"
    """Nothing was started, or it was killed and nobody knows how far it came."""
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True)
class CampaignMaintenance:
    """The maintenance of a host that the campaign has begun."""

    state: MaintenanceState
    since: datetime
    begun: datetime | None = None
    done: datetime | None = None
    problems: tuple[str, ...] = ()
    """Conditions that its work waits for beside servers; later why it is not given back yet."""
    servers: tuple[str, ...] | None = None
    """Names of servers that are there and may not go down; None: it is not known which, so there may be some."""
    may_go_down: tuple[str, ...] = ()
    """Ids of servers that may be there while the host is worked on."""


@dataclass(frozen=True)
class CampaignDrain:
    """The state of a host's drain, in the words of `gpuyard host drain`."""

    closed: bool = True
    """Nova starts no servers there, since gpuyard has told it so."""
    next: str = ""
    """The server that goes first, in words; empty: none can go now."""
    left: tuple[str, ...] = ()
    """The servers that cannot go now, in words."""
    refused: str = ""
    """Why no server at all can go; then nothing else is known."""
    move: CampaignWork = CampaignWork.NONE
    """State of the last move that this run has begun."""
    failed: str = ""
    """Why that move has failed; empty: it has not."""


@dataclass(frozen=True)
class CampaignGpu:
    """One of the host's GPUs."""

    address: str
    state: HealthState
    since: datetime
    cause: str = ""


@dataclass(frozen=True)
class CampaignHostState:
    """The state of a host, as the portal, the cloud and the work files show it."""

    maintenance: CampaignMaintenance | None = None
    """The last maintenance of this campaign."""
    other: str = ""
    """A maintenance of somebody else that is not over, in words."""
    gpus: tuple[CampaignGpu, ...] = ()
    """GPUs that are not simply in use or free, once the host is back."""
    tries: int = 0
    """Servers that try its GPUs at the moment."""
    tried: str = ""
    """Result of the last server that did not pass."""
    work: CampaignWork = CampaignWork.NONE
    code: int = 0
    """Exit code of the command."""
    log: str = ""
    """Path of its output."""
    drain: CampaignDrain | None = None
    """State of its drain, where it is to be emptied."""
    closed: bool = False
    """Nova does not use it, since a drain has told it; seen when the work is done."""
    heard: bool = True
    """Nova hears of its nova-compute."""


@dataclass(frozen=True)
class CampaignCost:
    """The cost of maintaining a host now: bookings that would move or stay, and servers."""

    moves: int = 0
    """Bookings that would get other GPUs."""
    stays: tuple[str, ...] = ()
    """Bookings that cannot be elsewhere, in words: they have begun, or their owners would lose them."""
    servers: tuple[str, ...] = ()
    """Servers that are there now, with GPUs or without."""

    @property
    def hurts(self) -> bool:
        return bool(self.stays or self.servers)


@dataclass(frozen=True)
class CampaignRow:
    """One host of a plan: its stage, the reason, and the next act."""

    host: str
    standing: CampaignStanding
    reason: str
    act: CampaignAct | None = None


@dataclass(frozen=True)
class CampaignPlan:
    """The plan of a campaign: all hosts, in the order of the file."""

    rows: tuple[CampaignRow, ...]
    halted: str = ""
    """Why nothing begins any more."""

    @property
    def acts(self) -> list[CampaignRow]:
        return [row for row in self.rows if row.act is not None]

    @property
    def failed(self) -> list[CampaignRow]:
        return [row for row in self.rows if row.standing is CampaignStanding.FAILED]

    @property
    def left(self) -> list[CampaignRow]:
        return [row for row in self.rows if row.standing is not CampaignStanding.BACK]

    @property
    def over(self) -> bool:
        """Whether nothing is to do, and nothing that the campaign waits for will come by itself."""
        waits = (
            ENDS_BY_ITSELF if self.halted else ENDS_BY_ITSELF | {CampaignStanding.DRAINING, CampaignStanding.BY_HAND}
        )
        return not self.acts and not any(row.standing in waits for row in self.rows)


@dataclass(frozen=True)
class CampaignNow:
    """The input of a plan, besides the file."""

    states: Mapping[str, CampaignHostState]
    journal: DeployJournal
    time: datetime
    stop: str = ""
    """The person who wants it stopped, in words; empty: nobody."""
    costs: Mapping[str, CampaignCost] = field(default_factory=dict)


def plan_campaign(campaign: Campaign, now: CampaignNow) -> CampaignPlan:
    """Plan the stage of each host, and what is to do next."""
    rows = [_row(campaign, host, now) for host in campaign.hosts]
    failed = [row.host for row in rows if row.standing is CampaignStanding.FAILED]
    halted = f"stopped after {', '.join(failed)} failed" if failed else now.stop
    if halted:
        return CampaignPlan(tuple(_halted(row, halted) for row in rows), halted)
    room = campaign.at_once - sum(row.standing in OUT for row in rows)
    why_not = _nobody_begins(campaign, rows, now.journal)
    waiting = [row for row in rows if row.standing is CampaignStanding.WAITING]
    if campaign.first in [row.host for row in waiting]:
        waiting = [row for row in waiting if row.host == campaign.first]
    waiting.sort(key=lambda row: now.costs.get(row.host, CampaignCost()).hurts)  # the order of the file otherwise
    begins = [] if why_not else [row.host for row in waiting[: max(room, 0)]]
    if campaign.first in begins:
        why_not = f"waits for the canary {campaign.first}"
    elif room <= 0:
        why_not = why_not or f"waits until fewer than {campaign.at_once} are out of use"
    planned_rows = [
        _begins(row, campaign)
        if row.host in begins
        else replace(row, reason=why_not or "waits for its turn")
        if row.standing is CampaignStanding.WAITING
        else row
        for row in rows
    ]
    return CampaignPlan(tuple(_one_moves(planned_rows)))


def _one_moves(rows: Sequence[CampaignRow]) -> list[CampaignRow]:
    """One server at a time: two that are planned apart could be promised the same room."""
    goes = [row.host for row in rows if row.standing is CampaignStanding.MOVING] or [
        row.host for row in rows if row.act is CampaignAct.DRAIN
    ]
    return [
        replace(row, act=None, reason=f"waits for a server of {goes[0]} to have moved; then {row.reason}")
        if row.act is CampaignAct.DRAIN and row.host != goes[0]
        else row
        for row in rows
    ]


def _begins(row: CampaignRow, campaign: Campaign) -> CampaignRow:
    reason = "the canary, before all others" if row.host == campaign.first else "it is its turn"
    return replace(row, reason=reason, act=CampaignAct.BEGIN)


def _nobody_begins(campaign: Campaign, rows: Sequence[CampaignRow], journal: DeployJournal) -> str:
    """Why no host but the canary may begin; empty: they may."""
    canary = next(row for row in rows if row.host == campaign.first)
    if canary.standing not in (CampaignStanding.BACK, CampaignStanding.WAITING):
        return f"waits for the canary {canary.host}, which is {canary.standing.value}"
    again = [row.host for row in rows if row.standing in OUT and _failed_once(journal, row.host)]
    return f"waits for {', '.join(again)}, which failed before" if again else ""


def _failed_once(journal: DeployJournal, host: str) -> bool:
    mine = [entry for entry in journal.entries if entry.object == host]
    last = max((n for n, entry in enumerate(mine) if entry.stage == CampaignAct.BEGIN), default=0)
    return any(entry.happening is Happening.FAILED for entry in mine[last:])


def _halted(row: CampaignRow, halted: str) -> CampaignRow:
    """Nothing begins: neither a host, nor the way of a server, nor the work. What is under way goes on to its end."""
    if row.standing is CampaignStanding.WAITING:
        return replace(row, reason=f"not begun: {halted}", act=None)
    if row.act in (CampaignAct.CLOSE, CampaignAct.DRAIN):
        return replace(row, reason=f"it is not emptied further: {halted}", act=None)
    if row.act is CampaignAct.WORK:
        return replace(row, reason=f"its work is not begun: {halted}", act=None)
    return row


def _row(campaign: Campaign, host: str, now: CampaignNow) -> CampaignRow:
    """A host by itself, as if there were no other one."""
    state, journal = now.states.get(host, CampaignHostState()), now.journal
    through = journal.last(CampaignAct.RETURN, host)
    if through is not None and through.happening is Happening.DONE:
        return CampaignRow(host, CampaignStanding.BACK, f"since {through.at}")
    if through is not None and through.happening is Happening.FAILED and through.run == journal.run:
        return CampaignRow(host, CampaignStanding.FAILED, through.about)  # whatever has become of it since
    begun, maintenance = journal.last(CampaignAct.BEGIN, host), state.maintenance
    if begun is not None and begun.happening is Happening.FAILED and begun.run == journal.run:
        return CampaignRow(host, CampaignStanding.FAILED, begun.about)
    if maintenance is None or maintenance.state is MaintenanceState.CANCELLED:
        if maintenance is not None and begun is not None and begun.run == journal.run:
            return CampaignRow(host, CampaignStanding.FAILED, "its maintenance was cancelled by somebody")
        return (
            CampaignRow(host, CampaignStanding.TAKEN, state.other)
            if state.other
            else CampaignRow(host, CampaignStanding.WAITING, "")
        )
    if (
        campaign.drain
        and maintenance.state in (MaintenanceState.DRAINING, MaintenanceState.IN_WORK)
        and not is_emptied(journal, host)
    ):
        return _emptying(campaign, host, maintenance, now)
    if maintenance.state in (MaintenanceState.PLANNED, MaintenanceState.DRAINING):
        return _drained(campaign, host, maintenance, now)
    if state.work is CampaignWork.RUNNING:
        return CampaignRow(host, CampaignStanding.AT_WORK, f"its command runs, output in {state.log}")
    work = journal.last(CampaignAct.WORK, host)
    if work is not None and work.happening is Happening.FAILED and work.run == journal.run:
        return CampaignRow(
            host, CampaignStanding.FAILED, work.about
        )  # also where somebody has said meanwhile that it is done
    if maintenance.state is MaintenanceState.IN_WORK:
        return _unless_used(_worked(campaign, host, state, journal), maintenance)
    if maintenance.state is MaintenanceState.CHECKING:
        return _checked(campaign, host, maintenance, now)
    return _given_back(campaign, host, maintenance, now)


def is_emptied(journal: DeployJournal, host: str) -> bool:
    """Return whether a host's servers have been moved away in its last maintenance; from then on it may be down."""
    emptied = journal.last(CampaignAct.EMPTIED, host)
    return emptied is not None and _since(journal, emptied, journal.last(CampaignAct.BEGIN, host))


def _emptying(campaign: Campaign, host: str, maintenance: CampaignMaintenance, now: CampaignNow) -> CampaignRow:
    drain, journal = now.states[host].drain, now.journal
    if drain is None:
        return CampaignRow(host, CampaignStanding.DRAINING, "waits until its servers are looked at")
    if drain.move is CampaignWork.RUNNING:
        return CampaignRow(host, CampaignStanding.MOVING, drain.next)
    if refused := _refused(journal, host, CampaignAct.CLOSE) or _refused(journal, host, CampaignAct.DRAIN):
        return CampaignRow(host, CampaignStanding.FAILED, refused)
    waits = drain.refused or drain.next or "; ".join(drain.left)
    if drain.closed and not waits:
        return CampaignRow(host, CampaignStanding.DRAINING, "no server is on it any more", CampaignAct.EMPTIED)
    if late := _late(campaign, maintenance, now):
        return CampaignRow(host, CampaignStanding.FAILED, f"{late}: {waits}")
    if not drain.closed and not drain.refused:
        return CampaignRow(host, CampaignStanding.DRAINING, "it is to take no new servers", CampaignAct.CLOSE)
    return CampaignRow(host, CampaignStanding.DRAINING, waits, CampaignAct.DRAIN if drain.next else None)


def _drained(campaign: Campaign, host: str, maintenance: CampaignMaintenance, now: CampaignNow) -> CampaignRow:
    used = (
        f"waits for {', '.join(maintenance.servers)}" if maintenance.servers else "waits until it is seen to be empty"
    )
    used = "; ".join([used, *maintenance.problems])
    if late := _late(campaign, maintenance, now):
        return CampaignRow(host, CampaignStanding.FAILED, f"{late}: {used}")
    return CampaignRow(host, CampaignStanding.DRAINING, used)


def _late(campaign: Campaign, maintenance: CampaignMaintenance, now: CampaignNow) -> str:
    """That a host should have been empty by now; empty: it may take longer."""
    begun = maintenance.begun or maintenance.since
    if campaign.drained_within is None or now.time - begun <= campaign.drained_within:
        return ""
    return f"not empty since {minute_text(begun)}"


def _refused(journal: DeployJournal, host: str, act: CampaignAct) -> str:
    """Why it could not be done in this run; the next one tries again."""
    entry = journal.last(act, host)
    return entry.about if entry is not None and entry.happening is Happening.FAILED and entry.run == journal.run else ""


def _worked(campaign: Campaign, host: str, state: CampaignHostState, journal: DeployJournal) -> CampaignRow:
    work, done = journal.last(CampaignAct.WORK, host), journal.last(CampaignAct.DONE, host)
    by_person = f"waits until somebody says 'gpuyard host maintenance done {host}'"
    if done is not None and done.happening is Happening.DONE and _since(journal, done, work):
        return CampaignRow(host, CampaignStanding.BY_HAND, f"somebody works on it again; {by_person}")
    if campaign.by_hand:
        return CampaignRow(host, CampaignStanding.BY_HAND, f"it is empty; {by_person}")
    if work is None or not _since(journal, work, journal.last(CampaignAct.BEGIN, host)):
        return CampaignRow(host, CampaignStanding.EMPTY, "it is empty", CampaignAct.WORK)
    refused = done is not None and done.happening is Happening.FAILED and done.run == journal.run
    if done is not None and refused and _since(journal, done, work):
        return CampaignRow(host, CampaignStanding.FAILED, done.about)
    if work.happening is Happening.DONE:
        return CampaignRow(host, CampaignStanding.AT_WORK, "the work is done", CampaignAct.DONE)
    if work.happening is Happening.FAILED:
        return CampaignRow(host, CampaignStanding.EMPTY, f"once more, after a failure: {work.about}", CampaignAct.WORK)
    return CampaignRow(
        host, CampaignStanding.EMPTY, f"once more: begun {work.at}, and nobody knows how far it came", CampaignAct.WORK
    )


def _unless_used(row: CampaignRow, maintenance: CampaignMaintenance) -> CampaignRow:
    """No command is started while servers are on the host that may not go down: some may have come since it was empty,
    and a portal that does not say which are there does not say that none is."""
    if row.act is not CampaignAct.WORK or maintenance.servers == ():
        return row
    reason = (
        f"waits for {', '.join(maintenance.servers)}"
        if maintenance.servers
        else "waits until it is known which servers are there"
    )
    return CampaignRow(row.host, CampaignStanding.DRAINING, reason)


def _checked(campaign: Campaign, host: str, maintenance: CampaignMaintenance, now: CampaignNow) -> CampaignRow:
    state = now.states[host]
    if refused := _refused(now.journal, host, CampaignAct.OPEN):
        return CampaignRow(host, CampaignStanding.FAILED, refused)
    if state.closed and state.heard:
        return CampaignRow(
            host, CampaignStanding.CHECKING, "the work is done, and Nova may use it again", CampaignAct.OPEN
        )
    problems, done = "; ".join(maintenance.problems) or "waits for its check", maintenance.done or maintenance.since
    if now.time - done > campaign.back_within:
        return CampaignRow(host, CampaignStanding.FAILED, f"not given back since {minute_text(done)}: {problems}")
    return CampaignRow(host, CampaignStanding.CHECKING, problems)


def _given_back(campaign: Campaign, host: str, maintenance: CampaignMaintenance, now: CampaignNow) -> CampaignRow:
    """Its maintenance is over: are all of its GPUs, too?"""
    state, journal = now.states[host], now.journal
    begun, work = journal.last(CampaignAct.BEGIN, host), journal.last(CampaignAct.WORK, host)
    if not campaign.by_hand and (work is None or not _since(journal, work, begun)):
        if begun is not None and begun.run == journal.run:
            return CampaignRow(host, CampaignStanding.FAILED, "somebody has given it back before its work was begun")
        return CampaignRow(host, CampaignStanding.WAITING, "")
    bad = [gpu for gpu in state.gpus if gpu.state is HealthState.QUARANTINED and gpu.since >= maintenance.since]
    if bad:
        return CampaignRow(
            host, CampaignStanding.FAILED, "; ".join(f"{gpu.address} is quarantined: {gpu.cause}" for gpu in bad)
        )
    acceptance = journal.last(CampaignAct.ACCEPT, host)
    if refused := _refused(journal, host, CampaignAct.ACCEPT) or _refused(journal, host, CampaignAct.OPEN):
        return CampaignRow(host, CampaignStanding.FAILED, refused)
    if state.closed:  # somebody has answered for it before Nova was told
        return CampaignRow(host, CampaignStanding.CHECKING, "it is back, and Nova may use it again", CampaignAct.OPEN)
    if state.tries:
        return CampaignRow(host, CampaignStanding.ACCEPTING, f"servers try {state.tries} of its slots")
    wait = [gpu.address for gpu in state.gpus if gpu.state is HealthState.TO_ACCEPT]
    if wait and acceptance is not None and acceptance.happening is Happening.DONE and acceptance.run == journal.run:
        return CampaignRow(
            host, CampaignStanding.FAILED, f"{', '.join(wait)}: not accepted: {state.tried or 'no server tried them'}"
        )
    if wait:
        return CampaignRow(
            host,
            CampaignStanding.ACCEPTING,
            f"{', '.join(wait)}: to be accepted before anybody gets them",
            CampaignAct.ACCEPT,
        )
    if suspect := [gpu.address for gpu in state.gpus if gpu.state is HealthState.SUSPECT]:
        return CampaignRow(
            host, CampaignStanding.CHECKING, f"{', '.join(suspect)}: suspect; waits until that has passed"
        )
    return CampaignRow(host, CampaignStanding.CHECKING, "it has passed its check", CampaignAct.RETURN)


def _since(journal: DeployJournal, entry: JournalEntry, other: JournalEntry | None) -> bool:
    """Return whether the one was written after the other."""
    return other is None or journal.entries.index(entry) > journal.entries.index(other)


def expected(campaign: Campaign, rows: Sequence[CampaignRow], now: datetime) -> dict[str, tuple[datetime, datetime]]:
    """Return when hosts that wait would be out of use, if each took as long as the file says."""
    waiting = [row.host for row in rows if row.standing in (CampaignStanding.WAITING, CampaignStanding.TAKEN)]
    out = sum(row.standing in OUT for row in rows)
    ahead = [campaign.first] if campaign.first in waiting else []
    rest = [host for host in waiting if host != campaign.first]
    times_by_host = dict.fromkeys(ahead, (now, now + campaign.takes))
    before = 1 if ahead or out else 0
    for number, host in enumerate(rest):
        start = now + (before + number // campaign.at_once) * campaign.takes
        times_by_host[host] = (start, start + campaign.takes)
    return times_by_host
