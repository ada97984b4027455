"""Middleware that adds security headers to every response; and the names of this machine itself."""

from __future__ import annotations

from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")

HEADERS = {
    # Nothing inline and nothing from elsewhere: text that slipped through the templates would still not run.
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Nothing to other sites; to us, because without it browsers do not say which site a form was on.
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Names of users and servers: kept by nobody, unless a response says otherwise.
    "Cache-Control": "no-cache",
}


class Protected:
    """Adds HEADERS to every response, and answers HEAD as GET, which the server sends without the body."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers.setdefault(name, value)
            await send(message)

        if scope["method"] == "HEAD" and scope["path"] != "/events":  # a feed never ends, with or without its body
            scope = {**scope, "method": "GET"}
        await self.app(scope, receive, send_with_headers)
