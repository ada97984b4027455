"""Turns problems into pages: programs get a document (problems.py), and a person with a browser the same in words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gpuyard.web.access import PROGRAMS, is_open
from gpuyard.web.assets import render
from gpuyard.web.navigation import navigation
from gpuyard.web.people import Visitor, find_visitor
from gpuyard.web.problems import MEDIA_TYPE

TITLES = {
    401: "Please log in",
    403: "You are not allowed to do this",
    404: "Nothing is here",
    405: "That is not how this works",
    413: "Too much",
    429: "Too often",
    503: "Not now",
}
OTHER = "That did not work"


class ProblemPages:
    """Turns problem documents into pages for those who ask for HTML, wherever in the app the problem arose."""

    def __init__(self, app: ASGIApp, site: str) -> None:
        self.app, self._site = app, site

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not wants_page(Request(scope)):
            await self.app(scope, receive, send)
            return
        scope.setdefault(
            "state", {}
        )  # where the gate leaves word of who asks, also when somebody between copies the scope
        begun: Message | None = None
        body = b""

        async def turned(message: Message) -> None:
            nonlocal begun, body
            if message["type"] == "http.response.start":
                if MutableHeaders(scope=message).get("content-type") != MEDIA_TYPE:
                    await send(message)
                else:
                    begun = message
            elif begun is None:
                await send(message)
            else:
                body += message.get("body", b"")
                if not message.get("more_body", False):
                    content = problem_page(Request(scope), self._site, json.loads(body)).encode()
                    headers = MutableHeaders(scope=begun)
                    headers["content-type"] = "text/html; charset=utf-8"
                    headers["content-length"] = str(len(content))
                    headers["cache-control"] = "no-store"
                    await send(begun)
                    await send({"type": "http.response.body", "body": content})

        await self.app(scope, receive, turned)


def wants_page(request: Request) -> bool:
    """Return whether a person waits for the answer: browsers name HTML when they go somewhere, scripts and programs do
    not."""
    return "text/html" in request.headers.get("accept", "") and not request.url.path.startswith(PROGRAMS)


def problem_page(request: Request, site: str, problem: Mapping[str, Any]) -> str:
    """Return the page of a problem. `request`: the refused one, after all layers have handled it."""
    visitor, nav = find_visitor(request), navigation(request)
    if request.method != "GET":
        nav = replace(nav, here="/")  # who switches the project cannot be led back to what was sent
    # Where nobody was looked for it is not known who it is, and who has logged in is not to be asked to.
    is_known = visitor is not None or (request.method == "GET" and not is_open(request.url.path))
    return render(
        "problem.html",
        site=site,
        title=TITLES.get(problem["status"], OTHER),
        detail=problem["detail"],
        reasons=[reason for reason in problem["reasons"] if reason != problem["detail"]],
        remedy=_remedy(visitor, problem["code"]),
        nav=nav if is_known else None,
        up=nav.up.removeprefix("./"),
    )


def _remedy(visitor: Visitor | None, code: str) -> str:
    """What somebody may do about it whom their roles do not let; empty where the refusal says it."""
    if visitor is None or visitor.person.admin or code != "forbidden":
        return ""
    names = [project.project for project in visitor.projects if "admin" in project.roles]
    if names:
        named = f"project {names[0]}" if len(names) == 1 else f"one of the projects {', '.join(names)}"
        return f"You are an admin in {named}: switch to it, at the top or in the menu, and this page opens."
    return "If you need this, ask an administrator of this site."
