"""The list of capabilities that a site's portal has. A new one is an object in its own folder, and a line here."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.bookings.web.capability import BookingsCapability
from gpuyard.dashboard.capability import BookedPages, DashboardCapability
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.web.capability import DiagnosisCapability
from gpuyard.health.web.capability import GuestsCapability, HealthCapability
from gpuyard.inventory.web.capability import InventoryCapability
from gpuyard.openstack.people import People
from gpuyard.runners.web.capability import RunnersCapability
from gpuyard.usage.web.capability import UsageCapability
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.capability import Capability


@dataclass(frozen=True)
class SiteCapabilities:
    """The capabilities of one site, in the order in which the documentation of the API lists them."""

    dashboard: DashboardCapability
    authenticator: Authenticator | None = None
    """Authenticates visitors; None where nobody logs in."""
    others: list[Capability] = field(default_factory=list)

    @property
    def all(self) -> list[Capability]:
        return [*self.others, self.dashboard]


def capabilities_of(sources: Sources) -> SiteCapabilities:
    """Return the capabilities of a site, by the sources that it has."""
    ledger, people = sources.ledger, sources.people
    booked: BookedPages | None = None
    found: list[Capability] = []
    if ledger is not None:
        assert people is not None, "bookings need people who make them"
        booked = _with_bookings(sources, ledger, people, found)
    authenticator = booked.authenticator if booked is not None else None
    if sources.history is not None:
        found.append(UsageCapability(sources, sources.history, sources.accounting))
    if sources.bootable is not None:
        found.append(DiagnosisCapability(sources, sources.bootable, authenticator))
    if sources.runners is not None:
        found.append(RunnersCapability(sources, sources.runners))
    found.append(InventoryCapability(sources))
    return SiteCapabilities(DashboardCapability(sources, booked), authenticator, found)


def _with_bookings(sources: Sources, ledger: Ledger, people: People, found: list[Capability]) -> BookedPages:
    """Adds what needs a ledger, and returns what pages show of it."""
    assert sources.sessions is not None, "people need sessions"
    rows = BookingRows(ledger, sources.gpus, sources.flavors, sources.settings.others)
    authenticator = Authenticator(
        people, sources.sessions, sources.settings, sources.now, knows=lambda project: ledger.book.knows(project)
    )
    guests = GuestsCapability(sources, ledger, sources.agents)
    health = None
    if sources.health is not None:
        health = HealthCapability(sources, sources.health, ledger, people, rows, guests.outcomes)
    report = health.faults.report if health is not None else None
    found.append(BookingsCapability(sources, ledger, authenticator, rows, report))
    found += [health] if health is not None else []
    found.append(guests)
    return BookedPages(ledger, authenticator, rows, health.reader if health is not None else None)
