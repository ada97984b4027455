"""Random lives of GPU servers as Nova records them: servers, actions with their events, migrations, allocations.

It answers the requests of `LifeReader`, shows what a look at the cloud would show at the same moment, and keeps the
truth beside it: when each server had how many GPUs. What it believes of Nova is said, with its source, in
docs/reference/stand-ins/nova.md, and held against a real Nova by tests/integration/test_nova_records.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

from gpuyard.model.gpu import Gpu, GpuRole
from gpuyard.model.world import HostService, Provider, Snapshot
from gpuyard.openstack.left_behind import MovedServers, PoolsAsked, split_left_behind
from gpuyard.openstack.reader import Reader
from gpuyard.openstack.rows import ServerRow
from gpuyard.site.objects import FlavorObject

ZERO = datetime(2026, 10, 24, 19, 0, tzinfo=UTC)
"""The clocks of Europe go back six hours later."""
HOSTS = {"h1": ("t4", 4), "h2": ("t4", 4), "h3": ("a100", 3), "h4": ("a100", 3)}
CPU_HOST = "c1"
FLAVORS = {
    "t4.1": ("t4", 1),
    "t4.2": ("t4", 2),
    "a.1": ("a100", 1),
    "a.2": ("a100", 2),
    "a.1b": ("a100", 1),
    "cpu": ("", 0),
}
GPUS = [
    Gpu(host, f"0000:{n:02x}:00.0", pool, "m", "10de:1eb8", GpuRole.LONE, f"CUSTOM_GPU_{pool.upper()}", n)
    for host, (pool, count) in HOSTS.items()
    for n in range(1, count + 1)
]
UNTOLD = ("resize_finish", "resize_reverting")
"""Tasks in which the flavor of a server's row may be that which it had, or that which it gets."""
HOST_OF = {gpu.provider_name: gpu.host for gpu in GPUS}
ASKED = PoolsAsked(
    GPUS,
    [
        FlavorObject(name, 1, 1, 1, extra_specs={"pci_passthrough:alias": f"{pool}:{count}"}, pool=pool)
        for name, (pool, count) in FLAVORS.items()
        if count
    ],
)


def at(second: int) -> datetime:
    return ZERO + timedelta(seconds=second)


@dataclass
class Event:
    """A part of an action."""

    name: str
    finished: int | None = None
    result: str | None = None


@dataclass
class Action:
    name: str
    request: str
    started: int
    updated: int
    events: list[Event] = field(default_factory=list)
    failed: bool = False


@dataclass
class Migration:
    id: str
    server: str
    type: str
    source: str
    dest: str
    flavors: tuple[str, str]
    created: int
    status: str = "pre-migrating"


@dataclass
class Use:
    """[start, end) in which a server used GPUs of one flavor."""

    start: int
    end: int | None
    pool: str
    gpus: int
    looks: int = 0
    """How many looks fell into it while Nova told its flavor."""


@dataclass
class SimServer:
    id: str
    project: str
    flavor: str
    created: int
    host: str | None = None
    gpus: list[str] = field(default_factory=list)
    """Names of the providers that are allocated to its own id."""
    launched: int | None = None
    terminated: int | None = None
    updated: int = 0
    status: str = "BUILD"
    task: str | None = "spawning"
    actions: list[Action] = field(default_factory=list)
    uses: list[Use] = field(default_factory=list)
    resized: tuple[str, str, list[str], Migration] | None = None
    """Flavor, host and GPUs before a resize that is neither confirmed nor reverted."""


