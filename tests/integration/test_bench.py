"""Each part of `make bench` at a small size: it measures all that it has, and leaves the lab as it was.

A missed limit is no failure here: sizes are small, and the machine may be slow. The summary of the tests names them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.__main__ import PARTS
from bench.table import LEFT_OUT_TITLE, MISSED_TITLE, NOTHING_MISSED

from gpuyard.openstack.api import CloudApi
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.plan import plan_site
from tests.integration.conftest import RunningLab

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ON_THE_LAB = ["cloud", "why", "launch", "health", "takeover"]
ALONE = sorted({part.__name__.removeprefix("bench.") for part in PARTS} - {*ON_THE_LAB})
"""The rest; lab_start and scheduling start labs of their own."""
PATIENCE_S = 900
Record = Callable[[str, object], None]


def run_small(part: str, record_property: Record, **more: str) -> None:
    """What missed its limit or was not measured is a property of the test, which the summary shows."""
    environment = {**os.environ, "GPUYARD_BENCH_SMALL": "1", **more}
    command = [sys.executable, "-m", f"bench.{part}"]
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=PATIENCE_S
    )
    print(done.stdout, done.stderr)  # shown when the test fails
    lines = done.stdout.splitlines()
    ends = [lines.index(title) for title in (NOTHING_MISSED, MISSED_TITLE, LEFT_OUT_TITLE) if title in lines]
    assert ends, "it came to no end"
    assert "Traceback" not in done.stderr
    for line in lines[min(ends) :]:
        if line:
            record_property("bench", f"{part}: {line.strip()}")


@pytest.mark.parametrize("part", ALONE)
def test_a_part_measures_at_a_small_size(part: str, record_property: Record) -> None:
    run_small(part, record_property)


@pytest.mark.lab
@pytest.mark.parametrize("part", ON_THE_LAB)
def test_a_part_leaves_the_lab_as_it_was(
    part: str, record_property: Record, lab: RunningLab, operator: CloudApi, example: CompiledSite, applied: None
) -> None:
    before = what_stays(operator)
    run_small(part, record_property, GPUYARD_BENCH_LAB=str(lab.settings.state))
    assert what_stays(operator) == before
    assert not plan_site(example, read_objects(operator, example)).steps


def what_stays(operator: CloudApi) -> list[object]:
    """Limits, servers, and what is reserved of the GPUs."""
    limits = operator.get("identity", "/limits")["limits"]
    servers = operator.get("compute", "/servers", all_tenants=True)["servers"]
    reserved = [
        (row["name"], name, inventory["reserved"])
        for row in operator.providers()
        for name, inventory in operator.get("placement", f"/resource_providers/{row['uuid']}/inventories")[
            "inventories"
        ].items()
    ]
    return [
        sorted((row["project_id"], row["resource_name"], row["resource_limit"], row["description"]) for row in limits),
        sorted(row["name"] for row in servers),
        sorted(reserved),
    ]
