"""How long it takes to say why a server would not start, on a lab of its own whose GPUs are in use.

python -m bench.why
"""

from __future__ import annotations

import subprocess
import sys
from functools import partial
from pathlib import Path

from tests.support.sites import plain_site

from bench.lab import running_lab
from bench.table import Measured, finish, milliseconds, show
from gpuyard.diagnosis.why.read import why
from gpuyard.openstack.api import CloudApi, connect
from gpuyard.site.load import LoadedSite
from gpuyard_lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard_lab.exercise import USER_PROJECT, Exercise
from gpuyard_lab.settings import Lab

LIMIT_MS = 1000
RUNS = 20
FULL = "gpu_tiny"
PAIR = "gpu_pair-a"
FREE = "k40c.2cores"
WITHOUT_GPUS = "ci_large"


def main() -> None:
    with running_lab() as (running, loaded):
        operator, user = connect(ADMIN_CLOUD, running.lab.clouds_file), connect(DEMO_CLOUD, running.lab.clouds_file)
        exercise = Exercise(operator, user, loaded.compiled)
        try:
            measure(running.lab, loaded, operator, exercise)
        finally:
            exercise.clear()


def measure(lab: Lab, loaded: LoadedSite, operator: CloudApi, exercise: Exercise) -> None:
    boots = [
        exercise.boot(FULL) for _ in range(4)
    ]  # one of each IOMMU group of the host, and each group is then closed
    assert {boot.status for boot in boots} == {"ACTIVE"}
    rows, calls = [], {}
    for title, flavor in (("yes", FREE), ("yes, no GPU", WITHOUT_GPUS), ("no: in use", FULL), ("no: a pair", PAIR)):
        explanation = why(operator, loaded, flavor, USER_PROJECT)
        assert explanation.would_start == title.startswith("yes"), explanation.answer
        calls[title] = explanation.calls
        taken = milliseconds(partial(why, operator, loaded, flavor, USER_PROJECT), RUNS)
        rows.append(Measured(f"connected, {title}", "ms", taken, LIMIT_MS))
    rows.append(Measured("the whole command, no: in use", "ms", milliseconds(lambda: command(lab), 5), LIMIT_MS))
    show("gpuyard gpu why", rows)
    print(f"  calls to OpenStack: {', '.join(f'{number} ({title})' for title, number in calls.items())}")


def command(lab: Lab) -> None:
    """The command as somebody types it, Python's start and the log-in included."""
    program = Path(sys.executable).parent / "gpuyard"
    environment = {"OS_CLIENT_CONFIG_FILE": str(lab.clouds_file), "PATH": "/usr/bin:/bin"}
    arguments = ["gpu", "why", FULL, "--project", USER_PROJECT, "--os-cloud", ADMIN_CLOUD, "--site", str(plain_site())]
    ended = subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=False)
    assert ended.returncode == 3, ended.stderr


if __name__ == "__main__":
    main()
    sys.exit(finish())