class SimulatedNova:
    """A cloud of four GPU hosts. `kinds`: what may happen, the names of methods, some of them several times."""

    name, region, calls = "simulated", "", 0

    def __init__(self, chance: Random, kinds: Sequence[str]) -> None:
        self.chance, self.kinds = chance, kinds
        self.now = 0
        self.servers: dict[str, SimServer] = {}
        self.migrations: list[Migration] = []
        self.held: dict[str, str] = {}
        """Provider -> the migration that has it."""
        self.down: set[str] = set()
        self.left: dict[str, list[tuple[SimServer, list[str]]]] = {}
        """Host that is down -> servers that were evacuated from it, with what they still have there."""
        self._due: list[tuple[int, int, Callable[[], None]]] = []
        self._number = 0
        self._moved = MovedServers()

    # Time.

    def run(self, until: int) -> None:
        """All that is due until then, and in that second."""
        while self._due and min(self._due)[0] <= until:
            due = min(self._due)
            self._due.remove(due)
            self.now = due[0]
            due[2]()
        self.now = until

    def something(self) -> None:
        """One thing by chance; nothing where Nova would refuse it."""
        getattr(self, self.chance.choice(self.kinds))()

    def _after(self, least: int, most: int, do: Callable[[], None]) -> None:
        self._number += 1
        self._due.append((self.now + self.chance.randrange(least, most), self._number, do))

    # What Nova writes.

    def _begin(self, server: SimServer, action: str, event: str, status: str = "", task: str | None = None) -> None:
        self._number += 1
        server.actions.append(Action(action, f"req-{self._number}", self.now, self.now))
        self._event(server, event)
        server.status, server.task = status or server.status, task
        server.updated = self.now

    def _event(self, server: SimServer, name: str) -> None:
        """The next part of its last action begins."""
        server.actions[-1].events.append(Event(name))
        server.actions[-1].updated = server.updated = self.now

    def _end(self, server: SimServer, *, failed: bool = False) -> None:
        action = server.actions[-1]
        action.events[-1].finished, action.events[-1].result = self.now, "Error" if failed else "Success"
        action.updated, action.failed = self.now, action.failed or failed
        server.updated = self.now

    def _rest(self, server: SimServer, status: str) -> None:
        server.status, server.task, server.updated = status, None, self.now

    def _uses(self, server: SimServer) -> None:
        self._uses_none(server)
        server.uses.append(Use(self.now, None, *FLAVORS[server.flavor]))

    def _uses_none(self, server: SimServer) -> None:
        if server.uses and server.uses[-1].end is None:
            server.uses[-1].end = self.now

    def _one(self, *statuses: str) -> SimServer | None:
        servers = [
            server
            for server in self.servers.values()
            if server.terminated is None and server.task is None and server.status in statuses
            and server.host not in self.down and not (server.resized and {server.resized[1]} & self.down)
        ]  # fmt: skip
        return self.chance.choice(servers) if servers else None

    def _place(self, flavor: str) -> tuple[str, list[str]] | None:
        pool, count = FLAVORS[flavor]
        if not count:
            return CPU_HOST, []
        places = []
        for host, (of, _) in HOSTS.items():
            free = self._free(host)
            if of == pool and host not in self.down and len(free) >= count:
                places.append((host, self.chance.sample(free, count)))
        return self.chance.choice(places) if places else None

    def _free(self, host: str) -> list[str]:
        taken = {name for server in self.servers.values() for name in server.gpus} | self.held.keys()
        return [name for name, gpu_host in HOST_OF.items() if gpu_host == host and name not in taken]

    def _counted_twice(self, host: str, gpus: Sequence[str]) -> list[str]:
        """GPUs that Placement also counts for a server that is moved there: those that Nova has claimed instead."""
        others = [name for name in self._free(host) if name not in gpus]
        return others[: self.chance.randint(0, len(gpus))] if self.chance.random() < 0.5 else []

    # Create and delete.

    def create(self, flavor: str = "", *, fails: bool | None = None) -> None:
        flavor = flavor or self.chance.choice([*FLAVORS, "t4.1", "a.1"])
        place = self._place(flavor)
        if place is None:
            return
        server = SimServer(f"s{len(self.servers)}", self.chance.choice(["p1", "p2", "p3"]), flavor, self.now)
        server.host, server.gpus = place
        self.servers[server.id] = server
        self._begin(server, "create", "compute__do_build_and_run_instance", "BUILD", "spawning")
        self._after(2, 90, lambda: self._built(server, fails=self.chance.random() < 0.15 if fails is None else fails))

    def _built(self, server: SimServer, *, fails: bool) -> None:
        if fails:
            server.gpus, server.host = [], None
        else:
            server.launched = self.now
            self._uses(server)
        self._rest(server, "ERROR" if fails else "ACTIVE")
        self._end(server, failed=fails)

    def delete(self) -> None:
        server = self._one("ACTIVE", "ERROR", "SHELVED_OFFLOADED", "VERIFY_RESIZE", "SHUTOFF")
        if server is not None:
            self._begin(server, "delete", "compute_terminate_instance", task="deleting")
            self._after(0, 20, lambda: self._deleted(server))

    def _deleted(self, server: SimServer) -> None:
        self._uses_none(server)
        if server.resized is not None:
            self._release(server.resized[3], "confirmed")
        server.terminated, server.gpus = self.now, []
        self._rest(server, "DELETED")
        self._end(server)

    # What stays on its host.

    def stop(self) -> None:
        server = self._one("ACTIVE", "SHUTOFF")
        if server is not None:
            stops = server.status == "ACTIVE"
            self._begin(server, "stop" if stops else "start", "compute_stop_instance")
            self._rest(server, "SHUTOFF" if stops else "ACTIVE")
            self._end(server)

    def rebuild(self) -> None:
        server = self._one("ACTIVE", "SHUTOFF")
        if server is not None:
            self._begin(server, "rebuild", "compute_rebuild_instance", "REBUILD", "rebuilding")
            self._after(3, 80, lambda: self._rebuilt(server))

    def _rebuilt(self, server: SimServer) -> None:
        server.launched = self.now
        self._rest(server, "ACTIVE")
        self._end(server)

    # Shelve.

    def shelve(self, *, at_once: bool | None = None) -> None:
        server = self._one("ACTIVE", "SHUTOFF")
        if server is not None:
            self._begin(server, "shelve", "compute_shelve_instance", task="shelving")
            self._after(
                3, 60, lambda: self._shelved(server, at_once=self.chance.random() < 0.5 if at_once is None else at_once)
            )

    def _shelved(self, server: SimServer, *, at_once: bool) -> None:
        if at_once:
            self._off(server)
        else:
            self._rest(server, "SHELVED")
        self._end(server)

    def offload(self) -> None:
        server = self._one("SHELVED")
        if server is not None:
            self._begin(server, "shelveOffload", "compute_shelve_offload_instance", task="shelving_offloading")
            self._after(1, 30, lambda: self._shelved(server, at_once=True))

    def _off(self, server: SimServer) -> None:
        self._uses_none(server)
        server.gpus, server.host = [], None
        self._rest(server, "SHELVED_OFFLOADED")

    def unshelve(self, *, fails: bool | None = None) -> None:
        server = self._one("SHELVED_OFFLOADED")
        place = self._place(server.flavor) if server is not None else None
        if server is not None and place is not None:
            self._begin(server, "unshelve", "compute_unshelve_instance", task="spawning")
            server.gpus = place[1]
            self._after(
                3,
                80,
                lambda: self._unshelved(server, place[0], fails=self.chance.random() < 0.1 if fails is None else fails),
            )

    def _unshelved(self, server: SimServer, host: str, *, fails: bool) -> None:
        if fails:
            server.gpus = []
            self._rest(server, "SHELVED_OFFLOADED")
        else:
            server.host, server.launched = host, self.now
            self._uses(server)
            self._rest(server, "ACTIVE")
        self._end(server, failed=fails)

    # Resize and cold migration.

    def resize(self) -> None:
        server = self._one("ACTIVE", "SHUTOFF")
        if server is not None:
            self.move("resize", server, self.chance.choice([flavor for flavor in FLAVORS if flavor != server.flavor]))

    def migrate(self) -> None:
        server = self._one("ACTIVE", "SHUTOFF")
        if server is not None:
            self.move("migrate", server, server.flavor)

    def move(self, action: str, server: SimServer, flavor: str, outcome: str = "", copies: int = 300) -> None:
        """Resize or migrate it. `outcome`: by chance when left out. `copies`: for how many seconds at most."""
        place = self._place(flavor)
        if place is None or server.host is None or self._left_something(server):
            return
        migration = self._migration(server, "resize" if action == "resize" else "migration", place[0], flavor)
        before = server.flavor, server.host, server.gpus, migration
        self._begin(server, action, "compute_prep_resize", "RESIZE", "resize_prep")
        self._hold(server, migration, place[1] + self._counted_twice(*place))
        outcome = outcome or self.chance.choice(["done"] * 7 + ["rescheduled", "failed"])

        def prepared() -> None:
            self._end(server, failed=outcome != "done")
            if outcome == "failed":
                server.gpus = before[2]
                self._release(migration, "error")
                self._rest(server, "ACTIVE")
                return
            if outcome == "rescheduled":
                self._event(server, "compute_prep_resize")
                self._end(server)
            self._event(server, "compute_resize_instance")
            server.task = "resize_migrating"
            self._after(min(3, copies - 1), copies, copied)

        def copied() -> None:
            server.host, server.task = place[0], "resize_migrated"
            self._end(server)
            self._event(server, "compute_finish_resize")
            server.flavor, server.task = flavor, "resize_finish"
            self._after(1, 60, finished)

        def finished() -> None:
            migration.status, server.launched, server.resized = "finished", self.now, before
            self._uses(server)
            self._rest(server, "VERIFY_RESIZE")
            self._end(server)

        self._after(1, 30, prepared)

    def _left_something(self, server: SimServer) -> bool:
        """On a host that it was evacuated from, and that is not back."""
        return any(evacuated is server for left in self.left.values() for evacuated, _ in left)

    def confirm(self) -> None:
        server = self._one("VERIFY_RESIZE")
        if server is not None:
            self._begin(server, "confirmResize", "compute_confirm_resize")
            server.task = "deleting"
            self._after(1, 10, lambda: self._confirmed(server))

    def _confirmed(self, server: SimServer) -> None:
        assert server.resized is not None
        self._release(server.resized[3], "confirmed")
        server.resized = None
        self._rest(server, "ACTIVE")
        self._end(server)

    def revert(self) -> None:
        server = self._one("VERIFY_RESIZE")
        if server is None or server.resized is None:
            return
        flavor, host, gpus, migration = server.resized
        self._begin(server, "revertResize", "compute_revert_resize", "REVERT_RESIZE", "resize_reverting")

        def given_back() -> None:
            self._end(server)
            self._uses_none(server)
            self._event(server, "compute_finish_revert_resize")
            server.flavor, server.host, server.gpus = flavor, host, gpus
            self._release(migration, "reverted")
            self._after(1, 40, reverted)

        def reverted() -> None:
            server.resized, server.launched = None, self.now
            self._uses(server)
            self._rest(server, "ACTIVE")
            self._end(server)

        self._after(1, 40, given_back)

    def _migration(self, server: SimServer, type: str, dest: str, flavor: str) -> Migration:
        self._number += 1
        migration = Migration(
            f"m{self._number}", server.id, type, server.host or "", dest, (server.flavor, flavor), self.now
        )
        self.migrations.append(migration)
        return migration

    def _hold(self, server: SimServer, migration: Migration, gpus: list[str]) -> None:
        """What it has becomes the migration's, and it gets others."""
        self.held |= dict.fromkeys(server.gpus, migration.id)
        server.gpus = gpus

    def _release(self, migration: Migration, status: str) -> None:
        migration.status = status
        self.held = {name: id for name, id in self.held.items() if id != migration.id}

    # Live migration and evacuation.

    def live(self) -> None:
        server = self._one("ACTIVE")
        place = self._place(server.flavor) if server is not None else None
        if server is None or place is None or self._left_something(server):
            return
        before, migration = server.gpus, self._migration(server, "live-migration", place[0], server.flavor)
        self._begin(server, "live-migration", "compute_live_migration", "MIGRATING", "migrating")
        self._end(server)  # it goes on in the background
        self._hold(server, migration, place[1])
        fails = self.chance.random() < 0.15

        def over() -> None:
            if fails:
                server.gpus = before
            else:
                self._event(server, "compute_post_live_migration_at_destination")
                server.host = place[0]
                self._uses(server)
                self._end(server)
            self._release(migration, "error" if fails else "completed")
            self._rest(server, "ACTIVE")

        self._after(3, 200, over)

    def evacuate(self) -> None:
        chosen = self._one("ACTIVE", "SHUTOFF")
        host = chosen.host if chosen else None
        residents = [
            server for server in self.servers.values() if server.terminated is None and host and server.host == host
        ]
        if host in (None, CPU_HOST) or self.down or any(resident.task or resident.resized for resident in residents):
            return
        if any(
            server.resized and server.resized[1] == host
            for server in self.servers.values()
            if server.terminated is None
        ):
            return
        if any(server.task and {HOST_OF[name] for name in server.gpus} & {host} for server in self.servers.values()):
            return
        assert host is not None
        self.down.add(host)
        self.left[host] = []
        self._after(1500, 6000, lambda: self._back(host))
        for server in residents:
            place = self._place(server.flavor)
            if place is not None and server.status in ("ACTIVE", "SHUTOFF"):
                self._evacuate(server, host, place)

    def _evacuate(self, server: SimServer, source: str, place: tuple[str, list[str]]) -> None:
        migration = self._migration(server, "evacuation", place[0], server.flavor)
        self._begin(server, "evacuate", "compute_rebuild_instance", "REBUILD", "rebuilding")
        self.left[source].append((server, server.gpus))
        server.gpus = server.gpus + place[1] + self._counted_twice(*place)

        def rebuilt() -> None:
            server.launched = self.now
            self._rest(server, "ACTIVE")
            server.host, migration.status = place[0], "done"
            self._uses(server)
            self._end(server)

        self._after(20, 100, rebuilt)

    def _back(self, host: str) -> None:
        """Its nova-compute starts, and takes away what was evacuated."""
        self.down.discard(host)
        for server, gpus in self.left.pop(host):
            server.gpus = [name for name in server.gpus if name not in gpus]

    # What Nova answers.

    def pages(self, service: str, path: str, key: str, **query: Any) -> list[dict[str, Any]]:
        if key == "servers":
            since = datetime.fromisoformat(query["changes-since"].replace("Z", "+00:00"))
            return [self._row(server) for server in self.servers.values() if at(server.updated) >= since]
        assert key == "migrations"
        return [
            _migration_row(migration) for migration in self.migrations if migration.server == query["instance_uuid"]
        ]

    def get(self, service: str, path: str, **query: Any) -> dict[str, Any]:
        parts = path.strip("/").split("/")
        if service == "identity":
            return {parts[0][:-1]: {"name": parts[1], "domain_id": "default"}}
        server = self.servers[parts[1]]
        if len(parts) == 2:
            return {"server": self._row(server)}
        if len(parts) == 3:
            return {"instanceActions": [_action_row(action) for action in server.actions]}
        (action,) = (action for action in server.actions if action.request == parts[3])
        return {"instanceAction": {"events": [_event_row(event) for event in action.events]}}

    def _row(self, server: SimServer) -> dict[str, Any]:
        pool, count = FLAVORS[server.flavor]
        return {
            "id": server.id, "name": f"name-{server.id}", "status": server.status, "OS-EXT-STS:task_state": server.task,
            "OS-EXT-SRV-ATTR:host": server.host, "tenant_id": server.project, "user_id": "ada",
            "created": _time(server.created), "updated": _time(server.updated),
            "OS-SRV-USG:launched_at": _time(server.launched), "OS-SRV-USG:terminated_at": _time(server.terminated),
            "flavor": {"original_name": server.flavor, "vcpus": 1, "ram": 1, "disk": 1, "ephemeral": 0, "swap": 0,
                       "extra_specs": {"pci_passthrough:alias": f"{pool}:{count}"} if count else {}},
        }  # fmt: skip

    # What a look at the cloud shows.

    def snapshot(self) -> Snapshot:
        """As `SnapshotTaker` makes one."""
        rows = [ServerRow.of(self._row(server)) for server in self.servers.values() if server.terminated is None]
        servers = {row.id: row for row in rows if row.asks_devices and row.status != "SHELVED_OFFLOADED"}
        providers = {name: Provider(name, name, name) for name in (*HOSTS, CPU_HOST)}
        providers |= {name: Provider(name, name, host, host) for name, host in HOST_OF.items()}
        holders = {name: server.id for server in self.servers.values() for name in server.gpus} | self.held
        with Reader(self) as cloud:  # type: ignore[arg-type]
            has, left = split_left_behind(cloud, self._moved, providers, servers, holders, ASKED)
        return Snapshot(
            taken_at=at(self.now),
            providers=providers,
            allocatable=frozenset(HOST_OF) - holders.keys(),
            holders=has,
            reserved=frozenset(),
            roomy_hosts={pool: frozenset(HOSTS) for pool in ("t4", "a100")},
            servers={id: row.named(row.project, row.user) for id, row in servers.items()},
            services={host: HostService(host, host not in self.down, True) for host in HOSTS},
            left_behind=left,
        )

    def looked(self) -> None:
        """Somebody looks now: what is in use is known from then on, where Nova tells its flavor."""
        for server in self.servers.values():
            use = server.uses[-1] if server.uses else None
            if use is not None and use.end is None and server.task not in UNTOLD:
                use.looks += 1


