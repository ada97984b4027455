"""A PCI function that is open through VFIO: its regions, and how it is reset.

While its group is open here nobody else can open it, a VM neither: so what is done is done to a function that nobody
uses. Raises VfioRefusedError when the kernel does not do what it is asked for.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from fcntl import ioctl
from typing import List, Tuple

from gpuyard.host.checks.vfio import CONFIG_REGION, asking, read_region, region_of

# linux/vfio.h: all of them are _IO(';', 100 + n).
_IO = ord(";") << 8 | 100
DEVICE_GET_INFO, DEVICE_RESET, GET_HOT_RESET_INFO, HOT_RESET = _IO + 7, _IO + 11, _IO + 12, _IO + 13
DEVICE_INFO = struct.Struct("=IIII")  # size, flags, regions, interrupts
FLAG_RESET = 1
HOT_RESET_HEAD = struct.Struct("=III")  # size, flags, count
DEPENDENT = struct.Struct("=IHBB")  # group, PCI segment, bus, slot and function
MOST_DEPENDENT = 256
"""More functions than one bus has."""
BARS = 6
BAR_REGISTERS, COMMAND = 0x10, 0x04
IO_SPACE, WIDE = 0x1, 0x4
MEMORY_ON = 0x2
WORD = struct.Struct("<I")


@dataclass(frozen=True)
class Neighbour:
    """A function that a reset of the bus reaches."""

    group: int
    address: str


class VfioFunction:
    """`descriptor`: of the open function. It belongs to whoever has opened it."""

    def __init__(self, address: str, descriptor: int) -> None:
        self.address = address
        self._descriptor = descriptor

    @property
    def resettable(self) -> bool:
        """Whether the kernel has a way to reset it alone."""
        info = bytearray(DEVICE_INFO.pack(DEVICE_INFO.size, 0, 0, 0))
        with asking(f"{self.address}: what it is"):
            ioctl(self._descriptor, DEVICE_GET_INFO, info)
        return bool(DEVICE_INFO.unpack(info)[1] & FLAG_RESET)

    def reset(self) -> None:
        """Reset it alone, by the first of its reset_method."""
        with asking(f"{self.address}: its reset"):
            ioctl(self._descriptor, DEVICE_RESET)

    def neighbours(self) -> List[Neighbour]:
        """What a reset of its slot or bus reaches, itself among them; empty where the kernel has no such reset."""
        size = HOT_RESET_HEAD.size + MOST_DEPENDENT * DEPENDENT.size
        answer = bytearray(size)
        HOT_RESET_HEAD.pack_into(answer, 0, size, 0, 0)
        try:
            ioctl(self._descriptor, GET_HOT_RESET_INFO, answer)
        except OSError:  # ENODEV: neither its slot nor its bus can be reset
            return []
        count = HOT_RESET_HEAD.unpack_from(answer)[2]
        dependents = DEPENDENT.iter_unpack(bytes(answer[HOT_RESET_HEAD.size :][: count * DEPENDENT.size]))
        return [
            Neighbour(group, f"{segment:04x}:{bus:02x}:{place >> 3:02x}.{place & 7}")
            for group, segment, bus, place in dependents
        ]

    def reset_bus(self, group: int) -> None:
        """Reset the slot or bus that it is on, with all its neighbours. `group`: descriptor of the group that all of
        them are in: the kernel refuses when it is not that of every one."""
        order = struct.pack("=IIIi", HOT_RESET_HEAD.size + 4, 0, 1, group)
        with asking(f"{self.address}: the reset of its bus"):
            ioctl(self._descriptor, HOT_RESET, order)

    def config(self, offset: int, size: int) -> bytes:
        """Of its config space, as it answers now."""
        with asking(f"{self.address}: its config space"):
            return read_region(self._descriptor, CONFIG_REGION, offset, size)

    def memory_bars(self) -> List[int]:
        """Numbers of its memory regions. It must have its memory switched on, or it shows none."""
        bars, number = [], 0
        while number < BARS:
            (low,) = WORD.unpack(self.config(BAR_REGISTERS + 4 * number, 4))
            with asking(f"{self.address}: its BAR {number}"):
                size = region_of(self._descriptor, number)[0]
            if size and not low & IO_SPACE:
                bars.append(number)
            number += 2 if size and low & WIDE and not low & IO_SPACE else 1
        return bars

    def answer_to_memory(self) -> None:
        """Have it answer when its regions are read; a function that was reset does not."""
        (command,) = struct.unpack("<H", self.config(COMMAND, 2))
        with asking(f"{self.address}: its command register"):
            offset = region_of(self._descriptor, CONFIG_REGION)[1]
            os.pwrite(self._descriptor, struct.pack("<H", command | MEMORY_ON), offset + COMMAND)

    def read_bar(self, number: int, words: int) -> Tuple[int, ...]:
        """The first double words of a region. One by one: not every register may be read wider."""
        with asking(f"{self.address}: its BAR {number}"):
            return tuple(WORD.unpack(read_region(self._descriptor, number, 4 * at, 4))[0] for at in range(words))
