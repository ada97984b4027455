"""Finds the flavors that can start a server on a booking. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from shlex import quote

from gpuyard.model.booking import Booking, BookingKind, Lane
from gpuyard.site.objects import FlavorObject


def fitting(
    booking: Booking,
    lanes: Iterable[Lane],
    letters: Mapping[tuple[str, str], str | None],
    flavors: Iterable[FlavorObject],
) -> list[FlavorObject]:
    """Return flavors that the booking's project may use and its GPUs have room for; the one that uses most of them
    first.

    `lanes` are all of the pool, `letters` says of the first GPU of each, (host, address), which set its group is.
    """
    if booking.kind not in (BookingKind.BOOKING, BookingKind.LOAN):
        return []
    ask = booking.ask
    own = [lane for lane in lanes if lane.id in booking.lanes]
    sets = {letters.get((lane.host, lane.addresses[0])) for lane in own} - {None}
    # A server is on one host; of a booking that has no GPUs yet nobody knows where they will be.
    on_one_host = max(Counter(lane.host for lane in own).values(), default=ask.gpus if ask.same_host else 1)

    def fits(flavor: FlavorObject) -> bool:
        if flavor.pool != ask.pool or flavor.variant_of or not (flavor.public or booking.project in flavor.projects):
            return False
        if ask.same_group:
            return flavor.set_letter is not None and flavor.gpus == ask.gpus and (not own or flavor.set_letter in sets)
        return flavor.set_letter is None and 0 < flavor.gpus <= on_one_host

    return sorted(filter(fits, flavors), key=lambda flavor: (-flavor.gpus, flavor.ram, flavor.name))


def start_command(flavors: Collection[FlavorObject]) -> str:
    """Return the command that starts a server with the first of the flavors; empty when there is none. Words in
    capitals are to be replaced."""
    first = next(iter(flavors), None)
    if first is None:
        return ""
    rest = "--image IMAGE --network NETWORK --key-name KEY --wait NAME"
    return f"openstack server create --flavor {quote(first.name)} {rest}"
