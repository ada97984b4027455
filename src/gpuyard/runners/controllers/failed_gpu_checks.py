"""Keeps GPUs that did not pass the check before a job out of use, until an operator has looked at them.

On a site with `health` the failed check is an observation, and its rules say what follows. Without, the GPUs are held
in the ledger, up to a quarter of a pool.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from datetime import datetime

from gpuyard.bookings.errors import RefusedError
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.records import Query
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.records import Observation
from gpuyard.model.booking import FOREVER, Booking, BookingKind, Person
from gpuyard.model.booking_life import TAKES_LANES
from gpuyard.runners.records import Runner

LOG = logging.getLogger(__name__)
SHARE = 4
"""At most one GPU in so many of a pool is held like this, and one in any case: an image without a driver fails
every check, and that is no reason to take a whole pool out of use."""
OURS = Person("", GPUYARD, "", "", frozenset({"admin"}))


class Quarantine:
    def __init__(self, ledger: Ledger, now: Callable[[], datetime], service: HealthService | None = None) -> None:
        """`service`: of a site with `health`, whose rules say what follows. Without it, GPUs are held in the ledger."""
        self._ledger, self._now, self._service = ledger, now, service

    def hold(self, runner: Runner) -> None:
        """Hold the GPUs of a runner, once, if that is not too much of the pool. Raises LedgerError."""
        pool, why = runner.choice.pool, f"runner {runner.name}: {runner.reason}"
        if not runner.gpus:
            LOG.warning("%s; which GPU that was is not known, and none is held", why)
            return
        if self._service is not None:
            places = [name.partition("/") for name in runner.gpus]
            now = self._now()
            self._service.observe(
                [Observation(host, address, "job-check", now, why[:500], runner.name) for host, _, address in places]
            )
            return
        holds = self._held(pool)
        if any(hold.ask.comment.startswith(f"runner {runner.name}:") for hold in holds):
            return
        size = sum(lane.size for lane in self._ledger.lanes(pool))
        if sum(hold.ask.gpus for hold in holds) + len(runner.gpus) > max(1, size // SHARE):
            LOG.error(
                "%s; %d GPUs of pool %s are held for such reasons already, and this one is not", why, len(holds), pool
            )
            return
        try:
            self._ledger.hold(list(runner.gpus), self._now(), FOREVER, OURS, why[:500])
        except RefusedError as refused:  # somebody was quicker: they will find out
            LOG.error("%s; it cannot be held: %s", why, refused)

    def _held(self, pool: str) -> list[Booking]:
        query = Query(pool=pool, kinds=frozenset({BookingKind.HOLD}), states=TAKES_LANES)
        return [booking for booking in self._ledger.find(query) if booking.user == GPUYARD]
