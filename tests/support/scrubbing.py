"""A model of a host that scrubs: sysfs, and functions as VFIO gives them, each with what can go wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial

from gpuyard.host.checks.vfio import VfioProblem, VfioRefusedError
from gpuyard.host.preparation.passthrough import LIST_FILE
from gpuyard.host.scrub import Opened
from gpuyard.host.tree import LINK
from gpuyard.host.vfio_function import Neighbour
from tests.support.kernel import ModelHost
from tests.support.sysfs import TITAN_XP_AUDIO, V100, Sysfs

LONE, LEADER, PEER, CARD, AUDIO = (
    "0000:44:00.0", "0000:27:00.0", "0000:28:00.0", "0000:3b:00.0", "0000:3b:00.1",
)  # fmt: skip
GROUPS = {32: [LONE], 19: [LEADER, PEER], 40: [CARD, AUDIO]}
DEAD = 0xFFFF_FFFF


@dataclass
class ModelFunction:
    """`memory`: what a tenant left in it; only a reset of the bus clears it."""

    address: str
    ids: str
    group: int
    bus: list[str]
    resettable: bool = True
    memory: int = 0x5EC2E7
    alive: bool = True
    survives: bool = True
    refuses: bool = False
    """Its reset ends with an error."""
    bars: dict[int, int] = field(default_factory=lambda: {0: 0x1234, 1: DEAD})
    resets: list[str] = field(default_factory=list)

    def reset(self) -> None:
        self._reset("alone")

    def _reset(self, how: str) -> None:
        if self.refuses:
            raise VfioRefusedError(VfioProblem.FAILED, f"{self.address}: its reset: Inappropriate ioctl", "dmesg")
        self.resets.append(how)
        if not self.survives:
            self.alive = False
            self.dies()

    def neighbours(self) -> list[Neighbour]:
        return [Neighbour(self.group, address) for address in self.bus]

    def reset_bus(self, group: int) -> None:
        assert group == self.group, "the descriptor of another group"
        for function in self.peers:
            function._reset("bus")
            function.memory = 0

    peers: list[ModelFunction] = field(default_factory=list)
    dies: Callable[[], None] = lambda: None
    """Is called when it does not come back from a reset: the bus answers 0xff in its place."""

    def memory_bars(self) -> list[int]:
        return list(self.bars)

    def answer_to_memory(self) -> None:
        pass

    def read_bar(self, number: int, words: int) -> tuple[int, ...]:
        return (self.bars[number] if self.alive else DEAD,) * words


class ScrubHost(ModelHost):
    """`functions` by address; `on_reset` of one can change anything."""

    def __init__(self) -> None:
        made = Sysfs()
        for group, members in GROUPS.items():
            for address in members:
                ids = TITAN_XP_AUDIO if address == AUDIO else V100
                kind = "0403" if address == AUDIO else "0302"
                made.function(
                    address, ids, kind, group, driver="vfio-pci", reset_method="flr bus",
                    current_link_width="16", current_link_speed="8.0 GT/s PCIe",
                )  # fmt: skip
                made.put(f"sys/kernel/iommu_groups/{group}/devices/{address}", {})
        made.put("sys/kernel/iommu_groups/19/devices/0000:26:00.0", {})  # their port stays with the host
        made.function("0000:26:00.0", "8086:1234", "0604", 19, driver="pcieport")
        made.put("proc/1/comm", "systemd")
        made.put("proc/1/exe", {LINK: "/usr/lib/systemd/systemd"})
        super().__init__(made.nodes)
        self.functions = {
            address: ModelFunction(address, TITAN_XP_AUDIO if address == AUDIO else V100, group, [])
            for group, members in GROUPS.items()
            for address in members
        }
        for buses in ([LONE], [LEADER], [PEER], [CARD, AUDIO]):
            for address in buses:
                self.functions[address].bus = list(buses)
                self.functions[address].peers = [self.functions[bus] for bus in buses]
                self.functions[address].dies = partial(self.attribute, address, "config", "ff" * 64)
        self.give(*self.functions)
        self.busy: set[int] = set()
        """Groups that a VM has."""
        self.opened: list[int] = []

    def give(self, *addresses: str) -> None:
        lines = [f"{address} {self.functions[address].ids} vfio-pci" for address in addresses]
        self.put(LIST_FILE, "\n".join(lines))

    def attribute(self, address: str, name: str, text: str) -> None:
        self.put(f"sys/devices/pci0000:00/{address}/{name}", text)

    def process(self, pid: int, *devices: str, command: str = "qemu-system-x86") -> None:
        self.put(f"proc/{pid}/comm", command)
        self.put(f"proc/{pid}/cmdline", f"/usr/bin/{command}")
        self.put(f"proc/{pid}/exe", {LINK: f"/usr/bin/{command}"})
        for number, device in enumerate(devices, 3):
            self.put(f"proc/{pid}/fd/{number}", {LINK: device})

    @contextmanager
    def open_group(self, group: int, addresses: Sequence[str]) -> Iterator[Opened]:
        """As scrub.open_group."""
        if group in self.busy:
            raise VfioRefusedError(VfioProblem.BUSY, f"group {group} is in use", "stop that VM")
        self.opened.append(group)
        yield Opened(group, {address: self.functions[address] for address in addresses})
