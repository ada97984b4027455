"""The types of history: intervals of GPUs, tenures, and sums of them.

All times are UTC and whole seconds, all spans of time half-open: [start, end).
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from datetime import date, datetime
from enum import StrEnum

from gpuyard.model.gpu import GpuState


class TrackState(StrEnum):
    """The state of a GPU in an interval: one of `GpuState`, or one of the two that only history knows."""

    FREE = GpuState.FREE.value
    CLAIMED = GpuState.CLAIMED.value
    """A server that Nova has launched had it: used, whether booked or not, running or shut off."""
    BOOKED = GpuState.BOOKED.value
    HELD = GpuState.HELD.value
    STRANDED = GpuState.STRANDED.value
    BLOCKED = GpuState.BLOCKED.value
    LOST = GpuState.LOST.value
    STARTING = "starting"
    """It was allocated, but to no server that was launched on it: Nova was making one, or moving one there. Nobody's
    use."""
    UNSEEN = "unseen"
    """Nobody observed it, and Nova's own times do not tell either."""


@dataclass(frozen=True)
class Tenure:
    """The server, booking or hold that a GPU was kept or used for. Words are empty where there is nothing to say.

    Of a GPU that is claimed: the server, and the booking, lease or loan that it draws on. Of one that is booked or
    held: whose booking or hold it is, without a server.
    """

    reason: str = ""
    """Why it is in its state, as `GpuStatus` had it when the interval began."""
    booking: str = ""
    """Id of the booking, hold, lease or loan."""
    kind: str = ""
    """The kind of that: a value of `BookingKind`. A claim without is unbooked use."""
    server: str = ""
    """Id; also of a consumer that is no server (a migration), which has no name."""
    server_name: str = ""
    user_id: str = ""
    user: str = ""
    """Name, as those of projects."""
    project_id: str = ""
    project: str = ""
    flavor: str = ""
    repository: str = ""
    """``owner/name``, of a runner."""


NOBODY = Tenure()


@dataclass(frozen=True)
class Interval:
    """One GPU in one state for one reason. Those of one GPU with a known address are a partition of the time from the
    first observation of it to the last one, as long as the site has it: no overlap and no hole."""

    host: str
    address: str
    """PCI address. Empty: a server came and went without being seen, and had a GPU of this host (empty where Nova does
    not tell) and pool, but it is not known which one; there is an interval for each of its GPUs."""
    pool: str
    state: TrackState
    start: datetime
    end: datetime | None
    """None: it goes on. What is known of it ends with the last observation (`Extent.until`)."""
    tenure: Tenure = NOBODY
    exact_start: bool = False
    """`start` is Nova's own time, or a booking's, and not that of the observation that saw it first; so for the end."""
    exact_end: bool = False

    def seconds(self, start: datetime, end: datetime) -> int:
        """Return how many of its seconds are in [start, end). One that goes on: pass an `end` no later than
        `Extent.until`."""
        last = end if self.end is None else min(self.end, end)
        return max(0, int((last - max(self.start, start)).total_seconds()))


@dataclass(frozen=True)
class Extent:
    """The span of time that the history of a site covers."""

    first: datetime
    """The first observation."""
    until: datetime
    """The last observation: later than this nothing is known."""
    settled: datetime
    """As of this observation, Nova has answered wholly: for all its cells. What is older does not change any more, but
    for `LATE` before it."""
    rolled: date | None = None
    """The last day that has its sums; None when none has."""


@dataclass(frozen=True)
class Slice:
    """The dimensions that sums are kept by. A word is empty where it does not apply, and in the answer to a question
    that does not ask by it."""

    tariff: str = ""
    """Name of the time of day and week that has a price of its own, as the site's tariffs had it then; empty: the
    usual price."""
    pool: str = ""
    host: str = ""
    project_id: str = ""
    project: str = ""
    user_id: str = ""
    user: str = ""
    repository: str = ""
    state: str = ""
    """A value of `TrackState`."""
    kind: str = ""
    """That of the tenure, of what is claimed or booked: ``booking``, ``runner``, ``loan``; unbooked use has none."""


DIMENSIONS = tuple(field.name for field in fields(Slice))


@dataclass(frozen=True)
class Sum:
    """GPU-seconds of a slice in a period."""

    period: date | None
    """The local day, or the first one of the local month; None in a sum over all time that was asked for."""
    slice: Slice
    seconds: int


@dataclass(frozen=True)
class HourSum:
    """GPU-seconds of a pool in one hour (beginning at `start`, counted from local midnight) and one state: for charts,
    by no person."""

    start: datetime
    pool: str
    state: str
    kind: str
    seconds: int
