"""Reads the operator's nova.conf files for PCI devices, which no API shows, and lists what hosts offer by them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from gpuyard.model.errors import UsageError
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.nova.alias import Alias, aliases
from gpuyard.nova.config import ConfigFile, View
from gpuyard.nova.device_spec import Entry, device_specs, settings_of
from gpuyard.nova.ini import read_template
from gpuyard.nova.offers import Offer, offers
from gpuyard.nova.options import PLACED


@dataclass(frozen=True)
class HandMade:
    """The operator's own configuration of PCI devices."""

    aliases: Mapping[str, tuple[Alias, ...]]
    """By name, in the order of the files. Several of one name are alternatives."""
    entries: Mapping[str, tuple[Entry, ...] | None]
    """Host -> its device_spec in the order in which Nova tries it; None where the files given have none."""
    in_placement: bool = False
    """``[filter_scheduler]pci_in_placement``."""
    complaints: tuple[str, ...] = ()
    """Settings that Nova would stumble over, or reads otherwise than they were meant."""


def read_config(named: Iterable[tuple[str | None, Path]]) -> list[ConfigFile]:
    """Read files, each with the host that it is of; None: of all.

    Commands of Jinja2, as in overrides for Kolla, are passed over. Raises UsageError for a file that cannot be read, or
    that Nova would not read.
    """
    files = []
    for host, path in named:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is not text in UTF-8"
            raise UsageError(f"{path}: cannot be read: {reason}; name a nova.conf with --nova-conf") from None
        ini, _ = read_template(text)
        if ini.problems:
            first = ini.problems[0]
            raise UsageError(
                f"{path}:{first.line}: {first.message}; Nova does not read such a file: mend it, or name a nova.conf "
                "with --nova-conf"
            )
        files.append(ConfigFile(str(path), ini, host=host))
    return files


def hand_made(files: Sequence[ConfigFile], hosts: Collection[str]) -> HandMade:
    """Return the configuration in the files. A host's own files count for what they set; the rest is in those of all
    hosts.

    That is right for whole files, one of each machine, and for layers of overrides, where the later one wins.
    """
    shared = _view(None, files)
    own = {host: _view(host, files) for host in hosts}
    complaints: list[str] = []
    entries: dict[str, tuple[Entry, ...] | None] = {}
    for host, mine in own.items():
        view = next((candidate for candidate in (mine, shared) if settings_of(candidate)), None)
        if view is None:
            entries[host] = None
            continue
        specs = device_specs(view)
        entries[host] = specs.entries
        complaints += [
            f"{refusal.source}: {refusal.reason}; nova-compute does not start with it" for refusal in specs.refusals
        ]
    aliases_by_name, more = _aliases(shared, own)
    in_placement, doubt = _in_placement(shared, own)
    return HandMade(aliases_by_name, entries, in_placement, tuple(dict.fromkeys([*complaints, *more, *doubt])))


def _view(host: str | None, files: Sequence[ConfigFile]) -> View:
    return View(None, host, tuple(file for file in files if file.host == host))


def _aliases(shared: View, own: Mapping[str, View]) -> tuple[dict[str, tuple[Alias, ...]], list[str]]:
    """nova-api's count, because it turns a flavor into requests; without its file, those of all hosts together."""
    common = aliases(shared)
    of_hosts = {host: aliases(view) for host, view in own.items()}
    read = [common] if common.set else list(of_hosts.values())
    complaints = [
        f"{refusal.source}: {refusal.reason}; Nova takes no alias at all then"
        for all_ in read
        for refusal in all_.refusals
    ]
    for host, mine in of_hosts.items():
        if common.set and mine.set and _meaning(mine.items) != _meaning(common.items):
            complaints.append(f"the aliases of {host} are not those of the files of all hosts, which were taken")
    aliases_by_name: dict[str, list[Alias]] = {}
    for all_ in read:
        for alias in all_.items:
            variants = aliases_by_name.setdefault(alias.name, [])
            if alias.wish not in [variant.wish for variant in variants]:
                variants.append(alias)
    return {name: tuple(items) for name, items in aliases_by_name.items()}, complaints


def _meaning(items: Iterable[Alias]) -> set[tuple[tuple[str, str], ...]]:
    return {tuple(sorted(item.wish.items())) for item in items}


def _in_placement(shared: View, own: Mapping[str, View]) -> tuple[bool, list[str]]:
    source = shared if shared.last(*PLACED) else None
    for view in () if source else own.values():
        source = source or (view if view.last(*PLACED) else None)
    if source is None:
        return False, []
    value = source.boolean(*PLACED)
    if value is None:
        place = source.last(*PLACED)
        return False, [f"{place}: pci_in_placement is neither true nor false"]
    return value, []


def offered_now(inventories: Mapping[str, Inventory], config: HandMade) -> list[Offer]:
    """Return the devices offered by host, in bus order; every GPU of a host for which the files given have no
    device_spec."""
    offered: list[Offer] = []
    for host, inventory in inventories.items():
        entries = config.entries.get(host)
        if entries is None:
            offered += [Offer(gpu, None, host) for gpu in inventory.gpus]
        else:
            offered += offers(entries, inventory, host)
    return offered


def comes_with_gpu(function: PciFunction, inventory: Inventory) -> bool:
    """Return whether it shares its card or its IOMMU group with a GPU of the host."""
    return any(
        gpu.card == function.card or (gpu.iommu_group is not None and gpu.iommu_group == function.iommu_group)
        for gpu in inventory.gpus
    )
