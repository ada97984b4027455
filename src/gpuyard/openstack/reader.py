"""Reads typed rows from Nova, Placement and Keystone, several questions at a time."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import datetime
from typing import Any, ParamSpec, Self, TypeVar

from gpuyard.logs.request_context import carried
from gpuyard.model.errors import SilentCellError, UsageError
from gpuyard.model.world import DOMAIN, HostService, Provider, Stock
from gpuyard.nova.request import NovaFlavor
from gpuyard.nova.server_states import MigrationSeen
from gpuyard.openstack import rows
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.people import shown, shown_user
from gpuyard.openstack.rows import ActionRow, AggregateRow, Hypervisor, LimitRow, ServerRow

Given = ParamSpec("Given")
Key = TypeVar("Key")
Something = TypeVar("Something")

BAD_REQUEST, UNAUTHORIZED, FORBIDDEN, NOT_FOUND = 400, 401, 403, 404
RAISED = re.compile(r"raise (?:\w+\.)*(\w+)\(")
PAGE = 1000
PARALLEL = 6


class Reader:
    """Asks one cloud, PARALLEL questions at a time, until it is closed. Every question raises CloudError."""

    def __init__(self, api: CloudApi) -> None:
        self.api = api
        self._threads = ThreadPoolExecutor(PARALLEL, thread_name_prefix="observe")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._threads.shutdown()

    def later(self, ask: Callable[Given, Something], *args: Given.args, **named: Given.kwargs) -> Future[Something]:
        return self._threads.submit(carried(ask), *args, **named)

    def each(self, ask: Callable[[Key], Something], keys: Iterable[Key]) -> dict[Key, Something]:
        """Return the answer for each key; they are asked at the same time."""
        unique_keys = list(dict.fromkeys(keys))
        return dict(zip(unique_keys, self._threads.map(carried(ask), unique_keys), strict=True))

    def members(self, service: str, path: str, key: str, **query: object) -> list[dict[str, Any]]:
        return list(self.api.get(service, path, **query)[key])

    def pages(self, service: str, path: str, key: str, **query: object) -> Iterator[dict[str, Any]]:
        return self.api.pages(service, path, key, limit=PAGE, **query)

    # Nova.

    def servers(self, **query: object) -> tuple[ServerRow, ...]:
        """Return the servers of all projects.

        Those of a cell that does not answer are missing, and nothing says so: in a list that has pages or a filter
        Nova leaves them out (nova 34.0.0, api/openstack/compute/servers.py, `_is_cell_down_supported`), and one
        without pages ends after a thousand. `services` tells.
        """
        servers = self.pages("compute", "/servers/detail", "servers", all_tenants=1, **query)
        return tuple(ServerRow.of(row) for row in servers)

    def has_server(self, identity: str) -> bool:
        """Return whether Nova knows a server of that id, also one that it has deleted softly."""
        return unless_gone(lambda: bool(self.api.get("compute", f"/servers/{identity}")), False)

    def server(self, identity: str) -> ServerRow | None:
        """Return a server; None when Nova knows none of that id. Raises SilentCellError when its cell does not
        answer."""
        row = unless_gone(lambda: self.api.get("compute", f"/servers/{identity}")["server"], None)
        if row is None:
            return None
        if rows.is_minimal(row):
            raise SilentCellError(
                f"cloud {self.api.name}: the cell of Nova that server {identity} is in does not answer: of the server "
                "nothing is known; look again when it does"
            )
        return ServerRow.of(row)

    def seen_server(self, identity: str) -> ServerRow | None:
        """Return the same as `server`; None also when its cell does not answer."""
        try:
            return self.server(identity)
        except SilentCellError:
            return None

    def actions(self, server: str) -> list[ActionRow]:
        """Return the actions on a server, also a deleted one; nothing when Nova has forgotten it."""
        nothing: list[dict[str, Any]] = []
        path = f"/servers/{server}/os-instance-actions"
        actions = unless_gone(lambda: self.members("compute", path, "instanceActions"), nothing)
        return [ActionRow.of(row) for row in actions]

    def parts(self, server: str, request: str) -> dict[str, datetime | None]:
        """Return the parts of an action that have begun, each with when it ended well; None where it has not (yet)."""
        path = f"/servers/{server}/os-instance-actions/{request}"
        nothing: dict[str, Any] = {"instanceAction": {}}
        events = unless_gone(lambda: self.api.get("compute", path), nothing)["instanceAction"].get("events", ())
        return {row["event"]: rows.moment(row["finish_time"]) if row["result"] == "Success" else None for row in events}

    def words_of(self, server: str, request: str) -> str:
        """Return the error of an action, from its last part that failed: an error of Nova's by name, or the last line
        of the traceback that admins get; empty when nothing went wrong."""
        path = f"/servers/{server}/os-instance-actions/{request}"
        nothing: dict[str, Any] = {"instanceAction": {}}
        action = unless_gone(lambda: self.api.get("compute", path), nothing)["instanceAction"]
        failed = [row for row in action.get("events", ()) if row["result"] == "Error"]
        lines = [line for row in failed[-1:] for line in str(row.get("traceback") or "").splitlines() if line.strip()]
        raised = RAISED.search(lines[-1]) if lines else None
        return raised[1] if raised else lines[-1].strip() if lines else ""

    def flavors(self) -> list[NovaFlavor]:
        """Return all flavors, private ones too, without the projects that may use them."""
        return [rows.flavor_of(row) for row in self.pages("compute", "/flavors/detail", "flavors", is_public="None")]

    def access(self, flavor: str) -> frozenset[str]:
        """Return the ids of the projects that may use a private flavor."""
        entries = self.members("compute", f"/flavors/{flavor}/os-flavor-access", "flavor_access")
        return frozenset(row["tenant_id"] for row in entries)

    def hypervisors(self) -> list[Hypervisor]:
        return [Hypervisor.of(row) for row in self.pages("compute", "/os-hypervisors/detail", "hypervisors")]

    def services(self, **query: object) -> dict[str, HostService]:
        """Return the nova-compute of each host, or of one ``host``. Those of a cell that does not answer are
        `silent`."""
        services = self.members("compute", "/os-services", "services", binary="nova-compute", **query)
        return {row["host"]: rows.service_of(row) for row in services}

    def require_heard(self, host: str) -> None:
        """Raise SilentCellError when the cell of a host does not answer."""
        service = self.services(host=host).get(host)
        if service is not None and service.silent:
            raise SilentCellError(f"cloud {self.api.name}: {service.unheard}; look again when it does")

    def aggregates(self) -> list[AggregateRow]:
        return [AggregateRow.of(row) for row in self.members("compute", "/os-aggregates", "aggregates")]

    def migrations(self, **query: object) -> dict[str, MigrationSeen]:
        """Return all migrations that Nova remembers, or those of a ``source_compute``, by id. It lists no single one,
        and none by a set of statuses."""
        migrations = self.pages("compute", "/os-migrations", "migrations", **query)
        return {
            row["uuid"]: MigrationSeen(
                row["uuid"], row["instance_uuid"], row["status"], row["migration_type"], row["source_compute"],
                row["dest_compute"], rows.moment(row.get("created_at")), _flavor_ids(row),
            )
            for row in migrations
        }  # fmt: skip

    def migrations_if_allowed(self, **query: object) -> dict[str, MigrationSeen] | None:
        """Return the migrations; None where Nova's policy, or the access rules of credentials from an older release, do
        not let us ask."""
        try:
            return self.migrations(**query)
        except CloudError as error:
            if error.status not in (UNAUTHORIZED, FORBIDDEN):
                raise
            return None

    def newest_microversion(self) -> str:
        """Return the newest microversion; empty where a proxy does not pass it on."""
        try:
            return str(self.api.get("compute", "/")["version"]["version"])
        except (CloudError, KeyError, TypeError, ValueError):
            return ""

    # Placement.

    def providers(self, **query: object) -> dict[str, Provider]:
        """Return the providers by id, with names that a site knows."""
        return {row["uuid"]: rows.provider_of(row) for row in self.api.providers(**query)}

    def tree(self, root: str) -> list[Provider]:
        """Return a root provider and all below it, under the names that Placement has."""
        providers = self.members("placement", "/resource_providers", "resource_providers", in_tree=root)
        return [rows.provider_of(row) for row in providers]

    def able(self, **query: object) -> frozenset[str] | None:
        """Return the ids of the providers that match a query; None when Placement does not know a class or trait in it:
        then no nova-compute has reported it."""
        try:
            providers = self.members("placement", "/resource_providers", "resource_providers", **query)
        except CloudError as error:
            if error.status == BAD_REQUEST:
                return None
            raise
        return frozenset(row["uuid"] for row in providers)

    def stock(self, provider: str) -> dict[str, Stock]:
        """Return the stock of a provider, by class; nothing when it is gone."""
        return {name: rows.stock_of(row) for name, row in self._of_provider(provider, "inventories").items()}

    def consumers(self, provider: str) -> dict[str, dict[str, int]]:
        """Return consumer -> class -> amount that it has of a provider; nothing when that is gone."""
        return {consumer: row["resources"] for consumer, row in self._of_provider(provider, "allocations").items()}

    def usages(self, provider: str) -> dict[str, int]:
        """Return class -> amount that all consumers have of a provider."""
        return self._of_provider(provider, "usages")

    def _of_provider(self, provider: str, what: str) -> dict[str, Any]:
        path = f"/resource_providers/{provider}/{what}"
        return unless_gone(lambda: dict(self.api.get("placement", path)[what]), {})

    def allocations(self, consumer: str) -> dict[str, dict[str, int]]:
        """Return id of a provider -> class -> amount that a consumer has of it."""
        allocations = self.api.get("placement", f"/allocations/{consumer}")["allocations"]
        return {provider: row["resources"] for provider, row in allocations.items()}

    def project_usages(self, project: str) -> dict[str, int]:
        """Return class -> amount of a project. "all" makes no difference between servers and migrations, as Nova
        makes none."""
        usages = self.api.get("placement", "/usages", project_id=project, consumer_type="all")["usages"].get("all", {})
        return {name: int(amount) for name, amount in usages.items() if name != "consumer_count"}

    # Keystone.

    def projects(self) -> dict[str, str]:
        """Return name -> id of the default domain's projects: another domain may have one of the same name, which must
        not get its limits."""
        rows = self.members("identity", "/projects", "projects", domain_id=DOMAIN)
        return {shown(row["name"], {"id": DOMAIN}): row["id"] for row in rows}

    def limits(self, **query: object) -> tuple[list[LimitRow], list[LimitRow]]:
        """Return Keystone's limits on what Nova counts, in its region: the registered ones, and those of projects."""
        service = compute_service(self.api)
        region = region_of(self.api, service)

        def ask(key: str, **more: object) -> list[LimitRow]:
            limits = self.members("identity", f"/{key}", key, service_id=service, **more)
            return [LimitRow.of(row) for row in limits if row["region_id"] == region]

        return ask("registered_limits"), ask("limits", **query)


