"""Runs the verbs that look at a host or change it, on the host itself, and prints for people or as JSON.

With `json` one object per line: ``{"event": "step", "done": 2, "of": 9, "text": ...}`` while steps are carried out, and
at the end ``{"event": "result", "verb": ..., "exit": ..., ...}``: the exit code, and the verb's result.

Each verb imports itself what no other needs: the file that goes to hosts has no bytecode, so that there every module is
compiled at each call.
"""

from __future__ import annotations

import json
import os
import sys
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Callable, Dict, Iterable, List, Optional, Protocol, Tuple

from gpuyard.host.checks import Machine, check
from gpuyard.host.judge import judge
from gpuyard.host.local_host import HostAccess, LocalHost
from gpuyard.host.pci_ids import PciIds
from gpuyard.host.preparation import pending, plan_text
from gpuyard.host.preparation.journal import current
from gpuyard.host.preparation.passthrough import read_list
from gpuyard.host.preparation.wishes import Wishes, full_address
from gpuyard.host.scan import scan
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.model.finding import Finding, Severity, worst
from gpuyard.model.host import Inventory
from gpuyard.model.plan import Plan, Step
from gpuyard.model.text import printable

if TYPE_CHECKING:
    from gpuyard.host.preparation.preparation import Preparation

BLOCKED = BlockedError.exit_code


@dataclass(frozen=True)
class CommandOptions:
    """What the command line said. None: as at the last apply."""

    root: str = "/"
    json: bool = False
    yes: bool = False
    """Apply and undo without a question."""
    live: Optional[bool] = None
    keep: Tuple[str, ...] = ()
    give: Tuple[str, ...] = ()
    only: Optional[Tuple[str, ...]] = None
    everything: bool = False
    """Forget the wishes about single GPUs: every one that can be given is."""
    expect: Optional[str] = None
    """Digest of the plan that somebody agreed to; another one is not carried out."""
    identity: Optional[bool] = None
    unsafe_interrupts: Optional[bool] = None
    replace_legacy: Optional[bool] = None
    recorded: Optional[str] = None
    """Text of a recording that the host is compared with."""
    source: Optional[str] = None
    """Text of a recording that is looked at instead of this machine."""
    recording: bool = False
    """Give a recording of the host along, for whoever asked from afar to compare."""
    dry_run: bool = False
    """Only show what undo would do."""
    boot_id: str = ""
    """Reboot only if the machine is in this boot still."""

    def wishes(self, last: Wishes, inventory: Inventory) -> Wishes:
        """The last apply's, with the new ones. Raises UsageError for an address at which nothing of the sort is."""
        gpus = [gpu.address for gpu in inventory.gpus]
        for text in self.keep:
            if full_address(text) not in gpus:
                raise UsageError(f"--keep {text}: there is no GPU at it; GPUs are at: {', '.join(gpus) or 'none'}")
        for text in self.give:
            matches = [f for f in inventory.functions if f.address == full_address(text)]
            if not matches or matches[0].stays_with_host:
                raise UsageError(
                    f"--give {text}: there is nothing at it to give; GPUs are at: {', '.join(gpus) or 'none'}"
                )
            if matches[0] in [companion for slot in judge(inventory) for companion in slot.companions]:
                raise UsageError(f"--give {text}: it goes with the GPU that it shares a group with: name that one")
        if self.everything:
            last = replace(last, only=None, keep=(), give=())
        return last.changed(
            self.keep,
            self.give,
            only=None if self.only is None else tuple(full_address(text) for text in self.only),
            identity=self.identity,
            unsafe_interrupts=self.unsafe_interrupts,
            replace_legacy=self.replace_legacy,
            live=self.live,
        )


class DeclinedError(BlockedError):
    """The operator said no."""


def run(verb: str, options: CommandOptions, output: Optional[Output] = None) -> int:
    """Run a verb on this machine, print what came of it, answer the exit code. Raises GpuyardError, but for `json`.

    `output`: takes it instead of printing.
    """
    output = output or (_Json(verb) if options.json else _Text())
    host = LocalHost(options.root)
    try:
        # Whoever changes a host looks at it, and asks, with nobody else at it.
        with host.lock() if verb in CHANGING and not options.dry_run else nullcontext():
            return VERBS[verb](host, options, output)
    except GpuyardError as error:
        if not options.json:
            raise
        output.result(error.exit_code, {"error": str(error)}, [])
        return error.exit_code


class Output(Protocol):
    """Where a verb says what it does."""

    def step(self, number: int, of: int, step: Step) -> None:
        """Before each step."""

    def say(self, lines: List[str]) -> None:
        """What is for people only."""

    def result(self, code: int, data: Dict[str, Any], lines: List[str]) -> None:
        """At the end, once: the exit code, for programs, for people."""


class _Text:
    """For people."""

    def step(self, number: int, of: int, step: Step) -> None:
        print(f"[{number}/{of}] {plan_text.title(step)}", flush=True)

    def say(self, lines: List[str]) -> None:
        if lines:
            print("\n".join(map(printable, lines)))

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


