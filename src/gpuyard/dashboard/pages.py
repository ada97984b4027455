"""The map, its live feed, and the static files of all pages."""

from __future__ import annotations

from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse, Response

from gpuyard.dashboard.live import FeedResponse, LiveFeed
from gpuyard.dashboard.sources import Sources
from gpuyard.health.web.health_presenter import marks_of
from gpuyard.inventory.web import freshness
from gpuyard.inventory.web.presenter import LEGEND, present
from gpuyard.inventory.web.shown_servers import hidden_view
from gpuyard.web.assets import assets, render
from gpuyard.web.gateway import client_address
from gpuyard.web.navigation import navigation
from gpuyard.web.people import find_visitor
from gpuyard.web.problems import Refusal
from gpuyard.web.visibility import hides


def install(app: FastAPI, sources: Sources, feed: LiveFeed) -> None:
    @app.get("/", include_in_schema=False)
    def gpu_map(request: Request) -> HTMLResponse:
        map_version = feed.version  # before anything is read: what changes from here on, the feed will tell
        view, now = sources.inventory.latest(), sources.now()
        if view and hides(sources.settings.others, find_visitor(request)):
            view = hidden_view(view, sources.settings.others)
        html = render(
            "page.html",
            site=sources.site_name,
            page=present(view, now, marks_of(sources.health)) if view else None,
            pulse=freshness.pulse(view, sources.driver.statuses(), now),
            legend=LEGEND,
            map_version=map_version,
            nav=navigation(request),
        )
        return HTMLResponse(html)

    @app.get("/events", include_in_schema=False)
    async def events(request: Request, since: Annotated[str, Query(max_length=100)] = "") -> Response:
        visitor = find_visitor(request)
        shares = feed.shares(client_address(request, feed.gateways), visitor.person.user_id if visitor else "")
        if feed.full:
            raise Refusal(503, "too_many_pages", "Too many pages are open; try again later.", retry_after=30)
        if most := feed.exhausted(shares):
            text = f"You have {most} pages open; close some, and load this one again."
            raise Refusal(429, "too_many_pages", text, retry_after=30)
        last_event_id = (
            request.headers.get("last-event-id") or since
        )  # a browser that connects again says how far it got
        stream = feed.stream(shares, hides(sources.settings.others, visitor), last_event_id)
        await anext(stream)  # or many that ask at once would all be let in before the first one counts
        # Proxies that collect a response before they pass it on would make the feed useless; nginx heeds the header.
        return FeedResponse(stream, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})

    @app.get("/static/{name}", include_in_schema=False)
    def static(name: str) -> Response:
        asset = assets().get(name)
        if asset is None:
            raise Refusal(404, "not_found", f"There is nothing at /static/{name}.")
        # The pages name a build in the address, so this content never changes there.
        headers = {"Cache-Control": "public, max-age=31536000, immutable"}
        return Response(asset.content, media_type=asset.media_type, headers=headers)
