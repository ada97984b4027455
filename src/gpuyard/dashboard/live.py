"""The live feed: one task watches the inventory for all open pages, and sends each page what differs from what it
shows.

There is never a queue. Watching is a comparison of two numbers, so the feed polls: there is no callback between threads
to get wrong, and a change that was missed is seen at the next poll. A page says which version of the map it shows; from
that it gets the GPUs that changed since, or the whole map when the map's shape changed or it is too far behind. The
task runs only while pages are open.
"""

from __future__ import annotations

import asyncio
import logging
import re
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, Collection, Mapping
from contextlib import aclosing
from dataclasses import replace

from fastapi.sse import EventSourceResponse, format_sse_event
from starlette.types import Send

from gpuyard.dashboard.live_map import LiveMap
from gpuyard.dashboard.sources import Sources
from gpuyard.database.errors import StoreError
from gpuyard.health.web.health_presenter import marks_of
from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web import freshness
from gpuyard.inventory.web.presenter import Marks
from gpuyard.inventory.web.shown_servers import hidden_view
from gpuyard.web.assets import render
from gpuyard.web.connections import is_loopback
from gpuyard.web.login_throttle import places
from gpuyard.web.settings import OthersShown

LOG = logging.getLogger(__name__)
EVENT_ID = re.compile(r"([0-9a-f]{8})-([0-9]{1,15})")
"""Id of an event: the feed that sent it, and the version of the map that a page shows since."""
NOTHING = -1
"""The version of a page that shows no map, or one that is too old to be told what differs: it gets the whole map."""
MOST_BEHIND = 30
"""Versions that a page may be behind and still be told what differs."""
MOST_DRAWN = 6
"""Blocks of one map and version that are drawn and kept, besides two that always are: the whole map, and what differs
from the version before. Pages that show yet another version get the whole map: what they say of it, anybody can make
up."""
LOOK_EVERY = 0.25
"""Seconds between polls of the inventory."""
MARKS_EVERY = 2.0
"""Seconds between reads of the health of GPUs, which the database has."""
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
    """A response that ends its stream at once when the browser goes, also when it goes while something is being sent to
    it."""

    async def stream_response(self, send: Send) -> None:
        assert isinstance(self.body_iterator, AsyncGenerator)
        async with aclosing(self.body_iterator):
            await super().stream_response(send)


