"""When a server had its GPUs, by Nova's own records of it. Pure.

`launched_at` is when a server was launched the last time: unshelving, resizing and rescuing move it. So the first one
is no later than the end of the action that created it, and what was between is known by the times of the actions that
gave GPUs back and got others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.model.world import Server

Span = tuple[datetime, datetime | None]
"""[start, end); None: it goes on."""
CREATE, SHELVE, OFFLOAD, UNSHELVE = "create", "shelve", "shelveOffload", "unshelve"
MOVES = frozenset({"resize", "migrate", "live-migration", "evacuate", "revertResize"})
"""Actions at whose end a server goes on with other GPUs than before."""


@dataclass(frozen=True)
class Deed:
    """One action of Nova's on a server."""

    action: str
    """Nova's name of it: ``create``, ``shelveOffload`` ..."""
    started: datetime
    finished: datetime | None
    """None while it goes on."""
    failed: bool = False
    """Some part of it did; the rest may have been done all the same, elsewhere."""
    offloaded: datetime | None = None
    """Of a ``shelve``: when that made the server give its GPUs back, where it did."""


@dataclass(frozen=True)
class ServerLife:
    """A server of any project, there or deleted, with what Nova remembers of it."""

    server: Server
    pool: str
    """Of its flavor's GPUs; empty when they are of no pool of the site's, or there are none."""
    gpus: int
    deeds: tuple[Deed, ...] = ()
    terminated: datetime | None = None
    """None: it is there, or was never launched."""


def use_spans(life: ServerLife) -> list[Span]:
    """The times that it had its GPUs and was launched, in order, in whole seconds."""
    turns = sorted(_turns(life), key=lambda turn: turn[0])  # of one second as they were done
    spans: list[Span] = []
    since: datetime | None = None
    for time, on in turns:
        if on and since is None:
            since = time
        elif not on and since is not None:
            spans += [(since, time)] if since < time else []
            since = None
    return [*spans, (since, None)] if since is not None else spans


def moves(life: ServerLife) -> list[datetime]:
    """When it went on with other GPUs, in order."""
    done = (deed.finished for deed in life.deeds if deed.action in MOVES and not deed.failed)
    return sorted(whole(time) for time in done if time is not None)


def _turns(life: ServerLife) -> Iterable[tuple[datetime, bool]]:
    if life.server.launched is None:
        return
    created = min((deed.finished for deed in life.deeds if deed.action == CREATE and deed.finished), default=None)
    yield whole(life.server.launched if created is None else min(created, life.server.launched)), True
    for deed in sorted(life.deeds, key=lambda one: one.started):
        if deed.offloaded is not None:
            yield whole(deed.offloaded), False
        if deed.finished is None or deed.failed:
            continue
        if deed.action == OFFLOAD:
            yield whole(deed.finished), False
        elif deed.action == UNSHELVE:
            anew = deed.started < life.server.launched <= deed.finished
            yield whole(life.server.launched if anew else deed.finished), True
    if life.terminated is not None:
        yield whole(life.terminated), False


def whole(time: datetime) -> datetime:
    """Without its part of a second."""
    return time.replace(microsecond=0)


def cut(spans: Iterable[Span], start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """What is in [start, end)."""
    clipped = ((max(a, start), end if b is None else min(b, end)) for a, b in spans)
    return [(a, b) for a, b in clipped if a < b]


def without(
    spans: Sequence[tuple[datetime, datetime]], others: Iterable[tuple[datetime, datetime]]
) -> list[tuple[datetime, datetime]]:
    """The parts of spans that are in none of the others."""
    left = list(spans)
    for low, high in others:
        left = [part for a, b in left for part in ((a, min(b, low)), (max(a, high), b)) if part[0] < part[1]]
    return left
