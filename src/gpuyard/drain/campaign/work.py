"""Runs the command for one host so that it survives the campaign's process, and that its end is known.

A process of its own runs the command, holds a lock as long as it runs, and writes its exit code into the locked file. A
later run, after a kill of the campaign, sees by the file that it runs, how it ended, or that nobody knows: then the
machine went down, or that process was killed too.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.model.errors import GpuyardError

MODULE = "gpuyard.drain.campaign.work"
NOT_STARTED = 127
"""The exit code of a command that is not there, as a shell has it."""
LONGEST = 64


@dataclass(frozen=True)
class WorkFile:
    """The files of one attempt: its output, and its lock with the exit code."""

    folder: Path
    host: str
    attempt: str

    @property
    def log(self) -> Path:
        return self.folder / f"{self.host}-{self.attempt}.log"

    @property
    def state(self) -> Path:
        return self.folder / f"{self.host}-{self.attempt}.end"

    def start(self, words: Sequence[str]) -> None:
        """Start the command and return at once. Raises GpuyardError."""
        try:
            self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            state = os.open(self.state, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
            log = os.open(self.log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise GpuyardError(
                f"{self.state}: cannot be written: {error.strerror}; name another folder with --state"
            ) from None
        try:
            fcntl.flock(state, fcntl.LOCK_EX)  # it is the open file's, which the child has too
            process = subprocess.Popen(
                [sys.executable, "-m", MODULE, str(state), *words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=[state],
                start_new_session=True,  # an interrupted campaign does not interrupt the work
            )
            threading.Thread(target=process.wait, daemon=True).start()  # or it would be a zombie
        finally:
            os.close(state)
            os.close(log)

    def runs(self) -> bool:
        """Return whether the command is running now."""
        try:
            descriptor = os.open(self.state, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return False
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
        except BlockingIOError:
            return True
        finally:
            os.close(descriptor)

    def code(self) -> int | None:
        """Return the exit code of the command; None: nobody knows."""
        try:
            return int(self.state.read_bytes()[:LONGEST])
        except (FileNotFoundError, ValueError):
            return None


def main(words: Sequence[str]) -> int:
    """Run the command in the process of its own. `words`: the descriptor of the locked file, and the command."""
    descriptor, command = int(words[0]), words[1:]
    os.set_inheritable(descriptor, False)  # what the command leaves running does not hold the lock
    try:
        code = subprocess.run(command, stdin=subprocess.DEVNULL).returncode
    except OSError as error:
        print(f"{command[0]}: {error.strerror}", flush=True)
        code = NOT_STARTED
    os.write(descriptor, str(code).encode())
    os.fsync(descriptor)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
