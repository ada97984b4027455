"""The report that a host's watch sends about its GPUs at one moment, seen without any driver of theirs; sent as JSON.

It has facts only: the receiver judges them (``health/host_reports.py``), so that the rules are in one place and
change without a visit to every host.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Mapping, Optional, Tuple


@dataclass(frozen=True)
class LinkReport:
    """A PCIe link as sysfs shows it: GT/s and lanes. 0 where the kernel does not know."""

    speed: float = 0.0
    width: int = 0
    max_speed: float = 0.0
    """The speed that both ends can have: the lesser of the GPU's and of the port's above it."""
    max_width: int = 0


@dataclass(frozen=True)
class GpuReport:
    """One function that the host gives, or gave, to servers."""

    address: str
    present: bool = True
    """Whether it is in sysfs. The other facts are empty when it is not."""
    ids: str = ""
    """``vendor:product``, as sysfs has it; the kernel keeps it when the device is gone from the bus."""
    config: str = ""
    """The first 4 bytes of config space as read now, 8 hex digits: ``ffffffff`` when the device does not answer."""
    driver: str = ""
    group: Optional[int] = None
    link: LinkReport = LinkReport()
    power: str = ""
    """Its power_state: ``D0``, ``D3hot``, ``D3cold``, ``unknown``."""
    aer: Mapping[str, int] = field(default_factory=dict)
    """``correctable``, ``nonfatal``, ``fatal`` -> TOTAL_ERR_* since the device was found; empty without AER."""
    reset_methods: Tuple[str, ...] = ()
    """Reset methods as reset_method lists them: ``flr``, ``bus``, ..."""
    in_use: Optional[bool] = None
    """Whether a process has it open through VFIO; None when it is with another driver."""
    serial: str = ""
    """Its Device Serial Number capability, where it has one: the identity of the card. 16 hex digits."""


@dataclass(frozen=True)
class LogLine:
    """A line of the kernel's log that names a function of the report, or the port right above it."""

    time: float
    """Seconds since the boot."""
    address: str
    """Address of the function that it is about."""
    text: str
    """The text: at most 300 characters, printable."""


@dataclass(frozen=True)
class HostReport:
    """The report of a host at one moment."""

    host: str
    boot: str
    """The kernel's boot_id: with another one, counters began anew."""
    number: int
    """A number that rises with every report of one boot, so that a copy of an old report is detected. Milliseconds
    since the boot."""
    time: str
    """UTC by the host's clock, ISO 8601. For people; nothing is decided by it."""
    kernel: str = ""
    firmware: str = ""
    """The BIOS's vendor, version and date, as DMI has them."""
    qemu: str = ""
    gpus: Tuple[GpuReport, ...] = ()
    log: Tuple[LogLine, ...] = ()
    """Lines since the report before; the newest 100 of them."""

    def as_dict(self) -> Dict[str, Any]:
        """Return it as JSON is sent."""
        return asdict(self)
