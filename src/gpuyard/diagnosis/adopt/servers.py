"""Compares servers that run on an adopted cloud, and what its hosts offer now, with what the new site offers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from gpuyard.diagnosis.adopt.config import HandMade, comes_with_gpu
from gpuyard.diagnosis.adopt.model import CloudFacts, GpuServer
from gpuyard.diagnosis.adopt.others import Others
from gpuyard.model.gpu import Gpu
from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard.nova.offers import Offer, asks


@dataclass(frozen=True)
class AdoptionFacts:
    """The inputs of the comparison."""

    inventories: Mapping[str, Inventory]
    config: HandMade
    offered: Sequence[Offer]
    facts: CloudFacts
    gpus: Sequence[Gpu]
    """Of the new site."""
    others: Others = field(default_factory=Others)
    """Aliases and entries that the new site has for other devices."""

    def function(self, host: str, address: str) -> PciFunction | None:
        inventory = self.inventories.get(host)
        if inventory is None:
            return None
        return next((function for function in inventory.functions if function.address == address), None)

    def site_gpu(self, host: str, address: str) -> Gpu | None:
        return next((gpu for gpu in self.gpus if (gpu.host, gpu.address) == (host, address)), None)

    def offers_of(self, host: str) -> list[Offer]:
        return [offer for offer in self.offered if offer.host == host]


def server_lines(look: AdoptionFacts) -> Iterable[str]:
    """Return one line for each server: its host, and the devices that it holds, as far as they can be seen."""
    for server in sorted(look.facts.servers, key=lambda item: (item.host, item.name)):
        where = f"{server.title} on {server.host}, flavor {server.flavor} ({server.asks})"
        if server.host not in look.inventories:
            yield f"{where}: no recording of {server.host} was given, so nothing can be said about it"
        elif server.addresses is None:
            yield f"{where}: Placement does not know which devices it holds"
        else:
            devices = [_device(look, server.host, address) for address in server.addresses]
            yield f"{where}: holds {', '.join(devices) or 'nothing'}"


def _device(look: AdoptionFacts, host: str, address: str) -> str:
    function = look.function(host, address)
    if function is None:
        return f"{address} (not in the recording)"
    group = "" if function.iommu_group is None else f", IOMMU group {function.iommu_group}"
    return f"{function.short_address} {function.model}{group}"


def dangers(look: AdoptionFacts) -> list[str]:
    """Return what can break servers, now or once the options of the site are deployed."""
    return [
        *_split_groups(look),
        *_splittable_groups(look),
        *_held_but_not_offered(look),
        *_more_than_offered(look),
    ]


def _holders(look: AdoptionFacts) -> dict[tuple[str, int], dict[str, list[GpuServer]]]:
    """Host and IOMMU group -> address -> servers that hold it."""
    groups: dict[tuple[str, int], dict[str, list[GpuServer]]] = {}
    for server in look.facts.servers:
        for address in server.addresses or ():
            function = look.function(server.host, address)
            if function is not None and function.iommu_group is not None:
                group = groups.setdefault((server.host, function.iommu_group), {})
                group.setdefault(address, []).append(server)
    return groups


def _split_groups(look: AdoptionFacts) -> Iterable[str]:
    for (host, number), held in sorted(_holders(look).items(), key=lambda item: item[0]):
        servers = list(dict.fromkeys(server for holders in held.values() for server in holders))
        if len(servers) > 1:
            names = " and ".join(server.title for server in servers)
            yield (
                f"{host}: IOMMU group {number} ({', '.join(sorted(held))}) is split between {names}: only one of them "
                "can run; delete one"
            )


def _splittable_groups(look: AdoptionFacts) -> Iterable[str]:
    """Groups of which Nova may give the GPUs to several servers."""
    for host in look.inventories:
        if look.config.entries.get(host) is None:
            continue
        groups: dict[int, list[str]] = {}
        for offer in look.offers_of(host):
            if offer.function.is_gpu and offer.function.iommu_group is not None:
                groups.setdefault(offer.function.iommu_group, []).append(offer.function.short_address)
        blind = [server for server in look.facts.servers if server.host == host and server.addresses is None]
        for number, addresses in sorted(groups.items()):
            if len(addresses) > 1:
                now = f"; it cannot be seen whether the {len(blind)} servers there are in it" if blind else ""
                yield (
                    f"{host}: Nova offers {' and '.join(addresses)} one by one, and they are one IOMMU group "
                    f"({number}): the second server in it does not start{now}"
                )


def _held_but_not_offered(look: AdoptionFacts) -> Iterable[str]:
    for server in look.facts.servers:
        for address in server.addresses or ():
            function = look.function(server.host, address)
            if function is None:
                if server.host in look.inventories:
                    yield f"{server.title} holds {address}, which the recording of {server.host} lacks: record again"
                continue
            gpu = look.site_gpu(server.host, address)
            what = f"{server.title} holds {server.host} {function.short_address} {function.model}"
            if not function.is_gpu:
                if any(look.others.keeps(offer) for offer in look.offers_of(server.host) if offer.function == function):
                    continue
                yield (f"{what}, which the site does not offer: it is no GPU; the server keeps it while it stays there")
            elif gpu is None:
                yield f"{what}, which is in no pool: the site would no longer offer it"
            elif gpu.blocked:
                yield f"{what}, which the site does not offer: {gpu.blocked}"


def _more_than_offered(look: AdoptionFacts) -> Iterable[str]:
    """Hosts where it is not seen who holds what, with more GPUs in use than the site offers there."""
    for host in look.inventories:
        blind = [server for server in look.facts.servers if server.host == host and server.addresses is None]
        offered = sum(gpu.host == host and not gpu.blocked for gpu in look.gpus)
        in_use = sum(_gpu_count(look, server) for server in blind)
        if in_use > offered:
            yield f"{host}: {len(blind)} servers hold {in_use} GPUs, and the site offers {offered} there"


def _gpu_count(look: AdoptionFacts, server: GpuServer) -> int:
    """GPUs that a server asked for, by the aliases that reach a GPU on its host."""
    count = 0
    for part in server.asks.split(","):
        name, _, number = part.strip().partition(":")
        lines = look.config.aliases.get(name.strip(), ())
        for_gpu = any(
            offer.function.is_gpu and asks(line, offer, look.config.in_placement)
            for line in lines
            for offer in look.offers_of(server.host)
        )
        if for_gpu and number.strip().isdigit():
            count += int(number)
    return count


def offer_changes(look: AdoptionFacts) -> Iterable[str]:
    """Return devices that the hosts offer now and the site would not, and the other way round, once its options are
    deployed."""
    now = {(offer.host, offer.function.address): offer for offer in look.offered if offer.entry is not None}
    by_reason: dict[str, list[str]] = {}
    for (host, address), offer in now.items():
        gpu = look.site_gpu(host, address)
        if (gpu is not None and not gpu.blocked) or look.others.keeps(offer):
            continue
        if not offer.function.is_gpu:
            reason = _no_gpu(look, offer)
        else:
            reason = gpu.blocked if gpu is not None else "in no pool"
        by_reason.setdefault(f"{host}: {reason}", []).append(offer.function.short_address)
    for text, addresses in by_reason.items():
        host, _, reason = text.partition(": ")
        yield f"offered now and not by the site: {host} {_some(addresses)} ({reason})"
    for gpu in look.gpus:
        if not gpu.blocked and look.config.entries.get(gpu.host) is not None and (gpu.host, gpu.address) not in now:
            yield f"not offered now, and would be by the site: {gpu.host} {gpu.address} {gpu.model} (pool {gpu.pool})"


def _no_gpu(look: AdoptionFacts, offer: Offer) -> str:
    if comes_with_gpu(offer.function, look.inventories[offer.host]):
        return "no GPU; what comes with a GPU is bound together with it"
    return f"no GPU; an entry of its own under hosts.{offer.host}.extra_device_specs would keep it"


def devname_changes(look: AdoptionFacts) -> Iterable[str]:
    """Return entries that nova-compute refuses as soon as it reports PCI devices to Placement."""
    for host, entries in look.others.kept.items():
        for entry in entries:
            if entry.address is None:
                yield (
                    f"{host}: a nova-compute that reports PCI devices to Placement does not start with device_spec "
                    f"{entry}: write its 'address' under extra_device_specs before 'pci_in_placement: report'"
                )


def class_changes(look: AdoptionFacts) -> Iterable[str]:
    """Return GPUs that Placement knows under another class than the site gives them."""
    moves: dict[tuple[str, str, str], int] = {}
    for offer in look.offered:
        gpu = look.site_gpu(offer.host, offer.function.address)
        reported = look.facts.reported.get(offer.host, frozenset())
        if gpu is None or gpu.blocked or offer.function.address not in reported:
            continue
        if gpu.resource_class != offer.resource_class:
            key = (offer.host, offer.resource_class, gpu.resource_class)
            moves[key] = moves.get(key, 0) + 1
    for (host, old, new), count in moves.items():
        busy = sorted({server.title for server in look.facts.servers if server.host == host})
        who = f" (now: {', '.join(busy)})" if busy else ""
        yield (
            f"{host}: {count} GPUs are {old} in Placement, and {new} once the site's options are deployed. While a "
            f"server holds one of them, nova-compute does not start with these: empty the host first{who}"
        )


def _some(names: Sequence[str], most: int = 8) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
