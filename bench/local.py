"""What needs no lab: scanning, compiling, and how long the program takes to say something."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpuyard.lab
from bench.table import Measured, milliseconds, show
from gpuyard.host.judge import judge
from gpuyard.host.recording import replay
from gpuyard.site.load import load_site

LAB = Path(gpuyard.lab.__file__).parent
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
    epyc = str(LAB / "recordings/epyc-v100.json")
    runs = [
        ("python -c pass", [sys.executable, "-c", "pass"], None),
        ("gpuyard --help", [*PROGRAM, "--help"], 200),
        ("gpuyard host scan --from EPYC", [*PROGRAM, "host", "scan", "--from", epyc], None),
        ("gpuyard host check --from EPYC", [*PROGRAM, "host", "check", "--from", epyc], 300),
        ("gpuyard host check, this machine", [*PROGRAM, "host", "check"], 300),
    ]
    show("As a process", [Measured(name, "ms", processes(command), limit) for name, command, limit in runs])


def processes(command: list[str]) -> list[float]:
    """Wall time in ms of ten runs of a program, whatever it ends with."""
    return milliseconds(lambda: subprocess.run(command, check=False, capture_output=True), 10)


if __name__ == "__main__":
    main()
