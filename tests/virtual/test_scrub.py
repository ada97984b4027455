"""Scrubs against a real kernel: what a VM leaves in a GPU's memory is gone for the next one. See scrub_jobs.py.

The VMs are QEMU with real VFIO, one after the other on the same GPU; through qtest the job does by hand what a guest's
driver would do. No guest runs on their CPUs.
"""

from __future__ import annotations

import json
import shlex
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import gpuyard
from gpuyard.health.host_reports import judge, look_of
from gpuyard.health.records import GpuHealth, HealthState
from tests.virtual.scrub_host import CARD, DYING, GIVEN, LONE, PAIR, scrub_host
from tests.virtual_hypervisor import machine
from tests.virtual_hypervisor.testing import prepared

pytestmark = [pytest.mark.virtual, pytest.mark.slow]
MARK = "0x5ec2e700"
NOON = datetime(2026, 11, 22, 12, tzinfo=UTC)


def test_what_a_vm_leaves_in_a_gpu_is_gone_for_the_next_one(tmp_path: Path) -> None:
    path = f"{Path(gpuyard.__file__).parents[1]}:{Path(__file__).parents[2]}"
    command = shlex.join([sys.executable, "-m", "tests.virtual.scrub_jobs"])
    job = f"#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {command}\n"
    result = machine.run(prepared(), scrub_host(), job, tmp_path, timeout=600)
    assert result.status == 0, result.output
    answers = json.loads((tmp_path / "answers.json").read_text())

    tenants = answers["two_tenants"]
    assert tenants["first VM"] == MARK
    assert tenants["while it runs"]["outcome"] == "busy"
    assert "in use by qemu-system-x86_64" in tenants["while it runs"]["reason"]
    assert tenants["mark while it runs"] == MARK
    assert tenants["without a scrub"] == [MARK]  # else the rest would prove nothing
    assert (tenants["scrub"]["outcome"], tenants["scrub"]["method"]) == ("clean", "bus")
    assert tenants["scrub"]["functions"] == [LONE]
    assert (tenants["with a scrub"], tenants["second VM"]) == (["0x0"], "0x0")

    pair, card = answers["whole_groups"]["pair"], answers["whole_groups"]["card"]
    assert (pair["before"], pair["after"]) == ([MARK, MARK], ["0x0", "0x0"])
    assert (pair["scrub"]["outcome"], pair["scrub"]["functions"]) == ("clean", list(PAIR))
    assert (card["scrub"]["outcome"], card["scrub"]["functions"]) == ("clean", list(CARD))
    assert f"{CARD[0]}, {CARD[1]}: reset by bus" in card["scrub"]["evidence"]

    refused = {name: refusal["outcome"] for name, refusal in answers["refusals"].items()}
    assert refused == {"not listed": "refused", "no driver": "refused", "not there": "failed", "bridge": "refused"}
    assert answers["command_line"]["exit"] == 0
    assert answers["command_line"]["said"]["outcome"] == "clean"

    dying = answers["dying"]
    assert dying["alive"]["outcome"] == "clean"
    assert dying["died"]["outcome"] == "failed"  # the kernel waits a minute for it to come back from its reset
    assert dying["died"]["reason"] == "the reset has not returned after 15 s: dmesg says more"
    assert dying["left behind"]["outcome"] == "busy"
    assert f"{DYING} is in use by" in dying["left behind"]["reason"]

    looks = {
        name: look_of(json.dumps(look).encode())
        for name, look in {**answers["watched"], **answers["watched_broken"]}.items()
    }
    gpus = {address: GpuHealth("gpu-h100", address, "h100", HealthState.FINE, NOON) for address in GIVEN}
    well, memory = judge(None, looks["well"], gpus, NOON)
    assert well == []
    assert {gpu.address: gpu.in_use for gpu in looks["well"].gpus} == dict.fromkeys(GIVEN, False)
    assert {gpu.address for gpu in looks["in use"].gpus if gpu.in_use} == {LONE}
    broken, _ = judge(memory, looks["broken"], gpus, NOON + timedelta(minutes=5))
    observed = {(observation.address, observation.code) for observation in broken}
    assert {(PAIR[0], "missing"), (LONE, "driver"), (DYING, "no-answer"), (DYING, "kernel-log")} <= observed, observed
    assert not {address for address, _ in observed} & {PAIR[1], *CARD}, observed
