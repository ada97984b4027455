"""``[pci]alias`` as Nova understands it: what it refuses, and what an alias asks for.

The same as nova.pci.request of Nova 31 to 34; a test holds the two against each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

from gpuyard.site.lint.device_spec import Refusal, truth
from gpuyard.site.lint.ini import TEMPLATE_VALUE
from gpuyard.site.lint.model import Located, View
from gpuyard.site.lint.values import JsonProblem, read_json

NAMES = (("pci", "alias"), ("DEFAULT", "pci_alias"))
KEYS = (
    "name", "vendor_id", "product_id", "device_type", "numa_policy", "resource_class", "traits", "live_migratable",
    "capability_type",
)  # fmt: skip
CHOICES = {
    "device_type": ("type-PCI", "type-PF", "type-VF"),
    "numa_policy": ("legacy", "preferred", "required", "socket"),
    "capability_type": ("pci",),
}
PCI_ID = re.compile(r"^([\da-fA-F]{4})$")


@dataclass(frozen=True)
class Alias:
    """One ``alias`` line that Nova's schema takes."""

    source: Located
    raw: dict[str, str]
    repeated: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        return self.raw["name"].strip()

    @property
    def device_type(self) -> str | None:
        return self.raw.get("device_type") or None

    @property
    def numa_policy(self) -> str:
        return self.raw.get("numa_policy") or "legacy"

    @property
    def has_ids(self) -> bool:
        return "vendor_id" in self.raw and "product_id" in self.raw

    @property
    def wish(self) -> dict[str, str]:
        """What it asks for, in a form that two of them can be compared in."""
        return {key: value.strip().lower() for key, value in self.raw.items()}


@dataclass(frozen=True)
class Aliases:
    """All aliases that one service reads."""

    items: tuple[Alias, ...]
    refusals: tuple[Refusal, ...]

    @property
    def set(self) -> bool:
        return bool(self.items or self.refusals)

    def named(self) -> dict[str, list[Alias]]:
        found: dict[str, list[Alias]] = {}
        for alias in self.items:
            found.setdefault(alias.name, []).append(alias)
        return found


def each_once(given: Iterable[View]) -> Iterator[tuple[Alias, bool]]:
    """Every alias with whether pci_in_placement is on; one that many services read comes once."""
    seen = set()
    for view in given:
        placed = bool(view.boolean("filter_scheduler", "pci_in_placement"))
        for alias in aliases(view).items:
            key = (alias.source.file.path, alias.source.setting.line, placed)
            if key not in seen:
                seen.add(key)
                yield alias, placed


def settings_of(view: View) -> list[Located]:
    return view.under(NAMES)


def aliases(view: View) -> Aliases:
    return view.once("aliases", _aliases)


def _aliases(view: View) -> Aliases:
    items: list[Alias] = []
    refusals: list[Refusal] = []
    for source in settings_of(view):
        if TEMPLATE_VALUE in source.value:
            continue
        value = read_json(source.value)
        if isinstance(value, JsonProblem):
            line, reason = source.setting.line + value.line, f"{source.setting} is not JSON: {value.message}"
            refusals.append(Refusal(source, line, reason, value.fix, json=True))
            continue
        problems = schema_problems(value.data)
        refusals += [
            Refusal(source, source.setting.line, f"{source.setting}: {reason}", fix) for reason, fix in problems
        ]
        if not problems:
            items.append(Alias(source, value.data, value.repeated))
    return Aliases(tuple(items), tuple(refusals))


def schema_problems(data: Any) -> list[tuple[str, str]]:
    """Why Nova would not take an alias: reason and fix."""
    if isinstance(data, list):
        return [("it is a list, and an alias is one object", "write one 'alias =' line for each object")]
    if not isinstance(data, dict):
        return [("it is not an object", 'write {"name": "...", ...}')]
    found = []
    if "name" not in data:
        found.append(("it has no name", 'add "name", which flavors ask for it by'))
    for key, value in data.items():
        problem = _key_problem(key, value)
        if problem:
            found.append(problem)
    return found


def _key_problem(key: str, value: Any) -> tuple[str, str] | None:
    if key not in KEYS:
        return f"unknown key {key!r}", f"remove it; an alias has {', '.join(KEYS[:-1])}"
    if not isinstance(value, str):
        right = '"yes" or "no"' if key == "live_migratable" else "it as text in quotes"
        return f"{key} is {value!r}, not text", f"write {right}"
    if key == "name" and not 1 <= len(value) <= 256:
        return "its name is empty or longer than 256 characters", "give it a name that flavors can use"
    if key in ("vendor_id", "product_id") and not PCI_ID.search(value):
        return f"{key} {value!r} is not four hexadecimal digits", f"write it without 0x, as in {_four_digits(value)}"
    if key in CHOICES and value not in CHOICES[key]:
        return f"{key} is {value!r}", f"write {' or '.join(CHOICES[key])}"
    if key == "live_migratable" and truth(value) is None:
        return f"live_migratable is {value!r}", 'write "yes" or "no"'
    return None


def _four_digits(value: str) -> str:
    match = re.fullmatch(r"(?:0x)?([\da-f]{1,4})", value.strip().lower())
    return f'"{int(match.group(1), 16):04x}"' if match else '"10de"'
