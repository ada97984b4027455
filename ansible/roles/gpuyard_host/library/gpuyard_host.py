#!/usr/bin/python
"""Ansible module: runs a verb of gpuyard's zipapp on the host and says what it changed."""

from __future__ import annotations

import json
import sys

from ansible.module_utils.basic import AnsibleModule

DOCUMENTATION = r"""
module: gpuyard_host
short_description: Prepares a hypervisor to give its GPUs to VMs
description:
  - Runs a verb of gpuyard's zipapp with the Python that runs this module, 3.9 or newer.
  - In check mode C(apply) and C(undo) make the plan only.
options:
  zipapp:
    description: Path of the zipapp on the host.
    type: path
    required: true
  verb:
    description: What to do.
    type: str
    choices: [check, plan, apply, verify, undo]
    required: true
  arguments:
    description: Further words of the verb.
    type: list
    elements: str
    default: []
  root:
    description: Folder that holds the host's sys, proc and etc.
    type: path
    default: /
author: The gpuyard developers
"""
RETURN = r"""
findings:
  description: What C(check) and C(verify) found; code, severity, object, reason, remedy and payload of each.
  type: list
  elements: dict
problems:
  description: Those that are not ok, as lines.
  type: list
  elements: str
steps:
  description: What C(plan) would do, and what C(apply) and C(undo) did; step, reason and diff of each.
  type: list
  elements: dict
notes:
  description: What was seen and left alone.
  type: list
  elements: str
reboot:
  description: What is set and needs a reboot to be so.
  type: list
  elements: str
"""
BLOCKED = 3


def main() -> None:
    verbs = ["check", "plan", "apply", "verify", "undo"]
    module = AnsibleModule(
        argument_spec={
            "zipapp": {"type": "path", "required": True},
            "verb": {"type": "str", "choices": verbs, "required": True},
            "arguments": {"type": "list", "elements": "str", "default": []},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    verb, words = module.params["verb"], ["--json", *module.params["arguments"]]
    planned = verb == "plan" or (module.check_mode and verb in ("apply", "undo"))
    if planned and verb == "undo":
        words += ["--dry-run"]
    elif planned:
        verb = "plan"
    elif verb in ("apply", "undo"):
        words += ["--yes"]
    command = [sys.executable, "-IB", module.params["zipapp"], "--root", module.params["root"], verb, *words]
    status, output, errors = module.run_command(command)
    result = result_of(output)
    if result is None:
        module.fail_json(msg=f"gpuyard ended with {status}: {last_line(errors) or last_line(output)}", stderr=errors)
    answer = facts(result, planned)
    if module._diff and "steps" in answer:
        answer["diff"] = {"prepared": changes(answer["steps"])}
    if result["exit"] and not (module.params["verb"] == "check" and result["exit"] == BLOCKED):
        module.fail_json(msg=why(result, answer), **answer)
    module.exit_json(**answer)


def result_of(output: str) -> dict | None:
    """The last event, which has everything; None when there is none."""
    for line in reversed(output.splitlines()):
        try:
            event = json.loads(line)
        except ValueError:
            continue
        if isinstance(event, dict) and event.get("event") == "result":
            return event
    return None


def facts(result: dict, planned: bool) -> dict:
    """What the module returns: a plan counts as the change that it would make."""
    steps = result.get("steps", [])
    answer = {key: result[key] for key in ("findings", "steps", "refusals", "notes") if key in result}
    problems = [finding for finding in result.get("findings", []) if finding["severity"] != "ok"]
    return {
        **answer,
        "changed": bool(steps) if planned else bool(result.get("changed", False)),
        "problems": ["{severity}: {code}: {reason} {remedy}".format(**finding).strip() for finding in problems],
        "reboot": result.get("reboot", []),
    }


def changes(steps: list) -> str:
    """A step with its reason, and the diff of its file below."""
    lines = []
    for step in steps:
        lines += [f"# {step['step']}: {step['reason']}", *step["diff"]]
    return "\n".join([*lines, ""])


def why(result: dict, answer: dict) -> str:
    blocked = [finding["reason"] for finding in answer.get("findings", []) if finding["severity"] in ("alarm", "error")]
    return result.get("error") or "; ".join([*answer.get("refusals", []), *blocked]) or f"exit code {result['exit']}"


def last_line(text: str) -> str:
    return text.strip().rpartition("\n")[2]


if __name__ == "__main__":
    main()
