"""Opens an IOMMU group through VFIO as QEMU does when a VM starts, and gives it back.

This is the one proof that a group can be given to a VM: what sysfs shows can be right and the kernel still refuse.
"""

from __future__ import annotations

import errno
import os
import struct
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from enum import Enum
from fcntl import ioctl
from typing import Dict, Iterator, Mapping, Optional, Sequence, Tuple

from gpuyard.model.errors import GpuyardError

# linux/vfio.h: all of them are _IO(';', 100 + n).
_IO = ord(";") << 8 | 100
GET_API_VERSION, CHECK_EXTENSION, SET_IOMMU = _IO + 0, _IO + 1, _IO + 2
GROUP_GET_STATUS, GROUP_SET_CONTAINER, GROUP_GET_DEVICE_FD = _IO + 3, _IO + 4, _IO + 6
DEVICE_GET_REGION_INFO = _IO + 8
API_VERSION = 0
TYPE1V2_IOMMU = 3
GROUP_FLAGS_VIABLE = 1
CONFIG_REGION = 7
GROUP_STATUS = struct.Struct("=II")  # size, flags
REGION_INFO = struct.Struct("=IIIIQQ")  # size, flags, index, offset of capabilities, size of the region, its offset
IDS = struct.Struct("<HH")  # vendor and product, at the start of the config space

_NOT_THERE = (errno.ENOENT, errno.ENODEV, errno.ENXIO)
_NOT_ROOT = (errno.EACCES, errno.EPERM)


class VfioProblem(str, Enum):
    """Why VFIO did not give a group."""

    NO_NODE = "no device node"
    """No /dev/vfio/vfio: VFIO is not loaded. No /dev/vfio/N: nothing in the group is with a VFIO driver."""
    NOT_PERMITTED = "not permitted"
    """Whoever asks is not root."""
    UNSUPPORTED = "unsupported"
    """The kernel's VFIO has not what QEMU needs."""
    BUSY = "busy"
    """Somebody has it open: a VM."""
    NOT_VIABLE = "not viable"
    """A driver of the host holds a member."""
    UNSAFE = "unsafe"
    """The kernel does not isolate the group: no interrupt remapping, or memory that the firmware has reserved."""
    FAILED = "failed"


class VfioRefusedError(GpuyardError):
    """VFIO does not give a group or one of its functions."""

    def __init__(self, problem: VfioProblem, reason: str, remedy: str) -> None:
        super().__init__(f"{reason}: {remedy}")
        self.problem = problem
        self.reason = reason
        self.remedy = remedy


@dataclass(frozen=True)
class HeldGroup:
    """A group that this process has, and nobody else."""

    descriptor: int
    functions: Mapping[str, int]
    """Address -> descriptor."""


def open_group(group: int, addresses: Sequence[str], dev: str = "/dev") -> Dict[str, str]:
    """Open a group and functions of it, and give all back; address -> ``vendor:product`` from its config space.

    See `opened` for what that does to them. Raises Refused.
    """
    with opened(group, addresses, dev) as open_now:
        return {address: _read_ids(device, address) for address, device in open_now.functions.items()}


@contextmanager
def opened(group: int, addresses: Sequence[str], dev: str = "/dev") -> Iterator[HeldGroup]:
    """Open a group and functions of it; they are given back when the block ends.

    `dev` is the folder of device nodes. The kernel resets a function that is opened. One that a VM has is safe from
    that: a group can be open only once. For the same reason a VM that starts at this very moment would be refused.

    Raises Refused.
    """
    with ExitStack() as closing:
        container = _open_container(f"{dev}/vfio/vfio")
        closing.callback(os.close, container)
        _check_kernel(container)
        descriptor = _open_node(group, f"{dev}/vfio/{group}")
        closing.callback(os.close, descriptor)
        _attach(group, descriptor, container)
        functions = {}
        for address in addresses:
            functions[address] = _open_device(descriptor, address)
            closing.callback(os.close, functions[address])
        yield HeldGroup(descriptor, functions)


def _open_container(path: str) -> int:
    """VFIO itself; what is opened here becomes the address space that the devices of one VM share."""
    return _open(
        path, VfioRefusedError(VfioProblem.NO_NODE, f"there is no {path}: VFIO is not loaded", "modprobe vfio-pci")
    )