def _flavor_ids(row: Mapping[str, Any]) -> tuple[int, int] | None:
    old, new = row.get("old_instance_type_id"), row.get("new_instance_type_id")
    return None if old is None or new is None else (old, new)


def unless_gone(read: Callable[[], Something], nothing: Something) -> Something:
    """Return what is read; `nothing` when it was deleted since it was listed."""
    try:
        return read()
    except CloudError as error:
        if error.status != NOT_FOUND:
            raise
        return nothing


class Names:
    """Cache of names of users and projects, as the site file has them. An id stands for itself when its owner is
    deleted, or is kept where we may not look."""

    def __init__(self, known_names: Mapping[tuple[str, str], str] | None = None) -> None:
        self._known = dict(known_names or {})

    def learn(self, cloud: Reader, users: Iterable[str] = (), projects: Iterable[str] = ()) -> None:
        unknown = {("user", user) for user in users} | {("project", project) for project in projects}
        self._known |= cloud.each(lambda key: _name(cloud.api, *key), sorted(unknown - self._known.keys()))

    def of(self, kind: str, identity: str) -> str:
        return self._known.get((kind, identity), identity)

    def owners(self, server: ServerRow) -> tuple[str, str]:
        """Return project and user."""
        return self.of("project", server.project), self.of("user", server.user)


