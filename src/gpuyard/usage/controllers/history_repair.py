"""Takes back what a clock that was ahead wrote into the history of a site, for the operator of the machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime

from gpuyard.bookings.policy import spell
from gpuyard.bookings.records import AuditEntry
from gpuyard.bookings.store import Store
from gpuyard.model.errors import BlockedError
from gpuyard.site.compile import CompiledSite
from gpuyard.usage.store import HistoryStore
from gpuyard.usage.store.repair import Repair, carry_out, plan_repair

ACTION = "history.repair"


@dataclass(frozen=True)
class HistoryRepair:
    """The plan of a repair of one database, and its application."""

    store: HistoryStore
    zone: str
    now: datetime
    plan: Repair | None

    def words(self) -> list[str]:
        """Describe for people how far history goes, and what would go."""
        plan, name, extent = self.plan, self.store.database.name, self.store.seen()
        if extent is None:
            return [f"{name} has no history: nobody has looked yet"]
        if plan is None:
            return [f"history goes until {spell(extent.until)}, and no further than now: there is nothing to take back"]
        head = f"history goes until {spell(plan.extent.until)}, and it is {spell(self.now)}"
        if plan.cut is None:
            return [
                head,
                f"no look is older than now: all intervals ({plan.gone}) and all sums go; history begins anew",
            ]
        days = f"{plan.days[0]} to {plan.days[-1]}" if plan.days else "none"
        return [
            head,
            f"it would go until {spell(plan.cut)}",
            f"intervals that begin later, and go: {plan.gone}",
            f"intervals that have begun by then, and go on: {plan.shortened}",
            f"days whose sums go: {days}",
            "what was since is not seen but for what Nova remembers, which the next look asks for",
        ]

    def carry_out(self, who: str) -> None:
        """Apply the plan in one transaction, with an entry in the audit log. Raises BlockedError when history has gone
        on meanwhile, and StoreError."""
        if self.plan is not None:
            entry = AuditEntry(self.now, who, ACTION, "history", "", "; ".join(self.words()))
            if not carry_out(self.store, self.zone, self.plan, entry):
                raise BlockedError("history has gone on meanwhile, so nothing was changed; look at the plan again")


@contextmanager
def prepared(compiled: CompiledSite, url: str, now: datetime) -> Iterator[HistoryRepair]:
    """Open the database and plan its repair. `url` of the database, as SQLAlchemy spells it. Raises StoreError."""
    opened = Store.open(url)
    try:
        store = HistoryStore(opened.database)
        zone = compiled.site.booking.timezone if compiled.site.booking else "UTC"
        yield HistoryRepair(store, zone, now, plan_repair(store, zone, now))
    finally:
        opened.close()
