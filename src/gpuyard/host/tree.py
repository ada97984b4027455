"""Where a scan reads from: a folder with ``sys`` and ``proc`` in it, or a recording in memory.

Paths are relative to the root, without a leading slash: ``sys/bus/pci/devices``. A missing file or folder is normal
(kernels differ in the attributes that they have), so reading one answers None or an empty list instead of raising.
"""

from __future__ import annotations

import os
import posixpath
from typing import Any, Dict, List, Mapping, Optional, Protocol

from gpuyard.model.errors import UsageError

LINK = "->"
MAX_LINKS = 40  # as the kernel's own limit; a recording may have been edited into a loop


class Tree(Protocol):
    """Read-only view of the parts of ``/sys`` and ``/proc`` that gpuyard looks at."""

    def read(self, path: str) -> Optional[str]:
        """The text of a file without the final newline; None when it is not there or cannot be read."""

    def link(self, path: str) -> Optional[str]:
        """The target of a symbolic link as written; None when it is not a link."""

    def names(self, path: str) -> List[str]:
        """Sorted names in a folder; empty when it is not there."""

    def resolve(self, path: str) -> str:
        """The path with all links followed, as far as it exists."""


class FileTree:
    """The tree below a real folder, ``/`` for the machine itself."""

    def __init__(self, root: str = "/") -> None:
        self.root = os.path.realpath(root)
        self._start = os.path.join(self.root, "")

    def _path(self, path: str) -> str:
        return self._start + path

    def read(self, path: str) -> Optional[str]:
        try:
            with open(self._path(path), "rb", buffering=0) as file:  # a host has thousands of small ones
                return file.read().decode("utf-8", "replace").rstrip("\n")
        except OSError:  # also EIO and EINVAL: some attributes exist and refuse to be read
            return None

    def link(self, path: str) -> Optional[str]:
        try:
            return os.readlink(self._path(path))
        except OSError:
            return None

    def names(self, path: str) -> List[str]:
        try:
            return sorted(os.listdir(self._path(path)))
        except OSError:
            return []

    def resolve(self, path: str) -> str:
        return os.path.relpath(os.path.realpath(self._path(path)), self.root)


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


Node = Any  # str: a file; {LINK: target}: a link; any other dict: a folder


class RecordedTree:
    """A tree held in nested dictionaries, as a recording stores it."""

    def __init__(self, nodes: Mapping[str, Node]) -> None:
        self.nodes = nodes
        self._resolved: Dict[str, str] = {}

    def nodes_at(self, path: str) -> Mapping[str, Node]:
        """What is in a folder; nothing when there is none."""
        node = self._at(path)
        return node if isinstance(node, dict) and LINK not in node else {}

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
            if isinstance(node, dict) and LINK in node:
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
        known = self._resolved.get(path)
        if known is None:
            known = self._resolved[path] = self._follow(path)
        return known

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
                if isinstance(node, dict) and LINK in node:
                    target = posixpath.join("/".join(parts[:depth]), node[LINK])
                    path = posixpath.normpath(posixpath.join(target, *parts[depth + 1 :]))
                    break
            else:
                return path
        return path

    def read(self, path: str) -> Optional[str]:
        node = self._entry(path)
        if isinstance(node, dict) and LINK in node:
            node = self._at(path)
        return node if isinstance(node, str) else None

    def link(self, path: str) -> Optional[str]:
        node = self._entry(path)
        return node[LINK] if isinstance(node, dict) and LINK in node else None

    def names(self, path: str) -> List[str]:
        node = self._at(path)
        return sorted(node) if isinstance(node, dict) and LINK not in node else []
