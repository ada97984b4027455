"""Copies aliases and device_spec of devices that are no GPUs into the site, as they were found.

Nova reads aliases as one list, and device_spec too. Where the site's options replace an operator's own, those for
network cards and the like must be among them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.diagnosis.adopt.config import HandMade, comes_with_gpu
from gpuyard.diagnosis.adopt.pools import Kind, Pools
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.nova.alias import Alias
from gpuyard.nova.device_spec import ANY, Entry
from gpuyard.nova.offers import Offer, asks, matched, same_ids
from gpuyard.site.options import compact_json

Text = dict[str, str]


@dataclass(frozen=True)
class Others:
    """Aliases and entries that go into the site for other devices, and those that cannot."""

    aliases: tuple[Text, ...] = ()
    specs: Mapping[str, tuple[Text, ...]] = field(default_factory=dict)
    """Host -> entries of device_spec, in their order."""
    kept: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    """The same, as they were read."""
    left: tuple[str, ...] = ()
    """Those that are not in the file, and why."""

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the aliases."""
        return tuple(dict.fromkeys(alias["name"].strip() for alias in self.aliases))

    def keeps(self, offer: Offer) -> bool:
        """Return whether the site offers the device as it is offered now."""
        return offer.entry is not None and offer.entry in self.kept.get(offer.host, ())


def key_of(host: str | None, raw: Mapping[str, str]) -> str:
    """Return the key of an alias (of no host) or an entry, the same from one attempt to the next."""
    return f"{host or ''} {compact_json(dict(raw))}"


def others_of(
    inventories: Mapping[str, Inventory],
    config: HandMade,
    offered: Sequence[Offer],
    pools: Pools,
    refused: Mapping[str, str],
) -> Others:
    """Return the aliases and entries that name no GPU of the recordings, and nothing that comes with one. `refused` are
    those that the compiler refused, by `key_of`, with the reason."""
    aliases: list[Text] = []
    left: list[str] = []
    for name, lines in config.aliases.items():
        if pools.uses[name].kind is Kind.POOL or _alias_of_gpus(
            lines, pools.uses[name].kind, inventories, offered, config
        ):
            continue
        for line in lines:
            reason = _unseen_gpu(line) if pools.uses[name].kind is Kind.LOST else None
            reason = reason or refused.get(key_of(None, line.raw))
            if reason is None:
                aliases.append(dict(line.raw))
            else:
                left.append(f"alias {name} is not in the file: {reason}")
    entries_by_host: dict[str, list[Entry]] = {}
    specs: dict[str, list[Text]] = {}
    for host, entries in config.entries.items():
        for entry in entries or ():
            if _spec_of_gpus(entry, host, inventories):
                continue
            text = as_text(entry)
            reason = _unseen_spec(entry, inventories[host])
            reason = reason or (_NO_TEXT if text is None else refused.get(key_of(host, text)))
            if text is not None and reason is None:
                entries_by_host.setdefault(host, []).append(entry)
                specs.setdefault(host, []).append(text)
            else:
                left.append(f"{host}: device_spec {entry} is not in the file: {reason}")
    return Others(
        tuple(aliases),
        {host: tuple(host_specs) for host, host_specs in specs.items()},
        {host: tuple(host_entries) for host, host_entries in entries_by_host.items()},
        tuple(left),
    )


def _unseen_gpu(line: Alias) -> str | None:
    """Why an alias that no recording has a device for is not taken for one of another device."""
    if not line.for_gpus or "vendor_id" not in line.raw:
        return None
    return f"a GPU can have its ids, and no recording has one: {_RECORD}"


def _unseen_spec(entry: Entry, inventory: Inventory) -> str | None:
    if not entry.for_gpus or entry.vendor == ANY or matched(entry, inventory):
        return None
    return f"a GPU can have its ids, and the recording has none: {_RECORD}"


_RECORD = "record a host that has it, and adopt again, or write it there yourself"
_NO_TEXT = "it has a value that is not text, and 'extra_device_specs' takes text only; write it in another way there"


def _alias_of_gpus(
    lines: Iterable[Alias],
    kind: Kind,
    inventories: Mapping[str, Inventory],
    offered: Iterable[Offer],
    config: HandMade,
) -> bool:
    """Return whether an alias is about GPUs or what comes with one: what Nova gives for it decides; for one that gets
    nothing now, its ids."""
    if kind is Kind.COMPANION:
        return True
    if kind is Kind.DEVICE:
        functions = (
            offer.function for offer in offered if any(asks(line, offer, config.in_placement) for line in lines)
        )
        return any(function.is_gpu for function in functions)
    return any(
        same_ids(line, function)
        for inventory in inventories.values()
        for function in inventory.functions
        if _gpu_or_with_one(function, inventory)
        for line in lines
    )


def _spec_of_gpus(entry: Entry, host: str, inventories: Mapping[str, Inventory]) -> bool:
    """Return whether an entry names a GPU of its host or what comes with one; one that names nothing there (the file of
    all hosts has it too), of any host."""
    mine = matched(entry, inventories[host])
    if mine:
        return any(_gpu_or_with_one(function, inventories[host]) for function in mine)
    return any(
        _gpu_or_with_one(function, inventory)
        for inventory in inventories.values()
        for function in matched(entry, inventory)
    )


def _gpu_or_with_one(function: PciFunction, inventory: Inventory) -> bool:
    return function.is_gpu or comes_with_gpu(function, inventory)


def as_text(entry: Entry) -> Text | None:
    """The entry with text for truth values, which Nova reads the same; None where a value is something else."""
    text: Text = {}
    for key, value in entry.raw.items():
        if isinstance(value, bool):
            text[key] = "true" if value else "false"
        elif isinstance(value, str):
            text[key] = value
        else:
            return None
    return text
