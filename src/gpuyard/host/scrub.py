"""Scrubs a GPU between two tenants: its whole IOMMU group is reset, and probed.

Nothing is touched unless every function of the group is in the host's list of what it gives away, is with a VFIO
driver, and is open in no process. The group is then opened through VFIO as QEMU does: a group can be open only once, so
no VM can have it or get it while it is reset. docs/adr/0030 says which reset, and what no reset promises.

A group is clean only when it was reset by a method that counts and answered every question after it. Anything else, an
unforeseen error too, is another outcome.
"""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Callable, ContextManager, Dict, Iterator, List, Mapping, Optional, Protocol, Sequence, Tuple

from gpuyard.host import config_space
from gpuyard.host.checks import vfio
from gpuyard.host.checks.vfio import VfioProblem, VfioRefusedError
from gpuyard.host.holders import look
from gpuyard.host.preparation.passthrough import LIST_FILE, is_vfio, read_list
from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import Tree
from gpuyard.host.vfio_function import Neighbour, VfioFunction
from gpuyard.model.errors import GpuyardError
from gpuyard.model.pci import CLASS_BRIDGE_PCI, CLASSES_CHIPSET, RESETS_THAT_COUNT
from gpuyard.model.scrub import ScrubOutcome, ScrubResult

GROUPS = "sys/kernel/iommu_groups"
BUS = "bus"
NOTHING = 0xFFFF_FFFF
"""What is read from a device that does not answer."""
WORDS = 4
"""How much is read of each memory region."""


class OpenFunction(Protocol):
    """As VfioFunction; tests have a model of one."""

    address: str

    @property
    def resettable(self) -> bool: ...
    def reset(self) -> None: ...
    def neighbours(self) -> List[Neighbour]: ...
    def reset_bus(self, group: int) -> None: ...
    def memory_bars(self) -> List[int]: ...
    def answer_to_memory(self) -> None: ...
    def read_bar(self, number: int, words: int) -> Tuple[int, ...]: ...


@dataclass(frozen=True)
class Opened:
    """A group that nobody else can have now."""

    descriptor: int
    functions: Mapping[str, OpenFunction]
    """By address."""


OpenGroup = Callable[[int, Sequence[str]], ContextManager[Opened]]


@contextmanager
def open_group(group: int, addresses: Sequence[str]) -> Iterator[Opened]:
    """Through the kernel's VFIO. Raises VfioRefusedError."""
    with vfio.opened(group, addresses) as vfio_group:
        yield Opened(vfio_group.descriptor, {a: VfioFunction(a, number) for a, number in vfio_group.functions.items()})


class NotCleanError(GpuyardError):
    """Why a scrub ends before it is through, and as what."""

    def __init__(self, outcome: ScrubOutcome, reason: str) -> None:
        super().__init__(reason)
        self.outcome = outcome


@dataclass
class _Course:
    """What comes together in one scrub."""

    now: Callable[[], float]
    functions: Tuple[str, ...] = ()
    methods: Dict[str, None] = field(default_factory=dict)
    """In order; a set would not keep it."""
    evidence: List[str] = field(default_factory=list)
    reset_seconds: float = 0.0

    @contextmanager
    def resetting(self, method: str) -> Iterator[None]:
        begin = self.now()
        try:
            yield
        finally:
            self.reset_seconds += self.now() - begin
            self.methods[method] = None


def scrub(
    tree: Tree, address: str, order: str = "", open_group: OpenGroup = open_group,
    now: Callable[[], float] = time.monotonic, own_pid: Optional[int] = None,
    widths: Optional[Mapping[str, int]] = None,
) -> ScrubResult:  # fmt: skip
    """Reset and probe the group of the function at `address`.

    `own_pid`: this process, which has the group open meanwhile. `widths`: address -> lanes of its link before an
    earlier scrub that was interrupted: it must come back with as many. Raises nothing.
    """
    begin, course = now(), _Course(now)
    outcome, reason = ScrubOutcome.CLEAN, ""
    try:
        _scrub(tree, address, open_group, own_pid, widths or {}, course)
    except NotCleanError as error:
        outcome, reason = error.outcome, str(error)
    except VfioRefusedError as error:
        outcome = ScrubOutcome.BUSY if error.problem is VfioProblem.BUSY else ScrubOutcome.FAILED
        reason = error.reason
    except Exception as error:
        outcome, reason = ScrubOutcome.FAILED, f"{address}: gpuyard failed at it: {error!r}"
    return ScrubResult(
        order, address, outcome, reason, course.functions, "+".join(course.methods), now() - begin,
        course.reset_seconds, tuple(course.evidence),
    )  # fmt: skip


