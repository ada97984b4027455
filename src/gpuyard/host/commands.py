"""The verbs that look at a host or change it, as they run on the host itself. What they print is for people, or JSON.

With `json` one object per line: ``{"event": "step", "done": 2, "of": 9, "text": ...}`` while steps are carried out, and
at the end ``{"event": "result", "verb": ..., "exit": ..., ...}``: the exit code, and what the verb found out.
"""

from __future__ import annotations

import json
import sys
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any, Callable, Dict, List, Optional, Tuple

from gpuyard.host import pending, plan_text
from gpuyard.host.check import check, worst
from gpuyard.host.drift import drift
from gpuyard.host.finding_text import finding_dict, finding_lines
from gpuyard.host.machine import Host, LocalHost
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation import Preparation
from gpuyard.host.recording import record, replay
from gpuyard.host.wishes import Wishes, full_address
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.finding import Finding, Level
from gpuyard.model.plan import Plan, Step

BLOCKED = BlockedError.exit_code


@dataclass(frozen=True)
class Options:
    """What the command line said. None: as at the last apply."""

    root: str = "/"
    json: bool = False
    yes: bool = False
    """Apply and undo without a question."""
    live: bool = True
    keep: Tuple[str, ...] = ()
    give: Tuple[str, ...] = ()
    only: Optional[Tuple[str, ...]] = None
    identity: Optional[bool] = None
    unsafe_interrupts: Optional[bool] = None
    replace_legacy: Optional[bool] = None
    recorded: Optional[str] = None
    """Text of a recording that the host is compared with."""
    recording: bool = False
    """Give a recording of the host along, for whoever asked from afar to compare."""
    dry_run: bool = False
    """Only show what undo would do."""

    def wishes(self, last: Wishes) -> Wishes:
        return last.changed(
            self.keep,
            self.give,
            only=None if self.only is None else tuple(full_address(text) for text in self.only),
            identity=self.identity,
            unsafe_interrupts=self.unsafe_interrupts,
            replace_legacy=self.replace_legacy,
        )


class Refused(BlockedError):
    """The operator said no."""


def run(verb: str, options: Options) -> int:
    """Run a verb on this machine, print what came of it, answer the exit code. Raises GpuyardError, but for `json`."""
    output = _Json(verb) if options.json else _Text()
    try:
        host = LocalHost(options.root)
        return VERBS[verb](Preparation(host, PciIds.of_this_machine()), host, options, output)
    except GpuyardError as error:
        if not options.json:
            raise
        output.result(error.exit_code, {"error": str(error)}, [])
        return error.exit_code


class _Text:
    """For people."""

    def step(self, number: int, of: int, step: Step) -> None:
        print(f"[{number}/{of}] {plan_text.title(step)}", flush=True)

    def say(self, lines: List[str]) -> None:
        if lines:
            print("\n".join(lines))

    def result(self, code: int, data: Dict[str, Any], lines: List[str]) -> None:
        self.say(lines)


class _Json:
    """For programs: other than events, everything is in the result."""

    def __init__(self, verb: str) -> None:
        self.verb = verb

    def step(self, number: int, of: int, step: Step) -> None:
        print(json.dumps({"event": "step", "done": number - 1, "of": of, "text": plan_text.title(step)}), flush=True)

    def say(self, lines: List[str]) -> None:
        pass

    def result(self, code: int, data: Dict[str, Any], lines: List[str]) -> None:
        print(json.dumps({"event": "result", "verb": self.verb, "exit": code, **data}), flush=True)


Output = Any  # _Text or _Json


def _check(preparation: Preparation, host: Host, options: Options, output: Output) -> int:
    return _findings(check(preparation.machine), output)


def _plan(preparation: Preparation, host: Host, options: Options, output: Output) -> int:
    plan = preparation.plan(options.wishes(preparation.wishes), options.live)
    return _planned(plan, output, NOTHING)


def _planned(plan: Plan, output: Output, nothing: str) -> int:
    code, data = BLOCKED if plan.refusals else 0, plan_text.as_dict(plan)
    output.result(code, data, [*plan_text.lines(data), *([nothing] if plan.empty else [])])
    return code


def _apply(preparation: Preparation, host: Host, options: Options, output: Output) -> int:
    wishes = options.wishes(preparation.wishes)
    plan = preparation.plan(wishes, options.live)
    _ask(plan, options, output, "Apply this?")
    preparation.apply(plan, wishes, datetime.now(timezone.utc), _on_step(plan, output))
    return _done(host, plan, output, NOTHING)


def _undo(preparation: Preparation, host: Host, options: Options, output: Output) -> int:
    plan = preparation.plan_undo()
    if options.dry_run:
        return _planned(plan, output, UNDONE)
    _ask(plan, options, output, "Undo this?")
    preparation.undo(plan, _on_step(plan, output))
    return _done(host, plan, output, UNDONE)


def _done(host: Host, plan: Plan, output: Output, nothing: str) -> int:
    after = Preparation(host, PciIds.of_this_machine())
    waiting = pending.needs_reboot(pending.settings(after.machine, after.journal))
    lines = [f"{len(plan.steps)} steps done" if plan.steps else nothing]
    lines += [f"needs a reboot: {setting.name}: {setting.state.value}" for setting in waiting]
    data = {**plan_text.as_dict(plan), "changed": bool(plan.steps), "reboot": [setting.name for setting in waiting]}
    output.result(0, data, lines)
    return 0


def _verify(preparation: Preparation, host: Host, options: Options, output: Output) -> int:
    findings = preparation.verify()
    if options.recorded is not None:
        findings += drift(replay(options.recorded, "the recording"), preparation.machine.inventory)
    made = record(host.tree, PciIds.of_this_machine(), "by verify") if options.recording else None
    return _findings(findings, output, {"recording": made} if made else {})


def _findings(findings: List[Finding], output: Output, more: Optional[Dict[str, Any]] = None) -> int:
    code = BLOCKED if worst(findings) is Level.BLOCKED else 0
    data = [finding_dict(finding) for finding in findings]
    output.result(code, {"findings": data, **(more or {})}, finding_lines(data))
    return code


def _on_step(plan: Plan, output: Output) -> Callable[[int, Step], None]:
    return lambda number, step: output.step(number, len(plan.steps), step)


def _ask(plan: Plan, options: Options, output: Output, question: str) -> None:
    """Show the plan and wait for a yes. Raises BlockedError."""
    if plan.refusals:
        raise BlockedError(plan.refused)
    commands = [plan_text.title(step) for step in plan.steps if step.kind == "command"]
    if commands and options.root != "/":
        raise BlockedError(f"{commands[0]}: cannot be done below {options.root}: use chroot, or do it on the host")
    if plan.empty or options.yes:
        return
    output.say(plan_text.lines(plan_text.as_dict(plan)))
    if options.json or not sys.stdin.isatty():
        raise Refused("nothing was changed: there is nobody to ask here; say --yes")
    if input(f"{question} [y/N] ").strip().lower() not in ("y", "yes"):
        raise Refused("nothing was changed")


UNDONE = "nothing to undo: gpuyard has changed nothing on this host"
NOTHING = "nothing to do: the host is as it shall be"
VERBS: Dict[str, Callable[[Preparation, Host, Options, Output], int]] = {
    "check": _check,
    "plan": _plan,
    "apply": _apply,
    "verify": _verify,
    "undo": _undo,
}
