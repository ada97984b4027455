"""What an image has for GPUs and for jobs: which kernel module, which packages, and what a check says of them."""

from __future__ import annotations

import hashlib
from datetime import date
from pathlib import Path

import pytest
from ruamel.yaml import YAML

import gpuyard.host as host_package
import gpuyard_lab as lab_package
from gpuyard.host.pci_ids import PciIds
from gpuyard.images.build import fetch_runner
from gpuyard.images.checking import judge, read_console
from gpuyard.images.element_files import own_elements
from gpuyard.images.planner import BuildPlan, Folders, plan_build
from gpuyard.model.errors import BlockedError, UsageError
from gpuyard.model.finding import Finding, Severity
from gpuyard.nova.gpu_models import SRIOV
from gpuyard.site.gpu_generations import is_unknown
from gpuyard.site.image_problems import image_problems, kernel_module
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.load import load_site
from gpuyard.site.problems import SiteError
from gpuyard.site.schema import Site

V100, T4, H100, B200, K40 = "10de:1db4", "10de:1eb8", "10de:2330", "10de:2901", "10de:1024"
P100, M60, A100, L40, GH200 = "10de:15f8", "10de:13f2", "10de:20b0", "10de:26b5", "10de:2342"
NAMES = PciIds(
    [],
    {
        "10de": "NVIDIA",
        V100: "GV100GL [Tesla V100 PCIe 16GB]",
        T4: "TU104GL [Tesla T4]",
        H100: "GH100[H100 SXM5 80GB]",
        B200: "GB100 [B200]",
        K40: "GK110BGL [Tesla K40c]",
        P100: "GP100GL [Tesla P100 PCIe 16GB]",
        M60: "GM204GL [Tesla M60]",
        A100: "GA100 [A100 SXM4 40GB]",
        L40: "AD102GL [L40]",
        "10de:2348": "GH100 [GH200 144G HBM3e]",
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
        ("550", [GH200], "open"),
        ("550", ["10de:2348"], "open"),
        ("550", [GH200, H100], "open"),
    ],
)
def test_the_kernel_module_is_that_of_the_gpus(branch: str, models: list[str], module: str) -> None:
    assert kernel_module(built(branch), models, NAMES) == module
    assert kernel_module(built(branch, "open"), models, NAMES) == "open", "unless it is stated"


SITE = """\
site: x
hosts: {h: {recording: h.json}}
pools: {p: {models: ["%s"]}}
images: {i: {build: {base: {distribution: debian, release: bookworm}, driver: {branch: '%s', source: nvidia%s}%s}}}
"""


def refused(
    model: str, branch: str, cuda: str | None = None, module: str | None = None, names: PciIds = NAMES
) -> list[str]:
    """What is wrong with an image for one model of GPUs: paths and reasons."""
    more = "" if cuda is None else f", cuda: {cuda}"
    stated = "" if module is None else f", kernel_module: {module}"
    site = Site.model_validate(YAML(typ="safe").load(SITE % (model, branch, stated, more)))
    return [f"{problem.place[-1]}: {problem.message}" for problem in image_problems(site, names)]


PTXAS = {
    "11-7": {35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87},
    "11-8": {35, 37, 50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90},
    "12-0": {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90},
    "12-6": {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90},
    "12-8": {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 120},
    "12-9": {50, 52, 53, 60, 61, 62, 70, 72, 75, 80, 86, 87, 89, 90, 100, 101, 103, 120, 121},
    "13-0": {75, 80, 86, 87, 88, 89, 90, 100, 103, 110, 120, 121},
    "13-5": {75, 80, 86, 87, 88, 89, 90, 100, 103, 107, 110, 120, 121},
}
"""What `ptxas --help` names as --gpu-name (sm_NN), run from NVIDIA's wheels on PyPI: nvidia-cuda-nvcc-cu11 11.7.99 and
11.8.89, nvidia-cuda-nvcc-cu12 12.0.140, 12.6.85, 12.8.93 and 12.9.86, nvidia-cuda-nvcc 13.0.88 and 13.5.37."""
COMPUTE = {K40: 35, M60: 52, P100: 60, V100: 70, T4: 75, A100: 80, L40: 89, H100: 90, GH200: 90, B200: 100}
"""Compute capabilities, by NVIDIA's list (developer.nvidia.com/cuda-gpus)."""


