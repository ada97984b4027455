"""Stands before every handler of a site with bookings: nobody gets past without a person but where it says so here, and
nothing is changed by a cookie alone."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Collection
from urllib.parse import parse_qs, quote

from starlette.concurrency import run_in_threadpool
from starlette.requests import ClientDisconnect, Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.cloud.errors import CloudError
from gpuyard.health import looks
from gpuyard.ledger.store import StoreError
from gpuyard.portal import github_webhook
from gpuyard.portal.doorman import Doorman, same_token
from gpuyard.portal.gateway import is_same_site, up_from
from gpuyard.portal.people import Visitor
from gpuyard.portal.problems import Refusal, response_to, unavailable

OWN_BODY = frozenset({github_webhook.PATH})
"""Read the body themselves, and bound it."""
OPEN = frozenset({"/login", "/login/sso", "/healthz", "/readyz", "/metrics", "/v1", "/docs"}) | OWN_BODY
OF_HOSTS = re.compile(r"/v1/hosts/[^/]+/(?:looks|scrubs)")
"""Hosts come with tokens of their own, and whoever answers there looks at them (machine_tokens.py)."""
PUBLIC = re.compile(r"/(runners|job|v1/(queue|runners|jobs|jobs/.+))")
"""What can be looked at without login where the site says that its runners are public. Logs refuse on their own."""
STATUS = re.compile(r"/(v1/)?status")
"""And where it tells everybody how it is."""
OPEN_FOLDERS = ("/static/", "/docs/", "/ical/")
PROGRAMS = ("/v1", "/openapi.json", "/events")
"""Beginnings of paths that answer with a problem instead of the login page."""
SAFE = frozenset({"GET", "HEAD", "OPTIONS", "TRACE"})
MOST_BYTES = 64 * 1024
"""Of the body of a request."""
MOST_OF_HOSTS = looks.MOST_BYTES
"""Of what a host sends."""
MOST_FIELDS = 100
"""Of a form."""
LOOK_AGAIN = 50.0
"""Seconds after which it is looked again whether who listens to a stream is still let in."""
STREAMS = frozenset({"/events"})
IDLE = "x-gpuyard-idle"


class Gate:
    def __init__(self, app: ASGIApp, doorman: Doorman, public: Collection[re.Pattern[str]] = ()) -> None:
        """`public`: paths that anybody may look at, and nobody change; who has logged in is somebody there too, and
        nobody while that cannot be found out."""
        self.app, self._doorman, self._public = app, doorman, public

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            reads = request.method not in SAFE and request.url.path not in OWN_BODY
            most = MOST_OF_HOSTS if OF_HOSTS.fullmatch(request.url.path) else MOST_BYTES
            body = await read_body(request, most) if reads else b""
            answer = None
            if not is_open(request.url.path):
                answer = await run_in_threadpool(self._look, request, body)
        except ClientDisconnect:
            return
        except Refusal as refusal:
            answer = response_to(refusal)
        except (CloudError, StoreError) as error:
            answer = response_to(unavailable(error))
        if answer is not None:
            await answer(scope, receive, send)
            return
        if reads:
            receive = replayed(body, receive)
        if request.url.path in STREAMS:
            await self._stream(request, receive, send)
        else:
            await self.app(scope, receive, send)

    def _look(self, request: Request, body: bytes) -> Response | None:
        """None: come in."""
        path = request.url.path
        # A page that is left open is not somebody who uses it; client.js says when nobody has touched it.
        used = path not in STREAMS and IDLE not in request.headers
        public = request.method in SAFE and any(pattern.fullmatch(path) for pattern in self._public)
        try:
            visitor = self._doorman.visitor(request, used=used)
        except (CloudError, StoreError):
            if not public:
                raise
            visitor = None
        if visitor is None and public:
            if STATUS.fullmatch(path):
                self._doorman.refuse_too_many_looks(request)
            else:
                self._doorman.refuse_too_many_anonymous_reads(request)
            return None
        if visitor is None:
            return self._login(request)
        if request.method not in SAFE:
            if visitor.session is not None:
                refuse_forged(request, body, visitor, self._doorman.settings.public_url)
            self._doorman.refuse_too_many_writes(visitor.person, "check" if path.endswith("/check") else "write")
        elif path.startswith("/v1/"):
            self._doorman.refuse_too_many_reads(visitor.person)
        request.state.visitor = visitor
        return None

    async def _stream(self, request: Request, receive: Receive, send: Send) -> None:
        """A response that goes on for as long as who listens is let in."""
        begun = False

        async def noted(message: Message) -> None:
            nonlocal begun
            begun = message["type"] == "http.response.start" or message.get("more_body", False)
            await send(message)

        stream = asyncio.ensure_future(self.app(request.scope, receive, noted))
        try:
            while not (await asyncio.wait({stream}, timeout=LOOK_AGAIN))[0]:
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
            return self._look(request, b"") is None
        except (Refusal, CloudError, StoreError):
            return False

    def _login(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith(PROGRAMS):
            raise Refusal(401, "unauthorized", "Log in first, or send a token of Keystone as X-Auth-Token.")
        return to_login(request)


def is_open(path: str) -> bool:
    return path in OPEN or path.startswith(OPEN_FOLDERS) or OF_HOSTS.fullmatch(path) is not None


def to_login(request: Request) -> RedirectResponse:
    """To the login page, and from there back to this one."""
    path, query = request.url.path, request.url.query
    back = quote(f"{path}?{query}" if query else path) if request.method in SAFE and path != "/" else ""
    return RedirectResponse(f"{up_from(path)}login{f'?next={back}' if back else ''}", 303)


def refuse_forged(request: Request, body: bytes, visitor: Visitor, public_url: str) -> None:
    """Raise Refusal unless a page of ours has sent this: a browser sends the cookie with whatever any page asks for."""
    if not is_same_site(request, public_url):
        raise Refusal(403, "cross_site", "This came from a page of another site.")
    sent = request.headers.get("x-csrf-token") or form_of(request, body).get("csrf", "")
    if not same_token(visitor.csrf, sent):
        raise Refusal(
            403, "csrf", "The request lacks the token of your session (X-CSRF-Token); load the page again and retry."
        )


def form_of(request: Request, body: bytes) -> dict[str, str]:
    """The fields of a form, of each the first value; empty when the body is none. Raises Refusal."""
    if request.headers.get("content-type", "").partition(";")[0].strip() != "application/x-www-form-urlencoded":
        return {}
    try:
        fields = parse_qs(body.decode("utf-8", "replace"), True, max_num_fields=MOST_FIELDS, errors="replace")
    except ValueError:
        raise Refusal(413, "too_many_fields", f"The form has more than {MOST_FIELDS} fields.") from None
    return {name: values[0] for name, values in fields.items()}


async def read_body(request: Request, most: int = MOST_BYTES) -> bytes:
    """Raises Refusal when it is too long for anything that can be asked here."""
    too_long = Refusal(413, "too_long", f"The body of the request is longer than {most} bytes.")
    if not request.headers.get("content-length", "0").isdecimal():
        raise Refusal(400, "bad_request", "The length of the body is no number.")
    if int(request.headers.get("content-length", "0")) > most:
        raise too_long
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise too_long
    return body


def replayed(body: bytes, receive: Receive) -> Receive:
    """`receive` for those behind the gate, with the body that was read here."""
    waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive_again() -> Message:
        return waiting.pop() if waiting else await receive()

    return receive_again
