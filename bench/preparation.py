"""Preparing a host: how long a plan takes to make, and how long six GPUs take to change their driver.

python -m bench.preparation

The second runs in the virtual hypervisor, whose CPU is emulated and some thirty times slower than a real one; what the
shell script of the boot takes for the same, in the same run, is the peer to compare with.
"""

from __future__ import annotations

import json
import shlex
import sys
import tempfile
from pathlib import Path

from tests.support.hypervisors import look
from tests.support.kernel import ModelHost
from tests.virtual_hypervisor import build, machine
from tests.virtual_hypervisor.topology import epyc_v100

from bench.local import large_host
from bench.table import Measured, finish, leave_out, milliseconds, show
from gpuyard.host.preparation.plan import plan_preparation
from gpuyard.host.preparation.wishes import Wishes

ROOT = Path(__file__).parents[1]


def main() -> None:
    tree = ModelHost(large_host().nodes)
    # A new look each time: what a plan has found once, it remembers.
    plans = milliseconds(lambda: plan_preparation(look(tree), Wishes(), None, {}), 20)
    looks = milliseconds(lambda: look(tree), 20)
    rows = [Measured("look at a host with 16 GPUs", "ms", looks)]
    rows += [
        Measured("look, and plan its preparation", "ms", plans),
        Measured("so the plan", "ms", difference(plans, looks), 50),
    ]
    show("Planning", rows)
    live()


def difference(whole: list[float], part: list[float]) -> list[float]:
    return [total - other for total, other in zip(sorted(whole), sorted(part), strict=True)]


def live() -> None:
    try:
        prepared = build.prepare(install=False)
    except build.Missing as error:
        leave_out("Changing drivers", str(error))
        return
    job = shlex.join([sys.executable, "-m", "tests.virtual.prepare_jobs", "live"])
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        script = f"#!/bin/sh\nPYTHONPATH={ROOT}/src:{ROOT} exec {job}\n"
        result = machine.run(prepared, epyc_v100(exact=False), script, Path(folder))
        assert result.status == 0, result.output
        took = json.loads((Path(folder) / "answers.json").read_text())
    rows = [
        Measured("apply: journal, files, drivers", "s", [took["apply"]]),
        Measured("of that, the drivers of four groups", "s", [took["bind"]]),
        Measured("the script of the boot, for the same", "s", [took["script"]]),
    ]
    show(f"Changing the drivers of {took['gpus']} GPUs in the virtual hypervisor", rows)
    print(f"  apply's drivers / script: {took['bind'] / took['script']:.1f}")


if __name__ == "__main__":
    main()
    sys.exit(finish())
