"""The flat mappings that steps compare and print: ``property hw:x``, ``access demo``, ``host gpu-1``."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpuyard.model.plan import Step, Verb

PROPERTY = "property "
ACCESS = "access "
HOST = "host "


def with_prefix(prefix: str, values: Mapping[str, Any] | Iterable[str]) -> dict[str, Any]:
    """Names get the prefix; those of a set get the value ``yes``."""
    items = values.items() if isinstance(values, Mapping) else ((name, "yes") for name in values)
    return {prefix + name: value for name, value in items}


def part(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The way back."""
    return {key[len(prefix) :]: value for key, value in flat.items() if key.startswith(prefix)}


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> tuple[str, ...]:
    """One line per value that differs."""
    return Step(Verb.UPDATE, "", "", "", before, after).changes
