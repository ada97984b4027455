"""Reads Access Control Services (ACS) of PCIe bridges: whether a port keeps devices below it behind the IOMMU.

Linux puts everything below a port that cannot into one IOMMU group with the port. The registers are in the extended
configuration space, which only root may read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass
from typing import Optional, Tuple

from gpuyard.host.config_space import extended, within
from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import FileTree, Tree

RECORDED = "acs"
"""A file of recordings only: the whole configuration space has a serial number in it."""
AS_RECORDED = re.compile(r"(-|[0-9]{1,2})(?: ([0-9a-f]{4}) ([0-9a-f]{4}))?", re.ASCII)
HEADER = 64
STATUS, HAS_CAPABILITIES, FIRST_CAPABILITY = 0x06, 0x10, 0x34
CAPABILITY_EXPRESS, EXTENDED_ACS = 0x10, 0x000D
TYPE_ROOT_PORT, TYPE_DOWNSTREAM, TYPE_PCI_BRIDGE = 4, 6, 7
# Source validation, request redirect, completion redirect, upstream forwarding: what Linux asks for.
WANTED = 0x01 | 0x04 | 0x08 | 0x10


@dataclass(frozen=True)
class Acs:
    """What a bridge says of itself."""

    port_type: Optional[int]
    """Of its PCI Express capability; None for conventional PCI."""
    registers: Optional[Tuple[int, int]] = None
    """Capability and control register; None when it has none."""

    @property
    def weakness(self) -> str:
        """Why it cannot keep devices apart; empty when it can."""
        if self.port_type is None or self.port_type == TYPE_PCI_BRIDGE:
            return "conventional PCI below it"
        if self.port_type not in (TYPE_ROOT_PORT, TYPE_DOWNSTREAM):
            return ""
        if self.registers is None:
            return "no ACS"
        capability, control = self.registers
        # As Linux counts: what the port cannot switch is taken for built in.
        return "ACS switched off" if WANTED & capability & ~control else ""

    def __str__(self) -> str:
        kind = "-" if self.port_type is None else str(self.port_type)
        return f"{kind} {self.registers[0]:04x} {self.registers[1]:04x}" if self.registers else kind


def acs_of(tree: Tree, address: str) -> Optional[Acs]:
    """The registers of a bridge; None when they are not to be seen."""
    recorded = AS_RECORDED.fullmatch((tree.read(f"{DEVICES}/{address}/{RECORDED}") or "").strip())
    if recorded:
        kind, capability, control = recorded.groups()
        registers = None if capability is None else (int(capability, 16), int(control, 16))
        return Acs(None if kind == "-" else int(kind), registers)
    config = _config(tree, address)
    return parse(config) if len(config) > HEADER else None


def _config(tree: Tree, address: str) -> bytes:
    """Binary, so it is not read as text through the tree."""
    if not isinstance(tree, FileTree):
        return b""
    return tree.read_bytes(f"{DEVICES}/{address}/config") or b""


def parse(config: bytes) -> Acs:
    """Of a configuration space of 256 or 4096 bytes."""
    express = _capability(config, CAPABILITY_EXPRESS)
    kind = None if express is None else _word(config, express + 2) >> 4 & 0xF
    place = extended(within(config), EXTENDED_ACS)
    return Acs(kind, None if place is None else (_word(config, place + 4), _word(config, place + 6)))


def _word(config: bytes, offset: int) -> int:
    """0 behind the end."""
    return int(struct.unpack_from("<H", config, offset)[0]) if offset + 2 <= len(config) else 0


def _capability(config: bytes, capability_id: int) -> Optional[int]:
    place = config[FIRST_CAPABILITY] & 0xFC if _word(config, STATUS) & HAS_CAPABILITIES else 0
    for _ in range(48):  # as many as there is room for: a broken device may have a loop
        if place < HEADER or place + 2 > len(config):
            return None
        if config[place] == capability_id:
            return place
        place = config[place + 1] & 0xFC
    return None
