"""Tests that take too long for CI, and run when somebody asks for them by a target of the Makefile."""

from __future__ import annotations

import os

import pytest


def only_by(target: str, takes: str) -> pytest.MarkDecorator:
    """``make test-<target>`` sets GPUYARD_TEST_<TARGET>; else the test is skipped. `takes`: how long."""
    missing = f"GPUYARD_TEST_{target.upper()}" not in os.environ
    return pytest.mark.skipif(missing, reason=f"takes {takes}: make test-{target}")
