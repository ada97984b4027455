"""What GPUs of bookings do, on the pages of their owner and of admins, in a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import expect

from tests.browser.calendars import Site, Visits
from tests.browser.test_map import CONTRAST, STRUCTURE
from tests.support.agent_portals import AgentPortal, agent_portal
from tests.support.ledgers import ADA, BOB, ROOT
from tests.support.served import serving
from tests.unit.health.test_agents import booked, says

pytestmark = pytest.mark.browser


@pytest.fixture
def portal(tmp_path: Path) -> AgentPortal:
    return agent_portal(tmp_path)


@pytest.fixture
def site(portal: AgentPortal) -> Iterator[Site]:
    with serving(portal.app) as url:
        yield Site(f"{url}/", portal.ledger, portal.clock)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_its_owner_and_admins_see_what_a_booking_does(
    portal: AgentPortal, site: Site, visits: Visits, width: int, scheme: str
) -> None:
    id = booked(portal)
    page = visits.enter(site, ADA, "bookings", width=width, scheme=scheme)
    use = page.locator(f"[data-use='{id}']")
    expect(use).to_have_text("Use of its GPUs: not known now")
    portal.token("s1")
    says(portal, 60, minutes=10)
    says(portal, 0, minutes=5)
    page.reload()
    expect(use).to_contain_text("40 % in the last 15 min; 40 % since it has a server, of 0.04 h heard; idle since Mon")
    assert page.evaluate(STRUCTURE) == []
    admin = visits.enter(site, ROOT, "admin", width=width, scheme=scheme)
    card = admin.locator(f"#uses [data-id='{id}']")
    expect(card).to_contain_text("1 GPU of t4")
    expect(card).to_contain_text("ada in physics")
    expect(card).to_contain_text("40 % in the last 15 min")
    assert admin.evaluate(CONTRAST) == []
    other = visits.enter(site, BOB, "bookings", width=width, scheme=scheme)
    expect(other.locator("#upcoming")).to_contain_text("Nothing is booked")
    expect(other.locator("[data-use]")).to_have_count(0)
