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
    runs = {
        "python -c pass": ([sys.executable, "-c", "pass"], None),
        "gpuyard --help": ([*PROGRAM, "--help"], 200),
        "gpuyard host scan --from EPYC": (
            [*PROGRAM, "host", "scan", "--from", str(LAB / "recordings/epyc-v100.json")],
            None,
        ),
    }
    show(
        "As a process",
        [
            Measured(
                name,
                "ms",
                milliseconds(lambda c=command: subprocess.run(c, check=True, capture_output=True), 10),  # type: ignore[misc]
                limit,
            )
            for name, (command, limit) in runs.items()
        ],
    )


if __name__ == "__main__":
    main()
