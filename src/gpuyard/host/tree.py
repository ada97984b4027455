"""The read-only tree that a scan reads: a folder with ``sys`` and ``proc`` in it, or a recording in memory.

Paths are relative to the root, without a leading slash: ``sys/bus/pci/devices``. A missing file or folder is normal
(kernels differ in the attributes that they have), so reading one returns None or an empty list instead of raising. All
of it is input: firmware, drivers and people write what they like, and a recording comes from anywhere.
"""

from __future__ import annotations

import errno
import os
import posixpath
import re
import stat
from typing import Any, Dict, List, Mapping, Optional, Protocol

from gpuyard.model.errors import UsageError

LINK = "->"
END = "\n\0"
"""What a file may end with: some drivers count the final zero of their strings."""
BLANK = f" \t{END}"
NUMBER = re.compile(r"-?[0-9]{1,18}", re.ASCII)
MAX_LINKS = 40  # as the kernel's own limit; a recording may have been edited into a loop


class Tree(Protocol):
    """Read-only view of the parts of ``/sys`` and ``/proc`` that gpuyard looks at."""

    def read(self, path: str) -> Optional[str]:
        """The text of a file without final newlines and zeros; None when it is not there or cannot be read."""

    def link(self, path: str) -> Optional[str]:
        """The target of a symbolic link as written; None when it is not a link."""

    def names(self, path: str) -> List[str]:
        """Sorted names in a folder; empty when it is not there."""

    def is_hidden(self, path: str) -> bool:
        """Whether a folder is there and may not be looked into."""

    def resolve(self, path: str) -> str:
        """The path with all links followed, as far as it exists."""


