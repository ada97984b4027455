"""Schema of ``site.yaml``. The JSON Schema for editors is generated from these types and committed.

Sizes are text with a unit and become MiB or GiB here; unknown keys are errors, so that no wish is silently ignored.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Annotated, Any, Literal

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    WithJsonSchema,
    model_validator,
)

from gpuyard.model.booking import Rules
from gpuyard.model.gpu import GpuKind
from gpuyard.nova.release import NEWEST, ReleaseName
from gpuyard.site.accounting_rules import PRICE, BudgetRules, Price, SiteAccounting
from gpuyard.site.booking_rules import BookingRules, SiteBooking, resolve
from gpuyard.site.deploy_rules import SiteDeploy
from gpuyard.site.gateway_rules import SiteGateway
from gpuyard.site.health_rules import SiteHealth
from gpuyard.site.history_rules import SiteHistory
from gpuyard.site.image_rules import ImageBuild
from gpuyard.site.runner_rules import SiteRunners
from gpuyard.site.strict import Strict

UNITS_MIB = {"MiB": 1, "GiB": 1024, "TiB": 1024 * 1024}
SIZE = re.compile(r"^(\d{1,9})\s*([A-Za-z]*)$")


def parse_size_mib(value: object) -> int:
    """Parse a size in MiB: ``"64 GiB"`` -> 65536. Raises ValueError that says what to write instead."""
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
    """Parse a size in GiB, for what OpenStack only takes in whole GiB: disks. Raises ValueError."""
    mib = parse_size_mib(value)
    if mib % 1024:
        raise ValueError(f"{value!r} is not a whole number of GiB, and disks are; write '{-(-mib // 1024)} GiB'")
    return mib // 1024


_SIZE_SCHEMA = {"type": "string", "pattern": r"^\d+\s*(MiB|GiB|TiB)$", "examples": ["64 GiB"]}
Mib = Annotated[int, BeforeValidator(parse_size_mib), WithJsonSchema(_SIZE_SCHEMA)]
Gib = Annotated[int, BeforeValidator(parse_size_gib), WithJsonSchema(_SIZE_SCHEMA)]

ModelIds = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{4}:[0-9a-f]{4}$")]
SharedType = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=100)]
PoolName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=40)]
# Nova takes letters, digits and . - _ space in flavor names and ids; a name here is both, so no spaces.
FlavorName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=250)]
Count = Annotated[int, Field(ge=1, le=64, strict=True)]


class Amounts(Strict):
    """CPU, RAM and disk of a host. RAM in MiB, disk in GiB."""

    vcpus: Annotated[int, Field(ge=0, strict=True)] = 0
    ram: Mib = 0
    disk: Gib = 0


class Overhead(Amounts):
    """What a host needs for itself."""

    ram: Mib = 512  # Nova's default


class Reserve(Amounts):
    """What servers without GPUs cannot take from a host: for the host as a whole, or for each of its GPU slots."""

    per_gpu: bool = Field(
        False, description="The amounts are for each GPU that a server can have alone; for the whole host otherwise."
    )


CpuSet = Annotated[str, StringConstraints(pattern=r"^\^?\d{1,5}(-\d{1,5})?(,\^?\d{1,5}(-\d{1,5})?)*$")]
HostName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=200)]
CustomName = Annotated[str, StringConstraints(pattern=r"^CUSTOM_[A-Z0-9_]+$", max_length=255)]


class Host(Strict):
    """A hypervisor: its GPUs, and how its CPU, RAM and disk are shared between servers with and without GPUs."""

    recording: str = Field(description="File that 'gpuyard host record' wrote on this host, relative to this file.")
    reserve: (
        Annotated[
            Annotated[Reserve, Tag("amounts")] | Annotated[Literal["largest-flavors"], Tag("word")],
            Discriminator(lambda value: "word" if isinstance(value, str) else "amounts"),
        ]
        | None
    ) = Field(
        None,
        description="What is kept for servers with GPUs: amounts, or 'largest-flavors' for as much as the largest "
        "flavors of its GPUs need.",
    )
    overhead: Overhead = Field(
        Overhead(),
        description="What the host itself needs: Nova's reserved_host_cpus, _memory_mb and _disk_mb.",
    )
    disk: Gib | None = Field(
        None, description="What servers have there, where it is not the recorded root disk: a disk of their own, Ceph."
    )
    cpu_allocation_ratio: Annotated[float, Field(gt=0, le=1000, allow_inf_nan=False)] | None = Field(
        None, description="Servers' vCPUs for each CPU; left to Placement when left out, and 4.0 with a reserve."
    )
    cpu_shared_set: CpuSet | None = Field(None, description="CPUs for shared vCPUs, as in '0-23'.")
    cpu_dedicated_set: CpuSet | None = Field(None, description="CPUs for flavors with hw:cpu_policy=dedicated.")
    extra_device_specs: list[dict[str, str]] = Field(
        default_factory=list, description="Further entries of Nova's device_spec, for devices that are no GPUs."
    )
    inventories: dict[CustomName, Annotated[int, Field(ge=0, le=2**31 - 1, strict=True)]] = Field(
        default_factory=dict, description="Further inventories of the host's provider.yaml: class -> total."
    )
    traits: list[CustomName] = Field(default_factory=list, description="Further traits of the host's provider.yaml.")


class Pool(Strict):
    """GPUs of one kind over all hosts: what people ask for."""

    models: list[ModelIds] = Field(min_length=1, description="PCI ids of the models, vendor:product in lower-case hex.")
    kind: GpuKind = Field(
        GpuKind.PASSTHROUGH,
        description="passthrough: each server has a whole GPU. vgpu: a share of one that its driver makes (a mediated "
        "device). vf: a virtual function of one (SR-IOV).",
    )
    type: SharedType | None = Field(
        None,
        description="What a share is. Of vgpu the mdev type, as 'nvidia-560'; of vf, where NVIDIA's driver gives "
        "virtual functions away, the number of the vGPU type that was chosen for them, as '1414'.",
    )
    hosts: list[str] | None = Field(None, description="Only GPUs of these hosts; all hosts when left out.")
    alias: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")] | None = Field(
        None, description="Name of Nova's alias, which flavors ask for; the pool's name when left out."
    )
    projects: list[str] | None = Field(
        None, description="Only these projects see the pool's flavors, but for flavors that name their own."
    )
    numa: Literal["legacy", "preferred", "required", "socket"] | None = Field(
        None, description="How near a GPU must be to its server's CPUs; Nova's default is 'legacy'."
    )
    managed: bool | None = Field(
        None, description="False: the host has bound the GPUs to their VFIO driver, and libvirt must not do it again."
    )
    live_migratable: bool = Field(False, description="The GPUs' VFIO driver can migrate them while they are in use.")
    one_time_use: bool = Field(
        False, description="After each server a GPU stays reserved until somebody has scrubbed and released it."
    )
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
    booking: BookingRules | None = Field(None, description="Rules of bookings of this pool, before the site's.")
    price: Price | None = PRICE

    @property
    def is_shared(self) -> bool:
        """Whether several servers share one GPU."""
        return self.kind is not GpuKind.PASSTHROUGH

    @property
    def counted_by_alias(self) -> bool:
        """Whether flavors ask for its GPUs by an alias, so that limits need a class of their own to count them."""
        return self.kind is not GpuKind.VGPU


class Flavor(Strict):
    """A Nova flavor. Its name is its id too, so that a flavor that is made again keeps both."""

    vcpus: Annotated[int, Field(ge=1, le=2**31 - 1, strict=True)]
    ram: Mib
    disk: Gib = Field(description="Root disk.")
    ephemeral: Gib = 0
    gpus: dict[PoolName, Count] = Field(default_factory=dict, description="Pool name and number of GPUs.")
    same_group: bool = Field(
        False, description="The GPUs must be a whole IOMMU group (a pair that shares one), not any free ones of a host."
    )
    projects: list[str] | None = Field(
        None, description="Private to these projects; its pool's 'projects' when left out, nobody's when empty."
    )
    aggregates: list[str] = Field(default_factory=list, description="Runs only on hosts of one of these aggregates.")
    properties: dict[str, str] = Field(default_factory=dict, description="Further extra specs, as in 'hw:...'.")
    foreign: bool = Field(
        False, description="Somebody else's: it must be as it says here, and gpuyard never changes it."
    )

    @model_validator(mode="after")
    def _one_pool(self) -> Flavor:
        if len(self.gpus) > 1:
            raise ValueError("a flavor takes GPUs of one pool; make one flavor for each pool")
        if self.same_group and sum(self.gpus.values()) < 2:
            raise ValueError("same_group needs 'gpus' with two or more of a pool")
        return self


def _unlimited_or(parse: Callable[[object], int]) -> Callable[[object], int]:
    return lambda value: -1 if value == -1 else parse(value)


_LIMIT_SCHEMA = {"anyOf": [_SIZE_SCHEMA, {"const": -1}]}
Most = Annotated[int, Field(ge=-1, strict=True)]
MostMib = Annotated[int, BeforeValidator(_unlimited_or(parse_size_mib)), WithJsonSchema(_LIMIT_SCHEMA)]
MostGib = Annotated[int, BeforeValidator(_unlimited_or(parse_size_gib)), WithJsonSchema(_LIMIT_SCHEMA)]


class Limits(Strict):
    """Defaults for every project: Keystone's registered limits. What is left out is left as it is in Keystone."""

    servers: Most | None = Field(default=None, description="-1 is no limit.")
    vcpus: Most | None = None
    ram: MostMib | None = None
    disk: MostGib | None = None


