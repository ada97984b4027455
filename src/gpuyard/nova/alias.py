"""Parses ``[pci]alias`` as Nova does: why it refuses an alias, and which devices an alias asks for.

The same as nova.pci.request of Nova 31 to 34; a test holds the two against each other.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from gpuyard.nova.class_names import class_of, trait_names
from gpuyard.nova.config import Located, Rejection, View
from gpuyard.nova.device_spec import ANY, truth
from gpuyard.nova.gpu_models import may_be_gpu
from gpuyard.nova.ini import TEMPLATE_VALUE
from gpuyard.nova.json_text import JsonProblem, meant, read_json
from gpuyard.nova.options import ALIAS, PLACED, names_of

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
    """One alias that fits Nova's schema."""

    raw: Mapping[str, str]

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
    def for_gpus(self) -> bool:
        """Whether it can be for GPUs, by its ids."""
        return may_be_gpu(self.raw.get("vendor_id", "*"), self.raw.get("product_id", "*"))

    @property
    def resource_class(self) -> str:
        """The resource class that Placement is asked for."""
        raw = self.raw
        return class_of(raw.get("resource_class"), raw.get("vendor_id", ANY), raw.get("product_id", ANY))

    @property
    def traits(self) -> frozenset[str]:
        return trait_names(self.raw.get("traits"))

    @property
    def wish(self) -> dict[str, str]:
        """Its keys and values in a normal form, to compare two of them."""
        return {key: value.strip().lower() for key, value in self.raw.items()}


@dataclass(frozen=True)
class AliasLine(Alias):
    """An alias with its place in a file."""

    source: Located
    repeated: tuple[str, ...] = ()
    """Keys that occur twice in it."""


@dataclass(frozen=True)
class Aliases:
    """All aliases that one service reads."""

    items: tuple[AliasLine, ...]
    refusals: tuple[Rejection, ...]

    @property
    def set(self) -> bool:
        return bool(self.items or self.refusals)

    def named(self) -> dict[str, list[AliasLine]]:
        aliases_by_name: dict[str, list[AliasLine]] = {}
        for alias in self.items:
            aliases_by_name.setdefault(alias.name, []).append(alias)
        return aliases_by_name


def each_once(views: Iterable[View]) -> Iterator[tuple[AliasLine, bool]]:
    """Yield every alias with whether pci_in_placement is on; one that many services read comes once."""
    seen_keys = set()
    for view in views:
        placed = bool(view.boolean(*PLACED))
        for alias in aliases(view).items:
            key = (alias.source.file.path, alias.source.setting.line, placed)
            if key not in seen_keys:
                seen_keys.add(key)
                yield alias, placed


def settings_of(view: View) -> list[Located]:
    return view.under(names_of(ALIAS))


def aliases(view: View) -> Aliases:
    return view.once("aliases", _aliases)


def _aliases(view: View) -> Aliases:
    items: list[AliasLine] = []
    refusals: list[Rejection] = []
    for source in settings_of(view):
        if TEMPLATE_VALUE in source.value:
            continue
        value = read_json(source.value)
        if isinstance(value, JsonProblem):
            line, reason = source.setting.line + value.line, f"{source.setting} is not JSON: {value.message}"
            refusals.append(Rejection(source, line, reason, value.fix, json=True))
            continue
        problems = schema_problems(value.data)
        if problems:
            reason, fix = ("; ".join(dict.fromkeys(texts)) for texts in zip(*problems, strict=True))
            refusals.append(Rejection(source, source.setting.line, f"{source.setting}: {reason}", fix))
        else:
            items.append(AliasLine(value.data, source, value.repeated))
    return Aliases(tuple(items), tuple(refusals))


def aliases_of(values: Iterable[str]) -> dict[str, Alias]:
    """Return aliases that are known to be valid, by name: those of a site's ``[pci]alias`` options."""
    return {alias.name: alias for alias in map(Alias, map(json.loads, values))}


def schema_problems(data: Any) -> list[tuple[str, str]]:
    """Return why Nova would not accept an alias: reason and fix of each problem."""
    if isinstance(data, list):
        return [("it is a list, and an alias is one object", "write one 'alias =' line for each object")]
    if not isinstance(data, dict):
        return [("it is not an object", 'write {"name": "...", ...}')]
    problems = []
    if "name" not in data:
        problems.append(("it has no name", 'add "name", which flavors ask for it by'))
    for key, value in data.items():
        problem = _key_problem(key, value)
        if problem:
            problems.append(problem)
    return problems


def _key_problem(key: str, value: Any) -> tuple[str, str] | None:
    if key not in KEYS:
        right = meant(key, KEYS)
        return f"unknown key {key!r}", (
            f"did you mean {right}?" if right else f"remove {key!r}; an alias has {', '.join(KEYS[:-1])}"
        )
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
