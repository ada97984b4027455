"""Preparing a host with a real kernel: plan, apply live, verify, boot, undo, and a kill between any two steps."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import gpuyard
from tests.contract.binding import RULES
from tests.support.on_request import only_by
from tests.virtual_hypervisor import machine
from tests.virtual_hypervisor.testing import prepared
from tests.virtual_hypervisor.topology import UPLINK, VirtualHost, bochs, epyc_v100, titan_xp_node

pytestmark = pytest.mark.virtual

FIRST, SECOND = ["0000:18:00.0", "0000:18:00.1"], ["0000:86:00.0", "0000:86:00.1"]
NATIVE = [["bochs-drm", "bochs-drm"], ["snd_hda_intel", "(null)"]]
"""Driver and override of a card as it is found: bochs-drm stands in for nouveau, and needs the override for it."""
VFIO = ["vfio-pci", "vfio-pci"]


def run(host: VirtualHost, folder: Path, *words: str, timeout: float = 240) -> Any:
    """Run a job of prepare_jobs.py on the host; its answers."""
    path = f"{Path(gpuyard.__file__).parents[1]}:{Path(__file__).parents[2]}"
    command = shlex.join([sys.executable, "-m", "tests.virtual.prepare_jobs", *words])
    script = f"#!/bin/sh\nPYTHONHASHSEED=0 PYTHONPATH={shlex.quote(path)} exec {command}\n"
    result = machine.run(prepared(), host, script, folder, timeout)
    assert result.status == 0, result.output
    return json.loads((folder / "answers.json").read_text())


def of(drivers: dict[str, list[str]], addresses: list[str]) -> list[list[str]]:
    return [drivers[address] for address in addresses]


@pytest.mark.slow
def test_the_whole_way_of_a_card_whose_twin_stays_with_the_host(tmp_path: Path) -> None:
    answers = run(titan_xp_node(exact=False, bound=False), tmp_path, "cycle", "--keep", "86:00.0")
    assert of(answers["before"], FIRST + SECOND) == NATIVE + NATIVE
    assert answers["check"]["exit"] == 0
    assert answers["plan"]["steps"][-1]["diff"] == [
        "0000:18:00.0: bochs-drm -> vfio-pci",
        "0000:18:00.1: snd_hda_intel -> vfio-pci",
    ]
    assert answers["untouched by plan"]

    assert answers["apply"]["exit"] == 0, answers["apply"]
    assert of(answers["applied"], FIRST) == [VFIO, VFIO]
    assert of(answers["applied"], SECOND) == NATIVE
    assert answers["plan again"]["steps"] == []
    assert answers["verify"] == []

    boot = answers["at boot"]
    assert of(boot["claimed"], FIRST) == [VFIO, VFIO], "before the native driver, which modprobe then loads"
    assert of(boot["claimed"], SECOND) == NATIVE, "same ids, and not in the list"
    assert [driver for driver, _ in of(boot["taken"], FIRST)] == ["bochs-drm", "snd_hda_intel"]
    assert boot["bind"] == [0, ""]
    assert of(boot["bound"], FIRST) == [VFIO, VFIO], "what a driver inside the kernel took is taken over"
    assert of(boot["bound"], SECOND) == NATIVE

    assert answers["undo"]["exit"] == 0, answers["undo"]
    assert answers["undone"]
    assert answers["left behind"] == []
    assert answers["undo again"]["steps"] == []


@pytest.mark.slow
def test_six_gpus_that_were_taken_by_their_ids(tmp_path: Path) -> None:
    """The way of the wiki pages: options on the command line. They are named, and nothing breaks."""
    answers = run(epyc_v100(exact=False), tmp_path, "cycle")
    gpus = ["0000:27:00.0", "0000:28:00.0", "0000:44:00.0", "0000:a3:00.0", "0000:c3:00.0", "0000:c4:00.0"]
    assert answers["apply"]["exit"] == 0, answers["apply"]
    assert [driver for driver, _ in of(answers["applied"], gpus)] == ["vfio-pci"] * 6
    assert answers["verify"] == []
    assert of(answers["at boot"]["bound"], gpus) == [VFIO] * 6
    assert answers["undone"]
    assert answers["left behind"] == []


def test_the_kernel_keeps_the_contract_that_the_model_keeps(tmp_path: Path) -> None:
    answers = run(titan_xp_node(exact=False, bound=False), tmp_path, "contract")
    assert answers == {rule.__name__: "" for rule in RULES}


@pytest.mark.slow
@only_by("machine", "five minutes")
def test_killed_before_any_change_it_is_undone_or_finished_by_the_next_run(tmp_path: Path) -> None:
    host = replace(titan_xp_node(exact=False), prepare=UPLINK + bochs("0000:18:00.0", "0000:86:00.0"))
    answers = run(host, tmp_path, "crashes", timeout=480)
    assert "not recovered" not in answers, answers
    assert "undo not recovered" not in answers
    assert "undo never ended" not in answers
    assert answers["survived"] > 25
    assert answers["killed"]
    assert of(answers["applied after a crash"], FIRST + SECOND) == [VFIO] * 4
