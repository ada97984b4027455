"""For tests that need the virtual hypervisor."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import pytest

from tests.virtual_hypervisor import build as building
from tests.virtual_hypervisor import cloud_image, disk
from tests.virtual_hypervisor import server_image as built_image
from tests.virtual_hypervisor.build import Build, Missing
from tests.virtual_hypervisor.config_drive import config_drive
from tests.virtual_hypervisor.server_image import BuiltImage


def prepared() -> Build:
    """Ready to run, or the test is skipped with the reason.

    In CI (CI=true) a machine that can install what is missing must do so, or a test that nobody sees skipped would
    be no test.
    """
    must = _must()
    try:
        return building.prepare(install=must)
    except Missing as error:
        _skip_or_raise(error, must)


def installed(build: Build) -> Path:
    """The disk of an installed Debian, or the test is skipped with the reason, as above."""
    must = _must()
    try:
        return disk.image(build, install=must)
    except Missing as error:
        _skip_or_raise(error, must)


def cloud(build: Build) -> Path:
    """The disk of a cloud's image, or the test is skipped with the reason, as above."""
    must = _must()
    try:
        return cloud_image.image(build, install=must)
    except Missing as error:
        _skip_or_raise(error, must)


def drive(folder: Path, name: str, user_data: str, metadata: Mapping[str, str]) -> Path:
    """The config drive of a server, or the test is skipped with the reason, as above."""
    must = _must()
    try:
        return config_drive(folder, name, user_data, metadata, install=must)
    except Missing as error:
        _skip_or_raise(error, must)


def server_image(build: Callable[[bool], BuiltImage] = built_image.image) -> BuiltImage:
    """An image of servers that gpuyard has built, or the test is skipped with the reason, as above. `build` is told
    whether to install what it needs."""
    must = _must()
    try:
        return build(must)
    except Missing as error:
        _skip_or_raise(error, must)


def _must() -> bool:
    return os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get") is not None


def _skip_or_raise(error: Missing, must: bool) -> NoReturn:
    if must:
        raise error
    pytest.skip(f"no virtual hypervisor: {error}")
