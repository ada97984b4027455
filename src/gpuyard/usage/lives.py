"""Reconstructs when a server had its GPUs, and how many, from Nova's own records of it. Pure.

`launched_at` is when a server was launched the last time: unshelving, resizing and rescuing move it. So the first one
is no later than the end of the action that created it, and what was between is known by the times of the actions that
gave GPUs back and got others.

Nova tells the flavor that a server has, and when it was resized; not the flavors that it had. So its life is cut into
times of one flavor each, and how many GPUs each one had is taken from what is certain: the flavor it has now, what
observations recorded, and that a revert, or a flavor of the same id, brings the same back. The rest stays unknown.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuyard.model.world import Server

Span = tuple[datetime, datetime | None]
"""[start, end); None: it goes on."""
BEGINNING = datetime.min.replace(tzinfo=UTC)
CREATE, SHELVE, OFFLOAD, UNSHELVE = "create", "shelve", "shelveOffload", "unshelve"
RESIZE, REVERT = "resize", "revertResize"
MOVES = frozenset({RESIZE, "migrate", "live-migration", "evacuate", REVERT})
"""Actions at whose end a server goes on with other GPUs than before."""
WITH_OLD_FLAVOR = frozenset({"resize_prep", "resize_migrating", "resize_migrated"})
"""Tasks of a resize before which Nova gives the server its new flavor (nova 34.0.0, compute/manager.py,
`_finish_resize`)."""


@dataclass(frozen=True)
class Deed:
    """One action that Nova took on a server."""

    action: str
    """Nova's name of it: ``create``, ``shelveOffload`` ..."""
    started: datetime
    finished: datetime | None
    """None while it goes on. Of one of MOVES: when the server had its other GPUs."""
    failed: bool = False
    """Some part of it failed; the rest may have been done all the same, elsewhere. Of one of MOVES: it was not done."""
    offloaded: datetime | None = None
    """Of a ``shelve``: when that made the server give its GPUs back, where it did. Of a ``revertResize``, too: others
    may get them before the server is on its old ones again."""
    flavors: tuple[int, int] | None = None
    """Of a ``resize``: Nova's own ids of the flavors before and after it, where its migration tells."""

    @property
    def is_done_move(self) -> bool:
        return self.action in MOVES and self.finished is not None and not self.failed

    @property
    def is_move_under_way(self) -> bool:
        return self.action in MOVES and self.finished is None and not self.failed


@dataclass(frozen=True)
class ServerLife:
    """A server of any project, there or deleted, with what Nova remembers of it."""

    server: Server
    pool: str
    """The pool of its flavor's GPUs; empty when they are of no pool of the site's, or there are none."""
    gpus: int
    deeds: tuple[Deed, ...] = ()
    terminated: datetime | None = None
    """None: it is there, or was never launched."""

    @property
    def is_moving(self) -> bool:
        return any(deed.is_move_under_way for deed in self.deeds)


@dataclass(frozen=True)
class FlavorSpan:
    """A time [start, end) in which a server had one flavor."""

    start: datetime
    end: datetime | None
    """None: it has it now."""
    pool: str = ""
    gpus: int | None = None
    """None: nobody can tell. Then `pool` is empty."""


def use_spans(life: ServerLife) -> list[Span]:
    """Return the times in which a server had its GPUs and was launched, in order, in whole seconds."""
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
    """Return the moments at which a server went on with other GPUs, in order."""
    return sorted(whole(deed.finished) for deed in life.deeds if deed.finished is not None and deed.is_done_move)


def flavor_spans(life: ServerLife, recorded: Iterable[tuple[datetime, datetime, str]] = ()) -> list[FlavorSpan]:
    """Return the times in which a server had one flavor each, in order. `recorded`: of each of its GPUs that is known,
    [start, end) and the pool."""
    changes = _flavor_changes(life)
    starts = [BEGINNING, *(time for time, _ in changes)]
    bounds = list(zip(starts, [*starts[1:], None], strict=True))
    gpu_spans = list(recorded)
    sizes = [_most_at_once(gpu_spans, *span) for span in bounds]
    if life.server.task in WITH_OLD_FLAVOR or not any(
        deed.is_move_under_way and deed.action in (RESIZE, REVERT) for deed in life.deeds
    ):
        sizes[-1] = life.pool, life.gpus
    names = _names([deed for _, deed in changes])
    for _ in bounds:  # what is known of one is known of those with the same name
        by_name = {name: size for size, mine in zip(sizes, names, strict=True) if size for name in mine}
        sizes = [size or next((by_name[n] for n in mine if n in by_name), None)
                 for size, mine in zip(sizes, names, strict=True)]  # fmt: skip
    return [FlavorSpan(*span, *(size or ("", None))) for span, size in zip(bounds, sizes, strict=True)]


