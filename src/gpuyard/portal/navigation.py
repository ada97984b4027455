"""What stands at the top of every page when people log in: the other pages, who they are, and their projects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from gpuyard.cloud.people import Membership
from gpuyard.ledger.rights import BOOKING_ROLES, Verb, may
from gpuyard.portal.people import Visitor, find_visitor

PAGES = {"/": "Map", "/calendar": "Calendar", "/bookings": "My bookings"}
RUNNER_PAGES = {"/runners": "Runners"}
"""Where there are runners."""
ADMIN_PAGES = {"/admin": "Admin"}


@dataclass(frozen=True)
class PageLink:
    href: str
    """Relative, so that a gateway may serve the portal below a path."""
    text: str
    current: bool


@dataclass(frozen=True)
class Navigation:
    links: Sequence[PageLink]
    here: str
    user: str
    project: str
    project_id: str
    projects: Sequence[Membership]
    bookable: Sequence[Membership]
    """Projects that one may book for; the one that is looked at is first."""
    admin: bool
    csrf: str


def navigation(request: Request) -> Navigation | None:
    """None when nobody can log in."""
    visitor = find_visitor(request)
    return None if visitor is None else navigation_of(visitor, request)


def navigation_of(visitor: Visitor, request: Request) -> Navigation:
    person, path = visitor.person, request.url.path
    pages = PAGES | (RUNNER_PAGES if request.app.state.runners else {})
    pages |= ADMIN_PAGES if may(person, Verb.ADMINISTER) else {}
    bookable = [member for member in visitor.projects if member.roles & BOOKING_ROLES]
    return Navigation(
        links=[PageLink(f".{href}", text, href == path) for href, text in pages.items()],
        here=path,
        user=person.user,
        project=person.project,
        project_id=person.project_id,
        projects=visitor.projects,
        bookable=sorted(bookable, key=lambda member: member.project_id != person.project_id),
        admin=person.admin,
        csrf=visitor.csrf,
    )
