"""Groups writes into shared transactions: what comes while one is written goes into the next one together."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")
MOST = 1000
"""Things that one transaction writes."""


class GroupCommit(Generic[T]):
    """A queue of things to write. Everything runs in one event loop, but for `write`, which runs in a thread, one call
    at a time."""

    def __init__(self, write: Callable[[Sequence[T]], None]) -> None:
        self._write = write
        self._waiting: list[tuple[T, asyncio.Future[None]]] = []
        self._writer: asyncio.Task[None] | None = None

    @property
    def waiting(self) -> int:
        """Number of things that are not being written yet."""
        return len(self._waiting)

    async def add(self, thing: T) -> None:
        """Return once the thing is written. Raises what `write` raises, to all who were in that call."""
        written: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((thing, written))
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all(), name="group-commit")
        await written

    async def _write_all(self) -> None:
        try:
            while self._waiting:
                batch, self._waiting = self._waiting[:MOST], self._waiting[MOST:]
                error: BaseException | None = None
                try:
                    await asyncio.to_thread(self._write, [thing for thing, _ in batch])
                except Exception as raised:  # whose it is, is for those who wait to say
                    error = raised
                for _, written in batch:
                    if written.done():  # who waited has gone
                        continue
                    if error is None:
                        written.set_result(None)
                    else:
                        written.set_exception(error)
        finally:
            self._writer = None
