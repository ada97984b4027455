"""Blazar's own search for free hosts, in a Python of its own, which is made once and kept in the user's cache."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

BLAZAR = "blazar==18.0.0"
QUERY = Path(__file__).with_name("blazar_query.py")


def query_seconds(hosts: int, leases: int, hours: Sequence[int], runs: int) -> dict[int, list[float]]:
    """Seconds of each run, by the length of the window in hours."""
    request = {"hosts": hosts, "leases": leases, "hours": list(hours), "runs": runs}
    command = [str(python()), "-P", str(QUERY), json.dumps(request)]  # -P: this folder has a blazar.py, too
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"Blazar's query failed: {done.stderr[-2000:]}")
    return {int(key): values for key, values in json.loads(done.stdout.splitlines()[-1]).items()}


def python() -> Path:
    """A Python with Blazar."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = cache / "gpuyard-bench" / BLAZAR.replace("==", "-")
    interpreter = folder / "bin" / "python"
    ready = folder / "ready"
    if not ready.exists():
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
        subprocess.run([str(interpreter), "-m", "pip", "install", "--quiet", BLAZAR], check=True, capture_output=True)
        ready.touch()
    return interpreter
