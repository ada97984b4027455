"""Servers and migrations as Nova's API shows them, and what their statuses mean.

Types and constants that planners and readers share; nothing here asks a cloud. Statuses are those of nova 34.0.0:
`nova/api/openstack/common.py` has those of servers, `nova/compute/manager.py` those of migrations.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

GONE_FROM_HOST = "SHELVED_OFFLOADED"
"""Status of a server that has given back all it had."""


MOVING = frozenset({"BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING"})
"""Statuses of servers that something is being done to."""


ENDED = frozenset({"confirmed", "reverted", "error", "failed", "completed", "cancelled", "done"})
"""Statuses of migrations that Nova does not count as being in progress. 'finished' is not one of them: the server of
such a resize waits for its confirmation."""


def is_settled(status: str, task: str | None) -> bool:
    """Whether Nova is doing nothing to a server, so that what it has is what it should have."""
    return not task and status not in MOVING


@dataclass(frozen=True)
class MigrationSeen:
    """A migration or resize that Nova remembers. Its id is what holds the old allocations in Placement meanwhile."""

    id: str
    server: str
    status: str
    kind: str
    source: str | None
    target: str | None
    created: datetime | None = None
    flavors: tuple[int, int] | None = None
    """Nova's own ids of the server's flavors before and after, which no list of flavors has."""

    @property
    def running(self) -> bool:
        return self.status not in ENDED


UNKNOWN = "UNKNOWN"
"""Status of a server whose cell does not answer."""


@dataclass(frozen=True)
class SeenServer:
    """A server of ours as Nova shows it. Of one that is UNKNOWN it shows nothing but its id and when it was created."""

    id: str
    name: str
    status: str
    """Nova's: ``BUILD``, ``ACTIVE``, ``ERROR``, ``SHUTOFF`` ..."""
    task: str = ""
    created: datetime | None = None
    fault: str = ""
    """Of one in ERROR: why."""
    ours: bool = True
    """It has the tags of this site's runners; without them it is not touched."""


FINISHED = "finished"
"""Status of one that waits to be confirmed."""


ENDING = ("confirming", "reverting")


WAITING = frozenset({FINISHED, *ENDING})
"""Statuses in which a server is on its new host, and keeps its place on the old one."""


def on_its_way(migration: MigrationSeen) -> bool:
    """Whether Nova has still something to do before it waits for somebody's word."""
    return migration.running and migration.status not in WAITING
