"""Carries a site's plan out: flavors with their access, limits, aggregates, properties of images."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.cloud.objects import compute_service, read_objects, region_of
from gpuyard.model.plan import Plan, Step, Verb
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import SeenObjects
from gpuyard.site.plan import flavor_id, plan_site
from gpuyard.site.plan_aggregates import ZONE
from gpuyard.site.plan_limits import limit_name
from gpuyard.site.step_values import ACCESS, HOST, PROPERTY, part

NOT_FOUND = 404


class SiteApplier:
    """Carries steps out, one by one. It decides nothing, and a step that is done already is done."""

    def __init__(self, api: CloudApi, seen: SeenObjects) -> None:
        self._api = api
        self._seen = seen
        self._flavor_ids = {item.flavor.name: item.id for item in seen.flavors}
        self._limit_ids = {limit_name(item.limit): item.id for item in seen.limits}
        self._aggregate_ids = {item.aggregate.name: item.id for item in seen.aggregates}
        self._image_ids = {item.image.name: item.id for item in seen.images}

    def apply(self, plan: Plan, report: Callable[[Step], None]) -> None:
        """All steps in order; `report` is called before each. Raises CloudError at the first one that fails."""
        actions = {
            "flavor": self._flavor,
            "registered limit": self._registered_limit,
            "project limit": self._limit,
            "aggregate": self._aggregate,
            "image": self._image,
        }
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
        self._properties(identity, part(before, PROPERTY), part(step.after, PROPERTY))
        self._access(identity, part(before, ACCESS), part(step.after, ACCESS))

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
        service = compute_service(self._api)
        region = region_of(self._api, service)
        row = {"service_id": service, "resource_name": resource, **values}
        if "description" in step.after:
            row["description"] = step.after["description"]
        return {**row, "region_id": region} if region else row

    def _aggregate(self, step: Step) -> None:
        before = step.before
        if step.verb in (Verb.DELETE, Verb.REPLACE):
            path = f"/os-aggregates/{self._aggregate_ids[step.name]}"
            self._change_aggregate(path, {HOST + name: "yes" for name in part(before, HOST)}, {})
            self._delete("compute", path)
        if step.verb is Verb.DELETE:
            return
        if step.verb is Verb.UPDATE:
            identity = self._aggregate_ids[step.name]
        else:
            # Nova takes no metadata here. One that has none and no hosts is taken for ours by the next plan.
            body = {"name": step.name, ZONE: step.after.get(ZONE)}
            made = self._api.request("POST", "compute", "/os-aggregates", {"aggregate": body})
            identity, before = made["aggregate"]["id"], {ZONE: body[ZONE]}
        self._change_aggregate(f"/os-aggregates/{identity}", before, step.after)

    def _change_aggregate(self, path: str, before: Mapping[str, Any], after: Mapping[str, Any]) -> None:
        """Metadata with the availability zone, which Nova keeps there too, and hosts."""
        old, new = part(before, PROPERTY), part(after, PROPERTY)
        changed: dict[str, Any] = {key: value for key, value in new.items() if old.get(key) != value}
        changed |= dict.fromkeys(old.keys() - new.keys())
        if after.get(ZONE) not in (None, before.get(ZONE)):
            changed[ZONE] = after[ZONE]
        if changed:
            self._api.request("POST", "compute", f"{path}/action", {"set_metadata": {"metadata": changed}})
        old_hosts, new_hosts = part(before, HOST).keys(), part(after, HOST).keys()
        for verb, names in (("add", new_hosts - old_hosts), ("remove", old_hosts - new_hosts)):
            for name in sorted(names):
                self._api.request("POST", "compute", f"{path}/action", {f"{verb}_host": {"host": name}})

    def _image(self, step: Step) -> None:
        old, new = part(step.before, PROPERTY), part(step.after, PROPERTY)
        patch = [
            {"op": "replace" if key in old else "add", "path": "/" + _pointer(key), "value": value}
            for key, value in new.items()
            if old.get(key) != value
        ]
        headers = {"Content-Type": "application/openstack-images-v2.1-json-patch"}
        self._api.request("PATCH", "image", f"/images/{self._image_ids[step.name]}", patch, headers=headers)

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
    left = plan_site(compiled, read_objects(api, compiled), prune)
    if left.steps or left.refusals:
        names = ", ".join(map(str, left.steps))
        raise CloudError(f"cloud {api.name}: applied, but read back it still differs: {names or left.refusals[0]}")


def _pointer(key: str) -> str:
    """A property's name in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
