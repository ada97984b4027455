"""Answers GitHub's REST API of webhooks and their deliveries, as a part of rest.py."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from itertools import islice
from urllib.parse import urlencode

from gpuyard_lab.github import payloads
from gpuyard_lab.github.records import HookSending
from gpuyard_lab.github.rest import MOST_PER_PAGE, PER_PAGE, Handler, Rest, number, route
from gpuyard_lab.github.wire import ForgeAnswer, ForgeRefusal, ForgeRequest

STATUSES = {"success": range(200, 400), "failure": range(400, 600)}
"""Status codes by the filter of deliveries: a receiver that gave no answer (0) is in neither."""
ROUTES: list[tuple[str, str, Handler]] = []
at = partial(route, routes=ROUTES)


@at("GET", "/repos/{owner}/{repo}/hooks")
@at("GET", "/orgs/{org}/hooks")
def list_hooks(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    owner, repository = rest.place(request)
    scope = repository or owner
    rows = (
        {"id": hook.id, "active": True, "events": ["workflow_job"], "config": {"url": hook.url, "content_type": "json"}}
        for hook in rest.forge.hooks.values()
        if hook.scope.lower() == scope.lower()
    )
    return rest.pages(request, "", rows)


def sendings(rest: Rest, request: ForgeRequest) -> Iterator[HookSending]:
    """Return the deliveries of the hook of a path, the newest first, for as long as they are kept."""
    hooks = {hook.id: hook for hook in rest.forge.hooks.values()}
    if "hook" in request.parts:
        owner, repository = rest.place(request)
        hook = hooks.get(number(request, "hook"))
        if hook is None or hook.scope.lower() != (repository or owner).lower():
            raise ForgeRefusal(404, "Not Found")
        hook_ids = {hook.id}
    else:
        rest.require_app()
        hook_ids = {hook.id for hook in hooks.values() if hook.scope == "app"}
    oldest = rest.forge.now() - rest.forge.settings.deliveries_kept
    return (
        sending
        for sending in reversed(rest.forge.sendings.values())
        if sending.hook in hook_ids and sending.sent and sending.sent >= oldest
    )


@at("GET", "/app/hook/deliveries")
@at("GET", "/orgs/{org}/hooks/{hook}/deliveries")
@at("GET", "/repos/{owner}/{repo}/hooks/{hook}/deliveries")
def list_deliveries(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    """List deliveries. The cursor of a page is opaque: the number of its first delivery, after ``v1_``."""
    per_page = min(number(request, "per_page", PER_PAGE), MOST_PER_PAGE) or PER_PAGE
    cursor = request.query.get("cursor", "")
    first = cursor.removeprefix("v1_")
    if cursor and not (cursor.startswith("v1_") and first.isdecimal() and len(first) < 19):
        raise ForgeRefusal(422, "Invalid cursor")
    deliveries = (sending for sending in sendings(rest, request) if not cursor or sending.id <= int(first))
    if status := request.query.get("status"):
        if status not in STATUSES:
            raise ForgeRefusal(422, "Validation Failed")
        deliveries = (delivery for delivery in deliveries if delivery.status_code in STATUSES[status])
    page = [*islice(deliveries, per_page + 1)]
    headers = {}
    if len(page) > per_page:
        query = urlencode({**request.query, "per_page": per_page, "cursor": f"v1_{page.pop().id}"})
        headers["link"] = f'<{rest.forge.url}{request.path}?{query}>; rel="next"'
    return ForgeAnswer(200, [payloads.sending(delivery) for delivery in page], headers)


def one_sending(rest: Rest, request: ForgeRequest) -> HookSending:
    delivery_id = number(request, "id")
    delivery = next((sending for sending in sendings(rest, request) if sending.id == delivery_id), None)
    if delivery is None:
        raise ForgeRefusal(404, "Not Found")
    return delivery


@at("GET", "/app/hook/deliveries/{id}")
@at("GET", "/orgs/{org}/hooks/{hook}/deliveries/{id}")
@at("GET", "/repos/{owner}/{repo}/hooks/{hook}/deliveries/{id}")
def get_delivery(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    delivery = one_sending(rest, request)
    more = {"request": {"payload": json.loads(delivery.body)}, "response": {"headers": {}, "payload": ""}}
    return ForgeAnswer(200, {**payloads.sending(delivery), **more})


@at("POST", "/app/hook/deliveries/{id}/attempts")
@at("POST", "/orgs/{org}/hooks/{hook}/deliveries/{id}/attempts")
@at("POST", "/repos/{owner}/{repo}/hooks/{hook}/deliveries/{id}/attempts")
def redeliver(rest: Rest, request: ForgeRequest) -> ForgeAnswer:
    rest.hooks.redeliver(one_sending(rest, request))
    return ForgeAnswer(202, {})
