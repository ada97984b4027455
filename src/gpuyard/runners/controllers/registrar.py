"""Registers runners at GitHub, finds and removes registrations: of a repository, an organisation, or a scale set."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TypeVar

from gpuyard.model.errors import GpuyardError
from gpuyard.runners.github.answers import JitRunner, RegisteredRunner
from gpuyard.runners.github.client import GitHubClient
from gpuyard.runners.github.scale_sets import ScaleSetClient
from gpuyard.runners.records import Runner
from gpuyard.runners.store.store import RunnerStore

C = TypeVar("C")


class UnknownScopeError(GpuyardError):
    """An enrolment that the site file does not have (any more), or a scale set that is not known at GitHub yet."""


def set_number(store: RunnerStore, heard: Mapping[tuple[str, str], int], scope: str, name: str) -> int:
    """Return GitHub's number of a scale set; 0 when it is not known. Until its listener has a session in this process
    (`heard`), which may take a while where GitHub does not answer, it is the number that the process before had."""
    if number := heard.get((scope, name), 0):
        return number
    return next((state.id for state in store.scale_sets() if (state.scope, state.name) == (scope, name)), 0)


class Registrar:
    """Registrations of all enrolments. Safe to use from several threads. Every method raises GitHubError, or
    UnknownScopeError."""

    def __init__(
        self,
        clients: Mapping[str, GitHubClient],
        sets: Mapping[str, ScaleSetClient],
        set_id: Callable[[str, str], int],
    ) -> None:
        """`clients` and `sets` by the names of enrolments; `set_id`: GitHub's number of a scale set, by enrolment and
        name; 0 when it is not known yet."""
        self._clients, self._sets, self._set_id = clients, sets, set_id

    def register(self, runner: Runner) -> JitRunner:
        """Register a runner with its own name, which must never have been used."""
        if not runner.scale_set:
            return self._client(runner).jit(runner.name, runner.labels, runner.repository)
        number = self._set_id(runner.scope, runner.scale_set)
        if not number:
            raise UnknownScopeError(f"scale set {runner.scale_set} is not known at GitHub yet")
        return self._of_sets(runner).jit(number, runner.name)

    def find(self, runner: Runner) -> RegisteredRunner | None:
        """Return the runner's registration as GitHub has it now; None when there is none."""
        if runner.github_id:
            return self._client(runner).runner(runner.github_id, runner.repository)
        if runner.scale_set:
            return self._of_sets(runner).runner_named(runner.name)
        return self._client(runner).runner_named(runner.name, runner.repository)

    def remove(self, runner: Runner) -> None:
        """Remove the runner's registration. Does nothing when there is none. Raises GitHubError with
        GitHubTrouble.CONFLICT while it has a job."""
        number = runner.github_id
        if not number:  # it may have been registered in spite of everything
            registration = self.find(runner)
            number = registration.id if registration else 0
        if number and runner.scale_set:
            self._of_sets(runner).delete_runner(number)
        elif number:
            self._client(runner).delete_runner(number, runner.repository)

    def _client(self, runner: Runner) -> GitHubClient:
        return _of(self._clients, runner.scope)

    def _of_sets(self, runner: Runner) -> ScaleSetClient:
        return _of(self._sets, runner.scope)


def _of(clients: Mapping[str, C], scope: str) -> C:
    if scope not in clients:
        raise UnknownScopeError(
            f"{scope or 'a nameless enrolment'} is not among the enrolments of the site file any more: enrol it again, "
            "or delete its runners at GitHub by hand"
        )
    return clients[scope]