def _scrub(
    tree: Tree, address: str, open_group: OpenGroup, own_pid: Optional[int], widths: Mapping[str, int], course: _Course
) -> None:
    group, members = group_of(tree, address)
    ids = _given(tree, members)
    _require_unused(tree, members, own_pid)
    for member in members:
        _require_answer(tree, member, ids[member], "already before its reset")
    expected_widths = {member: max(widths.get(member, 0), _width(tree, member)) for member in members}
    with open_group(group, members) as opened:
        _reset(tree, opened, own_pid, course)
        course.functions = tuple(members)
        for member in members:
            _require_answer(tree, member, ids[member], "after its reset")
            _probe(opened.functions[member], course.evidence)
            _require_link(tree, member, expected_widths[member], course.evidence)
    for member in members:  # the kernel resets once more what is closed
        _require_answer(tree, member, ids[member], "since it was closed after its reset")


# What may be touched.


def group_of(tree: Tree, address: str) -> Tuple[int, List[str]]:
    """The number of a function's IOMMU group, and its members in bus order, but for what always stays with the host.
    Raises NotCleanError."""
    link = tree.link(f"{DEVICES}/{address}/iommu_group")
    if link is None:
        is_present = address in tree.names(DEVICES)
        reason = f"{address} is in no IOMMU group" if is_present else f"{address} is not on the PCI bus"
        raise NotCleanError(ScrubOutcome.REFUSED if is_present else ScrubOutcome.FAILED, reason)
    number = link.rpartition("/")[2]
    members = [m for m in tree.names(f"{GROUPS}/{number}/devices") if not _stays(tree, m)]
    if not number.isdecimal() or address not in members:
        raise NotCleanError(ScrubOutcome.REFUSED, f"{address} is nothing that goes to VMs")
    return int(number), members


def _stays(tree: Tree, address: str) -> bool:
    kind = (tree.read(f"{DEVICES}/{address}/class") or "").removeprefix("0x")[:4]
    return kind in (CLASS_BRIDGE_PCI, *CLASSES_CHIPSET)


def _given(tree: Tree, members: Sequence[str]) -> Dict[str, str]:
    """Address -> ids by the list. Raises NotCleanError unless each is in it and is with a VFIO driver."""
    listed = {entry.address: entry for entry in read_list(tree)}
    for member in members:
        if member not in listed:
            raise NotCleanError(
                ScrubOutcome.REFUSED, f"{member} is not in /{LIST_FILE}, the list of what this host gives away"
            )
        driver = (tree.link(f"{DEVICES}/{member}/driver") or "").rpartition("/")[2]
        if not is_vfio(driver):
            raise NotCleanError(ScrubOutcome.REFUSED, f"{member} is with {driver or 'no driver'} and not with vfio-pci")
    return {member: listed[member].ids for member in members}


def _require_unused(tree: Tree, members: Sequence[str], own_pid: Optional[int]) -> None:
    """Raises NotCleanError when a process has a function open, or could have it where this one may not look."""
    processes = look(tree)
    for member in members:
        others = [holder for holder in processes.holders.get(member, ()) if holder.pid != own_pid]
        if others:
            raise NotCleanError(ScrubOutcome.BUSY, f"{member} is in use by {others[0]}")
    unseen = sorted(pid for pid in processes.unseen if pid != own_pid)
    if processes.hidden or unseen:
        raise NotCleanError(ScrubOutcome.REFUSED, "not every process can be looked at: run this as root")


