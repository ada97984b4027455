"""What can be set for the portal's login."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from urllib.parse import urlsplit


@dataclass(frozen=True)
class PortalSettings:
    """Behind a gateway, name it in `trusted_gateways`, or all who come through it count as one address."""

    domain: str = "Default"
    """Name of the Keystone domain that the login page suggests."""
    longest_session: timedelta = timedelta(hours=12)
    """After that time one has to log in again, whatever was done in it."""
    idle_session: timedelta = timedelta(hours=2)
    """A session that nobody uses ends after that time."""
    trusted_gateways: Sequence[str] = ()
    """IP addresses of gateways whose X-Forwarded-For and X-Forwarded-Proto are believed."""
    public_url: str = ""
    """Where browsers find the portal, as in ``https://gpu.example.org``; empty: as the request says."""
    websso: str = ""
    """Protocol of Keystone's single sign-on (``openid``, ``saml2``); empty when there is none."""
    websso_url: str = ""
    """Keystone as browsers find it, as in ``https://keystone.example.org/v3``; single sign-on needs it."""
    login_tries: int = 10
    """Logins of one user that may fail at once; one more every half minute."""
    address_tries: int = 50
    """Logins and tokens from one address that may fail at once; ten more every minute."""
    writes: int = 120
    """Changes of one person at once; two more every second."""

    @property
    def keystone_v3(self) -> str:
        """`websso_url` with its version."""
        url = self.websso_url.rstrip("/")
        return url if url.endswith("/v3") else f"{url}/v3"

    @property
    def keystone_origin(self) -> str:
        """What browsers say of pages of Keystone's."""
        parts = urlsplit(self.websso_url)
        return f"{parts.scheme}://{parts.netloc}".lower()
