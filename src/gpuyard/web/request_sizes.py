"""Refuses requests with too many or too long headers, paths or queries, before any other layer has to process them."""

from __future__ import annotations

from starlette.types import ASGIApp, Receive, Scope, Send

from gpuyard.web.problems import Refusal, response_to

MOST_HEADERS = 100
LONGEST_HEADER = 8 * 1024
"""Bytes of one value."""
LONGEST_HEADERS = 32 * 1024
"""Bytes of all names and values."""
LONGEST_PATH = 2 * 1024
LONGEST_QUERY = 8 * 1024


class Limited:
    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = too_much(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await response_to(refusal)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def too_much(scope: Scope) -> Refusal | None:
    headers = scope["headers"]
    if len(headers) > MOST_HEADERS:
        return Refusal(431, "too_many_headers", f"The request has more than {MOST_HEADERS} headers.")
    if any(len(value) > LONGEST_HEADER for _, value in headers):
        return Refusal(431, "header_too_long", f"A header of the request is longer than {LONGEST_HEADER} bytes.")
    if sum(len(name) + len(value) for name, value in headers) > LONGEST_HEADERS:
        return Refusal(431, "headers_too_long", f"All headers together are longer than {LONGEST_HEADERS} bytes.")
    if len(scope["path"]) > LONGEST_PATH or len(scope["query_string"]) > LONGEST_QUERY:
        text = f"The address is too long: at most {LONGEST_PATH} bytes of path and {LONGEST_QUERY} of query."
        return Refusal(414, "address_too_long", text)
    return None
