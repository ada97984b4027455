"""Inspects, prepares and reboots the hosts of a deployment, many at once over ssh, and waits for them.

A host whose address is localhost is this machine, and its verbs run in this process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpuyard.deployment.state import HostState
from gpuyard.host import commands, fleet
from gpuyard.host.__main__ import options_of
from gpuyard.host.checks.changed_since_recording import drift
from gpuyard.host.fleet import Ending, Event, FleetOptions, Outcome
from gpuyard.host.network import HostInterface
from gpuyard.host.recording import dumps, replay
from gpuyard.host.standing import boot_id
from gpuyard.host.tree import FileTree
from gpuyard.model.errors import GpuyardError
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.host import Inventory
from gpuyard.site.deploy_rules import HERE, SiteDeploy

LOOK_SECONDS, APPLY_SECONDS = 600.0, 7200.0
"""Seconds that one host may take at most: an initramfs takes minutes for each kernel."""
POLL_SECONDS = 3.0


@dataclass
class DeployHosts:
    """The hosts of a site file. Problems are returned as text; nothing here raises for a host that fails."""

    deploy: SiteDeploy
    options: FleetOptions
    patience: float
    """Seconds in which a host must be back after a reboot."""
    clock: Callable[[], float]
    """Seconds that only grow."""
    sleep: Callable[[float], None]
    on_event: Callable[[Event], None] = lambda event: None
    recordings: dict[str, str] = field(default_factory=dict)
    """Host -> the recording of its last inspection."""

    def look(
        self,
        names: Sequence[str],
        recorded: Mapping[str, Inventory],
        gpus: Mapping[str, Sequence[str]] | None,
    ) -> dict[str, HostState]:
        """Return the state of each host. `recorded`: the inventories in recordings. `gpus`: host -> addresses that the
        site gives away, once known."""
        own = {name: self._words(name, gpus) for name in names}
        outcomes = self._run("look", names, own, replace(self.options, seconds=LOOK_SECONDS))
        return {name: self._state_of(name, outcome, recorded.get(name)) for name, outcome in outcomes.items()}

    def prepare(self, names: Sequence[str], gpus: Mapping[str, Sequence[str]] | None) -> dict[str, str]:
        """Prepare hosts; return host -> problem."""
        own = {name: ["--yes", *self._words(name, gpus)] for name in names}
        outcomes = self._run("apply", names, own, replace(self.options, seconds=APPLY_SECONDS))
        return {name: problem_of(outcome) for name, outcome in outcomes.items()}

    def reboot(self, boots: Mapping[str, str]) -> dict[str, str]:
        """Reboot hosts and wait for them; return host -> problem. `boots`: host -> the boot that shall end."""
        own = {name: ["--boot-id", boot] for name, boot in boots.items()}
        outcomes = self._run("reboot", list(boots), own, replace(self.options, seconds=LOOK_SECONDS))
        refused = {
            name: problem_of(outcome)
            for name, outcome in outcomes.items()
            if outcome.ending is Ending.DONE and outcome.exit
        }
        # One that did not answer may be on its way down already: it is waited for.
        back = self.wait({name: boot for name, boot in boots.items() if name not in refused})
        return {**refused, **back}

    def wait(self, boots: Mapping[str, str]) -> dict[str, str]:
        """Wait until each host answers from another boot; with an empty one, until it answers. Return host ->
        problem."""
        end = self.clock() + self.patience
        waiting, last = dict(boots), dict.fromkeys(boots, "it has not gone down")
        while waiting:
            outcomes = self._run("look", list(waiting), {}, replace(self.options, seconds=LOOK_SECONDS))
            for name, outcome in outcomes.items():
                if outcome.ending is not Ending.DONE:
                    last[name] = outcome.reason
                elif str(outcome.result.get("boot_id", "")) not in ("", waiting[name]):
                    del waiting[name]
            if waiting and self.clock() >= end:
                break
            if waiting:
                self.sleep(POLL_SECONDS)
        minutes = f"{self.patience / 60:g} minutes"
        return {
            **dict.fromkeys(boots, ""),
            **{name: f"not back after {minutes}: {last[name]}; look at its console" for name in waiting},
        }

    def _words(self, name: str, gpus: Mapping[str, Sequence[str]] | None) -> list[str]:
        only = ["--only", ",".join(gpus[name])] if gpus is not None and name in gpus else []
        return [*self.deploy.hosts[name].wishes, *only]

    def _run(
        self, verb: str, names: Sequence[str], own: Mapping[str, Sequence[str]], options: FleetOptions
    ) -> dict[str, Outcome]:
        local_names = [name for name in names if self.deploy.hosts[name].address == HERE]
        outcomes = {name: in_this_process(name, [verb, *own.get(name, ())]) for name in local_names}
        targets = {self._target(name): name for name in names if name not in local_names}
        words = {target: own.get(name, ()) for target, name in targets.items()}
        remote = fleet.run(targets, [verb, "--json"], options, self.on_event, own=words)
        outcomes |= {targets[target]: outcome for target, outcome in remote.items()}
        return {name: outcomes[name] for name in names}

    def _target(self, name: str) -> str:
        return self.deploy.hosts[name].login(name, self.deploy.user)

    def _state_of(self, name: str, outcome: Outcome, recorded: Inventory | None) -> HostState:
        if problem := problem_of(outcome):
            return HostState(problem=problem)
        try:
            state, inventory = parse_look(outcome.result)
        except (KeyError, TypeError, ValueError, AttributeError, GpuyardError):
            return HostState(problem="what it answered is no look of this gpuyard's")
        self.recordings[name] = dumps(outcome.result["recording"])
        if recorded is not None and not state.changes and not state.pending:
            faults = _errors(drift(recorded, inventory))
            state = replace(state, faults=(*state.faults, *faults))
        return state


def parse_look(result: Mapping[str, Any]) -> tuple[HostState, Inventory]:
    """Parse the answer of 'look'. Raises KeyError, TypeError, ValueError, AttributeError, GpuyardError for anything
    else."""
    plan, engine = result["plan"], result["engine"]
    findings = [Finding.from_dict(finding) for finding in result["findings"]]
    boot = str(result["boot_id"])
    state = HostState(
        boot_id=boot,
        here=bool(boot) and boot == boot_id(FileTree()),
        name=str(result["name"]),
        interfaces=tuple(HostInterface.from_dict(interface) for interface in result["interfaces"]),
        interfaces_problem=str(result["interfaces_problem"]),
        changes=tuple(f"{step['sign']} {step['step']}" for step in plan["steps"]),
        refusals=_texts(plan["refusals"]),
        reboot_later=_texts(plan["reboot"]),
        pending=_texts(result["pending"]),
        restart=result["restart"] is True,
        restart_problem=str(result["restart_problem"]),
        given=_texts(result["given"]),
        faults=_errors(findings),
        engine=str(engine["name"]),
        engine_problem=str(engine["problem"]),
        containers=frozenset(_texts(engine["containers"])),
        stopped=frozenset(_texts(engine["stopped"])),
        hypervisor=_texts(result["hypervisor"]),
        releases=frozenset(_texts(engine["releases"])),
    )
    return state, replay(json.dumps(result["recording"]), "the host's answer")


def _errors(findings: Sequence[Finding]) -> tuple[str, ...]:
    return tuple(f"{finding.reason}; {finding.remedy}" for finding in findings if finding.severity is Severity.ERROR)


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise TypeError("no list")
    return tuple(str(item) for item in value)


def problem_of(outcome: Outcome) -> str:
    """Return why a verb has no good result; empty when it has one."""
    if outcome.ending is not Ending.DONE:
        return f"{outcome.ending.value}: {outcome.reason}"
    if outcome.exit:
        return outcome.reason or f"it ended with {outcome.exit}"
    return ""


def in_this_process(name: str, words: Sequence[str]) -> Outcome:
    """Run a verb on this machine."""
    output = commands.Kept()
    try:
        code = commands.run(words[0], options_of(list(words)), output)
    except GpuyardError as error:
        return Outcome(name, Ending.DONE, error.exit_code, str(error))
    return Outcome(name, Ending.DONE, code, "", output.data)