# The reset.


def _reset(tree: Tree, opened: Opened, own_pid: Optional[int], course: _Course) -> None:
    """Every function of the group once: with its whole slot or bus where all on that are in the group, else alone."""
    left = list(opened.functions)
    while left:
        function = opened.functions[left[0]]
        reached = {neighbour.address for neighbour in function.neighbours()}
        together = bool(reached) and reached <= opened.functions.keys()
        alone = "" if together else _own_method(tree, function)
        _require_unused(tree, left, own_pid)
        with course.resetting(BUS if together else alone):
            if together:
                function.reset_bus(opened.descriptor)
            else:
                function.reset()
        done = {function.address, *(reached if together else ())}
        course.evidence.append(f"{', '.join(sorted(done))}: reset by {BUS if together else alone}")
        left = [address for address in left if address not in done]


def _own_method(tree: Tree, function: OpenFunction) -> str:
    """How the kernel resets a function alone. Raises NotCleanError when that is nothing that counts."""
    methods = (tree.read(f"{DEVICES}/{function.address}/reset_method") or "").split()
    if function.resettable and methods and methods[0] in RESETS_THAT_COUNT:
        return methods[0]
    what = f"only by {methods[0]}, which need not clear anything" if methods else "in no way"
    reason = f"{function.address} can be reset {what}, and its bus not without devices of other groups"
    raise NotCleanError(ScrubOutcome.REFUSED, reason)


# The probe.


def _probe(function: OpenFunction, evidence: List[str]) -> None:
    """Raise NotCleanError unless a function's memory regions answer. Its ids prove nothing here: vfio-pci keeps them
    (Linux, drivers/vfio/pci/vfio_pci_config.c: vendor and device are virtual), so a dead device still has them."""
    function.answer_to_memory()
    words = {number: function.read_bar(number, WORDS) for number in function.memory_bars()}
    alive = [number for number, values in words.items() if any(word != NOTHING for word in values)]
    if words and not alive:
        raise NotCleanError(ScrubOutcome.FAILED, f"{function.address}: its memory regions read 0xff after its reset")
    shown = ", ".join(f"BAR {number} {values[0]:08x}" for number, values in words.items())
    evidence.append(f"{function.address}: {shown or 'no memory regions'}")


def _require_link(tree: Tree, address: str, expected: int, evidence: List[str]) -> None:
    """Raises NotCleanError when a link has come back with fewer lanes."""
    width = _width(tree, address)
    if width < expected:
        reason = f"{address}: its link has come back with {width} lanes of {expected}"
        raise NotCleanError(ScrubOutcome.FAILED, reason)
    speed = tree.read(f"{DEVICES}/{address}/current_link_speed") or ""
    if width:
        evidence.append(f"{address}: link x{width}, {speed[:40]}")


def _width(tree: Tree, address: str) -> int:
    """Lanes of its link; 0 where there is none, or the kernel does not know."""
    text = (tree.read(f"{DEVICES}/{address}/current_link_width") or "").strip()
    return int(text) if text.isdecimal() and int(text) < 64 else 0


def link_widths(tree: Tree, addresses: Sequence[str]) -> Dict[str, int]:
    """Lanes of links now, by address."""
    return {address: _width(tree, address) for address in addresses}


def _require_answer(tree: Tree, address: str, ids: str, when: str) -> None:
    """Read its ids from the bus by sysfs, which asks the device whoever has it open. Raises NotCleanError."""
    if address not in tree.names(DEVICES):
        raise NotCleanError(ScrubOutcome.FAILED, f"{address} is not on the PCI bus any more, {when}")
    if tree.link(f"{DEVICES}/{address}/physfn") is not None:
        return  # of a virtual function the bus itself tells no ids
    register = config_space.of(tree, address)(0)
    if register is not None and f"{register & 0xFFFF:04x}:{register >> 16:04x}" != ids:
        raise NotCleanError(ScrubOutcome.FAILED, f"{address} does not answer as {ids} any more, {when}")
