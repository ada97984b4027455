"""What the exercise is done on, and that it would see a group that is split."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.model.gpu import Claim, Gpu, GpuRole, GpuState, GpuStatus
from gpuyard_lab.exercise import ExerciseError, ExerciseSubject, choose, split_groups
from tests.support.sites import flavor, site
from tests.support.sysfs import V100, Sysfs, epyc

FLAVORS = {
    "large": flavor(ram="64 GiB", gpus={"v100": 1}),
    "small": flavor(gpus={"v100": 1}),
    "pair": flavor(gpus={"v100": 2}, same_group=True),
}


def status(address: str, group: int, server: str | None) -> GpuStatus:
    gpu = Gpu("host", address, "v100", "V100", V100, GpuRole.LONE, "CUSTOM_GPU_V100", group)
    if server is None:
        return GpuStatus(gpu, GpuState.FREE)
    return GpuStatus(gpu, GpuState.CLAIMED, "", Claim(server, server, "ACTIVE", "p", "u"))


def test_the_host_with_shared_groups_and_the_smallest_flavors_are_chosen(tmp_path: Path) -> None:
    lone = Sysfs().function("27:00.0", V100, group=1)
    document = {"flavors": FLAVORS, "projects": {"demo": {"gpus": {"v100": 7}}}}
    compiled = site(tmp_path, document, {"lone": lone, "gpu-server": epyc()}).compiled
    assert choose(compiled) == ExerciseSubject("gpu-server", 6, 4, "small", ("pair-a", "pair-b"))


def test_without_a_shared_group_there_is_nothing_to_prove(tmp_path: Path) -> None:
    compiled = site(tmp_path, {}, {"lone": Sysfs().function("27:00.0", V100, group=1)}).compiled
    with pytest.raises(ExerciseError, match="no host of the site has an IOMMU group with several GPUs"):
        choose(compiled)


def test_a_site_without_a_flavor_for_pairs_is_told_which_is_missing(tmp_path: Path) -> None:
    demo = {"projects": {"demo": {"gpus": {"v100": 6}}}}
    compiled = site(tmp_path, {"flavors": {"small": FLAVORS["small"]}, **demo}).compiled
    with pytest.raises(ExerciseError, match="no flavor for v100-set-a, v100-set-b"):
        choose(compiled)


def test_a_site_that_gives_the_demo_project_too_little_is_told_what_to_write(tmp_path: Path) -> None:
    compiled = site(tmp_path, {"flavors": FLAVORS}).compiled
    with pytest.raises(ExerciseError, match=r"may not use all of pool v100: projects: {demo: {gpus: {v100: 6}}}"):
        choose(compiled)


def test_a_group_with_two_servers_is_seen_and_one_with_a_server_on_both_gpus_is_not() -> None:
    whole = [status("0000:27:00.0", 19, "a"), status("0000:28:00.0", 19, "a"), status("0000:44:00.0", 32, None)]
    assert split_groups(whole) == []
    split = [status("0000:27:00.0", 19, "a"), status("0000:28:00.0", 19, "b")]
    assert split_groups(split) == ["IOMMU group 19 on host is split between a, b"]
