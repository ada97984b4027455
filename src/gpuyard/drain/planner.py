"""Plans what becomes of every server of a host that is to be empty: one verdict each, with its reason. Pure.

For each server it asks in this order: is Nova at work on it already; is it somebody else's to move; then whether
another host has room. Nothing is remembered between two plans: what was moved is not on the host any more, what is
under way is seen as such, and a server that waits is planned anew. So a plan that was carried out in part is simply
made again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any

from gpuyard.bookings.policy import spell
from gpuyard.drain.facts import GuestServer, KeptTime, MovesFacts
from gpuyard.drain.losses import losses
from gpuyard.drain.targets import HostPlace, Space
from gpuyard.model.booking import BookingKind
from gpuyard.model.text import counted
from gpuyard.nova.server_states import ENDING, FINISHED, GONE_FROM_HOST, MigrationSeen, on_its_way
from gpuyard.openstack.disabled_reason import Purpose

MIGRATES = ("ACTIVE", "SHUTOFF")
"""Statuses of servers that Nova migrates cold."""
EVACUATES = ("ACTIVE", "SHUTOFF", "ERROR")
SHELVES = ("ACTIVE", "SHUTOFF", "PAUSED", "SUSPENDED")
COLD = "migration"
"""Kind of a migration that an admin asked for, as Nova has it; a user's is ``resize``."""


class MoveWay(StrEnum):
    """The ways of dealing with a server."""

    LIVE = "live-migrate"
    MIGRATE = "migrate"
    EVACUATE = "evacuate"
    SHELVE = "shelve"
    CONFIRM = "confirm"
    """Confirm its migration: Nova keeps its old place until then."""
    FOLLOW = "follow"
    """Wait until Nova is done with it; what comes after is seen then."""
    WAIT = "wait"
    """Do nothing now; there is a time, or somebody else's doing, that changes that."""
    STAY = "stay"
    """Do nothing: gpuyard can do nothing about it."""


ACTS = frozenset({MoveWay.LIVE, MoveWay.MIGRATE, MoveWay.EVACUATE, MoveWay.SHELVE, MoveWay.CONFIRM})


@dataclass(frozen=True)
class MoveRules:
    """The operator's choices for moves."""

    purpose: Purpose = Purpose.DRAIN
    shelve: bool = False
    """Shelve servers for which there is no room, and offload those that are shelved."""
    ahead: timedelta = timedelta(days=1)
    """GPUs that somebody has booked within this time are no target."""
    since: datetime | None = None
    """When the host began to be emptied; migrations from before are somebody else's."""


@dataclass(frozen=True)
class MoveVerdict:
    """The verdict on one server."""

    server: GuestServer
    way: MoveWay
    reason: str
    target: str = ""
    gpus: tuple[str, ...] = ()
    """Names of the GPUs that are set aside for it there."""
    when: datetime | None = None
    """When to plan again for a server that waits."""
    losses: tuple[str, ...] = ()
    not_live: str = ""
    """Why it is not migrated while it runs; empty where that does not matter."""
    others: tuple[tuple[str, str], ...] = ()
    """Other hosts, each with why it does not go there."""

    def __str__(self) -> str:
        where = f" to {self.target}" if self.target else ""
        return f"{self.server.name}: {self.way.value}{where}: {self.reason}"

    def as_dict(self) -> dict[str, Any]:
        """Return the verdict for JSON; keys are only ever added."""
        return {
            "id": self.server.id, "server": self.server.name, "status": self.server.status,
            "project": self.server.project, "user": self.server.user, "flavor": self.server.flavor.name,
            "gpus": list(self.server.gpus), "way": self.way.value, "target": self.target, "when": self.when,
            "reason": self.reason, "losses": list(self.losses), "not_live": self.not_live,
            "others": [{"host": host, "reason": reason} for host, reason in self.others],
        }  # fmt: skip


@dataclass(frozen=True)
class MovePlan:
    """The verdicts on all servers of one host."""

    host: str
    purpose: Purpose
    verdicts: tuple[MoveVerdict, ...]
    """In the order in which they are carried out."""

    @property
    def acts(self) -> tuple[MoveVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.way in ACTS)

    @property
    def under_way(self) -> tuple[MoveVerdict, ...]:
        return tuple(verdict for verdict in self.verdicts if verdict.way is MoveWay.FOLLOW)

    @property
    def left(self) -> tuple[MoveVerdict, ...]:
        """Servers that keep the host from being empty once the plan is carried out."""
        return tuple(verdict for verdict in self.verdicts if verdict.way not in ACTS)


