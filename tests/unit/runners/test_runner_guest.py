"""What a runner's server runs: the check of its GPUs, with every driver that one may meet; and that all of it is sound.

tests/virtual/test_runner_boot.py boots it.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

import gpuyard.guest
import gpuyard.health
import gpuyard.runners
from gpuyard.runners.user_data import UserDataError, user_data
from tests.support.guest_rules import ANY_JOB

GUEST = Path(gpuyard.runners.__file__).parent / "guest"
CHECK = Path(gpuyard.guest.__file__).parent / "gpu-check.sh"
ACCEPT = Path(gpuyard.health.__file__).parent / "guest" / "accept.sh"
SCRIPTS = {path.name: path for path in (*GUEST.glob("*.sh"), CHECK, ACCEPT)}
V100 = "Tesla V100-PCIE-16GB, 00000000:05:00.0, 0"
SECOND = "Tesla V100-PCIE-16GB, 00000000:06:00.0, 0"
NO_ECC = "NVIDIA TITAN Xp, 00000000:05:00.0, [N/A]"
Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Runs the check on a made-up machine; status and words."""

    def run(
        *devices: str, smi: str | None = None, dmesg: str = "", wanted: int = 1, errors: str = "", limit: int = 10
    ) -> tuple[int, str]:
        sysfs, tools = tmp_path / "sys", tmp_path / "bin"
        tools.mkdir()
        for number, device in enumerate(devices):
            vendor, kind, driver = (*device.split(), "")[:3]
            folder = sysfs / f"bus/pci/devices/0000:0{number}:00.0"
            folder.mkdir(parents=True)
            (folder / "vendor").write_text(f"0x{vendor}\n")
            (folder / "class").write_text(f"0x{kind}\n")
            if driver:
                (folder / "driver").symlink_to(f"../../../bus/pci/drivers/{driver}")
            if errors:
                (folder / "ras").mkdir()
                (folder / "ras/umc_err_count").write_text(errors)
        (tools / "messages").write_text(f"#!/bin/sh\nprintf '%s\\n' '{dmesg}'\n")
        (tools / "messages").chmod(0o755)
        if smi is not None:
            (tools / "nvidia-smi").write_text(f"#!/bin/sh\n{smi}\n")
            (tools / "nvidia-smi").chmod(0o755)
        environment = {
            "PATH": f"{tools}:{os.defpath}",
            "GPUYARD_SYSFS": str(sysfs),
            "GPUYARD_DMESG": str(tools / "messages"),
        }
        command = ["sh", str(CHECK), str(wanted), str(limit)]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.stderr == ""
        assert done.stdout.count("\n") == 1
        return done.returncode, done.stdout.strip()

    return run


def answers(*lines: str) -> str:
    return "\n".join(f"echo '{line}'" for line in lines)


GPU = "10de 030200 nvidia"
BARE = "10de 030200"
AUDIO = "10de 040300 snd_hda_intel"
VGA = "1234 030000 bochs-drm"
MI210 = "1002 038000 amdgpu"


def test_a_good_gpu_is_named(check: Check) -> None:
    assert check(VGA, GPU, AUDIO, smi=answers(V100)) == (0, "Tesla V100-PCIE-16GB at 00000000:05:00.0")


def test_two_good_gpus(check: Check) -> None:
    status, words = check(GPU, GPU, smi=answers(V100, SECOND), wanted=2)
    assert (status, words.count("V100")) == (0, 2)


def test_a_gpu_without_ecc_is_good(check: Check) -> None:
    assert check(GPU, smi=answers(NO_ECC))[0] == 0


def test_a_machine_without_a_gpu(check: Check) -> None:
    assert check(VGA, AUDIO, smi=answers(V100)) == (1, "0 of 1 GPUs are on the machine's PCI bus")


def test_an_image_without_a_driver(check: Check) -> None:
    assert check(BARE) == (
        1,
        "1 NVIDIA GPUs are on the PCI bus, and the image has no driver for them: there is no nvidia-smi",
    )


def test_a_driver_that_hangs(check: Check) -> None:
    assert check(GPU, smi="exec sleep 60", limit=1) == (1, "nvidia-smi has not answered in 1 s")


def test_a_driver_that_fails_in_its_own_words(check: Check) -> None:
    words = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    assert check(GPU, smi=f'echo "{words}"; echo more; exit 9') == (1, f"nvidia-smi failed (9): {words}")


