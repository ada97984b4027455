"""Reads the jobs and runners that are not over once for all loops that need them."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpuyard.runners.records import Job, Runner
from gpuyard.runners.store import RunnerStore

FRESH = timedelta(seconds=5)
"""Records are good for so long, and only until this process changes anything. Another process changes them only when it
is the leader."""


@dataclass(frozen=True)
class LiveRecords:
    """Jobs and runners that are not over, as of one moment."""

    runners: tuple[Runner, ...]
    """By creation. Read before the jobs: a runner is stored before a job can get it."""
    jobs: tuple[Job, ...]
    """By the time at which they were queued."""


class LiveReader:
    """Reads and caches the records of one store. Safe to use from several threads."""

    def __init__(self, store: RunnerStore, now: Callable[[], datetime]) -> None:
        self._store, self._now = store, now
        self._lock = threading.Lock()
        self._read: tuple[object, datetime, LiveRecords] | None = None

    def records(self) -> LiveRecords:
        """Return the records, with everything that this process wrote before the call. Raises StoreError."""
        with self._lock:
            version, now = self._store.version, self._now()
            if self._read is not None:
                as_of, at, cached = self._read
                if as_of is version and timedelta(0) <= now - at < FRESH:
                    return cached
            latest = LiveRecords(tuple(self._store.runners()), tuple(self._store.jobs()))
            self._read = version, now, latest
            return latest

    def forget(self) -> None:
        """Drop the cache: another process is, or was, the leader."""
        with self._lock:
            self._read = None
