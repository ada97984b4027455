"""What people see of others. It is hidden here alone.

Of bookings, and of servers that are there now: names, only projects, or nothing, as the site says. Admins see all;
everybody sees what is theirs, or of a project of theirs. All see that a GPU is taken, and until when.

Who has used what, and when (reports, intervals, timelines, shares), is an account of people: whatever the site says, it
is for themselves, for managers of their project and for admins. Others see how much it was, and of which project as the
site says.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import dataclass, replace

from gpuyard.history.records import Interval, Slice, Tenure, TrackState
from gpuyard.keeper.yard import YardView
from gpuyard.ledger.rights import Verb, may
from gpuyard.ledger.state import RUNNER
from gpuyard.model.booking import Booking
from gpuyard.model.gpu import Claim, GpuState, GpuStatus
from gpuyard.portal.people import Visitor
from gpuyard.portal.projects import in_project
from gpuyard.portal.settings import OthersShown

SOMEBODY, ELSEWHERE, SERVER = "somebody", "another project", "a server"


def hides(others: OthersShown, who: Visitor | None) -> bool:
    """Whether anything is hidden from somebody; None is who has not logged in."""
    return others is not OthersShown.NAMES and not (who is not None and who.person.admin)


def is_near(booking: Booking, user_id: str, projects: Collection[str]) -> bool:
    """Whether a booking is somebody's own, or of one of their projects (ids)."""
    return booking.user_id == user_id or booking.project_id in projects


def sees_agents(who: Visitor, project_id: str) -> bool:
    """Whether somebody sees what agents in servers of a project say: its members and admins do, whatever the site shows
    of names."""
    return who.person.admin or project_id in projects_of(who)


def projects_of(who: Visitor | None) -> frozenset[str]:
    """Ids of the projects of somebody, of whose bookings and servers they see all."""
    return frozenset(one.project_id for one in who.projects) | {who.person.project_id} if who else frozenset()


def project_for(booking: Booking, others: OthersShown, who: Visitor) -> str:
    """Of which project a booking is, as somebody sees it."""
    known = booking.project_id in projects_of(who) or not hides(others, who)
    return booking.project if known else _word(booking.project, others)


def hidden(booking: Booking, others: OthersShown) -> Booking:
    """A booking of others: when and which GPUs, and not whose."""
    project = _word(booking.project, others)
    ask = replace(booking.ask, comment="")
    return replace(booking, user=SOMEBODY, project=project, email="", reason="", server="", ask=ask)


def hidden_view(view: YardView, others: OthersShown, projects: Collection[str] = ()) -> YardView:
    """Every GPU, and of servers of others only that they are there. `projects`: ids of those that are shown."""
    return replace(view, statuses=tuple(_hidden_status(status, others, projects) for status in view.statuses))


@dataclass(frozen=True)
class UseSight:
    """What somebody sees of who has used what, and when."""

    others: OthersShown
    everything: bool
    user_id: str
    near: frozenset[str]
    """Ids of their projects."""
    led: frozenset[str]
    """Ids of those of which they see each member's share."""

    def sees(self, user_id: str, project_id: str) -> bool:
        """Whether they see what this user (id) has used in that project (id)."""
        return self.everything or user_id == self.user_id or project_id in self.led

    def slice(self, one: Slice) -> Slice:
        """A sum: how much it was, and as much of whose as they see."""
        nobodys = not (one.user_id or one.project_id)
        if nobodys or self.sees(one.user_id, one.project_id):
            return one
        shown = replace(one, user=SOMEBODY, user_id="")
        if self._knows(one.project_id):
            return shown
        return replace(shown, project=_word(one.project, self.others), project_id="", repository="")

    def interval(self, one: Interval) -> Interval:
        """What a GPU was, and as much of for whom as they see."""
        own = one.tenure
        somebodys = bool(own.user_id or own.user or own.server or own.project_id)
        open_to_all = self.others is OthersShown.NAMES and (one.state is TrackState.HELD or not somebodys)
        if open_to_all or self.sees(own.user_id, own.project_id):
            return one
        held = one.state in (TrackState.BOOKED, TrackState.HELD)
        shown = Tenure(
            reason=_kept(GpuState(one.state.value), own.reason) if held else "",
            kind=own.kind,
            server_name=SERVER if own.server else "",
            user=SOMEBODY if somebodys else "",
            project=_word(own.project, self.others) if own.project_id else "",
        )
        if self._knows(own.project_id):
            words = {"project_id": own.project_id, "project": own.project}
            shown = replace(shown, flavor=own.flavor, repository=own.repository, **words)
        return replace(one, tenure=shown)

    def _knows(self, project_id: str) -> bool:
        return project_id in self.near or self.others is OthersShown.NAMES


def use_sight(others: OthersShown, who: Visitor) -> UseSight:
    near = projects_of(who)
    led = frozenset(id for id in near if may(in_project(who, id, ""), Verb.SEE_SHARES))
    return UseSight(others, bool(may(who.person, Verb.SEE_ACCOUNTS)), who.person.user_id, near, led)


def _word(project: str, others: OthersShown) -> str:
    """For a project of others."""
    return ELSEWHERE if others is OthersShown.NOTHING else project


def _kept(state: GpuState, reason: str) -> str:
    if state is GpuState.HELD:
        return "held by an operator"
    return "kept for a runner" if reason.startswith(RUNNER) else "kept for a booking"


def view_for(view: YardView, others: OthersShown, who: Visitor | None) -> YardView:
    """A view as somebody sees it, who sees the servers of their projects."""
    return hidden_view(view, others, projects_of(who)) if hides(others, who) else view


def sight_of_servers(others: OthersShown, who: Visitor | None) -> str:
    """The same for all to whom `view_for` shows the same, for tags: what a browser, or a cache, has of one is not the
    answer to another. Empty where all is shown."""
    if not hides(others, who):
        return ""
    return f"-{hashlib.sha256(' '.join(sorted(projects_of(who))).encode()).hexdigest()[:16]}"


def _hidden_status(status: GpuStatus, others: OthersShown, projects: Collection[str]) -> GpuStatus:
    claim, reason = status.claim, status.reason
    if claim is not None and claim.project_id not in projects:
        claim = Claim("", SERVER, claim.server_status, _word(claim.project, others), SOMEBODY, claim.since)
        reason = ""
    elif status.state in (GpuState.BOOKED, GpuState.HELD):
        reason = _kept(status.state, reason)
    elif status.state is GpuState.STRANDED and reason.startswith("its leader"):
        reason = "its leader cannot be had"
    return replace(status, claim=claim, reason=reason)
