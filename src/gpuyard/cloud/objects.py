"""Reads and changes the objects that a site manages: flavors with their access, and limits."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.model.plan import Plan, Step, Verb
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import FlavorObject, LimitObject, SeenFlavor, SeenLimit, SeenObjects
from gpuyard.site.plan import ACCESS, PROPERTY, flavor_id, limit_name, plan_site

NOT_FOUND = 404
DOMAIN = "default"
"""Id of the domain that a site's projects are in."""


def read_objects(api: CloudApi) -> SeenObjects:
    """What the cloud has now: one call a list, and one for the access of each private flavor."""
    # Of one domain: another one may have a project of the same name, and must not get its limits and flavors.
    rows = api.get("identity", "/projects", domain_id=DOMAIN)["projects"]
    projects = {row["name"]: row["id"] for row in rows}
    names = {identity: name for name, identity in projects.items()}
    flavors = list(api.pages("compute", "/flavors/detail", "flavors", is_public="None", limit=1000))
    return SeenObjects(
        flavors=tuple(SeenFlavor(row["id"], _flavor(api, row, names)) for row in flavors),
        limits=tuple(_limits(api, names)),
        projects=projects,
    )


def _flavor(api: CloudApi, row: Mapping[str, Any], names: Mapping[str, str]) -> FlavorObject:
    public = row["os-flavor-access:is_public"]
    access = [] if public else api.get("compute", f"/flavors/{row['id']}/os-flavor-access")["flavor_access"]
    return FlavorObject(
        name=row["name"],
        vcpus=row["vcpus"],
        ram=row["ram"],
        disk=row["disk"],
        ephemeral=row["OS-FLV-EXT-DATA:ephemeral"],
        public=public,
        extra_specs=row["extra_specs"],
        projects=frozenset(names.get(item["tenant_id"], item["tenant_id"]) for item in access),
        description=row["description"] or "",
    )


def _limits(api: CloudApi, names: Mapping[str, str]) -> list[SeenLimit]:
    service = compute_service(api)
    registered = api.get("identity", "/registered_limits", service_id=service)["registered_limits"]
    own = api.get("identity", "/limits", service_id=service)["limits"]
    return [
        *(SeenLimit(row["id"], _limit(row, "default_limit", None)) for row in registered if _of_region(api, row)),
        *(
            SeenLimit(row["id"], _limit(row, "resource_limit", names.get(row["project_id"], row["project_id"])))
            for row in own
            if row["project_id"] and _of_region(api, row)
        ),
    ]


def _of_region(api: CloudApi, row: Mapping[str, Any]) -> bool:
    """Whether a limit is one of the region that is being looked at: each region of a cloud has its own."""
    return bool(row["region_id"] == (api.region or None))


def _limit(row: Mapping[str, Any], value: str, project: str | None) -> LimitObject:
    return LimitObject(row["resource_name"], row[value], project, row["description"] or "")


def compute_service(api: CloudApi) -> str:
    """The id of Nova in Keystone's catalogue, which limits are kept under."""
    services = api.get("identity", "/services", type="compute")["services"]
    if not services:
        raise CloudError(f"cloud {api.name}: Keystone has no service of type compute; is Nova installed?")
    return str(services[0]["id"])


