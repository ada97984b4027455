"""Observed state of a deployment: its hosts, Kolla's folder, the cloud, the service. None is what nobody has
observed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpuyard.host.network import HostInterface


@dataclass(frozen=True)
class HostState:
    """One host. With `problem` nothing else is known of it."""

    problem: str = ""
    """Why it did not answer, and what to do."""
    boot_id: str = ""
    here: bool = False
    """Whether it is the machine that gpuyard runs on."""
    name: str = ""
    """The name it calls itself."""
    interfaces: tuple[HostInterface, ...] = ()
    interfaces_problem: str = ""
    """Why they are not known."""
    changes: tuple[str, ...] = ()
    """Steps with which GPUs would be made ready to be given away."""
    refusals: tuple[str, ...] = ()
    """Why these steps cannot be done."""
    reboot_later: tuple[str, ...] = ()
    """Reasons for which those steps will need a reboot."""
    pending: tuple[str, ...] = ()
    """Changes that wait for a reboot now."""
    restart: bool = False
    """Whether its packages ask for a reboot."""
    restart_problem: str = ""
    """Why that is not known, and what to do."""
    given: tuple[str, ...] = ()
    """Addresses of functions that go to VMs."""
    faults: tuple[str, ...] = ()
    """Why VMs cannot have them: of VFIO, and of what differs from the recording."""
    engine: str = ""
    """The container engine that is there."""
    engine_problem: str = ""
    containers: frozenset[str] = frozenset()
    """Names of containers that run."""
    stopped: frozenset[str] = frozenset()
    """Names of containers that are there and do not run."""
    hypervisor: tuple[str, ...] = ()
    """Processes that are servers, or start some."""
    releases: frozenset[str] = frozenset()
    """Releases of OpenStack, by the tags of their images, as far as Kolla's own tags name one."""


@dataclass(frozen=True)
class KollaState:
    """Kolla's folder and its programs."""

    problem: str = ""
    """Why kolla-ansible cannot be used, and what to do."""
    machines: tuple[str, ...] = ()
    """Files of inventory and variables that differ."""
    machine_refusals: tuple[str, ...] = ()
    passwords: bool = False
    """Whether each password has been made."""
    passwords_refusal: str = ""
    """Why those that are missing cannot be made, and what to do."""
    passwords_mode: str = ""
    """Mode of their file, where everybody may read or write it."""
    rendered: tuple[str, ...] | None = ()
    """Files of the site's options that differ. None: cannot be known before the inventory is there."""
    render_refusals: tuple[str, ...] = ()
    collection: bool = False
    """Whether Ansible has Kolla's own collection."""
    collection_current: bool = False
    """Whether it was installed by what this release of Kolla requires."""
    credentials: bool = False
    """Whether the administrator's clouds.yaml is there."""
    bridges_hypervisors: bool = True
    """Whether Kolla may put the external interface of hosts without the role network into a bridge, too."""
    digest: str = ""
    """Digest of everything that is deployed from."""


@dataclass(frozen=True)
class OpenStackState:
    """The cloud. With `problem` nothing else is known."""

    problem: str = ""
    reads_limits: bool = False
    """Whether Nova's user may read limits in Keystone."""
    steps: tuple[str, ...] = ()
    """Steps that 'site apply' would take."""
    refusals: tuple[str, ...] = ()
    images: Mapping[str, bool] = field(default_factory=dict)
    """Image that the site builds -> whether servers get one by its name."""


@dataclass(frozen=True)
class ServiceState:
    """The portal as a service of this machine."""

    problem: str = ""
    changes: tuple[str, ...] = ()
    """Files that differ."""
    active: bool = False
    waiting: tuple[str, ...] | None = None
    """GPUs that are kept back until they are accepted. None: it does not serve, so nobody knows."""


@dataclass(frozen=True)
class DeploymentState:
    """The observed state of everything."""

    hosts: Mapping[str, HostState] = field(default_factory=dict)
    recorded: frozenset[str] = frozenset()
    """Hosts whose recordings are there."""
    site_problem: str = ""
    """Why the site does not compile, once all recordings are there."""
    kolla: KollaState | None = None
    cloud: OpenStackState | None = None
    service: ServiceState | None = None