class Kept:
    """For whoever calls from a program: the result as it is."""

    def __init__(self) -> None:
        self.data: Dict[str, Any] = {}

    def step(self, number: int, of: int, step: Step) -> None:
        pass

    def say(self, lines: List[str]) -> None:
        pass

    def result(self, code: int, data: Dict[str, Any], lines: List[str]) -> None:
        self.data = data


def _look(host: HostAccess) -> Preparation:
    from gpuyard.host.preparation.preparation import Preparation

    return Preparation(host, PciIds.of_this_machine())


def _seen(host: HostAccess, options: CommandOptions) -> Machine:
    """The host as it is, or as it was recorded."""
    if options.source is None:
        tree, inventory = host.tree, scan(host.tree, PciIds.of_this_machine())
    else:
        from gpuyard.host.recording import replay_tree

        tree, inventory = replay_tree(options.source, "the recording")
    return Machine(tree, inventory, judge(inventory))


def _check(host: HostAccess, options: CommandOptions, output: Output) -> int:
    return _findings(check(_seen(host, options)), output)


def _plan(host: HostAccess, options: CommandOptions, output: Output) -> int:
    from gpuyard.host.preparation.plan import plan_preparation
    from gpuyard.host.recording import says_how_it_boots

    machine = _seen(host, options)
    if options.source is not None and not says_how_it_boots(machine.tree):
        raise UsageError(
            "this recording is of an earlier gpuyard and does not say how the host boots: record the host again"
        )
    journal = current(machine.tree)
    wishes = options.wishes(journal.wishes if journal else Wishes(), machine.inventory)
    plan = plan_preparation(machine, wishes, journal, machine.processes.holders)
    return _planned(plan, output, NOTHING if machine.inventory.gpus else NO_GPU)


def _planned(plan: Plan, output: Output, nothing: str) -> int:
    code, data = BLOCKED if plan.refusals else 0, plan_text.as_dict(plan)
    output.result(code, data, [*plan_text.lines(data), *([nothing] if plan.empty else [])])
    return code


def _apply(host: HostAccess, options: CommandOptions, output: Output) -> int:
    def look() -> Tuple[Preparation, Wishes, Plan]:
        preparation = _look(host)
        wishes = options.wishes(preparation.wishes, preparation.machine.inventory)
        return preparation, wishes, preparation.plan(wishes)

    agreed = _agree(look()[2], options, output, "Apply this?")
    preparation, wishes, plan = look()
    _unchanged(plan, agreed)
    preparation.apply(plan, wishes, datetime.now(timezone.utc), _on_step(plan, output))
    output.say([f"note: {note}" for note in plan.notes])
    return _done(host, plan, output, NOTHING if preparation.machine.inventory.gpus else NO_GPU)


def _undo(host: HostAccess, options: CommandOptions, output: Output) -> int:
    plan = _look(host).plan_undo(options.live is not False)
    if options.dry_run:
        return _planned(plan, output, UNDONE)
    agreed = _agree(plan, options, output, "Undo this?")
    preparation = _look(host)
    plan = preparation.plan_undo(options.live is not False)
    _unchanged(plan, agreed)
    preparation.undo(plan, _on_step(plan, output))
    return _done(host, plan, output, UNDONE)


def _done(host: HostAccess, plan: Plan, output: Output, nothing: str) -> int:
    after = _look(host)
    waiting = pending.needs_reboot(pending.settings(after.machine, after.journal))
    reboot = list(dict.fromkeys([*plan.reboot, *(setting.after_a_boot for setting in waiting)]))
    lines = [
        f"{len(plan.steps)} steps done" if plan.steps else nothing,
        *(f"needs a reboot: {text}" for text in reboot),
    ]
    if plan.steps and not reboot:
        lines.append("no reboot needed; gpuyard host verify proves what is there")
    output.result(0, {**plan_text.as_dict(plan), "changed": bool(plan.steps), "reboot": reboot}, lines)
    return 0


def _verify(host: HostAccess, options: CommandOptions, output: Output) -> int:
    from gpuyard.host.checks.changed_since_recording import drift
    from gpuyard.host.checks.prepared import verify
    from gpuyard.host.recording import record, replay

    preparation = _look(host)
    groups = preparation.journal.groups if preparation.journal else {}
    findings = verify(preparation.machine, read_list(host.tree), groups)
    if options.recorded is not None:
        findings += drift(replay(options.recorded, "the recording"), preparation.machine.inventory)
    made = record(host.tree, PciIds.of_this_machine(), "by verify") if options.recording else None
    given = [entry.address for entry in read_list(host.tree)]
    return _findings(findings, output, {"given": given, **({"recording": made} if made else {})})


