"""Settings of the portal's login, sessions and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum
from urllib.parse import quote

from gpuyard.web.gateway import origin_of


class OthersShown(StrEnum):
    """What people see of the bookings and servers of other projects; admins see all."""

    NAMES = "names"
    PROJECTS = "projects"
    NOTHING = "nothing"


@dataclass(frozen=True)
class PortalSettings:
    """Settings of the portal. Behind a gateway, name it in `trusted_gateways`, or all who come through it count as
    one address."""

    domain: str = "Default"
    """Name of the Keystone domain that the login page suggests."""
    longest_session: timedelta = timedelta(hours=12)
    """After that time one has to log in again, even if the session was used."""
    idle_session: timedelta = timedelta(hours=1)
    """A session that nobody uses ends after that time. Keystone forgets after an hour and a half that a password was
    changed, so it is less."""
    trusted_gateways: Sequence[str] = ()
    """IP addresses of gateways whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    public_url: str = ""
    """The URL where browsers find the portal, as in ``https://gpu.example.org``; empty: as the request says. When set,
    it says whether cookies are for TLS, and only its pages may change anything."""
    anonymous_details: bool = False
    """Whether readers who have not logged in see the names of hosts, and the errors of loops."""
    public_status: bool = True
    """Whether readers who have not logged in see the site's status: counts and times, and with `anonymous_details`
    hosts."""
    others: OthersShown = OthersShown.NAMES
    """The names that people see of others' bookings and servers."""
    keeps_tokens: bool = False
    """Whether sessions keep the person's Keystone token, encrypted, so that pages can start servers."""
    websso: str = ""
    """Protocol of Keystone's single sign-on (``openid``, ``saml2``), preceded by Keystone's name of the identity
    provider (``campus/openid``), or people may have to choose one first. Empty: no single sign-on."""
    websso_url: str = ""
    """Keystone as browsers find it, as in ``https://keystone.example.org/v3``; single sign-on needs it."""
    websso_logout: str = ""
    """The address that logs out of single sign-on, too, after a log-out here; empty: not known."""
    login_tries: int = 10
    """Logins of one user from one place that may fail at once, and one more every half minute; from everywhere, 5 times
    that."""
    address_tries: int = 50
    """Logins and tokens from one place (an IPv4 address, a /64 of IPv6) that may fail at once, and ten more every
    minute; from a /24 or a /48, 5 times that."""
    reads: int = 600
    """GET requests of one person at once, for pages, live feeds (each time one is opened) and the API; ten more every
    second."""
    writes: int = 120
    """Changes of one person at once; two more every second."""
    metrics_age: float = 1.0
    """Seconds for which one exposition of the metrics answers everybody who asks for them."""

    @property
    def keystone_v3(self) -> str:
        """`websso_url` with its version."""
        url = self.websso_url.rstrip("/")
        return url if url.endswith("/v3") else f"{url}/v3"

    @property
    def websso_page(self) -> str:
        """The address where single sign-on begins; its query says how to go on from there."""
        provider, _, protocol = (quote(part, safe="") for part in self.websso.rpartition("/"))
        if provider:
            way = f"identity_providers/{provider}/protocols/{protocol}/websso"
        else:
            way = f"websso/{protocol}"
        return f"{self.keystone_v3}/auth/OS-FEDERATION/{way}"

    @property
    def keystone_origin(self) -> str:
        """The Origin header that browsers send for Keystone's pages."""
        return origin_of(self.websso_url)