class LiveFeed:
    """Streams of events for open pages. Made once per app; everything but the constructor and `close` runs in the event
    loop."""

    def __init__(self, sources: Sources) -> None:
        self._sources = sources
        self._name = secrets.token_hex(4)  # versions begin anew with every process
        self._maps = {hidden: LiveMap() for hidden in (False, True)}
        """The map with all names, and that with others hidden."""
        self._drawn: dict[tuple[bool, int, int], bytes] = {}
        """(Whether others are hidden, the version that a page shows, the version that it is to show) -> the event that
        it gets; nothing when that could not be drawn. Only of the last version, and of each map MOST_DRAWN and two."""
        self._drawing = asyncio.Lock()
        self._changed = asyncio.Event()
        """Replaced by a new one after every change, so that setting it wakes whoever waits and nobody twice."""
        self._marks: Marks | None = None
        self._marks_due = 0.0
        self._pulse: freshness.Pulse | None = None
        self._pulse_block = b""
        self._watcher: asyncio.Task[None] | None = None
        self._looking = asyncio.Lock()
        self.gateways = sources.settings.trusted_gateways
        self.streams = 0
        """Pages that are open now."""
        self._of: Counter[str] = Counter()
        """Open pages of each user, place and network."""
        self.closed = False

    @property
    def version(self) -> str:
        """The version that a page made from now on shows; it may show something newer."""
        return f"{self._name}-{self._maps[False].version}"

    @property
    def full(self) -> bool:
        return self.streams >= MOST_STREAMS

    def shares(self, address: str, user_id: str) -> dict[str, int]:
        """Return the user, place and network that a page counts for, and how many pages each may have."""
        shares = {f"user {user_id}": MOST_OF_USER} if user_id else {}
        if address not in self.gateways and not is_loopback(address):
            place, network = places(address)
            shares |= {f"network {network}": MOST_OF_NETWORK, f"place {place}": MOST_OF_PLACE}
        return shares

    def exhausted(self, shares: Mapping[str, int]) -> int:
        """Return how many pages a user, place or network has that may have no more; 0 when none is at its limit."""
        return max((most for who, most in shares.items() if self._of[who] >= most), default=0)

    def close(self) -> None:
        """End all streams: the server waits for them before it stops."""
        self.closed = True
        self._changed.set()

    async def stream(
        self, shares: Collection[str] = (), hidden: bool = False, last_event_id: str = ""
    ) -> AsyncGenerator[bytes, None]:
        """Stream events for one page: what it does not show yet, then each change, then a heartbeat whenever it was
        quiet. Before them an empty block, at once: the page counts from then on. `hidden`: of the map that hides
        others; `last_event_id`: the `version` of what it shows, which anybody may have written."""
        self.streams += 1
        self._of.update(list(shares))
        try:
            if self._watcher is None:
                self._watcher = asyncio.create_task(self._watch(), name="portal-feed")
            yield b""
            await self._look()  # or the page could get a map that is older than the one it came with
            yield format_sse_event(retry=RETRY)
            version, pulse = self._version_of(last_event_id), b""
            while not self.closed:
                changed = self._changed
                block, version = await self._since(version, hidden)
                old, pulse = pulse, self._pulse_block
                due = [block] * bool(block) + [pulse] * (pulse is not old)
                for event in due:
                    for start in range(0, len(event), PIECE):
                        yield event[start : start + PIECE]
                if not due and not await _happens(changed, HEARTBEAT):
                    yield self._heartbeat()
        finally:
            self.streams -= 1
            self._of -= Counter(list(shares))  # which also forgets those that have none

    def _version_of(self, last_event_id: str) -> int:
        """NOTHING of a page that shows nothing of this feed's."""
        match = EVENT_ID.fullmatch(last_event_id)
        return int(match[2]) if match and match[1] == self._name else NOTHING

    async def _since(self, version: int, hidden: bool) -> tuple[bytes, int]:
        """Return the event for a page that shows a version of the map, and the version that it shows then. Drawn once
        for all pages that show the same."""
        async with self._drawing:
            shown = self._maps[hidden]
            if shown.view is None or version >= shown.version:
                return b"", version
            self._drawn = {
                drawn_key: block for drawn_key, block in self._drawn.items() if drawn_key[2] == shown.version
            }
            base_version = self._base_version(version, hidden)
            key = hidden, base_version, shown.version
            if key not in self._drawn:
                self._drawn[key] = await self._draw(shown, base_version)
            block = self._drawn[key]
            return (block, shown.version) if block else (b"", version)

    def _base_version(self, version: int, hidden: bool) -> int:
        """The version from which on a page that shows a map of an older one is told what differs; NOTHING: it gets the
        whole map."""
        shown = self._maps[hidden]
        if version < shown.shape or version < shown.version - MOST_BEHIND:
            return NOTHING
        if version == shown.version - 1 or (hidden, version, shown.version) in self._drawn:
            return version
        always = NOTHING, shown.version - 1
        others = sum(is_hidden == hidden and of not in always for is_hidden, of, _ in self._drawn)
        return version if others < MOST_DRAWN else NOTHING

    async def _draw(self, shown: LiveMap, version: int) -> bytes:
        try:
            # In a thread: a large map takes a tenth of a second, in which every other request would wait.
            kind, html = await asyncio.to_thread(shown.since, version, self._sources.now())
        except Exception:  # the next one may be better
            LOG.exception("version %d of the map could not be drawn", shown.version)
            return b""
        return format_sse_event(event=kind, data_str=html, id=f"{self._name}-{shown.version}")

    def _heartbeat(self) -> bytes:
        # A comment keeps proxies from closing the line. Scripts do not see comments, hence the pulse with it.
        return format_sse_event(comment="heartbeat") + self._pulse_block

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
            view, now = self._sources.inventory.latest(), self._sources.now()
            marks = await self._look_at_marks()
            old = self._maps[False]
            if view and (old.view is None or view.generation != old.view.generation or marks != self._marks):
                self._maps = await asyncio.to_thread(_advanced, self._maps, view, marks, self._sources.settings.others)
                self._marks = marks
                self._tell()
            pulse = freshness.pulse(view, self._sources.driver.statuses(), now)
            if pulse != self._pulse:
                self._pulse = pulse
                self._pulse_block = format_sse_event(event="pulse", data_str=render("pulse.html", pulse=pulse))
                self._tell()

    async def _look_at_marks(self) -> Marks | None:
        """Those of a moment ago, where the database was asked then or does not answer."""
        now = time.monotonic()
        if self._sources.health is None or now < self._marks_due:
            return self._marks
        self._marks_due = now + MARKS_EVERY
        try:
            return await asyncio.to_thread(marks_of, self._sources.health)
        except StoreError as error:
            LOG.error("how GPUs are cannot be read: %s", error)
            return self._marks

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()


def _advanced(
    maps: Mapping[bool, LiveMap], view: InventoryView, marks: Marks | None, others: OthersShown
) -> dict[bool, LiveMap]:
    """Both in the same version: a page does not say which of them it shows."""
    shown = maps[False].after(view, marks)
    if others is OthersShown.NAMES:
        return {False: shown, True: shown}
    hidden = maps[True].after(hidden_view(view, others), marks)
    return {False: shown, True: replace(hidden, version=shown.version)}


async def _happens(event: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await event.wait()
    except TimeoutError:
        return False
    return True
