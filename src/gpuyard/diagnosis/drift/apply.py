"""Applies fixes for drift: steps of the site's plan, allocations of consumers and providers that nobody has any more.

It decides nothing, but checks before each deletion that the reason still holds, and returns what it left alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import assert_never

from gpuyard.diagnosis.drift.fixes import AllocationStep, FixPlan, FixStep, ProviderStep
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import below
from gpuyard.provisioning.apply import apply_plan
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import SeenObjects
from gpuyard.site.steps import SitePlan, SiteStep

ATTEMPTS = 4
"""Times that a deletion is tried when something else changes the same thing."""
NOT_FOUND, CONFLICT = 404, 409


@dataclass(frozen=True)
class SkippedFix:
    """A step that was not carried out, because it is not needed any more or could not be."""

    step: FixStep
    reason: str

    def __str__(self) -> str:
        return f"{self.step}: left alone: {self.reason}"


class DriftFixer:
    """Carries fixes out on one cloud."""

    def __init__(self, api: CloudApi, compiled: CompiledSite, objects: SeenObjects) -> None:
        self._api = api
        self._cloud = Reader(api)
        self._compiled = compiled
        self._seen = objects

    def apply(self, plan: FixPlan, report: Callable[[SiteStep | FixStep], None]) -> list[SkippedFix]:
        """Carry out all steps in order; `report` is called before each. Returns the steps that were left alone, with
        the reason. Raises CloudError when the cloud refuses a step of the site's plan, or does not answer."""
        if plan.site:
            apply_plan(self._api, self._compiled, self._seen, SitePlan(plan.site), report)
        left = []
        for step in plan.own:
            report(step)
            if reason := self._attempts(step):
                left.append(SkippedFix(step, reason))
        return left

    def _attempts(self, step: FixStep) -> str:
        """Why a step was left alone; empty when what it wants is so."""
        last_error = ""
        for _ in range(ATTEMPTS):
            try:
                return self._carry_out(step)
            except CloudError as error:
                if error.status != CONFLICT:
                    raise
                last_error = str(error)
        return f"something else kept changing it, {ATTEMPTS} times: {last_error}"

    def _carry_out(self, step: FixStep) -> str:
        match step:
            case AllocationStep():
                return self._allocation(step.name)
            case ProviderStep():
                return self._provider(step.name, step.object.id)
            case _:
                assert_never(step)

    def _allocation(self, consumer: str) -> str:
        current = self._api.get("placement", f"/allocations/{consumer}")
        if not current["allocations"]:
            return ""
        if self._cloud.has_server(consumer):
            return "Nova has a server of that id"
        if consumer in self._cloud.migrations():
            return "Nova has a migration of that id"
        if any(service.silent for service in self._cloud.services().values()):
            return "a cell of Nova does not answer, and it may be a migration there"
        # Not DELETE, which asks no generation: whoever changes the consumer meanwhile must win.
        body = {
            "allocations": {},
            "consumer_generation": current["consumer_generation"],
            "consumer_type": sayable(current["consumer_type"]),
            "project_id": current["project_id"],
            "user_id": current["user_id"],
        }
        self._api.request("PUT", "placement", f"/allocations/{consumer}", body)
        if self._api.get("placement", f"/allocations/{consumer}")["allocations"]:
            return "it has allocations again"
        return ""

    def _provider(self, host: str, root: str) -> str:
        if self._known(host, root):
            return "Nova has its hypervisor or service again"
        tree = self._cloud.tree(root)
        if not tree:
            return ""
        if any(self._cloud.consumers(provider.id) for provider in tree):
            return "something is allocated on it"
        for provider in reversed(list(below(tree, root))):
            self._delete(provider.id)
        self._delete(root)
        gone = not self._api.get("placement", "/resource_providers", uuid=root)["resource_providers"]
        return "" if gone else "it is there again"

    def _known(self, name: str, provider: str) -> bool:
        services = self._api.get("compute", "/os-services", binary="nova-compute", host=name)["services"]
        if services:
            return True
        try:
            self._api.get("compute", f"/os-hypervisors/{provider}")
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise
            return False
        return True

    def _delete(self, provider: str) -> None:
        try:
            self._api.request("DELETE", "placement", f"/resource_providers/{provider}")
        except CloudError as error:
            if error.status != NOT_FOUND:
                raise


def sayable(consumer_type: str) -> str:
    """Return the type of a consumer as Placement takes it: it shows those that have none as 'unknown' and does not take
    that. Which type it is makes no difference to a consumer that is about to have nothing."""
    return "INSTANCE" if consumer_type == "unknown" else consumer_type