def _flavor_changes(life: ServerLife) -> list[tuple[datetime, Deed]]:
    """Resizes and their reverts that were done, in order; cold migrations are reverted by the same action."""
    done = [(whole(deed.finished), deed) for deed in life.deeds if deed.finished and deed.is_done_move]
    changes, last = [], ""
    for time, deed in sorted(done, key=lambda pair: pair[0]):
        if deed.action == RESIZE or (deed.action == REVERT and last == RESIZE):
            changes.append((time, deed))
        last = deed.action
    return changes


def _names(changes: Sequence[Deed]) -> list[set[Hashable]]:
    """What the flavor of each span is known by. Two spans with a name in common have the same flavor: a revert goes
    back to that of before the resize, and Nova's migrations have ids of flavors."""
    names: list[set[Hashable]] = [{0}]
    before = None
    for number, deed in enumerate(changes, 1):
        mine: set[Hashable] = {number}
        if deed.action == RESIZE:
            before = number - 1
            if deed.flavors is not None:
                names[-1].add(("flavor", deed.flavors[0]))
                mine.add(("flavor", deed.flavors[1]))
        elif before is not None:
            mine = names[before]
        names.append(mine)
    return names


def _most_at_once(
    gpu_spans: Iterable[tuple[datetime, datetime, str]], start: datetime, end: datetime | None
) -> tuple[str, int] | None:
    """The pool of GPUs that were known in [start, end), and how many at one time; None when none was."""
    parts = [(max(a, start), b if end is None else min(b, end), pool) for a, b, pool in gpu_spans]
    turns = sorted([(a, 1, pool) for a, b, pool in parts if a < b] + [(b, -1, pool) for a, b, pool in parts if a < b])
    now, most, of = 0, 0, ""
    for _, by, pool in turns:  # of one moment the ends come first
        now += by
        most, of = (now, pool) if now > most else (most, of)
    return (of, most) if most else None


def _turns(life: ServerLife) -> Iterable[tuple[datetime, bool]]:
    if life.server.launched is None:
        return
    created = min((deed.finished for deed in life.deeds if deed.action == CREATE and deed.finished), default=None)
    yield whole(life.server.launched if created is None else min(created, life.server.launched)), True
    for deed in sorted(life.deeds, key=lambda candidate: candidate.started):
        if deed.offloaded is not None:
            yield whole(deed.offloaded), False
        if deed.finished is None or deed.failed:
            continue
        if deed.action == OFFLOAD:
            yield whole(deed.finished), False
        elif deed.action == REVERT and deed.offloaded is not None:
            yield whole(deed.finished), True
        elif deed.action == UNSHELVE:
            anew = deed.started < life.server.launched <= deed.finished
            yield whole(life.server.launched if anew else deed.finished), True
    if life.terminated is not None:
        yield whole(life.terminated), False


def whole(time: datetime) -> datetime:
    """Return a time without its part of a second."""
    return time.replace(microsecond=0)


def cut(spans: Iterable[Span], start: datetime, end: datetime) -> list[tuple[datetime, datetime]]:
    """Return the parts of spans that are in [start, end)."""
    clipped = ((max(a, start), end if b is None else min(b, end)) for a, b in spans)
    return [(a, b) for a, b in clipped if a < b]


def without(
    spans: Sequence[tuple[datetime, datetime]], others: Iterable[tuple[datetime, datetime]]
) -> list[tuple[datetime, datetime]]:
    """Return the parts of spans that are in none of the others."""
    left = list(spans)
    for low, high in others:
        left = [part for a, b in left for part in ((a, min(b, low)), (max(a, high), b)) if part[0] < part[1]]
    return left
