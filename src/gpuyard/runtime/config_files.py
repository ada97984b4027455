"""Changes of configuration files: planned, shown as a diff, and written one by one, each atomically."""

from __future__ import annotations

import difflib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.model.errors import BlockedError, GpuyardError, UsageError


@dataclass(frozen=True)
class Change:
    """The present and the desired text of one file. None: it does not exist."""

    path: Path
    before: str | None
    after: str | None

    @property
    def sign(self) -> str:
        if self.before is None:
            return "+"
        return "-" if self.after is None else "~"


def read_text(path: Path) -> str | None:
    """Return a file's text, line ends as they are; None when there is none. Raises UsageError when it cannot be
    read."""
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: byte {error.start} is not UTF-8; Ansible could not read it either") from None
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}") from None


def plan_tree(files: Mapping[str, str], folder: Path, ours: str, patterns: Sequence[str]) -> tuple[Change, ...]:
    """Plan the changes after which a folder has these files (path below it -> text), and none of ours besides. `ours`:
    how they begin, `patterns`: where they may be. Raises BlockedError when a file in their place is not ours."""
    changes = []
    for name, text in files.items():
        before = read_text(folder / name)
        if before is not None and not before.startswith(ours):
            raise BlockedError(f"{folder / name} was not written by gpuyard; move it away, or name another folder")
        if before != text:
            changes.append(Change(folder / name, before, text))
    for path in sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}):
        if str(path.relative_to(folder)) in files:
            continue
        before = read_text(path)
        if before is not None and before.startswith(ours):
            changes.append(Change(path, before, None))
    return tuple(changes)


def diff(changes: Iterable[Change]) -> Iterator[str]:
    """Yield a unified diff, line by line."""
    for change in changes:
        old = "/dev/null" if change.before is None else str(change.path)
        new = "/dev/null" if change.after is None else str(change.path)
        before, after = ((text or "").splitlines() for text in (change.before, change.after))
        yield from difflib.unified_diff(before, after, old, new, lineterm="")


def write(change: Change) -> None:
    """Write one change. Raises GpuyardError when the file is no longer what it was, or cannot be written."""
    path = change.path.resolve()  # a link stays a link
    if read_text(path) != change.before:
        raise GpuyardError(f"{change.path} was changed by somebody else just now; run the command again")
    try:
        if change.after is None:
            path.unlink()
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, change.after.encode())
    except OSError as error:
        raise GpuyardError(f"{change.path}: {error.strerror}; what was written before it stays, run again") from None


def replace_file(path: Path, content: bytes, mode: int | None = None) -> None:
    """Write a file in one piece: readers see the old one or the new one, and after a crash there is one of them.

    Its mode and owner stay, unless it is to have a certain `mode`. Raises OSError, and then the old one is there."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(descriptor, "wb") as stream:
            if mode is None:
                _as_before(path, stream.fileno())
            else:
                os.fchmod(stream.fileno(), mode)
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _as_before(path: Path, descriptor: int) -> None:
    try:
        old = path.stat()
    except FileNotFoundError:
        umask = os.umask(0)
        os.umask(umask)
        os.fchmod(descriptor, 0o666 & ~umask)
        return
    new = os.fstat(descriptor)
    if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    os.fchmod(descriptor, old.st_mode & 0o7777)
