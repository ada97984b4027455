"""Hides from people what they may not see of bookings of others. `web/visibility.py` has the rule."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from gpuyard.model.booking import Booking
from gpuyard.web.people import Visitor
from gpuyard.web.settings import OthersShown
from gpuyard.web.visibility import SOMEBODY, hides, projects_of, shown_project


def is_near(booking: Booking, user_id: str, projects: Collection[str]) -> bool:
    """Return whether a booking is a person's own, or of one of their projects (ids)."""
    return booking.user_id == user_id or booking.project_id in projects


def project_for(booking: Booking, others: OthersShown, who: Visitor) -> str:
    """Return the project of a booking, as a person sees it."""
    visible = booking.project_id in projects_of(who) or not hides(others, who)
    return booking.project if visible else shown_project(booking.project, others)


def hidden(booking: Booking, others: OthersShown) -> Booking:
    """Return a booking of others without its owner: when and which GPUs, and not whose."""
    project = shown_project(booking.project, others)
    ask = replace(booking.ask, comment="")
    return replace(booking, user=SOMEBODY, project=project, email="", reason="", server="", ask=ask)
