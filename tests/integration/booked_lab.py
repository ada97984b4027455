"""A lab whose GPUs can be booked: people with projects, a ledger, a controller, and a clock that tests set."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any

from gpuyard.bookings.controllers.bookings import BookingController
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.controllers.health import Watched, open_health
from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.booking import Ask, Booking, Lane, Person
from gpuyard.model.gpu import Claim, GpuStatus
from gpuyard.model.world import Snapshot
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.compile import CompiledSite
from gpuyard_lab.exercise import Boot, Exercise
from tests.integration.conftest import SDK_WARNINGS, RunningLab
from tests.support.booked_sites import ShiftedClock, booked_site, open_ledger

PREFIX = "booked-"
POOL, FLAVOR = "t4", "t4.15cores90GB"
PASSWORD = "secret-of-the-test"  # noqa: S105
RUNNER = "runner"
PEOPLE = {"ada": "physics", "bob": "art", "eve": "physics"}


@dataclass
class BookedLab:
    """One test's."""

    operator: CloudApi
    compiled: CompiledSite
    ledger: Ledger
    clock: ShiftedClock
    people: Mapping[str, Person]
    exercises: Mapping[str, Exercise]
    apis: Mapping[str, CloudApi]
    made: Sequence[str]
    """Paths of accounts in Keystone that were made for it."""
    controller: BookingController = field(init=False)
    health: Watched | None = field(init=False)
    """Of a site with `health`."""

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, api: CloudApi | None = None) -> None:
        """A controller that remembers nothing, as after a kill."""
        taker = SnapshotTaker(self.operator, self.compiled.gpus, self.compiled.flavors)
        api, rules = api or self.operator, self.compiled.site.health
        self.health = None
        if rules:
            self.health = open_health(
                self.compiled, rules, api, self.ledger, taker, self.clock, lambda: self.clock().timestamp()
            )
        self.controller = (
            self.health.bookings
            if self.health
            else BookingController(api, self.compiled, self.ledger, taker, self.clock)
        )

    def book(self, who: str, start: float = 3600, hours: float = 1, gpus: int = 1, **more: Any) -> Booking:
        """`start` in seconds from now."""
        begin = (self.clock() + timedelta(seconds=start)).replace(microsecond=0)
        pool = more.pop("pool", POOL)
        ask = Ask(pool, begin, begin + timedelta(hours=hours), gpus, **more)
        return self.ledger.create(ask, self.people[who])[0]

    def now(self, booking: Booking) -> Booking:
        return self.ledger.get(booking.id)

    def lanes(self) -> dict[int, Lane]:
        return {lane.id: lane for lane in self.ledger.lanes()}

    def boot(self, who: str, flavor: str = FLAVOR) -> Boot:
        return self.exercises[who].boot(flavor)

    def refused(self, who: str, flavor: str = FLAVOR) -> bool:
        """Whether Nova answers 403."""
        try:
            boot = self.boot(who, flavor)
        except CloudError as error:
            if error.status != 403:
                raise
            return True
        self.exercises[who].delete([boot.server_id])
        return False

    def snapshot(self) -> Snapshot:
        return SnapshotTaker(self.operator, self.compiled.gpus, self.compiled.flavors).take(self.clock())

    def statuses(self, pool: str | None = POOL) -> list[GpuStatus]:
        """Of a pool, or of all."""
        statuses = gpu_statuses(self.compiled.gpus, self.snapshot(), self.controller.words)
        return [status for status in statuses if pool in (None, status.gpu.pool)]

    def claim_on(self, lane: Lane) -> Claim | None:
        """Who has the first GPU of a lane."""
        (status,) = [
            s for s in self.statuses(lane.pool) if (s.gpu.host, s.gpu.address) == (lane.host, lane.addresses[0])
        ]
        return status.claim

    def server(self, server_id: str) -> dict[str, Any]:
        return dict(self.operator.get("compute", f"/servers/{server_id}")["server"])

    def limits(self) -> dict[str, int]:
        """Project's name -> its limit on the pool."""
        rows = self.operator.get("identity", "/limits")["limits"]
        names = {person.project_id: person.project for person in self.people.values()}
        return {
            names[row["project_id"]]: row["resource_limit"]
            for row in rows
            if row["resource_name"] == "class:CUSTOM_GPU_T4_COUNT" and row["project_id"] in names
        }

    def reserved(self) -> set[str]:
        """Providers of the pool that are reserved, also below servers."""
        provider_names = set()
        for gpu in self.compiled.gpus:
            provider = self.snapshot_providers().get(gpu.provider_name)
            if provider is not None:
                path = f"/resource_providers/{provider}/inventories"
                rows = self.operator.get("placement", path)["inventories"]
                if any(row["reserved"] for row in rows.values()):
                    provider_names.add(gpu.provider_name)
        return provider_names

    def snapshot_providers(self) -> dict[str, str]:
        return {row["name"]: row["uuid"] for row in self.operator.providers()}

    def clear(self) -> None:
        for exercise in self.exercises.values():
            exercise.clear()
        for name in self.reserved():
            set_reserved(self.operator, self.snapshot_providers()[name], 0)
        for row in self.operator.get("identity", "/limits")["limits"]:
            if row["description"].endswith(": bookings"):
                self.operator.request("DELETE", "identity", f"/limits/{row['id']}")
        for row in self.operator.get("image", "/images", image_type="snapshot")["images"]:
            if row["name"].startswith(PREFIX):
                self.operator.request("DELETE", "image", f"/images/{row['id']}")
        for path in self.made:
            self.operator.request("DELETE", "identity", path)
        self.ledger.close()


