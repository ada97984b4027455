"""Compares a host's GPUs with its recording: cards that went, came or moved, groups, SR-IOV, and the IOMMU.

Nova is told addresses, ids and device types that were compiled from the recording. What has changed since must be known
before Nova is told anything new. Group numbers alone are no drift: the kernel gives them anew at every boot.
"""

from __future__ import annotations

from typing import Dict, FrozenSet, Iterable, List, Mapping, Sequence, Tuple

from gpuyard.host.judge import judge
from gpuyard.host.machine import Answer
from gpuyard.model.finding import Finding, Severity
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction

CODE = "drift"
AGAIN = "record the host again, then gpuyard site render and restart its nova-compute"
WHY = "find out what changed (kernel, firmware, pcie_acs_override, another slot); if it stays so"
Pairs = Sequence[Tuple[PciFunction, PciFunction]]


def drift(recorded: Inventory, observed: Inventory) -> List[Finding]:
    """Everything that differs and that Nova would go wrong by; empty when nothing does."""
    same, moved, replaced, gone, new = _matched(recorded, observed)
    answers = [
        *_iommu(recorded, observed),
        *_gone(gone),
        *_replaced(replaced),
        *_moved(moved),
        *_new(new),
        *_sriov([*same, *moved]),
        *_groups(recorded, observed, same, moved),
        *_blocked(recorded, observed, [*same, *moved]),
    ]
    return [Finding(CODE, severity, "", reason, remedy) for severity, reason, remedy in answers]


def _matched(
    recorded: Inventory, observed: Inventory
) -> Tuple[Pairs, Pairs, Pairs, Sequence[PciFunction], Sequence[PciFunction]]:
    """Pairs that stayed, that moved (same ids, other address), that replace one another; what went, what is new."""
    before = {gpu.address: gpu for gpu in recorded.gpus}
    after = {gpu.address: gpu for gpu in observed.gpus}
    same = [(gpu, after[at]) for at, gpu in before.items() if at in after and after[at].ids == gpu.ids]
    for gpu, _ in same:
        del before[gpu.address], after[gpu.address]
    moved: List[Tuple[PciFunction, PciFunction]] = []
    for gpu in list(before.values()):
        match = next((candidate for candidate in after.values() if candidate.ids == gpu.ids), None)
        if match is not None:
            moved.append((gpu, match))
            del before[gpu.address], after[match.address]
    replaced = [(gpu, after[at]) for at, gpu in before.items() if at in after]
    for gpu, _ in replaced:
        del before[gpu.address], after[gpu.address]
    return same, moved, replaced, list(before.values()), list(after.values())


def _iommu(recorded: Inventory, observed: Inventory) -> Answer:
    if recorded.iommu_on and not observed.iommu_on:
        reason = "the IOMMU is off now and was on: no VM with a GPU can start, and Nova goes on offering them"
        yield Severity.ERROR, reason, "gpuyard host check says why; look at the kernel command line and the firmware"
    elif observed.iommu_on and not recorded.iommu_on:
        yield Severity.WARNING, "the IOMMU is on now, and was off when the host was recorded: no group is known", AGAIN


def _gone(gpus: Sequence[PciFunction]) -> Answer:
    for gpu in gpus:
        reason = f"{_named(gpu)} is gone: nothing matches its device_spec any more, and Nova offers one GPU less"
        yield Severity.ERROR, reason, f"look at its seat and its power; was it taken out, {AGAIN}"


def _replaced(pairs: Pairs) -> Answer:
    for before, after in pairs:
        reason = f"{_named(before)} is another card now, {after.model} [{after.ids}]: its device_spec does not match it"
        yield Severity.ERROR, reason, f"prepare it for VMs and {AGAIN}; another model needs a pool in site.yaml"


def _moved(pairs: Pairs) -> Answer:
    for before, after in pairs:
        reason = f"{_named(before)} is at {after.short_address} now: its device_spec names the old address"
        yield Severity.ERROR, f"{reason}, so Nova does not offer it", f"prepare it at its new address and {AGAIN}"


def _new(gpus: Sequence[PciFunction]) -> Answer:
    for gpu in gpus:
        reason = f"{_named(gpu)} is new: no device_spec names it, so Nova does not offer it"
        yield Severity.WARNING, reason, f"prepare it for VMs and {AGAIN}"


def _sriov(pairs: Pairs) -> Answer:
    """Nova's alias asks for one device type exactly, and a firmware setting changes it."""
    for before, after in pairs:
        if before.device_type is not after.device_type:
            change = f"{after.device_type.value} now and was {before.device_type.value}"
            reason = f"{_named(after)} is {change} (SR-IOV): Nova's alias does not match it any more"
            yield Severity.ERROR, reason, f"switch SR-IOV back in the firmware, or {AGAIN}"


def _groups(recorded: Inventory, observed: Inventory, same: Pairs, moved: Pairs) -> Answer:
    """Who is together with whom, each group once. Cards that moved are looked for at their new address."""
    if not (recorded.iommu_on and observed.iommu_on):
        return
    cards = {before.card: after.card for before, after in moved}
    reported: List[FrozenSet[str]] = []
    for before, after in [*same, *moved]:
        was = frozenset(_at(address, cards) for address in _together(recorded, before))
        now = _together(observed, after)
        if was == now or now in reported:
            continue
        reported.append(now)
        changes = [f"{word} {_list(addresses)}" for word, addresses in (("with", now - was), ("without", was - now))]
        text = ", ".join(change for change in changes if not change.endswith(" "))
        reason = f"the IOMMU group of {_named(after)} is another: now {text}"
        yield Severity.ERROR, f"{reason}; Nova would split it between VMs or offer too little", f"{WHY}, {AGAIN}"


def _together(inventory: Inventory, gpu: PciFunction) -> FrozenSet[str]:
    """Addresses of its group, itself too, without bridges and virtual functions."""
    members = inventory.groups().get(gpu.iommu_group, []) if gpu.iommu_group is not None else [gpu]
    return frozenset(f.address for f in members if not f.is_bridge and f.physical_function is None)


def _at(address: str, cards: Mapping[str, str]) -> str:
    card, _, function = address.rpartition(".")
    return f"{cards.get(card, card)}.{function}"


def _list(addresses: Iterable[str]) -> str:
    return ", ".join(sorted(addresses))


def _blocked(recorded: Inventory, observed: Inventory, pairs: Pairs) -> Answer:
    """Groups that could be given away and now hold something that the host needs."""
    if not observed.iommu_on:
        return
    usable = {gpu.address for slot in judge(recorded) if slot.usable for gpu in slot.gpus}
    before: Dict[str, str] = {after.address: old.address for old, after in pairs}
    for slot in judge(observed):
        if not slot.usable and any(before.get(gpu.address) in usable for gpu in slot.gpus):
            gpus = ", ".join(gpu.short_address for gpu in slot.gpus)
            reason = f"{gpus} could be given away and cannot now: {'; '.join(slot.reasons)}"
            yield Severity.ERROR, reason, f"give the host something else for it, or {AGAIN}"


def _named(gpu: PciFunction) -> str:
    return f"{gpu.short_address} {gpu.model} [{gpu.ids}]"
