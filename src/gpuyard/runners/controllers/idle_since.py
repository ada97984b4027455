"""Stores since when runners are spare, so that a restart does not give each of them its two minutes again."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from contextlib import suppress
from datetime import datetime

from gpuyard.database.times import moment, seconds
from gpuyard.runners.store import RunnerStore

SPARE = "spare"
"""Key of the store's value: a JSON object, name of runner -> seconds since 1970."""


class SpareTimes:
    """The spare times of one store. For the process that leads runners."""

    def __init__(self, store: RunnerStore) -> None:
        self._store = store
        self._stored: dict[str, datetime] | None = None
        """What the store has; None when this process does not know."""

    def known(self) -> Mapping[str, datetime]:
        """Return name of runner -> since when no job needs it. Raises StoreError."""
        if self._stored is None:
            self._stored = {}
            with suppress(ValueError, AttributeError, TypeError):  # not ours: each is spare as of now
                entries = json.loads(self._store.value(SPARE) or "{}").items()
                self._stored = {name: moment(at) for name, at in entries if isinstance(at, int)}
        return self._stored

    def keep(self, since: Mapping[str, datetime], runners: Collection[str]) -> None:
        """Store what a plan says (`RunnerPlan.since`) of these runners, where it is new. Raises StoreError."""
        spare = {name: moment(seconds(at)) for name, at in since.items() if name in runners}
        if spare != self.known():
            text = json.dumps({name: seconds(at) for name, at in sorted(spare.items())}) if spare else ""
            self._store.set_value(SPARE, text)
            self._stored = spare

    def forget(self) -> None:
        """Drop what is known of the store: another process is, or was, the leader."""
        self._stored = None
