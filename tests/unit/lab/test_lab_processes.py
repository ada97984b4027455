"""Processes of a lab are found by their mark, whatever happened to who started them, and nothing else is touched."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpuyard_lab import processes
from gpuyard_lab.processes import MARK, NAME, LabProcess, end_all, find, leaders, memory_kib, start

SLEEP = [sys.executable, "-c", "import time; print('here', flush=True); time.sleep(60)"]
STUBBORN = [
    sys.executable,
    "-c",
    "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('here', flush=True); time.sleep(60)",
]


@pytest.fixture
def state(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path
    end_all(tmp_path)


def begin(state: Path, name: str, command: list[str] = SLEEP) -> int:
    log = state / f"{name}.log"
    started = start(state, name, command, {"PATH": os.environ["PATH"]}, log)
    deadline = time.monotonic() + 10
    while "here" not in (log.read_text() if log.exists() else ""):
        assert time.monotonic() < deadline
        time.sleep(0.01)
    return started.pid


def names(state: Path) -> list[str]:
    return sorted(process.name for process in find(state))


def test_a_process_is_found_by_name_and_ended(state: Path) -> None:
    pid = begin(state, "nova")
    assert find(state) == (LabProcess("nova", pid, os.getpid()),)
    assert memory_kib(pid) > 1000
    assert end_all(state) == 1
    assert find(state) == ()
    with pytest.raises(ProcessLookupError):  # not even a zombie is left
        os.kill(pid, 0)


def test_a_lab_does_not_see_the_processes_of_another(state: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    other = tmp_path_factory.mktemp("other")
    begin(state, "nova")
    begin(other, "nova")
    try:
        assert end_all(state) == 1
        assert names(other) == ["nova"]
    finally:
        end_all(other)


def test_a_process_of_somebody_else_is_left_alone(state: Path) -> None:
    with subprocess.Popen(["sleep", "60"], cwd=state) as stranger:
        assert end_all(state) == 0
        assert stranger.poll() is None
        stranger.kill()


def test_a_process_that_does_not_end_is_killed(state: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(processes, "PATIENCE_S", 0.2)
    begin(state, "nova", STUBBORN)
    assert end_all(state) == 1
    assert find(state) == ()


def test_what_a_process_started_is_found_after_its_death(state: Path) -> None:
    parent = [sys.executable, "-c", f"import subprocess; subprocess.run({SLEEP!r})"]
    pid = begin(state, "keystone", parent)
    assert names(state) == ["keystone", "keystone"]
    assert leaders(find(state))["keystone"].pid == pid
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    assert names(state) == ["keystone"]
    assert end_all(state) == 1


def test_the_databases_children_are_known_by_the_folder_they_work_in(state: Path) -> None:
    (state / "postgresql").mkdir()
    with subprocess.Popen(["sleep", "60"], cwd=state / "postgresql", env={}) as backend:
        assert [(process.name, process.pid) for process in find(state)] == [("postgresql", backend.pid)]
        assert end_all(state) == 1
        backend.wait(5)


def test_the_environment_is_the_given_one_and_the_mark(state: Path) -> None:
    begin(state, "glance", [sys.executable, "-c", "import os; print(*os.environ, 'here')"])
    variables = set((state / "glance.log").read_text().split()) - {"LC_CTYPE", "here"}  # the first one is Python's own
    assert variables == {"PATH", MARK, NAME, "SPT_NOENV"}


def test_a_started_process_tells_how_it_ended(state: Path) -> None:
    for code, expected in (("raise SystemExit(3)", 3), ("import os; os.kill(os.getpid(), 9)", -9)):
        started = start(state, "nova", [sys.executable, "-c", code], {}, state / "log")
        deadline = time.monotonic() + 10
        while (status := started.ended()) is None:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert status == expected
