"""The whole story in the browser, on the real services: two people want the same GPUs.

One wins, the other waits and gets an offer; when the time begins Nova accepts the owner's server and refuses the
other's; when it ends the server that stays is reclaimed after grace, and the other one gets in. Pictures of each step
are in the test's folder, or in the one that GPUYARD_TEST_PICTURES names.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from gpuyard.bookings.records import Query
from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.model.booking import Booking, BookingState
from gpuyard.openstack.people import KeystonePeople
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, server_of
from gpuyard.web.store import PortalStore
from tests.integration.booked_lab import PASSWORD, BookedLab, Open
from tests.integration.test_enforcement import FREE, MUST, opened
from tests.support.inventories import driver
from tests.support.portals import ROOMY
from tests.unit.server.test_portal_server import until

__all__ = ["opened"]
pytestmark = [pytest.mark.lab, pytest.mark.browser]


@contextmanager
def serving(booked: BookedLab) -> Iterator[str]:
    """The portal of a booked lab, by Keystone's own people; its address."""
    inventory = InventoryCache()
    inventory.publish(booked.clock(), booked.statuses())
    app = create_app(
        Sources(
            inventory=inventory,
            driver=driver(),
            site_name="lab",
            gpus=booked.compiled.gpus,
            now=booked.clock,
            ledger=booked.ledger,
            sessions=PortalStore(booked.ledger.database),
            people=KeystonePeople(booked.operator),
            settings=ROOMY,
        )
    )
    with bind("127.0.0.1", 0) as listener:
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/"
        finally:
            server.should_exit = True
            thread.join(10)
        assert not thread.is_alive()


class Person:
    """Somebody with a browser whose clock is the portal's."""

    def __init__(self, chromium: Browser, url: str, name: str, booked: BookedLab, pictures: Path) -> None:
        self.name, self.booked, self.url, self.pictures = name, booked, url, pictures
        self.page: Page = chromium.new_context(viewport={"width": 1400, "height": 900}, timezone_id="UTC").new_page()
        self.go("calendar")

    def go(self, path: str) -> None:
        """To a page; sessions end in the hours between."""
        self.page.clock.set_fixed_time(self.booked.clock())
        self.page.goto(f"{self.url}{path}")
        if "/login" in self.page.url:
            self.page.get_by_label("User").fill(self.name)
            self.page.get_by_label("Password").fill(PASSWORD)
            self.page.get_by_role("button", name="Log in", exact=True).click()
            self.page.wait_for_url(re.compile(f"/{path}"))

    def wish(self, start: datetime, end: datetime) -> None:
        """The form, filled in for all four T4."""
        self.page.get_by_role("button", name="Book GPUs").click()
        form = self.page.locator("#booking-dialog")
        form.locator("select[name=pool]").select_option("t4")
        form.get_by_label("GPUs", exact=True).fill("4")
        form.locator("input[name=start]").fill(f"{start:%Y-%m-%dT%H:%M}")
        form.locator("input[name=end]").fill(f"{end:%Y-%m-%dT%H:%M}")

    def picture(self, step: str) -> None:
        self.page.screenshot(path=self.pictures / f"{step}.png")

    def booking(self) -> Booking:
        (booking,) = self.booked.ledger.find(Query(user_id=self.booked.people[self.name].user_id, pool="t4"))
        return booking


@pytest.mark.slow
@pytest.mark.parametrize("site", [MUST, FREE], ids=["must book", "unbooked use allowed"])
def test_two_people_want_the_same_gpus(
    opened: Open, chromium: Browser, tmp_path: Path, site: dict[str, object]
) -> None:
    pictures = Path(os.environ.get("GPUYARD_TEST_PICTURES", tmp_path))
    booked = opened({**site, "most_active": 5})
    with serving(booked) as url:
        ada, bob = (Person(chromium, url, name, booked, pictures) for name in ("ada", "bob"))
        start = (booked.clock() + timedelta(hours=2)).replace(minute=0, second=0, microsecond=0)
        end = start + timedelta(hours=3)

        ada.wish(start, end)
        expect(ada.page.locator("#fit.good")).to_be_visible()
        ada.picture("1-it-fits")
        ada.page.get_by_role("button", name="Book", exact=True).click()
        expect(ada.page.locator("#booking-dialog")).to_be_hidden()
        assert ada.booking().state is BookingState.CONFIRMED

        bob.go("calendar")
        bob.wish(start, end + timedelta(hours=3))
        expect(bob.page.locator("#fit.bad")).to_contain_text("no GPU of pool t4 is free throughout that time")
        bob.picture("2-the-answer-is-no-and-why")
        bob.page.get_by_role("button", name="Wait for it: join the waitlist").click()
        bob.page.get_by_role("button", name="Book", exact=True).click()
        expect(bob.page.locator("#toast")).to_contain_text("is on the waitlist")
        assert bob.booking().state is BookingState.WAITING

        booked.clock.until(start - timedelta(minutes=2))
        booked.controller.run()
        booked.clock.until(start)
        _run_until_let_in(booked, ada.booking())
        assert booked.refused("bob"), "Nova says 403"
        boot = booked.boot("ada")
        assert boot.status == "ACTIVE", boot.fault
        booked.controller.run()
        ada.go("bookings")
        expect(ada.page.locator("#upcoming")).to_contain_text("active")
        ada.picture("3-active-with-a-server")
        assert booked.refused("bob")

        booked.clock.until(end)
        booked.controller.run()
        assert ada.booking().state is BookingState.ENDED
        assert booked.refused("ada"), "its time is over"
        assert "gpuyard" in booked.server(boot.server_id)["metadata"], "the server is warned"
        bob.go("bookings")
        expect(bob.page.locator("#offers")).to_contain_text("t4")
        bob.picture("4-an-offer")
        bob.page.get_by_role("button", name="Accept").click()
        expect(bob.page.locator("#upcoming .card")).to_contain_text("t4")

        (overstay,) = booked.ledger._store.open_overstays()
        assert overstay.due is not None
        booked.clock.until(overstay.due)
        for _ in range(60):
            booked.controller.run()
            if booked.server(boot.server_id)["status"] == "SHELVED_OFFLOADED":
                break
        assert booked.server(boot.server_id)["status"] == "SHELVED_OFFLOADED"
        _run_until_let_in(booked, bob.booking())
        assert booked.boot("bob").status == "ACTIVE"
        assert booked.refused("ada")
        booked.controller.run()
        bob.go("calendar")
        bob.picture("5-the-calendar-in-the-end")
        for person in (ada, bob):
            person.page.context.close()


def _run_until_let_in(booked: BookedLab, booking: Booking) -> None:
    """Runs of the loop until its project's limit is up. Where unbooked use is allowed, that takes some seconds."""
    for _ in range(30):
        booked.controller.run()
        if booked.limits().get(booking.project, 0) > 0:
            return
        booked.clock.forward(seconds=2)
    raise AssertionError(f"{booking.project} was not let in: {booked.controller.waits}")
