"""Tells owners of servers that their GPU went bad: once for each time, whatever it becomes until it is well again.

The messages that are due follow from the states of GPUs and from the servers that have them, at each run; that it was
told is written with the message, in one transaction. So a kill tells nobody twice, and forgets nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import datetime

from gpuyard.bookings.controllers.addresses import Addresses
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.ledger.pool_transaction import GPUYARD
from gpuyard.bookings.records import AuditEntry, Event
from gpuyard.health.records import KEPT_BACK, GpuHealth, HealthEvent, HealthState
from gpuyard.health.store import HealthStore
from gpuyard.health.verdicts import BUILT_IN, SignalVerdicts
from gpuyard.model.gpu import provider_name
from gpuyard.model.moments import minute_text
from gpuyard.model.signals import SIGNALS, Source
from gpuyard.model.world import Server, Snapshot

BAD = KEPT_BACK - {HealthState.TO_ACCEPT}
LINES = 500
"""Most events of a GPU's record that are searched for its last change for the worse."""


class FaultTeller:
    """Writes the messages of one site."""

    def __init__(
        self,
        store: HealthStore,
        ledger: Ledger,
        addresses: Addresses,
        bookings_of: Callable[[str], Sequence[str]],
        runners: str,
        now: Callable[[], datetime],
        verdicts: SignalVerdicts = BUILT_IN,
    ) -> None:
        """`bookings_of`: ids of the bookings that a server draws on; `runners`: the project whose servers are nobody's,
        empty when there is none."""
        self._store, self._upkeep, self._loans, self._addresses = store, ledger.upkeep, ledger.loans, addresses
        self._bookings_of, self._runners, self._now, self._verdicts = bookings_of, runners, now, verdicts
        self._told: set[tuple[str, str, datetime]] = set()
        """Server, GPU, and since when that is in its state: those that need not be looked at again."""

    def tell(self, gpus: Iterable[GpuHealth], snapshot: Snapshot) -> None:
        """Write the messages that are due. Raises CloudError when Keystone cannot give an address, and StoreError: the
        next call goes on."""
        bad = [
            (gpu, server)
            for gpu in gpus
            if gpu.state in BAD
            and (server := snapshot.servers.get(snapshot.holders.get(provider_name(gpu.host, gpu.address), "")))
            and (not self._runners or server.project != self._runners)
        ]
        keys = {(server.id, gpu.name, gpu.since) for gpu, server in bad}
        self._told &= keys
        for gpu, server in bad:
            key = (server.id, gpu.name, gpu.since)
            if key not in self._told:
                self._tell(gpu, server)
                self._told.add(key)

    def _tell(self, gpu: GpuHealth, server: Server) -> None:
        now, worsening, bookings = self._now(), self._last_worsening(gpu), self._bookings_of(server.id)
        if any(loan.id in bookings for loan in self._loans.current()):
            return  # it has been lent to them as it is
        email = self._addresses.of(server.user_id, gpu.pool)
        trouble = what_was_seen(gpu, worsening, server.id, self._verdicts)
        details = {
            "server": server.name, "server_id": server.id, "pool": gpu.pool, "gpu": gpu.name, "trouble": trouble,
            "state": gpu.state.value, "next": what_comes(gpu),
            "report": f"gpuyard gpu report {gpu.name} 'what is wrong'",
        }  # fmt: skip
        event = Event("server.fault", now, bookings[0] if bookings else "", server.user_id, email, details)
        entries = [_entry("server.fault", server, f"GPU {gpu.name} is {gpu.state.value}: {trouble}", now)]
        if not email:
            why = f"its owner could not be told: Keystone has no address of user {server.user_id}"
            entries.append(_entry("message.no_address", server, why, now))
        # Its owner may have had it for longer than it is bad, and somebody else may have it at the next time.
        incident = f"fault {worsening.id if worsening else int(gpu.since.timestamp())}"
        self._upkeep.note_once(gpu.pool, f"server {server.id} {gpu.name}", incident, event, *entries)

    def _last_worsening(self, gpu: GpuHealth) -> HealthEvent | None:
        """The line of its record with which it went bad; None when too much was noted since."""
        lines = self._store.events(gpu.host, gpu.address, limit=LINES)
        return next((line for line in lines if line.before not in KEPT_BACK and line.after in KEPT_BACK), None)


def what_was_seen(
    gpu: GpuHealth, worsening: HealthEvent | None, server: str, verdicts: SignalVerdicts = BUILT_IN
) -> str:
    """Describe the fault for the owner of a server. Evidence of others is for operators, and left out."""
    code = worsening.signal if worsening else gpu.signal
    if code not in SIGNALS:
        return "an operator has taken it out of use"
    words = verdicts.of(code, gpu.name, gpu.pool).words
    own = (
        worsening.evidence.removeprefix(f"{server}: ")
        if worsening is not None and worsening.source is Source.GUEST
        else ""
    )
    return f"{words} ({own})" if worsening is not None and own and own != worsening.evidence else words


def what_comes(gpu: GpuHealth) -> str:
    """Describe what happens next, for the owner of a server."""
    if gpu.state is HealthState.SUSPECT and gpu.until is not None:
        until = minute_text(gpu.until)
        return f"your server keeps it, and nobody else gets it; it is fine again at {until} if nothing more is seen"
    return "your server keeps it until you delete or shelve it; then nobody gets it until an operator has looked at it"


def _entry(action: str, server: Server, text: str, now: datetime) -> AuditEntry:
    return AuditEntry(now, GPUYARD, action, server.id, "", f"server {server.name}: {text}")
