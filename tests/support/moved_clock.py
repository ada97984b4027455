"""A clock that a test moves, and other processes go by: their time of day is ahead of this machine's by as much as it
says, from one moment to the next. Time that passes goes on as ever."""

from __future__ import annotations

import os
import struct
import time
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path

import time_machine

from tests.virtual_hypervisor.build import need_commands, run

SOURCE = Path(__file__).with_name("moved_clock.c")


def machine_now() -> datetime:
    """What the kernel says, to which the library adds in other processes; where tests themselves are on another day
    (--now), this is not theirs."""
    shifted = time_machine.escape_hatch.is_travelling()
    return datetime.fromtimestamp(time_machine.escape_hatch.time.time() if shifted else time.time(), UTC)


class MovedClock:
    """Starts at a moment."""

    def __init__(self, folder: Path, start: datetime) -> None:
        """Builds its library there; the C compiler is installed where that can be."""
        self._library, self._file = folder / "moved_clock.so", folder / "clock"
        need_commands({"gcc": "gcc libc6-dev"}, install=os.environ.get("CI") == "true" and os.geteuid() == 0)
        options = ["-O1", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC"]
        run(["gcc", *options, "-o", str(self._library), str(SOURCE), "-ldl"])
        self._shift = timedelta(0)
        self._file.write_bytes(bytes(8))
        self.set(start)

    @property
    def environment(self) -> Mapping[str, str]:
        """Of processes that are to go by it."""
        return {"LD_PRELOAD": str(self._library), "GPUYARD_TEST_CLOCK": str(self._file)}

    def __call__(self) -> datetime:
        return machine_now() + self._shift

    def set(self, moment: datetime) -> None:
        """For everybody at once."""
        self._shift = timedelta(seconds=round((moment - machine_now()).total_seconds()))
        with self._file.open("r+b") as file:
            file.write(struct.pack("=q", int(self._shift.total_seconds())))

    def until(self, moment: datetime) -> None:
        """Go forward to a moment; never back."""
        if moment > self():
            self.set(moment)
