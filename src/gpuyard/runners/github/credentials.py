"""Credentials of gpuyard at GitHub: a personal access token, or an app with its installation. Nothing secret is ever
shown."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Protocol

from gidgethub.apps import get_jwt

from gpuyard.runners import fields
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.site.runner_rules import Enrolment, GitHubApp

TOKEN = re.compile(r"[!-~]{1,1000}")
"""Characters that may stand in a header."""
EARLY = timedelta(minutes=5)
"""A token is renewed when it has less time left than this."""
JWT_SECONDS = 540
"""Life of a JWT. GitHub takes ten minutes at most, and our clock may be ahead of its."""

AskAsApp = Callable[[str, str], Mapping[str, Any]]
"""Function from method and path to GitHub's answer to the app itself."""


class GitHubLogin(Protocol):
    """A source of tokens for calls."""

    def token(self) -> str:
        """Return the token for a call. Raises GitHubError."""

    def app_token(self) -> str:
        """Return the token for calls of an app about itself; empty when it is none. Raises GitHubError."""

    def renew(self, old: str) -> bool:
        """Give up a token that GitHub did not accept. Returns whether there may be another one to try."""


class TokenFile:
    """A personal access token in a file, read anew for each call: it can be changed at any time."""

    def __init__(self, path: str) -> None:
        self._path = path

    def token(self) -> str:
        token = _read(self._path, "token").strip()
        if not TOKEN.fullmatch(token):
            raise _wrong(f"{self._path} must hold one token in one line")
        return token

    def app_token(self) -> str:
        return ""

    def renew(self, old: str) -> bool:
        return self.token() != old


@dataclass(frozen=True)
class _InstallationToken:
    text: str = field(repr=False)
    until: datetime


class AppInstallation:
    """An app's installation; its tokens last an hour and are kept in memory."""

    def __init__(self, app: GitHubApp, owner_path: str, ask: AskAsApp, now: Callable[[], datetime]) -> None:
        """`owner_path`: ``/orgs/o`` or ``/repos/o/r``."""
        self._app = app
        self._owner_path = owner_path
        self._ask = ask
        self._now = now
        self._lock = threading.Lock()
        self._installation = 0
        self._token: _InstallationToken | None = None

    def token(self) -> str:
        with self._lock:
            if self._token is None or self._now() >= self._token.until - EARLY:
                self._token = self._new()
            return self._token.text

    def app_token(self) -> str:
        key = _read(self._app.key_file, "private key")
        try:
            return get_jwt(app_id=str(self._app.id), private_key=key, expiration=JWT_SECONDS)
        except Exception:  # of the library, of which some quote what they cannot read
            raise _wrong(f"{self._app.key_file} is no private RSA key in PEM, as GitHub gives it for an app") from None

    def renew(self, old: str) -> bool:
        with self._lock:
            if self._token is not None and self._token.text == old:
                self._token = None
            return True

    def _new(self) -> _InstallationToken:
        if not self._installation:
            self._installation = self._find()
        try:
            data = self._ask("POST", f"/app/installations/{self._installation}/access_tokens")
        except GitHubError as error:
            if error.kind is not GitHubTrouble.MISSING:
                raise
            self._installation = self._find()  # it was installed anew
            data = self._ask("POST", f"/app/installations/{self._installation}/access_tokens")
        text, until = fields.text(data, "token"), fields.moment(data, "expires_at")
        if not TOKEN.fullmatch(text) or until is None:
            raise GitHubError(f"GitHub gave app {self._app.id} no token that can be read")
        return _InstallationToken(text, until)

    def _find(self) -> int:
        try:
            installation = fields.whole(self._ask("GET", f"{self._owner_path}/installation"), "id")
        except GitHubError as error:
            if error.kind is not GitHubTrouble.MISSING:
                raise
            installation = 0
        if not installation:
            owner = self._owner_path.partition("/")[2].partition("/")[2]
            raise _wrong(f"app {self._app.id} is not installed for {owner}: install it there, in GitHub's settings")
        return installation


def credentials_of(enrolment: Enrolment, ask: AskAsApp, now: Callable[[], datetime]) -> GitHubLogin:
    if enrolment.app is not None:
        return AppInstallation(enrolment.app, owner_path(enrolment), ask, now)
    return TokenFile(enrolment.token_file or "")


def owner_path(enrolment: Enrolment) -> str:
    return f"/orgs/{enrolment.organization}" if enrolment.organization else f"/repos/{enrolment.repository}"


def _read(path: str, what: str) -> str:
    try:
        return Path(path).read_bytes()[:100_000].decode("ascii")
    except OSError as error:
        raise _wrong(f"the {what} cannot be read from {path}: {error.strerror}") from None
    except UnicodeDecodeError:
        raise _wrong(f"{path} holds no {what}") from None


def _wrong(message: str) -> GitHubError:
    return GitHubError(message, GitHubTrouble.UNAUTHORIZED)
