"""Decides what becomes of servers that keep GPUs without a booking: warn, wait, then what the rule says. Pure.

An overstay is one server's story from the first observation to the end: it is opened, its owner is warned and gets the
rule's time of grace, the action is taken, and it is finished or, once there is no reason any more, cleared. Only the
next step of each is decided here; it is decided again at the next run, so whatever failed or was interrupted is done
then. Which servers have to go where there are too few GPUs for bookings is decided in shortage.py.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from enum import StrEnum

from gpuyard.bookings.matching import Holder
from gpuyard.bookings.pool_view import PoolView
from gpuyard.bookings.records import Overstay
from gpuyard.bookings.shortage import tolerated
from gpuyard.model.booking import ReclaimAction
from gpuyard.model.moments import minute_text

MUST_BOOK = "must_book"
PAST_THE_END = "past the end"
TOO_MANY = "projects.gpus"
YIELDS = "yields to a booking"
IDLE = "idle"
RULES = {
    MUST_BOOK: "this pool's GPUs are only for those who have booked them",
    PAST_THE_END: "its booking is over",
    TOO_MANY: "its project has more GPUs without a booking than it may",
    YIELDS: "somebody has booked, and no other GPU is free",
    IDLE: "nothing has run on its GPUs for long",
}
"""The rule of an overstay -> the reason that the server's owner is given."""
ASKED = "Nova was told: "
REBUILDING = "REBUILD"
"""The status of a server that Nova rebuilds or evacuates (nova 34.0.0, nova/api/openstack/common.py, `_STATE_MAP`)."""


class Do(StrEnum):
    """The next step of an overstay; the members stand in the order of its life."""

    OPEN = "open"
    """Write the overstay down."""
    WARN = "warn"
    """Tell the owner, on the server and by an event, and write down when the time is up."""
    ACT = "act"
    """Take the GPU back: time is up."""
    FINISH = "finish"
    """Tell that the GPU is back by what was done."""
    CLEAR = "clear"
    """Take the warning off: the server need not give its GPU back any more."""


@dataclass(frozen=True)
class OverstayStep:
    do: Do
    overstay: Overstay
    """As it is to be written once it is done."""
    status: str = ""
    """The server's, as Nova has it."""


def reasons(view: PoolView, ended: Mapping[tuple[str, str], datetime], yielding: Iterable[str]) -> dict[str, str]:
    """Return server -> the rule by which it must go. `ended`: (user, project) -> when a booking of the pool that they
    could use was over last. Servers that Nova is still making are left for the next run."""
    may_stay, must_yield = tolerated(view), set(yielding)
    rules_by_server = {}
    for holder in view.strays:
        if holder.on_its_way or holder.status == "BUILD":
            continue
        if holder.id in may_stay:
            if holder.id in must_yield:
                rules_by_server[holder.id] = YIELDS
            continue
        over = ended.get((holder.user_id, holder.project_id))
        if over is not None and holder.created is not None and holder.created < over:
            rules_by_server[holder.id] = PAST_THE_END
        else:
            rules_by_server[holder.id] = TOO_MANY if holder.project_id in view.unbooked else MUST_BOOK
    return rules_by_server


def idle_ones(view: PoolView, idle: Collection[str]) -> dict[str, str]:
    """Return those of some servers that do nothing with GPUs of the pool, booked or not: server -> the rule by which it
    must go. Servers in trusted projects, where only gpuyard starts them, are left out."""
    return {
        holder.id: IDLE
        for holder in view.holders
        if holder.id in idle and holder.lanes and not holder.on_its_way and holder.status == "ACTIVE"
        and holder.project_id not in view.trusted
    }  # fmt: skip


