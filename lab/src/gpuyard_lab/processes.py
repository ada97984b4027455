"""Starts, finds and ends the processes of a lab.

Each carries the folder of its lab in its environment, and so do the processes that it starts. That mark is the only
record of what runs. It cannot go stale as a file with process ids does: whatever way an earlier command died, a process
of the lab is found, and one that merely got the id of a dead one is not.

The exception is PostgreSQL's own children, which overwrite their environment with a title. They work in the folder of
the database, which identifies them as surely.
"""

from __future__ import annotations

import os
import select
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from gpuyard_lab.catalog import POSTGRESQL
from gpuyard_lab.errors import LabError

MARK = "GPUYARD_LAB_PROCESS_OF"
NAME = "GPUYARD_LAB_PROCESS"
KEEP_MARK = {"SPT_NOENV": "1"}
"""Asks setproctitle, which Neutron uses, not to overwrite the environment that others see."""
PROC = Path("/proc")
PATIENCE_S = 10.0
"""Seconds that a process may take to end before it is killed."""


@dataclass(frozen=True)
class LabProcess:
    """One running process of a lab."""

    name: str
    pid: int
    parent: int


@dataclass(frozen=True)
class Started:
    """A process that this command started, and is the parent of."""

    name: str
    pid: int
    log: Path

    def ended(self) -> int | None:
        """Return its exit status (minus the signal that killed it) once it has ended, None while it runs."""
        try:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
        except ChildProcessError:  # somebody else of this command has asked before
            return -1
        return os.waitstatus_to_exitcode(status) if pid else None


def start(state: Path, name: str, command: list[str], environment: Mapping[str, str], log: Path) -> Started:
    """Start a process that outlives this command, with its output at the end of a log file."""
    log_flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    # posix_spawn and not subprocess.Popen, which complains when its owner leaves a process running on purpose.
    pid = os.posix_spawn(
        command[0],
        command,
        {**environment, **KEEP_MARK, MARK: str(state), NAME: name},
        file_actions=[
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_OPEN, 1, str(log), log_flags, 0o600),
            (os.POSIX_SPAWN_DUP2, 1, 2),
        ],
        setsid=True,
    )
    return Started(name, pid, log)


# Of a command's environment its processes get only this: not somebody's OS_* and PG* variables, and no proxy.
KEPT_ENVIRONMENT = (
    "GPUYARD_TEST_CLOCK", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "LD_PRELOAD", "LOGNAME", "PATH", "PYTHONPATH",
    "TMPDIR", "TZ", "USER",
)  # fmt: skip


def clean_environment() -> dict[str, str]:
    """Return the part of this command's environment that a process of a lab gets."""
    inherited = {name: os.environ[name] for name in KEPT_ENVIRONMENT if name in os.environ}
    return {**inherited, "PYTHONWARNINGS": "ignore", "PYTHONFAULTHANDLER": "1"}


def find(state: Path) -> tuple[LabProcess, ...]:
    """Return all processes of a lab that run now, by process id."""
    pids = sorted(int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())
    return tuple(process for pid in pids if (process := _look_at(pid, state)))


def _look_at(pid: int, state: Path) -> LabProcess | None:
    """The process as one of the lab; None when it is not, or is gone, or is of another user and thus not ours."""
    name = _name_in(pid, state)
    if name is None:
        return None
    with suppress(OSError, ValueError, IndexError):
        stat = (PROC / str(pid) / "stat").read_text()
        code, parent = stat.rpartition(")")[2].split()[:2]
        if code not in "ZX":  # dead, and only waiting for its parent to notice
            return LabProcess(name, pid, int(parent))
    return None


def _name_in(pid: int, state: Path) -> str | None:
    try:
        entries = (PROC / str(pid) / "environ").read_bytes().split(b"\0")
        values = dict(entry.split(b"=", 1) for entry in entries if b"=" in entry)
        if values.get(MARK.encode()) == os.fsencode(state):
            return os.fsdecode(values.get(NAME.encode(), b""))
        if os.readlink(PROC / str(pid) / "cwd") == str(state / POSTGRESQL):
            return POSTGRESQL
    except OSError:
        pass
    return None


def leaders(processes: Sequence[LabProcess]) -> dict[str, LabProcess]:
    """Return the process of each name that was started by ``start``, without what it started itself."""
    pids = {(process.name, process.pid) for process in processes}
    return {process.name: process for process in processes if (process.name, process.parent) not in pids}


def end(state: Path, name: str) -> None:
    """End the processes of one name."""
    _end(state, [process for process in find(state) if process.name == name], signal.SIGTERM)


def end_all(state: Path) -> int:
    """End all processes of a lab, the database last; return how many there were. LabError when some do not end."""
    processes = find(state)
    _end(state, [process for process in processes if process.name != POSTGRESQL], signal.SIGTERM)
    # SIGINT is PostgreSQL's "disconnect everybody and stop"; its children end with their parent.
    _end(state, [process for process in leaders(processes).values() if process.name == POSTGRESQL], signal.SIGINT)
    deadline = time.monotonic() + PATIENCE_S
    while rest := find(state):  # children of a database that was killed, or what a dying process still started
        if time.monotonic() > deadline:
            pids = ", ".join(str(process.pid) for process in rest)
            raise LabError(f"processes {pids} of the lab in {state} do not end, even when killed")
        _end(state, rest, signal.SIGKILL)
        time.sleep(0.02)
    return len(processes)


def _end(state: Path, processes: Sequence[LabProcess], how: signal.Signals) -> None:
    """Send each a signal and wait until it has ended; kill what takes longer than PATIENCE_S."""
    handles = {process.pid: handle for process in processes if (handle := _handle(process.pid, state)) is not None}
    try:
        for handle in handles.values():
            _send(handle, how)
        deadline = time.monotonic() + PATIENCE_S
        for pid, handle in handles.items():
            if not _ended(handle, deadline - time.monotonic()):
                _send(handle, signal.SIGKILL)
                _ended(handle, PATIENCE_S)
            with suppress(ChildProcessError):  # nobody else does it when it is this command that started it
                os.waitpid(pid, os.WNOHANG)
    finally:
        for handle in handles.values():
            os.close(handle)


def _handle(pid: int, state: Path) -> int | None:
    """A handle on a process of the lab, which stays its handle whoever gets the process id next."""
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        return None
    if _look_at(pid, state) is None:  # the id went to another process between the search and the handle
        os.close(handle)
        return None
    return handle


def _send(handle: int, how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        signal.pidfd_send_signal(handle, how)


def _ended(handle: int, timeout_s: float) -> bool:
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0.0, timeout_s) * 1000))


def memory_kib(pid: int) -> int:
    """Return the proportional set size of a process: its own memory, and its share of what it shares with others."""
    with suppress(OSError, ValueError):
        for line in (PROC / str(pid) / "smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                return int(line.split()[1])
    return 0
