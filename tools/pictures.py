"""``python -m tools.pictures``: takes those pictures in docs/images again that show a lab after a month of use.

The month is the one of tests/integration/test_month.py, by the same seed each time, so they change when the pages do.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

ROOT = Path(__file__).parent.parent
MONTH = "tests/integration/test_month.py"
PICTURES = ("gpu.png", "overview.png", "status.png")
SEED = "1"


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="gpuyard-pictures-") as folder:
        environment = {**os.environ, "GPUYARD_TEST_PICTURES": folder, "GPUYARD_TEST_SEED": SEED}
        subprocess.run([sys.executable, "-m", "pytest", "-q", MONTH], env=environment, cwd=ROOT, check=True)
        for name in PICTURES:
            keep(Path(folder) / name, ROOT / "docs" / "images" / name)


def keep(taken: Path, target: Path) -> None:
    """With 256 colours, which are all that a page has: a third of the size, and wheels carry the documentation."""
    with Image.open(taken) as image:
        image.convert("RGB").quantize(256, dither=Image.Dither.NONE).save(target, optimize=True)


if __name__ == "__main__":
    main()
