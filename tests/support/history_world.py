"""A small cloud in memory whose clock is an argument: what its servers did, what a look at it shows, and what Nova says
of them afterwards."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

from gpuyard.model.booking import Booking
from gpuyard.model.world import Server
from gpuyard.usage.lives import Deed, ServerLife
from gpuyard.usage.recorder import CloudSeen, GpuKey, Track, floor_of
from gpuyard.usage.records import Extent, Interval, Tenure, TrackState
from gpuyard.usage.store import HistoryStore, Which

ZERO = datetime(2026, 10, 5, 8, 0, tzinfo=UTC)
POOL = "t4"


def at(second: int) -> datetime:
    return ZERO + timedelta(seconds=second)


@dataclass
class SimServer:
    """One of Nova's, with all that it remembers. Times are seconds."""

    id: str
    gpus: int
    created: int
    host: str = "h"
    on: tuple[str, ...] = ()
    """Addresses that it has allocated."""
    launched: int | None = None
    terminated: int | None = None
    updated: int = 0
    deeds: list[tuple[str, int, int | None, bool]] = field(default_factory=list)
    """Action, start, finish, failed."""
    uses: list[tuple[int, int | None]] = field(default_factory=list)
    """The truth: when it had its GPUs and was launched."""
    user: str = "ada"


class SimCloud:
    """GPUs of one host and pool. What is to happen later is in `due`."""

    def __init__(self, gpus: int) -> None:
        self.gpus = [f"0000:{n:02x}:00.0" for n in range(gpus)]
        self.servers: dict[str, SimServer] = {}
        self.left: dict[str, str] = {}
        """Address -> the migration that has it still."""
        self.due: list[tuple[int, str, str]] = []
        """When, what, server."""
        self.second = 0

    def run(self, until: int) -> None:
        """Everything that is due until then, and at that second."""
        while self.due and min(self.due)[0] <= until:
            when, what, id = min(self.due)
            self.due.remove((when, what, id))
            self.second = when
            getattr(self, f"_{what}")(self.servers[id])
        self.second = until

    def free(self) -> list[str]:
        taken = {address for server in self.servers.values() for address in server.on} | self.left.keys()
        return [address for address in self.gpus if address not in taken]

    def _later(self, seconds: int, what: str, server: SimServer) -> None:
        self.due.append((self.second + seconds, what, server.id))

    def _busy(self, server: SimServer) -> bool:
        return any(id == server.id for _, _, id in self.due)

    # What people do; nothing where Nova would refuse it.

    def create(self, gpus: int, build: int, *, fails: bool = False, user: str = "ada") -> SimServer | None:
        free = self.free()
        if len(free) < gpus:
            return None
        server = SimServer(f"s{len(self.servers)}", gpus, self.second, on=tuple(free[:gpus]), user=user)
        server.updated = self.second
        server.deeds.append(("create", self.second, None, False))
        self.servers[server.id] = server
        self._later(build, "build_fails" if fails else "built", server)
        return server

    def delete(self, server: SimServer) -> None:
        if server.terminated is None and not self._busy(server):
            self._finish(server, "delete", self.second)
            self._off(server)
            server.terminated = self.second
            server.on = ()

    def offload(self, server: SimServer, takes: int) -> None:
        if server.launched is not None and server.on and server.terminated is None and not self._busy(server):
            server.deeds.append(("shelveOffload", self.second, None, False))
            self._later(takes, "offloaded", server)

    def unshelve(self, server: SimServer, takes: int, *, fails: bool = False) -> None:
        free = self.free()
        if server.launched is None or server.on or server.terminated is not None or len(free) < server.gpus:
            return
        if not self._busy(server):
            server.on = tuple(free[-server.gpus :])
            server.deeds.append(("unshelve", self.second, None, False))
            self._later(takes, "unshelve_fails" if fails else "unshelved", server)

    def migrate(self, server: SimServer, takes: int) -> None:
        free = self.free()
        if server.uses and server.on and server.gpus == 1 and free and not self._busy(server):
            self.left[server.on[0]] = f"migration-{server.id}"
            server.on = (free[0],)
            server.deeds.append(("migrate", self.second, None, False))
            self._later(takes, "migrated", server)

    def rescue(self, server: SimServer) -> None:
        """Moves launched_at, and nothing else."""
        if server.on and server.launched is not None and not self._busy(server):
            self._finish(server, "rescue", self.second)
            server.launched = self.second

    # What Nova does then.

    def _built(self, server: SimServer) -> None:
        self._end_deed(server)
        server.launched = self.second
        server.uses.append((self.second, None))

    def _build_fails(self, server: SimServer) -> None:
        self._end_deed(server, failed=True)
        server.on = ()

    def _offloaded(self, server: SimServer) -> None:
        self._end_deed(server)
        self._off(server)
        server.on = ()

    def _unshelved(self, server: SimServer) -> None:
        self._end_deed(server)
        server.uses.append((self.second, None))

    def _unshelve_fails(self, server: SimServer) -> None:
        self._end_deed(server, failed=True)
        server.on = ()

    def _migrated(self, server: SimServer) -> None:
        self._end_deed(server)
        server.launched = self.second
        server.deeds.append(("confirmResize", self.second, None, False))
        self._later(7, "confirmed", server)

    def _confirmed(self, server: SimServer) -> None:
        self._end_deed(server)
        self.left = {address: holder for address, holder in self.left.items() if holder != f"migration-{server.id}"}

    def _off(self, server: SimServer) -> None:
        if server.uses and server.uses[-1][1] is None:
            server.uses[-1] = (server.uses[-1][0], self.second)

    def _end_deed(self, server: SimServer, *, failed: bool = False) -> None:
        action, start, _, _ = server.deeds[-1]
        server.deeds[-1] = (action, start, self.second, failed)
        server.updated = self.second

    def _finish(self, server: SimServer, action: str, start: int) -> None:
        server.deeds.append((action, start, self.second, False))
        server.updated = self.second

    # What others see.

    def tracks(
        self, unnamed: frozenset[str] = frozenset(), hidden: frozenset[str] = frozenset()
    ) -> dict[GpuKey, Track]:
        """`unnamed`: servers that Nova does not tell of; `hidden`: those of which Placement does not."""
        by_address = {
            address: server for server in self.servers.values() for address in server.on if server.id not in hidden
        }
        return {("h", address, POOL): self._track(address, by_address.get(address), unnamed) for address in self.gpus}

    def _track(self, address: str, server: SimServer | None, unnamed: frozenset[str]) -> Track:
        if server is None and address in self.left:
            return Track(TrackState.STARTING, Tenure("allocated", server=self.left[address]))
        if server is None:
            return Track(TrackState.FREE)
        offloaded = server.uses and server.uses[-1][1] is not None  # Nova calls it that until it is there again
        if server.id in unnamed or offloaded:
            return Track(TrackState.STARTING, Tenure("allocated", server=server.id))
        if server.launched is None:
            return Track(TrackState.STARTING, _tenure(server))
        return Track(TrackState.CLAIMED, _tenure(server), at(server.launched))

    def seen(
        self,
        extent: Extent | None,
        store: HistoryStore,
        taken: datetime,
        tracks: dict[GpuKey, Track],
        unnamed: frozenset[str] = frozenset(),
        bookings: tuple[Booking, ...] = (),
        *,
        unnoticed: bool = False,
    ) -> CloudSeen:
        """What a look that began at `taken` and saw `tracks` makes of the cloud as it is by now. `unnoticed`: nothing
        says that servers are unnamed."""
        floor = floor_of(extent) if extent else taken
        alive = {server.id for server in self.servers.values() if server.terminated is None and server.on}
        had = {interval.tenure.server for interval in store.open() if interval.state is TrackState.CLAIMED}
        new = {track.tenure.server for track in tracks.values() if track.state is TrackState.CLAIMED} - had
        lives = {
            server.id: _life(server)
            for server in self.servers.values()
            if extent is not None and server.id not in unnamed and (at(server.updated) >= floor or server.id in new)
        }
        begins = {id: extent.first if extent and id in new else floor for id in lives}
        recorded = {id: store.intervals(begin, taken, Which(server=id)) for id, begin in begins.items()}
        return CloudSeen(taken, tracks, frozenset(alive - unnamed), lives, recorded, bookings, not unnamed or unnoticed)

    def used(self, first: int, last: int) -> Counter[str]:
        """GPU-seconds of every server in [first, last)."""
        seconds: Counter[str] = Counter()
        for server in self.servers.values():
            for start, end in server.uses:
                low, high = max(start, first), min(last if end is None else end, last)
                seconds[server.id] += server.gpus * max(0, high - low)
        return +seconds


