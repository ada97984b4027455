"""Decides which names people see of others' bookings, servers and use, by the site's setting; each capability applies
it.

Of bookings, and of servers that are there now: names, only projects, or nothing, as the site says. Admins see all;
everybody sees what is theirs, or of a project of theirs. All see that a GPU is taken, and until when.

Records of who used what and when (reports, intervals, timelines, shares) are an account of people: whatever the site
says, only they themselves, managers of their project and admins see them. Others see how much it was, and of which
project as the site says.

`bookings/web/shown_bookings.py` applies it to bookings, `inventory/web/shown_servers.py` to the servers that GPUs
are in, and `usage/web/shown_use.py` to use.
"""

from __future__ import annotations

from gpuyard.web.people import Visitor
from gpuyard.web.settings import OthersShown

SOMEBODY, ELSEWHERE, SERVER = "somebody", "another project", "a server"


def hides(others: OthersShown, who: Visitor | None) -> bool:
    """Return whether anything is hidden from a visitor; None is a reader who has not logged in."""
    return others is not OthersShown.NAMES and not (who is not None and who.person.admin)


def sees_agents(who: Visitor, project_id: str) -> bool:
    """Return whether a visitor sees what agents in a project's servers report: its members and admins do, whatever the
    site shows of names."""
    return who.person.admin or project_id in projects_of(who)


def projects_of(who: Visitor | None) -> frozenset[str]:
    """Return the ids of a visitor's projects, whose bookings and servers they see in full."""
    return frozenset(project.project_id for project in who.projects) | {who.person.project_id} if who else frozenset()


def shown_project(project: str, others: OthersShown) -> str:
    """Return the text for a project of others: its name, or words without one."""
    return ELSEWHERE if others is OthersShown.NOTHING else project
