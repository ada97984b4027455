"""Writes bookings as the documents that Blazar's external enforcement filter posts. Pure.

As Blazar's `enforcement.py` and `external_service_filter.py` have it, a body is a `context` and a `lease`, and for a
change the `current_lease`; moments are UTC without a zone, as in ``2026-11-26T14:00:00``. GPUs are instances of a
flavor, which of Blazar's reservations comes nearest. coral-credits also needs `resource_requests`, which StackHPC's
Blazar adds: how many of which resource class throughout the lease.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from gpuyard.model.booking import Booking, Lane


@dataclass(frozen=True)
class LeaseWords:
    """The values that documents need besides the booking itself."""

    auth_url: str
    """Keystone's."""
    region: str
    flavors: Mapping[str, str]
    """Pool -> the id of its smallest flavor."""
    classes: Mapping[str, str]
    """Pool -> resource class; none for services that do not want it."""
    lanes: Callable[[str], Mapping[int, Lane]]
    """Pool -> its lanes by id."""

    def creating(self, booking: Booking) -> dict[str, Any]:
        """Return the body of check-create, and of on-end."""
        return {"context": self._context(booking), "lease": self.lease(booking)}

    def changing(self, old: Booking, new: Booking) -> dict[str, Any]:
        """Return the body of check-update."""
        return {"context": self._context(new), "current_lease": self.lease(old), "lease": self.lease(new)}

    def lease(self, booking: Booking) -> dict[str, Any]:
        ask = booking.ask
        reservation = {
            "resource_type": "flavor:instance",
            "flavor_id": self.flavors.get(ask.pool, ask.pool),
            "amount": ask.gpus,
            "affinity": None,
            "allocations": self._allocations(booking),
        }
        document = {
            "id": booking.id,
            "name": f"gpuyard {ask.pool} {booking.id}",
            "user_id": booking.user_id,
            "project_id": booking.project_id,
            "start_date": _naive(ask.start),
            "end_date": _naive(ask.end),
            "before_end_date": None,
            "reservations": [reservation],
        }
        resources = {"resource_requests": {self.classes[ask.pool]: ask.gpus}} if ask.pool in self.classes else {}
        return {**document, **resources}

    def _context(self, booking: Booking) -> dict[str, str]:
        return {
            "user_id": booking.user_id,
            "project_id": booking.project_id,
            "auth_url": self.auth_url,
            "region_name": self.region,
        }

    def _allocations(self, booking: Booking) -> list[dict[str, Any]]:
        """The GPUs as far as they are known: before a booking is made, and on the waitlist, they are not."""
        lanes = self.lanes(booking.ask.pool) if booking.lanes else {}
        return [
            {"id": lanes[id].name, "hypervisor_hostname": lanes[id].host, "extra": {"pool": booking.ask.pool}}
            for id in booking.lanes
            if id in lanes
        ]


def _naive(moment: datetime) -> str:
    return moment.astimezone(UTC).replace(tzinfo=None, microsecond=0).isoformat()
