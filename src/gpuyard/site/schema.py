"""What may stand in ``site.yaml``. The JSON Schema for editors is generated from these types and committed.

Sizes are text with a unit and become MiB or GiB here; unknown keys are errors, so that no wish is silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, StringConstraints, WithJsonSchema, model_validator

UNITS_MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}
SIZE = re.compile(r"^(\d+)\s*([A-Za-z]*)$")


def parse_size_mib(value: object) -> int:
    """``"64 GiB"`` -> 65536. Raises ValueError that says what to write instead."""
    text = str(value).strip()
    match = SIZE.match(text)
    if not match:
        raise ValueError(f"{text!r} is not a size; write a whole number and a unit, as in '64 GiB'")
    number, unit = match.groups()
    if unit in UNITS_MIB:
        return int(number) * UNITS_MIB[unit]
    if not unit:
        raise ValueError(f"{text} has no unit; write '{text} MiB' or '{text} GiB'")
    binary = {"k": "MiB", "m": "MiB", "g": "GiB", "t": "TiB"}.get(unit[0].lower(), "GiB")
    raise ValueError(f"{text!r} has the unit {unit!r}; OpenStack counts in binary units: write '{number} {binary}'")


def parse_size_gib(value: object) -> int:
    """As parse_size_mib, for what OpenStack only takes in whole GiB: disks."""
    mib = parse_size_mib(value)
    if mib % 1024:
        raise ValueError(f"{value!r} is not a whole number of GiB, and disks are; write '{-(-mib // 1024)} GiB'")
    return mib // 1024


_SIZE_SCHEMA = {"type": "string", "pattern": r"^\d+\s*(MiB|GiB|TiB)$", "examples": ["64 GiB"]}
Mib = Annotated[int, BeforeValidator(parse_size_mib), WithJsonSchema(_SIZE_SCHEMA)]
Gib = Annotated[int, BeforeValidator(parse_size_gib), WithJsonSchema(_SIZE_SCHEMA)]

ModelIds = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)]
# Nova takes letters, digits and . - _ space in flavor names and ids; a name here is both, so no spaces.
FlavorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=250)]
Count = Annotated[int, Field(ge=1, le=64, strict=True)]


class Strict(BaseModel):
    """Frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Host(Strict):
    """A hypervisor with GPUs."""

    recording: str = Field(description="File that 'gpuyard host record' wrote on this host, relative to this file.")


class Pool(Strict):
    """GPUs of one kind over all hosts: what people ask for."""

    models: list[ModelIds] = Field(min_length=1, description="PCI ids of the models, vendor:product in lower-case hex.")
    hosts: list[str] | None = Field(None, description="Only GPUs of these hosts; all hosts when left out.")
    hide_hypervisor: bool = Field(
        False,
        description="Do not show guests that they are VMs: NVIDIA's drivers before 465 want it so on consumer cards "
        "(on Windows: code 43).",
    )
    big_bars: bool = Field(
        False,
        description="GPUs with BARs of 32 GiB and more: give guests the host's address width. Their images need "
        "hw_machine_type=q35 and hw_firmware_type=uefi, which a flavor cannot say.",
    )


class Flavor(Strict):
    """A Nova flavor. Its name is its id too, so that a flavor that is made again keeps both."""

    vcpus: Annotated[int, Field(ge=1, strict=True)]
    ram: Mib
    disk: Gib = Field(description="Root disk.")
    ephemeral: Gib = 0
    gpus: dict[PoolName, Count] = Field(default_factory=dict, description="Pool name and number of GPUs.")
    same_group: bool = Field(
        False, description="The GPUs must be a whole IOMMU group (a pair that shares one), not any free ones of a host."
    )
    projects: list[str] | None = Field(
        None, description="Private to these projects; public when left out, nobody's when empty."
    )
    properties: dict[str, str] = Field(default_factory=dict, description="Further extra specs, as in 'hw:...'.")

    @model_validator(mode="after")
    def _one_pool(self) -> Flavor:
        if len(self.gpus) > 1:
            raise ValueError("a flavor takes GPUs of one pool; make one flavor for each pool")
        if self.same_group and sum(self.gpus.values()) < 2:
            raise ValueError("same_group needs 'gpus' with two or more of a pool")
        return self


class Project(Strict):
    """What a project may use."""

    gpus: dict[PoolName, Annotated[int, Field(ge=0, strict=True)]] = Field(
        default_factory=dict, description="Most GPUs of a pool at once. A pool that is not named here: none."
    )


def _unlimited_or(parse: Callable[[object], int]) -> Callable[[object], int]:
    return lambda value: -1 if value == -1 else parse(value)


_LIMIT_SCHEMA = {"anyOf": [_SIZE_SCHEMA, {"const": -1}]}


class Limits(Strict):
    """Defaults for every project: Keystone's registered limits. What is left out is left as it is in Keystone."""

    servers: Annotated[int, Field(ge=-1, strict=True)] | None = Field(default=None, description="-1 is no limit.")
    vcpus: Annotated[int, Field(ge=-1, strict=True)] | None = None
    ram: Annotated[int, BeforeValidator(_unlimited_or(parse_size_mib)), WithJsonSchema(_LIMIT_SCHEMA)] | None = None
    disk: Annotated[int, BeforeValidator(_unlimited_or(parse_size_gib)), WithJsonSchema(_LIMIT_SCHEMA)] | None = None


class Site(Strict):
    """One GPU cloud."""

    site: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=60)] = Field(
        description="Name of the site; what gpuyard makes in OpenStack is tagged with it."
    )
    release: Literal["2026.2"] = Field("2026.2", description="OpenStack release of the cloud.")
    hosts: dict[str, Host] = Field(min_length=1)
    pools: dict[PoolName, Pool] = Field(min_length=1)
    flavors: dict[FlavorName, Flavor] = Field(default_factory=dict)
    projects: dict[str, Project] = Field(default_factory=dict)
    limits: Limits = Limits()


def json_schema() -> dict[str, Any]:
    """The JSON Schema of site.yaml, as committed in docs/reference/site.schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Site.model_json_schema()}
