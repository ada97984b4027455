"""Switches hosts of the lab off and on: their nova-compute goes and comes back, as Nova sees it, with their servers.

One file has the hosts that are to be off, another those that are; Nova's process reads the first twice a second and
writes the second. Both are deleted when the lab is started anew, which has all hosts on.
"""

from __future__ import annotations

import json
import time
from pathlib import Path

from gpuyard_lab.errors import LabError
from gpuyard_lab.files import write_json
from gpuyard_lab.plan import LabPlan
from gpuyard_lab.settings import Lab

PATIENCE_S = 120.0
"""Seconds for a nova-compute to start, on a machine that is busy otherwise."""


def hosts_off(file: Path) -> frozenset[str]:
    try:
        return frozenset(json.loads(file.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return frozenset()


def switch(lab: Lab, host: str, *, on: bool, patience: float = PATIENCE_S) -> None:
    """Switch a host off or on, and wait until it is so. Raises LabError."""
    host_names = [host.name for host in LabPlan.load(lab.plan_file).hosts]
    if host not in host_names:
        raise LabError(f"the lab in {lab.state} has no host {host!r}; it has {', '.join(host_names)}")
    if not lab.hosts_ready.exists():
        raise LabError(f"no lab runs in {lab.state}; start it with 'gpuyard lab up'")
    desired_off = hosts_off(lab.hosts_wanted_off)
    write_json(lab.hosts_wanted_off, sorted(desired_off - {host} if on else desired_off | {host}))
    deadline = time.monotonic() + patience
    while (host in hosts_off(lab.hosts_off)) is on:
        if time.monotonic() > deadline:
            what = "start" if on else "end"
            raise LabError(f"nova-compute of {host} did not {what} in {patience:.0f} s; {lab.log}/nova.log says why")
        time.sleep(0.1)
