"""Matches queued jobs with the runners that there are already. Pure.

GitHub gives a job to any runner that may have it, not to the one that was made for it. So each runner counts for one
job, and as many jobs as possible have one. A job for which a runner was made keeps one; where runners are too few for
the others, these come in the order of their turns.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from gpuyard.runners.records import Job, Runner


def serves(runner: Runner, job: Job) -> bool:
    """Return whether GitHub may give the job to the runner. Letter case does not count there."""
    if (runner.scope, runner.scale_set) != (job.scope, job.scale_set):
        return False
    if runner.repository and runner.repository.lower() != job.repository.lower():
        return False
    return bool(job.scale_set) or _lower(job.labels) <= _lower(runner.labels)


def match(jobs: Sequence[Job], runners: Iterable[Runner]) -> dict[str, Runner]:
    """Return id of job -> runner. `jobs` come in the order of their turns: where runners are too few, the first have
    them."""
    return Matching(sorted(runners, key=lambda runner: (runner.created, runner.name))).of(jobs)


class Matching:
    """Bipartite matching by augmenting paths, with the runners of each label at hand: most jobs have a label of their
    own kind."""

    def __init__(self, runners: Sequence[Runner]) -> None:
        self._runners = runners
        self._labels = [_lower(runner.labels) for runner in runners]
        self._by_label: dict[tuple[str, str], list[int]] = defaultdict(list)
        self._by_set: dict[tuple[str, str], list[int]] = defaultdict(list)
        for place, runner in enumerate(runners):
            self._by_set[runner.scope, runner.scale_set].append(place)
            for label in self._labels[place] if not runner.scale_set else ():
                self._by_label[runner.scope, label].append(place)
        self._has: dict[int, Job] = {}
        self._able: dict[object, list[int]] = {}
        self._hopeless: set[object] = set()

    def of(self, jobs: Sequence[Job]) -> dict[str, Runner]:
        if not self._runners:
            return {}
        jobs_by_id = {job.id: job for job in jobs}
        matched = set()
        for place, runner in enumerate(self._runners):
            own = jobs_by_id.get(runner.for_job)
            if own is not None and own.id not in matched and serves(runner, own):
                self._has[place] = own
                matched.add(own.id)
        for job in jobs:
            kind = _kind(job)
            if job.id not in matched and kind not in self._hopeless and not self._find(job, set()):
                self._hopeless.add(kind)  # nor will another of its kind ever find one
        return {job.id: self._runners[place] for place, job in self._has.items()}

    def _find(self, job: Job, visited: set[int]) -> bool:
        """Give the job a runner; whoever has that gets another one."""
        path: list[tuple[Job, list[int], int]] = [(job, self._candidates(job), 0)]
        while path:
            wanting, places, at = path.pop()
            if at == len(places):
                continue
            path.append((wanting, places, at + 1))
            place = places[at]
            if place in visited:
                continue
            visited.add(place)
            holder = self._has.get(place)
            if holder is None:
                for claimant, able, after in path:
                    self._has[able[after - 1]] = claimant
                return True
            path.append((holder, self._candidates(holder), 0))
        return False

    def _candidates(self, job: Job) -> list[int]:
        kind = _kind(job)
        if kind not in self._able:
            if job.scale_set or not job.labels:
                near = self._by_set.get((job.scope, job.scale_set), [])
            else:
                near = min((self._by_label.get((job.scope, label), []) for label in _lower(job.labels)), key=len)
            self._able[kind] = [place for place in near if serves(self._runners[place], job)]
        return self._able[kind]


def _kind(job: Job) -> object:
    """Jobs of one kind are served by the same runners."""
    return job.scope, job.repository.lower(), job.scale_set, "" if job.scale_set else _lower(job.labels)


def _lower(labels: Iterable[str]) -> frozenset[str]:
    return frozenset(label.lower() for label in labels)