def _time(second: int | None) -> str | None:
    return None if second is None else f"{at(second):%Y-%m-%dT%H:%M:%S}"


def _action_row(action: Action) -> Mapping[str, Any]:
    return {
        "action": action.name, "request_id": action.request, "start_time": _time(action.started),
        "updated_at": _time(action.updated), "message": "Error" if action.failed else None,
    }  # fmt: skip


def _event_row(event: Event) -> Mapping[str, Any]:
    return {"event": event.name, "finish_time": _time(event.finished), "result": event.result}


def _migration_row(record: Migration) -> dict[str, Any]:
    old, new = ([*FLAVORS].index(name) for name in record.flavors)
    return {
        "uuid": record.id, "instance_uuid": record.server, "status": record.status, "migration_type": record.type,
        "source_compute": record.source, "dest_compute": record.dest, "created_at": _time(record.created),
        "old_instance_type_id": old, "new_instance_type_id": new,
    }  # fmt: skip


def truth_problems(nova: SimulatedNova, counted: Iterable[tuple[str, int, int]], last: int) -> tuple[list[str], int]:
    """Where what was counted of servers is not what they used: each (server, start, end) is one GPU. A use that nobody
    looked at, and whose flavor the server had neither before nor after, may be missing, or part of it. And the
    GPU-seconds that are missing so."""
    by_server: dict[str, list[tuple[int, int]]] = {}
    for id, start, end in counted:
        by_server.setdefault(id, []).append((start, end))
    problems, missing = [], 0
    for server in nova.servers.values():
        mine, expected = by_server.pop(server.id, []), 0
        for number, use in enumerate(server.uses):
            end = min(last, last if use.end is None else use.end)
            had = sum(max(0, min(b, end) - max(a, use.start)) for a, b in mine)
            amount = use.gpus * max(0, end - use.start)
            optional = not use.looks and (number < len(server.uses) - 1 or server.task in UNTOLD)
            if had == amount or (optional and had < amount):
                expected += had
                missing += amount - had
            else:
                problems.append(f"{server.id} [{use.start}, {end}) {use.gpus} GPUs: {had}, and it was {amount}")
        if not problems and sum(b - a for a, b in mine) != expected:
            problems.append(f"{server.id}: more than it used")
    return [*problems, *by_server], missing