def set_reserved(operator: CloudApi, provider: str, reserved: int) -> None:
    """As an operator would do by hand."""
    path = f"/resource_providers/{provider}/inventories"
    answer = operator.get("placement", path)
    for name, inventory in answer["inventories"].items():
        generation = answer["resource_provider_generation"]
        body = {**inventory, "reserved": reserved, "resource_provider_generation": generation}
        operator.request("PUT", "placement", f"{path}/{name}", body)


def people_of(
    lab: RunningLab, operator: CloudApi, made: list[str], projects_by_user: Mapping[str, str] = PEOPLE
) -> tuple[dict[str, Person], dict[str, CloudApi]]:
    """Accounts in Keystone (user -> project), made when they are missing, and a connection of each. `made` gets
    paths."""
    roles = {row["name"]: row["id"] for row in operator.get("identity", "/roles")["roles"]}
    projects = {
        name: _ensure(operator, made, "project", name, {"domain_id": "default"})
        for name in sorted(set(projects_by_user.values()))
    }
    people, apis = {}, {}
    for name, project in projects_by_user.items():
        user = _ensure(operator, made, "user", name, {"domain_id": "default", "password": PASSWORD})
        path = f"/projects/{projects[project]}/users/{user}/roles/{roles['member']}"
        operator.request("PUT", "identity", path)
        people[name] = Person(user, name, projects[project], project, frozenset({"member"}), f"{name}@example.org")
        apis[name] = _log_in(lab, name, project)
    return people, apis


def _ensure(operator: CloudApi, made: list[str], kind: str, name: str, values: Mapping[str, Any]) -> str:
    rows = operator.get("identity", f"/{kind}s", name=name)[f"{kind}s"]
    if not rows:
        rows = [operator.request("POST", "identity", f"/{kind}s", {kind: {"name": name, **values}})[kind]]
        made.append(f"/{kind}s/{rows[0]['id']}")
    return str(rows[0]["id"])


def _log_in(lab: RunningLab, user: str, project: str) -> CloudApi:
    auth = {
        "auth_url": lab.lab.endpoint("keystone"),
        "username": user,
        "password": PASSWORD,
        "project_name": project,
        "user_domain_id": "default",
        "project_domain_id": "default",
    }
    import openstack

    with warnings.catch_warnings():
        for category in SDK_WARNINGS:
            warnings.simplefilter("ignore", category)
        return CloudApi(openstack.connection.Connection(auth=auth, region_name="RegionOne", identity_api_version=3))


def open_booked_lab(
    lab: RunningLab,
    operator: CloudApi,
    folder: Path,
    booking: Mapping[str, Any],
    projects: Mapping[str, Any] | None = None,
    database: str = "",
    **more: Any,
) -> BookedLab:
    """`database`: URL of another one than SQLite's in the folder. `more`: further keys of the site file. With `runners`
    there is a user ``runner`` in their project."""
    compiled = booked_site(folder, booking, projects or {}, **more)
    made: list[str] = []
    runners = {RUNNER: compiled.site.runners.project} if compiled.site.runners else {}
    people, apis = people_of(lab, operator, made, {**PEOPLE, **runners})
    clock = ShiftedClock()
    exercises = {name: Exercise(operator, api, compiled, f"{PREFIX}{name}-") for name, api in apis.items()}
    ledger = open_ledger(folder, compiled, clock, database)
    return BookedLab(operator, compiled, ledger, clock, people, exercises, apis, made)


Open = Callable[..., BookedLab]
__all__ = ["FLAVOR", "POOL", "PREFIX", "RUNNER", "BookedLab", "Open", "open_booked_lab", "set_reserved"]