@pytest.mark.parametrize("cuda", PTXAS)
@pytest.mark.parametrize("model", COMPUTE)
def test_cuda_is_taken_for_the_gpus_that_its_compiler_knows(cuda: str, model: str) -> None:
    problems = [line for line in refused(model, "580", cuda) if line.startswith("cuda: ")]
    assert bool(problems) == (COMPUTE[model] not in PTXAS[cuda]), problems
    assert all("makes no code for" in line for line in problems)


@pytest.mark.parametrize(
    ("cuda", "least"),
    # NVIDIA, docs.nvidia.com/deploy/cuda-compatibility/minor-version-compatibility.html, tables 1 and 2
    [
        ("13-0", 580),
        ("13-5", 580),
        ("12-0", 525),
        ("12-8", 525),
        ("11-8", 450),
        ("10-2", 440),
        ("10-1", 418),
        ("10-0", 410),
    ],
)
def test_cuda_takes_a_driver_that_runs_it(cuda: str, least: int) -> None:
    assert not [line for line in refused(T4, str(least), cuda) if "takes driver branch" in line]
    major, minor = cuda.split("-")
    reason = f"CUDA {major}.{minor} takes driver branch {least} or a newer one, and 'driver' has {least - 1}"
    assert f"cuda: {reason}; write another branch, or an older CUDA" in refused(T4, str(least - 1), cuda)


def test_nothing_is_said_of_a_cuda_that_is_newer_than_the_table() -> None:
    assert refused(T4, "700", "21-0") == []
    assert refused("1002:740f", "470", "21-0") == []


def test_a_grace_hopper_has_the_open_module_only() -> None:
    (problem,) = refused(GH200, "550", module="proprietary")
    assert problem == (
        "driver: the proprietary kernel module does not work with all GPUs of its pools: Grace Hopper needs open; "
        "build one image for each, with 'pools'"
    )
    assert refused(H100, "550", module="proprietary") == []


SHIPPED = PciIds([(Path(host_package.__file__).parent / "pci.ids").read_bytes()])
"""The list that travels with gpuyard, and no other one."""
COMPUTE_OF_NEWER = {
    "10de:20bd": 80,  # A800-SXM4-40GB
    "10de:26b9": 89,  # L40S
    "10de:26ba": 89,  # L20
    "10de:27b6": 89,  # L2
    "10de:2329": 90,  # H20
    "10de:2335": 90,  # H200
    "10de:233b": 90,  # H200 NVL
    "10de:2342": 90,  # GH200 120GB, GH200 480GB
    "10de:2348": 90,  # GH200 144G HBM3e
    "10de:2901": 100,  # B200
    "10de:2941": 100,  # GB200
    "10de:3182": 103,  # B300 SXM6 AC
    "10de:31c2": 103,  # GB300
    "10de:2bb1": 120,  # RTX PRO 6000 Blackwell Workstation Edition
    "10de:2bb5": 120,  # RTX PRO 6000 Blackwell Server Edition
}
"""Ids and products of "Compatible GPUs" in the README of NVIDIA/open-gpu-kernel-modules 595.45.04, with their compute
capabilities by NVIDIA's list (developer.nvidia.com/cuda-gpus)."""


@pytest.mark.parametrize("cuda", PTXAS)
@pytest.mark.parametrize("model", COMPUTE_OF_NEWER)
def test_gpus_that_the_shipped_list_lacks_are_held_against_cuda(cuda: str, model: str) -> None:
    vendor, _, product = model.partition(":")
    assert SHIPPED.product(vendor, product) is None
    problems = [line for line in refused(model, "580", cuda, names=SHIPPED) if line.startswith("cuda: ")]
    assert bool(problems) == (COMPUTE_OF_NEWER[model] not in PTXAS[cuda]), problems


@pytest.mark.parametrize(
    ("model", "without", "first"),
    [
        ("10de:26b9", 515, 535),
        ("10de:2329", 515, 535),
        ("10de:2335", 515, 550),
        ("10de:2901", 550, 570),
        ("10de:2bb5", 550, 575),
        ("10de:3182", 575, 580),
    ],
)
def test_gpus_that_the_shipped_list_lacks_are_held_against_the_branch(model: str, without: int, first: int) -> None:
    """The READMEs of NVIDIA/open-gpu-kernel-modules: no version of the one branch has the GPU, the other one does."""
    (problem,) = refused(model, str(without), names=SHIPPED)
    assert problem.startswith(f"branch: branch {without} does not drive ")
    assert refused(model, str(first), names=SHIPPED) == []
    assert refused(model, "470", names=SHIPPED) != []


