"""The live feed: one task looks at the yard for all open pages, and every page gets the newest state, never a queue.

Looking is a comparison of two numbers, so the feed polls: there is no callback between threads to get wrong, and a
change that was missed is seen at the next look. The task runs only while pages are open.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from datetime import datetime

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Send

from gpuyard.keeper.yard import YardView
from gpuyard.portal import health
from gpuyard.portal.assets import render
from gpuyard.portal.connections import is_loopback
from gpuyard.portal.others import hidden_view
from gpuyard.portal.presenter import present
from gpuyard.portal.settings import OthersShown
from gpuyard.portal.sources import Sources
from gpuyard.portal.tries import places

LOG = logging.getLogger(__name__)
MAP, HIDDEN_MAP = "map", "hidden map"
"""Blocks: the map with all names, and the one where others are hidden."""
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
"""Open pages at once."""
MOST_OF_USER = 30
MOST_OF_PLACE, MOST_OF_NETWORK = 150, 300
"""When it is neither this machine nor a gateway, behind which anybody can be."""


class FeedResponse(EventSourceResponse):
    """Ends its stream at once when the browser goes, also when it goes while something is being sent to it."""

    async def stream_response(self, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncGenerator)
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


class LiveFeed:
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
        self.gateways = sources.settings.trusted_gateways
        self.streams = 0
        """Pages that are open now."""
        self._of: Counter[str] = Counter()
        """The same, of each user, place and network."""
        self.closed = False

    @property
    def full(self) -> bool:
        return self.streams >= MOST_STREAMS

    def shares(self, address: str, user_id: str) -> dict[str, int]:
        """Whom a page counts for, and how many each may have."""
        shares = {f"user {user_id}": MOST_OF_USER} if user_id else {}
        if address not in self.gateways and not is_loopback(address):
            place, network = places(address)
            shares |= {f"network {network}": MOST_OF_NETWORK, f"place {place}": MOST_OF_PLACE}
        return shares

    def exhausted(self, shares: Mapping[str, int]) -> int:
        """How many pages somebody has who may have no more; 0 when nobody is."""
        return max((most for who, most in shares.items() if self._of[who] >= most), default=0)

    def close(self) -> None:
        """End all streams: the server waits for them before it stops."""
        self.closed = True
        self._changed.set()

    async def stream(self, shares: Collection[str] = (), hidden: bool = False) -> AsyncGenerator[bytes, None]:
        """Events for one page: what is known now, then each change, then a heartbeat whenever it was quiet. Before them
        nothing, at once: the page counts from then on. `hidden`: of the map that hides others."""
        self.streams += 1
        self._of.update(list(shares))
        try:
            if self._watcher is None:
                self._watcher = asyncio.create_task(self._watch(), name="portal-feed")
            yield b""
            await self._look()  # or the page could get a map that is older than the one it came with
            yield format_sse_event(retry=RETRY)
            seen = 0
            while not self.closed:
                changed = self._changed
                other = MAP if hidden else HIDDEN_MAP
                due = [block for kind, (turn, block) in self._blocks.items() if turn > seen and kind != other]
                seen = self._turn
                for block in due:
                    for start in range(0, len(block), PIECE):
                        yield block[start : start + PIECE]
                if not due and not await _happens(changed, HEARTBEAT):
                    yield self._heartbeat()
        finally:
            self.streams -= 1
            self._of -= Counter(list(shares))  # which also forgets those that have none

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
                    maps = await asyncio.to_thread(_maps, view, now, self._sources.settings.others)
                except Exception:  # told once for each generation; the next one may be better
                    LOG.exception("generation %d of the map could not be rendered", view.generation)
                else:
                    for kind, html in maps.items():
                        self._say(kind, html, str(view.generation), event=MAP)
            self._view = view
            pulse = health.pulse(view, self._sources.driver.statuses(), now)
            if pulse != self._pulse:
                self._pulse = pulse
                self._say("pulse", render("pulse.html", pulse=pulse))

    def _say(self, kind: str, html: str, id: str | None = None, event: str = "") -> None:
        self._turn += 1
        self._blocks.pop(kind, None)  # so that blocks stay in the order in which they were made
        self._blocks[kind] = self._turn, format_sse_event(event=event or kind, data_str=html, id=id)
        self._changed.set()
        self._changed = asyncio.Event()


def _maps(view: YardView, now: datetime, others: OthersShown) -> dict[str, str]:
    hidden = {} if others is OthersShown.NAMES else {HIDDEN_MAP: _map(hidden_view(view, others), now)}
    return {MAP: _map(view, now), **hidden}


def _map(view: YardView, now: datetime) -> str:
    return render("map.html", page=present(view, now))


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
