"""Hides from people what they may not see of servers of others that have GPUs now. `web/visibility.py` has the rule."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from dataclasses import replace

from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.state import RUNNER
from gpuyard.model.gpu import Claim, GpuState, GpuStatus
from gpuyard.web.people import Visitor
from gpuyard.web.settings import OthersShown
from gpuyard.web.visibility import SERVER, SOMEBODY, hides, projects_of, shown_project


def hidden_view(view: InventoryView, others: OthersShown, projects: Collection[str] = ()) -> InventoryView:
    """Return every GPU, and of servers of others only that they are there. `projects`: ids of those that are shown."""
    return replace(view, statuses=tuple(_hidden_status(status, others, projects) for status in view.statuses))


def kept_for(state: GpuState, reason: str) -> str:
    """Return why a GPU is kept from others, without saying for whom."""
    if state is GpuState.HELD:
        return "held by an operator"
    return "kept for a runner" if reason.startswith(RUNNER) else "kept for a booking"


def view_for(view: InventoryView, others: OthersShown, who: Visitor | None) -> InventoryView:
    """Return a view as a visitor may see it, who sees the servers of their projects."""
    return hidden_view(view, others, projects_of(who)) if hides(others, who) else view


def server_visibility(others: OthersShown, who: Visitor | None) -> str:
    """Return a tag that is the same for all to whom `view_for` shows the same: what a browser, or a cache, has of one
    is not the answer to another. Empty where all is shown."""
    if not hides(others, who):
        return ""
    return f"-{hashlib.sha256(' '.join(sorted(projects_of(who))).encode()).hexdigest()[:16]}"


def _hidden_status(status: GpuStatus, others: OthersShown, projects: Collection[str]) -> GpuStatus:
    claim, reason = status.claim, status.reason
    if claim is not None and claim.project_id not in projects:
        claim = Claim("", SERVER, claim.server_status, shown_project(claim.project, others), SOMEBODY, claim.since)
        reason = ""
    elif status.state in (GpuState.BOOKED, GpuState.HELD):
        reason = kept_for(status.state, reason)
    elif status.state is GpuState.STRANDED and reason.startswith("its leader"):
        reason = "its leader cannot be had"
    return replace(status, claim=claim, reason=reason)