def plan_moves(facts: MovesFacts, rules: MoveRules) -> MovePlan:
    """Plan the moves of a host's servers. Servers with most GPUs choose first: they have least choice."""
    ends = facts.now + rules.ahead
    soon = [kept_time for kept_time in facts.kept or () if kept_time.start < ends and kept_time.end > facts.now]
    planner = _Planner(facts, rules, soon)
    order = sorted(facts.servers, key=lambda server: (-len(server.gpus), -server.flavor.ram, server.name, server.id))
    return MovePlan(facts.host, rules.purpose, tuple(map(planner.verdict, order)))


class _Planner:
    def __init__(self, facts: MovesFacts, rules: MoveRules, soon: Sequence[KeptTime]) -> None:
        self._facts, self._rules = facts, rules
        self._space = Space(facts.room, facts.statuses, facts.host, soon)
        self._moves: dict[str, list[MigrationSeen]] = {}
        for migration in facts.migrations:
            self._moves.setdefault(migration.server, []).append(migration)

    def verdict(self, server: GuestServer) -> MoveVerdict:
        early = self._under_way(server) or self._not_ours_to_move(server)
        if early is not None:
            return early
        return self._dead(server) if self._rules.purpose is Purpose.EVACUATE else self._alive(server)

    def _under_way(self, server: GuestServer) -> MoveVerdict | None:
        if self._rules.purpose is Purpose.EVACUATE and server.task and not server.task.startswith("rebuild"):
            why = (
                f"Nova was at work on it ({server.task}) when its host died, and waits for that host: openstack server "
            )
            return MoveVerdict(server, MoveWay.STAY, f"{why}set --state active {server.id}, then evacuate again")
        if server.task:
            return MoveVerdict(server, MoveWay.FOLLOW, f"Nova is at work on it: {server.task}")
        if server.status == "VERIFY_RESIZE":
            return self._unconfirmed(server)
        if server.busy:
            return MoveVerdict(server, MoveWay.FOLLOW, f"it is {server.status}")
        moves = [migration for migration in self._moves.get(server.id, ()) if on_its_way(migration)]
        if moves:
            return MoveVerdict(server, MoveWay.FOLLOW, f"its {moves[0].kind} to {moves[0].target} is {moves[0].status}")
        return None

    def _unconfirmed(self, server: GuestServer) -> MoveVerdict:
        mine = self._moves.get(server.id, ())
        if any(migration.status in ENDING for migration in mine):
            return MoveVerdict(server, MoveWay.FOLLOW, "its migration is being confirmed or reverted")
        moves = [migration for migration in mine if migration.status == FINISHED]
        if not moves:
            why = "its owner has resized it, and has to confirm or revert that first"
            return MoveVerdict(server, MoveWay.STAY, f"{why}: openstack server resize confirm {server.id}")
        move = moves[0]
        since = self._rules.since
        if move.kind != COLD:
            why = f"its owner has resized it away to {move.target}, and keeps its place here until that is confirmed"
            return MoveVerdict(server, MoveWay.STAY, f"{why}: openstack server resize confirm {server.id}")
        if since is None or move.created is None or move.created < since:
            why = f"somebody has migrated it to {move.target} before this drain, and has to confirm or revert that"
            return MoveVerdict(server, MoveWay.STAY, f"{why}: openstack server resize confirm {server.id}")
        return MoveVerdict(server, MoveWay.CONFIRM, f"it is on {move.target}", target=move.target or "")

    def _not_ours_to_move(self, server: GuestServer) -> MoveVerdict | None:
        if server.ours and self._rules.purpose is Purpose.DRAIN:
            return MoveVerdict(
                server, MoveWay.WAIT, "gpuyard itself has started it, and deletes it when its work is done"
            )
        if server.status == "SHELVED" and self._rules.purpose is Purpose.DRAIN:
            return self._shelved(server)
        if server.status in ("SOFT_DELETED", GONE_FROM_HOST):
            return MoveVerdict(
                server, MoveWay.STAY, f"it is {server.status}: openstack server delete --force {server.id}"
            )
        return None

    def _shelved(self, server: GuestServer) -> MoveVerdict:
        """Of a server that is off, and has its disks and GPUs on the host. Offloading it deletes those disks that are
        neither volumes nor in the image that shelving made (nova 34.0.0, `_shelve_offload_instance`)."""
        lost = losses(server, MoveWay.SHELVE.value)
        if self._rules.shelve:
            return MoveVerdict(server, MoveWay.SHELVE, "it is shelved already, and is offloaded", losses=lost)
        gone = "; ".join(loss for loss in lost if loss.endswith("is lost"))
        cost = f", after which {gone}" if gone else ""
        return MoveVerdict(
            server, MoveWay.STAY, f"it is shelved, and its disks and GPUs are still here; --shelve offloads it{cost}"
        )

    def _alive(self, server: GuestServer) -> MoveVerdict:
        if server.status == "ERROR":
            why = f"it is in ERROR: mend it (openstack server reboot --hard {server.id}), or delete it"
            return MoveVerdict(server, MoveWay.STAY, why)
        places = self._space.ask(server)
        free = next((place for place in places if not place.why_not), None)
        not_live = self._why_not_live(server)
        others = tuple((place.host, place.why_not) for place in places if place.why_not)
        if free is not None and server.status in MIGRATES:
            self._space.take(server, free)
            way = MoveWay.MIGRATE if not_live else MoveWay.LIVE
            return MoveVerdict(
                server, way, _room(server, free), free.host, free.gpus, None, losses(server, way.value), not_live,
                others,
            )  # fmt: skip
        if free is not None:
            why = f"Nova migrates no server that is {server.status}"
        else:
            why = _no_room(server, places, self._space.hosts)
        if self._rules.shelve and server.status in SHELVES:
            return MoveVerdict(
                server,
                MoveWay.SHELVE,
                why,
                losses=losses(server, MoveWay.SHELVE.value),
                not_live=not_live,
                others=others,
            )
        return self._later(server, why, places, others)

    def _later(
        self, server: GuestServer, why: str, places: Sequence[HostPlace], others: tuple[tuple[str, str], ...]
    ) -> MoveVerdict:
        """When there may be room, or need for none: the earlier of the two."""
        own = [kept_time for kept_time in self._on(server.gpus) if kept_time.kind is BookingKind.BOOKING]
        place_ends = [max(kept_time.end for kept_time in place.kept) for place in places if place.kept]
        taken = self._bookings_of_others(server)
        times: list[tuple[datetime, str]] = [
            (booking.end, f"its own booking {booking.id} ends then") for booking in own
        ]
        times += [(end, "a GPU that is booked or held is free again then") for end in place_ends]
        times += [(booking.end, f"booking {booking.id} of {booking.who} ends then") for booking in taken]
        if server.status in SHELVES:
            why += "; --shelve shelves it"
        if not times:
            return MoveVerdict(server, MoveWay.WAIT, why, others=others)
        when, what = min(times)
        return MoveVerdict(
            server, MoveWay.WAIT, f"{why}; look again at {spell(when)}: {what}", when=when, others=others
        )

    def _on(self, gpus: Iterable[str]) -> list[KeptTime]:
        gpu_names, now = set(gpus), self._facts.now
        return [
            kept_time
            for kept_time in self._facts.kept or ()
            if kept_time.gpus & gpu_names and kept_time.start <= now < kept_time.end
        ]

    def _bookings_of_others(self, server: GuestServer) -> list[KeptTime]:
        """Those that are on, on other hosts' GPUs of the same pools."""
        pools = {gpu.provider_name: gpu.pool for gpu in self._facts.room.gpus if gpu.host != self._facts.host}
        mine = {gpu.pool for gpu in self._facts.room.gpus if gpu.provider_name in server.gpus}
        gpu_names = {name for name, pool in pools.items() if pool in mine}
        return [kept_time for kept_time in self._on(gpu_names) if kept_time.kind is BookingKind.BOOKING]

    def _dead(self, server: GuestServer) -> MoveVerdict:
        if server.status not in EVACUATES:
            why = f"Nova evacuates no server that is {server.status}; it comes back with its host, or is deleted"
            return MoveVerdict(server, MoveWay.STAY, why)
        places = self._space.ask(server)
        free = next((place for place in places if not place.why_not), None)
        others = tuple((place.host, place.why_not) for place in places if place.why_not)
        if free is None:
            return MoveVerdict(server, MoveWay.WAIT, _no_room(server, places, self._space.hosts), others=others)
        self._space.take(server, free)
        return MoveVerdict(
            server, MoveWay.EVACUATE, _room(server, free), free.host, free.gpus, None,
            losses(server, MoveWay.EVACUATE.value), "", others,
        )  # fmt: skip

    def _why_not_live(self, server: GuestServer) -> str:
        if server.status != "ACTIVE":
            return f"it is {server.status}"
        return self._facts.not_live.get(server.id, "")


def _room(server: GuestServer, place: HostPlace) -> str:
    if not server.gpus:
        return f"{place.host} has room for its flavor {server.flavor.name}"
    return f"{place.host} has {counted(len(server.gpus), 'such GPU')} and room for its flavor {server.flavor.name}"


def _no_room(server: GuestServer, places: Sequence[HostPlace], hosts: Sequence[str]) -> str:
    if not hosts:
        return "there is no other host"
    if not places:
        return "no other host has such GPUs" if server.gpus else "no other host takes its flavor"
    if len(places) == 1:
        return f"{places[0].host}, the only other host for it: {places[0].why_not}"
    return f"none of {len(places)} other hosts has room"
