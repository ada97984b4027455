"""The input and the result of adopting a cloud: facts that were read, options of the operator, and the site."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from gpuyard.model.finding import Finding
from gpuyard.site.compile import CompiledSite
from gpuyard.site.problems import Place


@dataclass(frozen=True)
class GpuServer:
    """A server whose flavor asks for PCI devices, and that is on a host."""

    id: str
    name: str
    project: str
    host: str
    """As Nova names it: the host of the nova-compute service."""
    flavor: str
    asks: str
    """The ``pci_passthrough:alias`` that it was made with."""
    addresses: tuple[str, ...] | None = None
    """The PCI functions that it holds on its host; None where Placement does not know them."""

    @property
    def title(self) -> str:
        return f"server {self.name} ({self.id}) of project {self.project}"


@dataclass(frozen=True)
class CloudFacts:
    """The facts of a cloud besides the objects that a site manages."""

    servers: tuple[GpuServer, ...] = ()
    reported: Mapping[str, frozenset[str]] = field(default_factory=dict)
    """Host -> addresses of the PCI functions that Placement has a provider for."""
    swap: Mapping[str, int] = field(default_factory=dict)
    """Name of a flavor -> its swap in MiB, where it has one."""
    microversion: str = ""
    """The newest that Nova's API speaks, ``2.104``; empty when it does not say."""


@dataclass(frozen=True)
class AdoptOptions:
    """The operator's choices for the site that is to be written."""

    site: str
    release: str
    recordings: Mapping[str, str]
    """Host -> the file of its recording, as it shall stand in the site file."""
    all_flavors: bool = False
    """Also flavors that ask for no GPU."""


@dataclass(frozen=True)
class Adoption:
    """A site that describes a cloud as it is."""

    document: Mapping[str, Any]
    """The site file as plain data."""
    comments: Mapping[Place, str]
    """The comment above each key of the document that has one."""
    compiled: CompiledSite
    report: tuple[Finding, ...]
    """Findings that the operator should read before going on; the codes are those of `report.SECTIONS`."""
