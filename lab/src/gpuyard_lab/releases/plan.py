"""The commands that install a release into an environment of its own. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard_lab.releases.catalogue import LabRelease

BATCH = 25
"""Packages that are installed at a time. Since each has its exact version, none needs the others to be known; and
progress can be shown between two batches."""


@dataclass(frozen=True)
class InstallStep:
    """One command, and the number of packages that are there after it."""

    command: tuple[str, ...]
    packages: int


def environment_of(cache: Path, release: LabRelease) -> Path:
    """Return the folder in which a release is installed."""
    return cache / release.name


def python_in(environment: Path) -> Path:
    return environment / "bin" / "python"


def packages_of(lock: str) -> tuple[str, ...]:
    """Return the requirements of a lock, one a line."""
    lines = (line.strip() for line in lock.splitlines())
    return tuple(line for line in lines if line and not line.startswith("#"))


def fingerprint(lock: str, python: str) -> str:
    """Return a digest of a lock and a Python, to compare what is installed with what is desired."""
    return hashlib.sha256("\n".join([python, *packages_of(lock)]).encode()).hexdigest()


def creation(environment: Path, python: str, uv: str | None) -> InstallStep:
    """Return the step that makes an empty environment."""
    if uv:
        return InstallStep((uv, "venv", "--quiet", "--clear", "--python", python, str(environment)), 0)
    return InstallStep((python, "-m", "venv", "--clear", str(environment)), 0)


def installation(environment: Path, packages: Sequence[str], uv: str | None) -> tuple[InstallStep, ...]:
    """Return the steps that install packages into it, batch by batch."""
    python = str(python_in(environment))
    if uv:
        install = (uv, "pip", "install", "--quiet", "--python", python, "--no-deps")
    else:
        install = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps")
    return tuple(
        InstallStep((*install, *packages[start : start + BATCH]), min(start + BATCH, len(packages)))
        for start in range(0, len(packages), BATCH)
    )
