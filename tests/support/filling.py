"""Walks a lab through states by chance, and holds what is said to be bootable against what Nova does."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from time import monotonic, sleep

from gpuyard.diagnosis.capacity.facts import CloudResources
from gpuyard.diagnosis.capacity.read import CapacityReader
from gpuyard.diagnosis.capacity.reckon import Bootable, Reckoning
from gpuyard.model.gpu import Gpu
from gpuyard.nova.request import request_of
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.site.load import LoadedSite
from gpuyard_lab.exercise import Exercise

PREFIX = "filling-"
NO_HOST, QUOTA = "NoValidHost", "403"
FEW = 3
"""Servers that are booted one after the other until the next one must be refused."""
OF_NOVA = {"service-disabled", "service-down", "service-forced-down", "aggregate", "aggregate-isolated",
           "aggregate-tenants", "numa", "device-type", "no-service"}  # fmt: skip
"""Causes that Placement knows nothing of."""
TIMEOUT = 90


@dataclass
class Walk:
    """One walk. `users`: project -> a connection of a member."""

    operator: CloudApi
    users: Mapping[str, CloudApi]
    loaded: LoadedSite
    rng: random.Random
    reader: CapacityReader = field(init=False)
    servers: dict[str, str] = field(default_factory=dict)
    """Id -> project."""
    held: list[Gpu] = field(default_factory=list)
    states: int = 0
    """Looks of which something was tried."""
    seen: Counter[str] = field(default_factory=Counter)
    """What came of it."""

    def __post_init__(self) -> None:
        self.reader = CapacityReader(self.operator, self.loaded)
        self.exercises = {
            name: Exercise(self.operator, api, self.loaded.compiled, f"{PREFIX}{name}-")
            for name, api in self.users.items()
        }
        self.image = self.operator.get("image", "/images", name="tiny")["images"][0]["id"]
        self.numbers = iter(range(1, 10**6))

    def look(self) -> Reckoning:
        """Without the states of GPUs, which are for the words alone."""
        return Reckoning(self.reader.read(datetime.now(UTC)), {})

    def told(self, project: str, reckoning: Reckoning | None = None) -> dict[str, Bootable]:
        reckoning = reckoning or self.look()
        asker = self.reader.asker(project, reckoning.resources)
        return {bootable.flavor.name: bootable for bootable in reckoning.all_of(asker)}

    def ask(self, flavor: Bootable, project: str) -> str:
        """ACTIVE, NoValidHost, or the status of the refusal."""
        body = {
            "name": f"{PREFIX}{project}-{next(self.numbers)}", "flavorRef": flavor.flavor.id,
            "imageRef": self.image, "networks": "none",
        }  # fmt: skip
        api = self.users[project]
        try:
            server = api.request("POST", "compute", "/servers", {"server": body})["server"]["id"]
        except CloudError as error:
            return str(error.status)
        end = monotonic() + TIMEOUT
        while monotonic() < end:
            row = api.get("compute", f"/servers/{server}")["server"]
            if row["status"] == "ACTIVE":
                self.servers[server] = project
                return "ACTIVE"
            if row["status"] == "ERROR" and "fault" in row:
                self.exercises[project].delete([server])
                assert "No valid host" in row["fault"]["message"], row["fault"]
                return NO_HOST
            sleep(0.1)
        raise AssertionError(f"server {server} stays in BUILD")

    # What is held against Nova.

    def try_one(self, project: str) -> None:
        """One flavor by chance: as many start as was said, and not one more."""
        bootables = self.told(project)
        assert bootables, "the project sees flavors"
        none = [name for name, candidate in bootables.items() if candidate.now == 0]
        few = [name for name, candidate in bootables.items() if candidate.now and candidate.now <= FEW]
        some = [name for name, candidate in bootables.items() if candidate.now]
        pick = self.rng.choice([names for names in (none, few, some) if names])
        name = self.rng.choice(pick)
        bootable = bootables[name]
        assert bootable.now is not None
        times = bootable.now if pick is few else 1
        for number in range(min(times, bootable.now)):
            self.states += 1
            answer = self.ask(bootable, project)
            assert answer == "ACTIVE", (name, project, number, answer, bootable)
            self.seen["started"] += 1
            after = self.told(project)[name]
            assert after.now == bootable.now - number - 1, (name, project, bootable, after)
        if times >= bootable.now:
            bootable = self.told(project)[name]
            self.states += 1
            expected = QUOTA if any(cause.code == "quota" for cause in bootable.causes) else NO_HOST
            answer = self.ask(bootable, project)
            assert answer == expected, (name, project, answer, bootable)
            self.seen[expected] += 1

    def compare(self, project: str, most: int = 4) -> None:
        """Some flavors by chance: Placement would give them to the very hosts that are said to take them, but for those
        that Nova itself refuses."""
        reckoning = self.look()
        resources, bootables = reckoning.room, self.told(project, reckoning)
        for name in self.rng.sample(sorted(bootables), min(most, len(bootables))):
            bootable = bootables[name]
            able = self.candidates(resources, bootable)
            where = {self.provider_of(resources, host) for host in bootable.where}
            assert where <= able, (name, bootable, able)
            refused = {
                self.provider_of(resources, host)
                for rest in bootable.others
                if rest.code in OF_NOVA
                for host in rest.hosts
            }
            closed = {host.node.provider for host in resources.hosts if not (host.node.up and host.node.enabled)}
            assert able - where <= refused | closed, (name, bootable, able)
            self.seen["compared"] += 1

    def candidates(self, resources: CloudResources, bootable: Bootable) -> set[str]:
        providers = set()
        for query in request_of(bootable.flavor, resources.aliases).queries():
            answer = self.operator.get("placement", "/allocation_candidates", **query)
            summaries = answer["provider_summaries"]
            providers |= {
                summaries[id]["root_provider_uuid"]
                for row in answer["allocation_requests"]
                for id in row["allocations"]
            }
        return providers

    @staticmethod
    def provider_of(room: CloudResources, host: str) -> str:
        (provider,) = [candidate.node.provider for candidate in room.hosts if candidate.node.name == host]
        return provider

    # What changes.

    def change(self, more: Sequence[Callable[[], None]] = ()) -> None:
        """One thing by chance."""
        ways = [self.delete_some, self.delete_some, self.hold, self.hold, self.service, self.limit, *more]
        self.rng.choice(ways)()

    def delete_some(self) -> None:
        """On hosts that are up: of one that is down Nova deletes the record alone, and the host's nova-compute learns
        of it at its next update, which the lab does not have."""
        self.restore_services()
        for server in self.rng.sample(sorted(self.servers), min(len(self.servers), self.rng.randint(1, 3))):
            self.exercises[self.servers.pop(server)].delete([server])
        self.seen["deleted"] += 1

    def hold(self) -> None:
        """Of a GPU that is not held, or take one of these off."""
        if self.held and self.rng.random() < 0.5:
            self.reserve(self.held.pop(), 0)
            return
        gpu = self.rng.choice([gpu for gpu in self.loaded.compiled.gpus if not gpu.blocked])
        if self.reserve(gpu, 1):
            self.held.append(gpu)
            self.seen["held"] += 1

    def reserve(self, gpu: Gpu, number: int) -> bool:
        """Whether that was a change."""
        providers = self.operator.get("placement", "/resource_providers", name=gpu.provider_name)["resource_providers"]
        path = f"/resource_providers/{providers[0]['uuid']}/inventories/{gpu.resource_class}"
        row = self.operator.get("placement", path)
        if row["reserved"] == number:
            return False
        self.operator.request("PUT", "placement", path, {**row, "reserved": number})
        return True

    def service(self) -> None:
        """Disabled or enabled, or forced down or up: of one host; all others are there again."""
        rows = self.operator.get("compute", "/os-services", binary="nova-compute")["services"]
        self.restore_services()
        row = self.rng.choice(rows)
        change: dict[str, object] = self.rng.choice([{"status": "disabled"}, {"forced_down": True}])
        self.operator.request("PUT", "compute", f"/os-services/{row['id']}", change)
        if "status" in change:
            self.wait_for_trait(row["host"])
        self.seen["service"] += 1

    def wait_for_trait(self, host: str) -> None:
        """Nova refuses a disabled host at once; its trait in Placement is for what we ask there."""
        end = monotonic() + TIMEOUT
        while monotonic() < end:
            answer = self.operator.get("placement", "/resource_providers", required="COMPUTE_STATUS_DISABLED")
            if host in {row["name"] for row in answer["resource_providers"]}:
                return
            sleep(0.1)

    def restore_services(self) -> None:
        for row in self.operator.get("compute", "/os-services", binary="nova-compute")["services"]:
            if row["status"] == "disabled":
                self.operator.request("PUT", "compute", f"/os-services/{row['id']}", {"status": "enabled"})
            if row["forced_down"]:
                self.operator.request("PUT", "compute", f"/os-services/{row['id']}", {"forced_down": False})

    def limit(self) -> None:
        """Of one project on one resource, to about what it uses, or away."""
        project = self.rng.choice(sorted(self.users))
        asker = self.reader.asker(project, sorted(self.look().resources))
        of_gpus = ("GPU",) if self.loaded.site.booking else ()  # which the controller sets
        item = self.rng.choice([limit for limit in asker.limits if not any(word in limit.resource for word in of_gpus)])
        rows = self.operator.get("identity", "/limits", project_id=asker.id, resource_name=item.resource)["limits"]
        registered = self.operator.get("identity", "/registered_limits", resource_name=item.resource)
        if not registered["registered_limits"]:
            return
        limit_row = registered["registered_limits"][0]
        step = 8192 if item.resource.endswith("MEMORY_MB") else 2
        to = -1 if self.rng.random() < 0.4 else item.used + step * self.rng.randint(0, 3)
        if rows:
            body = {"limit": {"resource_limit": to}}
            self.operator.request("PATCH", "identity", f"/limits/{rows[0]['id']}", body)
        else:
            row = {
                "project_id": asker.id, "service_id": limit_row["service_id"], "region_id": limit_row["region_id"],
                "resource_name": item.resource, "resource_limit": to,
            }  # fmt: skip
            self.operator.request("POST", "identity", "/limits", {"limits": [row]})
        self.seen["limit"] += 1

    def fill(self, projects: Iterable[str]) -> None:
        """Flavors without GPUs take what is left for them."""
        project = self.rng.choice(sorted(projects))
        bootables = [candidate for candidate in self.told(project).values() if not candidate.gpus and candidate.now]
        if bootables:
            bootable = self.rng.choice(bootables)
            assert self.ask(bootable, project) == "ACTIVE"
            self.seen["filled"] += 1

    def clear(self, keep: Mapping[tuple[str, str], int]) -> None:
        """Back to how it was; `keep`: (id of a project, resource) -> the limits that were there before."""
        self.restore_services()
        for exercise in self.exercises.values():
            exercise.clear()
        for gpu in self.held:
            self.reserve(gpu, 0)
        for row in self.operator.get("identity", "/limits")["limits"]:
            key = row["project_id"], row["resource_name"]
            if key not in keep:
                self.operator.request("DELETE", "identity", f"/limits/{row['id']}")
            elif keep[key] != row["resource_limit"]:
                body = {"limit": {"resource_limit": keep[key]}}
                self.operator.request("PATCH", "identity", f"/limits/{row['id']}", body)


def limits_now(operator: CloudApi) -> dict[tuple[str, str], int]:
    rows = operator.get("identity", "/limits")["limits"]
    return {(row["project_id"], row["resource_name"]): row["resource_limit"] for row in rows}
