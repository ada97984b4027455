"""The live feed: one task looks at the yard for all open pages, and every page gets the newest state, never a queue.

Looking is a comparison of two numbers, so the feed polls: there is no callback between threads to get wrong, and a
change that was missed is seen at the next look. The task runs only while pages are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Send

from gpuyard.keeper.yard import YardView
from gpuyard.portal import health
from gpuyard.portal.assets import render
from gpuyard.portal.presenter import present
from gpuyard.portal.sources import Sources

LOG = logging.getLogger(__name__)
LOOK_EVERY = 0.25
"""Seconds between looks at the yard."""
HEARTBEAT = 15.0
"""Seconds of silence after which a page is told that the line is alive. live.js gives up after three of them."""
RETRY = 2000
"""Milliseconds that a browser waits before it connects again."""
PIECE = 64 * 1024
"""Bytes that are handed to the server at once. It waits for a slow page between pieces, so that a large map is in
memory once and not once for every page."""
MOST_STREAMS = 500
"""Open pages at once: each holds a file descriptor, and a process has 1024 of them by default."""


class FeedResponse(EventSourceResponse):
    """Ends its stream at once when the browser goes, also when it goes while something is being sent to it."""

    async def stream_response(self, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncGenerator)
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


class Feed:
    """Made once per app; everything but the constructor and `close` runs in the event loop."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._blocks: dict[str, tuple[int, bytes]] = {}
        """Kind of event -> the turn in which it was made, and the event as it goes over the wire."""
        self._turn = 0
        self._changed = asyncio.Event()
        """Replaced by a new one after every change, so that setting it wakes whoever waits and nobody twice."""
        self._view: YardView | None = None
        self._pulse: health.Pulse | None = None
        self._watcher: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self.streams = 0
        """Pages that are open now."""
        self.closed = False

    @property
    def full(self) -> bool:
        return self.streams >= MOST_STREAMS

    def close(self) -> None:
        """End all streams: the server waits for them before it stops."""
        self.closed = True
        self._changed.set()

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Events for one page: what is known now, then each change, then a heartbeat whenever it was quiet."""
        self.streams += 1
        try:
            if self._watcher is None:
                self._watcher = asyncio.create_task(self._watch(), name="portal-feed")
            await self._look()  # or the page could get a map that is older than the one it came with
            yield format_sse_event(retry=RETRY)
            seen = 0
            while not self.closed:
                changed = self._changed
                due = [block for turn, block in self._blocks.values() if turn > seen]
                seen = self._turn
                for block in due:
                    for start in range(0, len(block), PIECE):
                        yield block[start : start + PIECE]
                if not due and not await _happens(changed, HEARTBEAT):
                    yield self._heartbeat()
        finally:
            self.streams -= 1

    def _heartbeat(self) -> bytes:
        # A comment keeps proxies from closing the line. Scripts do not see comments, hence the pulse with it.
        _, block = self._blocks.get("pulse", (0, b""))
        return format_sse_event(comment="heartbeat") + block

    async def _watch(self) -> None:
        try:
            while self.streams and not self.closed:
                await self._look()
                await asyncio.sleep(LOOK_EVERY)
        finally:
            self._watcher = None

    async def _look(self) -> None:
        """Tell what differs from the last look."""
        async with self._looking:
            view, now = self._sources.yard.latest(), self._sources.now()
            if view and (self._view is None or view.generation != self._view.generation):
                try:
                    # In a thread: a large map takes a tenth of a second, in which every other request would wait.
                    html = await asyncio.to_thread(_map, view, now)
                except Exception:  # told once for each generation; the next one may be better
                    LOG.exception("generation %d of the map could not be rendered", view.generation)
                else:
                    self._say("map", html, str(view.generation))
            self._view = view
            pulse = health.pulse(view, self._sources.driver.statuses(), now)
            if pulse != self._pulse:
                self._pulse = pulse
                self._say("pulse", render("pulse.html", pulse=pulse))

    def _say(self, kind: str, html: str, id: str | None = None) -> None:
        self._turn += 1
        self._blocks.pop(kind, None)  # so that blocks stay in the order in which they were made
        self._blocks[kind] = self._turn, format_sse_event(event=kind, data_str=html, id=id)
        self._changed.set()
        self._changed = asyncio.Event()


def _map(view: YardView, now: datetime) -> str:
    return render("map.html", page=present(view, now))


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
