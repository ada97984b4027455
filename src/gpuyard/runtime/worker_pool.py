"""Worker pool: runs calls by name beside the loops, each name in one worker at a time."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent.futures import Executor

from gpuyard.logs.request_context import carried

LOG = logging.getLogger(__name__)


class WorkerPool:
    """Runs calls by name. While a name is busy, its object belongs to the worker alone."""

    def __init__(self, executor: Executor, done: Callable[[], None] = lambda: None) -> None:
        """`done` is called after each call, to wake the planner."""
        self._executor = executor
        self._done = done
        self._busy: set[str] = set()
        self._lock = threading.Lock()

    def busy(self) -> frozenset[str]:
        with self._lock:
            return frozenset(self._busy)

    def start(self, name: str, work: Callable[[], None]) -> bool:
        """Start a call; return False when the name is busy. An error of the call is logged: it must leave things so
        that it can be done again."""
        with self._lock:
            if name in self._busy:
                return False
            self._busy.add(name)
        try:
            self._executor.submit(carried(self._run), name, work)
        except BaseException:
            self._end(name)
            raise
        return True

    def _run(self, name: str, work: Callable[[], None]) -> None:
        try:
            work()
        except Exception as problem:  # whatever it is, the others go on, and the next look tries again
            LOG.warning("%s: %s: %s", name, type(problem).__name__, problem)
            LOG.debug("%s", name, exc_info=True)
        finally:
            self._end(name)
            self._done()

    def _end(self, name: str) -> None:
        with self._lock:
            self._busy.discard(name)

    def close(self) -> None:
        """Wait for the calls under way; no new ones are taken."""
        self._executor.shutdown(wait=True, cancel_futures=True)
