"""Applies a site's plan to the cloud: flavors with their access, limits, aggregates, and properties of images.

Steps are carried out in the plan's order, up to the first that fails. Then the cloud is read again, and must be as the
site wants it. Whatever was not done is in the next plan.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, assert_never

from gpuyard.model.plan import StepVerb
from gpuyard.nova.release import RELEASES
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.reader import compute_service, region_of
from gpuyard.provisioning.read import read_objects
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import AggregateObject, FlavorObject, LimitObject, SeenObjects
from gpuyard.site.plan import flavor_id, plan_site
from gpuyard.site.steps import ZONE, AggregateStep, FlavorStep, ImageStep, LimitStep, SitePlan, SiteStep

NOT_FOUND, CONFLICT = 404, 409


class SiteApplier:
    """Carries steps out, one by one. It decides nothing, and carrying out a step twice changes nothing more."""

    def __init__(self, api: CloudApi, observed: SeenObjects) -> None:
        self._api = api
        self._seen = observed
        self._flavor_ids = {item.flavor.name: item.id for item in observed.flavors}
        self._limit_ids = {(item.limit.project, item.limit.resource): item.id for item in observed.limits}
        self._aggregate_ids = {item.aggregate.name: item.id for item in observed.aggregates}
        self._image_ids = {item.image.name: item.id for item in observed.images}

    def apply(self, plan: SitePlan, report: Callable[[SiteStep], None]) -> None:
        """Carry out all steps in order; `report` is called before each. Raises CloudError at the first one that
        fails."""
        for step in plan.steps:
            report(step)
            try:
                self._carry_out(step)
            except CloudError as error:
                raise CloudError(f"{step}: {error}; the next plan shows what is left", error.status) from None

    def _carry_out(self, step: SiteStep) -> None:
        match step:
            case FlavorStep():
                self._flavor(step)
            case LimitStep(before=None):
                self._create_limit(step.object)
            case LimitStep(after=None):
                self._delete(*self._limit_path(step.object))
            case LimitStep():
                self._change_limit(step.object)
            case AggregateStep():
                self._aggregate(step)
            case ImageStep():
                self._image(step)
            case _:
                assert_never(step)

    def _flavor(self, step: FlavorStep) -> None:
        before, after = step.before, step.after
        if step.verb in (StepVerb.DELETE, StepVerb.REPLACE):
            self._delete("compute", f"/flavors/{self._flavor_ids[step.name]}")
            before = None
        if after is None:
            return
        if before is None:
            identity = flavor_id(after.name)
            self._create_flavor(identity, after)
            before = replace(after, extra_specs={}, projects=frozenset())
        else:
            identity = self._flavor_ids[step.name]
        if before.description != after.description:
            body = {"flavor": {"description": after.description}}
            self._api.request("PUT", "compute", f"/flavors/{identity}", body)
        self._properties(identity, before.extra_specs, after.extra_specs)
        self._access(identity, before.projects, after.projects)

    def _create_flavor(self, identity: str, flavor: FlavorObject) -> None:
        body = {
            "id": identity,
            "name": flavor.name,
            "vcpus": flavor.vcpus,
            "ram": flavor.ram,
            "disk": flavor.disk,
            "OS-FLV-EXT-DATA:ephemeral": flavor.ephemeral,
            "os-flavor-access:is_public": flavor.public,
            "description": flavor.description,
        }
        self._api.request("POST", "compute", "/flavors", {"flavor": body})

    def _properties(self, identity: str, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        changed = {key: value for key, value in after.items() if before.get(key) != value}
        if changed:
            self._api.request("POST", "compute", f"/flavors/{identity}/os-extra_specs", {"extra_specs": changed})
        for key in before.keys() - after.keys():
            self._delete("compute", f"/flavors/{identity}/os-extra_specs/{key}")

    def _access(self, identity: str, before: frozenset[str], after: frozenset[str]) -> None:
        for verb, names in (("add", after - before), ("remove", before - after)):
            for name in sorted(names):
                body = {f"{verb}TenantAccess": {"tenant": self._seen.projects.get(name, name)}}
                self._api.request("POST", "compute", f"/flavors/{identity}/action", body)

    def _limit_path(self, limit: LimitObject) -> tuple[str, str]:
        folder = "registered_limits" if limit.project is None else "limits"
        return "identity", f"/{folder}/{self._limit_ids[limit.project, limit.resource]}"

    def _create_limit(self, limit: LimitObject) -> None:
        service = compute_service(self._api)
        row: dict[str, Any] = {"service_id": service, "resource_name": limit.resource}
        if region := region_of(self._api, service):
            row["region_id"] = region
        if limit.description:
            row["description"] = limit.description
        if limit.project is None:
            body = {"registered_limits": [{**row, "default_limit": limit.value}]}
        else:
            owner = {"project_id": self._seen.projects[limit.project], "resource_limit": limit.value}
            body = {"limits": [{**row, **owner}]}
        self._api.request("POST", "identity", f"/{next(iter(body))}", body)

    def _change_limit(self, limit: LimitObject) -> None:
        where = self._limit_path(limit)
        if limit.project is None:
            self._api.request("PATCH", *where, {"registered_limit": {"default_limit": limit.value}})
        elif limit.value:
            self._api.request("PATCH", *where, {"limit": {"resource_limit": limit.value}})
        else:
            # Keystone takes an update to 0, answers 200 and keeps the old number. Between deletion and creation the
            # registered limit holds, which is 0 for GPUs: nobody gets more than before.
            self._delete(*where)
            self._create_limit(limit)

    def _aggregate(self, step: AggregateStep) -> None:
        before, after = step.before, step.after
        if before is not None and step.verb in (StepVerb.DELETE, StepVerb.REPLACE):
            path = f"/os-aggregates/{self._aggregate_ids[step.name]}"
            self._change_aggregate(path, before, replace(before, hosts=frozenset()))
            self._delete("compute", path)
            before = None
        if after is None:
            return
        if before is None:
            # Nova takes no metadata here. One that has none and no hosts is taken for ours by the next plan.
            body = {"name": after.name, ZONE: after.availability_zone}
            made = self._api.request("POST", "compute", "/os-aggregates", {"aggregate": body})
            identity, before = made["aggregate"]["id"], replace(after, hosts=frozenset(), metadata={})
        else:
            identity = self._aggregate_ids[step.name]
        self._change_aggregate(f"/os-aggregates/{identity}", before, after)

    def _change_aggregate(self, path: str, before: AggregateObject, after: AggregateObject) -> None:
        """Metadata with the availability zone, which Nova keeps there too, and hosts."""
        old, new = before.metadata, after.metadata
        changed: dict[str, Any] = {key: value for key, value in new.items() if old.get(key) != value}
        changed |= dict.fromkeys(old.keys() - new.keys())
        if after.availability_zone not in (None, before.availability_zone):
            changed[ZONE] = after.availability_zone
        if changed:
            self._api.request("POST", "compute", f"{path}/action", {"set_metadata": {"metadata": changed}})
        for verb, names in (("add", after.hosts - before.hosts), ("remove", before.hosts - after.hosts)):
            for name in sorted(names):
                self._api.request("POST", "compute", f"{path}/action", {f"{verb}_host": {"host": name}})

    def _image(self, step: ImageStep) -> None:
        old, new = (image.properties if image else {} for image in (step.before, step.after))
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
    observed: SeenObjects,
    plan: SitePlan,
    report: Callable[[SiteStep], None],
    prune: bool = False,
) -> None:
    """Carry a plan out, then read the cloud again: raises CloudError unless it is as the site wants it."""
    try:
        SiteApplier(api, observed).apply(plan, report)
    except CloudError as error:
        hint = hidden_limits(api, compiled, plan.steps) if error.status == CONFLICT else ""
        if not hint:
            raise
        raise CloudError(f"{error}{hint}", error.status) from None
    left = plan_site(compiled, read_objects(api, compiled), prune)
    if left.steps or left.refusals:
        names = ", ".join(map(str, left.steps))
        hint = hidden_limits(api, compiled, left.steps)
        raise CloudError(
            f"cloud {api.name}: applied, but read back it still differs: {names or left.refusals[0]}{hint}"
        )


def hidden_limits(api: CloudApi, compiled: CompiledSite, steps: Iterable[SiteStep]) -> str:
    """Return what to do when Keystone may hide limits of projects that are to be made; empty where it shows all."""
    release = RELEASES[compiled.site.release]
    makes = any(isinstance(step, LimitStep) and step.before is None and step.object.project for step in steps)
    if release.limits_shown or not makes or api.sees_all_limits:
        return ""
    return (
        f". Keystone of {release.name} shows limits of projects only to who has a role on the system: give cloud "
        f"{api.name} in clouds.yaml 'gpuyard: {{limits: CLOUD}}', where CLOUD is another cloud there with "
        "'system_scope: all'; 'gpuyard site bootstrap' writes that for the user it makes"
    )


def _pointer(key: str) -> str:
    """A property's name in a JSON pointer."""
    return key.replace("~", "~0").replace("/", "~1")