def _look_at_all(host: HostAccess, options: CommandOptions, output: Output) -> int:
    """Everything that a deployment asks a host, in one answer: see docs/how-to/from-bare-machines-to-a-cloud.md."""
    from gpuyard.host import standing
    from gpuyard.host.checks.prepared import verify
    from gpuyard.host.network import observe_interfaces
    from gpuyard.host.recording import record

    preparation = _look(host)
    wishes = options.wishes(preparation.wishes, preparation.machine.inventory)
    plan = preparation.plan(wishes)
    waiting = pending.needs_reboot(pending.settings(preparation.machine, preparation.journal))
    given = [entry.address for entry in read_list(host.tree)]
    engine = standing.look_at_engines()
    hint = standing.reboot_hint(host.tree)
    interfaces, interfaces_problem = observe_interfaces(host.tree)
    data: Dict[str, Any] = {
        "boot_id": standing.boot_id(host.tree),
        "name": host.tree.read(standing.HOST_NAME) or "",
        "interfaces": [interface.as_dict() for interface in interfaces],
        "interfaces_problem": interfaces_problem,
        "plan": plan_text.as_dict(plan),
        "pending": [setting.after_a_boot for setting in waiting],
        "restart": hint.required,
        "restart_problem": hint.problem,
        "hypervisor": list(standing.hypervisor_processes(host.tree)),
        "given": given,
        "findings": [],
        "engine": {
            "name": engine.name,
            "containers": list(engine.containers),
            "stopped": list(engine.stopped),
            "releases": list(engine.releases),
            "problem": engine.problem,
        },
        "recording": record(host.tree, PciIds.of_this_machine(), "by gpuyard deploy"),
    }
    if given and plan.empty and not waiting:  # else it is known to be unfinished, and each finding would say so
        groups = preparation.journal.groups if preparation.journal else {}
        findings = verify(preparation.machine, read_list(host.tree), groups)
        data["findings"] = [finding.as_dict() for finding in findings]
    output.result(0, data, [f"boot {data['boot_id']}", *plan_text.lines(data["plan"])])
    return 0


def _reboot(host: HostAccess, options: CommandOptions, output: Output) -> int:
    """Said twice it is done once: a machine that is in another boot by now has rebooted."""
    from gpuyard.host import standing

    boot_id = standing.boot_id(host.tree)
    if options.root != "/":
        raise UsageError(f"reboot is for this machine, not for what is below {options.root}")
    if not options.boot_id:
        raise UsageError("say in which boot the machine is: --boot-id, as 'look' shows it")
    if boot_id != options.boot_id:
        output.result(0, {"rebooting": False, "boot_id": boot_id}, [f"it is in another boot already: {boot_id}"])
        return 0
    if os.geteuid():
        raise GpuyardError("only root may reboot this machine")
    standing.refuse_reboot(host.tree)
    output.result(0, {"rebooting": True, "boot_id": boot_id}, ["it reboots now"])
    sys.stdout.flush()
    standing.reboot_soon(host.tree)
    return 0


def _findings(findings: List[Finding], output: Output, more: Optional[Dict[str, Any]] = None) -> int:
    code, data = exit_code(findings), [finding.as_dict() for finding in findings]
    output.result(code, {"findings": data, **(more or {})}, [line for finding in findings for line in finding.lines()])
    return code


def exit_code(findings: Iterable[Finding]) -> int:
    """3 when something is in the way of giving a GPU away."""
    return BLOCKED if worst(findings).rank <= Severity.ERROR.rank else 0


def _on_step(plan: Plan, output: Output) -> Callable[[int, Step], None]:
    return lambda number, step: output.step(number, len(plan.steps), step)


def _agree(plan: Plan, options: CommandOptions, output: Output, question: str) -> Optional[str]:
    """Show the plan and wait for a yes. The digest of the plan that was agreed to, if any. Raises BlockedError."""
    if plan.refusals:
        raise BlockedError(plan.refused)
    commands = [plan_text.title(step) for step in plan.steps if step.kind == "command"]
    if commands and options.root != "/":
        raise BlockedError(f"{commands[0]}: cannot be done below {options.root}: use chroot, or do it on the host")
    if plan.empty or options.yes:
        return options.expect
    output.say(plan_text.lines(plan_text.as_dict(plan)))
    if options.json or not sys.stdin.isatty():
        raise DeclinedError("nothing was changed: there is nobody to ask here; say --yes")
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() not in ("y", "yes"):
        raise DeclinedError("nothing was changed")
    return plan_text.digest(plan)


def _unchanged(plan: Plan, agreed: Optional[str]) -> None:
    """Raises BlockedError when the plan is not the one that was agreed to."""
    if agreed is not None and plan_text.digest(plan) != agreed:
        raise BlockedError("nothing was changed: the host is not as it was when the plan was shown; look at it again")


CHANGING = ("apply", "undo", "reboot")
UNDONE = "nothing to undo: gpuyard has changed nothing on this host"
NO_GPU = "nothing to give away: there is no GPU on the PCI bus; gpuyard host check says more"
NOTHING = "nothing to do: the host is as it shall be"
VERBS: Dict[str, Callable[[HostAccess, CommandOptions, Output], int]] = {
    "check": _check,
    "plan": _plan,
    "apply": _apply,
    "verify": _verify,
    "undo": _undo,
    "look": _look_at_all,
    "reboot": _reboot,
}
