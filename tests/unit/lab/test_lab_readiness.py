"""Waiting ends with a reason: the log of what died, or what did not come."""

from __future__ import annotations

import itertools
import sys
import time
from pathlib import Path

import pytest

from gpuyard_lab.errors import LabError
from gpuyard_lab.processes import Started, end_all, start
from gpuyard_lab.readiness import require_alive, tail, wait_for


def process(state: Path, code: str) -> Started:
    return start(state, "glance", [sys.executable, "-c", code], {}, state / "glance.log")


def test_waiting_ends_when_the_check_holds() -> None:
    calls = itertools.count()
    wait_for("something", lambda: next(calls) == 2, [])


def test_a_dead_process_is_named_with_the_end_of_its_log(tmp_path: Path) -> None:
    started = process(tmp_path, "print('\\n'.join(map(str, range(99)))); raise SystemExit(7)")
    with pytest.raises(LabError) as error:
        wait_for("glance answers", lambda: False, [started])
    lines = str(error.value).splitlines()
    assert lines[0] == "glance ended with status 7 while the lab was starting"
    assert lines[1] == f"--- the end of {tmp_path / 'glance.log'}"
    assert (lines[2], lines[-1], len(lines)) == ("74", "98", 27)


def test_a_killed_process_is_named_with_the_signal(tmp_path: Path) -> None:
    started = process(tmp_path, "import os; os.kill(os.getpid(), 9)")
    time.sleep(0.3)
    with pytest.raises(LabError, match="glance was killed by signal 9"):
        require_alive([started])


def test_what_does_not_come_is_named_after_the_time(tmp_path: Path) -> None:
    started = process(tmp_path, "import time; print('still here', flush=True); time.sleep(60)")
    try:
        with pytest.raises(LabError, match=r"(?s)glance answers: not after 1 s.*still here"):
            wait_for("glance answers", lambda: False, [started], timeout_s=0.6)
    finally:
        end_all(tmp_path)


def test_a_log_that_is_not_there_says_so(tmp_path: Path) -> None:
    assert tail(tmp_path / "none.log") == f"{tmp_path / 'none.log'}: No such file or directory"
