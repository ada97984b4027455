"""The interface through which gpuyard changes a host: files, sysfs attributes, commands.

Paths are relative to the root without a leading slash, as in a Tree. ``LocalHost`` is this machine; tests have a model
of one, and the same contract tests run against both.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
import shutil
import subprocess
from contextlib import contextmanager, suppress
from typing import IO, Callable, ContextManager, Iterator, List, Optional, Protocol, Sequence

from gpuyard.host.sysfs_writer import AttributeWriter, ChildDied
from gpuyard.host.tree import FileTree, Tree
from gpuyard.model.errors import GpuyardError

COMMAND_SECONDS = 1800
"""update-initramfs takes minutes on a slow disk; longer than this means that it hangs."""
NO_SUCH_COMMAND, TIMED_OUT = 127, 124
"""Exit codes of timeout(1), which ends what a command has started too."""
PATH = "/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
"""First, as ``su`` without a dash leaves the caller's."""
SPARE_BYTES = 256 << 20
"""What a copy must leave free: a full disk stops the VMs that have their images on it."""
STATE_FOLDER = "var/lib/gpuyard"
"""Journal and copies: only root may look into it, as some of the files that are copied are root's alone."""
LOCK_FOLDER, LOCK = "run/gpuyard", "lock"
"""A folder of our own: in /run/lock anybody could hold the lock for ever, or make it a link to another file."""


class AttributeRefused(GpuyardError):
    """The kernel answered a write to sysfs with an error, `number` of errno."""

    def __init__(self, path: str, value: str, number: int) -> None:
        super().__init__(f"the kernel refused {value!r} to /{path}: {os.strerror(number)}")
        self.number = number


class AttributeHangs(GpuyardError):
    """A write to sysfs did not return in time; whoever holds the device must let go of it first."""

    def __init__(self, path: str, value: str, seconds: float) -> None:
        super().__init__(
            f"writing {value!r} to /{path} has not returned after {seconds:g} s: somebody may hold the device"
        )


class CommandFailed(GpuyardError):
    """A command of the distribution ended with an error; the message has the end of what it said."""


class HostAccess(Protocol):
    """What can be done to a host. Every method but `run` is one change that is there whole or not at all."""

    @property
    def tree(self) -> Tree:
        """The host as it is now."""

    def write_file(self, path: str, text: str, mode: int) -> None:
        """Write a file, with the folders above it. What was there is replaced in one step. Raises GpuyardError."""

    def copy_file(self, source: str, target: str) -> None:
        """Copy a file with its mode, owner and time, as `write_file` writes. Raises GpuyardError."""

    def remove_file(self, path: str) -> None:
        """Remove a file; nothing to do when there is none."""

    def remove_folder(self, path: str) -> None:
        """Remove a folder if it is there and empty."""

    def lock(self, name: str = LOCK) -> ContextManager[None]:
        """Keep every other gpuyard from changing the host meanwhile. Raises GpuyardError when one is at it. `name`:
        of another lock than that, for what only one may do."""

    def digest(self, path: str) -> Optional[str]:
        """SHA-256 of a file's content in hex; None when there is no such file."""

    def write_attribute(self, path: str, value: str) -> None:
        """Write to sysfs. Raises AttributeRefused, AttributeHangs."""

    def run(self, command: Sequence[str]) -> None:
        """Run a command of the distribution to its end. Raises CommandFailed."""


