"""Which PCI functions the hosts offer now, and which of them an alias asks for: as Nova decides it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from gpuyard.model.host import Inventory
from gpuyard.model.pci import DeviceType, PciFunction
from gpuyard.site.adopt.config import HandMade
from gpuyard.site.lint.alias import Alias
from gpuyard.site.lint.device_spec import Entry, truth


@dataclass(frozen=True)
class Offer:
    """A function that a host's nova-compute offers to servers."""

    host: str
    function: PciFunction
    entry: Entry | None
    """The entry of device_spec that names it; None where the files given have none for the host, and every GPU is
    taken for offered."""

    @property
    def resource_class(self) -> str:
        """The class that nova-compute reports it to Placement with."""
        return _class(self.entry.raw.get("resource_class") if self.entry else None, self.function.ids)

    @property
    def traits(self) -> frozenset[str]:
        return _traits(self.entry.raw.get("traits") if self.entry else None)

    def __str__(self) -> str:
        return f"{self.host} {self.function.short_address} {self.function.model}"


def offers(inventories: Mapping[str, Inventory], config: HandMade) -> list[Offer]:
    """By host, in bus order. The first entry that matches a function is the one that counts."""
    return [offer for host, inventory in inventories.items() for offer in _of_host(host, inventory, config)]


def _of_host(host: str, inventory: Inventory, config: HandMade) -> Iterable[Offer]:
    entries = config.entries.get(host)
    if entries is None:
        yield from (Offer(host, gpu, None) for gpu in inventory.gpus)
        return
    physical = frozenset(one.address for one in inventory.functions if one.sriov_total_vfs)
    for function in inventory.functions:
        for entry in entries:
            if entry.matches(function, physical):
                yield Offer(host, function, entry)
                break


def comes_with_gpu(function: PciFunction, inventory: Inventory) -> bool:
    """Whether it shares its card or its IOMMU group with a GPU of the host."""
    return any(
        gpu.card == function.card or (gpu.iommu_group is not None and gpu.iommu_group == function.iommu_group)
        for gpu in inventory.gpus
    )


def asks(alias: Alias, offer: Offer, in_placement: bool) -> bool:
    """Whether a server that asks for the alias may get the function."""
    if not same_ids(alias, offer.function) or not same_type(alias, offer.function) or not same_moves(alias, offer):
        return False
    if not in_placement:
        return True
    own = alias.raw.get("resource_class")
    wanted = _class(own, f"{alias.raw.get('vendor_id', '')}:{alias.raw.get('product_id', '')}")
    return wanted == offer.resource_class and _traits(alias.raw.get("traits")) <= offer.traits


def same_ids(alias: Alias, function: PciFunction) -> bool:
    given = {key: alias.raw[key].lower() for key in ("vendor_id", "product_id") if key in alias.raw}
    return all(value == getattr(function, key) for key, value in given.items())


def same_type(alias: Alias, function: PciFunction) -> bool:
    """Nova gives a physical function only to who asks for one."""
    if alias.device_type is None:
        return function.device_type is not DeviceType.PF
    return alias.device_type == function.device_type.value


def same_moves(alias: Alias, offer: Offer) -> bool:
    """Nova gives a device whose entry says nothing of live migration only to an alias that says nothing of it."""
    wanted = alias.raw.get("live_migratable")
    if wanted is None or offer.entry is None:
        return True
    said = offer.entry.raw.get("live_migratable")
    return said is not None and truth(said) == truth(wanted)


def _class(given: object, ids: str) -> str:
    if not given:
        return f"CUSTOM_PCI_{ids.replace(':', '_')}".upper()
    name = re.sub(r"[^0-9A-Z]+", "_", str(given).upper())
    return name if name.startswith("CUSTOM_") or name in ("VGPU", "PGPU") else f"CUSTOM_{name}"


def _traits(given: object) -> frozenset[str]:
    names = (name.strip().upper() for name in str(given or "").split(","))
    return frozenset(name if name.startswith(("CUSTOM_", "HW_")) else f"CUSTOM_{name}" for name in names if name)