def _name(api: CloudApi, kind: str, identity: str) -> str:
    try:
        row = api.get("identity", f"/{kind}s/{identity}")[kind]
        domain = {"id": DOMAIN, "name": ""}
        if row["domain_id"] != DOMAIN:
            domain = api.get("identity", f"/domains/{row['domain_id']}")["domain"]
        return (shown_user if kind == "user" else shown)(row["name"], domain)
    except CloudError as error:
        if error.status not in (NOT_FOUND, FORBIDDEN):
            raise
        return identity


def compute_service(api: CloudApi) -> str:
    """Return the id of Nova in Keystone's catalogue, which limits are kept under."""
    services = api.get("identity", "/services", type="compute")["services"]
    if not services:
        raise CloudError(f"cloud {api.name}: Keystone has no service of type compute; is Nova installed?")
    return str(services[0]["id"])


def region_of(api: CloudApi, service: str) -> str | None:
    """Return the region whose limits Nova asks for: that of its endpoint, which clouds.yaml need not name."""
    if api.region:
        return api.region
    endpoints = api.get("identity", "/endpoints", service_id=service)["endpoints"]
    regions = sorted({row["region_id"] for row in endpoints if row["region_id"]})
    if len(regions) > 1:
        raise UsageError(
            f"cloud {api.name} has Nova in the regions {', '.join(regions)}: name one in clouds.yaml (region_name)"
        )
    return regions[0] if regions else None
