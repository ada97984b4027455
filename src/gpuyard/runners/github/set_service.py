"""Calls the service behind scale sets: gets its address and admin token from REST, and classifies its errors.

The admin token is renewed a minute before its end, and once when the service refuses it. Its address is checked before
a token is sent there.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

from gpuyard.runners import fields
from gpuyard.runners.github.answers import RegistrationToken
from gpuyard.runners.github.api import AGENT, RestApi, limited
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.line import PAUSES, HostLine, said
from gpuyard.runners.github.messages import expiry
from gpuyard.runtime.http import WireAnswer
from gpuyard.site.runner_rules import Enrolment

API_VERSION = "6.0-preview"
EARLY = timedelta(seconds=60)
"""An admin token is renewed when it has less time left than this."""
UNTOLD = timedelta(minutes=10)
"""Life of an admin token that does not say when it ends."""
KINDS = {
    401: GitHubTrouble.UNAUTHORIZED,
    404: GitHubTrouble.MISSING,
    408: GitHubTrouble.RETRY,
    409: GitHubTrouble.CONFLICT,
    410: GitHubTrouble.MISSING,
    429: GitHubTrouble.LIMITED,
}
EXCEPTIONS = {
    "AgentExistsException": GitHubTrouble.CONFLICT,
    "AgentNotFoundException": GitHubTrouble.MISSING,
    "JobStillRunningException": GitHubTrouble.CONFLICT,
    "RunnerScaleSetSessionConflictException": GitHubTrouble.CONFLICT,
}
"""Kinds of failure by the names of its errors, which say more than the status does."""


@dataclass(frozen=True)
class _Admin:
    url: str
    token: str = field(repr=False)
    until: datetime


class SetService:
    """The service for one enrolment. Safe to use from several threads."""

    def __init__(self, api: RestApi, enrolment: Enrolment, registration: Callable[[], RegistrationToken]) -> None:
        """`registration` returns a new registration token."""
        self._api = api
        self._config_url = f"{enrolment.url}/{enrolment.organization or enrolment.repository}"
        self._registration = registration
        self._line = api.line()
        self._lock = threading.Lock()
        self._admin: _Admin | None = None

    def line(self) -> HostLine:
        """Return a line of its own for each session: a proxy that cuts long polls shall not stop the other calls."""
        return self._api.line()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Any = None,
        bearer: str = "",
    ) -> WireAnswer:
        """Return an answer below 300. `bearer` goes in place of the admin token. Raises GitHubError."""
        data = None if body is None else json.dumps(body).encode()
        what = f"{method} {path}"
        for last in (False, True):
            admin = self._connection()
            url = _below(admin.url, path, {**(query or {}), "api-version": API_VERSION})
            headers = {
                "authorization": f"Bearer {bearer or admin.token}",
                "content-type": "application/json",
                "user-agent": AGENT,
            }
            safe = method in {"GET", "DELETE", "PATCH"}
            answer = self._line.ask(method, url, headers, data, what=what, safe=safe)
            if answer.status == 401 and not bearer and not last:
                self._forget(admin)
                continue
            break
        if answer.status >= 300:
            raise self.trouble(what, answer)
        return answer

    def trouble(self, what: str, answer: WireAnswer) -> GitHubError:
        """Return the error that an answer of 300 or more means."""
        try:
            name = fields.text(fields.row(fields.document(answer.body)), "typeName", 500)
        except ValueError:
            name = ""
        words = said(answer)
        kinds = (kind for exception, kind in EXCEPTIONS.items() if exception in name)
        kind = next(kinds, KINDS.get(answer.status, GitHubTrouble.REFUSED))
        retry_at = None
        if limited(answer, words):
            kind, retry_at = GitHubTrouble.LIMITED, self._api.retry_at(answer)
        return GitHubError(
            f"{what}: the service of scale sets answers {answer.status}{words}",
            kind,
            status=answer.status,
            retry_at=retry_at,
        )

    def checked(self, url: str) -> str:
        """Return an address that the service gave, if its token may be sent there. Raises GitHubError for one that is
        not HTTPS although GitHub is, that has no host, or that has a user in it."""
        parts = urlsplit(url)
        schemes = {"https"} | {urlsplit(self._api.base).scheme}
        if parts.scheme not in schemes or not parts.hostname or parts.username:
            raise GitHubError("the service of scale sets gave an address that is not used", GitHubTrouble.REFUSED)
        return url

    def _connection(self) -> _Admin:
        with self._lock:
            if self._admin is None or self._api.now() >= self._admin.until - EARLY:
                self._admin = self._connect()
            return self._admin

    def _forget(self, admin: _Admin) -> None:
        with self._lock:
            if self._admin is admin:
                self._admin = None

    def _connect(self) -> _Admin:
        """A registration token is not known everywhere at once: a no is asked again."""
        for pause in (*PAUSES, None):
            token = self._registration().token
            try:
                reply = self._api.ask(
                    "POST",
                    "/actions/runner-registration",
                    body={"url": self._config_url, "runner_event": "register"},
                    authorization=f"RemoteAuth {token}",
                )
            except GitHubError as error:
                if error.status not in {401, 403} or error.kind is GitHubTrouble.LIMITED or pause is None:
                    raise
                self._api.sleep(pause)
                continue
            break
        data = fields.row(reply.data)
        url, token = fields.text(data, "url", 4000), fields.text(data, "token", 16_000)
        if not url or not token:
            raise GitHubError("GitHub did not say where the service of scale sets is")
        return _Admin(self.checked(url), token, expiry(token) or self._api.now() + UNTOLD)


def _below(base: str, path: str, query: Mapping[str, object]) -> str:
    parts = urlsplit(base)
    query_string = urlencode([*parse_qsl(parts.query), *query.items()])
    return urlunsplit((parts.scheme, parts.netloc, f"{parts.path.rstrip('/')}/{path}", query_string, ""))
