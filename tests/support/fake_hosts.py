"""Hosts that are scripts: 'gpuyard deploy' reaches them over a real ssh, and asks their Python, which is this one.

It answers the verbs that a deployment uses with events as gpuyard's own, and keeps what became of the host in a folder
by the alias that ssh was given. What the real verbs answer is held against this in
tests/unit/deployment/test_deploy_hosts.py."""

from __future__ import annotations

import inspect
import json
import sys
from pathlib import Path

SCRIPT = """\
#!{python}
from __future__ import annotations
import os, sys

{source}

sys.exit(answer(sys.argv[1:], {folder!r}, os.environ["HOST_ALIAS"], {recording!r}))
"""


def answer(arguments: list[str], folder: str, alias: str, recording: str) -> int:
    """What runs on the host: start, steps, result."""
    import json
    import os
    import pathlib
    import subprocess
    import sys
    import time

    root = pathlib.Path(folder, alias)
    state_file = root / "state.json"
    sys.stdin.buffer.read()
    words = arguments[arguments.index("-c") + 2 :]
    verb = words[0]
    state = json.loads(state_file.read_text())

    def keep() -> None:
        fresh = state_file.with_suffix(".new")
        fresh.write_text(json.dumps(state))
        fresh.replace(state_file)

    def say(**event: object) -> None:
        print(json.dumps(event), flush=True)

    with (root / "asked").open("a") as log:
        print(" ".join(words), file=log)
    if state["down_until"] > time.time():
        return 1  # nobody is there
    say(event="start", python=list(sys.version_info[:3]))
    boot = f"{alias}-boot-{state['boots']}"
    if verb == "apply":
        total = len(state["steps"])
        while state["steps"]:
            say(event="step", done=total - len(state["steps"]), of=total, text=state["steps"][0])
            time.sleep(state["step_seconds"])
            state["steps"].pop(0)
            state["pending"] = ["kernel option iommu=pt"]
            keep()
        say(event="result", verb=verb, exit=0, changed=True, reboot=state["pending"])
    elif verb == "reboot":
        same = words[words.index("--boot-id") + 1] == boot
        if same:
            state.update(boots=state["boots"] + 1, pending=[], down_until=time.time() + 1)
            (root / "run/reboot-required").unlink(missing_ok=True)
            keep()
        say(event="result", verb=verb, exit=0, rebooting=same, boot_id=boot)
    else:
        docker = root / "usr/local/bin/docker"
        names = subprocess.check_output([docker, "ps"], text=True).split() if docker.exists() else []
        plan = {
            "steps": [{"sign": "+", "step": step, "reason": "r", "diff": []} for step in state["steps"]],
            "refusals": [], "notes": [], "digest": "d",
            "reboot": ["kernel option iommu=pt"] if state["steps"] else [],
        }  # fmt: skip
        say(
            event="result", verb=verb, exit=0, boot_id=boot, name=alias, plan=plan, interfaces_problem="",
            interfaces=[
                {"name": "lo", "addresses": [], "master": "", "default_route": False},
                {"name": "eno1", "addresses": ["192.0.2.7"], "master": "", "default_route": True},
                {"name": "eno2", "addresses": [], "master": "", "default_route": False},
            ],
            pending=state["pending"], restart=(root / "run/reboot-required").exists(), findings=[],
            restart_problem="",
            given=[] if state["steps"] or not state["gpus"] else ["0000:18:00.0", "0000:18:00.1"],
            engine={"name": "docker" if docker.exists() else "", "containers": names, "stopped": [],
                    "releases": [], "problem": ""},
            hypervisor=[],
            recording=json.loads(pathlib.Path(recording).read_text()),
        )  # fmt: skip
    return os.EX_OK


def make_hosts(folder: Path, gpus: list[str], others: list[str], recording: Path) -> Path:
    """The folder of each, and the program that is their Python."""
    for name in (*gpus, *others):
        (folder / name).mkdir(parents=True)
        steps = ["file /etc/gpuyard/passthrough", "run update-initramfs"] if name in gpus else []
        state = {"boots": 1, "steps": steps, "pending": [], "down_until": 0, "gpus": name in gpus, "step_seconds": 0}
        (folder / name / "state.json").write_text(json.dumps(state))
    program = folder / "python"
    program.write_text(
        SCRIPT.format(
            python=sys.executable, folder=str(folder), recording=str(recording), source=inspect.getsource(answer)
        )
    )
    program.chmod(0o755)
    return program
