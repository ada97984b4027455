"""Returns the visitor of a request to handlers, and refuses where one is needed and absent. The middleware (access.py)
has set it before any handler runs."""

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
    """A person who is logged in, or a program with a token."""

    person: Person
    """The person in the project that is looked at, with the roles there."""
    projects: Sequence[Membership] = ()
    """All projects of the visitor, by name; a program has the one of its token."""
    csrf: str = ""
    """The token that pages send back as X-CSRF-Token, or as the field ``csrf`` of a form; empty for programs with a
    token."""
    session: Session | None = None
    """The session; None for programs with a token."""
    lent: bool = False
    """Whether it is a program with a token of an application credential, a trust or OAuth."""


class LoginNeeded(Exception):
    """Raised for a page: the browser is sent to /login, and comes back afterwards."""


def find_visitor(request: Request) -> Visitor | None:
    """Return the visitor; None when nobody is logged in, or the site has no bookings and so no login."""
    visitor = getattr(request.state, "visitor", None)
    assert visitor is None or isinstance(visitor, Visitor)
    return visitor


def require_visitor(request: Request) -> Visitor:
    """Return the visitor. Raises Refusal 401."""
    visitor = find_visitor(request)
    if visitor is None:
        raise Refusal(401, "unauthorized", "Log in first, or send a token of Keystone as X-Auth-Token.")
    return visitor


def refuse_lent(visitor: Visitor) -> None:
    """Refuse lent tokens for changes that outlive a token, or reach beyond it. Raises Refusal 403."""
    if visitor.lent:
        text = (
            "A token of an application credential or a trust may not do this; use one of your own login, or a browser."
        )
        raise Refusal(403, "lent_token", text)


def require_person(request: Request) -> Person:
    """Return the person, for the API. Raises Refusal 401."""
    return require_visitor(request).person


def require_page_visitor(request: Request) -> Visitor:
    """Return the visitor, for pages. Raises LoginNeeded, which becomes a redirect to /login?next=..."""
    visitor = find_visitor(request)
    if visitor is None:
        raise LoginNeeded
    return visitor


def require_page_person(request: Request) -> Person:
    """Return the person, for pages. Raises LoginNeeded."""
    return require_page_visitor(request).person
