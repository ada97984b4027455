"""Takes requests to accept GPUs by a server, and shows how they go.

The requests are written and the loop (health/controllers/acceptance.py) is woken, which does the rest. Callers check
authorization.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from gpuyard.bookings.ledger.holding import wanted_lanes
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.store import GONE
from gpuyard.health.acceptance import OPEN, Try, TryState, first_host
from gpuyard.health.records import GpuHealth, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.health.store.tries import TryStore
from gpuyard.model.booking import Lane, Person
from gpuyard.model.errors import BlockedError
from gpuyard.runtime.wake_signal import WakeSignal

LETTERS = "abcdefghijkmnpqrstuvwxyz23456789"
ABLE = frozenset({HealthState.FINE, HealthState.TO_ACCEPT})
"""States in which a GPU can be accepted."""
MOST = 2000
"""Slots at once."""
REMEDIES = {
    HealthState.IN_USE: "accept it when its server is gone",
    HealthState.SUSPECT: "release or quarantine it first",
    HealthState.QUARANTINED: "say first that it was repaired: 'gpuyard gpu repair start', and then 'done'",
    HealthState.IN_REPAIR: "say first that it was repaired: 'gpuyard gpu repair done'",
}


@dataclass(frozen=True)
class AcceptanceAsked:
    """The attempts that a request has made, and the GPUs that it left out."""

    tries: tuple[Try, ...]
    left_out: Mapping[str, str]
    """GPU (``host/address``) -> why it is not tried."""


class AcceptanceService:
    """Takes and shows requests. Safe to use from several threads, and from several processes on one database."""

    def __init__(self, store: HealthStore, tries: TryStore, ledger: Ledger, now: Callable[[], datetime]) -> None:
        self._store, self.tries, self._ledger, self._now = store, tries, ledger, now
        self.wake = WakeSignal()
        """Sent when there is something to do."""

    def ask(
        self, targets: Sequence[str], person: Person, *, canary: bool = True, fresh: bool = False
    ) -> AcceptanceAsked:
        """Ask for GPUs to be accepted. Durable when this returns. `targets`: GPUs (``host/address``), hosts and pools;
        none: all GPUs that are to be accepted. `canary`: of several hosts one first. `fresh`: what they show becomes
        their baseline, whatever it was before. Raises RefusedError for what does not exist, BlockedError when nothing
        is left to try."""
        lanes = [lane for lane in self._ledger.lanes() if lane.trouble != GONE]
        chosen = self._chosen(lanes, targets)
        gpus_by_place = {(gpu.host, gpu.address): gpu for gpu in self._store.gpus()}
        if not targets:
            waits = {key for key, gpu in gpus_by_place.items() if gpu.state is HealthState.TO_ACCEPT}
            chosen = [lane for lane in lanes if any((lane.host, address) in waits for address in lane.addresses)]
        under_way = {name for attempt in self.tries.open() if attempt.state in OPEN for name in attempt.names}
        left_out: dict[str, str] = {}
        able: list[Lane] = []
        for lane in chosen:
            if why := _why_not(lane, gpus_by_place, under_way):
                left_out[lane.name] = why
            else:
                able.append(lane)
        if len(able) > MOST:
            raise BlockedError(f"{len(able)} slots are more than {MOST}: name hosts or pools")
        if not able:
            reasons = "; ".join(f"GPU {name} {why}" for name, why in list(left_out.items())[:5])
            raise BlockedError(f"nothing can be accepted: {reasons or 'no GPU is to be accepted'}")
        made = self._tries(able, person, canary=canary, fresh=fresh)
        self.tries.add(made)
        self._ledger.note(person, "gpu.accept", made[0].gpu, f"{len(made)} slots, {', '.join(targets) or 'all'}"[:500])
        self.wake(f"{person.user} wants {len(made)} slots accepted")
        return AcceptanceAsked(tuple(made), left_out)

    @staticmethod
    def _chosen(lanes: Sequence[Lane], targets: Sequence[str]) -> list[Lane]:
        pools = {lane.pool for lane in lanes}
        gpus = [target for target in targets if "/" in target]
        of_pools = [target for target in targets if target in pools]
        hosts = [target for target in targets if "/" not in target and target not in pools]
        return wanted_lanes(lanes, gpus, hosts, of_pools)

    def _tries(self, lanes: Sequence[Lane], person: Person, *, canary: bool, fresh: bool) -> list[Try]:
        now, batch = self._now().replace(microsecond=0), _random(12)
        first = first_host([(lane.host, lane.addresses[0]) for lane in lanes], canary)
        return [
            Try(
                id=_random(12),
                batch=batch,
                number=number,
                canary=lane.host == first,
                host=lane.host,
                gpus=lane.addresses,
                pool=lane.pool,
                by=person.user,
                by_id=person.user_id,
                begun=now,
                state=TryState.WAITING,
                since=now,
                nonce=secrets.token_hex(16),
                name=f"gpuyard-accept-{_random(10)}",
                fresh=fresh,
            )
            for number, lane in enumerate(
                sorted(lanes, key=lambda lane: (lane.host != first, lane.host, lane.addresses))
            )
        ]

    def latest(self, host: str = "") -> Mapping[str, Try]:
        """Return the last attempt of each GPU (``host/address``)."""
        return self.tries.latest(host)

    def batch(self, id: str) -> list[Try]:
        """Return the attempts of one request; empty when there is no such."""
        return self.tries.batch(id)


def _why_not(lane: Lane, gpus_by_place: Mapping[tuple[str, str], GpuHealth], under_way: set[str]) -> str:
    for address in lane.addresses:
        gpu = gpus_by_place.get((lane.host, address))
        which = "" if lane.size == 1 else f"{address} of its group "
        if f"{lane.host}/{address}" in under_way:
            return "is being accepted already"
        if gpu is None:
            return f"{which}has not been looked at yet: try again in a moment"
        if gpu.state not in ABLE:
            remedy = REMEDIES.get(gpu.state, "try again when it is fine")
            return f"{which}is {gpu.state.value}: {remedy}"
    return ""


def _random(letters: int) -> str:
    return "".join(secrets.choice(LETTERS) for _ in range(letters))
