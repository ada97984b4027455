"""Names resource classes and amounts for people, with their units."""

from __future__ import annotations

from gpuyard.diagnosis.why.facts import RequestFacts
from gpuyard.site.capacity import NOGPU_DISK, NOGPU_MEMORY, NOGPU_VCPU

OTHERS = "for servers without GPUs"
# Class -> what it is, and the unit of its amounts.
WORDS = {
    "VCPU": ("vCPUs", ""),
    "PCPU": ("dedicated CPUs", ""),
    "MEMORY_MB": ("RAM", " MiB"),
    "DISK_GB": ("disk", " GiB"),
    NOGPU_VCPU: (f"vCPUs {OTHERS}", ""),
    NOGPU_MEMORY: (f"RAM {OTHERS}", " MiB"),
    NOGPU_DISK: (f"disk {OTHERS}", " GiB"),
    "servers": ("servers", ""),
}


def words(facts: RequestFacts, name: str) -> str:
    """Name a class: ``MEMORY_MB`` -> ``RAM``; a class that counts a pool's GPUs -> ``GPUs of pool v100``; others as
    they are."""
    if name in facts.pools:
        return f"GPUs of pool {facts.pools[name]}"
    return WORDS[name][0] if name in WORDS else name


def amount(name: str, number: int) -> str:
    """Format an amount: ``8192 MiB``."""
    return f"{number}{WORDS[name][1] if name in WORDS else ''}"


def countable(facts: RequestFacts, name: str) -> bool:
    """Return whether one says "many" of it, and not "much"."""
    return name in facts.pools or name in ("VCPU", "PCPU", "servers", NOGPU_VCPU)


def amount_of(facts: RequestFacts, name: str, number: int) -> str:
    """Format an amount with its name: ``8192 MiB of RAM``, ``4 vCPUs``."""
    return f"{amount(name, number)} {'' if countable(facts, name) or name not in WORDS else 'of '}{words(facts, name)}"


def and_list(items: list[str] | tuple[str, ...]) -> str:
    """Join names: ``a, b and c``."""
    return items[0] if len(items) == 1 else f"{', '.join(items[:-1])} and {items[-1]}"
