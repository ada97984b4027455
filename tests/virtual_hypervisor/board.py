"""Puts a virtual machine together: host bridges, root ports and devices become arguments of QEMU.

Bus numbers are worked out here as the firmware will give them, so that a topology can ask for ``27:00.0`` and is
refused at once when that is not where the device would be.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

SHARE_SLOTS = (0x1B, 0x1C, 0x1D)  # of the root bus: the shared folders, see machine.py; 0x1f is the chipset's own


class Iommu(Enum):
    """Which emulated IOMMU.

    QEMU's AMD one is good for groups and binding; for DMA take the Intel one (through the other it returned zeros).
    With interrupt remapping the kernel stops on QEMU 10 ("timer doesn't work"); without it, a host needs
    vfio_iommu_type1.allow_unsafe_interrupts=1 to start a VM.
    """

    INTEL = "intel-iommu,intremap=on,caching-mode=on"
    AMD = "amd-iommu,intremap=off"
    NONE = ""  # absent, or switched off in the firmware


@dataclass(frozen=True)
class Bar:
    """A memory region of a device; a `wide` one is prefetchable and may lie above 4 GiB."""

    number: int
    mib: int
    wide: bool = False


@dataclass(frozen=True)
class Model:
    """A device of QEMU under another identity (see shim.c)."""

    name: str
    parent: str
    """The device of QEMU that it is underneath."""
    ids: str
    class_code: str
    revision: str
    subsystem: str
    bars: tuple[Bar, ...] = ()
    inner: str = ""
    """Name of the parent's memory region that is its BAR 0, if `bars` has a new one: the old is put inside."""
    dies: bool = False
    """Whether it does not survive a reset of its bus, once 0xee was written to its cache line size."""

    @property
    def identity(self) -> tuple[str, str, str]:
        """Ids, class and revision, as a scan shows them."""
        return self.ids, self.class_code, self.revision

    def specification(self) -> str:
        fields = [f"name={self.name}", f"parent={self.parent}", f"ids={self.ids}", f"class={self.class_code}"]
        fields += [f"rev={self.revision}", f"sub={self.subsystem}"]
        fields += [f"inner={self.inner}"] if self.inner else []
        fields += ["dies=1"] if self.dies else []
        fields += [f"bar={bar.number}:{bar.mib}{':p' if bar.wide else ''}" for bar in self.bars]
        return ",".join(fields)


@dataclass
class Bus:
    """A PCI bus while the board is being put together."""

    name: str
    number: int
    arguments: list[str]
    """Where the arguments of what is plugged into it go: those of its host bridge."""
    next_slot: int = 0
    next_bus: int = 0
    """The number that the next bus behind one of its ports will get; counted at the root bus of the port."""


