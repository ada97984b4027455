"""Computes whether the BARs of a server's GPUs fit into its address space, beside its RAM. Pure arithmetic.

The guest's firmware leaves a BAR that does not fit without an address, and the guest's driver does not find that
GPU: so more RAM can mean fewer GPUs. QEMU gives guests 40 bits of physical addresses, unless a flavor asks for the
host's own (``hw:maxphysaddr_mode``). UEFI (OVMF's PlatformInitLib) trusts that number where it is at least 41, or 40
on AMD, and uses 46 at most; it gives BARs the topmost eighth of the address space where that is free of RAM, and 32
GiB otherwise.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpuyard.model.gpu import GpuKind
from gpuyard.model.host import HostFacts
from gpuyard.site.encoding import EncodedGpu
from gpuyard.site.schema import Flavor, Site

GIB = 2**30
LOW = 2 * GIB
"""RAM that a q35 machine has below 4 GiB; the rest is above."""
QEMU_BITS = 40
UEFI_BITS = 46
CLASSIC = 32 * GIB
"""The window where the width is not known or RAM is in the way; windows begin at a multiple of it."""
LOW_BAR = 32 * 2**20
"""Smaller BARs fit below 4 GiB; those of this size on are 64-bit ones on every GPU of the last ten years."""


@dataclass(frozen=True)
class AddressSpace:
    """A server's address space: bytes of RAM, and the width of its physical addresses."""

    ram: int
    bits: int
    trusted: bool
    """Whether UEFI trusts the width."""

    @property
    def window(self) -> int:
        """Bytes that UEFI has for BARs above 4 GiB."""
        begin = -(-(4 * GIB + max(0, self.ram - LOW)) // CLASSIC) * CLASSIC
        eighth = 1 << (self.bits - 3)
        return eighth if self.trusted and begin + eighth < 1 << self.bits else CLASSIC


def space_of(flavor: Flavor, site: Site, facts: HostFacts) -> AddressSpace | None:
    """Return the address space of a flavor's server on a host; None when its width is unknown: the host's recording is
    older."""
    bits = min(QEMU_BITS, facts.address_bits or QEMU_BITS)
    mode = flavor.properties.get("hw:maxphysaddr_mode")
    if mode == "emulate":
        stated = flavor.properties.get("hw:maxphysaddr_bits", "")
        bits = int(stated) if stated.isascii() and stated.isdigit() and len(stated) < 3 else bits
    elif mode == "passthrough" or any(site.pools[pool].big_bars for pool in flavor.gpus):
        bits = min(UEFI_BITS, facts.address_bits)
    if not bits:
        return None
    trusted = bits > QEMU_BITS or (bits == QEMU_BITS and "AMD" in facts.cpu_model) or bits in (36, 39)
    return AddressSpace(flavor.ram * 2**20, min(UEFI_BITS, bits), trusted)


def taken(functions: Iterable[Sequence[int]]) -> int:
    """Return the bytes above 4 GiB that functions with these BARs take: each is behind a port of its own, whose window
    begins at a multiple of its largest BAR."""
    end = 0
    for bars in sorted(([size for size in bars if size >= LOW_BAR] for bars in functions), key=max_of, reverse=True):
        if bars:
            end = -(-end // max(bars)) * max(bars) + sum(bars)
    return end


def max_of(sizes: Sequence[int]) -> int:
    return max(sizes, default=0)


def too_small(site: Site, facts: Mapping[str, HostFacts], encoded: Iterable[EncodedGpu]) -> list[str]:
    """Return a note for each flavor whose GPUs' BARs do not fit into the address space of its servers."""
    bars: dict[tuple[str, str], list[tuple[int, ...]]] = {}
    for item in encoded:
        if item.offered and item.gpu.kind is not GpuKind.VGPU:  # whose BARs are its maker's secret
            bars.setdefault((item.gpu.pool, item.gpu.host), []).append(item.function.bars)
    alike: dict[tuple[str, tuple[tuple[int, ...], ...], int, str], str] = {}  # a large site has many of few kinds
    for (pool, host), gpus in bars.items():
        host_facts = facts[host]
        alike.setdefault((pool, tuple(sorted(gpus, key=max_of)), host_facts.address_bits, host_facts.cpu_model), host)
    notes = []
    for name, flavor in site.flavors.items():
        for pool, count in flavor.gpus.items():
            worst = [
                (needed - guest.window, host, needed, guest)
                for (of, sizes, *_), host in alike.items()
                if of == pool and len(sizes) >= count and (guest := space_of(flavor, site, facts[host])) is not None
                if (needed := taken(sizes[-count:])) > guest.window
            ]
            if worst:
                _, host, needed, guest = max(worst, key=lambda candidate: candidate[0])
                notes.append(_note(name, flavor, site.pools[pool].big_bars, host, needed, guest))
    return notes


def _note(name: str, flavor: Flavor, big_bars: bool, host: str, needed: int, guest: AddressSpace) -> str:
    if needed <= AddressSpace(0, guest.bits, guest.trusted).window:
        remedy = "write less RAM"
    else:
        remedy = "take fewer GPUs" if big_bars else "write big_bars: true for its pool"
    return (
        f"servers of {name} may not see all of their GPUs on {host}: the GPUs' BARs take {-(-needed // GIB)} GiB of "
        f"addresses, and with {flavor.ram // 1024} GiB of RAM and {guest.bits} bits UEFI has {guest.window // GIB} GiB "
        f"for them; {remedy}"
    )
