"""Runs kolla-ansible, writes its output to a file, and passes signals on to it."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from gpuyard.deployment.kolla.ansible_output import Failure, OutputReader, Redactor
from gpuyard.model.errors import GpuyardError, UsageError

VERSION_SECONDS = 60.0
# The output must be what OutputReader knows, whatever the operator's ansible.cfg says.
OUTPUT = {
    "ANSIBLE_NOCOLOR": "1",
    "ANSIBLE_STDOUT_CALLBACK": "default",
    "ANSIBLE_CALLBACK_RESULT_FORMAT": "json",
    "PYTHONUNBUFFERED": "1",
}


@dataclass(frozen=True)
class Finished:
    """The end of a run. `signals` is how often somebody interrupted it."""

    code: int
    failures: tuple[Failure, ...]
    signals: int


def find_program(name: str) -> Path:
    """Return the program's path. Raises UsageError when there is no such program."""
    path = shutil.which(name)
    if path is None:
        raise UsageError(
            f"{name} is not there; activate the virtual environment of kolla-ansible, or name it with --kolla-ansible"
        )
    return Path(path).absolute()


def environment(program: Path, base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a run: kolla-ansible looks for ansible-playbook in PATH; it is beside it."""
    inherited = {name: value for name, value in base.items() if name != "ANSIBLE_FORCE_COLOR"}
    return {**inherited, **OUTPUT, "PATH": os.pathsep.join([str(program.parent), base.get("PATH", os.defpath)])}


def version(program: Path) -> str:
    """Return the version as the program prints it. Raises GpuyardError when it does not run."""
    try:
        done = subprocess.run(
            [str(program), "--version"],
            capture_output=True,
            text=True,
            timeout=VERSION_SECONDS,
            stdin=subprocess.DEVNULL,
            env=environment(program, os.environ),
        )
    except OSError as error:
        raise GpuyardError(f"{program} --version: {error.strerror}; name one that runs with --kolla-ansible") from None
    except subprocess.TimeoutExpired:
        raise GpuyardError(
            f"{program} --version did not answer within {VERSION_SECONDS:.0f} s; run it yourself to see why"
        ) from None
    if done.returncode:
        reason = (done.stderr or done.stdout).strip().splitlines()[-1:] or [f"exit code {done.returncode}"]
        raise GpuyardError(f"{program} --version: {reason[0]}")
    return done.stdout.strip()


def run_program(
    program: Path,
    words: Sequence[str],
    log: Path,
    redact: Redactor,
    on_task: Callable[[str], None],
    variables: Mapping[str, str] | None = None,
    held: Sequence[int] = (),
) -> Finished:
    """Run it to its end. SIGINT and SIGTERM are passed on to it and what it started; a third one kills it.

    `variables` of the environment override those of this process. `held`: descriptors that it inherits, so that a
    lock is held for as long as it lives, also when this process is killed.

    Raises UsageError when the log cannot be written, GpuyardError when the program does not start.
    """
    reader = OutputReader()
    try:
        log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    except OSError as error:
        raise UsageError(
            f"{log}: cannot be written: {error.strerror}; name a folder for the output with --logs"
        ) from None
    with os.fdopen(descriptor, "w", encoding="utf-8", buffering=1) as stream, _signals() as signals:
        child = _start(program, words, variables or {}, held)
        signals.go_to(child.pid)
        assert child.stdout is not None
        with child.stdout as output:
            for raw in output:
                line = redact(raw.decode(errors="replace").rstrip("\r\n"))
                stream.write(line + "\n")
                if reader.feed(line):
                    on_task(reader.task)
        code = child.wait()
    return Finished(code, reader.why() if code else (), len(signals.seen))


def _start(
    program: Path, words: Sequence[str], variables: Mapping[str, str], held: Sequence[int]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [str(program), *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # or a terminal would interrupt it once more
            env=environment(program, {**os.environ, **variables}),
            pass_fds=held,
        )
    except OSError as error:
        raise GpuyardError(f"{program}: {error.strerror}") from None


@dataclass
class _Signals:
    """Signals so far, and the process group that they go on to."""

    seen: list[int] = field(default_factory=list)
    group: int = 0

    def go_to(self, group: int) -> None:
        self.group = group
        for number in self.seen:  # what came before the child was there
            self._send(number)

    def take(self, number: int, frame: FrameType | None) -> None:
        self.seen.append(number)
        self._send(signal.SIGKILL if len(self.seen) > 2 else number)

    def _send(self, number: int) -> None:
        if self.group:
            with suppress(ProcessLookupError):
                os.killpg(self.group, number)


@contextmanager
def _signals() -> Iterator[_Signals]:
    signals = _Signals()
    before = {number: signal.signal(number, signals.take) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
