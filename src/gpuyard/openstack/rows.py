"""Typed rows of Nova's and Keystone's lists, parsed once. Placement's are `Provider` and `Stock` of model/world.py."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Self

from gpuyard.model.world import AGENT_WORD, SITE_KEY, HostService, Provider, Server, Stock
from gpuyard.nova.alias_spec import takes_devices
from gpuyard.nova.request import NovaFlavor
from gpuyard.nova.server_states import is_settled

ZONE = "availability_zone"
DETAILS = 4000
"""Characters of a traceback's end that are kept: the exception stands there."""


@dataclass(frozen=True)
class ServerRow:
    """A server of any project."""

    id: str
    name: str
    status: str
    task: str | None
    host: str | None
    project: str
    """The project's id, as `user` is the user's."""
    user: str
    flavor: NovaFlavor
    """The flavor as it was when the server got it."""
    created: datetime | None
    launched: datetime | None
    updated: str
    fault: str
    """Nova's message, for a server in ERROR."""
    agent: str = ""
    """AGENT_WORD of its metadata."""
    terminated: datetime | None = None
    """The end of a server that is deleted."""
    from_volume: bool = False
    """Whether it has no image, because its root disk is a volume."""
    ours: bool = False
    """Whether its metadata says that gpuyard itself has made it, which its owner could write, too."""
    fault_details: str = ""
    """The end of the fault's details, which admins get: Nova cuts its message off at 255 characters, and so what
    QEMU said."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        return cls(
            id=row["id"],
            name=row["name"],
            status=row["status"],
            task=row["OS-EXT-STS:task_state"],
            host=row["OS-EXT-SRV-ATTR:host"],
            project=row["tenant_id"],
            user=row["user_id"],
            flavor=flavor_of({"id": "", "name": row["flavor"]["original_name"], **row["flavor"]}),
            created=moment(row["created"]),
            launched=moment(row["OS-SRV-USG:launched_at"]),
            updated=row["updated"],
            fault=row.get("fault", {}).get("message", ""),
            agent=row.get("metadata", {}).get(AGENT_WORD, ""),
            terminated=moment(row.get("OS-SRV-USG:terminated_at")),
            from_volume=row.get("image") == "",
            ours=SITE_KEY in row.get("metadata", {}),
            fault_details=row.get("fault", {}).get("details", "")[-DETAILS:],
        )

    @property
    def changed(self) -> datetime | None:
        return moment(self.updated)

    @property
    def settled(self) -> bool:
        return is_settled(self.status, self.task)

    @property
    def asks_devices(self) -> bool:
        """Whether its flavor asks for PCI devices by an alias, or for vGPUs by their class."""
        return takes_devices(self.flavor.extra_specs)

    def named(self, project: str, user: str) -> Server:
        """Return the server with the names that people know."""
        fault = "\n".join(filter(None, (self.fault, self.fault_details)))
        return Server(
            self.id, self.name, self.status, self.host, project, user, self.flavor.name, self.created, self.launched,
            self.user, self.project, self.task or "", self.agent, fault,
        )  # fmt: skip


@dataclass(frozen=True)
class ActionRow:
    """An action on a server."""

    action: str
    request: str
    started: datetime
    finished: datetime | None
    """The end of its last part or, while one is under way, the beginning of that: only its parts tell which it is."""
    failed: bool

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        started = moment(row["start_time"])
        assert started is not None
        return cls(
            row["action"], row["request_id"], started, moment(row["updated_at"]), bool(row["message"])
        )  # fmt: skip


def flavor_of(row: Mapping[str, Any]) -> NovaFlavor:
    """Parse a flavor as its list has it, or as a server carries it."""
    return NovaFlavor(
        id=row["id"],
        name=row["name"],
        vcpus=row["vcpus"],
        ram=row["ram"],
        disk=row["disk"],
        ephemeral=row["ephemeral"] if "ephemeral" in row else row["OS-FLV-EXT-DATA:ephemeral"],
        swap=int(row["swap"] or 0),
        public=row.get("os-flavor-access:is_public", True),
        disabled=row.get("OS-FLV-DISABLED:disabled", False),
        extra_specs=row.get("extra_specs", {}),
        description=row.get("description") or "",
    )


@dataclass(frozen=True)
class Hypervisor:
    """A machine as its nova-compute reports it. `id` is that of its root provider in Placement, too."""

    id: str
    host: str
    up: bool
    enabled: bool
    disabled_reason: str
    type: str
    busy: bool
    """Whether it has servers."""

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        service = row["service"]
        return cls(
            row["id"], service["host"], row["state"] == "up", row["status"] == "enabled",
            service["disabled_reason"] or "", row["hypervisor_type"], bool(row["running_vms"]),
        )  # fmt: skip


@dataclass(frozen=True)
class AggregateRow:
    """A host aggregate. Its zone is also in the metadata."""

    id: str
    uuid: str
    name: str
    hosts: frozenset[str]
    zone: str | None
    metadata: Mapping[str, str]

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        return cls(str(row["id"]), row["uuid"], row["name"], frozenset(row["hosts"]), row[ZONE], row["metadata"])


@dataclass(frozen=True)
class LimitRow:
    """One of Keystone's limits on what Nova counts."""

    id: str
    resource: str
    value: int
    project: str | None
    """The project's id; None for the registered limit of everybody, and for one of a whole domain."""
    domain: str | None
    description: str

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Self:
        value = row["resource_limit"] if "resource_limit" in row else row["default_limit"]
        return cls(
            row["id"], row["resource_name"], value, row.get("project_id"), row.get("domain_id"),
            row["description"] or "",
        )  # fmt: skip


def is_minimal(row: Mapping[str, Any]) -> bool:
    """Return whether a server is in a cell that does not answer: of such a one Nova knows an id, a project and, asked
    for it alone, a flavor (nova 34.0.0, api/openstack/compute/views/servers.py, `_show_from_down_cell`)."""
    return "name" not in row


def service_of(row: Mapping[str, Any]) -> HostService:
    """Parse a nova-compute; of one whose cell does not answer Nova says nothing but its host (nova 34.0.0,
    api/openstack/compute/services.py, `_get_service_detail`)."""
    if "state" not in row:
        return HostService(row["host"], False, False, silent=True)
    return HostService(
        row["host"], row["state"] == "up", row["status"] == "enabled", row.get("disabled_reason") or "",
        row.get("zone") or "", bool(row.get("forced_down")),
    )  # fmt: skip


def provider_of(row: Mapping[str, Any]) -> Provider:
    return Provider(row["uuid"], row["name"], row["root_provider_uuid"], row["parent_provider_uuid"])


def stock_of(row: Mapping[str, Any]) -> Stock:
    return Stock(row["total"], row["reserved"], row["allocation_ratio"], row["max_unit"])


def below(tree: Sequence[Provider], root: str) -> Iterable[Provider]:
    """Yield the providers below a root, parents before their children."""
    parents = {root}
    while parents:
        children = [provider for provider in tree if provider.parent_id in parents]
        yield from children
        parents = {child.id for child in children}


def moment(text: str | None) -> datetime | None:
    """Parse Nova's two spellings of UTC times."""
    if text is None:
        return None
    return datetime.fromisoformat(text.removesuffix("Z")).replace(tzinfo=UTC)
