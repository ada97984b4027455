"""Writes to sysfs in a child process, because a write can hang.

``unbind`` waits until whoever holds the device lets go of it: a VM, nvidia-persistenced, a process that has it open.
Such a wait cannot be interrupted from within, so a process of its own does the writing and is given up when it hangs.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from typing import IO, Optional

PACKAGE_ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
"""What has to be on the path of the child to import this: a folder, or the zipapp."""
START = "import sys; sys.path.insert(0, sys.argv[1]); from gpuyard.host.sysfs_writer import serve; serve()"

START_SECONDS = 60


class ChildDied(Exception):
    """The process that writes is gone: a driver that crashes takes it along."""


class AttributeWriter:
    """Starts the child when it is first needed, and another one after one that hung."""

    def __init__(self, seconds: float) -> None:
        self.seconds = seconds
        self._child: Optional[subprocess.Popen[bytes]] = None

    def write(self, path: str, value: str) -> int:
        """0, or the errno that the kernel answered with. Raises TimeoutError, ChildDied."""
        child = self._start()
        try:
            _pipe(child.stdin).write(f"{path}\t{value}\n".encode())
            _pipe(child.stdin).flush()
        except BrokenPipeError:
            raise ChildDied(child.wait()) from None
        answer = self._line(child, self.seconds)
        if answer is None:
            self._give_up(child)
            raise TimeoutError(path)
        return int(answer)

    def _start(self) -> subprocess.Popen[bytes]:
        if self._child is None or self._child.poll() is not None:
            self._child = subprocess.Popen(
                [sys.executable, "-IB", "-c", START, PACKAGE_ROOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                pass_fds=_package_descriptor(),
            )
            self._line(self._child, START_SECONDS)  # its start must not count as time that the kernel takes
        return self._child

    def _line(self, child: subprocess.Popen[bytes], seconds: float) -> Optional[bytes]:
        """The child's next line; None when there is none in time."""
        deadline = time.monotonic() + seconds
        while True:
            left = deadline - time.monotonic()
            ready, _, _ = select.select([_pipe(child.stdout)], [], [], max(left, 0))
            if not ready:
                return None
            answer = _pipe(child.stdout).readline()
            if not answer:
                raise ChildDied(child.wait())
            return answer

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        """Killed when the kernel lets it be killed; nobody waits for it."""
        child.kill()
        self._child = None


def _package_descriptor() -> tuple[int, ...]:
    """A zipapp that lies in memory only is a descriptor, which the child must have too."""
    prefix = "/proc/self/fd/"
    return (int(PACKAGE_ROOT[len(prefix) :]),) if PACKAGE_ROOT.startswith(prefix) else ()


def _pipe(stream: Optional[IO[bytes]]) -> IO[bytes]:
    assert stream is not None
    return stream


def serve() -> None:
    """The child: says that it is there; then takes a write per line, ``PATH<tab>VALUE``, and answers 0 or an errno."""
    print("ready", flush=True)
    for line in sys.stdin:
        path, _, value = line.rstrip("\n").partition("\t")
        try:
            descriptor = os.open(path, os.O_WRONLY | os.O_TRUNC)
            try:
                os.write(descriptor, f"{value}\n".encode())
            finally:
                os.close(descriptor)
            print(0, flush=True)
        except OSError as error:
            print(error.errno or 1, flush=True)
