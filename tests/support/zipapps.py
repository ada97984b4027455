"""Zipapps for tests: the real one with another entry, so that a host does what a test wants."""

from __future__ import annotations

import shutil
from pathlib import Path

import gpuyard
from gpuyard.host import bundle


def with_main(folder: Path, main: str) -> bytes:
    """The zipapp with the body of a module in the place of `gpuyard.host.__main__`."""
    package = folder / "package"
    source = Path(gpuyard.__file__).parent
    for name in ("model", "host"):
        shutil.copytree(source / name, package / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(source / "__init__.py", package)
    (package / "host/__main__.py").write_text(main)
    return bundle.build(package)
