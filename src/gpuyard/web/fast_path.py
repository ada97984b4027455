"""Middleware that answers certain POST requests before other layers, whose work would cost more than the answer.

Agents' reports are answered before all layers but the one that numbers requests; GitHub's webhooks behind the layers
that add headers to answers, limit headers and check the host's name. The apps that answer here see the request as it
came to this layer, and check rates and rights themselves, which layers behind this one would have done.
"""

from __future__ import annotations

from collections.abc import Mapping

from starlette.types import ASGIApp, Receive, Scope, Send


class FastPath:
    """Sends POST to a path of `fast_paths` there, and everything else on."""

    def __init__(self, app: ASGIApp, fast_paths: Mapping[str, ASGIApp]) -> None:
        self.app, self._handlers = app, fast_paths

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        handler = self._handlers.get(scope["path"]) if scope["type"] == "http" and scope["method"] == "POST" else None
        await (handler or self.app)(scope, receive, send)
