"""Middleware that admits requests: it requires a person for all but the open paths, and a CSRF token for changes by
cookie.

It finds the visitor first, then reads the body, and only then checks the CSRF token and counts the change: so bodies
of people who have logged in have a share of their own, which nobody else can use up. An event stream is checked
again every `CHECK_EVERY` seconds, and ends when its visitor would no longer be admitted.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from typing import Any
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.database.errors import StoreError
from gpuyard.openstack.errors import CloudError
from gpuyard.web.authenticator import Authenticator, same_token
from gpuyard.web.bounded_bodies import BoundedBodies
from gpuyard.web.gateway import is_same_site, up_from
from gpuyard.web.login_throttle import places
from gpuyard.web.people import Visitor
from gpuyard.web.problems import Refusal, response_to, unavailable

GITHUB_WEBHOOK = "/v1/github/webhook"
OWN_BODY = frozenset({GITHUB_WEBHOOK})
OPEN = frozenset({"/login", "/login/sso", "/healthz", "/readyz", "/metrics", "/v1", "/docs"}) | OWN_BODY
OF_HOSTS = re.compile(r"/v1/hosts/[^/]+/(?:looks|scrubs)")
"""Hosts send tokens of their own, which the handlers of these paths check (machine_tokens.py)."""
PUBLIC = re.compile(r"/(runners|job|v1/(queue|runners|jobs|jobs/.+))")
"""Paths that need no login where the site says that its runners are public. Logs refuse on their own."""
STATUS = re.compile(r"/(v1/)?status")
"""Paths that need no login where the site shows its status to everybody."""
OPEN_FOLDERS = ("/static/", "/docs/", "/ical/")
PROGRAMS = ("/v1", "/openapi.json", "/events")
"""Beginnings of paths that answer with a problem instead of the login page."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MOST_BYTES = 64 * 1024
"""The longest body of a request."""
MOST_AT_ONCE = 16 * 1024 * 1024
"""Bytes of bodies that are read at the same time, for all who have logged in; as many for all others."""
MOST_FIELDS = 100
"""The most fields of a form."""
CHECK_EVERY = 10.0
"""Seconds between checks that the visitor of a stream is still admitted. A log-out in this process checks at once."""
STREAMS = frozenset({"/events"})
IDLE = "x-gpuyard-idle"


