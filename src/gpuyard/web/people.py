"""Who makes a request. The middleware (access.py) finds out before any handler runs; handlers ask here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fastapi import Request

from gpuyard.model.booking import Person
from gpuyard.openstack.people import Membership
from gpuyard.web.problems import Refusal
from gpuyard.web.store import Session

__all__ = [
    "LoginNeeded",
    "Membership",
    "Visitor",
    "find_visitor",
    "refuse_lent",
    "require_page_person",
    "require_page_visitor",
    "require_person",
    "require_visitor",
]


@dataclass(frozen=True)
class Visitor:
    """Somebody who is logged in, or a program with a token."""

    person: Person
    """In the project that is looked at, with the roles there."""
    projects: Sequence[Membership] = ()
    """All projects of theirs, by name; a program has the one of its token."""
    csrf: str = ""
    """What pages send back as X-CSRF-Token, or as the field ``csrf`` of a form; empty for programs with a token."""
    session: Session | None = None
    """None for programs with a token."""
    lent: bool = False
    """A program with a token of an application credential, a trust or OAuth."""


class LoginNeeded(Exception):
    """Raised for a page: the browser is sent to /login, and comes back after."""


def find_visitor(request: Request) -> Visitor | None:
    """None when nobody is logged in, or the site has no bookings and so no login."""
    visitor = getattr(request.state, "visitor", None)
    assert visitor is None or isinstance(visitor, Visitor)
    return visitor


def require_visitor(request: Request) -> Visitor:
    """Raises Refusal 401."""
    visitor = find_visitor(request)
    if visitor is None:
        raise Refusal(401, "unauthorized", "Log in first, or send a token of Keystone as X-Auth-Token.")
    return visitor


def refuse_lent(visitor: Visitor) -> None:
    """For what outlives a token, or reaches beyond it. Raises Refusal 403."""
    if visitor.lent:
        text = (
            "A token of an application credential or a trust may not do this; use one of your own login, or a browser."
        )
        raise Refusal(403, "lent_token", text)


def require_person(request: Request) -> Person:
    """For the API. Raises Refusal 401."""
    return require_visitor(request).person


def require_page_visitor(request: Request) -> Visitor:
    """For pages. Raises LoginNeeded, which becomes a redirect to /login?next=..."""
    visitor = find_visitor(request)
    if visitor is None:
        raise LoginNeeded
    return visitor


def require_page_person(request: Request) -> Person:
    """For pages. Raises LoginNeeded."""
    return require_page_visitor(request).person
