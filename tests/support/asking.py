"""Asks the lab for servers and for the reasons of its refusals, and carries out what would help."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field
from time import monotonic, sleep

from gpuyard.diagnosis.why.facts import Action, Explanation, Remedy
from gpuyard.diagnosis.why.read import why
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.reader import compute_service
from gpuyard.site.load import LoadedSite
from gpuyard_lab.exercise import PREFIX, Exercise

REFUSED = "NoValidHost"
TIMEOUT = 60


@dataclass
class Cloud:
    """The lab, as those see it who ask for servers and those who mend it."""

    operator: CloudApi
    user: CloudApi
    exercise: Exercise
    loaded: LoadedSite
    numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1))

    def ask(self, flavor: str, api: CloudApi | None = None, zone: str | None = None) -> tuple[str, str]:
        """Ask for a server: ACTIVE, NoValidHost, or the status of the refusal; and its id."""
        api = api or self.user
        image = api.get("image", "/images", name="tiny")["images"][0]["id"]
        body = {
            "name": f"{PREFIX}why-{next(self.numbers)}",
            "flavorRef": flavor,
            "imageRef": image,
            "networks": "none",
        }
        if zone:
            body["availability_zone"] = zone
        try:
            server = api.request("POST", "compute", "/servers", {"server": body})["server"]["id"]
        except CloudError as error:
            return str(error.status), ""
        end = monotonic() + TIMEOUT
        while monotonic() < end:
            row = api.get("compute", f"/servers/{server}")["server"]
            if row["status"] == "ERROR" and "fault" in row:  # which Nova writes after the status
                assert "No valid host" in row["fault"]["message"], row["fault"]
                return REFUSED, server
            if row["status"] == "ACTIVE":
                return "ACTIVE", server
            sleep(0.1)
        raise AssertionError(f"server {server} stays in BUILD")

    def starts(self, flavor: str, zone: str | None = None) -> str:
        """Ask for a server that must start; its id."""
        status, server = self.ask(flavor, zone=zone)
        assert status == "ACTIVE"
        return server

    def refuses(self, flavor: str, answer: str = REFUSED, zone: str | None = None) -> Explanation:
        """Nova must refuse with `answer`; what is said about it."""
        status, server = self.ask(flavor, zone=zone)
        if server:
            self.exercise.delete([server])
        assert status == answer
        explanation = self.why(flavor, zone)
        assert not explanation.would_start, explanation.answer
        return explanation

    def why(self, flavor: str, zone: str | None = None) -> Explanation:
        return why(self.operator, self.loaded, flavor, "demo", zone)

    def carry_out(self, *actions: Action) -> None:
        """Do what a remedy says."""
        for action in actions:
            values = action.values
            if action.kind == "delete-server":
                self.delete(str(values["server"]))
            elif action.kind in ("enable-service", "unset-forced-down"):
                change = {"status": "enabled"} if action.kind == "enable-service" else {"forced_down": False}
                self.service(str(values["host"]), **change)
            elif action.kind == "release-hold":
                self.reserve(str(values["provider"]), str(values["class"]), 0)
            elif action.kind == "delete-allocation":
                self.operator.request("DELETE", "placement", f"/allocations/{values['consumer']}")
            elif action.kind == "raise-limit":
                resources = values["resources"]
                assert isinstance(resources, list)
                for resource in resources:
                    self.limit(resource, values["to"])
            elif action.kind == "grant-access":
                self.grant(str(values["flavor"]))
            else:
                raise AssertionError(f"nobody can carry out {action}")

    def delete(self, server: str) -> None:
        """Delete a server of whichever project, if it is there."""
        Exercise(self.operator, self.operator, self.loaded.compiled).delete([server])

    def grant(self, flavor: str) -> None:
        project = self.operator.get("identity", "/projects", name="demo")["projects"][0]["id"]
        body = {"addTenantAccess": {"tenant": project}}
        self.operator.request("POST", "compute", f"/flavors/{flavor}/action", body)

    def service(self, host: str, **change: object) -> None:
        rows = self.operator.get("compute", "/os-services", binary="nova-compute")["services"]
        (service_id,) = (row["id"] for row in rows if row["host"] == host)
        self.operator.request("PUT", "compute", f"/os-services/{service_id}", change)

    def provider(self, name: str) -> str:
        return str(self.operator.get("placement", "/resource_providers", name=name)["resource_providers"][0]["uuid"])

    def reserve(self, provider: str, resource_class: str, number: int) -> None:
        path = f"/resource_providers/{self.provider(provider)}/inventories/{resource_class}"
        inventory = self.operator.get("placement", path)
        self.operator.request("PUT", "placement", path, {**inventory, "reserved": number})

    def limit(self, resource: str, value: object) -> str:
        """Set the demo project's own limit, which may have been there before; its id."""
        project = self.operator.get("identity", "/projects", name="demo")["projects"][0]["id"]
        service = compute_service(self.operator)
        rows = self.operator.get("identity", "/limits", project_id=project, resource_name=resource)["limits"]
        if rows:
            body = {"limit": {"resource_limit": value}}
            self.operator.request("PATCH", "identity", f"/limits/{rows[0]['id']}", body)
            return str(rows[0]["id"])
        row = {
            "project_id": project, "service_id": service, "region_id": self.operator.region,
            "resource_name": resource, "resource_limit": value,
        }  # fmt: skip
        return str(self.operator.request("POST", "identity", "/limits", {"limits": [row]})["limits"][0]["id"])


def kinds(explanation: Explanation, host: str | None = None) -> set[str]:
    """Kinds of the causes that hold for every host, or of those of one host."""
    if host is None:
        return {cause.code for cause in explanation.causes}
    (answer,) = (answer for answer in explanation.hosts if answer.host == host)
    return {cause.code for cause in answer.causes}


def remedy(explanation: Explanation) -> Remedy:
    assert explanation.remedies, explanation
    return explanation.remedies[0]
