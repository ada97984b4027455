"""What people see of other people's bookings and servers: names, only projects, or nothing. It is hidden here alone.

Admins see all; everybody sees what is theirs, or of a project of theirs. All see that a GPU is taken, and until when.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpuyard.keeper.yard import YardView
from gpuyard.ledger.state import RUNNER
from gpuyard.model.booking import Booking
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.portal.people import Visitor
from gpuyard.portal.settings import OthersShown

SOMEBODY, ELSEWHERE, SERVER = "somebody", "another project", "a server"


def hides(others: OthersShown, who: Visitor | None) -> bool:
    """Whether anything is hidden from somebody; None is who has not logged in."""
    return others is not OthersShown.NAMES and not (who is not None and who.person.admin)


def is_near(booking: Booking, user_id: str, projects: Collection[str]) -> bool:
    """Whether a booking is somebody's own, or of one of their projects (ids)."""
    return booking.user_id == user_id or booking.project_id in projects


def hidden(booking: Booking, others: OthersShown) -> Booking:
    """A booking of others: when and which GPUs, and not whose."""
    project = booking.project if others is OthersShown.PROJECTS else ELSEWHERE
    ask = replace(booking.ask, comment="")
    return replace(booking, user=SOMEBODY, project=project, email="", reason="", server="", ask=ask)


def hidden_view(view: YardView, others: OthersShown, projects: Collection[str] = ()) -> YardView:
    """Every GPU, and of servers of others only that they are there. `projects`: names of those that are shown."""
    return replace(view, statuses=tuple(_hidden_status(status, others, projects) for status in view.statuses))


def _hidden_status(status: GpuStatus, others: OthersShown, projects: Collection[str]) -> GpuStatus:
    claim, reason = status.claim, status.reason
    if claim is not None and claim.project not in projects:
        project = claim.project if others is OthersShown.PROJECTS else ELSEWHERE
        claim = replace(claim, server_id="", server_name=SERVER, user=SOMEBODY, project=project)
        reason = ""
    elif status.state in (GpuState.BOOKED, GpuState.HELD):
        kept = "kept for a runner" if reason.startswith(RUNNER) else "kept for a booking"
        reason = kept if status.state is GpuState.BOOKED else "held by an operator"
    elif status.state is GpuState.STRANDED and reason.startswith("its leader"):
        reason = "its leader cannot be had"
    return replace(status, claim=claim, reason=reason)
