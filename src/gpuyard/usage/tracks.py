"""Translates one observation of the cloud into the state and tenure of every GPU, as history records them. Pure.

A claim counts as use only once its server was launched on that GPU; before that, and while Nova moves it there, the GPU
is starting. A GPU that is kept free for a booking still to come is stranded, not booked: booked time begins with the
booking.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from gpuyard.bookings.records import LedgerSeen
from gpuyard.model.booking import Booking, BookingKind
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.world import Snapshot
from gpuyard.usage.lives import whole
from gpuyard.usage.recorder import GpuKey, Track, with_booking
from gpuyard.usage.records import Tenure, TrackState

SOON = "kept free for a booking that is about to begin"
CHANGING = frozenset({"RESIZE", "REVERT_RESIZE"})
"""Statuses in which a server's GPUs in Placement may be those that it is to get, and its own a migration's."""


def tracks_of(statuses: Iterable[GpuStatus], snapshot: Snapshot, ledger: LedgerSeen) -> dict[GpuKey, Track]:
    """Return the track of every GPU. `statuses`: of `snapshot`."""
    return {(s.gpu.host, s.gpu.address, s.gpu.pool): _track(s, snapshot, ledger) for s in statuses}


def _track(status: GpuStatus, snapshot: Snapshot, ledger: LedgerSeen) -> Track:
    if status.state is GpuState.CLAIMED:
        return _claimed(status, snapshot, ledger)
    if status.gpu.host in snapshot.silent_hosts:
        return Track(TrackState.UNSEEN)
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
    moves = server.status in CHANGING or server.host not in (None, status.gpu.host)
    if moves or not _launched_by(server.launched, snapshot.taken_at):
        return Track(TrackState.STARTING, tenure)
    return Track(TrackState.CLAIMED, tenure, server.launched)


def _launched_by(launched: datetime | None, taken: datetime) -> bool:
    """Return whether it was when the look began: what happened while it went on is for the next one."""
    return launched is not None and whole(launched) <= whole(taken)


def _drawn_on(status: GpuStatus, server: str, ledger: LedgerSeen) -> Booking | None:
    """Of several bookings the one whose lane the GPU is of, else the first."""
    mine = [ledger.bookings[id] for id in ledger.drawn.get(server, ()) if id in ledger.bookings]
    lane = ledger.lanes.get((status.gpu.host, status.gpu.address))
    return next((booking for booking in mine if lane in booking.lanes), mine[0] if mine else None)
