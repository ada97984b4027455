"""The hosts of a lab: trees on the disk that the watch of hosts reads as it reads a machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpuyard.host.tree import open_tree
from gpuyard.host.watch import look
from gpuyard.model.host_report import GpuReport, HostReport
from gpuyard.site.load import load_site
from gpuyard_lab.errors import LabError
from gpuyard_lab.host_trees import Fault, break_gpu, mend_gpu, plant
from gpuyard_lab.plan import EXAMPLE_SITE

RECORDING = EXAMPLE_SITE.parent / "recordings/epyc-v100.json"
GPU, PEER = "0000:27:00.0", "0000:28:00.0"
GPUS = (GPU, PEER, "0000:44:00.0", "0000:a3:00.0", "0000:c3:00.0", "0000:c4:00.0")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    plant(tmp_path / "gpu-server", "gpu-server", RECORDING.read_text(encoding="utf-8"), GPUS)
    return tmp_path / "gpu-server"


def looked(root: Path, before: HostReport | None = None) -> HostReport:
    return look(open_tree(str(root)), before, number=1, time="2026-11-22T12:00:00+00:00")


def seen(root: Path, address: str = GPU, before: HostReport | None = None) -> GpuReport:
    (report,) = (gpu for gpu in looked(root, before).gpus if gpu.address == address)
    return report


def test_a_gpu_of_the_lab_looks_well(root: Path) -> None:
    report = seen(root)
    assert (report.ids, report.config, report.driver, report.group) == ("10de:1db4", "de10b41d", "vfio-pci", 19)
    assert (report.link.width, report.link.max_width, report.link.speed, report.link.max_speed) == (16, 16, 8.0, 8.0)
    assert dict(report.aer) == {"correctable": 0, "nonfatal": 0, "fatal": 0}
    assert (report.power, report.reset_methods) == ("D0", ("bus",))
    whole = looked(root)
    assert (whole.host, bool(whole.boot), bool(whole.kernel)) == ("gpu-server", True, True)
    assert len({gpu.serial for gpu in whole.gpus if gpu.address in GPUS}) == len(GPUS)


def test_every_host_of_the_example_can_be_planted(tmp_path: Path) -> None:
    loaded = load_site(EXAMPLE_SITE)
    for name, host in loaded.site.hosts.items():
        own = [gpu.address for gpu in loaded.compiled.gpus if gpu.host == name]
        text = (EXAMPLE_SITE.parent / host.recording).read_text(encoding="utf-8")
        plant(tmp_path / name, name, text, own)
        gpus_by_address = {gpu.address: gpu for gpu in looked(tmp_path / name).gpus}
        for address in own:
            gpu = gpus_by_address[address]
            assert gpu.driver == "vfio-pci"
            assert gpu.config not in ("", "ffffffff")
            assert gpu.reset_methods
            assert gpu.link.width == gpu.link.max_width == 16


@pytest.mark.parametrize("how", Fault)
def test_a_broken_gpu_looks_broken_and_a_mended_one_as_before(root: Path, how: Fault) -> None:
    before, neighbour = looked(root), seen(root, PEER)
    break_gpu(root, GPU, how)
    broken = seen(root, before=before)
    assert {
        Fault.FELL_OFF: broken.config == "ffffffff",
        Fault.MISSING: not broken.present,
        Fault.LINK: (broken.link.width, broken.link.max_width) == (1, 16),
        Fault.AER: broken.aer.get("nonfatal") == 1,
        Fault.RESET_FAILS: broken.reset_methods == () and broken.present,
    }[how]
    assert seen(root, PEER) == neighbour
    mend_gpu(root, "gpu-server", GPU)
    after = looked(root)
    assert after.gpus == before.gpus
    assert after.boot != before.boot


def test_a_gpu_breaks_twice_and_what_is_none_not_at_all(root: Path) -> None:
    for how in (Fault.RESET_FAILS, Fault.RESET_FAILS, Fault.AER, Fault.AER, Fault.FELL_OFF):
        break_gpu(root, GPU, how)
    assert seen(root).aer["nonfatal"] == 2
    break_gpu(root, GPU, Fault.MISSING)
    with pytest.raises(LabError, match="missing already"):
        break_gpu(root, GPU, Fault.LINK)
    with pytest.raises(LabError, match="no device"):
        break_gpu(root, "0000:ff:00.0", Fault.AER)
    with pytest.raises(LabError, match="no device"):
        mend_gpu(root, "gpu-server", "0000:ff:00.0")
    mend_gpu(root, "gpu-server", GPU)
    assert seen(root).reset_methods == ("bus",)


def test_a_recording_leads_nowhere_else(tmp_path: Path) -> None:
    evil = '{"tree": {"sys": {"bus": {"..": {"x": "out"}, "../../y": "out", "z": {"->": "/etc/passwd"}}}}}'
    plant(tmp_path / "a" / "b", "b", evil, ())
    assert [path.name for path in tmp_path.rglob("[xy]")] == []
    assert open_tree(str(tmp_path / "a" / "b")).read("sys/bus/z") is None
