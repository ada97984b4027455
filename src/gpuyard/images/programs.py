"""Finds and runs the programs that images are made and checked with; errors name missing packages, and the reason of a
failure."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from gpuyard.model.errors import GpuyardError, UsageError, how_to_install
from gpuyard.model.text import printable

SYSTEM_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
"""Debian's folders of system programs: a user's PATH often has no sbin."""
LAST_LINES = 12


def search_path(base: Mapping[str, str]) -> str:
    """Return the user's PATH with gpuyard's own folder before it, and Debian's folders of system programs behind it."""
    return os.pathsep.join(filter(None, [str(Path(sys.executable).parent), base.get("PATH", ""), SYSTEM_PATH]))


def need_programs(needed: Mapping[str, str]) -> None:
    """Require programs. `needed`: program -> Debian package; the package ``""``: gpuyard's own part for images.

    Raises UsageError that names all that are missing.
    """
    path = search_path(os.environ)
    missing = {program: package for program, package in needed.items() if shutil.which(program, path=path) is None}
    if not missing:
        return
    hints = []
    if packages := sorted({package for package in missing.values() if package}):
        hints.append(f"install them, on Debian and Ubuntu with: sudo apt-get install {' '.join(packages)}")
    if "" in missing.values():
        hints.append(f"diskimage-builder comes with gpuyard's images part: {how_to_install('images')}")
    raise UsageError(f"missing programs: {', '.join(sorted(missing))}; {'; '.join(hints)}")


def run(command: Sequence[str], what: str, stdin: bytes | None = None) -> bytes:
    """Return a program's standard output. `what`: its purpose, for the error. Raises GpuyardError with the program's
    words."""
    environment = {**os.environ, "PATH": search_path(os.environ), "LC_ALL": "C.UTF-8"}
    try:
        done = subprocess.run(command, input=stdin, capture_output=True, env=environment, check=False)
    except OSError as error:
        raise GpuyardError(f"{what}: {command[0]}: {error.strerror}") from None
    if done.returncode:
        words = (done.stderr or done.stdout).decode(errors="replace").strip().splitlines()[-1:]
        reason = printable(words[0])[:300] if words else f"exit code {done.returncode}"
        raise GpuyardError(f"{what}: {command[0]} failed: {reason}")
    return done.stdout


def run_logged(command: Sequence[str], environment: Mapping[str, str], log: Path) -> None:
    """Run a program with its output in `log`. Raises GpuyardError with the last lines of that when it fails."""
    with log.open("ab") as out:
        try:
            child = subprocess.Popen(
                command, env=dict(environment), stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT
            )
        except OSError as error:
            raise GpuyardError(f"{command[0]}: {error.strerror}") from None
        try:
            code = child.wait()
        except KeyboardInterrupt:
            child.wait()  # it was interrupted, too, and takes its mounts away
            raise
    if code:
        last = log.read_bytes()[-8192:].decode(errors="replace").splitlines()[-LAST_LINES:]
        shown = "\n".join(f"  {printable(line)[:200]}" for line in last)
        raise GpuyardError(
            f"{Path(command[0]).name} failed (exit code {code}); all it said is in {log}, at last:\n{shown}"
        )