class AccessMiddleware:
    def __init__(self, app: ASGIApp, authenticator: Authenticator, public: Collection[re.Pattern[str]] = ()) -> None:
        """`public`: paths that anybody may read, and nobody change. A visitor who has logged in is known there too, and
        counts as anonymous while the session cannot be checked."""
        self.app, self._authenticator, self._public = app, authenticator, public
        self._bodies = BoundedBodies(MOST_BYTES, MOST_AT_ONCE)
        self._bodies_of_strangers = BoundedBodies(MOST_BYTES, MOST_AT_ONCE)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        path = request.url.path
        try:
            answer = None if is_open(path) else await run_in_threadpool(self._admit, request)
            if answer is None and request.method not in SAFE and not reads_own_body(path):
                # Who has logged in has a share of its own, which nobody else can use up with bodies that never end.
                bodies = self._bodies_of_strangers if is_open(path) else self._bodies
                async with bodies.read(request, receive, self._client(request)) as body:
                    if not is_open(path):
                        self._admit_change(request, body)
                receive = replayed(body, receive)
        except Refusal as refusal:
            answer = response_to(refusal)
        except (CloudError, StoreError) as error:
            answer = response_to(unavailable(error))
        if answer is not None:
            await answer(scope, receive, send)
        elif path in STREAMS:
            await self._stream(request, receive, send)
        else:
            await self.app(scope, receive, send)

    def _admit(self, request: Request, again: bool = False) -> Response | None:
        """Set `request.state.visitor`, or return the answer for who is not let in. `again`: it has been admitted before
        and lasts, so it counts no more. Raises Refusal, CloudError, StoreError."""
        path = request.url.path
        # A page that is left open is not somebody who uses it; client.js says when nobody has touched it.
        used = path not in STREAMS and IDLE not in request.headers
        public = request.method in SAFE and any(pattern.fullmatch(path) for pattern in self._public)
        try:
            visitor = self._authenticator.visitor(request, used=used)
        except (CloudError, StoreError):
            if not public:
                raise
            visitor = None
        if visitor is None and public:
            if STATUS.fullmatch(path):
                self._authenticator.refuse_too_many_looks(request)
            else:
                self._authenticator.refuse_too_many_anonymous_reads(request)
            return None
        if visitor is None:
            return self._login(request)
        if request.method in SAFE and not again:
            self._authenticator.refuse_too_many_reads(visitor.person)
        request.state.visitor = visitor
        return None

    def _client(self, request: Request) -> str:
        """Who has a share of the bodies that are read at once: a person, or the network of who has not logged in."""
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        return visitor.person.user_id if visitor is not None else places(self._authenticator.address(request))[1]

    def _admit_change(self, request: Request, body: bytes) -> None:
        """Raise Refusal unless the visitor may change something now."""
        visitor: Visitor = request.state.visitor
        if visitor.session is not None:
            refuse_forged(request, body, visitor, self._authenticator.settings.public_url)
        kind = "check" if request.url.path.endswith("/check") else "write"
        self._authenticator.refuse_too_many_writes(visitor.person, kind)

    async def _stream(self, request: Request, receive: Receive, send: Send) -> None:
        """A response that goes on for as long as who listens is let in."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        stream = asyncio.ensure_future(self.app(request.scope, receive, noted))
        visitor: Visitor | None = getattr(request.state, "visitor", None)
        session = visitor.session if visitor else None
        try:
            with self._authenticator.sessions.streams.opened(
                *((session.digest, session.user_id) if session else ())
            ) as due:
                while not await _is_done(stream, due, CHECK_EVERY):
                    due.clear()
                    if not await run_in_threadpool(self._still, request):
                        break
                else:
                    await stream
                    return
        finally:
            stream.cancel()
            await asyncio.wait({stream})
        if begun:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    def _still(self, request: Request) -> bool:
        try:
            return self._admit(request, again=True) is None
        except (Refusal, CloudError, StoreError):
            return False

    def _login(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith(PROGRAMS):
            raise Refusal(401, "unauthorized", "Log in first, or send a token of Keystone as X-Auth-Token.")
        return to_login(request)


async def _is_done(stream: asyncio.Future[None], due: asyncio.Event, seconds: float) -> bool:
    """Wait until a stream has ended, a check of it is due, or time is up."""
    check = asyncio.ensure_future(due.wait())
    both: set[asyncio.Future[Any]] = {stream, check}
    try:
        done, _ = await asyncio.wait(both, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        check.cancel()
    return stream in done


def reads_own_body(path: str) -> bool:
    """Return whether the handler of a path reads the body itself, after it has checked the token or signature."""
    return path in OWN_BODY or OF_HOSTS.fullmatch(path) is not None


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDERS) or OF_HOSTS.fullmatch(path) is not None


def to_login(request: Request) -> RedirectResponse:
    """Redirect to the login page, and from there back to this one."""
    path, query = request.url.path, request.url.query
    back = quote(f"{path}?{query}" if query else path) if request.method in SAFE and path != "/" else ""
    return RedirectResponse(f"{up_from(path)}login{f'?next={back}' if back else ''}", 303)


def refuse_forged(request: Request, body: bytes, visitor: Visitor, public_url: str) -> None:
    """Raise Refusal unless one of our own pages sent the request: a browser sends the cookie whichever page asks."""
    if not is_same_site(request, public_url):
        raise Refusal(403, "cross_site", "This came from a page of another site.")
    sent = request.headers.get("x-csrf-token") or form_of(request, body).get("csrf", "")
    if not same_token(visitor.csrf, sent):
        raise Refusal(
            403, "csrf", "The request lacks the token of your session (X-CSRF-Token); load the page again and retry."
        )


def form_of(request: Request, body: bytes) -> dict[str, str]:
    """Return the fields of a form, the first value of each; empty when the body is no form. Raises Refusal."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), True, max_num_fields=MOST_FIELDS, errors="replace")
    except ValueError:
        raise Refusal(413, "too_many_fields", f"The form has more than {MOST_FIELDS} fields.") from None
    return {name: values[0] for name, values in fields.items()}


def replayed(body: bytes, receive: Receive) -> Receive:
    """Return a `receive` for the layers behind this one, which gives them the body that was read here."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again
