"""uv, with which tests install what they run."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]


def program() -> str:
    """The one that runs the tests (`uv run` says so in UV), that is in PATH, or that make has brought."""
    return os.environ.get("UV") or shutil.which("uv") or str(ROOT / ".tools/bin/uv")