@dataclass
class Board:
    """A machine under construction."""

    iommu: Iommu = Iommu.INTEL
    nodes: int = 2
    """NUMA nodes."""
    memory_mib: int = 2048
    models: dict[str, Model] = field(default_factory=dict)
    """By name: those in use."""
    plugged: dict[str, Model] = field(default_factory=dict)
    """Full address -> what was plugged in there."""
    host_bridges: list[tuple[int, list[str]]] = field(default_factory=list)
    root: Bus = field(init=False)
    serial: int = 0
    """Number for the next thing that needs a name of its own."""

    def __post_init__(self) -> None:
        # Slot 0 is the host bridge, and QEMU puts the PCI function of the AMD IOMMU into the first free slot.
        self.root = Bus("pcie.0", 0, [], next_slot=2 if self.iommu is Iommu.AMD else 1, next_bus=1)

    def arguments(self) -> list[str]:
        """All of it, for QEMU."""
        arguments = ["-machine", "q35", *(("-device", self.iommu.value) if self.iommu is not Iommu.NONE else ())]
        arguments += ["-m", str(self.memory_mib), "-smp", f"{self.nodes},sockets={self.nodes}"]
        for node in range(self.nodes):
            arguments += ["-object", f"memory-backend-ram,id=memory{node},size={self.memory_mib // self.nodes}M"]
            arguments += ["-numa", f"node,nodeid={node},cpus={node},memdev=memory{node}"]
        arguments += self.root.arguments
        # Linux meets additional host bridges in reverse order, and numbers IOMMU groups as it meets them.
        for _, bridge in sorted(self.host_bridges, reverse=True):
            arguments += bridge
        return arguments

    def shim_models(self) -> str:
        """The value of VHOST_MODELS."""
        return ";".join(model.specification() for model in self.models.values())

    def host_bridge(self, bus: int, node: int) -> Bus:
        """A root bus with a number and a NUMA node. Only bridges can be plugged into it: use ports()."""
        name = f"bus{bus:02x}"
        slot = self._slot(self.root)
        arguments = ["-device", f"pxb-pcie,id={name},bus=pcie.0,addr={slot:#x},bus_nr={bus:#x},numa_node={node}"]
        self.host_bridges.append((bus, arguments))
        return Bus(name, bus, arguments, next_bus=bus + 1)

    def ports(self, bus: Bus, count: int = 1, acs: bool = True) -> list[Bus]:
        """Root ports in one slot (eight at most) and the buses behind them.

        Without ACS the ports cannot be told apart by the IOMMU, so all that is behind them shares one group.
        """
        slot, ports = self._slot(bus), []
        for function in range(count):
            name, number = self._name("port"), bus.next_bus
            bus.next_bus += 1
            options = ["pcie-root-port", f"id={name}", f"bus={bus.name}", f"addr={slot:#x}.{function}"]
            options += [f"chassis={self.serial}", "hotplug=off"]
            options += ["multifunction=on"] if count > 1 and function == 0 else []
            options += [] if acs else ["disable-acs=on"]
            bus.arguments += ["-device", ",".join(options)]
            ports.append(Bus(name, number, bus.arguments))
        return ports

    def empty_ports(self, bus: Bus, count: int) -> None:
        """Ports with nothing behind: each takes one bus number and one IOMMU group, and so moves what comes after."""
        while count > 0:
            some = min(count, 8)
            self.ports(bus, some)
            count -= some

    def peripherals(self, count: int) -> None:
        """Devices on the root bus, one IOMMU group each: a real chipset has dozens, and they move what comes after."""
        for _ in range(count):
            self.root.arguments += ["-device", f"pci-testdev,bus=pcie.0,addr={self._slot(self.root):#x}"]

    def plug(self, what: Model | str, bus: Bus, address: str, **options: object) -> str:
        """Plug a device in, at an address that must be the one that the bus has: ``27:00.0``. Returns its name."""
        kind, name = what.name if isinstance(what, Model) else what, self._name("device")
        number, _, place = address.partition(":")
        if int(number, 16) != bus.number:
            raise ValueError(f"{kind}: {address} was asked for, but {bus.name} is bus {bus.number:02x}")
        if isinstance(what, Model):
            self.models[what.name] = what
            self.plugged[f"0000:{address}"] = what
        given = [f"{key}={value}" for key, value in options.items()]
        bus.arguments += ["-device", ",".join([kind, f"id={name}", f"bus={bus.name}", f"addr={place}", *given])]
        return name

    def nvme_subsystem(self) -> str:
        """What QEMU wants around an nvme device that has virtual functions."""
        name = self._name("subsystem")
        self.need("-device", f"nvme-subsys,id={name}")
        return name

    def need(self, *arguments: str) -> None:
        """Backends: where a network card, a disk or a sound card is connected to."""
        self.root.arguments[:0] = arguments

    def _slot(self, bus: Bus) -> int:
        slot = bus.next_slot
        if slot >= (min(SHARE_SLOTS) if bus is self.root else 32):
            raise ValueError(f"no free slot on {bus.name}")
        bus.next_slot += 1
        return slot

    def _name(self, kind: str) -> str:
        self.serial += 1
        return f"{kind}{self.serial}"
