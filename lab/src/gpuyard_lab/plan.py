"""The plan of a lab: its hosts, and the options that a site compiles to. Everything a lab takes from outside is in
it."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from gpuyard.model.host import Inventory
from gpuyard.model.pci import PciFunction
from gpuyard_lab.errors import LabError
from gpuyard_lab.files import write_json

EXAMPLE_SITE = Path(__file__).parent / "site.yaml"
"""The site of a lab that was never given another."""

IMAGE = "tiny"
"""The image of the lab's own servers."""
SILENT = "\n[pci]\nreport_in_placement = false\n"


@dataclass(frozen=True)
class LabMdevType:
    """A kind of vGPU that a function can make: how many it can make itself, and how many its whole card can (None: not
    recorded)."""

    name: str
    title: str
    units: int
    most: int | None = None


@dataclass(frozen=True)
class LabDevice:
    """One PCI function, with the names and values that Nova's libvirt driver reports it with."""

    address: str
    vendor_id: str
    product_id: str
    dev_type: str = "type-PCI"
    numa_node: int | None = None
    parent_addr: str | None = None
    """The physical function of a virtual one."""
    mdev_types: tuple[LabMdevType, ...] = ()


@dataclass(frozen=True)
class LabHost:
    """One hypervisor of the lab. Memory in MiB, disk in GiB."""

    name: str
    cpus: int
    memory_mib: int
    disk_gib: int
    pci: tuple[LabDevice, ...] = ()
    """All its PCI functions; Nova takes from them what its ``device_spec`` lines name."""
    config: str = ""
    """Its own options of nova-compute, as an ini file."""
    provider_config: str = ""
    """Its provider.yaml, for the provider that has the hypervisor's name."""
    node: str = ""
    """The name of its hypervisor, where that is not the host's: often it has a domain."""

    @property
    def hypervisor(self) -> str:
        return self.node or self.name


@dataclass(frozen=True)
class LabPlan:
    """The desired state of a lab. The texts are ini files, added to the lab's own configuration."""

    hosts: tuple[LabHost, ...]
    nova: str = ""
    """For every Nova service."""
    scheduler: str = ""
    """For nova-scheduler alone."""
    placement: str = ""
    image: dict[str, Any] = field(default_factory=dict)
    """The site's definition of the image that servers are started from, as JSON; {} when it has none."""
    release: str = ""
    """The release of OpenStack that the site is of; empty when a program handed its hosts in."""

    def save(self, path: Path) -> None:
        write_json(path, asdict(self))

    @classmethod
    def load(cls, path: Path) -> LabPlan:
        """Read the plan that save() wrote. Raises LabError when it cannot be read."""
        try:
            values: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            hosts = values.pop("hosts")
            return cls(hosts=tuple(_host(host) for host in hosts), **values)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise LabError(
                f"{path}: cannot be read as the plan of a lab ({error}); name the site with --site"
            ) from None


def _host(values: dict[str, Any]) -> LabHost:
    pci = values.pop("pci")
    return LabHost(pci=tuple(_device(device) for device in pci), **values)


def _device(values: dict[str, Any]) -> LabDevice:
    types = values.pop("mdev_types", ())  # a plan of before has none
    return LabDevice(mdev_types=tuple(LabMdevType(**kind) for kind in types), **values)


def plan_of_site(path: Path) -> LabPlan:
    """Return the plan for a site file: its recorded hosts, with the options that it compiles to.

    Raises what ``load_site`` raises: SiteError with all problems of the file, UsageError when it cannot be read.
    """
    from gpuyard.site.load import load_site
    from gpuyard.site.options import render_ini
    from gpuyard.site.provider_config import render_provider_config

    site = load_site(path)
    compiled = site.compiled

    def ini(service: str, host: str | None = None) -> str:
        return render_ini(compiled.options_of(service, host).options)

    return LabPlan(
        hosts=tuple(
            lab_host(
                name,
                inventory,
                ini("nova-compute", name),
                # Not for "the provider of whichever nova-compute reads it": in a lab they share a process.
                render_provider_config(compiled.provider_config_of(name), name),
            )
            for name, inventory in site.inventories.items()
        ),
        # The lab has its computes report, which this site's do not (yet).
        nova=ini("nova") + (SILENT if compiled.site.pci_in_placement == "off" else ""),
        scheduler=ini("nova-scheduler"),
        placement=ini("placement"),
        image=site.site.images[IMAGE].model_dump(mode="json", exclude_defaults=True)
        if IMAGE in site.site.images
        else {},
        release=site.site.release,
    )


def lab_host(name: str, inventory: Inventory, config: str, provider_config: str = "") -> LabHost:
    """Return the hypervisor that a recording stands for."""
    facts = inventory.facts
    return LabHost(
        name=name,
        cpus=facts.cpus,
        memory_mib=facts.memory_mib,
        disk_gib=facts.disk_gib,
        pci=tuple(device(function) for function in inventory.functions),
        config=config,
        provider_config=provider_config,
    )


def device(function: PciFunction) -> LabDevice:
    """Return a PCI function the way Nova gets it from libvirt."""
    return LabDevice(
        address=function.address,
        vendor_id=function.vendor_id,
        product_id=function.product_id,
        dev_type=function.device_type.value,
        numa_node=function.numa_node,
        parent_addr=function.physical_function,
        mdev_types=tuple(LabMdevType(kind.name, kind.title, kind.units, kind.most) for kind in function.mdev_types),
    )
