"""What an operator bakes into the image of runners, as far as it can be had here.

actions/runner is played by the stand-in of `gpuyard_lab.github`, which speaks as it does and connects to the fake
GitHub. What runs a job's steps is `WORKER`, a process of its own: it does about a job's processes what actions/runner's
Runner.Worker does (the hook before the first step, and oom_score_adj 500 for each step). The driver is a program that
answers as nvidia-smi does: there is no NVIDIA GPU here.
"""

from __future__ import annotations

from pathlib import Path

from gpuyard_lab.github import runner_standin

FOLDER = "opt/actions-runner"

RUN_SH = f"""\
#!/bin/sh
mkdir -p _diag
echo "[$(date -u +%FT%TZ) INFO Listener] started as $(id -un)" >>_diag/Runner_1.log
export GPUYARD_JOB_COMMAND="exec python3 /{FOLDER}/worker.py"
exec python3 /{FOLDER}/runner.py "$@"
"""

WORKER = f"""\
import os, subprocess, sys

def step():
    with open("/proc/self/oom_score_adj", "w") as file:
        file.write("500")

hook = os.environ.get("ACTIONS_RUNNER_HOOK_JOB_STARTED")
if hook:
    subprocess.run(["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", hook], check=True)
sys.exit(subprocess.run(["bash", "-e", "/{FOLDER}/job"], preexec_fn=step).returncode != 0)
"""

NVIDIA_SMI = """\
#!/bin/sh
echo "Tesla V100-PCIE-16GB, 00000000:01:00.0, 0"
"""


RUNNER = {
    f"{FOLDER}/run.sh": (0o755, RUN_SH.encode()),
    f"{FOLDER}/runner.py": (0o644, Path(runner_standin.__file__).read_bytes()),
    f"{FOLDER}/worker.py": (0o644, WORKER.encode()),
}
"""actions/runner's archive, as far as gpuyard asks for it."""


def baked(job: str, driver: str = NVIDIA_SMI) -> dict[str, tuple[int, bytes]]:
    """What else an image has whose jobs are this script. Without a `driver` it has none."""
    files = {f"{FOLDER}/job": (0o644, job.encode())}
    return files | ({"usr/local/bin/nvidia-smi": (0o755, driver.encode())} if driver else {})
