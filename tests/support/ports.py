"""Ports for labs that tests start, each for one process of tests only, however many begin in the same second."""

from __future__ import annotations

import socket
from collections.abc import Iterable

from gpuyard_lab.catalog import GITHUB_OFFSET
from gpuyard_lab.ports import is_free

RESERVED: list[socket.socket] = []
"""Names in Linux's abstract namespace: a name has one holder, and is free again when the process ends."""


def free_port_base(candidates: Iterable[int] = range(20000, 30000, 10)) -> int:
    """The first of the candidates whose ports are all free, and which no other process of tests has been given."""
    for base in candidates:
        if all(is_free(base + offset) for offset in range(GITHUB_OFFSET + 1)) and _reserve(base):
            return base
    raise AssertionError(f"no {GITHUB_OFFSET + 1} free ports in a row")


def _reserve(base: int) -> bool:
    name = socket.socket(socket.AF_UNIX)
    try:
        name.bind(f"\0gpuyard-tests-ports-{base}")
    except OSError:
        name.close()
        return False
    RESERVED.append(name)
    return True
