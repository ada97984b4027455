"""Mends what a look for drift found and can be mended safely: what a site's plan has, allocations of consumers that
are nobody, providers that nobody reports.

It decides nothing, but asks again before each deletion whether it is still so, and what it leaves alone it says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from gpuyard.cloud.api import CloudApi, CloudError
from gpuyard.cloud.apply import apply_plan
from gpuyard.cloud.world_facts import children_of, consumers_of, read_migrations, server_exists
from gpuyard.model.plan import Plan, Step
from gpuyard.site.compile import CompiledSite
from gpuyard.site.drift import OWN_KINDS
from gpuyard.site.objects import SeenObjects

ATTEMPTS = 4
"""Times that a deletion is tried when something else changes the same thing."""
NOT_FOUND, CONFLICT = 404, 409


@dataclass(frozen=True)
class Left:
    """A step that was not carried out, because it is not so any more or could not be."""

    step: Step
    reason: str

    def __str__(self) -> str:
        return f"{self.step}: left alone: {self.reason}"


class DriftFixer:
    """Carries fixes out."""

    def __init__(self, api: CloudApi, compiled: CompiledSite, seen: SeenObjects) -> None:
        self._api = api
        self._compiled = compiled
        self._seen = seen

    def apply(self, plan: Plan, report: Callable[[Step], None]) -> list[Left]:
        """All steps in order; `report` is called before each. What is left alone comes back with its reason. Raises
        CloudError when the cloud refuses a step of the site's plan, or does not answer."""
        site = tuple(step for step in plan.steps if step.kind not in OWN_KINDS)
        if site:
            apply_plan(self._api, self._compiled, self._seen, Plan(site), report)
        left = []
        for step in plan.steps:
            if step.kind not in OWN_KINDS:
                continue
            report(step)
            reason = self._attempts(self._allocation if step.kind == "allocation" else self._provider, step)
            if reason:
                left.append(Left(step, reason))
        return left

    def _attempts(self, act: Callable[[Step], str], step: Step) -> str:
        """Why a step was left alone; empty when what it wants is so."""
        said = ""
        for _ in range(ATTEMPTS):
            try:
                return act(step)
            except CloudError as error:
                if error.status != CONFLICT:
                    raise
                said = str(error)
        return f"something else kept changing it, {ATTEMPTS} times: {said}"

    def _allocation(self, step: Step) -> str:
        consumer = step.name
        found = self._api.get("placement", f"/allocations/{consumer}")
        if not found["allocations"]:
            return ""
        if server_exists(self._api, consumer):
            return "Nova has a server of that id"
        if consumer in read_migrations(self._api):
            return "Nova has a migration of that id"
        # Not DELETE, which asks no generation: whoever changes the consumer meanwhile must win.
        body = {
            "allocations": {},
            "consumer_generation": found["consumer_generation"],
            "consumer_type": sayable(found["consumer_type"]),
            "project_id": found["project_id"],
            "user_id": found["user_id"],
        }
        self._api.request("PUT", "placement", f"/allocations/{consumer}", body)
        if self._api.get("placement", f"/allocations/{consumer}")["allocations"]:
            return "it has allocations again"
        return ""

    def _provider(self, step: Step) -> str:
        root = str(step.before["id"])
        if self._known(step.name, root):
            return "Nova has its hypervisor or service again"
        tree = self._api.get("placement", "/resource_providers", in_tree=root)["resource_providers"]
        if not tree:
            return ""
        if any(consumers_of(self._api, row["uuid"]) for row in tree):
            return "something is allocated on it"
        for identity, _ in reversed(children_of(tree, root)):
            self._delete(identity)
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
    """The type of a consumer as Placement takes it: it shows those that have none as 'unknown' and does not take
    that. Which type it is makes no difference to a consumer that is about to have nothing."""
    return "INSTANCE" if consumer_type == "unknown" else consumer_type
