"""The part of the portal for pages that show several capabilities at once."""

from __future__ import annotations

from dataclasses import dataclass

from fastapi import FastAPI

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.dashboard import gpu_pages, mine_pages, pages, project_pages, status_pages, use_pages
from gpuyard.dashboard.live import LiveFeed
from gpuyard.dashboard.sources import Sources
from gpuyard.health.web.card_use import CardUses
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.capability import Capability


@dataclass(frozen=True)
class BookedPages:
    """The services that pages of a site with bookings use, besides their sources."""

    ledger: Ledger
    authenticator: Authenticator
    rows: BookingRows
    health: HealthReader | None


class DashboardCapability(Capability):
    tags = ("status",)

    def __init__(self, sources: Sources, booked: BookedPages | None) -> None:
        self._sources, self._booked = sources, booked
        self.feed = LiveFeed(sources)
        """The live feed of the map. The server of the app must close it to end open streams."""

    def install(self, app: FastAPI) -> None:
        sources = self._sources
        if self._booked is None:
            gpu_pages.install(app, sources)
        else:
            self._install_booked(app, self._booked)
        pages.install(app, sources, self.feed)
        status_pages.install(app, sources)

    def _install_booked(self, app: FastAPI, booked: BookedPages) -> None:
        sources, ledger, rows, uses = self._sources, booked.ledger, booked.rows, CardUses(self._sources.agents)
        mine_pages.install(app, sources, ledger, rows, uses, booked.health)
        gpu_pages.install(app, sources, rows, booked.health, uses)
        if sources.history is not None:
            use_pages.install(app, sources, sources.history, ledger, rows)
            project_pages.install(app, sources, sources.history, ledger, rows, booked.authenticator, uses)
