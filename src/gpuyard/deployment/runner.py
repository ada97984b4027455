"""Runs a deployment: writes the first due tasks into the journal, runs them, observes again, until none is left.

It decides nothing: the planner says what to do, again after each stage. So a run that ends anywhere, by an error, a
signal or a power cut, is continued by the same command.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpuyard.deployment.journal import DeployJournal, Happening, JournalEntry, JournalWriter, stamp
from gpuyard.deployment.planner import STAGES, plan_deployment, stages
from gpuyard.deployment.state import DeploymentState
from gpuyard.deployment.tasks import DeployRange, DeployTask, Part, TaskStanding
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.site.schema import Site


class DeployFailed(GpuyardError):
    """Raised when a task did not come to its end; the message names it, its object and why."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


class DeploymentPorts(Protocol):
    """Everything through which a deployment observes and acts."""

    def look(self, before: DeploymentState, parts: frozenset[Part]) -> DeploymentState:
        """Observe these parts again; of the others return what was observed before."""

    def about(self, state: DeploymentState, stage: str, name: str) -> str:
        """Return the journal's `about` for a task that begins."""

    def carry_out(self, state: DeploymentState, stage: str, names: Sequence[str]) -> Mapping[str, str]:
        """Run the stage for these objects, at once where that is possible. Return object -> problem; empty: it went
        well.

        It may be called twice for the same: what is done already is not done again, or does no harm.
        """


class DeployScreen(Protocol):
    """Shows the progress."""

    def started(self, number: int, of: int, tasks: Sequence[DeployTask]) -> None:
        """Show that a stage begins, for these tasks."""

    def ended(self, number: int, of: int, tasks: Sequence[DeployTask], problems: Mapping[str, str]) -> None:
        """Show that it has ended; `problems` by object."""


@dataclass(frozen=True)
class Deployment:
    """A deployment to run: its site, its ports, and the range of stages to run."""

    site: Site
    ports: DeploymentPorts
    deploy_range: DeployRange
    clock: Callable[[], datetime]

    def first_look(self) -> DeploymentState:
        """Observe all that the wanted stages need."""
        parts = {part for stage in stages(self.deploy_range) for part in stage.of_parts}
        return self.ports.look(DeploymentState(), frozenset(parts))

    def plan(self, state: DeploymentState, journal: DeployJournal) -> tuple[DeployTask, ...]:
        return plan_deployment(self.site, state, journal, self.deploy_range)

    def run(
        self, state: DeploymentState, journal: DeployJournal, writer: JournalWriter, screen: DeployScreen
    ) -> DeployJournal:
        """Run until everything that is wanted is done. Raises BlockedError, and GpuyardError for what failed."""
        ran: dict[tuple[str, str], tuple[str, ...]] = {}
        while True:
            tasks = self.plan(state, journal)
            order = list(dict.fromkeys(task.stage for task in tasks))
            stop_at_blocked(tasks)
            left = [task for task in tasks if task.standing is not TaskStanding.DONE]
            if not left:
                return journal
            group = [task for task in left if task.stage == left[0].stage]
            for task in group:
                _may_run(task, ran.get((task.stage, task.object)))
            number = (order.index(group[0].stage) + 1, len(order))
            journal = self._carry_out(state, journal, writer, screen, group, number)
            ran |= {(task.stage, task.object): task.verdict.says for task in group}
            again = next(stage.again for stage in STAGES if stage.name == group[0].stage)
            state = self.ports.look(state, again)

    def _carry_out(
        self,
        state: DeploymentState,
        journal: DeployJournal,
        writer: JournalWriter,
        screen: DeployScreen,
        group: Sequence[DeployTask],
        number: tuple[int, int],
    ) -> DeployJournal:
        def note(task: DeployTask, happening: Happening, about: str) -> None:
            nonlocal journal
            when, hosts = stamp(self.clock()), self.deploy_range.hosts
            entry = JournalEntry(journal.run, task.stage, task.object, happening, when, about, hosts)
            writer.write(entry)
            journal = journal.with_entry(entry)

        about = {task.object: self.ports.about(state, task.stage, task.object) for task in group}
        for task in group:
            note(task, Happening.BEGUN, about[task.object])
        screen.started(*number, group)
        code = GpuyardError.exit_code
        try:
            problems = dict(self.ports.carry_out(state, group[0].stage, [task.object for task in group]))
        except GpuyardError as error:
            problems, code = {task.object: str(error) for task in group}, error.exit_code
        for task in group:
            problem = problems.get(task.object, "")
            note(task, Happening.FAILED if problem else Happening.DONE, problem or about[task.object])
        screen.ended(*number, group, problems)
        if wrong := [f"{task.title}: {problems[task.object]}" for task in group if problems.get(task.object)]:
            raise DeployFailed("\n".join(wrong), code)
        return journal


def stop_at_blocked(tasks: Sequence[DeployTask]) -> None:
    """Raise BlockedError with everything that blocks a task, each reason once."""
    reasons: dict[str, list[str]] = {}
    for task in tasks:
        if task.standing is TaskStanding.BLOCKED:
            for text in task.verdict.says:
                reasons.setdefault(text, []).append(task.title)
    if reasons:
        raise BlockedError("\n".join(f"{', '.join(titles)}: {text}" for text, titles in reasons.items()))


def _may_run(task: DeployTask, before: tuple[str, ...] | None) -> None:
    """`before`: what was to do when it was carried out in this run. Raises BlockedError, GpuyardError."""
    says = "; ".join(task.verdict.says)
    if task.standing is TaskStanding.LATER:
        raise BlockedError(
            f"{task.title} cannot be done yet{f': {says}' if says else ''}; leave --from and --limit out"
        )
    if before == task.verdict.says:
        raise GpuyardError(f"{task.title} was carried out, and is still to do: {says}")
