"""Calls GitHub's REST API for one enrolment: adds tokens, keeps to the rate limits, follows pages, and classifies
errors.

A call first waits for its turn under GitHub's secondary limit (900 points a minute; a read costs 1, a write 5). When
the primary limit of the hour is used up, calls fail at once with LIMITED and the time of the reset, without asking
GitHub. A token that GitHub refuses is renewed once. Redirects and pages are followed on the same host only, since the
token is for GitHub alone.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode, urljoin, urlsplit

from gidgethub.sansio import create_headers, decipher_response

from gpuyard import installed_version
from gpuyard.model.text import printable
from gpuyard.openstack.breaker import CircuitBreaker, Clock, TokenBucket
from gpuyard.runners import fields
from gpuyard.runners.github.answers import CallCount
from gpuyard.runners.github.credentials import credentials_of
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.github.line import CallCounter, HostLine, Now, Sleep, said
from gpuyard.runtime.http import MOST_BYTES, HttpClient, WireAnswer
from gpuyard.site.runner_rules import Enrolment

AGENT = f"gpuyard/{installed_version()}"
VERSION = "2022-11-28"
PER_PAGE = 100
MOST_PAGES = 100
READ_COST, WRITE_COST = 1, 5
RATE, BURST = 10.0, 300.0
"""GitHub's secondary limit is 900 points a minute, by these costs: so many a second in the long run, and at once."""
PATIENCE = 5.0
"""Seconds that a call waits for GitHub's limit at most; when it would be more, it says when to ask again."""
MOST_WAIT = timedelta(hours=1)
"""The longest wait that is believed: GitHub's limits are by the hour."""
UNSPECIFIC_WAIT = timedelta(minutes=1)
"""The wait when GitHub limits without saying for how long: GitHub's documentation asks for it."""
REDIRECTS = 3
KINDS = {
    401: GitHubTrouble.UNAUTHORIZED,
    404: GitHubTrouble.MISSING,
    408: GitHubTrouble.RETRY,
    409: GitHubTrouble.CONFLICT,
    410: GitHubTrouble.MISSING,
}


@dataclass(frozen=True)
class RestReply:
    status: int
    data: Any
    """JSON; None where the answer has none."""
    headers: Mapping[str, str]
    body: bytes
    more: str = ""
    """Address of the next page."""