class LocalHost:
    """The machine that this runs on, or what is mounted below `root`."""

    def __init__(self, root: str = "/", attribute_seconds: float = 30) -> None:
        """`attribute_seconds`: how long the kernel may take for one write to sysfs."""
        self._tree = FileTree(root)
        self._writer = AttributeWriter(attribute_seconds)

    @property
    def tree(self) -> Tree:
        return self._tree

    def _path(self, path: str) -> str:
        """Where a path is on this machine; a link at its end is not followed. Raises GpuyardError for a loop."""
        return self._found(self._tree.place, path)

    def _real(self, path: str) -> str:
        """As `_path`, and a link at the end is followed."""
        return self._found(self._tree.real, path)

    @staticmethod
    def _found(find: Callable[[str], str], path: str) -> str:
        try:
            return find(path)
        except OSError as error:
            raise GpuyardError(f"/{path}: {error.strerror}") from None

    def write_file(self, path: str, text: str, mode: int) -> None:
        def fill(temporary: str) -> None:
            with _new(temporary) as file:
                file.write(text.encode())
            os.chmod(temporary, mode)  # whatever the umask is

        self._put(path, fill)

    def copy_file(self, source: str, target: str) -> None:
        def fill(temporary: str) -> None:
            original = self._real(source)
            needed, free = os.stat(original).st_size, shutil.disk_usage(os.path.dirname(temporary)).free
            if free < needed + SPARE_BYTES:
                raise OSError(errno.ENOSPC, f"a copy of /{source} needs {needed >> 20} MiB, {free >> 20} MiB are free")
            with open(original, "rb") as source_file, _new(temporary) as file:
                shutil.copyfileobj(source_file, file)
            status = os.stat(original)
            with suppress(PermissionError):  # not root: then it is the user's own file anyway
                os.chown(temporary, status.st_uid, status.st_gid)
            shutil.copystat(original, temporary)

        self._put(target, fill)

    def _put(self, path: str, fill: Callable[[str], None]) -> None:
        """Fill a temporary file next to the target, make sure that it is on the disk, put it in the target's place."""
        target = self._real(path)  # where it is a link, as grubenv often is, to stay one
        folder = os.path.dirname(target)
        try:
            self._make_folders(folder)
            fill(_temporary(target))
            _flush(_temporary(target))
            os.replace(_temporary(target), target)
            _flush(folder)
        except OSError as error:
            with suppress(OSError):  # a disk that is full must not stay full
                os.unlink(_temporary(target))
            raise GpuyardError(f"cannot write /{path}: {error.strerror}") from None

    def _make_folders(self, folder: str) -> None:
        """Those that are missing, as everybody may see them, but for the state; whatever the umask is."""
        state = self._real(STATE_FOLDER)
        missing: List[str] = []
        while not os.path.isdir(folder) or folder == state:
            missing.insert(0, folder)
            folder = os.path.dirname(folder)
        for path in missing:
            with suppress(FileExistsError):
                os.mkdir(path, 0o700)
            os.chmod(path, 0o700 if f"{path}/".startswith(f"{state}/") else 0o755)

    def remove_file(self, path: str) -> None:
        target = self._path(path)
        try:
            for name in (_temporary(target), target):
                with suppress(FileNotFoundError):
                    os.unlink(name)
                    _flush(os.path.dirname(name))
        except OSError as error:
            raise GpuyardError(f"cannot remove /{path}: {error.strerror}") from None

    def remove_folder(self, path: str) -> None:
        try:
            os.rmdir(self._path(path))
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTEMPTY, errno.EEXIST):
                raise GpuyardError(f"cannot remove /{path}: {error.strerror}") from None

    @contextmanager
    def lock(self, name: str = LOCK) -> Iterator[None]:
        try:
            descriptor = self._open_lock(name)
        except OSError as error:
            raise GpuyardError(f"cannot open /{LOCK_FOLDER}/{name}: {error.strerror}; run this as root") from None
        try:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise GpuyardError("another gpuyard is changing this host: wait until it has ended") from None
            yield
        finally:
            os.close(descriptor)

    def _open_lock(self, name: str) -> int:
        """Raises OSError, and GpuyardError when somebody else was there first."""
        path = self._path(LOCK_FOLDER)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with suppress(FileExistsError):
            os.mkdir(path, 0o700)
        folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            owner = os.fstat(folder).st_uid
            if owner != os.geteuid():
                raise GpuyardError(f"/{LOCK_FOLDER} belongs to user {owner}, who could block gpuyard: remove it")
            os.fchmod(folder, 0o700)
            return os.open(name, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600, dir_fd=folder)
        finally:
            os.close(folder)

    def digest(self, path: str) -> Optional[str]:
        digest = hashlib.sha256()
        try:
            with open(self._tree.real(path), "rb") as file:
                for block in iter(lambda: file.read(1 << 20), b""):
                    digest.update(block)
        except OSError:
            return None
        return digest.hexdigest()

    def write_attribute(self, path: str, value: str) -> None:
        try:
            number = self._writer.write(self._real(path), value)
        except ChildDied:
            reason = "the process that wrote it died with the kernel's driver: 'dmesg' has the reason; reboot the host"
            raise GpuyardError(f"writing {value!r} to /{path}: {reason}") from None
        except TimeoutError:
            raise AttributeHangs(path, value, self._writer.seconds) from None
        if number:
            raise AttributeRefused(path, value, number)

    def run(self, command: Sequence[str]) -> None:
        name = " ".join(command)
        if self._tree.root != "/":
            raise CommandFailed(f"{name}: would change this machine and not what is below {self._tree.root}")
        try:
            done = subprocess.run(
                ["timeout", str(COMMAND_SECONDS), *command],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, "PATH": f"{PATH}:{os.environ.get('PATH', '')}", "LC_ALL": "C.UTF-8"},
                check=False,
            )
        except FileNotFoundError:
            raise CommandFailed("there is no 'timeout' on this host: install coreutils") from None
        if done.returncode == NO_SUCH_COMMAND:
            raise CommandFailed(f"{name}: there is no such command on this host")
        if done.returncode == TIMED_OUT:
            raise CommandFailed(f"{name}: has not ended after {COMMAND_SECONDS} s")
        if done.returncode:
            raise CommandFailed(f"{name} ended with {done.returncode}:\n{_end_of(done.stdout)}")


def _temporary(target: str) -> str:
    """Always the same name, so that what a crash leaves is found again, and hidden from programs that read folders."""
    folder, name = os.path.split(target)
    return os.path.join(folder, f".{name}.gpuyard")


def _new(path: str) -> IO[bytes]:
    """A file that only its owner may read until it is told otherwise. One that a crash has left is gone."""
    with suppress(FileNotFoundError):
        os.unlink(path)
    return open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb")


def _flush(path: str) -> None:
    """Make sure that a file, or the names in a folder, survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _end_of(output: bytes) -> str:
    lines: List[str] = output.decode("utf-8", "replace").strip().splitlines()
    return "\n".join(lines[-10:])
