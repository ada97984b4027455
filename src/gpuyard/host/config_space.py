"""Reads registers of a function's configuration space one by one: of 4096 bytes, two are usually all that is wanted.

Everybody may read the first 64 bytes, and only root those behind them.
"""

from __future__ import annotations

import struct
from typing import Callable, Optional

from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import FileTree, Tree

CONVENTIONAL = 256
"""Bytes; what lies behind them has capabilities of its own, the extended ones."""
EXTENDED_SERIAL = 0x0003
SILENCE = 0xFFFFFFFF
"""What the bus answers in place of a device that does not."""

Read = Callable[[int], Optional[int]]
"""The register of 4 bytes at an offset; None when it is not there, or not for us."""


def of(tree: Tree, address: str) -> Read:
    """Of a function as it is now. A recording may have the space as hex digits, as far as it was recorded."""
    path = f"{DEVICES}/{address}/config"
    if isinstance(tree, FileTree):
        return lambda offset: _dword(tree.read_at(path, offset, 4))
    return within(_bytes(tree.read(path) or ""))


def within(config: bytes) -> Read:
    """Of a space that was read before."""
    return lambda offset: _dword(config[offset : offset + 4])


def _bytes(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _dword(data: Optional[bytes]) -> Optional[int]:
    return int(struct.unpack("<I", data)[0]) if data is not None and len(data) == 4 else None


def extended(read: Read, capability_id: int) -> Optional[int]:
    """Where an extended capability begins; None when there is none."""
    place = CONVENTIONAL
    for _ in range(480):  # as many as there is room for: a broken device may have a loop
        header = read(place) if place >= CONVENTIONAL else None
        if header is None or header in (0, SILENCE):
            return None
        if header & 0xFFFF == capability_id:
            return place
        place = header >> 20 & 0xFFC
    return None


def serial_number(read: Read) -> str:
    """The Device Serial Number, 16 hex digits, the upper half first, as lspci has it; empty when there is none."""
    place = extended(read, EXTENDED_SERIAL)
    low, high = (None, None) if place is None else (read(place + 4), read(place + 8))
    if low is None or high is None or (low, high) in ((0, 0), (SILENCE, SILENCE)):
        return ""
    return f"{high:08x}{low:08x}"
