"""Formats a plan for people, one paragraph a step with the diff of every file, and for JSON."""

from __future__ import annotations

import difflib
import hashlib
import json
from typing import Any, Dict, List, Mapping

from gpuyard.model.plan import Plan, Step, StepVerb

SIGNS = {StepVerb.CREATE: "+", StepVerb.DELETE: "-"}


def lines(plan: Mapping[str, Any]) -> List[str]:
    """What a plan, as `as_dict` gives it, would do, what stands against it, and what it leaves alone."""
    text_lines: List[str] = []
    for step in plan["steps"]:
        text_lines += [f"{step['sign']} {step['step']}", f"    # {step['reason']}"]
        text_lines += [*(f"    {line}" for line in step["diff"]), ""]
    text_lines += [f"refused: {refusal}" for refusal in plan["refusals"]]
    text_lines += [f"note: {note}" for note in plan["notes"]]
    text_lines += [f"needs a reboot: {setting}" for setting in plan["reboot"]]
    return text_lines


def title(step: Step) -> str:
    """One line for a step."""
    if step.kind == "command":
        return f"run {' '.join(step.after['command'])}"
    if step.kind == "module":
        return f"unload {step.name}"
    if step.kind == "group":
        return str(step) if step.name != "none" else f"{step.verb.value} {', '.join(step.after)}"
    return str(step)


def diff(step: Step) -> List[str]:
    """A unified diff of a file; empty for other steps, and for files that only a copy is known of."""
    if step.kind != "file" or "digest" in step.before or step.verb is StepVerb.RESTORE:
        return []
    before, after = (str(side.get("text", "")).splitlines() for side in (step.before, step.after))
    old, new = (step.name if text else "/dev/null" for text in (before, after))
    return list(difflib.unified_diff(before, after, old, new, lineterm=""))


def digest(plan: Plan) -> str:
    """Of the steps: two plans that would do the same have the same."""
    return hashlib.sha256(json.dumps([(str(step), _changes(step)) for step in plan.steps]).encode()).hexdigest()[:16]


def as_dict(plan: Plan) -> Dict[str, Any]:
    """For JSON: of each step its sign (``+``, ``-``, ``~``), title, reason, diff; refusals, notes, reboot, digest."""
    steps = [
        {"sign": SIGNS.get(step.verb, "~"), "step": title(step), "reason": step.reason, "diff": _changes(step)}
        for step in plan.steps
    ]
    lists = {"refusals": list(plan.refusals), "notes": list(plan.notes), "reboot": list(plan.reboot)}
    return {"steps": steps, **lists, "digest": digest(plan)}


def _changes(step: Step) -> List[str]:
    if step.kind == "group":
        return [
            f"{address}: {old or 'no driver'} -> {step.after[address] or 'no driver'}"
            for address, old in step.before.items()
        ]
    return diff(step)
