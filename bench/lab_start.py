"""How long the lab takes to start, fresh and again, and how much memory it has after; each beside its limit.

    python -m bench.lab_start [--site FILE] [--runs N]

Starts a lab of its own in a temporary folder, on free ports, and ends it. The exit status is 1 when a limit is missed.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from tests.support.ports import free_port_base

from bench.table import Measured, finish, show
from gpuyard_lab import control
from gpuyard_lab.plan import EXAMPLE_SITE, LabPlan, plan_of_site
from gpuyard_lab.settings import LabSettings
from gpuyard_lab.status import LabStatus

FRESH_LIMIT_S = 30
RESTART_LIMIT_S = 20
MEMORY_LIMIT_MIB = 1228


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--site", type=Path, default=EXAMPLE_SITE, help="the site whose hosts the lab has")
    parser.add_argument("--runs", type=int, default=1, help="fresh starts and restarts to make")
    arguments = parser.parse_args()
    plan = plan_of_site(arguments.site)
    load = ", ".join(f"{value:.1f}" for value in os.getloadavg())
    print(f"{len(plan.hosts)} hosts; {os.cpu_count()} cores, load average {load} before the start")
    runs = [start_and_restart(plan) for _ in range(arguments.runs)]
    fresh, again = [run[0] for run in runs], [run[1] for run in runs]
    show("Fresh start, by phase", phases(fresh))
    show("Restart, by phase", phases(again))
    show("Memory by service, after a fresh start (proportional set size)", memory(fresh))
    total = [
        Measured("fresh start", "s", [seconds(status) for status in fresh], FRESH_LIMIT_S),
        Measured("restart", "s", [seconds(status) for status in again], RESTART_LIMIT_S),
        Measured("memory", "MiB", [status.memory_mib for status in (*fresh, *again)], MEMORY_LIMIT_MIB),
    ]
    show("Whole lab", total)


def start_and_restart(plan: LabPlan) -> tuple[LabStatus, LabStatus]:
    """A lab right after its first start and right after its second."""
    with tempfile.TemporaryDirectory(prefix="gpuyard-bench-") as folder:
        settings = LabSettings(Path(folder) / "lab", port_base=free_port_base())
        try:
            fresh = control.up(settings, plan)
            control.down(settings)
            return fresh, control.up(settings, plan)
        finally:
            control.down(settings)


def seconds(status: LabStatus) -> float:
    return status.phases[-1].at_s


def phases(runs: Sequence[LabStatus]) -> list[Measured]:
    """Seconds from the end of the phase before."""
    return rows("s", runs, lambda status: ((phase.name, phase.took_s) for phase in status.phases))


def memory(runs: Sequence[LabStatus]) -> list[Measured]:
    return rows("MiB", runs, lambda status: ((s.name, s.memory_mib) for s in status.services if s.memory_mib))


def rows(
    unit: str, runs: Sequence[LabStatus], values: Callable[[LabStatus], Iterable[tuple[str, float]]]
) -> list[Measured]:
    by_name: dict[str, list[float]] = {}
    for status in runs:
        for name, value in values(status):
            by_name.setdefault(name, []).append(value)
    return [Measured(name, unit, samples) for name, samples in by_name.items()]


if __name__ == "__main__":
    main()
    sys.exit(finish())
