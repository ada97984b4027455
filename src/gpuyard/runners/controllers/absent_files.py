"""Remembers which repositories have no `.cirun.yml`.

GitHub counts every 404 against the limit: it has no ETag to ask by. An organisation has thousands of repositories whose
jobs are for other people's runners, and each of those jobs raises the question again. So the answer is remembered for a
job's labels: a workflow that begins to ask for a runner of ours has labels that were not asked for before, and these
are not believed to be in vain.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpuyard.runners.cirun.labels import bare, meant_for_cirun

BY_LABELS = timedelta(hours=1)
"""Time for which a file is taken to be absent for jobs with labels that were asked about before."""
BY_NAME = timedelta(minutes=10)
"""The same for a question that no job raises."""
MOST_REPOSITORIES = 30_000
MOST_LABELS = 10
"""Sets of labels that are remembered of one repository."""


@dataclass
class _Absence:
    at: datetime
    labels: set[frozenset[str]] = field(default_factory=set)


class AbsentFiles:
    """The absent files of all enrolments; those that were confirmed the longest ago are forgotten first.
    Thread-safe."""

    def __init__(self, now: Callable[[], datetime]) -> None:
        self._now = now
        self._absences: OrderedDict[tuple[str, str], _Absence] = OrderedDict()
        self._lock = threading.Lock()

    def is_absent(self, scope: str, repository: str, labels: Sequence[str]) -> bool:
        """Return whether the file need not be asked for again. `labels`: of the job that raises the question, or none.
        Labels that begin with ``cirun-`` say that there should be a file: for those it is always asked for."""
        with self._lock:
            absence = self._absences.get((scope, repository.lower()))
            if absence is None:
                return False
            age = self._now() - absence.at
            if not labels:
                return timedelta(0) <= age < BY_NAME
            return timedelta(0) <= age < BY_LABELS and not meant_for_cirun(labels) and _key(labels) in absence.labels

    def note(self, scope: str, repository: str, labels: Sequence[str], absent: bool) -> None:
        """Remember what GitHub has just said about a file."""
        key = scope, repository.lower()
        with self._lock:
            absence = self._absences.pop(key, None)
            if not absent:
                return
            absence = absence or _Absence(self._now())
            absence.at = self._now()
            if len(absence.labels) >= MOST_LABELS:
                absence.labels.clear()
            if labels:
                absence.labels.add(_key(labels))
            self._absences[key] = absence
            while len(self._absences) > MOST_REPOSITORIES:
                self._absences.popitem(last=False)


def _key(labels: Sequence[str]) -> frozenset[str]:
    return frozenset(bare(label) for label in labels)