def _check_kernel(container: int) -> None:
    with asking("VFIO: version and IOMMU type"):
        version, type1 = ioctl(container, GET_API_VERSION), ioctl(container, CHECK_EXTENSION, TYPE1V2_IOMMU)
    if version != API_VERSION:
        raise VfioRefusedError(
            VfioProblem.UNSUPPORTED, f"VFIO has version {version} of its API", "use a kernel with version 0"
        )
    if not type1:
        reason = "VFIO has no driver for this machine's IOMMU (type1 v2)"
        raise VfioRefusedError(VfioProblem.UNSUPPORTED, reason, "modprobe vfio_iommu_type1")


def _open_node(group: int, path: str) -> int:
    reason = f"there is no {path}: no member of group {group} is with a VFIO driver"
    absent = VfioRefusedError(VfioProblem.NO_NODE, reason, "bind its members to vfio-pci")
    busy = VfioRefusedError(VfioProblem.BUSY, f"group {group} is in use: a VM has {path} open", "stop that VM first")
    return _open(path, absent, {errno.EBUSY: busy})


def _open(path: str, absent: VfioRefusedError, refusals: Optional[Mapping[int, VfioRefusedError]] = None) -> int:
    not_root = VfioRefusedError(VfioProblem.NOT_PERMITTED, f"{path} may not be opened", "run this as root")
    answers = {**dict.fromkeys(_NOT_THERE, absent), **dict.fromkeys(_NOT_ROOT, not_root), **(refusals or {})}
    with asking(f"opening {path}", answers):
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)


def _attach(group: int, descriptor: int, container: int) -> None:
    """Put the group into a container, and the container behind the IOMMU."""
    status = bytearray(GROUP_STATUS.pack(GROUP_STATUS.size, 0))
    with asking(f"group {group}: its status"):
        ioctl(descriptor, GROUP_GET_STATUS, status)
    if not GROUP_STATUS.unpack(status)[1] & GROUP_FLAGS_VIABLE:
        reason = f"group {group} is not viable: a driver of the host holds a member"
        remedy = "bind every member but PCI bridges to vfio-pci, or leave it without a driver"
        raise VfioRefusedError(VfioProblem.NOT_VIABLE, reason, remedy)
    with asking(f"group {group}: VFIO does not take it in"):
        ioctl(descriptor, GROUP_SET_CONTAINER, struct.pack("=i", container))
    unsafe = VfioRefusedError(
        VfioProblem.UNSAFE,
        f"the kernel refuses to give group {group} away: interrupts are not remapped, or the firmware has reserved "
        "memory for a member (RMRR)",
        "dmesg says which; enable interrupt remapping (x2APIC) in the firmware, or for trusted guests only set "
        "vfio_iommu_type1.allow_unsafe_interrupts=1; a device with an RMRR must stay with the host",
    )
    with asking(f"group {group}: the IOMMU does not take it", {errno.EPERM: unsafe}):
        ioctl(container, SET_IOMMU, TYPE1V2_IOMMU)


def _open_device(descriptor: int, address: str) -> int:
    unbound = VfioRefusedError(VfioProblem.FAILED, f"{address} is not with a VFIO driver", "bind it to vfio-pci")
    # A bytearray, because for immutable bytes ioctl() returns them and not the kernel's answer, the descriptor.
    with asking(f"{address}: VFIO does not open it", {errno.ENODEV: unbound}):
        device: int = ioctl(descriptor, GROUP_GET_DEVICE_FD, bytearray(address.encode() + b"\0"))
    return device


def _read_ids(device: int, address: str) -> str:
    with asking(f"{address}: its config space"):
        vendor, product = IDS.unpack(read_region(device, CONFIG_REGION, 0, IDS.size))
    return f"{vendor:04x}:{product:04x}"


def read_region(device: int, index: int, offset: int, size: int) -> bytes:
    """Raises OSError, also when less can be read."""
    data = os.pread(device, size, region_of(device, index)[1] + offset)
    if len(data) != size:
        raise OSError(errno.EIO, os.strerror(errno.EIO))
    return data


def region_of(device: int, index: int) -> Tuple[int, int]:
    """Size of a region of a function that is open, 0 when it has none, and where it begins for pread. Raises
    OSError."""
    region = bytearray(REGION_INFO.pack(REGION_INFO.size, 0, index, 0, 0, 0))
    ioctl(device, DEVICE_GET_REGION_INFO, region)
    return REGION_INFO.unpack(region)[4:6]


@contextmanager
def asking(what: str, answers: Optional[Mapping[int, VfioRefusedError]] = None) -> Iterator[None]:
    """Turn the kernel's errno into its meaning: that of `answers`, or a failure of `what`."""
    try:
        yield
    except OSError as error:
        refusal = (answers or {}).get(error.errno or 0)
        raise refusal or VfioRefusedError(VfioProblem.FAILED, f"{what}: {error.strerror}", "dmesg says more") from None
