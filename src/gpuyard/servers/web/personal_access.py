"""Opens the cloud in a visitor's own name, with the token that their session keeps."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from starlette.requests import Request

from gpuyard.model.rights import BOOKING_ROLES
from gpuyard.openstack.errors import CloudError
from gpuyard.openstack.personal import PersonalCloud, PersonalClouds, TokenExpiredError
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.people import Visitor
from gpuyard.web.problems import Refusal, unavailable

LOG_IN_AGAIN = (
    "Your login at Keystone has ended, or it was before this portal could start servers: log out and log in again. "
    "Your bookings are as they were."
)
"""Sessions last longer than Keystone's tokens where these live less than 12 hours."""


AT_ONCE, AT_ONCE_EACH = 10, 3
"""Requests that may be waiting for OpenStack in people's names, of all and of one person. Each keeps one of the
portal's 40 threads, and the others must be able to log in and to book while Nova hangs."""


class PersonalAccess:
    """Opens clouds for visitors of one portal. Safe to use from several threads."""

    def __init__(self, clouds: PersonalClouds, authenticator: Authenticator) -> None:
        self._clouds, self._authenticator = clouds, authenticator
        self._lock = Lock()
        self._waiting: Counter[str] = Counter()
        """User's id -> requests that are being answered."""

    @contextmanager
    def opened(self, request: Request, visitor: Visitor) -> Iterator[PersonalCloud]:
        """Open the cloud as the visitor sees it in the project that they look at. Errors of OpenStack become refusals,
        in its own words. Raises Refusal."""
        token = self._authenticator.token_of(request)
        if not token:
            raise Refusal(403, "log_in_again", LOG_IN_AGAIN)
        with self._place(visitor.person.user_id):
            try:
                yield self._clouds.open(token, visitor.person.project_id)
            except (CloudError, TokenExpiredError) as error:
                raise refusal_of(error) from None

    @contextmanager
    def _place(self, user_id: str) -> Iterator[None]:
        """Take one of the places of those who wait for OpenStack. Raises Refusal when there is none."""
        with self._lock:
            if self._waiting[user_id] >= AT_ONCE_EACH or self._waiting.total() >= AT_ONCE:
                text = "Too many requests wait for OpenStack; try again in a moment."
                raise Refusal(503, "busy", text, retry_after=5)
            self._waiting[user_id] += 1
        try:
            yield
        finally:
            with self._lock:
                self._waiting[user_id] -= 1
                self._waiting += Counter()  # without those that are zero


def refuse_reader(visitor: Visitor) -> None:
    """Refuse who may not have servers in the project that they look at. Raises Refusal 403."""
    if not visitor.person.roles & BOOKING_ROLES:
        raise Refusal(
            403, "no_role", f"You are a reader of project {visitor.person.project}, and may start nothing there."
        )


def refusal_of(error: CloudError | TokenExpiredError) -> Refusal:
    """Return the refusal that an answer of OpenStack becomes, in the service's own words."""
    if isinstance(error, TokenExpiredError):
        return Refusal(403, "log_in_again", LOG_IN_AGAIN)
    if error.status is None or error.status >= 500:
        return unavailable(error)
    return Refusal(error.status, "refused", error.reason or "OpenStack has refused this.")
