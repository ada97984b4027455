"""The list of capabilities that a site's portal has. A new one is an object in its own folder, and a line here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.bookings.web.capability import BookingsCapability
from gpuyard.dashboard.capability import BookedPages, DashboardCapability
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.web.capability import DiagnosisCapability
from gpuyard.health.web.capability import GuestsCapability, HealthCapability
from gpuyard.inventory.web.capability import InventoryCapability
from gpuyard.runners.web.capability import RunnersCapability
from gpuyard.servers.web.capability import ServersCapability
from gpuyard.usage.web.capability import UsageCapability
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.capability import Capability


@dataclass(frozen=True)
class SiteCapabilities:
    """The capabilities of one site, in the order in which the documentation of the API lists them."""

    others: Sequence[Capability]
    dashboard: DashboardCapability
    authenticator: Authenticator | None
    """Authenticates people; None where nobody logs in."""

    @property
    def all(self) -> Sequence[Capability]:
        """All of them, the dashboard included."""
        return [*self.others, self.dashboard]


def capabilities_of(sources: Sources) -> SiteCapabilities:
    """Return the capabilities that a site has, by what its portal is made of."""
    booked, others = _booked(sources) if sources.ledger is not None else (None, [])
    authenticator = booked.authenticator if booked is not None else None
    if sources.history is not None:
        others.append(UsageCapability(sources, sources.history, sources.accounting))
    if sources.bootable is not None:
        others.append(DiagnosisCapability(sources, sources.bootable, authenticator))
    if sources.clouds is not None and authenticator is not None:
        others.append(ServersCapability(sources, sources.flavors, sources.clouds, authenticator))
    if sources.runners is not None:
        others.append(RunnersCapability(sources, sources.runners))
    others.append(InventoryCapability(sources))
    return SiteCapabilities(others, DashboardCapability(sources, booked), authenticator)


def _booked(sources: Sources) -> tuple[BookedPages, list[Capability]]:
    """Return what pages show of bookings, and the capabilities that need a ledger."""
    ledger, people = sources.ledger, sources.people
    assert ledger is not None
    assert people is not None, "bookings need people who make them"
    assert sources.sessions is not None, "people need sessions"
    rows = BookingRows(ledger, sources.gpus, sources.flavors, sources.settings.others)
    authenticator = Authenticator(
        people, sources.sessions, sources.settings, sources.now, knows=lambda project: ledger.book.knows(project)
    )
    guests = GuestsCapability(sources, ledger, sources.agents)
    if sources.health is None:
        bookings = BookingsCapability(sources, ledger, authenticator, rows, None)
        return BookedPages(ledger, authenticator, rows, None), [bookings, guests]
    health = HealthCapability(sources, sources.health, ledger, people, rows, guests.outcomes)
    bookings = BookingsCapability(sources, ledger, authenticator, rows, health.faults.report)
    return BookedPages(ledger, authenticator, rows, health.reader), [bookings, health, guests]
