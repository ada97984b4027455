"""Nova's provider.yaml: inventories and traits that a host's nova-compute adds to its own provider in Placement.

Nova reads the file when it starts, and does not start when anything in it is wrong.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field

from ruamel.yaml import YAML
from ruamel.yaml.scalarstring import SingleQuotedScalarString

COMPUTE_NODE = "$COMPUTE_NODE"
"""Nova's placeholder for the provider of the nova-compute that reads the file."""


@dataclass(frozen=True)
class ProviderConfig:
    """Inventories and traits that are added to one host's provider. Totals are in the unit of their class."""

    host: str
    inventories: Mapping[str, int] = field(default_factory=dict)
    """Resource class -> total. 0 becomes an inventory that is all reserved: Placement takes no total of 0, and no class
    that is in use may go, or nova-compute does not start."""
    traits: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.inventories and not self.traits


def render_provider_config(config: ProviderConfig, provider: str = COMPUTE_NODE) -> str:
    """Return the file. `provider` names another provider than that of the nova-compute that reads the file."""
    if config.empty:
        return ""
    identification = {"uuid" if provider == COMPUTE_NODE else "name": provider}
    entry: dict[str, object] = {"identification": identification}
    additional = [{name: _inventory(total)} for name, total in config.inventories.items()]
    if additional:
        entry["inventories"] = {"additional": additional}
    if config.traits:
        entry["traits"] = {"additional": list(config.traits)}
    text = io.StringIO()
    yaml = YAML(typ="rt", pure=True)
    yaml.default_flow_style = False
    yaml.dump({"meta": {"schema_version": SingleQuotedScalarString("1.0")}, "providers": [entry]}, text)
    return text.getvalue()


def _inventory(total: int) -> dict[str, object]:
    # All fields: what is left out here gets Placement's default, and max_unit's is 2**31 - 1.
    return {
        "total": max(total, 1),
        "reserved": 0 if total else 1,
        "min_unit": 1,
        "max_unit": max(total, 1),
        "step_size": 1,
        "allocation_ratio": 1.0,
    }
