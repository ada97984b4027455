"""Authenticates requests by a session's cookie or a Keystone token, and limits how often people log in, read and write.

A token is used only for the API and the OpenAPI document; everything else needs the cookie. Keystone's answers come
from `directory.py`. A guess at a password or token is counted before Keystone is asked, and given back when it was
right or Keystone did not answer; a token that is known already is not counted, so others behind the same address
cannot keep its program out. A session ends when its user is disabled, or when Keystone has revoked the user's logins
since it began.
"""

from __future__ import annotations

import hmac
import logging
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import TypeVar

from starlette.requests import Request
from starlette.responses import Response

from gpuyard.database.errors import StoreError
from gpuyard.model.booking import Person
from gpuyard.model.rights import BOOKING_ROLES, SEEING_ROLES
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.people import Account, Membership, People, TokenFacts
from gpuyard.web.directory import Directory
from gpuyard.web.gateway import client_address, is_https
from gpuyard.web.known_places import KnownPlaces
from gpuyard.web.login_throttle import EVERYWHERE, LoginThrottle, places
from gpuyard.web.open_reads import OpenReads
from gpuyard.web.people import Visitor
from gpuyard.web.problems import Refusal
from gpuyard.web.sessions import Sessions
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore, Session
from gpuyard.web.token_bucket import RateLimit

LOG = logging.getLogger(__name__)
T = TypeVar("T")


