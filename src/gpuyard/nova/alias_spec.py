"""Parses what flavors ask for with ``pci_passthrough:alias``, or by the class of a device."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

ALIAS_SPEC = "pci_passthrough:alias"
TAKES_DEVICE = re.compile(r"^resources[\w-]*:(VGPU$|CUSTOM_(GPU|PCI)_)")
COUNT = re.compile(r"\d{1,9}", re.ASCII)


def asked_aliases(text: str) -> list[tuple[str, int]] | None:
    """Parse aliases and counts of ``v100:2, t4:1``, in order, as Nova does; None when it does not accept the text."""
    parts = [part.split(":") for part in text.split(",")]
    if any(len(part) != 2 or not part[0].strip() or not COUNT.fullmatch(part[1].strip()) for part in parts):
        return None
    return [(name.strip(), int(count)) for name, count in parts]


def takes_devices(specs: Mapping[str, str]) -> bool:
    """Return whether a flavor takes devices of Placement, by an alias or by naming a class."""
    return ALIAS_SPEC in specs or any(TAKES_DEVICE.match(key) for key in specs)


def asked_devices(specs: Mapping[str, str]) -> dict[str, int]:
    """Return alias -> number that a flavor's extra specs ask for: nothing when Nova does not accept them."""
    return summed(asked_aliases(specs[ALIAS_SPEC]) or ()) if ALIAS_SPEC in specs else {}


def asked_classes(specs: Mapping[str, str]) -> dict[str, int]:
    """Return resource class -> amount that a flavor's extra specs ask for by name, in whatever groups."""
    amounts: list[tuple[str, int]] = []
    for key, value in specs.items():
        prefix, _, name = key.partition(":")
        if prefix.startswith("resources") and COUNT.fullmatch(value.strip()):
            amounts.append((name, int(value)))
    return summed(amounts)


def summed(amounts: Iterable[tuple[str, int]]) -> dict[str, int]:
    totals: dict[str, int] = {}
    for name, count in amounts:
        totals[name] = totals.get(name, 0) + count
    return totals
