"""Reads the lists of runners at GitHub, as often as the rate limit bears, and deletes registrations that belong to no
runner.

A place is a repository or an organisation of an enrolment. Places with runners of ours are read at every run, or more
rarely so that an enrolment has at most 1,000 lists an hour; others every 10 minutes. A registration is only deleted
when it has a name that this site gives, is offline and without a job, and was found so twice: a list may be older than
what was stored.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from functools import partial

from gpuyard.runners.controllers.live_records import LiveReader
from gpuyard.runners.controllers.runner_observer import RunnerObserver
from gpuyard.runners.controllers.runner_site import RunnerSite
from gpuyard.runners.github.answers import RegisteredRunner
from gpuyard.runners.github.errors import GitHubError, GitHubTrouble
from gpuyard.runners.records import RunnerState
from gpuyard.runners.store import RunnerStore
from gpuyard.runtime.worker_pool import WorkerPool

LOG = logging.getLogger(__name__)
AN_HOUR = 1_000
"""Most lists in an hour of an enrolment that has many repositories with runners."""
WITHOUT = timedelta(minutes=10)
"""Places that have none of our runners at the moment are read this often."""
PLACES = "places"
"""Key of the store's list of places where registrations were made: one per line, ``enrolment repository``."""
Place = tuple[str, str]


class Registrations:
    """The lists of one site. One look at a time, in one process."""

    def __init__(
        self,
        site: RunnerSite,
        observer: RunnerObserver,
        store: RunnerStore,
        live: LiveReader,
        workers: WorkerPool,
        now: Callable[[], datetime],
    ) -> None:
        self._site, self._observer, self._store, self._workers, self._now = site, observer, store, workers, now
        self._live = live
        self._last: dict[Place, datetime] = {}
        self._first: dict[tuple[Place, int], datetime] = {}
        """A registration that belongs to nothing -> when it was first seen so."""

    def look(self) -> None:
        """Read the lists that are due. Raises GitHubError when a place could not be read, after the others were."""
        now, names = self._now(), self._expected()
        due = {place: names.get(place, ()) for place in self._places({*names}) if self._is_due(place, names, now)}
        self._last |= dict.fromkeys(due, now)
        problems = self._observer.look_at_github(due)
        for place in due:
            self._sweep(place, now)
        if problems:
            raise GitHubError("; ".join(problems)[:1000])

    def _expected(self) -> dict[Place, list[str]]:
        """Place -> names of ours that should be registered there."""
        names_by_place: dict[Place, list[str]] = {}
        for runner in self._live.records().runners:
            if runner.state is not RunnerState.REQUESTED and runner.scope in self._observer.clients:
                names_by_place.setdefault((runner.scope, runner.repository), []).append(runner.name)
        return names_by_place

    def _places(self, now: set[Place]) -> set[Place]:
        """Return the places where registrations of ours are, or may have been left."""
        lines = {line for line in self._store.value(PLACES).split("\n") if line}
        known_places = {(scope, repository) for scope, _, repository in (line.partition(" ") for line in lines)}
        everywhere = (
            known_places
            | now
            | {(enrolment.name, enrolment.repository or "") for enrolment in self._site.runners.enrolments}
        )
        if everywhere != known_places:
            self._store.set_value(PLACES, "\n".join(sorted(" ".join(place) for place in everywhere)))
        return {place for place in everywhere if place[0] in self._observer.clients}

    def _is_due(self, place: Place, names: dict[Place, list[str]], now: datetime) -> bool:
        last = self._last.get(place)
        if last is None or last > now:
            return True
        if place not in names:
            return now - last >= WITHOUT
        mine = sum(1 for scope, _ in names if scope == place[0])
        return now - last >= timedelta(hours=1) * mine / AN_HOUR

    def _sweep(self, place: Place, now: datetime) -> None:
        """Delete what is ours, offline, without a job, and belongs to no runner, at the second look."""
        live = {runner.name for runner in self._live.records().runners}
        mine = [
            registration
            for registration in self._observer.registered.get(place, {}).values()
            if self._site.is_ours(registration.name)
            and registration.name not in live
            and not registration.online
            and not registration.busy
        ]
        keys = {(place, registration.id): registration for registration in mine}
        for key, registration in keys.items():
            if self._first.setdefault(key, now) < now:
                LOG.warning(
                    "%s: registration %s is ours and belongs to no runner: it is deleted", place[0], registration.name
                )
                self._workers.start(
                    f"registration {registration.id} of {place}", partial(self._delete, place, registration)
                )
        self._first = {key: at for key, at in self._first.items() if key[0] != place or key in keys}

    def _delete(self, place: Place, registration: RegisteredRunner) -> None:
        try:
            self._observer.clients[place[0]].delete_runner(registration.id, place[1])
        except GitHubError as error:
            if error.kind is not GitHubTrouble.CONFLICT:
                raise
