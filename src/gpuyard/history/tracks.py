"""What one look at the cloud says of every GPU, in the words of history. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from gpuyard.history.lives import whole
from gpuyard.history.recorder import GpuKey, Track, with_booking
from gpuyard.history.records import Tenure, TrackState
from gpuyard.model.booking import Booking, BookingKind, Lane
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.world import Snapshot

SOON = "kept free for a booking that is about to begin"


@dataclass(frozen=True)
class LedgerSeen:
    """What the ledger said of GPUs when the cloud was looked at."""

    bookings: Mapping[str, Booking] = field(default_factory=dict)
    """By id: those that have lanes."""
    drawn: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Id of a server -> ids of the bookings that it draws on."""
    lanes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Host and address of a GPU -> the lane that it is of."""


def lanes_of(lanes: Iterable[Lane]) -> dict[tuple[str, str], int]:
    return {(lane.host, address): lane.id for lane in lanes for address in lane.addresses}


def tracks_of(statuses: Iterable[GpuStatus], snapshot: Snapshot, ledger: LedgerSeen) -> dict[GpuKey, Track]:
    """`statuses`: of `snapshot`."""
    return {(s.gpu.host, s.gpu.address, s.gpu.pool): _track(s, snapshot, ledger) for s in statuses}


def _track(status: GpuStatus, snapshot: Snapshot, ledger: LedgerSeen) -> Track:
    if status.state is GpuState.CLAIMED:
        return _claimed(status, snapshot, ledger)
    state = TrackState(status.state.value)
    booking = ledger.bookings.get(status.booking)
    if booking is None:
        return Track(state, Tenure(status.reason, status.booking))
    if booking.kind is BookingKind.BOOKING and whole(booking.ask.start) > whole(snapshot.taken_at):
        # It is kept free for what is to come: what is booked begins with the booking.
        return Track(TrackState.STRANDED, Tenure(SOON))
    own = Tenure(
        status.reason, user_id=booking.user_id, user=booking.user, project_id=booking.project_id,
        project=booking.project,
    )  # fmt: skip
    return Track(state, with_booking(own, booking))


def _claimed(status: GpuStatus, snapshot: Snapshot, ledger: LedgerSeen) -> Track:
    claim = status.claim
    server = snapshot.servers.get(claim.server_id) if claim else None
    if claim is None or server is None:
        return Track(TrackState.STARTING, Tenure(status.reason, server=claim.server_id if claim else ""))
    tenure = Tenure(
        status.reason, "", "", server.id, server.name, server.user_id, server.user, server.project_id, server.project,
        server.flavor,
    )  # fmt: skip
    booking = _drawn_on(status, server.id, ledger)
    tenure = with_booking(tenure, booking) if booking else tenure
    if not _launched_by(server.launched, snapshot.taken_at):
        return Track(TrackState.STARTING, tenure)
    return Track(TrackState.CLAIMED, tenure, server.launched)


def _launched_by(launched: datetime | None, taken: datetime) -> bool:
    """Whether it was when the look began: what happened while it went on is for the next one."""
    return launched is not None and whole(launched) <= whole(taken)


def _drawn_on(status: GpuStatus, server: str, ledger: LedgerSeen) -> Booking | None:
    """Of several bookings the one whose lane the GPU is of, else the first."""
    mine = [ledger.bookings[id] for id in ledger.drawn.get(server, ()) if id in ledger.bookings]
    lane = ledger.lanes.get((status.gpu.host, status.gpu.address))
    return next((one for one in mine if lane in one.lanes), mine[0] if mine else None)
