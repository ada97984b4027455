"""GitHub's REST API of webhooks and their deliveries, as a part of rest.py."""

from __future__ import annotations

import json
from functools import partial

from gpuyard.lab.github import payloads
from gpuyard.lab.github.records import HookSending
from gpuyard.lab.github.rest import MOST_PER_PAGE, PER_PAGE, Handler, Rest, number, route
from gpuyard.lab.github.wire import ForgeAnswer, ForgeRefusal, ForgeRequest

ROUTES: list[tuple[str, str, Handler]] = []
at = partial(route, routes=ROUTES)


@at("GET", "/repos/{owner}/{repo}/hooks")
@at("GET", "/orgs/{org}/hooks")
def list_hooks(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    owner, repository = rest.place(request)
    wanted = repository or owner
    rows = (
        {"id": one.id, "active": True, "events": ["workflow_job"], "config": {"url": one.url, "content_type": "json"}}
        for one in rest.forge.hooks.values()
        if one.scope.lower() == wanted.lower()
    )
    return rest.pages(request, "", rows)


def sendings(rest: Rest, request: ForgeRequest) -> list[HookSending]:
    """What was sent to the hook of a path, the newest first."""
    hooks = {one.id: one for one in rest.forge.hooks.values()}
    if "hook" in request.parts:
        owner, repository = rest.place(request)
        hook = hooks.get(number(request, "hook"))
        if hook is None or hook.scope.lower() != (repository or owner).lower():
            raise ForgeRefusal(404, "Not Found")
        wanted = {hook.id}
    else:
        rest.require_app()
        wanted = {one.id for one in hooks.values() if one.scope == "app"}
    return [one for one in reversed(rest.forge.sendings.values()) if one.hook in wanted and one.sent]


@at("GET", "/app/hook/deliveries")
@at("GET", "/orgs/{org}/hooks/{hook}/deliveries")
@at("GET", "/repos/{owner}/{repo}/hooks/{hook}/deliveries")
def list_deliveries(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    found = sendings(rest, request)
    per_page = min(number(request, "per_page", PER_PAGE), MOST_PER_PAGE) or PER_PAGE
    if cursor := request.query.get("cursor"):
        at = number(request, "cursor") if cursor.isdecimal() else 0
        found = [one for one in found if one.id < at]
    headers = {}
    if len(found) > per_page:
        found = found[:per_page]
        headers["link"] = f'<{rest.forge.url}{request.path}?per_page={per_page}&cursor={found[-1].id}>; rel="next"'
    return ForgeAnswer(200, [payloads.sending(one) for one in found], headers)


def one_sending(rest: Rest, request: ForgeRequest) -> HookSending:
    wanted = number(request, "id")
    found = next((one for one in sendings(rest, request) if one.id == wanted), None)
    if found is None:
        raise ForgeRefusal(404, "Not Found")
    return found


@at("GET", "/app/hook/deliveries/{id}")
@at("GET", "/orgs/{org}/hooks/{hook}/deliveries/{id}")
@at("GET", "/repos/{owner}/{repo}/hooks/{hook}/deliveries/{id}")
def get_delivery(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    found = one_sending(rest, request)
    more = {"request": {"payload": json.loads(found.body)}, "response": {"headers": {}, "payload": ""}}
    return ForgeAnswer(200, {**payloads.sending(found), **more})


@at("POST", "/app/hook/deliveries/{id}/attempts")
@at("POST", "/orgs/{org}/hooks/{hook}/deliveries/{id}/attempts")
@at("POST", "/repos/{owner}/{repo}/hooks/{hook}/deliveries/{id}/attempts")
def redeliver(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    rest.hooks.redeliver(one_sending(rest, request))
    return ForgeAnswer(202, {})