def test_a_gpu_that_the_driver_does_not_see(check: Check) -> None:
    assert check(GPU, GPU, smi=answers(V100), wanted=2) == (1, "nvidia-smi sees 1 GPUs, and 2 are wanted")


def test_a_gpu_with_memory_errors(check: Check) -> None:
    broken = SECOND[:-1] + "3"
    verdict = check(GPU, GPU, smi=answers(V100, broken), wanted=2)
    assert verdict == (1, "00000000:06:00.0 has 3 uncorrected ECC errors")


def test_a_gpu_of_which_the_driver_complains(check: Check) -> None:
    log = "[   12.1] NVRM: loading\n[   14.2] NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus."
    verdict = check(GPU, smi=answers(V100), dmesg=log)
    assert verdict == (1, "the kernel log has NVRM: Xid (PCI:0000:05:00): 79, GPU has fallen off the bus.")


def test_amd_gpus(check: Check) -> None:
    assert check(MI210, "1002 120000 amdgpu", wanted=2) == (0, "2 AMD GPUs with amdgpu")


def test_amd_gpus_without_a_driver(check: Check) -> None:
    verdict = check("1002 038000")
    assert verdict == (1, "1 AMD GPUs are on the PCI bus, and no driver of the image has taken them")


def test_an_amd_gpu_with_memory_errors(check: Check) -> None:
    assert check(MI210, errors="ue: 2\nce: 0\n") == (1, "0000:00:00.0 has uncorrected ECC errors")


def test_an_amd_gpu_with_errors_that_were_corrected(check: Check) -> None:
    assert check(MI210, errors="ue: 0\nce: 7\n")[0] == 0


@pytest.mark.parametrize("script", sorted(SCRIPTS))
def test_shellcheck_has_nothing_to_say(script: str) -> None:
    done = subprocess.run(
        ["shellcheck", "--shell=sh", str(SCRIPTS[script])], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout


def test_systemd_has_nothing_to_say_of_the_units(tmp_path: Path) -> None:
    try:
        version = subprocess.run(["systemd-analyze", "--version"], capture_output=True, text=True, check=True).stdout
    except FileNotFoundError:
        pytest.skip("no systemd-analyze")
    if int(re.findall(r"systemd (\d+)", version)[0]) < 250:
        pytest.skip("this systemd-analyze needs a running systemd")
    for unit in ("gpuyard-runner.service", "gpuyard.slice"):
        (tmp_path / unit).write_text((GUEST / unit).read_text())
    command = [
        "systemd-analyze",
        "verify",
        "--man=no",
        "--recursive-errors=no",
        str(tmp_path / "gpuyard-runner.service"),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_user_data_has_one_secret_and_only_root_reads_it() -> None:
    from ruamel.yaml import YAML

    text = user_data("gpuyard-v100-c3k8x2m9", "c2VjcmV0", 2, ANY_JOB)
    assert text.startswith("#cloud-config\n")
    assert text.count("c2VjcmV0") == 1
    files = {file["path"]: file for file in YAML(typ="safe").load(text)["write_files"]}
    secret = files["/run/gpuyard/jitconfig"]
    assert (secret["content"], secret["permissions"], secret["owner"]) == ("c2VjcmV0", "0600", "root:root")
    assert files["/var/lib/gpuyard/gpu-check"]["content"] == CHECK.read_text()
    assert files["/var/lib/gpuyard/settings"]["content"] == "NAME=gpuyard-v100-c3k8x2m9\nGPUS=2\nCHECK_SECONDS=60\n"


def test_it_is_as_large_as_nova_takes_and_no_larger() -> None:
    assert len(user_data("r", "A" * 32_000, 1, ANY_JOB)) < 49_152
    with pytest.raises(UserDataError, match="larger than Nova takes"):
        user_data("r", "A" * 39_999, 1, ANY_JOB)


@pytest.mark.parametrize("config", ["", "a b", "a\nruncmd: [reboot]", "$(reboot)", "é", "A" * 40_001])
def test_what_is_no_configuration_never_gets_into_a_file(config: str) -> None:
    with pytest.raises(UserDataError, match="is not base64") as caught:
        user_data("r", config, 1, ANY_JOB)
    assert len(config) < 3 or config not in str(caught.value), "it is a secret"


def test_a_name_that_is_none() -> None:
    with pytest.raises(UserDataError, match="is no name"):
        user_data("$(reboot)", "AAAA", 1, ANY_JOB)
