"""Tracks the event streams that are open in this process, by session and user, so that a log-out ends them at once."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class OpenStreams:
    """Open streams of one process. Safe to use from several threads. Another process ends its streams when it checks
    them next."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._checks: dict[str, set[tuple[asyncio.AbstractEventLoop, asyncio.Event]]] = {}

    @contextmanager
    def opened(self, *keys: str) -> Iterator[asyncio.Event]:
        """Register a stream under the digest of its session and the id of its user. The event is set when it is to be
        checked whether it may go on."""
        check = asyncio.get_running_loop(), asyncio.Event()
        with self._lock:
            for key in keys:
                self._checks.setdefault(key, set()).add(check)
        try:
            yield check[1]
        finally:
            with self._lock:
                for key in keys:
                    self._checks[key].discard(check)
                    if not self._checks[key]:
                        del self._checks[key]

    def check(self, key: str) -> None:
        """Have the streams of a session or user checked now."""
        with self._lock:
            for loop, event in self._checks.get(key, ()):
                loop.call_soon_threadsafe(event.set)
