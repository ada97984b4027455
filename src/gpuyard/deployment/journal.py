"""Journal of a deployment: what was begun and how it ended, one JSON object a line, on the disk before anything is
done.

It is for facts that cannot be observed: whether a run of Kolla came to its end, whether a host that does not answer
is rebooting because we asked for it. Everything else is observed.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum
from pathlib import Path
from typing import Any

from gpuyard.model.errors import GpuyardError, UsageError

DEPLOY_RUN = "'gpuyard deploy run', or a program that one has started, is at this site"
LONGEST = 1 << 16
"""Most bytes of a line that are read."""


class Happening(StrEnum):
    BEGUN = "begun"
    DONE = "done"
    FAILED = "failed"


@dataclass(frozen=True)
class JournalEntry:
    """An event of one task. `object` is a host, an image, or empty."""

    run: str
    stage: str
    object: str
    happening: Happening
    at: str
    """Time of the event, UTC, ISO 8601."""
    about: str = ""
    """For a reboot the boot that was to end; for a run of Kolla the digest of its input; for a failure the reason."""
    hosts: tuple[str, ...] = ()
    """Hosts that the run was limited to; empty: to none."""

    def line(self) -> str:
        fields = {
            "run": self.run,
            "stage": self.stage,
            "object": self.object,
            "happening": self.happening.value,
            "at": self.at,
            "about": self.about,
            "hosts": self.hosts,
        }
        return json.dumps(fields) + "\n"


@dataclass(frozen=True)
class DeployJournal:
    """All entries, oldest first."""

    entries: tuple[JournalEntry, ...] = ()
    run: str = ""
    """The run that asks."""
    _last: dict[tuple[str, str], JournalEntry] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        self._last.update({(entry.stage, entry.object): entry for entry in self.entries})

    def last(self, stage: str, object_: str = "") -> JournalEntry | None:
        return self._last.get((stage, object_))

    def is_open(self, stage: str, object_: str = "") -> bool:
        """Return whether it was begun and has not come to a good end: killed, or failed."""
        entry = self.last(stage, object_)
        return entry is not None and entry.happening is not Happening.DONE

    def last_of(self, stage: str, host: str) -> JournalEntry | None:
        """Return the last entry of a stage that was for a host: of its own, or of all that a run was limited to."""
        mine = (e for e in reversed(self.entries) if e.stage == stage and e.object in ("", host))
        return next((entry for entry in mine if not entry.hosts or host in entry.hosts), None)

    def left_open(self, stage: str, hosts: Iterable[str]) -> JournalEntry | None:
        """Return the entry of what was begun for one of these hosts and has not come to a good end, nor has another
        run for it since."""
        for host in hosts:
            last = self.last_of(stage, host)
            if last is not None and last.happening is not Happening.DONE:
                return last
        return None

    def ended_in_this_run(self, stage: str, object_: str = "") -> bool:
        entry = self.last(stage, object_)
        return entry is not None and entry.happening is Happening.DONE and bool(self.run) and entry.run == self.run

    def with_entry(self, entry: JournalEntry) -> DeployJournal:
        return DeployJournal((*self.entries, entry), self.run)


def parse_journal(lines: Iterable[str], run: str = "") -> DeployJournal:
    """Parse a journal. A line that a crash has cut, or that is none of ours, is skipped."""
    return DeployJournal(tuple(entry for line in lines if (entry := _entry(line)) is not None), run)


def _entry(line: str) -> JournalEntry | None:
    try:
        fields: Any = json.loads(line)
        return JournalEntry(
            str(fields["run"]),
            str(fields["stage"]),
            str(fields["object"]),
            Happening(fields["happening"]),
            str(fields["at"]),
            str(fields.get("about", "")),
            tuple(map(str, fields.get("hosts", ()))),
        )
    except (ValueError, KeyError, TypeError, RecursionError, AttributeError):
        return None


class JournalBusyError(GpuyardError):
    """Raised when another run writes the journal."""


class JournalFile:
    """A journal on the disk, which one run at a time may write. `run`: what that is, for people."""

    def __init__(self, path: Path, run: str = DEPLOY_RUN) -> None:
        self.path, self._run = path, run

    def read(self, run: str = "") -> DeployJournal:
        """Return the journal. Raises UsageError when it cannot be read."""
        try:
            with self.path.open(encoding="utf-8", errors="replace") as file:
                return parse_journal(iter(lambda: file.readline(LONGEST), ""), run)
        except FileNotFoundError:
            return DeployJournal((), run)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be read: {error.strerror}; name another folder with --state"
            ) from None

    @contextmanager
    def writer(self) -> Iterator[JournalWriter]:
        """Open the journal for writing. Raises GpuyardError when another run is at it, UsageError when it cannot be
        written."""
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UsageError(
                f"{self.path}: cannot be written: {error.strerror}; name another folder with --state"
            ) from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise JournalBusyError(f"another {self._run} ({self.path}): wait until it has ended") from None
            if (size := os.fstat(descriptor).st_size) and os.pread(descriptor, 1, size - 1) != b"\n":
                os.write(descriptor, b"\n")  # a crash cut the last line
            yield JournalWriter(descriptor)
        finally:
            os.close(descriptor)


@dataclass(frozen=True)
class JournalWriter:
    """Appends entries; an entry is on the disk when the method returns."""

    descriptor: int

    def write(self, entry: JournalEntry) -> None:
        """Write an entry. Raises GpuyardError when the disk does not take it."""
        left = entry.line().encode()
        try:
            while left:
                left = left[os.write(self.descriptor, left) :]
            os.fsync(self.descriptor)
        except OSError as error:
            raise GpuyardError(
                f"the journal cannot be written: {error.strerror}; mend that, and type the same again"
            ) from None


def stamp(now: datetime) -> str:
    return now.isoformat(timespec="seconds")
