"""Runs control loops, each in a thread of its own, and reports the outcome of each one's last run.

A loop re-reads the world and converges; it keeps nothing that a later run would need to be right. It wakes by its
period or early by a signal, and losing every signal costs time, never truth. A run that fails is reported and tried
again, later and later up to BACKOFF_LIMIT, and never ends the loop.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic

from gpuyard.logs.request_context import RequestContext, new_request_id, working_for
from gpuyard.model.backoff import backoff

LOG = logging.getLogger(__name__)
JUMP = 5.0
"""Seconds by which the clock must differ from a steady one to have jumped. More than it is slewed."""
STUCK = 15 * 60.0
"""Seconds after which a run is taken for one that never ends. Each call in it gives up after a minute or two."""
BACKOFF_LIMIT = 30.0
"""The longest pause, in seconds, before a failed run is tried again."""


@dataclass(frozen=True)
class LoopStatus:
    """The status of a loop, as an operator sees it."""

    name: str
    description: str
    period: float
    """Seconds between the starts of two runs that go well."""
    essential: bool = False
    """Whether the portal cannot be relied on without it: what it shows or promises is not true any more."""
    iterations: int = 0
    failures: int = 0
    """Runs that failed since the last one that went well."""
    last_success: datetime | None = None
    """Time of the last good run, UTC."""
    last_seconds: float = 0.0
    last_reason: str = ""
    """Why the last run began: ``timer``, or the reason of the signal."""
    error: str = ""
    """Error of the last run; empty after one that went well."""
    age: float | None = None
    """Seconds since the last good run by a steady clock."""
    jump: float = 0.0
    """Seconds by which the clock has jumped since the last good run; negative: back. What follows from the time is
    planned anew by the next run."""


class Loop:
    """A named function that is run again and again."""

    def __init__(
        self,
        name: str,
        description: str,
        period: float,
        run: Callable[[], float | None],
        rest: float = 0.0,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
        steady: Callable[[], float] = monotonic,
        halt: Callable[[], None] = lambda: None,
        essential: bool = False,
    ) -> None:
        """`period` in seconds; `rest`: pause at least this many times as long as the last run took. `run` may return
        in how many seconds another run is known to help. `now` is UTC and may jump; `steady` only goes forward. `halt`
        is called by another thread when the loops are to end: it ends what a run waits for. `essential`: the portal is
        not ready while this loop is late. A loop that asks a service outside of the cloud (GitHub, a mail server) never
        is, or that service's outage would take bookings down with it."""
        self._run = run
        self.halt = halt
        self._rest = rest
        self._now, self._steady = now, steady
        self._mark = now(), steady()
        """The same moment by both clocks."""
        self._good: float | None = None
        self._again: float | None = None
        self._wake = threading.Event()
        self._reason = "start"
        self._lock = threading.Lock()
        self._began: float | None = None
        self._status = LoopStatus(name, description, period, essential)

    @property
    def running(self) -> float:
        """Seconds since the present run began; 0 between two."""
        began = self._began
        return 0.0 if began is None else self._steady() - began

    @property
    def status(self) -> LoopStatus:
        with self._lock:
            age = None if self._good is None else self._steady() - self._good
            return replace(self._status, age=age, jump=self._jump())

    def _jump(self) -> float:
        wall, steady = self._mark
        jump = (self._now() - wall).total_seconds() - (self._steady() - steady)
        return jump if abs(jump) > JUMP else 0.0

    def wake(self, reason: str) -> None:
        """Run soon instead of at the end of the period."""
        self._reason = reason
        self._wake.set()

    def run_once(self, reason: str) -> bool:
        """Run once, and record the outcome in the status. Return False when it failed."""
        self._began = self._steady()
        try:
            with working_for(RequestContext(new_request_id(), self._status.name)):
                return self._run_once(reason)
        finally:
            self._began = None

    def _run_once(self, reason: str) -> bool:
        began, jump, mark = self._steady(), self._jump(), (self._now(), self._steady())
        error = ""
        if jump:
            LOG.warning("loop %s: %s; planning anew", self.status.name, jumped(jump))
        try:
            self._again = self._run()
        except Exception as problem:  # whatever it is, the loop goes on and the status tells
            error = f"{type(problem).__name__}: {problem}"
            LOG.warning("loop %s failed: %s", self.status.name, error)
            LOG.debug("loop %s", self.status.name, exc_info=True)
        with self._lock:
            old = self._status
            if not error:
                self._mark, self._good = mark, self._steady()
            self._status = replace(
                old,
                iterations=old.iterations + 1,
                failures=old.failures + 1 if error else 0,
                last_success=old.last_success if error else self._now(),
                last_seconds=self._steady() - began,
                last_reason=reason,
                error=error,
            )
        return not error

    def delay(self) -> float:
        """Return the seconds until the next run: what is left of the period; after failures the backoff, doubled for
        each in a row."""
        status = self.status
        usual = max(0.0, status.period - status.last_seconds, status.last_seconds * self._rest)
        if self._again is not None and not status.failures:
            usual = max(0.0, min(usual, self._again))
        if not status.failures:
            return usual
        return min(BACKOFF_LIMIT, max(usual, backoff(status.period, status.failures + 1, BACKOFF_LIMIT)))

    def repeat(self, stop: threading.Event) -> None:
        """Run until stopped; returns within one run after the event is set and the loop is woken."""
        reason = self._reason
        while not stop.is_set():
            self.run_once(reason)
            woken = self._wake.wait(self.delay())
            self._wake.clear()
            reason = self._reason if woken else "timer"


def jumped(seconds: float) -> str:
    """Return the words for a jump of the clock: ``the clock went back by 2:00:00``."""
    return f"the clock went {'back' if seconds < 0 else 'forward'} by {timedelta(seconds=round(abs(seconds)))}"


class Driver:
    """All loops of a process."""

    def __init__(self) -> None:
        self.loops: list[Loop] = []
        self._threads: list[threading.Thread] = []
        self._stop = threading.Event()

    def register(self, loop: Loop) -> Loop:
        self.loops.append(loop)
        return loop

    def statuses(self) -> list[LoopStatus]:
        return [loop.status for loop in self.loops]

    def start(self) -> None:
        for loop in self.loops:
            thread = threading.Thread(target=loop.repeat, args=(self._stop,), name=loop.status.name, daemon=True)
            thread.start()
            self._threads.append(thread)

    def stuck(self, longest: float = STUCK) -> list[str]:
        """Return the names of the loops that do not go on any more: a run of theirs lasts for longer than `longest`
        seconds, or their thread has ended."""
        if self._stop.is_set():
            return []
        ended = {thread.name for thread in self._threads if not thread.is_alive()}
        return [loop.status.name for loop in self.loops if loop.status.name in ended or loop.running > longest]

    def stop(self, timeout: float = 10.0) -> list[str]:
        """Let running loops finish their run, for at most `timeout` seconds in all; return the names of those that
        have not."""
        self._stop.set()
        for loop in self.loops:
            loop.wake("stop")
            loop.halt()
        deadline = monotonic() + timeout
        for thread in self._threads:
            thread.join(max(0.0, deadline - monotonic()))
        return [thread.name for thread in self._threads if thread.is_alive()]
