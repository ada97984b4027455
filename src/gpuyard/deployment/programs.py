"""Runs a program for its output: without input, and with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuyard.model.errors import GpuyardError


def said_by(
    words: Sequence[str],
    environment: Mapping[str, str],
    seconds: float,
    missing: str,
    more: str = "",
    fails: bool = False,
) -> str:
    """Return what a program printed. `missing`: what to do when it is not there; `more`: where there is more about a
    failure. Raises GpuyardError, for its own failure only where it may not fail (`fails`)."""
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
            stdin=subprocess.DEVNULL,
            env=environment,
        )
    except FileNotFoundError:
        raise GpuyardError(f"{words[0]} is not there; {missing}") from None
    except (OSError, subprocess.TimeoutExpired) as error:
        raise GpuyardError(f"{words[0]} did not come to its end: {error}") from None
    if done.returncode and not fails:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"it ended with {done.returncode}"]
        raise GpuyardError(f"{Path(words[0]).name} {' '.join(words[1:])}: {last[0]}{more}")
    return done.stdout
