"""Proves that all GPUs of a machine with shared IOMMU groups can be used, and that no order of requests splits a group.

It boots servers in a cloud as one of its users, and after each reads from Placement and Nova as the operator who has
which GPU.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from time import monotonic, sleep
from typing import Any

from gpuyard.inventory.state import gpu_statuses
from gpuyard.model.errors import BlockedError, GpuyardError
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.nova.alias_spec import asked_devices
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.site.compile import CompiledSite
from gpuyard.site.nova import alias, leader_alias
from gpuyard_lab.plan import IMAGE

USER_PROJECT = "demo"
PREFIX = "gpuyard-exercise-"
POLL = 0.2
"""Seconds between looks at a server; more often would keep the services from their work on a small machine."""
NOT_FOUND = 404


class ExerciseError(GpuyardError):
    """The exercise came out otherwise than it must; the message says what was observed."""


@dataclass(frozen=True)
class Boot:
    """The outcome of one request for a server."""

    server_id: str
    name: str
    flavor: str
    status: str
    """ACTIVE or ERROR."""
    seconds: float
    """From the request until that status."""
    fault: str = ""


class Exercise:
    """Boots and deletes servers as a user, and reads the state of GPUs as the operator."""

    def __init__(
        self, operator: CloudApi, user: CloudApi, compiled: CompiledSite, prefix: str = PREFIX, timeout: float = 120.0
    ) -> None:
        """Names of servers begin with `prefix`; `timeout` in seconds is for each wait."""
        self._prefix = prefix
        self._operator = operator
        self._user = user
        self._compiled = compiled
        self._timeout = timeout
        self._numbers = itertools.count(1)
        self._image = self._image_id()
        self._flavors = {row["name"]: row["id"] for row in user.pages("compute", "/flavors", "flavors", limit=1000)}

    def _image_id(self) -> str:
        images = self._user.get("image", "/images", name=IMAGE)["images"]
        if not images:
            raise ExerciseError(f"cloud {self._user.name} has no image {IMAGE!r} to boot servers from")
        return str(images[0]["id"])

    def boot(self, flavor: str, image: str | None = None) -> Boot:
        """Ask for a server and wait for its end, good or bad. `image`: the id of another one than the lab's.

        Raises CloudError when Nova refuses the request.
        """
        if flavor not in self._flavors:
            raise ExerciseError(f"cloud {self._user.name} has no flavor {flavor!r}; run 'gpuyard site apply'")
        began = monotonic()
        name = f"{self._prefix}{next(self._numbers)}"
        server_spec = {
            "name": name,
            "flavorRef": self._flavors[flavor],
            "imageRef": image or self._image,
            "networks": "none",
        }
        server = self._user.request("POST", "compute", "/servers", {"server": server_spec})["server"]
        shown = self._wait(server["id"], lambda row: row is not None and row["status"] != "BUILD")
        assert shown is not None
        fault = shown.get("fault", {}).get("message", "")
        return Boot(server["id"], name, flavor, shown["status"], monotonic() - began, fault)

    def boot_together(self, flavors: Sequence[str]) -> list[Boot]:
        """Boot servers with all requests at once, as independent users would send them."""
        with ThreadPoolExecutor(len(flavors)) as pool:
            return list(pool.map(self.boot, flavors))

    def delete(self, server_ids: Iterable[str]) -> None:
        """Delete servers and wait until Nova has let go of them and of their GPUs."""
        server_ids = list(server_ids)
        for server_id in server_ids:
            try:
                self._user.request("DELETE", "compute", f"/servers/{server_id}")
            except CloudError as error:
                if error.status != NOT_FOUND:
                    raise
        for server_id in server_ids:
            self._wait(server_id, lambda row: row is None)
            self._until(partial(self._holds_nothing, server_id), f"allocations of {server_id} to go")

    def wait_for_status(self, server_id: str, status: str) -> None:
        """Wait until a server has a status. Raises ExerciseError when it does not come."""
        self._wait(server_id, lambda row: row is not None and row["status"] == status)

    def clear(self) -> None:
        """Delete what an earlier exercise left behind, by its name."""
        rows = self._user.pages("compute", "/servers", "servers", limit=1000)
        self.delete([row["id"] for row in rows if row["name"].startswith(self._prefix)])

    def statuses(self) -> list[GpuStatus]:
        """Return the status of every GPU, read anew from Placement and Nova."""
        taker = SnapshotTaker(self._operator, self._compiled.gpus, self._compiled.flavors)
        return gpu_statuses(self._compiled.gpus, taker.take(datetime.now(UTC)))

    def _holds_nothing(self, server_id: str) -> bool:
        return not self._operator.get("placement", f"/allocations/{server_id}")["allocations"]

    def _wait(self, server_id: str, done: Callable[[dict[str, Any] | None], bool]) -> dict[str, Any] | None:
        """The server once `done` holds of it; None stands for one that is gone."""
        server: dict[str, Any] | None = None

        def look() -> bool:
            nonlocal server
            try:
                server = self._user.get("compute", f"/servers/{server_id}")["server"]
            except CloudError as error:
                if error.status != NOT_FOUND:
                    raise
                server = None
            return done(server)

        self._until(look, f"server {server_id}")
        return server

    def _until(self, true: Callable[[], bool], what: str) -> None:
        end = monotonic() + self._timeout
        while not true():
            if monotonic() > end:
                raise ExerciseError(f"waited {self._timeout:.0f} s for {what} in vain")
            sleep(POLL)


def split_groups(statuses: Iterable[GpuStatus]) -> list[str]:
    """Return a sentence for each IOMMU group whose GPUs are held by more than one server: there must never be one."""
    holders: dict[tuple[str, int | None], set[str]] = {}
    for status in statuses:
        if status.claim is not None:
            holders.setdefault((status.gpu.host, status.gpu.group), set()).add(status.claim.server_id)
    return [
        f"IOMMU group {group} on {host} is split between {', '.join(sorted(servers))}"
        for (host, group), servers in holders.items()
        if len(servers) > 1
    ]


@dataclass(frozen=True)
class Row:
    """One line of the table that the exercise prints."""

    scenario: str
    server: str
    flavor: str
    status: str
    gpus: str
    groups: str
    seconds: float


@dataclass(frozen=True)
class ExerciseSubject:
    """The host that the exercise is done on, and the flavors for it."""

    host: str
    gpus: int
    slots: int
    single: str
    """A flavor with one GPU."""
    pairs: tuple[str, ...]
    """A flavor for each group of the host that several GPUs share."""


def choose(compiled: CompiledSite) -> ExerciseSubject:
    """Return the host with the most shared groups, and the smallest flavors for them. Raises ExerciseError without one,
    and when the user's project may not use its GPUs."""
    hosts: dict[tuple[str, str], set[str]] = {}
    for gpu in compiled.gpus:
        if gpu.set_letter:
            hosts.setdefault((gpu.host, gpu.pool), set()).add(gpu.set_letter)
    if not hosts:
        raise ExerciseError("no host of the site has an IOMMU group with several GPUs: there is nothing to prove")
    host, pool = max(hosts, key=lambda key: len(hosts[key]))
    project = compiled.site.projects.get(USER_PROJECT)
    count = sum(gpu.pool == pool for gpu in compiled.gpus)
    if project is None or project.gpus.get(pool, 0) < count:
        remedy = f"projects: {{{USER_PROJECT}: {{gpus: {{{pool}: {count}}}}}}}"
        raise ExerciseError(
            f"the exercise runs in project {USER_PROJECT}, which may not use all of pool {pool}: {remedy}"
        )
    flavors = sorted(
        (flavor for flavor in compiled.flavors if flavor.pool == pool and not flavor.variant_of),
        key=lambda flavor: flavor.ram,
    )
    aliases = {next(iter(asked_devices(flavor.extra_specs))): flavor.name for flavor in reversed(flavors)}
    single = alias(compiled.site, pool)
    leaders = [leader_alias(compiled.site, pool, letter) for letter in sorted(hosts[host, pool])]
    missing = [name for name in (single, *leaders) if name not in aliases]
    if missing:
        raise ExerciseError(f"the site has no flavor for {', '.join(missing)}; add one with 'gpus: {{{pool}: ...}}'")
    mine = [gpu for gpu in compiled.gpus if gpu.host == host and gpu.pool == pool and not gpu.blocked]
    pairs = tuple(aliases[name] for name in leaders)
    return ExerciseSubject(host, len(mine), len({gpu.group for gpu in mine}), aliases[single], pairs)


