"""Who is let in, by a session's cookie or by a token of Keystone, and how often."""

from __future__ import annotations

import hmac
import time
from collections.abc import Callable, Sequence
from datetime import datetime

from starlette.requests import Request
from starlette.responses import Response

from gpuyard.cloud.people import Account, Membership, People
from gpuyard.ledger.policy import BOOKING_ROLES
from gpuyard.ledger.records import Session
from gpuyard.ledger.store import Store
from gpuyard.model.booking import Person
from gpuyard.portal.directory import Directory
from gpuyard.portal.gateway import client_address, is_https
from gpuyard.portal.people import Visitor
from gpuyard.portal.problems import Refusal
from gpuyard.portal.rate_limits import RateLimit
from gpuyard.portal.sessions import Sessions
from gpuyard.portal.settings import PortalSettings

WHO_SEES = BOOKING_ROLES | {"reader"}


class Doorman:
    """Made once per app. Safe to use from several threads."""

    def __init__(
        self,
        people: People,
        store: Store,
        settings: PortalSettings,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.people = people
        self.settings = settings
        self.directory = Directory(people, clock)
        self.sessions = Sessions(store, now, settings.longest_session, settings.idle_session)
        self._now = now
        self._of_user = RateLimit(settings.login_tries, 30, clock)
        self._of_address = RateLimit(settings.address_tries, 6, clock)
        self._writes = RateLimit(settings.writes, 0.5, clock)

    # Visitors.

    def visitor(self, request: Request, used: bool = True) -> Visitor | None:
        """Who makes a request; None when nobody is logged in. Raises Refusal, CloudError, StoreError.

        `used`: whether the session counts as used by it, and so ends later."""
        token = request.headers.get("x-auth-token")
        path = request.url.path
        if token is not None and (path.startswith("/v1/") or path == "/openapi.json"):
            return self._with_token(token, self.address(request))
        cookie = request.cookies.get(self.cookie_name(request))
        session = self.sessions.find(cookie, used) if cookie else None
        return self._with_session(session) if session else None

    def _with_token(self, token: str, address: str) -> Visitor:
        # Programs whose token is good are not kept out by others behind the same address.
        if not self.directory.knows_token(token):
            self._refuse_when(self._of_address.wait(address), "tokens that Keystone does not know")
        facts = self.directory.token(token)
        account = self.directory.account(facts.user_id) if facts and facts.expires > self._now() else None
        if facts is None or account is None:
            self._of_address.take(address)
            raise Refusal(401, "unauthorized", "Keystone does not accept the token (any more); get a new one.")
        if facts.membership is None:
            raise Refusal(403, "no_project", "The token is for no project; get one that is, as with OS_PROJECT_NAME.")
        if not facts.membership.roles & WHO_SEES:
            raise no_role(facts.membership.project)
        return Visitor(person_of(account, facts.membership), [facts.membership])

    def _with_session(self, session: Session) -> Visitor | None:
        account = self.directory.account(session.user_id)
        if account is None:
            self.sessions.end_all(session.user_id)
            return None
        projects = may_see(account)
        if not projects:
            raise no_role()
        current = next((one for one in projects if one.project_id == session.project_id), projects[0])
        return Visitor(person_of(account, current), projects, session.csrf, session)

    # Logging in and out.

    def begin(self, account: Account, before: Session | None = None) -> str:
        """A session of somebody whom Keystone has let in; returns its cookie. Raises Refusal when there is nothing for
        that person here. `before`: the session that this browser had; its project is kept."""
        projects = may_see(account)
        if not projects:
            raise no_role()
        wanted = before.project_id if before and before.user_id == account.user_id else ""
        order = sorted(projects, key=lambda one: (one.project_id != wanted, not one.roles & BOOKING_ROLES))
        cookie, _ = self.sessions.begin(account.user_id, account.user, order[0].project_id)
        return cookie

    def refuse_too_many_logins(self, user: str, address: str) -> None:
        """Raise Refusal 429 when too many of the user's, or from the address, have failed."""
        self._refuse_when(max(self._of_user.wait(user), self._of_address.wait(address)), "logins that failed")

    def note_failed_login(self, user: str, address: str) -> None:
        self._of_user.take(user)
        self._of_address.take(address)

    def refuse_too_many_writes(self, person: Person, kind: str) -> None:
        self._refuse_when(self._writes.take(f"{kind} {person.user_id}"), "requests")

    def _refuse_when(self, seconds: int, of_what: str) -> None:
        if seconds:
            raise Refusal(429, "too_many", f"Too many {of_what}; try again in {seconds} s.", retry_after=seconds)

    # Cookies.

    def cookie_name(self, request: Request) -> str:
        # The prefix has browsers refuse a cookie of that name that another host of the domain sets, or plain HTTP.
        return "__Host-gpuyard" if self.secure(request) else "gpuyard"

    def secure(self, request: Request) -> bool:
        return is_https(request, self.settings.trusted_gateways)

    def address(self, request: Request) -> str:
        return client_address(request, self.settings.trusted_gateways)

    def set_cookie(self, request: Request, response: Response, cookie: str) -> None:
        response.set_cookie(
            self.cookie_name(request), cookie, path="/", httponly=True, samesite="lax", secure=self.secure(request)
        )

    def clear_cookie(self, request: Request, response: Response) -> None:
        response.delete_cookie(
            self.cookie_name(request), path="/", httponly=True, samesite="lax", secure=self.secure(request)
        )


def no_role(project: str = "") -> Refusal:
    where = f"project {project}" if project else "any project"
    return Refusal(
        403, "no_role", f"You have none of the roles reader, member and admin in {where}; ask its administrator."
    )


def may_see(account: Account) -> Sequence[Membership]:
    return [membership for membership in account.memberships if membership.roles & WHO_SEES]


def person_of(account: Account, membership: Membership) -> Person:
    return Person(
        user_id=account.user_id,
        user=account.user,
        project_id=membership.project_id,
        project=membership.project,
        roles=membership.roles,
        email=account.email,
    )


def same_token(one: str, other: str) -> bool:
    """In constant time. Empty is never the same."""
    return bool(one) and hmac.compare_digest(one.encode(), other.encode())
