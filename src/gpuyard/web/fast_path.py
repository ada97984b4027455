"""Stands before other layers: for programs that come so often that a page's layers would cost more than the answer.

Agents come before all of them, GitHub after the names of the host, the limits of headers and the headers of answers.
Whoever answers here sees the request as it came to this layer, and looks after what comes behind it, rates and rights,
itself."""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class FastPath:
    """POST to one of `doors`, by path, goes there; everything else goes on."""

    def __init__(self, app: ASGIApp, doors: Mapping[str, ASGIApp]) -> None:
        self.app, self._doors = app, doors

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        door = self._doors.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (door or self.app)(scope, receive, send)
