"""Turns bookings and lanes into rows, and back. A row is a plain tuple in the order of `BOOKING` or `LANE`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpuyard.bookings.store.schema import BOOKINGS, LANES
from gpuyard.database.times import maybe_moment, maybe_seconds, moment, seconds
from gpuyard.model.booking import FOREVER, Ask, Booking, BookingKind, BookingState, Lane
from gpuyard.model.booking_life import TAKES_LANES

USED = TAKES_LANES | {BookingState.ENDED, BookingState.NO_SHOW}
"""States in which a booking's lanes are, or were, its own."""

GONE = "it is not in the site file any more"

BOOKING = tuple(BOOKINGS.columns)
LANE = (LANES.c.id, LANES.c.pool, LANES.c.host, LANES.c.addresses, LANES.c.trouble, LANES.c.gone, LANES.c.back)

_KINDS = {kind.value: kind for kind in BookingKind}
_STATES = {state.value: state for state in BookingState}


def booking_row(booking: Booking) -> dict[str, Any]:
    ask = booking.ask
    return {
        "id": booking.id,
        "pool": ask.pool,
        "kind": booking.kind.value,
        "state": booking.state.value,
        "starts": seconds(ask.start),
        "ends": seconds(ask.end),
        "gpus": ask.gpus,
        "same_group": ask.same_group,
        "same_host": ask.same_host,
        "gpu": ask.gpu,
        "comment": ask.comment,
        "user_id": booking.user_id,
        "user_name": booking.user,
        "project_id": booking.project_id,
        "project": booking.project,
        "created": seconds(booking.created),
        "changed": seconds(booking.changed),
        "version": booking.version,
        "lanes": " ".join(map(str, booking.lanes)),
        "reason": booking.reason,
        "email": booking.email,
        "series": booking.series,
        "offer_until": maybe_seconds(booking.offer_until),
        "claimed": maybe_seconds(booking.claimed),
        "open_until": maybe_seconds(booking.open_until),
        "priority": booking.priority,
        "overridden": booking.override,
        "followed": booking.followed,
        "usable_since": maybe_seconds(booking.usable_since),
        "shared": booking.shared,
        "server": booking.server,
        "yields": booking.yields,
        "empty_since": maybe_seconds(booking.empty_since),
    }


def to_booking(row: Sequence[Any]) -> Booking:
    (
        id, pool, kind, state, starts, ends, gpus, same_group, same_host, gpu, comment,
        user_id, user, project_id, project, created, changed, version, lanes, reason, email, series,
        offer_until, claimed, open_until, priority, override, followed, usable_since, shared, server, yields,
        empty_since,
    ) = row  # fmt: skip
    return Booking(
        id=id,
        kind=_KINDS[kind],
        ask=Ask(pool, moment(starts), moment(ends), gpus, same_group, same_host, gpu, comment),
        state=_STATES[state],
        user_id=user_id,
        user=user,
        project_id=project_id,
        project=project,
        created=moment(created),
        changed=moment(changed),
        version=version,
        lanes=lane_ids(lanes),
        reason=reason,
        email=email,
        series=series,
        offer_until=maybe_moment(offer_until),
        claimed=maybe_moment(claimed),
        open_until=maybe_moment(open_until),
        priority=priority,
        override=override,
        followed=followed,
        usable_since=maybe_moment(usable_since),
        shared=shared,
        server=server,
        yields=yields,
        empty_since=maybe_moment(empty_since),
    )


def lane_ids(text: str) -> tuple[int, ...]:
    return tuple(map(int, text.split()))


def to_lane(row: Sequence[Any]) -> Lane:
    id, pool, host, addresses, trouble, gone, back = row
    slot = id, pool, host, tuple(addresses.split(" "))
    return Lane(*slot, GONE, FOREVER) if gone else Lane(*slot, trouble, maybe_moment(back))