class Project(Limits):
    """What a project may use at once. What is left out: the default of every project; of GPUs, none."""

    gpus: dict[PoolName, Annotated[int, Field(ge=0, strict=True)]] = Field(
        default_factory=dict,
        description="Most GPUs of a pool at once. A pool that is not named here: none. Where GPUs can be booked: most "
        "without a booking.",
    )
    booking: BookingRules | None = Field(None, description="Rules of bookings of this project, before its pools'.")
    budget: BudgetRules | None = Field(
        None, description="GPU-hours that it may have; that of 'accounting' if it has one."
    )


AggregateName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=255)]


class Aggregate(Strict):
    """A host aggregate of Nova: hosts that certain flavors run on."""

    hosts: list[str] = Field(min_length=1)
    availability_zone: str | None = None
    properties: dict[str, str] = Field(default_factory=dict, description="Further metadata.")


class Image(Strict):
    """Properties of an image in Glance, and how it is made. What is not stated here is left as it is."""

    hide_hypervisor: bool = Field(False, description="img_hide_hypervisor_id=true.")
    big_bars: bool = Field(False, description="hw_machine_type=q35 and hw_firmware_type=uefi, for GPUs with big BARs.")
    properties: dict[str, str] = Field(default_factory=dict, description="Further properties, as in 'hw_...'.")
    build: ImageBuild | None = Field(
        None, description="'gpuyard image build' makes it like this. Its properties are set when it is uploaded."
    )

    @property
    def wanted_properties(self) -> dict[str, str]:
        """What Glance is to have."""
        properties = {"img_hide_hypervisor_id": "true"} if self.hide_hypervisor else {}
        if self.big_bars:
            properties |= {"hw_machine_type": "q35", "hw_firmware_type": "uefi"}
        return {**properties, **self.properties}


