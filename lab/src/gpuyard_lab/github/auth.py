"""Authenticates callers of the stand-in by their tokens, of apps, installations, people and the Actions service, and
limits their calls."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

import jwt

from gpuyard_lab.github.forge import Forge
from gpuyard_lab.github.payloads import stamp
from gpuyard_lab.github.wire import ForgeRefusal, ForgeRequest, ServiceRefusal

LONGEST_JWT = timedelta(minutes=10)
CLOCK_DRIFT = timedelta(seconds=60)
LIMIT_WINDOW = timedelta(hours=1)


class TokenKind(StrEnum):
    APP = "app"
    INSTALLATION = "installation"
    PERSON = "person"
    REGISTRATION = "registration"
    """Registers runners at one place, and opens the Actions service there (``RemoteAuth``)."""
    ADMIN = "admin"
    """Calls the Actions service."""


@dataclass(frozen=True)
class Principal:
    """An authenticated caller."""

    kind: TokenKind
    subject: str
    """Login of the account that the app is installed at, or of a person; ``owner`` or ``owner/name`` for the others."""
    until: datetime | None = None


@dataclass
class Budget:
    """The primary rate limit of one token's owner."""

    since: datetime
    used: int = 0
    most: int = 0


@dataclass
class ForgeAuthentication:
    """Makes tokens and checks them."""

    forge: Forge
    tokens: dict[str, Principal] = field(default_factory=dict)
    budgets: dict[str, Budget] = field(default_factory=dict)

    def make(self, kind: TokenKind, subject: str) -> tuple[str, datetime]:
        """Make a new token. Returns it, and when it ends. Those of the Actions service are JWT, as its clients read
        their end there."""
        until = self.forge.now() + self.forge.settings.token
        id = self.forge.guid("token")
        if kind is TokenKind.ADMIN:
            token = jwt.encode({"jti": id, "exp": int(until.timestamp()), "scp": subject}, "k" * 32, algorithm="HS256")
        else:
            token = ("ghs_" if kind is TokenKind.INSTALLATION else "A") + id.replace("-", "")
        self.tokens[token] = Principal(kind, subject, until)
        return token, until

    def require(self, request: ForgeRequest) -> Principal:
        """Return the caller of the REST API. Raises ForgeRefusal: 401 without a valid token."""
        scheme, _, token = request.headers.get("authorization", "").partition(" ")
        if scheme.lower() not in ("bearer", "token") or not token:
            raise ForgeRefusal(401, "Requires authentication")
        principal = self._known(token)
        if principal is None and token.count(".") == 2:
            principal = self._app(token)
        if principal is None or principal.kind in (TokenKind.ADMIN, TokenKind.REGISTRATION):
            raise ForgeRefusal(401, "Bad credentials")
        return principal

    def require_service(self, request: ForgeRequest, scheme: str, kind: TokenKind) -> Principal:
        """Return the caller of the Actions service. Raises ServiceRefusal (401)."""
        given_scheme, _, token = request.headers.get("authorization", "").partition(" ")
        principal = self._known(token)
        if given_scheme.lower() != scheme.lower() or principal is None or principal.kind is not kind:
            raise ServiceRefusal(401, "VssUnauthorizedException", "The user is not authorized.")
        return principal

    def _known(self, token: str) -> Principal | None:
        if login := self.forge.personal_tokens.get(token):
            return Principal(TokenKind.PERSON, login)
        principal = self.tokens.get(token)
        return principal if principal and (principal.until is None or principal.until > self.forge.now()) else None

    def _app(self, token: str) -> Principal:
        app, now = self.forge.app, self.forge.now()
        if app is None:
            raise ForgeRefusal(401, "Integration not found")
        try:
            # Times are judged below, by our clock.
            options: Any = {"verify_exp": False, "verify_iat": False, "require": ["exp", "iat", "iss"]}
            claims = jwt.decode(token, app.public_key, algorithms=["RS256"], options=options)
        except jwt.PyJWTError:
            raise ForgeRefusal(401, "A JSON web token could not be decoded") from None
        if str(claims["iss"]) != str(app.id):
            raise ForgeRefusal(401, "Integration not found")
        ends, began = (datetime.fromtimestamp(int(claims[name]), now.tzinfo) for name in ("exp", "iat"))
        if ends <= now:
            raise ForgeRefusal(
                401, "'Expiration time' claim ('exp') must be a numeric value representing the future time"
            )
        if ends > now + LONGEST_JWT + CLOCK_DRIFT or began > now + CLOCK_DRIFT:
            raise ForgeRefusal(401, "'Expiration time' claim ('exp') is too far in the future")
        return Principal(TokenKind.APP, str(app.id))

    def limit(self, who: str) -> dict[str, str]:
        """Count a request; returns the headers that report the limit. Raises ForgeRefusal (403) when none is left."""
        now, most = self.forge.now(), self.forge.settings.requests_an_hour
        budget = self.budgets.setdefault(who, Budget(now, 0, most))
        if now - budget.since >= LIMIT_WINDOW:
            budget.since, budget.used = now, 0
        budget.used += 1
        headers = {
            "x-ratelimit-limit": str(most),
            "x-ratelimit-remaining": str(max(0, most - budget.used)),
            "x-ratelimit-used": str(min(budget.used, most)),
            "x-ratelimit-reset": str(int((budget.since + LIMIT_WINDOW).timestamp())),
            "x-ratelimit-resource": "core",
        }
        if budget.used > most:
            raise ForgeRefusal(403, f"API rate limit exceeded for {who}.", headers)
        return headers

    def unlimit(self, who: str) -> None:
        """Uncount the last request: it was answered with 304."""
        if who in self.budgets:
            self.budgets[who].used -= 1


def token_answer(token: str, until: datetime, **more: Any) -> dict[str, Any]:
    return {"token": token, "expires_at": stamp(until), **more}