class Authenticator:
    """Authenticates the requests of one app. Made once per app. Safe to use from several threads."""

    def __init__(
        self,
        people: People,
        store: PortalStore,
        settings: PortalSettings,
        now: Callable[[], datetime],
        clock: Callable[[], float] = time.monotonic,
        knows: Callable[[str], bool] = lambda project: True,
    ) -> None:
        """`knows`: whether the site is for a project of that name."""
        self.people = people
        self.store = store
        self.settings = settings
        self.directory = Directory(people, clock)
        self.sessions = Sessions(store, now, settings.longest_session, settings.idle_session)
        self._now, self._knows = now, knows
        self._known = KnownPlaces(store, now, clock)
        self._tries = LoginThrottle(settings.login_tries, settings.address_tries, clock, self._known.has)
        self._writes = RateLimit(settings.writes, 0.5, clock)
        self._reads = RateLimit(settings.reads, 0.1, clock)
        self._reads_of_feed, self._reads_of_place = RateLimit(30, 30, clock), RateLimit(240, 1, clock)
        self._reads_of_network = RateLimit(240 * EVERYWHERE, 1 / EVERYWHERE, clock)
        self._looks = OpenReads(clock)

    # Visitors.

    def visitor(self, request: Request, used: bool = True) -> Visitor | None:
        """Return the visitor who makes a request; None when nobody is logged in. Raises Refusal, CloudError,
        StoreError.

        `used`: whether the session counts as used by it, and so ends later.
        """
        token = request.headers.get("x-auth-token")
        path = request.url.path
        if token is not None and (path.startswith("/v1/") or path == "/openapi.json"):
            return self._with_token(token, self.address(request))
        cookie = request.cookies.get(self.cookie_name(request))
        session = self.sessions.find(cookie, used) if cookie else None
        return self._with_session(session) if session else None

    def _with_token(self, token: str, address: str) -> Visitor:
        def ask() -> tuple[TokenFacts, Account] | None:
            facts = self.directory.token(token)
            account = self.directory.account(facts.user_id) if facts and facts.expires > self._now() else None
            return (facts, account) if facts and account else None

        # Programs whose token is good are not kept out by others behind the same address.
        is_known = self.directory.knows_token(token)
        answer = ask() if is_known else self.guess("", address, "tokens that Keystone does not know", ask)
        if answer is None:
            raise Refusal(401, "unauthorized", "Keystone does not accept the token (any more); get a new one.")
        facts, account = answer
        if facts.membership is None:
            raise Refusal(403, "no_project", "The token is for no project; get one that is, as with OS_PROJECT_NAME.")
        if not facts.membership.roles & SEEING_ROLES:
            raise no_role(facts.membership.project)
        if not self._counts(facts.membership):
            raise other_domain(facts.membership.project)
        return Visitor(person_of(account, facts.membership, by_token=True), [facts.membership], lent=facts.lent)

    def _with_session(self, session: Session) -> Visitor | None:
        account, revoked = self.directory.account(session.user_id), self.directory.revoked(session.user_id)
        if account is None or (revoked and session.created <= revoked):
            self.sessions.end_all(session.user_id, revoked if account else None)
            return None
        projects = self.projects_of(account)
        if not projects:
            raise no_role()
        current = next((project for project in projects if project.project_id == session.project_id), projects[0])
        return Visitor(person_of(account, current), projects, session.csrf, session)

    def projects_of(self, account: Account) -> Sequence[Membership]:
        """Return the memberships of an account that admit it to this site."""
        return [membership for membership in account.memberships if self._counts(membership)]

    def _counts(self, membership: Membership) -> bool:
        return bool(membership.roles & SEEING_ROLES) and self._knows(membership.project)

    # Logging in and out.

    def begin(
        self, account: Account, before: Session | None = None, until: datetime | None = None, token: str = ""
    ) -> str:
        """Begin a session of somebody whom Keystone has authenticated; it ends `until` then at the latest. Return its
        cookie.

        Raises Refusal when no project of theirs is admitted. `before`: the session that this browser had; its
        project is kept. `token`: the one that Keystone gave, which the session keeps where the site has that.
        """
        projects = self.projects_of(account)
        if not projects:
            raise no_role()
        preferred = before.project_id if before and before.user_id == account.user_id else ""
        order = sorted(
            projects, key=lambda project: (project.project_id != preferred, not project.roles & BOOKING_ROLES)
        )
        kept = token if self.settings.keeps_tokens else ""
        cookie, _ = self.sessions.begin(account.user_id, account.user, order[0].project_id, until, kept)
        return cookie

    def token_of(self, request: Request) -> str:
        """Return the Keystone token that the session of a request keeps; empty when it keeps none."""
        return self.sessions.token(request.cookies.get(self.cookie_name(request), ""))

    def end(self, request: Request) -> None:
        """Log the session of a request out, and revoke the token that it keeps."""
        token = self.token_of(request)
        self.sessions.end(request.cookies.get(self.cookie_name(request), ""))
        if token:
            self.revoke(token)

    def revoke(self, token: str) -> None:
        """Revoke a token that nobody needs any more, as far as Keystone answers."""
        try:
            self.directory.spend(token)
        except CloudError as error:
            LOG.warning("a token of somebody who has logged out is good until it expires: %s", error)

    def end_all(self, user_id: str) -> int:
        """Log a user out everywhere and delete their calendar feeds; return how many sessions that were."""
        self.store.delete_feeds(user_id)
        return self.sessions.end_all(user_id)

    def guess(self, user: str, address: str, of_what: str, ask: Callable[[], T | None]) -> T | None:
        """Ask Keystone about a password or a token, and return its answer; None, or LoginRefusedError, is a no.

        Raises Refusal 429 after too many of these for the user or from the address. `user`: empty for a token.
        """
        counted = self._tries.take(user, address)
        self._refuse_when(counted.wait, of_what)
        answer: T | None = None
        away = False
        try:
            answer = ask()
        except (CloudError, StoreError):
            away = True
            raise
        finally:
            if away or answer is not None:
                counted.give_back()
        return answer

    def use_login(self, token: str, facts: TokenFacts) -> bool:
        """Make sure that a token of single sign-on opens no second session; return whether it was the first.

        A session that keeps the token needs it valid, so that is recorded here. Where none does, Keystone revokes it,
        too.
        """
        first = self.sessions.use_login(facts.audit_id or token, facts.expires)
        return first and (self.settings.keeps_tokens or self.directory.spend(token))

    def remember(self, user: str, address: str, user_id: str) -> None:
        """Record that somebody has logged in as a user from an address. `user` as for `guess`."""
        self._known.add(user, places(address)[0], user_id)

    def refuse_too_many_writes(self, person: Person, kind: str) -> None:
        self._refuse_when(self._writes.take(f"{kind} {person.user_id}"), "requests")

    def refuse_too_many_reads(self, person: Person) -> None:
        self._refuse_when(self._reads.take(person.user_id), "requests")

    def _refuse_when(self, seconds: int, of_what: str) -> None:
        if seconds:
            raise Refusal(429, "too_many", f"Too many {of_what}; try again in {seconds} s.", retry_after=seconds)

    def refuse_too_many_feed_reads(self, request: Request, digest: str) -> None:
        """Raise Refusal 429 after too many reads of one feed, or of all from one place: feeds need no login."""
        place, _ = places(self.address(request))
        self._refuse_when(self._reads_of_place.take(place) or self._reads_of_feed.take(digest), "requests")

    def refuse_too_many_anonymous_reads(self, request: Request) -> None:
        """Raise Refusal 429 after too many reads without login from one place or from its network."""
        place, network = places(self.address(request))
        self._refuse_when(self._reads_of_place.take(place) or self._reads_of_network.take(network), "requests")

    def refuse_too_many_looks(self, request: Request) -> None:
        """Raise Refusal 429 after too many reads of what is made once for all anonymous readers: a whole building may
        read from one address."""
        self._refuse_when(self._looks.take(self.address(request)), "requests")

    # Cookies.

    def cookie_name(self, request: Request) -> str:
        # The prefix has browsers refuse a cookie of that name that another host of the domain sets, or plain HTTP.
        return "__Host-gpuyard" if self.secure(request) else "gpuyard"

    def secure(self, request: Request) -> bool:
        return is_https(request, self.settings.trusted_gateways, self.settings.public_url)

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
    where = f"project {project}" if project else "any project that this site is for"
    return Refusal(
        403, "no_role", f"You have none of the roles reader, member and admin in {where}; ask its administrator."
    )


def other_domain(project: str) -> Refusal:
    return Refusal(
        403, "other_domain", f"This site is not for project {project}: its operator has not named the project's domain."
    )


def person_of(account: Account, membership: Membership, by_token: bool = False) -> Person:
    return Person(
        user_id=account.user_id,
        user=account.user,
        project_id=membership.project_id,
        project=membership.project,
        roles=membership.roles,
        email=account.email,
        by_token=by_token,
    )


def same_token(token: str, other: str) -> bool:
    """Compare in constant time. Empty is never the same."""
    return bool(token) and hmac.compare_digest(token.encode(), other.encode())