class SiteApplier:
    """Carries steps out, one by one. It decides nothing, and a step that is done already is done."""

    def __init__(self, api: CloudApi, seen: SeenObjects) -> None:
        self._api = api
        self._seen = seen
        self._flavor_ids = {item.flavor.name: item.id for item in seen.flavors}
        self._limit_ids = {limit_name(item.limit): item.id for item in seen.limits}

    def apply(self, plan: Plan, report: Callable[[Step], None]) -> None:
        """All steps in order; `report` is called before each. Raises CloudError at the first one that fails."""
        actions = {"flavor": self._flavor, "registered limit": self._registered_limit, "project limit": self._limit}
        for step in plan.steps:
            report(step)
            try:
                actions[step.kind](step)
            except CloudError as error:
                raise CloudError(f"{step}: {error}; the next plan shows what is left", error.status) from None

    def _flavor(self, step: Step) -> None:
        if step.verb in (Verb.DELETE, Verb.REPLACE):
            self._delete("compute", f"/flavors/{self._flavor_ids[step.name]}")
        if step.verb is Verb.DELETE:
            return
        identity = self._flavor_ids.get(step.name, flavor_id(step.name))
        before = step.before
        if step.verb in (Verb.CREATE, Verb.REPLACE):
            identity, before = flavor_id(step.name), {}
            self._create_flavor(identity, step)
        elif step.before["description"] != step.after["description"]:
            body = {"flavor": {"description": step.after["description"]}}
            self._api.request("PUT", "compute", f"/flavors/{identity}", body)
        self._properties(identity, _part(before, PROPERTY), _part(step.after, PROPERTY))
        self._access(identity, _part(before, ACCESS), _part(step.after, ACCESS))

    def _create_flavor(self, identity: str, step: Step) -> None:
        wanted = step.after
        body = {
            "id": identity,
            "name": step.name,
            "vcpus": wanted["vcpus"],
            "ram": wanted["ram"],
            "disk": wanted["disk"],
            "OS-FLV-EXT-DATA:ephemeral": wanted["ephemeral"],
            "os-flavor-access:is_public": wanted["public"],
            "description": wanted["description"],
        }
        self._api.request("POST", "compute", "/flavors", {"flavor": body})

    def _properties(self, identity: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        if changed:
            self._api.request("POST", "compute", f"/flavors/{identity}/os-extra_specs", {"extra_specs": changed})
        for key in before.keys() - after.keys():
            self._delete("compute", f"/flavors/{identity}/os-extra_specs/{key}")

    def _access(self, identity: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        for verb, names in (("add", after.keys() - before.keys()), ("remove", before.keys() - after.keys())):
            for name in sorted(names):
                body = {f"{verb}TenantAccess": {"tenant": self._seen.projects.get(name, name)}}
                self._api.request("POST", "compute", f"/flavors/{identity}/action", body)

    def _registered_limit(self, step: Step) -> None:
        if step.verb is Verb.CREATE:
            row = self._limit_row(step, step.name, {"default_limit": step.after["limit"]})
            self._api.request("POST", "identity", "/registered_limits", {"registered_limits": [row]})
            return
        path = f"/registered_limits/{self._limit_ids[step.kind, step.name]}"
        if step.verb is Verb.DELETE:
            self._delete("identity", path)
        else:
            body = {"registered_limit": {"default_limit": step.after["limit"]}}
            self._api.request("PATCH", "identity", path, body)

    def _limit(self, step: Step) -> None:
        project, _, resource = step.name.rpartition(" ")
        # Keystone takes an update to 0, answers 200 and keeps the old number. Between deletion and creation the
        # registered limit holds, which is 0 for GPUs: nobody gets more than before.
        anew = step.verb is Verb.UPDATE and step.after["limit"] == 0
        if step.verb is Verb.DELETE or anew:
            self._delete("identity", f"/limits/{self._limit_ids[step.kind, step.name]}")
        if step.verb is Verb.CREATE or anew:
            owner = {"project_id": self._seen.projects[project], "resource_limit": step.after["limit"]}
            self._api.request("POST", "identity", "/limits", {"limits": [self._limit_row(step, resource, owner)]})
        elif step.verb is Verb.UPDATE:
            body = {"limit": {"resource_limit": step.after["limit"]}}
            self._api.request("PATCH", "identity", f"/limits/{self._limit_ids[step.kind, step.name]}", body)

    def _limit_row(self, step: Step, resource: str, values: Mapping[str, Any]) -> dict[str, Any]:
        row = {"service_id": compute_service(self._api), "resource_name": resource, **values}
        if "description" in step.after:
            row["description"] = step.after["description"]
        return {**row, "region_id": self._api.region} if self._api.region else row

    def _delete(self, service: str, path: str) -> None:
        """Gone already is what was wanted."""
        try:
            self._api.request("DELETE", service, path)
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise


def apply_plan(
    api: CloudApi,
    compiled: CompiledSite,
    seen: SeenObjects,
    plan: Plan,
    report: Callable[[Step], None],
    prune: bool = False,
) -> None:
    """Carry a plan out, then look again: raises CloudError unless the cloud is as the site wants it."""
    SiteApplier(api, seen).apply(plan, report)
    left = plan_site(compiled, read_objects(api), prune)
    if left.steps or left.refusals:
        names = ", ".join(map(str, left.steps))
        raise CloudError(f"cloud {api.name}: applied, but read back it still differs: {names or left.refusals[0]}")


def _part(flat: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key[len(prefix) :]: value for key, value in flat.items() if key.startswith(prefix)}
