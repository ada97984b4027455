"""A portal with bookings that runs, the people who visit it, and where things are on its pages."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from urllib.parse import quote

import pytest
from playwright.sync_api import Browser, ConsoleMessage, FloatRect, Locator, Page, Request, expect

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.dashboard.sources import Sources
from gpuyard.model.booking import Booking, Person, Rules
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, server_of
from gpuyard.site.load import load_site
from gpuyard.site.objects import FlavorObject
from gpuyard.web.store import PortalStore
from tests.support.inventories import GPUS, driver, filled
from tests.support.ledgers import ADA, DAY, NOON, Clock, open_ledger
from tests.support.people import PASSWORD, people
from tests.support.portals import ROOMY
from tests.unit.server.test_portal_server import until

REFUSALS = ("status of 409", "status of 412", "status of 403")
"""The browser itself writes these to the console when the API says no."""
LANE = {"v100 pair": 1, "v100 lone": 3, "t4": 5}
"""Ids of lanes of tests/support/ledgers.py, in the order in which they were made."""


@dataclass
class Site:
    url: str
    ledger: Ledger
    clock: Clock


@cache
def flavors() -> tuple[FlavorObject, ...]:
    """Of the lab's site, which has the same pools."""
    return load_site(Path(__file__).parents[2] / "lab/src/gpuyard_lab/site.yaml").compiled.flavors


@contextmanager
def serving(folder: Path, rules: Rules | None = None, now: datetime = NOON) -> Iterator[Site]:
    """A portal with bookings, in a thread, with a clock that stands still."""
    clock = Clock(now)
    ledger = open_ledger(folder, rules, clock)
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="test",
            gpus=GPUS,
            now=clock,
            ledger=ledger,
            sessions=PortalStore(ledger.database),
            people=people(),
            settings=ROOMY,
            flavors=flavors(),
        )
    )
    with bind("127.0.0.1", 0) as listener:
        server = server_of(app)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            until(lambda: server.started)
            yield Site(f"http://127.0.0.1:{listener.getsockname()[1]}/", ledger, clock)
        finally:
            server.should_exit = True
            thread.join(10)
        assert not thread.is_alive()


def where(**settings: object) -> pytest.MarkDecorator:
    """A site with other rules, or at another time."""
    return pytest.mark.parametrize("site", [settings], indirect=True, ids=["site"])


@dataclass
class Visits:
    """Pages of people who have logged in. Afterwards: no page has complained, and none has asked anybody else."""

    browser: Browser
    errors: list[str] = field(default_factory=list)
    pages: list[Page] = field(default_factory=list)

    def enter(
        self,
        site: Site,
        person: Person = ADA,
        path: str = "calendar",
        zone: str = "UTC",
        width: int = 1400,
        scheme: str = "light",
        touch: bool = False,
    ) -> Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            timezone_id=zone,
            has_touch=touch,
            color_scheme=scheme,  # type: ignore[arg-type]
        )
        page = context.new_page()
        self.pages.append(page)

        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning") and not any(refusal in message.text for refusal in REFUSALS):
                self.errors.append(message.text)

        def asked(request: Request) -> None:
            if not request.url.startswith(site.url):
                self.errors.append(f"asked {request.url}")

        page.on("console", heard)
        page.on("pageerror", lambda error: self.errors.append(str(error)))
        page.on("request", asked)
        page.clock.set_fixed_time(site.clock.now)
        page.goto(f"{site.url}login?next={quote(f'/{path}')}")
        page.get_by_label("User").fill(person.user)
        page.get_by_label("Password").fill(PASSWORD)
        page.get_by_role("button", name="Log in", exact=True).click()
        page.wait_for_url(re.compile(f"/{path.partition('?')[0]}([?]|$)"))
        return page


def booked(site: Site, **criteria: object) -> list[Booking]:
    return site.ledger.find(Query(**criteria))  # type: ignore[arg-type]


def only(site: Site, **criteria: object) -> Booking:
    (booking,) = booked(site, **criteria)
    return booking


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).replace(tzinfo=UTC)


def track(page: Page, key: str) -> Locator:
    return page.locator(f'.tl-track[data-key="{key}"]')


def lane(page: Page, name: str) -> Locator:
    return track(page, f"lane {LANE[name]}")


def event(page: Page, booking: Booking) -> Locator:
    return page.locator(f'.tl-event[data-id="{booking.id}"]').first


def x_of(page: Page, moment: datetime) -> float:
    """Where on the page a time is."""
    position: float = page.evaluate(
        """at => {
            const box = document.querySelector('.tl-axis').getBoundingClientRect(), {start, end} = timeline.view;
            return box.left + box.width * (at - start) / (end - start);
        }""",
        moment.timestamp() * 1000,
    )
    return position


def box_of(part: Locator) -> FloatRect:
    """Where it is; it may just be drawn again."""
    boxes: list[FloatRect] = []

    def look() -> bool:
        boxes.extend(box for box in [part.bounding_box()] if box)
        return bool(boxes)

    until(look)
    return boxes[0]


def drag(page: Page, row: Locator, start: datetime, end: datetime, to: Locator | None = None, inset: float = 1) -> None:
    """From one time in a row to another time in that row or another one."""
    row.scroll_into_view_if_needed()
    first, last = box_of(row), box_of(to or row)
    page.mouse.move(x_of(page, start) + inset, first["y"] + first["height"] / 2)
    page.mouse.down()
    page.mouse.move(x_of(page, start) + 20 * inset, first["y"] + first["height"] / 2, steps=3)
    page.mouse.move(x_of(page, end) - inset, last["y"] + last["height"] / 2, steps=6)
    page.mouse.up()


def form(page: Page) -> Locator:
    return page.locator("#booking-dialog")


def choice(part: Page | Locator, name: str) -> Locator:
    return part.get_by_role("combobox", name=name, exact=True)


def fits(page: Page) -> None:
    expect(page.locator("#fit.good")).to_be_visible()


TUESDAY, WEDNESDAY = NOON.replace(hour=0) + DAY, NOON.replace(hour=0) + 2 * DAY