class RestApi:
    """The REST API of one enrolment. Safe to use from several threads."""

    def __init__(
        self,
        enrolment: Enrolment,
        *,
        wire: HttpClient | None = None,
        now: Now = lambda: datetime.now(UTC),
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
        rate: float = RATE,
        burst: float = BURST,
    ) -> None:
        """`rate` and `burst` are points of GitHub's secondary limit: a read costs 1, a write 5."""
        self.base = api_base(enrolment.url)
        self.wire = wire or HttpClient()
        self.now = now
        self.clock = clock
        self.sleep = sleep
        self.counter = CallCounter()
        self._name = enrolment.name
        self._bucket = TokenBucket(rate, burst, clock)
        self._line = self.line()
        self._credentials = credentials_of(enrolment, self._ask_as_app, now)
        self._lock = threading.Lock()
        self._not_before: datetime | None = None

    def line(self) -> HostLine:
        """Return a line to one host, with a breaker of its own."""
        return HostLine(self.wire, CircuitBreaker(self.clock), self.counter, self.now, self.sleep)

    def usage(self) -> CallCount:
        return self.counter.now()

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, object] | None = None,
        body: Any = None,
        headers: Mapping[str, str] | None = None,
        authorization: str = "",
        as_app: bool = False,
        raw: bool = False,
        most: int = MOST_BYTES,
    ) -> RestReply:
        """Return an answer of 200 to 299, or 304. `authorization` goes in place of the enrolment's own. A GET and a
        DELETE may be sent twice. `raw`: the answer need not be JSON. Raises GitHubError."""
        url = path if "://" in path else self.base + path
        if query:
            url += "?" + urlencode({key: value for key, value in query.items() if value != ""})
        what = f"{method} {urlsplit(url).path}"
        data = None if body is None else json.dumps(body).encode()
        renewed = False
        for _ in range(REDIRECTS + 2):
            self._wait_for_limit(what, READ_COST if method == "GET" else WRITE_COST)
            token = "" if authorization else self._token(as_app)
            sent = self._headers(token, as_app, authorization, headers, data)
            safe = method in {"GET", "DELETE"}
            answer = self._line.ask(method, url, sent, data, what=what, safe=safe, most=most)
            self._note(answer, as_app)
            if answer.status == 401 and token and not as_app and not renewed:
                renewed = True
                if self._credentials.renew(token):
                    continue
            if answer.status in {301, 302, 307, 308} and method == "GET":
                url = self._same_host(urljoin(url, answer.headers.get("location", "")), what)
                continue
            if answer.status >= 300 and answer.status != 304:
                raise self._trouble(what, answer)
            reply = self._reply(what, answer)
            if method == "GET" and answer.status == 200 and reply.data is None and not raw:
                raise GitHubError(f"{what}: the answer has nothing in it", status=200)
            return reply
        raise GitHubError(f"{what}: one redirect follows the other", GitHubTrouble.REFUSED)

    def pages(
        self, path: str, key: str = "", *, query: Mapping[str, object] | None = None, as_app: bool = False
    ) -> Iterator[Mapping[str, Any]]:
        """Yield all objects of a list, or of the list that the answer has as `key`. Raises GitHubError, also when there
        are more than MOST_PAGES pages: half a list may be worse than none."""
        reply = self.ask("GET", path, query={"per_page": PER_PAGE, **(query or {})}, as_app=as_app)
        for _ in range(MOST_PAGES):
            yield from listed(reply.data, key, f"GET {path}")
            if not reply.more:
                return
            reply = self.ask("GET", self._same_host(reply.more, f"GET {path}"), as_app=as_app)
        raise GitHubError(f"GET {path}: more than {MOST_PAGES} pages", GitHubTrouble.REFUSED)

    def page(
        self, path: str, key: str = "", *, query: Mapping[str, object] | None = None, as_app: bool = False
    ) -> tuple[list[Mapping[str, Any]], str]:
        """Return one page of a list, of PER_PAGE objects at most, and the address of the next page; empty after the
        last one. Raises GitHubError."""
        reply = self.ask("GET", path, query={"per_page": PER_PAGE, **(query or {})}, as_app=as_app)
        return listed(reply.data, key, f"GET {path}"), self._same_host(reply.more, f"GET {path}") if reply.more else ""

    def _ask_as_app(self, method: str, path: str) -> Mapping[str, Any]:
        return fields.row(self.ask(method, path, as_app=True).data)

    def _token(self, as_app: bool) -> str:
        token = self._credentials.app_token() if as_app else self._credentials.token()
        if not token:
            raise GitHubError("only an app can ask this, and the enrolment has a token", GitHubTrouble.REFUSED)
        return token

    def _headers(
        self, token: str, as_app: bool, authorization: str, more: Mapping[str, str] | None, data: bytes | None
    ) -> dict[str, str]:
        made = create_headers(AGENT, jwt=token) if as_app else create_headers(AGENT, oauth_token=token or None)
        made["x-github-api-version"] = VERSION
        if authorization:
            made["authorization"] = authorization
        if data is not None:
            made["content-type"] = "application/json"
        return made | dict(more or {})

    def _wait_for_limit(self, what: str, cost: float) -> None:
        """Wait a little where the limit asks for it. Raises GitHubError (LIMITED) where it would be long."""
        with self._lock:
            until = self._not_before
        now = self.now()
        if until is not None and now < until:
            raise GitHubError(f"{what}: not asked, GitHub's limit is used up", GitHubTrouble.LIMITED, retry_at=until)
        wait = self._bucket.take(cost, PATIENCE)
        if wait > PATIENCE:
            at = now + timedelta(seconds=wait)
            raise GitHubError(f"{what}: not asked, too many calls at once", GitHubTrouble.LIMITED, retry_at=at)
        if wait:
            self.sleep(wait)

    def _note(self, answer: WireAnswer, as_app: bool) -> None:
        """Note what GitHub reports of its limit. For some calls it keeps another one, and for an app another than for
        its installation."""
        if answer.status == 304:
            self.counter.add(unchanged=1)
        if as_app or answer.headers.get("x-ratelimit-resource", "core") != "core":
            return
        try:
            limits = {name: text for name, text in answer.headers.items() if name.startswith("x-ratelimit-")}
            _, rate, _ = decipher_response(200, limits, b"")
        except (ValueError, OverflowError, OSError):
            return
        if rate is None:
            return
        wait = rate.reset_datetime - _date(answer, self.now())
        reset = self.now() + max(timedelta(0), min(wait, MOST_WAIT))
        self.counter.note(max(0, rate.limit), max(0, rate.remaining), reset)
        if rate.remaining <= 0:
            self._pause_until(reset)

    def _pause_until(self, at: datetime) -> None:
        with self._lock:
            self._not_before = max(self._not_before or at, at)

    def _reply(self, what: str, answer: WireAnswer) -> RestReply:
        is_json = answer.headers.get("content-type", "").partition(";")[0].strip() == "application/json"
        try:
            data = fields.document(answer.body) if is_json and answer.body else None
        except ValueError:
            raise GitHubError(f"{what}: the answer is not the JSON that it says it is", status=answer.status) from None
        # The link is cut: nobody else's is so long, and the library's search takes the square of its length.
        _, _, more = decipher_response(200, {"link": answer.headers.get("link", "")[:4000]}, b"")
        return RestReply(answer.status, data, answer.headers, answer.body, more or "")

    def _trouble(self, what: str, answer: WireAnswer) -> GitHubError:
        self.counter.add(failed=1)
        status, words = answer.status, said(answer)
        if limited(answer, words):
            self.counter.add(limited=1)
            at = self.retry_at(answer)
            if answer.headers.get("x-ratelimit-resource", "core") == "core":
                self._pause_until(at)
            return GitHubError(
                f"{what}: asked too often ({status}{words})", GitHubTrouble.LIMITED, status=status, retry_at=at
            )
        if status < 400:
            return GitHubError(f"{what}: the answer is a redirect ({status})", GitHubTrouble.REFUSED, status=status)
        kind = KINDS.get(status, GitHubTrouble.REFUSED)
        needs = printable(answer.headers.get("x-accepted-github-permissions", "")[:200])
        hint = f"; the app or token needs one of these permissions: {needs}" if status in {403, 404} and needs else ""
        if kind is GitHubTrouble.UNAUTHORIZED:
            hint = f"; look at the app or token of enrolment {self._name}"
        return GitHubError(f"{what}: the answer is {status}{words}{hint}", kind, status=status)

    def retry_at(self, answer: WireAnswer) -> datetime:
        """Return when to ask again after an answer that says that gpuyard asks too often."""
        now = self.now()
        after = answer.headers.get("retry-after", "")
        wait = UNSPECIFIC_WAIT
        if after.isascii() and after.isdigit() and len(after) < 13:
            wait = timedelta(seconds=int(after))
        elif answer.headers.get("x-ratelimit-remaining") == "0":
            reset = answer.headers.get("x-ratelimit-reset", "")
            if reset.isascii() and reset.isdigit() and len(reset) < 12:
                wait = datetime.fromtimestamp(int(reset), UTC) - _date(answer, now)
        return now + max(timedelta(seconds=1), min(wait, MOST_WAIT))

    def _same_host(self, url: str, what: str) -> str:
        """Raises GitHubError for an address elsewhere: the token is for GitHub alone."""
        if _origin(url) != _origin(self.base):
            raise GitHubError(f"{what}: the answer leads to another host", GitHubTrouble.REFUSED)
        return url


