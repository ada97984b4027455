"""What installing costs: the size of the wheel, and how long a thin client takes into an empty environment.

python -m bench.install
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic

from tests.support import uv

from bench.table import Measured, finish, show, sized

ROOT = Path(__file__).parents[1]
WHEEL_LIMIT_KB, CLIENT_LIMIT_S = 2000, 10


def main() -> None:
    with TemporaryDirectory() as folder:
        directory = Path(folder)
        subprocess.run([uv.program(), "build", "-q", "--wheel", "--out-dir", folder, str(ROOT)], check=True)
        (wheel,) = directory.glob("*.whl")
        installed(wheel, directory / "first")  # what it needs is fetched once
        seconds = [installed(wheel, directory / f"client-{number}") for number in range(sized(3, 1))]
        subprocess.run([directory / "client-0/bin/gpuyard", "--version"], check=True, capture_output=True)
        show(
            "Installing",
            [
                Measured("the wheel", "kB", [wheel.stat().st_size / 1000], WHEEL_LIMIT_KB),
                Measured("a thin client, its libraries at hand", "s", seconds, CLIENT_LIMIT_S),
            ],
        )


def installed(wheel: Path, to: Path) -> float:
    """Seconds."""
    began = monotonic()
    subprocess.run([uv.program(), "venv", "-q", str(to)], check=True)
    subprocess.run([uv.program(), "pip", "install", "-q", "--python", str(to / "bin/python"), str(wheel)], check=True)
    return monotonic() - began


if __name__ == "__main__":
    main()
    sys.exit(finish())