class FileTree:
    """The tree below a real folder, ``/`` for the machine itself. No link leads out of it: one is followed as it would
    be by a machine that has this folder for its root."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)

    def real(self, path: str) -> str:
        """Where a path is on this machine, with all links followed, as far as it exists. Raises OSError, ValueError."""
        if self.root == "/":
            return os.path.realpath(f"/{path}")
        waiting, place, links = path.split("/")[::-1], self.root, 0
        while waiting:
            part = waiting.pop()
            if part == "..":
                place = place if place == self.root else os.path.dirname(place)
            elif part not in ("", "."):
                entry = f"{place}/{part}"
                target = _target_of(entry)
                if target is None:
                    place = entry
                    continue
                links += 1
                if links > MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
                place = self.root if target.startswith("/") else place
                waiting += target.split("/")[::-1]
        return place

    def place(self, path: str) -> str:
        """As `real`, but for a link at the end, which is not followed."""
        folder, _, name = path.rpartition("/")
        return os.path.join(self.real(folder), name)

    def _path(self, path: str) -> str:
        return f"/{path}" if self.root == "/" else self.real(path)

    def read_bytes(self, path: str) -> Optional[bytes]:
        """The content of a file; None when it is not there, cannot be read, or is a pipe or a device."""
        try:
            with open(self._path(path), "rb", buffering=0, opener=_open) as file:  # a host has thousands of small ones
                return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else None
        except (OSError, ValueError):  # also EIO and EINVAL: some attributes exist and refuse to be read
            return None

    def read_at(self, path: str, offset: int, size: int) -> Optional[bytes]:
        """As `read_bytes`, but only some bytes of it; fewer where it ends."""
        try:
            with open(self._path(path), "rb", buffering=0, opener=_open) as file:
                is_file = stat.S_ISREG(os.fstat(file.fileno()).st_mode)
                return os.pread(file.fileno(), size, offset) if is_file else None
        except (OSError, ValueError):
            return None

    def read(self, path: str) -> Optional[str]:
        content = self.read_bytes(path)
        return None if content is None else content.decode("utf-8", "replace").rstrip(END)

    def link(self, path: str) -> Optional[str]:
        try:
            return _decoded(os.readlink(self.place(path) if self.root != "/" else f"/{path}"))
        except (OSError, ValueError):
            return None

    def names(self, path: str) -> List[str]:
        try:
            return sorted(map(_decoded, os.listdir(self._path(path))))
        except (OSError, ValueError):
            return []

    def is_hidden(self, path: str) -> bool:
        try:
            os.listdir(self._path(path))
        except PermissionError:
            return True
        except (OSError, ValueError):
            pass
        return False

    def resolve(self, path: str) -> str:
        try:
            return _decoded(os.path.relpath(self.real(path), self.root))
        except (OSError, ValueError):  # a loop of links; a zero in the path
            return path


def _open(path: str, flags: int) -> int:
    """Without waiting for somebody at the other end of a pipe."""
    return os.open(path, flags | os.O_NONBLOCK | os.O_NOCTTY)


def _target_of(path: str) -> Optional[str]:
    """Where a link of this machine leads to; None for what is no link, or not there."""
    try:
        return os.readlink(path)
    except OSError:
        return None


def _decoded(name: str) -> str:
    """Without the surrogates that Python has for bytes which are no UTF-8: nobody could print them."""
    return name if name.isascii() else os.fsencode(name).decode("utf-8", "replace")


def number(text: Optional[str]) -> Optional[int]:
    """A decimal number as the kernel writes one, with spaces around it; None for anything else."""
    text = (text or "").strip(BLANK)
    return int(text) if NUMBER.fullmatch(text) else None


def open_tree(root: str) -> FileTree:
    """The tree below a folder. Raises UsageError when that is no root of a machine."""
    if not os.path.isdir(os.path.join(root, "sys")):
        raise UsageError(f"{root} has no folder sys: name one that holds a machine's sys, proc and etc")
    return FileTree(root)


class Folder:
    """The files of one folder of a tree, by name; as the tree would read them one by one."""

    def __init__(self, tree: Tree, path: str) -> None:
        self._tree = tree
        self._path = path
        # A site reads hundreds of thousands of attributes from recordings; there the folder is looked up once.
        self._nodes: Mapping[str, Node] = tree.nodes_at(path) if isinstance(tree, RecordedTree) else {}

    def read(self, name: str) -> Optional[str]:
        node = self._nodes.get(name)
        return node if isinstance(node, str) else self._slowly(name, node)

    def _slowly(self, name: str, node: Node) -> Optional[str]:
        if node is None and self._nodes:
            return None
        return self._tree.read(f"{self._path}/{name}")

    def link(self, name: str) -> Optional[str]:
        if self._nodes and name not in self._nodes:
            return None
        return self._tree.link(f"{self._path}/{name}")


Node = Any  # str: a file; {LINK: target}: a link; any other dict: a folder; anything else: not there


def _target(node: Node) -> Optional[str]:
    """Where a link leads to; None for what is no link."""
    target = node.get(LINK) if isinstance(node, dict) else None
    return target if isinstance(target, str) else None


class RecordedTree:
    """A tree held in nested dictionaries, as a recording stores it."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes
        self._resolved: Dict[str, str] = {}

    def nodes_at(self, path: str) -> Mapping[str, Node]:
        """What is in a folder; nothing when there is none."""
        node = self._at(path)
        return node if isinstance(node, dict) and _target(node) is None else {}

    def _entry(self, path: str) -> Node:
        """What stands at a path itself, also when it is a link; the way there may lead through links."""
        folder, _, name = path.rpartition("/")
        above = self._at(folder) if folder else self.nodes
        return above.get(name) if isinstance(above, dict) else None

    def _at(self, path: str) -> Node:
        """The node at a path, through the links on the way there; None when there is none."""
        # Most paths have no link in them, and a site reads hundreds of thousands.
        node: Node = self.nodes
        for part in path.split("/"):
            node = node.get(part) if isinstance(node, dict) else None
            if node is None:
                odd = ".." in path or "//" in path or "/./" in path
                return self._straight(self.resolve(path)) if odd else None
            if isinstance(node, dict) and LINK in node and _target(node) is not None:
                return self._straight(self.resolve(path))
        return node

    def _straight(self, path: str) -> Node:
        node: Node = self.nodes
        for part in path.split("/"):
            if not isinstance(node, dict) or part not in node:
                return None
            node = node[part]
        return node

    def resolve(self, path: str) -> str:
        resolved = self._resolved.get(path)
        if resolved is None:
            resolved = self._resolved[path] = self._follow(path)
        return resolved

    def _follow(self, path: str) -> str:
        if "//" in path or "/." in path:
            path = posixpath.normpath(path)
        for _ in range(MAX_LINKS):
            node: Node = self.nodes
            parts = path.split("/")
            for depth, part in enumerate(parts):
                node = node.get(part) if isinstance(node, dict) else None
                if node is None:
                    return path
                target = _target(node) if isinstance(node, dict) and LINK in node else None
                if target is not None:
                    path = posixpath.join("/", "/".join(parts[:depth]), target, *parts[depth + 1 :])
                    path = posixpath.normpath(path).lstrip("/")
                    break
            else:
                return path
        return path

    def read(self, path: str) -> Optional[str]:
        node = self._entry(path)
        if _target(node) is not None:
            node = self._straight(self.resolve(path))
        return node if isinstance(node, str) else None

    def link(self, path: str) -> Optional[str]:
        return _target(self._entry(path))

    def names(self, path: str) -> List[str]:
        return sorted(self.nodes_at(path))

    def is_hidden(self, path: str) -> bool:
        return False