def listed(data: Any, key: str, what: str) -> list[Mapping[str, Any]]:
    """Return the objects of an answer's list. Raises GitHubError where there is no list: that is not the same as an
    empty one."""
    items = fields.row(data).get(key) if key else data
    if not isinstance(items, list):
        raise GitHubError(f"{what}: the answer has no list in it", status=200)
    return fields.rows(items)


def limited(answer: WireAnswer, words: str) -> bool:
    """Return whether an answer means that gpuyard asks too often. GitHub says so with 429 or 403."""
    if answer.status == 429:
        return True
    if answer.status != 403:
        return False
    headers = answer.headers
    lowered = words.lower()
    return (
        "retry-after" in headers
        or headers.get("x-ratelimit-remaining") == "0"
        or "rate limit" in lowered
        or "abuse" in lowered
    )


def api_base(url: str) -> str:
    """Return the address of the REST API of a GitHub: ``https://github.com`` -> ``https://api.github.com``."""
    scheme, _, host = url.rstrip("/").partition("://")
    low = host.lower()
    if low in {"github.com", "www.github.com"}:
        return f"{scheme}://api.github.com"
    return f"{scheme}://api.{host}" if low.endswith(".ghe.com") else f"{scheme}://{host}/api/v3"


def _origin(url: str) -> tuple[str, str, int | None]:
    try:
        parts = urlsplit(url)
        return parts.scheme, (parts.hostname or "").lower(), parts.port
    except ValueError:
        return "", "", None


def _date(answer: WireAnswer, now: datetime) -> datetime:
    """Return the time by GitHub's clock, by which waits are reckoned."""
    try:
        date = parsedate_to_datetime(answer.headers.get("date", "")[:40])
        return date if date.tzinfo else date.replace(tzinfo=UTC)
    except (ValueError, TypeError, OverflowError):
        return now
