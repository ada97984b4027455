"""The head of every page: links to the other pages, the person who is logged in, and their projects."""

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
"""Pages of sites with login."""
START_PAGES = {"/start": "What can I start"}
"""Pages of sites that know which servers can be started."""
HISTORY_PAGES = {"/project": "Project", "/overview": "Overview"}
"""Pages of sites that keep a history of use."""
RUNNER_PAGES = {"/runners": "Runners"}
"""Pages of sites with runners."""
ADMIN_PAGES = {"/admin": "Admin"}
HEALTH_PAGES = {"/health": "Health"}
"""Pages for admins, on sites that follow the health of GPUs."""


@dataclass(frozen=True)
class PageLink:
    href: str
    """Relative address, so that a gateway may serve the portal below a path."""
    text: str
    current: bool


@dataclass(frozen=True)
class Navigation:
    links: Sequence[PageLink]
    up: str
    """The relative path from this page to the root of the portal."""
    here: str
    """Address of this page with its query, for forms that lead back to it."""
    user: str
    """Name of the user; empty when nobody has logged in, or nobody can."""
    project: str
    project_id: str
    projects: Sequence[Membership]
    bookable: Sequence[Membership]
    """Projects that one may book for; the one that is looked at is first."""
    admin: bool
    """Whether they may see all; without login everybody may."""
    csrf: str
    login: bool
    """Whether a reader who has not logged in could."""
    launches: bool = False
    """Whether the person may start servers from pages, in the project that is looked at."""

    def table_href(self, id: str) -> str:
        """Return the address of a table of this page as CSV (page_tables.py)."""
        return f"{self.here.lstrip('/')}{'&' if '?' in self.here else '?'}csv={id}"


def navigation(request: Request) -> Navigation:
    """Return the navigation for a request, also for readers who have not logged in."""
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
        launches=has.launches and bool(person.roles & BOOKING_ROLES),
    )


def navigation_of_strangers(has: State, path: str, query: str = "") -> Navigation:
    """Return the navigation of readers who have not logged in, the same for all. `has`: the state of the app."""
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
