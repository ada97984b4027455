"""Empties a host: moves one server after the other, and reads back each step.

Nothing is remembered but the tag on the host's nova-compute. A run that is killed at any step and started again reads
the rest from Nova: a server that is under way is followed, one that has arrived is confirmed, one that has left is not
there. A migration is confirmed only once Placement has the server's GPUs on its new host; else others could be given
the same. The next server moves only when the one before has arrived.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from time import monotonic, sleep
from typing import Any

from gpuyard.bookings.controllers.reclaim_servers import hand_over_shelved, images_of_ours
from gpuyard.drain.facts import GuestServer, MovesFacts
from gpuyard.drain.planner import MovePlan, MoveRules, MoveVerdict, MoveWay, plan_moves
from gpuyard.model.errors import BlockedError
from gpuyard.model.text import counted
from gpuyard.nova.server_states import GONE_FROM_HOST, MOVING, on_its_way
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.compute_service import ComputeService
from gpuyard.openstack.reader import Reader

CONFLICT, NOT_FOUND = 409, 404
UNCONFIRMED = "VERIFY_RESIZE"
ACTIONS = {
    MoveWay.MIGRATE: "migrate",
    MoveWay.LIVE: "os-migrateLive",
    MoveWay.EVACUATE: "evacuate",
}
LETTING_GO = timedelta(minutes=2)
"""Time in which Nova gives back what a server had, once it says that it is done with it."""
QUIET = timedelta(minutes=5)
"""Time after which a migration under way, of a server that Nova does nothing with, counts as forgotten by Nova."""


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Pace:
    """The time between two polls of a server, and the longest wait for one."""

    poll: float = 2.0
    """Seconds between polls of a server."""
    patience: timedelta = timedelta(hours=2)
    """Longest wait for one server: its disks are copied."""


class HostMover:
    """Moves the servers of one host in one run."""

    def __init__(
        self,
        api: CloudApi,
        read: Callable[[datetime], MovesFacts],
        rules: MoveRules,
        report: Callable[[str], None],
        pace: Pace | None = None,
        now: Callable[[], datetime] = utc_now,
    ) -> None:
        self._api, self._read, self._rules = api, read, rules
        self._report, self._pace, self._now = report, pace or Pace(), now
        self._followed: dict[str, float] = {}
        """Server -> since when its move is followed, in seconds of `monotonic`."""

    def plan(self, host: str, fenced: bool = False) -> MovePlan:
        """Return what would be done now; nothing is changed. Raises as `run`."""
        ComputeService(self._api, host).require(self._rules.purpose, fenced)
        tag = ComputeService(self._api, host).tag
        return self._plan(replace(self._rules, since=tag.since if tag else None))

    def run(self, host: str, fenced: bool = False) -> MovePlan:
        """Move servers until nothing is left that would be done; what keeps the host from being empty is in the plan
        that is returned. Raises BlockedError at the first server with which it does not go as planned, and
        CloudError."""
        tag = ComputeService(self._api, host).close(self._rules.purpose, fenced)
        self._report(f"{host}: closed for new servers ({tag})")
        rules = replace(self._rules, since=tag.since)
        while True:
            plan = self._one(rules)
            if not plan.acts:
                return plan

    def step(self, host: str) -> MovePlan:
        """Move one server as `run` does, of a host that is closed; return the plan by which it was chosen."""
        tag = ComputeService(self._api, host).close(self._rules.purpose)
        return self._one(replace(self._rules, since=tag.since))

    def _one(self, rules: MoveRules) -> MovePlan:
        """What somebody has begun comes to its end first."""
        while True:
            self._hand_over_images()
            plan = self._plan(rules)
            if plan.under_way:
                self._follow(plan.under_way[0])
                continue
            if plan.acts:
                self._carry_out(plan, plan.acts[0])
            return plan

    def _plan(self, rules: MoveRules) -> MovePlan:
        facts = self._read(self._now())
        if facts.kept is None:
            raise BlockedError(
                "it is not known which GPUs bookings and holds keep, so a server could be moved to somebody else's; "
                "see that the portal answers, or take the risk with --without-bookings"
            )
        return plan_moves(facts, rules)

    # One server.

    def _follow(self, verdict: MoveVerdict) -> None:
        """Of what somebody has begun."""
        server = verdict.server
        if server.id not in self._followed:
            self._report(f"{server.name}: {verdict.reason} ...")
        began = self._followed.setdefault(server.id, monotonic())
        patience = self._pace.patience if server.busy else min(self._pace.patience, QUIET)
        if monotonic() - began > patience.total_seconds():
            raise BlockedError(f"server {server}: {verdict.reason}, for {patience} now; see Nova's logs")
        self._settled(server)
        sleep(self._pace.poll)

    def _carry_out(self, plan: MovePlan, verdict: MoveVerdict) -> None:
        server = verdict.server
        where = f" to {verdict.target}" if verdict.target else ""
        self._report(f"{server.name}: {verdict.way.value}{where} ...")
        if verdict.way is MoveWay.CONFIRM:
            self._confirm(plan.host, server, verdict.target)
        elif verdict.way is MoveWay.SHELVE:
            self._shelve(server)
        else:
            self._act(server, ACTIONS[verdict.way], _body(verdict))
            self._arrived(plan.host, verdict, self._moved(server, plan.host))

    def _arrived(self, source: str, verdict: MoveVerdict, row: dict[str, Any] | None) -> None:
        server, target = verdict.server, verdict.target
        if row is None:
            self._report(f"{server.name}: its owner has deleted it")
            return
        host, status = row["OS-EXT-SRV-ATTR:host"], row["status"]
        if host != target or status == "ERROR":
            raise BlockedError(
                f"server {server} did not get to {target}: it is {status} on {host or 'no host'}{self._why(server)}. "
                "Nothing more is moved; mend what is wrong, and run the same again"
            )
        spare = self._require_gpus(server, target)
        if status == UNCONFIRMED:
            self._confirm(source, server, target)
        else:
            self._report(f"{server.name}: {status} on {target}{_counted_twice(spare, target)}")

    def _confirm(self, source: str, server: GuestServer, target: str) -> None:
        spare = self._require_gpus(server, target)
        self._act(server, "confirmResize", None)
        row = self._settled(server, confirmed=True)
        if row is not None and row["status"] == "ERROR":
            raise BlockedError(
                f"server {server} is on {target}, and Nova did not let go of {source}{self._why(server)}"
            )
        self._let_go(server, source)
        status = row["status"] if row else "deleted"
        more = _counted_twice(spare, target) if row else ""
        self._report(f"{server.name}: {status} on {target}, and gone from {source}{more}")

    def _shelve(self, server: GuestServer) -> None:
        row: dict[str, Any] | None = {"status": server.status}
        if server.status != "SHELVED":
            self._act(server, "shelve", None)
            row = self._settled(server)
        if row is not None and row["status"] == "SHELVED":
            hand_over_shelved(self._api, server.id, server.name, server.project_id)
            self._act(server, "shelveOffload", None)
            row = self._settled(server)
        if row is not None and row["status"] != GONE_FROM_HOST:
            raise BlockedError(f"server {server} was to be shelved, and is {row['status']}{self._why(server)}")
        hand_over_shelved(self._api, server.id, server.name, server.project_id)
        self._report(f"{server.name}: shelved; its owner starts it again with openstack server unshelve {server.id}")

    def _act(self, server: GuestServer, action: str, body: dict[str, Any] | None) -> None:
        """A conflict is no error: somebody else was quicker, and the next look sees what it is now."""
        try:
            self._api.request("POST", "compute", f"/servers/{server.id}/action", {action: body})
        except CloudError as error:
            if error.status not in (CONFLICT, NOT_FOUND):
                raise

    def _settled(self, server: GuestServer, confirmed: bool = False) -> dict[str, Any] | None:
        """The server once Nova does nothing with it any more; None when it is gone. `confirmed`: its migration was;
        Nova does that without saying that it is at work."""
        end = monotonic() + self._pace.patience.total_seconds()
        while True:
            try:
                row = dict(self._api.get("compute", f"/servers/{server.id}")["server"])
            except CloudError as error:
                if error.status != NOT_FOUND:
                    raise
                return None
            task, status = row["OS-EXT-STS:task_state"], row["status"]
            if task is None and (status not in MOVING or (status == UNCONFIRMED and not confirmed)):
                return row
            if monotonic() > end:
                raise BlockedError(
                    f"server {server} is {status} ({task}) for {self._pace.patience} now; look at the logs of "
                    "nova-compute on both hosts. The same command goes on from there"
                )
            sleep(self._pace.poll)

    def _moved(self, server: GuestServer, source: str) -> dict[str, Any] | None:
        """As `_settled`, once its migration is over, too: of an evacuation Nova writes the new host down last."""
        end = monotonic() + LETTING_GO.total_seconds()
        while True:
            row = self._settled(server)
            with Reader(self._api) as cloud:
                moves = cloud.migrations(source_compute=source).values()
            if not any(move.server == server.id and on_its_way(move) for move in moves) or monotonic() > end:
                return row
            sleep(self._pace.poll)

    # Read back.

    def _require_gpus(self, server: GuestServer, target: str) -> int:
        """That Placement has the server on its new host, with as many GPUs as before. Returns how many more it has."""
        with Reader(self._api) as cloud:
            providers = cloud.providers()
            allocations = cloud.allocations(server.id)
        amounts_by_provider = {id: amounts for id, amounts in allocations.items() if id in providers}
        mine = {id for id in amounts_by_provider if providers[providers[id].root_id].name == target}
        gpus = sum(sum(amounts_by_provider[id].values()) for id in mine if providers[id].root_id != id)
        expected = max(server.asks, len(server.gpus))  # one that waits to be confirmed has none on the old host
        if not mine or gpus < expected:
            raise BlockedError(
                f"server {server} is on {target}, and Placement has {gpus} of its {expected} GPUs there: "
                f"others would be given the same. See the log of nova-compute on {target}; it is not confirmed"
            )
        return gpus - expected

    def _let_go(self, server: GuestServer, source: str) -> None:
        """That neither the server nor one of its migrations has anything of its old host."""
        end = monotonic() + LETTING_GO.total_seconds()
        while True:
            with Reader(self._api) as cloud:
                providers = cloud.providers()
                moves = [
                    migration.id
                    for migration in cloud.migrations(source_compute=source).values()
                    if migration.server == server.id
                ]
                provider_ids = {id for consumer in (server.id, *moves) for id in cloud.allocations(consumer)}
            left = [providers[id].name for id in provider_ids if id in providers and _host_of(providers, id) == source]
            if not left:
                return
            if monotonic() > end:
                raise BlockedError(
                    f"server {server} has left {source}, and Placement still has {', '.join(sorted(left))} for it: "
                    f"gpuyard host leftovers {source} says more"
                )
            sleep(self._pace.poll)

    def _why(self, server: GuestServer) -> str:
        """What Nova says of the last thing that was done with a server."""
        with Reader(self._api) as cloud:
            row = cloud.seen_server(server.id)
            actions = sorted(cloud.actions(server.id), key=lambda action: action.started)
            message = cloud.words_of(server.id, actions[-1].request) if actions else ""
        words = message or (row.fault if row else "")
        return f" ({words})" if words else ""

    def _hand_over_images(self) -> None:
        """Those of servers that were shelved by a run that was killed before it came to this."""
        if not self._rules.shelve:
            return
        for image in images_of_ours(self._api, image_type="snapshot"):
            name, id = str(image["name"] or ""), str(image.get("instance_uuid") or "")
            if name.endswith("-shelved") and id:
                with Reader(self._api) as cloud:
                    row = cloud.seen_server(id)
                if row is not None and row.status in ("SHELVED", GONE_FROM_HOST) and name == f"{row.name}-shelved":
                    hand_over_shelved(self._api, row.id, row.name, row.project)


def _body(verdict: MoveVerdict) -> dict[str, Any]:
    body: dict[str, Any] = {"host": verdict.target}
    return body | {"block_migration": "auto"} if verdict.way is MoveWay.LIVE else body


def _counted_twice(spare: int, target: str) -> str:
    if not spare:
        return ""
    more = counted(spare, "GPU")
    return f"; Placement counts {more} more for it than it has: gpuyard host leftovers {target} --clean"


def _host_of(providers: Any, id: str) -> str:
    return str(providers[providers[id].root_id].name)
