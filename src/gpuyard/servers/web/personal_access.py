"""Opens the cloud in a visitor's own name, with the token that their session keeps."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class PersonalAccess:
    """Opens clouds for visitors of one portal."""

    clouds: PersonalClouds
    authenticator: Authenticator

    def open(self, request: Request, visitor: Visitor) -> PersonalCloud:
        """Return the cloud as the visitor sees it in the project that they look at. Raises Refusal."""
        token = self.authenticator.token_of(request)
        if not token:
            raise Refusal(403, "log_in_again", LOG_IN_AGAIN)
        try:
            return self.clouds.open(token, visitor.person.project_id)
        except (CloudError, TokenExpiredError) as error:
            raise refusal_of(error) from None


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
