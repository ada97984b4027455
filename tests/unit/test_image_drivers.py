"""What an image has for GPUs and for jobs: which kernel module, which packages, and what a check says of them."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

import pytest

import gpuyard.lab as lab_package
from gpuyard.host.pci_ids import PciIds
from gpuyard.images.build import fetch_runner
from gpuyard.images.checking import judge, read_console
from gpuyard.images.element_files import own_elements
from gpuyard.images.planner import BuildPlan, Folders, plan_build
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding, Severity
from gpuyard.site.driver_choice import kernel_module
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.load import load_site
from gpuyard.site.problems import SiteError

V100, T4, H100, B200, K40 = "10de:1db4", "10de:1eb8", "10de:2330", "10de:2901", "10de:1024"
NAMES = PciIds(
    [],
    {
        "10de": "NVIDIA",
        V100: "GV100GL [Tesla V100 PCIe 16GB]",
        T4: "TU104GL [Tesla T4]",
        H100: "GH100[H100 SXM5 80GB]",
        B200: "GB100 [B200]",
        K40: "GK110BGL [Tesla K40c]",
    },
)
OWN = own_elements()
DAY = date(2026, 11, 22)
FOLDERS = Folders(*map(Path, ("/c/elements", "/c/dib", "/c/work", "/c/trees/it", "/c/runner.tar.gz")))
NONCE = "0123456789abcdef"


def built(branch: str = "580", module: str | None = None, **more: object) -> ImageBuild:
    driver = {"branch": branch, "kernel_module": module}
    base = {"distribution": "debian", "release": "bookworm"}
    return ImageBuild.model_validate({"base": base, "driver": driver, **more})


@pytest.mark.parametrize(
    ("branch", "models", "module"),
    [
        ("580", [V100], "proprietary"),
        ("580", [H100], "open"),
        ("535", [H100, T4], "proprietary"),
        ("580", [B200], "open"),
        ("580", [V100, T4], "proprietary"),
        ("580", ["1002:740f"], "open"),
        ("535", [], "proprietary"),
    ],
)
def test_the_kernel_module_is_that_of_the_gpus(branch: str, models: list[str], module: str) -> None:
    assert kernel_module(built(branch), models, NAMES) == module
    assert kernel_module(built(branch, "open"), models, NAMES) == "open", "unless it is stated"


def site_with(tmp_path: Path, build: str) -> Path:
    lab = Path(lab_package.__file__).parent
    (tmp_path / "recordings").symlink_to(lab / "recordings")
    file = tmp_path / "site.yaml"
    base = "base: {distribution: debian, release: bookworm}"
    image = f"images:\n  i:\n    build: {{{base}, {build}}}\n"
    file.write_text((lab / "site.yaml").read_text().replace("images:\n", image))
    return file


@pytest.mark.parametrize(
    ("build", "said"),
    [
        ("pools: [v100], driver: {branch: '590'}", "branch 590 does not drive Volta; 580 is the last one that does"),
        ("pools: [t4], driver: {branch: '390'}", "branch 390 does not drive Turing; 410 is the first one that does"),
        ("pools: [v100], driver: {branch: '580', kernel_module: open}", "open does not drive all GPUs"),
        ("pools: [v10]", "unknown pool 'v10'"),
        ("driver: {branch: '580'}, pools: [v100], cuda: 12-8", "write 'driver' with 'source: nvidia'"),
        ("container_toolkit: true", "write 'driver', too"),
        ("driver: {branch: 580}", "580"),
        ("runner: {version: 2.330, sha256: x}", "version"),
        ("visibility: shared", "projects that see an image are named with 'visibility: shared'"),
        ("members: [demo]", "projects that see an image are named with 'visibility: shared'"),
        ("visibility: shared, members: [demo]", ""),
        ("pools: [v100], driver: {branch: '535'}", ""),
    ],
)
def test_a_driver_that_cannot_be_is_refused_with_the_site(tmp_path: Path, build: str, said: str) -> None:
    if not said:
        assert load_site(site_with(tmp_path, build)).site.images["i"].build is not None
        return
    with pytest.raises(SiteError) as refused:
        load_site(site_with(tmp_path, build))
    assert said in str(refused.value)
    assert "images.i.build" in str(refused.value)


def test_what_the_elements_are_told() -> None:
    plan = plan_build("i", built(), OWN, DAY, [V100])
    told = plan.environment(FOLDERS, {})
    assert plan.elements[2] == "gpuyard-nvidia"
    assert (told["DIB_GPUYARD_NVIDIA_BRANCH"], told["DIB_GPUYARD_NVIDIA_MODULE"]) == ("580", "proprietary")
    assert "non-free" in told["DIB_DEBIAN_COMPONENTS"]
    assert plan_build("i", built(), OWN, DAY, [H100]).name != plan.name, "another kernel module, another image"
    assert plan_build("i", built(pools=["a"]), OWN, DAY, [V100]).name == plan.name
    plain = plan_build("i", built(driver=None), OWN, DAY, [V100]).environment(FOLDERS, {})
    assert not [name for name in plain if "NVIDIA" in name or name == "DIB_DEBIAN_COMPONENTS"]


def test_cuda_and_containers_come_after_the_driver() -> None:
    driver = {"branch": "580", "source": "nvidia"}
    plan = plan_build("i", built(driver=driver, cuda="12-8", container_toolkit=True), OWN, DAY, [V100])
    assert plan.elements[2:] == ("gpuyard-nvidia", "gpuyard-cuda", "gpuyard-containers")
    assert plan.environment(FOLDERS, {})["DIB_GPUYARD_CUDA"] == "12-8"


def runner_plan(archive: str, sha256: str) -> BuildPlan:
    runner = {"version": "2.330.0", "sha256": sha256, "archive": archive}
    return plan_build("i", built(driver=None, runner=runner), OWN, DAY)


def test_the_runner_is_the_one_that_the_site_file_means(tmp_path: Path) -> None:
    (tmp_path / "runner.tar.gz").write_bytes(b"runner")
    right = hashlib.sha256(b"runner").hexdigest()
    kept = tmp_path / "cache"
    with pytest.raises(BlockedError, match=f"has the SHA-256 {right}, and the site file says {'0' * 64}"):
        fetch_runner(runner_plan("runner.tar.gz", "0" * 64), kept, tmp_path)
    assert not kept.exists()
    fetch_runner(runner_plan("runner.tar.gz", right), kept, tmp_path)
    assert kept.read_bytes() == b"runner"
    fetch_runner(runner_plan("gone.tar.gz", right), kept, tmp_path)  # it is there from before
    kept.unlink()
    with pytest.raises(UsageError, match=r"gone\.tar\.gz: No such file"):
        fetch_runner(runner_plan("gone.tar.gz", right), kept, tmp_path)


def verdict(code: str, module: str = "proprietary", **words: str) -> Finding:
    said = {
        "over": "",
        "driver-module": "535.261.03 NVIDIA",
        "driver-load": "modprobe: ERROR: could not insert 'nvidia_current': No such device",
        "driver-loaded": "0",
        "driver-held": "12",
        "driver-smi": "/usr/bin/nvidia-smi",
        "runner": "runner run.sh",
        "updates": "masked",
    }
    said |= {word.replace("_", "-"): value for word, value in words.items()}
    text = "\n".join(f"gpuyard-image: {NONCE} {word} {value}" for word, value in said.items() if value != "-")
    build = built("535", runner={"version": "2.330.0", "sha256": "0" * 64})
    (found,) = [one for one in judge(read_console(text, NONCE), build, "", True, module) if one.code == code]
    return found


@pytest.mark.parametrize(
    ("words", "severity", "said"),
    [
        ({}, Severity.OK, "loads and finds no GPU, as there is none here"),
        ({"driver_load": "Invalid argument [ 40.4] NVRM: No NVIDIA GPU found."}, Severity.OK, "finds no GPU"),
        ({"driver_loaded": "1"}, Severity.OK, "535.261.03 is loaded"),
        ({"driver_module": "-"}, Severity.ERROR, "no NVIDIA module for the kernel"),
        ({"driver_module": "580.1 NVIDIA"}, Severity.ERROR, "built with branch 535"),
        ({"driver_module": "535.1 Dual MIT/GPL"}, Severity.ERROR, "built with the proprietary one"),
        ({"driver_held": "0"}, Severity.ERROR, "not held"),
        ({"driver_smi": "-"}, Severity.ERROR, "no nvidia-smi"),
        ({"driver_load": "Exec format error"}, Severity.ERROR, "cannot be loaded: Exec format error"),
    ],
)
def test_what_a_check_says_of_the_driver(words: dict[str, str], severity: Severity, said: str) -> None:
    found = verdict("driver", **words)
    assert found.severity is severity
    assert said in found.reason


def test_units_that_need_a_gpu_may_fail_without_one() -> None:
    assert (
        verdict("units", failed_units="nvidia-persistenced.service systemd-modules-load.service").severity
        is Severity.OK
    )
    assert "ssh.service" in verdict("units", failed_units="nvidia-persistenced.service ssh.service").reason


@pytest.mark.parametrize(
    ("words", "said"),
    [({"runner": "root run.sh"}, "is root"), ({"runner": "-"}, "no run.sh"), ({"updates": "enabled"}, "apt upgrades")],
)
def test_what_a_check_says_of_the_runner(words: dict[str, str], said: str) -> None:
    assert verdict("runner").severity is Severity.OK
    found = verdict("runner", **words)
    assert found.severity is Severity.ERROR
    assert said in found.reason