def plan_overstays(
    view: PoolView,
    why: Mapping[str, str],
    overstays: Sequence[Overstay],
    dry_run: bool,
    now: datetime,
    only_warn: Collection[str] = (),
) -> list[OverstayStep]:
    """Plan the next step for each server of a pool. `overstays`: its open overstays; `only_warn`: rules by which
    nothing follows but a warning."""
    holders = {holder.id: holder for holder in view.holders if holder.lanes}
    steps = [
        _next(view, overstay, holders.get(overstay.server_id), why, dry_run, now, only_warn) for overstay in overstays
    ]
    known_servers = {overstay.server_id for overstay in overstays}
    for server, rule in why.items():
        if server not in known_servers:
            holder = holders[server]
            overstay = Overstay(
                server_id=server,
                server=holder.name,
                pool=view.pool,
                user_id=holder.user_id,
                project_id=holder.project_id,
                rule=rule,
                action=_action(view, holder, rule, only_warn),
                seen=now,
                dry_run=dry_run,
                text=RULES[rule],
            )
            steps.append(OverstayStep(Do.OPEN, overstay, holder.status))
    return [step for step in steps if step is not None]


def _next(
    view: PoolView,
    overstay: Overstay,
    holder: Holder | None,
    why: Mapping[str, str],
    dry_run: bool,
    now: datetime,
    only_warn: Collection[str],
) -> OverstayStep | None:
    if holder is None or overstay.server_id not in why:
        if holder is not None and holder.on_its_way:
            return None
        if holder is None and asked(overstay) and overstay.done is None:
            return OverstayStep(Do.FINISH, replace(overstay, done=now, cleared=now))
        return OverstayStep(Do.CLEAR, replace(overstay, cleared=now), holder.status if holder else "")
    rules = view.rules(holder.project)
    if overstay.dry_run != dry_run:
        # What was only said so far is said again, for real, with all of its time; or the other way round.
        fresh = replace(
            overstay, dry_run=dry_run, warned=None, due=None, done=None, text=RULES[why[overstay.server_id]]
        )
        return OverstayStep(Do.OPEN, fresh, holder.status)
    rule = why[overstay.server_id]
    overstay = replace(overstay, action=_action(view, holder, rule, only_warn), rule=rule)
    if overstay.warned is None or overstay.due is None:
        if holder.status == REBUILDING:
            # An evacuated server counts on both hosts until its new one has it: nothing that its owner could mend.
            return None
        return OverstayStep(Do.WARN, replace(overstay, warned=now, due=now + rules.grace), holder.status)
    if now < overstay.due or overstay.action is ReclaimAction.WARN:
        return None
    if overstay.done is not None and (
        dry_run or holder.status == "SHUTOFF" or overstay.action is not ReclaimAction.STOP
    ):
        return None
    if dry_run:
        return OverstayStep(Do.ACT, replace(overstay, done=now), holder.status)
    if overstay.action is ReclaimAction.STOP and holder.status == "SHUTOFF":
        return OverstayStep(Do.FINISH, replace(overstay, done=now), holder.status)
    return OverstayStep(Do.ACT, replace(overstay, text=ASKED + RULES[overstay.rule]), holder.status)


def _action(view: PoolView, holder: Holder, rule: str, only_warn: Collection[str]) -> ReclaimAction:
    return ReclaimAction.WARN if rule in only_warn else view.rules(holder.project).reclaim


def asked(overstay: Overstay) -> bool:
    """Return whether Nova was told to take the GPU back; it is told again until it has done so."""
    return overstay.text.startswith(ASKED)


def warning(overstay: Overstay) -> str:
    """Return the text that is written on the server: Nova takes 255 characters."""
    assert overstay.due is not None
    until = minute_text(overstay.due)
    if overstay.rule == IDLE:
        then = "" if overstay.action is ReclaimAction.WARN else f"; at {until} {MEANS[overstay.action]}"
        return f"{RULES[IDLE]}: use it, or delete or shelve this server, please, and end its booking{then}"[:255]
    if overstay.action is ReclaimAction.WARN:
        return f"gives its GPU back, please: {RULES[overstay.rule]}; book one, or delete or shelve this server"[:255]
    return (
        f"{until}: {MEANS[overstay.action]}, because {RULES[overstay.rule]}; book a GPU, or delete or shelve it before"[
            :255
        ]
    )


MEANS = {
    ReclaimAction.WARN: "nothing happens",
    ReclaimAction.SHELVE: "this server is shelved (it keeps its disk and can be unshelved)",
    ReclaimAction.STOP: "this server is shut off",
    ReclaimAction.SNAPSHOT_AND_DELETE: "this server is kept as an image and deleted",
    ReclaimAction.DELETE: "this server is deleted",
}
