"""Proves that prepared functions can go to VMs: a ladder from the IOMMU up to a config space read through VFIO.

Each rung checks the groups that passed the one below it. A group that fails is not checked further: the next rungs
would only say the same in other words, and a group that is not what was recorded must not be opened.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Callable, Dict, Iterable, List, Mapping, Optional, Sequence, Set, Tuple

from gpuyard.host.checks import platform, vfio
from gpuyard.host.machine import Machine
from gpuyard.host.preparation.passthrough import Passthrough, is_vfio
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.pci import PciFunction, address_key

OpenGroup = Callable[[int, Sequence[str]], Mapping[str, str]]
"""As vfio.open_group: group and addresses -> ids by address; raises vfio.Refused."""
NOBODY = "ffff:ffff"
"""What is read from a function that does not answer."""


@dataclass(frozen=True)
class Climb:
    """What the rungs look at."""

    machine: Machine
    wanted: Mapping[str, Passthrough]
    """By address."""
    recorded: Mapping[str, Optional[int]]
    open_group: OpenGroup
    groups: Mapping[int, Tuple[PciFunction, ...]]
    """The groups that stand, with their members: no PCI bridges, which stay with the host."""

    def of_group(self, number: int) -> List[PciFunction]:
        """The wanted functions of a group."""
        return [member for member in self.groups[number] if member.address in self.wanted]


Answer = Iterable[Tuple[Optional[int], Severity, str, str]]
"""Group or None, severity, reason, remedy."""


def verify(
    machine: Machine,
    passthroughs: Sequence[Passthrough],
    recorded: Mapping[str, Optional[int]],
    open_group: OpenGroup = vfio.open_group,
) -> List[Finding]:
    """All findings, rung by rung.

    `recorded`: address -> IOMMU group when the host was prepared (None: the IOMMU was off), of the wanted functions and
    of what shared their groups, but for bridges and the chipset, which never go to a VM. Numbers may change from boot
    to boot; who is together may not.

    Opens the groups that no VM has, which resets their functions: not while a VM is being started on them.
    """
    if not passthroughs:
        remedy = "gpuyard host plan shows what apply would prepare"
        severity = Severity.ERROR if machine.inventory.gpus else Severity.WARNING
        reason = "gpuyard has prepared no function for VMs: nothing to verify"
        return [Finding("functions", severity, "", reason, remedy)]
    by_address = {function.address: function for function in passthroughs}
    climb = Climb(machine, by_address, recorded, open_group, _standing(machine, by_address))
    findings: List[Finding] = []
    for code, rung in CHECKS.items():
        answers = list(rung(climb))
        findings += [
            Finding(code, severity, "", reason, remedy, {} if group is None else {"group": group})
            for group, severity, reason, remedy in answers
        ]
        fallen = {group for group, severity, _, _ in answers if severity is Severity.ERROR}
        climb = replace(climb, groups={number: m for number, m in climb.groups.items() if number not in fallen})
    return findings


def _standing(machine: Machine, passthroughs: Mapping[str, Passthrough]) -> Dict[int, Tuple[PciFunction, ...]]:
    """The groups of the wanted functions."""
    return {
        number: tuple(member for member in members if not member.is_bridge)
        for number, members in machine.inventory.groups().items()
        if any(member.address in passthroughs for member in members)
    }


def _iommu(climb: Climb) -> Answer:
    """As before: that a host was prepared says nothing of its firmware now."""
    yield from ((None, *answer) for answer in platform.iommu(climb.machine))


def _functions(climb: Climb) -> Answer:
    inventory = climb.machine.inventory
    functions = {function.address: function for function in inventory.functions}
    right = 0
    for passthrough in climb.wanted.values():
        function = functions.get(passthrough.address)
        if function is None:
            elsewhere = [
                f.address for f in functions.values() if f.ids == passthrough.ids and f.address not in climb.wanted
            ]
            hint = f"; the same model is at {', '.join(elsewhere)}" if elsewhere else ""
            remedy = "was the card moved or taken out, gpuyard host plan; else look at its seat and its power"
            yield None, Severity.ERROR, f"{passthrough.address} {passthrough.ids} is not there{hint}", remedy
        elif function.ids != passthrough.ids:
            reason = f"{passthrough.address} is {function.title} [{function.ids}], not {passthrough.ids}"
            remedy = "another card sits there: gpuyard host plan shows what changes with it"
            yield function.iommu_group, Severity.ERROR, reason, remedy
        elif function.iommu_group is None and inventory.iommu_on:
            reason = f"{passthrough.address} {function.model} is in no IOMMU group"
            yield None, Severity.ERROR, reason, "the IOMMU does not see it: move the card to another PCIe slot"
        else:
            right += 1
    if right:
        yield None, Severity.OK, f"{right} of {len(climb.wanted)} functions are there", ""


def _groups(climb: Climb) -> Answer:
    as_recorded = []
    for number, members in climb.groups.items():
        before = _recorded_groups(climb, number)
        # One of which no group was recorded, because the IOMMU was off, says nothing; one not recorded at all is new.
        now = {member.address for member in members if climb.recorded.get(member.address, -1) is not None}
        now -= _ignored(climb)
        old = next(iter(before), None)
        if old is None:
            listed = _list(member.address for member in members)
            yield number, Severity.OK, f"group {number}: {listed}; nothing was recorded to compare it with", ""
        elif len(before) > 1 or before[old] != now:
            recorded = ", ".join(f"group {group} ({_list(addresses)})" for group, addresses in before.items())
            reason = f"group {number} holds {_list(now)} now; recorded was {recorded}"
            remedy = "kernel, firmware or cards changed: gpuyard host plan and the site's plan, before Nova offers it"
            yield number, Severity.ERROR, reason, remedy
        elif old != number:
            yield number, Severity.OK, f"group {old} has the number {number} now and the same functions", ""
        else:
            as_recorded.append(str(number))
    if as_recorded:
        yield None, Severity.OK, f"groups as recorded: {', '.join(as_recorded)}", ""


def _recorded_groups(climb: Climb, number: int) -> Dict[int, Set[str]]:
    """The groups that the wanted functions of this one were in, with all that was recorded in them."""
    homes = {climb.recorded.get(function.address) for function in climb.of_group(number)}
    present = {function.address for function in climb.machine.inventory.functions} | climb.wanted.keys()
    counting = present - _ignored(climb)  # what is gone and no longer wanted is missed by nobody
    return {
        home: {address for address, group in climb.recorded.items() if group == home and address in counting}
        for home in sorted(home for home in homes if home is not None)
    }


def _ignored(climb: Climb) -> Set[str]:
    """Functions that are in many a group and change nothing about it."""
    functions = climb.machine.inventory.functions
    of_the_host = {f.address for f in functions if f.stays_with_host}
    return of_the_host - climb.wanted.keys()


def _drivers(climb: Climb) -> Answer:
    right, total = 0, sum(len(members) for members in climb.groups.values())
    for number, members in climb.groups.items():
        for member in members:
            what, passthrough = f"{member.short_address} {member.model}", climb.wanted.get(member.address)
            idle = member.driver in (None, "pci-stub")  # viable, but QEMU cannot pass it
            if not idle and not is_vfio(member.driver):
                reason = f"{what} is with {member.driver}, a driver of the host: group {number} is not viable"
                remedy = "gpuyard host apply binds it; gpuyard host check says who takes it at boot"
                yield number, Severity.ERROR, reason, remedy
            elif passthrough is not None and member.driver != passthrough.driver:
                severity = Severity.ERROR if idle and member.is_gpu else Severity.WARNING
                how = f"with {member.driver}" if member.driver else "without a driver"
                yield number, severity, f"{what} is {how}, not with {passthrough.driver}", "gpuyard host apply"
            else:
                right += 1
    if right:
        yield None, Severity.OK, f"{right} of {total} functions are with their VFIO driver, or need none", ""


def _nodes(climb: Climb) -> Answer:
    node_names = climb.machine.tree.names("dev/vfio")
    nodes = [f"/dev/vfio/{number}" for number in climb.groups if str(number) in node_names]
    for number in climb.groups:
        if str(number) not in node_names:
            remedy = "look for vfio in dmesg; udev or a container may hide the node"
            yield number, Severity.ERROR, f"there is no /dev/vfio/{number}", remedy
    if nodes:
        yield None, Severity.OK, ", ".join(nodes), ""


def _opened(climb: Climb) -> Answer:
    for number in climb.groups:
        functions = [function for function in climb.of_group(number) if is_vfio(function.driver)]
        try:
            read = climb.open_group(number, [function.address for function in functions])
        except vfio.VfioRefusedError as refused:
            if refused.problem is vfio.VfioProblem.BUSY:
                yield number, Severity.OK, f"group {number} is in use by a VM, and so was not opened", ""
            else:
                yield number, Severity.ERROR, refused.reason, refused.remedy
            continue
        for function in functions:
            yield (number, *_answer(number, function, read[function.address]))


def _answer(number: int, function: PciFunction, read: str) -> Tuple[Severity, str, str]:
    """What the ids in its config space say of a function."""
    what = f"{function.short_address} {function.model}"
    if read == function.ids:
        return Severity.OK, f"group {number}: {what} was opened and answers as {read}", ""
    if read == NOBODY:
        reason = f"group {number}: {what} was opened and does not answer: its reset failed, or it is broken"
        return Severity.ERROR, reason, "switch the host off and on; a reboot may not be enough"
    return Severity.ERROR, f"group {number}: {what} answers as {read}, not {function.ids}", "dmesg may say more"


def _list(addresses: Iterable[str]) -> str:
    return ", ".join(address.removeprefix("0000:") for address in sorted(addresses, key=address_key))


CHECKS: Dict[str, Callable[[Climb], Answer]] = {
    "iommu": _iommu,
    "functions": _functions,
    "groups": _groups,
    "drivers": _drivers,
    "device-nodes": _nodes,
    "opened": _opened,
}
"""Code -> rung, from the ground up."""
