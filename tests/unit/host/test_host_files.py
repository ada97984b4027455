"""The texts that gpuyard writes on a host, in the hands of the programs that read them."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from gpuyard.host.preparation.distribution import GRUB_DEFAULTS, GRUB_FOLDER, configured_options
from gpuyard.host.preparation.files import (
    GRUB_FILE,
    HEAD,
    OUR_FILES,
    grub_file,
    hook_file,
    modprobe_file,
    script_file,
    unit_files,
)
from gpuyard.host.tree import FileTree

SHELLS = ["sh", "bash --posix"]
DEVICE = "0000:27:00.0"


def grub(tmp_path: Path, shell: str, defaults: str, required: list[str], unwanted: list[str]) -> str:
    """The two variables after the shell has read the defaults and the drop-in, as grub-mkconfig does."""
    for path, text in ((GRUB_DEFAULTS, defaults), (GRUB_FILE, grub_file(required, unwanted).text)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    shown = 'printf "%s|%s" "$GRUB_CMDLINE_LINUX" "$GRUB_CMDLINE_LINUX_DEFAULT"'
    read = f"set -e; . ./{GRUB_DEFAULTS}; . ./{GRUB_FILE}; {shown}"
    return subprocess.run([*shell.split(), "-c", read], cwd=tmp_path, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("shell", SHELLS)
def test_the_drop_in_adds_options_and_takes_some_out(tmp_path: Path, shell: str) -> None:
    defaults = (
        'GRUB_CMDLINE_LINUX="console=ttyS0,115200n8 amd_iommu=on"\n'
        "GRUB_CMDLINE_LINUX_DEFAULT=\"quiet vfio-pci.ids=10de:1db4,10de:10ef dyndbg='file a*.c +p' \\$x\"\n"
    )
    both = grub(tmp_path, shell, defaults, ["iommu=pt"], ["amd_iommu=on", "vfio-pci.ids=10de:1db4,10de:10ef"])
    first, second = both.split("|")
    assert first.split() == ["console=ttyS0,115200n8"]
    assert second.split() == ["quiet", "dyndbg='file", "a*.c", "+p'", "$x", "iommu=pt"], "nothing was expanded"


@pytest.mark.parametrize("shell", SHELLS)
def test_the_drop_in_alone_sets_nothing_else(tmp_path: Path, shell: str) -> None:
    assert (
        grub(tmp_path, shell, 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"', ["intel_iommu=on"], []) == "|quiet intel_iommu=on"
    )


def test_what_is_configured_is_read_as_the_shell_reads_it(tmp_path: Path) -> None:
    (tmp_path / GRUB_FOLDER).mkdir(parents=True)
    (tmp_path / GRUB_DEFAULTS).write_text("# GRUB_CMDLINE_LINUX=x\nGRUB_CMDLINE_LINUX_DEFAULT='quiet iommu=pt' # y\n")
    options = configured_options(FileTree(str(tmp_path)), but=GRUB_FILE)
    assert options == {"quiet": f"/{GRUB_DEFAULTS}:2", "iommu=pt": f"/{GRUB_DEFAULTS}:2"}


@pytest.mark.parametrize("shell", SHELLS)
@pytest.mark.parametrize("text", [script_file().text, hook_file().text], ids=["script", "hook"])
def test_scripts_are_scripts(shell: str, text: str) -> None:
    done = subprocess.run([*shell.split(), "-n"], input=text, text=True, check=False, capture_output=True)
    assert (done.returncode, done.stderr) == (0, "")


def machine(folder: Path) -> Path:
    """The script for a machine in a folder, with a modprobe that does nothing."""
    device, drivers = folder / "bus/devices" / DEVICE, folder / "bus/drivers"
    (drivers / "nouveau").mkdir(parents=True)
    device.mkdir(parents=True)
    for name, text in (("vendor", "0x10de\n"), ("device", "0x1db4\n"), ("driver_override", "(null)\n")):
        (device / name).write_text(text)
    (folder / "bin").mkdir()
    (folder / "bin/modprobe").write_text("#!/bin/sh\ncat\n")  # would swallow the list, if it had it as input
    (folder / "bin/modprobe").chmod(0o755)
    text = (
        script_file()
        .text.replace("/sys/bus/pci", f"{folder}/bus")
        .replace("/etc/gpuyard/passthrough", f"{folder}/list")
    )
    script = folder / "script"
    script.write_text(text.replace("PATH=", f"PATH={folder}/bin:"))
    return script


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_sets_the_override_of_what_is_meant_and_asks_the_kernel(tmp_path: Path, shell: str) -> None:
    script = machine(tmp_path)
    (tmp_path / "list").write_text(f"{HEAD}0000:99:00.0 10de:1db4 vfio-pci\n{DEVICE} 10de:1db4 vfio-pci\n")
    done = subprocess.run([*shell.split(), str(script), "claim"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "bus/devices" / DEVICE / "driver_override").read_text() == "vfio-pci\n"
    assert (tmp_path / "bus/drivers_probe").read_text() == f"{DEVICE}\n"
    done = subprocess.run([*shell.split(), str(script), "bind"], capture_output=True, text=True, check=False)
    assert done.returncode == 1, "no kernel has given it the driver"
    assert done.stderr.splitlines() == [
        "gpuyard: 0000:99:00.0 is not there",
        f"gpuyard: {DEVICE} did not get the driver vfio-pci",
    ]


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_leaves_another_card_alone(tmp_path: Path, shell: str) -> None:
    script = machine(tmp_path)
    (tmp_path / "list").write_text(f"{DEVICE} 10de:1eb8 vfio-pci\n")
    done = subprocess.run([*shell.split(), str(script), "bind"], capture_output=True, text=True, check=False)
    assert done.returncode == 0
    assert done.stderr == f"gpuyard: {DEVICE} is 10de:1db4 and no longer 10de:1eb8: left to the host\n"
    assert (tmp_path / "bus/devices" / DEVICE / "driver_override").read_text() == "(null)\n"
    assert not (tmp_path / "bus/drivers_probe").exists()


def test_every_text_says_whose_it_is() -> None:
    files = [script_file(), hook_file(), modprobe_file(["nouveau"], {}), grub_file(["iommu=pt"], []), *unit_files()]
    assert all(HEAD in file.text for file in files)
    assert {file.path for file in files} <= set(OUR_FILES)