class Site(Strict):
    """One GPU cloud."""

    site: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$", max_length=60)] = Field(
        description="Name of the site; what gpuyard makes in OpenStack is tagged with it."
    )
    release: ReleaseName = Field(NEWEST, description="OpenStack release of the cloud.")
    pci_in_placement: Literal["off", "report", "on"] = Field(
        "on",
        description="How far PCI devices in Placement are rolled out: 'off'; 'report' (nova-computes report GPUs, the "
        "scheduler does not yet look); 'on'.",
    )
    gpu_quotas: bool = Field(True, description="Count GPUs against projects' limits in Keystone.")
    exclusive: bool = Field(
        False, description="The hosts take only servers of this site's flavors. Hosts with a 'reserve' make it so."
    )
    extra_filters: list[Annotated[str, StringConstraints(pattern=r"^[A-Za-z]+(Filter|Isolation)$")]] = Field(
        default_factory=list, description="Scheduler filters besides Nova's default ones and those that GPUs need."
    )
    extra_aliases: list[dict[str, str]] = Field(
        default_factory=list, description="Further aliases of Nova, for devices that are no GPUs."
    )
    hypervisors: Annotated[int, Field(ge=1, strict=True)] | None = Field(
        None, description="Hypervisors of the whole cloud, where it has more than are named below."
    )
    hosts: dict[HostName, Host] = Field(min_length=1)
    pools: dict[PoolName, Pool] = Field(min_length=1)
    flavors: dict[FlavorName, Flavor] = Field(default_factory=dict)
    aggregates: dict[AggregateName, Aggregate] = Field(default_factory=dict)
    images: dict[str, Image] = Field(default_factory=dict, description="By name, as Glance has them.")
    projects: dict[str, Project] = Field(default_factory=dict)
    limits: Limits = Limits()
    booking: SiteBooking | None = Field(None, description="GPUs can be booked, by these rules.")
    runners: SiteRunners | None = Field(None, description="GitHub jobs get GPU servers; needs 'booking'.")
    health: SiteHealth | None = Field(None, description="How each GPU is, and what follows; needs 'booking'.")
    history: SiteHistory | None = Field(
        None, description="How long who had which GPU is kept; needs 'booking', with which it is kept anyhow."
    )
    accounting: SiteAccounting | None = Field(
        None, description="Prices, budgets, and who else is asked before a booking is made; needs 'booking'."
    )
    gateway: SiteGateway | None = Field(
        None, description="A public machine in front of the cloud: what 'gpuyard gateway render' makes."
    )
    deploy: SiteDeploy | None = Field(
        None, description="The machines, from bare ones to a cloud: 'gpuyard deploy' prepares them and runs Kolla."
    )

    @model_validator(mode="after")
    def _hypervisors_are_deployed(self) -> Site:
        if self.deploy is not None:
            computes = self.deploy.with_role("compute")
            if lost := [name for name in self.hosts if name not in computes]:
                raise ValueError(
                    f"deploy.hosts has no {lost[0]} with the role compute, and it is one of the site's hosts; add it"
                )
        return self

    def rules(self, pool: str, project: str = "") -> Rules:
        """What holds for bookings of a project in a pool."""
        own = self.projects.get(project)
        return resolve(site=self.booking, pool=self.pools[pool].booking, project=own.booking if own else None)

    def budget(self, project: str) -> BudgetRules | None:
        """What a project may use and book; None: as much as it gets."""
        own = self.projects.get(project)
        if own is not None and own.budget is not None:
            return own.budget
        return self.accounting.budget if self.accounting else None

    @property
    def isolated(self) -> bool:
        """Whether the hosts take only servers of the site's flavors. A reserve means nothing without it."""
        return self.exclusive or any(host.reserve is not None for host in self.hosts.values())

    @property
    def own_projects(self) -> frozenset[str]:
        """Names of those whose servers gpuyard itself starts."""
        acceptance = self.health.acceptance if self.health else None
        places = (self.runners, acceptance)
        return frozenset(place.project for place in places if place is not None and place.project)


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema of site.yaml, as committed in docs/reference/site.schema.json."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **Site.model_json_schema()}
