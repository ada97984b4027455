"""For tests that need the virtual hypervisor."""

from __future__ import annotations

import os
import shutil

import pytest

from tests.virtual_hypervisor import build
from tests.virtual_hypervisor.build import Build


def prepared() -> Build:
    """Ready to run, or the test is skipped with the reason.

    In CI (CI=true) a machine that can install what is missing must do so, or a test that nobody sees skipped would
    be no test.
    """
    must = os.environ.get("CI") == "true" and os.geteuid() == 0 and shutil.which("apt-get") is not None
    try:
        return build.prepare(install=must)
    except build.Missing as error:
        if must:
            raise
        pytest.skip(f"no virtual hypervisor: {error}")