@pytest.mark.parametrize("model", ["10de:2342", "10de:2348", "10de:2901", "10de:2941", "10de:2bb5", "10de:3182"])
def test_grace_hopper_and_blackwell_get_the_open_module_by_the_shipped_list(model: str) -> None:
    """NVIDIA, "Transitions Fully Towards Open-Source GPU Kernel Modules": they must have it."""
    assert kernel_module(built("550"), [model], SHIPPED) == "open"
    (problem,) = refused(model, "580", module="proprietary", names=SHIPPED)
    assert problem.startswith("driver: the proprietary kernel module does not work with all GPUs of its pools")


def test_a_gpu_that_nobody_knows_takes_a_kernel_module() -> None:
    """No list has 10de:2fff."""
    (problem,) = refused("10de:2fff", "470", "11-4", names=SHIPPED)
    assert problem.startswith("driver: of which generation 10de:2fff is, neither the list of PCI ids nor gpuyard knows")
    assert "write 'kernel_module: open'" in problem
    assert refused("10de:2fff", "470", "11-4", "open", names=SHIPPED) == []
    assert refused("1002:7fff", "470", "11-4", names=SHIPPED) == [], "not NVIDIA's"


def test_gpus_of_which_sriov_is_known_are_known_to_the_driver_too() -> None:
    assert [model for model in SRIOV if is_unknown(model, SHIPPED)] == []


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
        (
            "pools: [v100], driver: {branch: '580', kernel_module: open}",
            "the open kernel module does not work with all GPUs of its pools: Volta needs proprietary",
        ),
        ("pools: [v10]", "unknown pool 'v10'"),
        (
            "pools: [v100], driver: {branch: '580', source: nvidia}, cuda: 13-0",
            "images.i.build.cuda: CUDA 13.0 makes no code for Volta; 12 is the last that does, or name other 'pools'",
        ),
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
    environment = plan.environment(FOLDERS, {})
    assert plan.elements[2] == "gpuyard-nvidia"
    assert (environment["DIB_GPUYARD_NVIDIA_BRANCH"], environment["DIB_GPUYARD_NVIDIA_MODULE"]) == (
        "580",
        "proprietary",
    )
    assert "non-free" in environment["DIB_DEBIAN_COMPONENTS"]
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
    cached = tmp_path / "cache"
    with pytest.raises(BlockedError, match=f"has the SHA-256 {right}, and the site file says {'0' * 64}"):
        fetch_runner(runner_plan("runner.tar.gz", "0" * 64), cached, tmp_path)
    assert not cached.exists()
    fetch_runner(runner_plan("runner.tar.gz", right), cached, tmp_path)
    assert cached.read_bytes() == b"runner"
    fetch_runner(runner_plan("gone.tar.gz", right), cached, tmp_path)  # it is there from before
    cached.unlink()
    with pytest.raises(UsageError, match=r"gone\.tar\.gz: No such file"):
        fetch_runner(runner_plan("gone.tar.gz", right), cached, tmp_path)


def verdict(code: str, module: str = "proprietary", **words: str) -> Finding:
    values_by_word = {
        "over": "",
        "driver-module": "535.261.03 NVIDIA",
        "driver-load": "modprobe: ERROR: could not insert 'nvidia_current': No such device",
        "driver-loaded": "0",
        "driver-held": "12",
        "driver-smi": "/usr/bin/nvidia-smi",
        "runner": "runner run.sh",
        "updates": "masked",
    }
    values_by_word |= {word.replace("_", "-"): value for word, value in words.items()}
    text = "\n".join(f"gpuyard-image: {NONCE} {word} {value}" for word, value in values_by_word.items() if value != "-")
    build = built("535", runner={"version": "2.330.0", "sha256": "0" * 64})
    (match,) = [
        finding for finding in judge(read_console(text, NONCE), build, "", True, module) if finding.code == code
    ]
    return match


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
    finding = verdict("driver", **words)
    assert finding.severity is severity
    assert said in finding.reason


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
    finding = verdict("runner", **words)
    assert finding.severity is Severity.ERROR
    assert said in finding.reason
