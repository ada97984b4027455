"""Tests are their own environment: nothing that the Makefile or an openrc exports reaches them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from tools.reference import commands

from tests.support.environment import clean

ROOT = Path(__file__).parents[3]
MAKEFILE = (ROOT / "Makefile").read_text()
FROM_OUTSIDE = {
    "GPUYARD_PORT": "8099",
    "GPUYARD_LAB_PORT_BASE": "16000",
    "GPUYARD_LAB_STATE": "/nowhere/lab",
    "GPUYARD_URL": "http://127.0.0.1:9",
    "GPUYARD_SITE": "/nowhere/site.yaml",
    "OS_CLOUD": "somebodys",
    "OS_CLIENT_CONFIG_FILE": "/nowhere/clouds.yaml",
    "OS_AUTH_URL": "http://127.0.0.1:9/v3",
    "XDG_STATE_HOME": "/nowhere/state",
    "XDG_CONFIG_HOME": "/nowhere/config",
    "STATE_DIRECTORY": "/nowhere/state",
    "TZ": "Pacific/Auckland",
    "LC_ALL": "de_DE.UTF-8",
    "COLUMNS": "30",
    "MAKEFLAGS": "-- GPUYARD_PORT=8099",
}


def test_everything_that_the_program_reads_is_taken_away() -> None:
    read = {*re.findall(r"env var: ([A-Z_]+)", commands()), *re.findall(r"\b(GPUYARD_(?!TEST_)[A-Z_]+)=?", MAKEFILE)}
    assert read >= {"GPUYARD_PORT", "GPUYARD_LAB_PORT_BASE", "GPUYARD_LAB_STATE", "OS_CLOUD"}
    environment = dict.fromkeys([*read, *FROM_OUTSIDE], "from outside")
    clean(environment, Path("/empty"))
    assert "from outside" not in environment.values()
    assert environment["XDG_STATE_HOME"] == "/empty/state"


def test_what_tests_are_told_and_what_finds_programs_remains() -> None:
    variables = {"GPUYARD_TEST_LAB_STATE": "/lab", "GPUYARD_CHROMIUM": "/opt/chromium", "PATH": "/bin", "HOME": "/root"}
    environment = {**variables}
    clean(environment, Path("/empty"))
    assert environment.items() >= variables.items()


def test_nothing_of_it_is_here_nor_in_a_program_that_a_test_starts() -> None:
    printed = subprocess.run(["env"], check=True, capture_output=True, text=True).stdout.splitlines()
    for name, value in FROM_OUTSIDE.items():
        assert os.environ.get(name) != value
        assert f"{name}={value}" not in printed
    assert time.tzname == ("UTC", "UTC")


def test_now_is_what_it_was_told_to_be(pytestconfig: pytest.Config) -> None:
    start = pytestconfig.getoption("--now") or datetime.now(UTC)
    with ThreadPoolExecutor() as pool:
        moments = [datetime.now(UTC), datetime.fromtimestamp(time.time(), UTC), pool.submit(datetime.now, UTC).result()]
    assert all(start <= now < start + timedelta(hours=1) for now in moments)


def test_so_it_is_in_a_worker_where_all_of_it_is_exported_on_another_day() -> None:
    tests = [test_nothing_of_it_is_here_nor_in_a_program_that_a_test_starts, test_now_is_what_it_was_told_to_be]
    again = [*(f"{__file__}::{test.__name__}" for test in tests), "--now", "2028-02-29T23:58:00+00:00"]
    command = [sys.executable, "-m", "pytest", "-v", "-n", "1", "--dist", "loadfile", "-p", "no:cacheprovider", *again]
    run = subprocess.run(command, cwd=ROOT, env={**os.environ, **FROM_OUTSIDE}, capture_output=True, text=True)
    assert run.returncode == 0, run.stdout
    assert "2 passed" in run.stdout
