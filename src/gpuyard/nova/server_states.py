"""Servers and migrations as Nova's API shows them, and the meaning of their statuses.

Types and constants that planners and readers share; nothing here asks a cloud. Statuses are those of nova 34.0.0:
`nova/api/openstack/common.py` has those of servers, `nova/compute/manager.py` those of migrations.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

GONE_FROM_HOST = "SHELVED_OFFLOADED"
"""Status of a server that has given back all its resources."""


MOVING = frozenset({"BUILD", "REBUILD", "RESIZE", "VERIFY_RESIZE", "REVERT_RESIZE", "MIGRATING"})
"""Statuses of servers that Nova is working on."""


ENDED = frozenset({"confirmed", "reverted", "error", "failed", "completed", "cancelled", "done"})
"""Statuses of migrations that Nova does not count as being in progress. 'finished' is not one of them: the server of
such a resize waits for its confirmation."""


def is_settled(status: str, task: str | None) -> bool:
    """Return whether Nova is doing nothing to a server, so that it has what it should have."""
    return not task and status not in MOVING


@dataclass(frozen=True)
class MigrationSeen:
    """A migration or resize that Nova remembers. Its id is the consumer of the old allocations in Placement
    meanwhile."""

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
    """Nova's status: ``BUILD``, ``ACTIVE``, ``ERROR``, ``SHUTOFF`` ..."""
    task: str = ""
    created: datetime | None = None
    fault: str = ""
    """The fault of one in ERROR."""
    ours: bool = True
    """Whether it has the tags of this site's runners; without them it is not touched."""


FINISHED = "finished"
"""Status of a migration that waits to be confirmed."""


ENDING = ("confirming", "reverting")


WAITING = frozenset({FINISHED, *ENDING})
"""Statuses in which a server is on its new host, and keeps its place on the old one."""


def on_its_way(migration: MigrationSeen) -> bool:
    """Return whether Nova still has something to do before the migration waits to be confirmed."""
    return migration.running and migration.status not in WAITING
