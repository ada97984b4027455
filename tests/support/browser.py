"""Where the browser is that the browser tests drive."""

from __future__ import annotations

import os
from pathlib import Path

CHROMIUM = Path(os.environ.get("GPUYARD_CHROMIUM", "/usr/bin/chromium"))


def missing() -> str:
    """Why the browser tests cannot run; empty when they can."""
    installed = CHROMIUM.exists()
    return "" if installed else f"{CHROMIUM} is not there; install Chromium, or name it with GPUYARD_CHROMIUM"
