"""What needs no lab: scanning, compiling, and how long the program takes to say something."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.sysfs import V100, Sysfs, write

import gpuyard_lab
from bench.table import Measured, finish, milliseconds, show
from gpuyard.host.judge import judge
from gpuyard.host.recording import replay
from gpuyard.site.load import load_site

LAB = Path(gpuyard_lab.__file__).parent
PROGRAM = [sys.executable, "-m", "gpuyard.cli.main"]


def main() -> None:
    text = (LAB / "recordings/epyc-v100.json").read_text()
    show(
        "In-process",
        [
            Measured(
                "host scan and judge, EPYC recording", "ms", milliseconds(lambda: judge(replay(text, "x")), 20), 20
            ),
            Measured(
                "site.yaml with 6 hosts, load and compile", "ms", milliseconds(lambda: load_site(LAB / "site.yaml"), 10)
            ),
        ],
    )
    with tempfile.TemporaryDirectory() as folder:
        write(large_host(), Path(folder))
        as_processes(folder)


def as_processes(large: str) -> None:
    """`large`: the root of the host below."""
    epyc = str(LAB / "recordings/epyc-v100.json")
    runs = [
        ("python -c pass", [sys.executable, "-c", "pass"], None),
        ("gpuyard --help", [*PROGRAM, "--help"], 200),
        ("gpuyard host scan --from EPYC", [*PROGRAM, "host", "scan", "--from", epyc], None),
        ("gpuyard host check --from EPYC", [*PROGRAM, "host", "check", "--from", epyc], 300),
        ("gpuyard host check, this machine", [*PROGRAM, "host", "check"], 300),
        ("gpuyard host check, 16 GPUs", [*PROGRAM, "host", "check", "--root", large], 300),
    ]
    show("As a process", [Measured(name, "ms", processes(command), limit) for name, command, limit in runs])


def large_host() -> Sysfs:
    """16 GPUs in 8 groups among 200 functions, the module list of a distribution, 250 processes with 20 files each."""
    host = Sysfs()
    for bus in range(16):
        host.function(f"{bus + 16:02x}:00.0", V100, group=bus // 2, driver="nvidia", reset_method="flr bus")
        host.put(f"proc/driver/nvidia/gpus/0000:{bus + 16:02x}:00.0/information", f"Device Minor: \t {bus}")
    for number in range(184):
        host.function(
            f"{number // 8 + 64:02x}:{number % 8:02x}.0", "8086:2030", "0604", 100 + number, driver="pcieport"
        )
    for pid in range(1, 251):
        host.process(pid, "service", *(f"/var/lib/service/{number}" for number in range(19)))
    for pid in range(1000, 1500):
        host.put(f"proc/{pid}/comm", "kworker")
    host.process(2000, "nvidia-persistenced", *(f"/dev/nvidia{minor}" for minor in range(16)))
    host.put("proc/sys/kernel/osrelease", "6.1.0")
    host.put("proc/cmdline", "quiet")
    host.put("proc/cpuinfo", "model name : AMD EPYC\nflags : svm")
    aliases = [f"alias pci:v{n // 45:08X}d{n:08X}sv*sd*bc*sc*i* module{n // 45}" for n in range(9000)]
    aliases += [f"alias usb:v{n:04X}p*d*dc*dsc*dp*ic*isc*ip*in* module{n}" for n in range(17000)]
    host.put(
        "lib/modules/6.1.0/modules.alias", "\n".join([*aliases, "alias pci:v000010DEd*sv*sd*bc03sc02i00* nouveau"])
    )
    host.put("lib/modules/6.1.0/modules.dep", "kernel/drivers/vfio/pci/vfio-pci.ko:")
    host.put("lib/modules/6.1.0/modules.builtin", "")
    text = "Description: what it is good for\n" * 20
    host.put("var/lib/dpkg/status", "\n".join(f"Package: p{number}\n{text}" for number in range(2000)))
    return host


def processes(command: list[str]) -> list[float]:
    """Wall time in ms of ten runs of a program, whatever it ends with. It keeps its bytecode, as when installed."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return milliseconds(lambda: subprocess.run(command, check=False, capture_output=True, env=environment), 10)


if __name__ == "__main__":
    main()
    sys.exit(finish())