def prove(exercise: Exercise, subject: ExerciseSubject) -> Iterable[Row]:
    """Boot every pair and then singles until the host is full; then singles alone. Yields a row for each server. Raises
    ExerciseError at the first thing that is not as it must be."""
    exercise.clear()
    _require_free(status for status in exercise.statuses() if status.gpu.host == subject.host)
    full = [*subject.pairs, *([subject.single] * (subject.slots - len(subject.pairs)))]
    yield from _scenario(exercise, subject.host, "pairs, then singles", full, gpus_in_use=subject.gpus)
    yield from _scenario(
        exercise, subject.host, "singles alone", [subject.single] * subject.slots, gpus_in_use=subject.slots
    )


def _require_free(statuses: Iterable[GpuStatus]) -> None:
    taken = [status for status in statuses if status.state is not GpuState.FREE]
    if taken:
        why = [
            f"{s.gpu.address} is {s.state.value}" + (f" by server {s.claim.server_name}" if s.claim else "")
            for s in taken
        ]
        raise BlockedError(
            f"the exercise needs all GPUs of {taken[0].gpu.host}: {', '.join(why)}; give them back and try again"
        )


def _scenario(exercise: Exercise, host: str, scenario: str, flavors: Sequence[str], gpus_in_use: int) -> Iterable[Row]:
    """Boot one after the other, look at the groups after each, then give everything back."""
    boots: list[Boot] = []
    try:
        for flavor in flavors:
            boot = exercise.boot(flavor)
            boots.append(boot)
            statuses = exercise.statuses()
            mine = [s.gpu for s in statuses if s.claim is not None and s.claim.server_id == boot.server_id]
            yield Row(
                scenario,
                boot.name,
                flavor,
                boot.status,
                ", ".join(gpu.address for gpu in mine),
                ", ".join(sorted({str(gpu.group) for gpu in mine})),
                round(boot.seconds, 1),
            )
            if boot.status != "ACTIVE":
                raise ExerciseError(f"{scenario}: server {boot.name} of {flavor} is {boot.status}: {boot.fault}")
            for split in split_groups(statuses):
                raise ExerciseError(f"{scenario}: {split}")
        in_use = sum(s.gpu.host == host and s.state is GpuState.CLAIMED for s in exercise.statuses())
        if in_use != gpus_in_use:
            raise ExerciseError(f"{scenario}: {in_use} GPUs of {host} are in use, and {gpus_in_use} should be")
    finally:
        exercise.delete(boot.server_id for boot in boots)
