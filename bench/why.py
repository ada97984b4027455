"""How long it takes to say why a server would not start, on a lab of its own whose GPUs are in use.

python -m bench.why
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path

from tests.support.ports import free_port_base
from tests.support.sites import plain_site

from bench.table import Measured, milliseconds, show
from gpuyard.diagnosis.why.read import why
from gpuyard.lab import control, portal
from gpuyard.lab.clients import ADMIN_CLOUD, DEMO_CLOUD
from gpuyard.lab.exercise import USER_PROJECT, Exercise
from gpuyard.lab.settings import Lab, LabSettings, remembered
from gpuyard.openstack.api import connect
from gpuyard.site.load import LoadedSite, load_site

LIMIT_MS = 1000
RUNS = 20
FULL = "gpu_tiny"
PAIR = "gpu_pair-a"
FREE = "k40c.2cores"
WITHOUT_GPUS = "ci_large"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        base = free_port_base()
        settings = LabSettings(Path(folder) / "lab", port_base=base, site=plain_site())
        try:
            control.up(settings)
            lab = remembered(settings.state)
            assert lab is not None
            measure(lab, load_site(plain_site()))
        finally:
            control.down(settings)


def measure(lab: Lab, loaded: LoadedSite) -> None:
    portal.apply_site(lab, loaded)
    operator = connect(ADMIN_CLOUD, lab.clouds_file)
    exercise = Exercise(operator, connect(DEMO_CLOUD, lab.clouds_file), loaded.compiled)
    boots = [
        exercise.boot(FULL) for _ in range(4)
    ]  # one of each IOMMU group of the host, and each group is then closed
    assert {boot.status for boot in boots} == {"ACTIVE"}
    rows, calls = [], {}
    for title, flavor in (("yes", FREE), ("yes, no GPU", WITHOUT_GPUS), ("no: in use", FULL), ("no: a pair", PAIR)):
        told = why(operator, loaded, flavor, USER_PROJECT)
        assert told.would_start == title.startswith("yes"), told.answer
        calls[title] = told.calls
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
