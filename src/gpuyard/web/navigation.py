"""What stands at the top of every page when people log in: the other pages, who they are, and their projects."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fastapi import Request
from starlette.datastructures import State

from gpuyard.model.rights import BOOKING_ROLES, Verb, may
from gpuyard.openstack.people import Membership
from gpuyard.web.gateway import up_from
from gpuyard.web.people import Visitor, find_visitor

MAP, STATUS = {"/": "Map"}, {"/status": "Status"}
PAGES = {"/calendar": "Calendar", "/mine": "My GPUs", "/bookings": "My bookings"}
"""Where people log in."""
START_PAGES = {"/start": "Start"}
"""Where it is known what could be started."""
HISTORY_PAGES = {"/project": "Project", "/overview": "Overview"}
"""Where it is kept who had which GPU when."""
RUNNER_PAGES = {"/runners": "Runners"}
"""Where there are runners."""
ADMIN_PAGES = {"/admin": "Admin"}
HEALTH_PAGES = {"/health": "Health"}
"""For admins, where the health of GPUs is followed."""


@dataclass(frozen=True)
class PageLink:
    href: str
    """Relative, so that a gateway may serve the portal below a path."""
    text: str
    current: bool


@dataclass(frozen=True)
class Navigation:
    links: Sequence[PageLink]
    up: str
    """What leads from this page to the root of the portal."""
    here: str
    """This page with its query, for forms that lead back to it."""
    user: str
    """Empty: nobody has logged in, or nobody can."""
    project: str
    project_id: str
    projects: Sequence[Membership]
    bookable: Sequence[Membership]
    """Projects that one may book for; the one that is looked at is first."""
    admin: bool
    """Who may see all; without login that is everybody."""
    csrf: str
    login: bool
    """Whether who looks could log in."""

    def table_href(self, id: str) -> str:
        """Of a table of this page as CSV (page_tables.py)."""
        return f"{self.here.lstrip('/')}{'&' if '?' in self.here else '?'}csv={id}"


def navigation(request: Request) -> Navigation:
    """Also of who has not logged in: what they may see."""
    visitor = find_visitor(request)
    if visitor is None:
        return navigation_of_strangers(request.app.state, request.url.path, request.url.query)
    return navigation_of(visitor, request)


def navigation_of(visitor: Visitor, request: Request) -> Navigation:
    person, path, has = visitor.person, request.url.path, request.app.state
    pages = MAP | PAGES | (START_PAGES if has.bootable else {}) | (HISTORY_PAGES if has.history else {})
    pages |= RUNNER_PAGES if has.runners else {}
    pages |= STATUS
    pages |= HEALTH_PAGES if has.health and may(person, Verb.REPAIR) else {}
    pages |= ADMIN_PAGES if may(person, Verb.ADMINISTER) else {}
    bookable = [member for member in visitor.projects if member.roles & BOOKING_ROLES]
    return Navigation(
        links=_links(pages, path),
        up=up_from(path),
        here=_here(path, request.url.query),
        user=person.user,
        project=person.project,
        project_id=person.project_id,
        projects=visitor.projects,
        bookable=sorted(bookable, key=lambda member: member.project_id != person.project_id),
        admin=person.admin,
        csrf=visitor.csrf,
        login=False,
    )


def navigation_of_strangers(has: State, path: str, query: str = "") -> Navigation:
    """`has`: that of the app. The same for all of them."""
    public = (RUNNER_PAGES if has.public_runners else {}) | (STATUS if has.public_status else {})
    pages = public if has.login else MAP | STATUS
    here = _here(path, query)
    return Navigation(
        _links(pages, path), up_from(path), here, "", "", "", (), (), admin=not has.login, csrf="", login=has.login
    )  # fmt: skip


def _here(path: str, query: str) -> str:
    return f"{path}?{query}" if query else path


def _links(pages: Mapping[str, str], path: str) -> list[PageLink]:
    return [PageLink(f"{up_from(path)}{href[1:]}", text, href == path) for href, text in pages.items()]
