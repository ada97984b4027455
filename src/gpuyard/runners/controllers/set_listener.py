"""Listens to one runner scale set by long poll: stores each message's content, then acknowledges it.

After anything that may have lost a message the session is opened anew, and its statistics say how many jobs GitHub has
given the set; the plan makes runners for those that were never reported (docs/adr/0022).
"""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from time import monotonic

from gpuyard.runners.controllers.job_repository import JobRepository
from gpuyard.runners.github.answers import RunnerSet
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble, PollEndedError
from gpuyard.runners.github.scale_sets import ScaleSetClient, SetMessage, SetSession, job_updates
from gpuyard.runners.records import ScaleSetState
from gpuyard.runners.store import RunnerStore

LOG = logging.getLogger(__name__)
APART = 1.0
"""Seconds from the beginning of an interrupted poll to the next one: the set's capacity may go to and fro."""


@dataclass(frozen=True)
class SetPlace:
    """The place of a scale set at GitHub."""

    scope: str
    """Its enrolment."""
    label: str
    group: str
    """The runner group, by name."""
    url: str
    """Address of GitHub, for the ids and links of jobs."""


@dataclass(frozen=True)
class SetPlan:
    """Callbacks between the runners' controller and the listener of a scale set."""

    capacity: Callable[[], int]
    """Jobs that the set can have now."""
    may: Callable[[], bool]
    """Returns whether this process is the leader of runners."""
    known: Callable[[int], None]
    """Called with GitHub's number of the set."""


class SetListener:
    """The listener of one scale set. `run` in a loop; `capacity_changed` and `stop` from any thread."""

    def __init__(
        self,
        place: SetPlace,
        client: ScaleSetClient,
        store: RunnerStore,
        book: JobRepository,
        plan: SetPlan,
        now: Callable[[], datetime],
        steady: Callable[[], float] = monotonic,
    ) -> None:
        """`steady`: seconds that only go forward."""
        self._place, self._plan, self._now = place, plan, now
        self._client, self._store, self._book = client, store, book
        self._session: SetSession | None = None
        self._set: RunnerSet | None = None
        self._stopped = False
        self._steady = steady
        self._lock = threading.Lock()
        self._said, self._full = 0, True
        """The capacity that the last poll went out with, and whether the set has as many jobs."""

    def run(self) -> float | None:
        """Open a session, or poll once, for up to a minute, and process the message. Raises GitHubError."""
        if self._stopped or not self._plan.may():
            return None if self._stopped else 1.0
        began = self._steady()
        try:
            session = self._session
            if session is None:  # a run of its own: that we listen is known before the first poll is over
                self._open()
                return 0.0
            state = self._state()
            message = session.poll(state.last_message, self._say(state))
            if message is not None:
                self._take(session, state, message)
            else:
                self._heard_nothing(state)
        except PollEndedError:
            return self._until_next(began)
        except GitHubError as error:
            self._lost(error)
            raise
        return 0.0

    def _heard_nothing(self, state: ScaleSetState) -> None:
        """Note that GitHub answered. A job beyond the set's capacity brings no message, nor does its end; so GitHub is
        asked how many there are when it may keep some back, or said that it did."""
        new = replace(state, seen=self._now(), error="")
        if (self._full or state.waiting) and self._set is not None:
            try:
                numbers = self._client.set_of(self._set.id).statistics
            except GitHubError as error:  # of the session nothing is lost
                LOG.warning("scale set %s: its numbers of jobs are not known: %s", self._place.label, error)
            else:
                new = replace(new, assigned=numbers.assigned, waiting=numbers.available)
        if (new.assigned, new.waiting) == (state.assigned, state.waiting):
            self._store.put_message(new)
        else:
            self._book.message(new, [])  # which wakes who plans

    def capacity_changed(self) -> None:
        """Interrupt a poll that carries a capacity by which GitHub would now give too little or too much: it would be
        held for up to 50 s."""
        with self._lock:
            now, session = max(0, self._plan.capacity()), self._session
            if session is not None and (now < self._said or (now > self._said and self._full)):
                session.interrupt()

    def _say(self, state: ScaleSetState) -> int:
        """The capacity for the next poll. Under the lock, so that no change after it is missed."""
        with self._lock:
            self._said = max(0, self._plan.capacity())
            self._full = self._said <= state.assigned
            return self._said

    def _until_next(self, began: float) -> float | None:
        return None if self._stopped else max(0.0, APART - (self._steady() - began))

    def stop(self) -> None:
        """End a poll that is under way, and the session."""
        self._stopped = True
        session = self._session
        if session is None:
            return
        session.stop()
        try:
            session.close()
        except GitHubError as error:
            LOG.info("scale set %s: its session stays open at GitHub: %s", self._place.label, error)

    def _open(self) -> SetSession:
        self._set = self._client.ensure(self._place.label, self._place.group)
        self._plan.known(self._set.id)
        session = self._begin(self._set.id)
        # From the first message that is not acknowledged: whether numbers go on in another session is not documented,
        # and what is written down already changes nothing.
        numbers = session.statistics
        state = replace(
            self._state(), id=self._set.id, last_message=0, assigned=numbers.assigned, waiting=numbers.available
        )
        self._book.message(replace(state, seen=self._now(), error=""), [])
        self._session = session
        return session

    def _begin(self, number: int) -> SetSession:
        """A scale set has one session at a time. One that a killed process has left open would last for minutes."""
        key, owner = f"session/{self._place.scope}/{self._place.label}", f"gpuyard-{socket.gethostname()}"[:60]
        try:
            session = self._client.open(number, owner)
        except GitHubError as error:
            left = self._store.value(key)
            if error.kind is not GitHubTrouble.CONFLICT or not left:
                raise
            self._client.end_session(number, left)
            session = self._client.open(number, owner)
        self._store.set_value(key, session.id)
        return session

    def _take(self, session: SetSession, state: ScaleSetState, message: SetMessage) -> None:
        """Jobs written down, what is available acquired, the message's number written down, acknowledged: after a kill
        anywhere in between the message comes again."""
        assert self._set is not None
        numbers = message.statistics
        updates = job_updates(message, self._set, self._place.scope, self._place.url)
        done = replace(
            state, last_message=message.id, assigned=numbers.assigned, waiting=numbers.available, seen=self._now(),
            error="",
        )  # fmt: skip
        offered = message.available  # GitHub offers no more than the capacity that it was told, and offers each once
        self._book.message(replace(done, last_message=state.last_message) if offered else done, updates)
        if offered:
            session.acquire(offered)
            self._store.put_message(done)
        session.acknowledge(message.id)

    def _state(self) -> ScaleSetState:
        for state in self._store.scale_sets():
            if (state.scope, state.name) == (self._place.scope, self._place.label):
                return state
        return ScaleSetState(self._place.scope, self._place.label)

    def _lost(self, error: GitHubError) -> None:
        """Begin anew the next time."""
        session, self._session = self._session, None
        self._store.put_message(replace(self._state(), error=str(error)[:500]))
        if session is not None and error.kind is not GitHubTrouble.UNAUTHORIZED:
            try:
                session.close()
            except GitHubError:
                LOG.debug("scale set %s: its session could not be ended", self._place.label)
