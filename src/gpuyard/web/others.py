"""What people see of others: the rule, which each capability applies to what it shows.

Of bookings, and of servers that are there now: names, only projects, or nothing, as the site says. Admins see all;
everybody sees what is theirs, or of a project of theirs. All see that a GPU is taken, and until when.

Who has used what, and when (reports, intervals, timelines, shares), is an account of people: whatever the site says, it
is for themselves, for managers of their project and for admins. Others see how much it was, and of which project as the
site says.

`bookings/web/shown_bookings.py` applies it to bookings, `inventory/web/shown_servers.py` to the servers that GPUs are
in, and `usage/web/shown_use.py` to use.
"""

from __future__ import annotations

from gpuyard.web.people import Visitor
from gpuyard.web.settings import OthersShown

SOMEBODY, ELSEWHERE, SERVER = "somebody", "another project", "a server"


def hides(others: OthersShown, who: Visitor | None) -> bool:
    """Whether anything is hidden from somebody; None is who has not logged in."""
    return others is not OthersShown.NAMES and not (who is not None and who.person.admin)


def sees_agents(who: Visitor, project_id: str) -> bool:
    """Whether somebody sees what agents in servers of a project say: its members and admins do, whatever the site shows
    of names."""
    return who.person.admin or project_id in projects_of(who)


def projects_of(who: Visitor | None) -> frozenset[str]:
    """Ids of the projects of somebody, of whose bookings and servers they see all."""
    return frozenset(project.project_id for project in who.projects) | {who.person.project_id} if who else frozenset()


def shown_project(project: str, others: OthersShown) -> str:
    """A project of others, by its name or without one."""
    return ELSEWHERE if others is OthersShown.NOTHING else project
