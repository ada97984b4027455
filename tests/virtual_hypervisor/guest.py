"""A VM with passed functions, for jobs in the virtual hypervisor, in two seconds.

It is QEMU as Nova would start it, with real VFIO, but no guest runs on its CPU: through qtest the job does by hand what
a guest's driver would do, one access to config space, BAR or memory at a time. A Linux guest would take 90 s to boot.
"""

from __future__ import annotations

import subprocess
import time
from typing import IO

MEMORY = 128 << 20
"""Bytes of the guest's memory. Nothing above is mapped in the IOMMU."""
FIRST_SLOT = 5
BAR_0 = 0xE000_0000
"""Where the guest's firmware could have put BAR 0: in the hole that QEMU leaves for PCI."""


class Ended(Exception):
    """QEMU has ended; the message is what it said."""


class Guest:
    """The VM; it ends with the `with` block."""

    def __init__(self, *addresses: str) -> None:
        """Pass the functions at these addresses. Raises Ended when QEMU refuses."""
        command = ["qemu-system-x86_64", "-accel", "tcg", "-S", "-machine", "pc", "-m", str(MEMORY >> 20)]
        command += ["-nodefaults", "-display", "none", "-monitor", "none", "-qtest", "stdio", "-qtest-log", "/dev/null"]
        for slot, address in enumerate(addresses, FIRST_SLOT):
            command += ["-device", f"vfio-pci,host={address},addr={slot:#x}"]
        pipe = subprocess.PIPE
        self.qemu = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        self.ask("readb 0x0")  # answered once all devices are there

    def __enter__(self) -> Guest:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """Pull the plug, and wait until VFIO has its devices back."""
        self.qemu.kill()
        self.qemu.communicate()

    def ask(self, command: str) -> str:
        """One command of qtest; its answer without the OK. Raises Ended."""
        requests, answers = _pipe(self.qemu.stdin), _pipe(self.qemu.stdout)
        try:
            requests.write(command + "\n")
        except BrokenPipeError:
            raise Ended(self.qemu.communicate()[1]) from None
        while line := answers.readline():
            if line.startswith("OK"):
                return line[2:].strip()
            if not line.startswith("IRQ"):
                raise ValueError(f"{command}: {line.strip()}")
        raise Ended(self.qemu.communicate()[1])

    def number(self, command: str) -> int:
        return int(self.ask(command), 16)

    def read(self, address: int, size: int) -> bytes:
        """From the guest's memory."""
        return bytes.fromhex(self.ask(f"read {address:#x} {size}")[2:])

    def write(self, address: int, data: bytes) -> None:
        self.ask(f"write {address:#x} {len(data)} 0x{data.hex()}")

    def config(self, index: int, offset: int) -> int:
        """A double word of the config space of the function that was passed as number `index`."""
        self._point(index, offset)
        return self.number("inl 0xcfc")

    def set_config(self, index: int, offset: int, value: int) -> None:
        self._point(index, offset)
        self.ask(f"outl 0xcfc {value:#x}")

    def _point(self, index: int, offset: int) -> None:
        self.ask(f"outl 0xcf8 {1 << 31 | (FIRST_SLOT + index) << 11 | offset:#x}")

    def ids(self, index: int = 0) -> str:
        """``vendor:product`` as the guest sees them."""
        word = self.config(index, 0)
        return f"{word & 0xFFFF:04x}:{word >> 16:04x}"


class Edu:
    """The driver of `edu`, the device underneath a V100, in a guest whose first function it is."""

    BUFFER = 0x40000
    """Where the device's own 4 KiB of memory are, for its DMA engine."""

    def __init__(self, guest: Guest) -> None:
        self.guest = guest
        guest.set_config(0, 0x10, BAR_0)
        guest.set_config(0, 0x04, 0x6)  # answer to memory accesses, and do DMA

    def inverted(self, value: int) -> int:
        """What its register of liveness makes of a value."""
        self.guest.ask(f"writel {BAR_0 + 4:#x} {value:#x}")
        return self.guest.number(f"readl {BAR_0 + 4:#x}")

    def fetch(self, address: int, size: int) -> None:
        """DMA from the guest's memory into the device."""
        self._transfer(address, self.BUFFER, size, 0b01)

    def store(self, address: int, size: int) -> None:
        """DMA from the device into the guest's memory."""
        self._transfer(self.BUFFER, address, size, 0b11)

    def _transfer(self, source: int, target: int, size: int, command: int) -> None:
        for register, value in ((0x80, source), (0x88, target), (0x90, size), (0x98, command)):
            self.guest.ask(f"writeq {BAR_0 + register:#x} {value:#x}")
        deadline = time.monotonic() + 30
        while self.guest.number(f"readq {BAR_0 + 0x98:#x}") & 1:
            if time.monotonic() > deadline:
                raise TimeoutError("the device has not ended its DMA after 30 s")
            time.sleep(0.02)


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
