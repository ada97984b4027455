"""Matches devices: which of a host's devices Nova offers, and which of those an alias asks for.

The first entry of device_spec that matches a function decides its class and traits. An alias asks for the function
when ids, device type and live migration agree and, where Placement decides, class and traits, too. The same as
nova.pci.stats and nova.compute.pci_placement_translator of Nova 31 to 34.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gpuyard.model.host import Inventory
from gpuyard.model.pci import DeviceType, PciFunction
from gpuyard.nova.alias import Alias
from gpuyard.nova.class_names import class_of, trait_names
from gpuyard.nova.device_spec import ANY, Entry, truth


@dataclass(frozen=True)
class Offer:
    """A function that nova-compute gives to servers."""

    function: PciFunction
    entry: Entry | None
    """The entry of device_spec that matches it, the first of several; None where no device_spec was given, and a GPU is
    taken for offered."""
    host: str = ""

    @property
    def raw(self) -> Mapping[str, Any]:
        return self.entry.raw if self.entry else {}

    @property
    def resource_class(self) -> str:
        """The class under which nova-compute reports it to Placement."""
        return class_of(self.raw.get("resource_class"), self.function.vendor_id, self.function.product_id)

    @property
    def traits(self) -> frozenset[str]:
        return trait_names(self.raw.get("traits"))

    def __str__(self) -> str:
        return f"{self.host} {self.function.short_address} {self.function.model}".strip()


def physical(inventory: Inventory) -> frozenset[str]:
    """Return the addresses of the functions that can have virtual ones."""
    return frozenset(function.address for function in inventory.functions if function.sriov_total_vfs)


def matched(entry: Entry, inventory: Inventory) -> list[PciFunction]:
    """Return the functions that an entry matches, whether or not an earlier one does too."""
    parents = physical(inventory)
    return [function for function in inventory.functions if entry.matches(function, parents)]


def offers(entries: Sequence[Entry], inventory: Inventory, host: str = "") -> list[Offer]:
    """Return every function that is offered, in bus order. The first entry that matches is the one that counts."""
    parents = physical(inventory)
    offered: list[Offer] = []
    for function in inventory.functions:
        entry = next((entry for entry in entries if entry.matches(function, parents)), None)
        if entry is not None:
            offered.append(Offer(function, entry, host))
    return offered


def means(alias: Alias, offer: Offer, in_placement: bool) -> bool:
    """Return whether the alias names the device by its ids and its class, whatever their types."""
    if not same_ids(alias, offer.function):
        return False
    return not in_placement or alias.resource_class == offer.resource_class


def asks(alias: Alias, offer: Offer, in_placement: bool) -> bool:
    """Return whether a server that asks for the alias may get the function."""
    if not means(alias, offer, in_placement) or not fits(alias, offer.function.device_type):
        return False
    if in_placement and not alias.traits <= offer.traits:
        return False
    return _same_moves(alias, offer)


def same_ids(alias: Alias, function: PciFunction) -> bool:
    ids = {key: alias.raw[key].lower() for key in ("vendor_id", "product_id") if key in alias.raw}
    return all(value == getattr(function, key) for key, value in ids.items())


def fits(alias: Alias, device_type: DeviceType) -> bool:
    """Return whether the types fit: Nova never gives a type-PF to an alias that does not ask for one; to one without a
    type it gives the other two."""
    if alias.device_type is None:
        return device_type is not DeviceType.PF
    return alias.device_type == device_type.value


def could_offer(entry: Entry, alias: Alias, in_placement: bool) -> bool:
    """Return whether there may be a device that an entry names and an alias means, on a host of which nothing is
    known."""
    for key, value in (("vendor_id", entry.vendor), ("product_id", entry.product)):
        if key in alias.raw and value not in (ANY, alias.raw[key].lower()):
            return False
    if not in_placement or (not entry.raw.get("resource_class") and ANY in (entry.vendor, entry.product)):
        return True  # the class depends on the device
    return (not alias.raw.get("resource_class") and not alias.has_ids) or alias.resource_class == class_of(
        entry.raw.get("resource_class"), entry.vendor, entry.product
    )


def _same_moves(alias: Alias, offer: Offer) -> bool:
    """Nova gives a device whose entry says nothing of live migration only to an alias that says nothing of it."""
    requested = alias.raw.get("live_migratable")
    if requested is None or offer.entry is None:
        return True
    offered = offer.raw.get("live_migratable")
    return offered is not None and truth(offered) == truth(requested)
