"""Holds whole groups for runners, from the lease until Nova is asked for the server.

Nova puts a server with one GPU on the leader of any group that it finds free. So a group that a runner has leased is
held in Placement while the runner is registered at GitHub, and the hold comes off right before the create. The loop of
bookings plans the same hold (`enforcement.kept_lanes`) but observes the cloud only every few seconds; this does it at
once, in the same memory, and what it leaves half done the loop ends.

A hold that has come off stays in the memory until the loop's next plan: an observation of the cloud that is under way
still shows the GPU as reserved, and what is reserved and not remembered counts as somebody else's.

The loop may be about to place the very hold that is lifted. It writes down the hold, makes sure that the lease is not
written down as lifted, and places it; here the lease is written down as lifted, and then each provider that is
remembered is written in Placement, held or not. So the loop either sees that it is lifted, or meets another generation.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from gpuyard.bookings.controllers.bookings import lanes_back
from gpuyard.bookings.controllers.enforce import Enforcer, OvertakenError
from gpuyard.bookings.enforcement import PlaceHold, ReleaseHold, SeenProvider, holds_text, lifted_text
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.pool_view import is_whole_group, read_memory
from gpuyard.model.booking import Booking
from gpuyard.model.gpu import provider_name
from gpuyard.openstack.api import CloudApi, CloudError
from gpuyard.openstack.placed_gpus import PlacedGpus
from gpuyard.site.compile import CompiledSite
from gpuyard.site.objects import bookings_mark

LOG = logging.getLogger(__name__)
TRIES = 3
"""Most times that a change is tried which something else has overtaken."""


@dataclass(frozen=True)
class GroupHolds:
    """Places and lifts holds of whole groups of one site. Safe to use from several threads, and in any process on the
    database."""

    ledger: Ledger
    enforcer: Enforcer
    placed: PlacedGpus
    classes: Mapping[str, str]
    """Name of a provider -> its resource class."""
    kept_back: Callable[[], Mapping[tuple[str, str], str]] = dict
    """(host, address) of GPUs that nobody is to get, each with why."""

    def place(self, lease_id: str) -> None:
        """Hold the group of a lease; nothing for one of single GPUs. When that fails, the runner is made without it: it
        may find that somebody else has got the group."""
        try:
            self._retried(self._place, self.ledger.get(lease_id))
        except CloudError as error:
            LOG.info("lease %s: its group is not held: %s", lease_id, error)

    def lift(self, lease_id: str) -> str:
        """Take the hold off. Returns why no server may be started there, empty when one may."""
        lease = self.ledger.get(lease_id)
        if not is_whole_group(lease):
            return ""
        lanes = {lane.id: lane for lane in self.ledger.lanes(lease.ask.pool) if lane.id in lease.lanes}
        if back := lanes_back(lanes.values(), self.kept_back()):
            return f"its GPUs are kept back: {'; '.join(back.values())}"
        try:
            self._retried(self._lift, lease)
        except CloudError as error:
            return f"the hold of its group cannot be taken off: {error}"
        return ""

    def _retried(self, change: Callable[[Booking], None], lease: Booking) -> None:
        if not is_whole_group(lease):
            return
        for left in reversed(range(TRIES)):
            try:
                change(lease)
                return
            except OvertakenError:
                if not left:
                    raise

    def _place(self, lease: Booking) -> None:
        pool, names = lease.ask.pool, self._providers(lease)
        words = self.ledger.upkeep.records.values(pool)
        ids, providers = self._seen(names)
        free = {name: provider for name, provider in providers.items() if not provider.reserved}
        if not free:
            return
        after = {**read_memory(words).holds, **{name: provider.generation + 1 for name, provider in free.items()}}
        self._remember(pool, "holds", words, holds_text(after))
        for name in (name for name in names if name in free):
            step = PlaceHold(pool, name, free[name].generation, f"leased for server {lease.server}")
            self.enforcer.carry_out(step, ids[name])

    def _lift(self, lease: Booking) -> None:
        pool, names = lease.ask.pool, self._providers(lease)
        records = self.ledger.upkeep.records
        words = records.values(pool)
        current = {booking.id for booking in self.ledger.leases.current()}
        self._remember(pool, "lifted", words, lifted_text(read_memory(words).lifted & current | {lease.id}))
        remembered = read_memory(records.values(pool)).holds
        ids, providers = self._seen(name for name in names if name in remembered)
        # The leader last, or it would be had without its peers.
        for name in (name for name in reversed(names) if name in providers):
            step = ReleaseHold(pool, name, providers[name].generation, f"server {lease.server} is about to start there")
            self.enforcer.carry_out(step, ids[name])

    def _providers(self, lease: Booking) -> list[str]:
        """Of the GPUs of a lease's lanes, leaders first."""
        lanes = (lane for lane in self.ledger.lanes(lease.ask.pool) if lane.id in lease.lanes)
        names = (provider_name(lane.host, address) for lane in lanes for address in lane.addresses)
        return [name for name in names if name in self.classes]

    def _seen(self, names: Iterable[str]) -> tuple[dict[str, tuple[str, str]], dict[str, SeenProvider]]:
        """Ids and resource classes of providers, and how Placement has them."""
        ids = {name: (id, self.classes[name]) for name, id in self.placed.ids(names).items()}
        return ids, self.enforcer.look(ids)

    def _remember(self, pool: str, word: str, words: Mapping[str, str], text: str | None) -> None:
        """Raises OvertakenError when somebody else has written it down otherwise."""
        if words.get(word) != text and not self.ledger.upkeep.records.swap_value(pool, word, words.get(word), text):
            raise OvertakenError(f"another process has written down other {word}")


def open_group_holds(
    compiled: CompiledSite,
    ledger: Ledger,
    api: CloudApi,
    kept_back: Callable[[], Mapping[tuple[str, str], str]] = dict,
) -> GroupHolds:
    classes = {gpu.provider_name: gpu.resource_class for gpu in compiled.gpus if not gpu.blocked and not gpu.is_unit}
    enforcer = Enforcer(api, bookings_mark(compiled.site.site))
    return GroupHolds(ledger, enforcer, PlacedGpus(api, classes), classes, kept_back)
