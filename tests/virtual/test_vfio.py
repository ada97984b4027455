"""Verification against a real kernel, and what that kernel does while a VM has a GPU. See vfio_jobs.py."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from gpuyard.host.checks.prepared import CHECKS
from tests.virtual_hypervisor import machine
from tests.virtual_hypervisor.board import Iommu
from tests.virtual_hypervisor.testing import prepared
from tests.virtual_hypervisor.topology import VirtualHost, epyc_v100, titan_xp_node

pytestmark = pytest.mark.virtual

Findings = list[list[str]]


def run(host: VirtualHost, job: str, folder: Path) -> Any:
    """Run a job of vfio_jobs.py on the host; its answers."""
    path = f"{Path(gpuyard.__file__).parents[1]}:{Path(__file__).parents[2]}"
    command = shlex.join([sys.executable, "-m", "tests.virtual.vfio_jobs", job])
    result = machine.run(prepared(), host, f"#!/bin/sh\nPYTHONPATH={shlex.quote(path)} exec {command}\n", folder)
    assert result.status == 0, result.output
    return json.loads((folder / "answers.json").read_text())


def but_ok(findings: Findings) -> Findings:
    return [finding for finding in findings if finding[1] != "ok"]


def reasons(check: str, findings: Findings) -> str:
    return "; ".join(reason for name, _, reason in findings if name == check)


def test_bound_gpus_are_verified_through_vfio(tmp_path: Path) -> None:
    answers = run(epyc_v100(exact=False), "bound", tmp_path)
    assert [finding[:2] for finding in but_ok(answers["nothing bound"])] == [["drivers", "error"]] * 6
    assert answers["opened"] == "no device node"
    assert but_ok(answers["bound"]) == []
    assert {check for check, _, _ in answers["bound"]} == set(CHECKS)
    for gpu in ("27:00.0", "28:00.0", "44:00.0", "a3:00.0", "c3:00.0", "c4:00.0"):
        assert f"{gpu} 10de:1db4 was opened and answers as 10de:1db4" in reasons("opened", answers["bound"])
    refused = but_ok(answers["interrupts not remapped"])
    assert [finding[:2] for finding in refused] == [["opened", "error"]] * 4
    assert "interrupts are not remapped" in refused[0][2]


@pytest.mark.slow
def test_a_half_bound_group_is_not_viable(tmp_path: Path) -> None:
    answers = run(titan_xp_node(exact=False), "half_bound", tmp_path)
    assert but_ok(answers["audio with vfio-pci"]) == []
    assert "18:00.1 10de:10ef was opened" in reasons("opened", answers["audio with vfio-pci"])

    ((check, level, reason),) = but_ok(answers["audio with snd_hda_intel"])
    assert (check, level) == ("drivers", "error")
    assert "18:00.1 10de:10ef is with snd_hda_intel" in reason
    assert reasons("opened", answers["audio with snd_hda_intel"]) == ""
    assert answers["opened with snd_hda_intel"] == "not viable"
    assert "is not viable" in answers["qemu"]  # QEMU and gpuyard agree

    for driver in ("None", "pci-stub"):
        assert [finding[:2] for finding in but_ok(answers[f"audio with {driver}"])] == [["drivers", "warning"]]
        assert "18:00.0 10de:1b02 was opened" in reasons("opened", answers[f"audio with {driver}"])
        assert answers[f"opened with {driver}"] == "10de:1b02"


@pytest.mark.slow
@pytest.mark.parametrize(
    "host",
    [
        pytest.param(lambda: epyc_v100(exact=False, iommu=Iommu.NONE), id="no IOMMU"),
        pytest.param(
            lambda: replace(epyc_v100(exact=False, iommu=Iommu.INTEL), command_line=("intel_iommu=off",)),
            id="off on the command line",
        ),
    ],
)
def test_without_an_iommu_the_answer_is_calm(host: Any, tmp_path: Path) -> None:
    answers = run(host(), "without_iommu", tmp_path)
    assert but_ok(answers["verified"]) == [["iommu", "error", "the IOMMU is off: there are no IOMMU groups"]]
    assert answers["opened"] == "no device node"


def test_a_vm_has_its_gpu_for_itself(tmp_path: Path) -> None:
    answers = run(epyc_v100(exact=False, iommu=Iommu.INTEL), "guest", tmp_path)
    group = answers["group"]
    assert (answers["ids in the guest"], answers["class in the guest"]) == ("10de:1db4", "030200")
    assert answers["inverted"] == hex(0x12345678 ^ 0xFFFFFFFF)
    assert answers["DMA round trip"] is True
    before, after = answers["faults"]  # of DMA to an address that is no memory of the guest
    assert before == []
    assert len(after) == 1
    assert "Request device [44:00.0] fault addr 0x9000000" in after[0]

    assert answers["opened while it runs"] == "busy"
    assert f"failed to open /dev/vfio/{group}: Device or resource busy" in answers["second VM"]
    assert but_ok(answers["verified while it runs"]) == []
    reason = reasons("opened", answers["verified while it runs"])
    assert f"group {group} is in use by a VM" in reason
    assert "a3:00.0 10de:1db4 was opened" in reason

    assert "has not returned after 10 s: somebody may hold the device" in answers["unbind"]
    assert (answers["writers while it runs"], answers["writers after it"]) == (1, 0)
    assert but_ok(answers["verified after it"]) == []
    assert "44:00.0 10de:1db4 was opened" in reasons("opened", answers["verified after it"])