def _tenure(server: SimServer) -> Tenure:
    return Tenure(
        "", "", "", server.id, f"name-{server.id}", f"id-{server.user}", server.user, "p", "alpha", f"gpu.{server.gpus}"
    )


def _life(sim: SimServer) -> ServerLife:
    server = Server(
        sim.id, f"name-{sim.id}", "ACTIVE", "h", "alpha", sim.user, f"gpu.{sim.gpus}", at(sim.created),
        None if sim.launched is None else at(sim.launched), f"id-{sim.user}", "p",
    )  # fmt: skip
    deeds = tuple(
        Deed(action, at(start), None if end is None else at(end), failed) for action, start, end, failed in sim.deeds
    )
    return ServerLife(server, POOL, sim.gpus, deeds, None if sim.terminated is None else at(sim.terminated))


def used_by(intervals: list[Interval], first: datetime, last: datetime) -> Counter[str]:
    """GPU-seconds of every server, as history has it."""
    seconds: Counter[str] = Counter()
    for interval in intervals:
        if interval.state is TrackState.CLAIMED:
            seconds[interval.tenure.server] += interval.seconds(first, last)
    return +seconds


def partition_problems(intervals: list[Interval], first: datetime, last: datetime) -> list[str]:
    """What keeps the intervals of each GPU from being a partition of [first, last)."""
    problems = []
    by_gpu: dict[tuple[str, str], list[Interval]] = {}
    for interval in intervals:
        if interval.address:
            by_gpu.setdefault((interval.host, interval.address), []).append(replace(interval, end=interval.end or last))
    for gpu, mine in by_gpu.items():
        mine.sort(key=lambda span: span.start)
        ends = [first, *(span.end or last for span in mine)]
        starts = [*(span.start for span in mine), last]
        problems += [f"{gpu}: {a} then {b}" for a, b in zip(ends, starts, strict=True) if a != b]
    return problems
