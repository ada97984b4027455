"""A portal that knows what GPUs were used for: its history is what a test writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from gpuyard.dashboard.sources import Sources
from gpuyard.server.app import create_app
from gpuyard.site.schema import Site
from gpuyard.usage.controllers.accounting import AccountingService, site_clock
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.records import Interval
from gpuyard.usage.store import HistoryStore
from gpuyard.web.settings import OthersShown
from gpuyard.web.store import PortalStore
from tests.support.inventories import GPUS, driver, filled
from tests.support.ledgers import Clock, open_ledger
from tests.support.people import people
from tests.support.portals import ROOMY, BookingPortal

ROME = {"timezone": "Europe/Rome"}


def accounting_site(accounting: Mapping[str, Any] | None = None, **more: Any) -> Site:
    """`more`: ``pools`` -> its price, ``projects`` -> their documents."""
    prices = more.get("prices", {})
    return Site.model_validate(
        {
            "site": "test",
            "hosts": {"gpu-1": {"recording": "gpu-1.json"}},
            "pools": {name: {"models": ["10de:1db4"], "price": prices.get(name)} for name in ("v100", "t4")},
            "projects": more.get("projects", {}),
            "booking": more.get("booking", ROME),
            "accounting": accounting or {},
        }
    )


@dataclass
class AccountingPortal:
    portal: BookingPortal
    service: AccountingService
    store: HistoryStore
    site: Site

    def restarted(self) -> AccountingService:
        """Another process on the same database."""
        ledger, store = self.portal.ledger, self.store
        return AccountingService(self.site, ledger, _history(store, self.site), self.portal.clock)


def _history(store: HistoryStore, site: Site) -> History:
    assert site.booking is not None
    return History(store, site.booking.timezone, site_clock(site).parts)


def write_history(store: HistoryStore, first: datetime, until: datetime, intervals: Sequence[Interval]) -> None:
    """As if it had been looked at first and last then."""
    assert store.write(None, first, first, {}, [])
    assert store.write(first, until, until, {}, intervals)


def accounting_portal(
    folder: Path,
    site: Site,
    first: datetime,
    until: datetime,
    intervals: Sequence[Interval],
    others: OthersShown = OthersShown.NAMES,
    clock: Clock | None = None,
) -> AccountingPortal:
    clock = clock or Clock(until)
    ledger = open_ledger(folder, None, clock)
    store = HistoryStore(ledger.database)
    write_history(store, first, until, intervals)
    service = AccountingService(site, ledger, _history(store, site), clock)
    who, sessions = people(), PortalStore(ledger.database)
    settings = ROOMY.__class__(**{**vars(ROOMY), "others": others})
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test-site",
            gpus=GPUS,
            now=clock,
            ledger=ledger,
            sessions=sessions,
            people=who,
            settings=settings,
            accounting=service,
            history=service.history,
        ),
        ["*"],
    )
    return AccountingPortal(BookingPortal(app, ledger, sessions, who, clock), service, store, site)
