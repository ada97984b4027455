"""Installs a release of OpenStack from PyPI into an environment of its own, once.

An environment is complete when it holds the fingerprint of its lock and its Python, which is written last: an
interrupted installation is begun anew.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from gpuyard_lab.errors import LabError, LabSettingsError
from gpuyard_lab.releases.catalogue import LabRelease, Version, names_of_python, spoken
from gpuyard_lab.releases.plan import (
    InstallStep,
    creation,
    environment_of,
    fingerprint,
    installation,
    packages_of,
    python_in,
)

DONE = "gpuyard-complete"
"""File of an environment with the fingerprint of what is in it."""
TAIL_LINES = 8
Say = Callable[[str], None]


def ensure_release(release: LabRelease, cache: Path, say: Say) -> Path:
    """Return the Python of a release, which is installed when it is not there yet, or not whole. ``say`` is told of the
    progress.

    Raises LabSettingsError when no Python here can run it, LabError when it cannot be installed.
    """
    environment = environment_of(cache, release)
    base = _base_python(release)
    lock = release.lock.read_text(encoding="utf-8")
    expected = fingerprint(lock, base)
    if _is_whole(environment, expected):
        return python_in(environment)
    _folder(cache)
    with _locked(cache / f"{release.name}.lock", say):
        if not _is_whole(environment, expected):
            _install(release, environment, base, lock, say)
            (environment / DONE).write_text(expected)
    return python_in(environment)


def find_uv() -> str | None:
    """Return the path of uv, which is faster, where there is one: the one that runs gpuyard, or that is in PATH."""
    return os.environ.get("UV") or shutil.which("uv")


def _install(release: LabRelease, environment: Path, base: str, lock: str, say: Say) -> None:
    packages = packages_of(lock)
    say(f"installing OpenStack {release.name} from PyPI: {len(packages)} packages into {environment}")
    log = environment.with_name(f"{release.name}.log")
    log.write_bytes(b"")
    uv = find_uv()
    for step in (creation(environment, base, uv), *installation(environment, packages, uv)):
        _run(step, release, log)
        if step.packages:
            say(f"installed {step.packages} of {len(packages)} packages")


def _run(step: InstallStep, release: LabRelease, log: Path) -> None:
    with open(log, "ab") as output:
        try:
            status = subprocess.run(
                step.command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False, cwd=log.parent
            ).returncode
        except OSError as error:
            raise LabError(
                f"OpenStack {release.name} cannot be installed: {step.command[0]}: {error.strerror}"
            ) from None
    if status:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-TAIL_LINES:])
        raise LabError(
            f"OpenStack {release.name} could not be installed, which needs a way to PyPI: "
            f"{Path(step.command[0]).name} ended with status {status}\n--- the end of {log}\n{tail}"
        )


def _base_python(release: LabRelease) -> str:
    """A Python that the release runs on: the one that runs here, or else one in PATH."""
    ours: Version = sys.version_info[:2]
    if release.runs_on(ours):
        return sys._base_executable  # type: ignore[attr-defined,no-any-return]  # not the environment's link to it
    for name in names_of_python(release):
        if python := shutil.which(name):
            return python
    age = "newer" if ours > release.newest_python else "older"
    raise LabSettingsError(
        f"OpenStack {release.name} runs on Python {release.pythons}, and this one, {spoken(ours)}, is {age}; "
        f"install {names_of_python(release)[0]}, so that it is in PATH"
    )


def _is_whole(environment: Path, expected: str) -> bool:
    """Return whether an environment has what is wanted, and its Python still runs."""
    try:
        if (environment / DONE).read_text() != expected:
            return False
        return subprocess.run([python_in(environment), "-c", ""], check=False, capture_output=True).returncode == 0
    except OSError:
        return False


def _folder(cache: Path) -> None:
    try:
        cache.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise LabSettingsError(
            f"{cache} cannot hold releases of OpenStack: {error.strerror}; choose another folder with --release-cache"
        ) from None


@contextmanager
def _locked(path: Path, say: Say) -> Iterator[None]:
    """Let one installation of a release run at a time; the second one waits and finds it done."""
    try:
        file = open(path, "w", encoding="utf-8")  # noqa: SIM115  # closed below
    except OSError as error:
        raise LabSettingsError(
            f"{path} cannot be written: {error.strerror}; choose another folder with --release-cache"
        ) from None
    with file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"waiting for another command that installs into {path.parent}")
            fcntl.flock(file, fcntl.LOCK_EX)
        yield
