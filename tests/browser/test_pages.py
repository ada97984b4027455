"""The pages of the site, of GPUs, hosts, projects and people in a real browser: on a phone, in the dark, by keys."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Page, expect

from tests.browser.calendars import Site, Visits
from tests.browser.test_map import CONTRAST, STRUCTURE
from tests.support.health_portals import HealthPortal
from tests.support.ledgers import ADA, ROOT
from tests.support.pages_world import whole_portal
from tests.support.runner_portals import RUNNING
from tests.support.served import serving

pytestmark = pytest.mark.browser

GPU = "gpu?name=gpu-1/0000:27:00.0"
PAGES = (
    "", "calendar", "start", "mine", "bookings", "project", "project?id=p-physics", "overview",
    "overview?days=30&pool=t4", "runners", f"job?id={RUNNING.id}", "status", "health", "admin", "gpus", GPU,
    "gpu?name=gpu-1/0000:a3:00.0", "host?name=gpu-1",
)  # fmt: skip
DRAWN = {"calendar": ".tl-axis span, .agenda-day", "bookings": "#upcoming", "admin": "#audit"}
"""What is not there until a script has drawn it."""
SIDEWAYS = """() => [...document.querySelectorAll('main *')].filter((e) => e.scrollWidth > e.clientWidth + 1
  && getComputedStyle(e).overflowX === 'auto'
  && !(e.tabIndex === 0 && (e.getAttribute('aria-labelledby') || e.getAttribute('aria-label'))))
  .map((e) => e.className)"""
"""What scrolls sideways and cannot be reached with keys, or has no name."""
PATTERNS = """() => [...document.querySelectorAll('main .chart path[fill]')]
  .map((e) => e.getAttribute('fill').slice(5, -1))
  .filter((id) => !document.getElementById(id))"""
"""Areas whose pattern is not there."""


AXE = Axe()
NAMED = {"empty-table-header": {"enabled": False}}
"""The calendar's axis has its name in aria-label: its marks say nothing when they are read one after the other."""


@pytest.fixture
def portal(tmp_path: Path) -> HealthPortal:
    return whole_portal(tmp_path)


@pytest.fixture
def inventory(portal: HealthPortal) -> Iterator[Site]:
    with serving(portal.app) as url:
        yield Site(f"{url}/", portal.ledger, portal.clock)


SLOW = pytest.mark.slow


@pytest.mark.parametrize(
    ("width", "scheme"),
    [
        (360, "dark"),
        pytest.param(1280, "light", marks=SLOW),
        pytest.param(360, "light", marks=SLOW),
        pytest.param(1280, "dark", marks=SLOW),
    ],
)
def test_pages_fit_and_can_be_read_by_everybody(inventory: Site, visits: Visits, width: int, scheme: str) -> None:
    page = visits.enter(inventory, ROOT, "status", width=width, scheme=scheme)
    page.on("dialog", lambda dialog: visits.errors.append(f"a dialog: {dialog.message}"))
    for path in PAGES:
        page.goto(f"{inventory.url}{path}")
        if path in DRAWN:
            expect(page.locator(DRAWN[path]).first).not_to_be_empty()
        for details in page.locator("main details").all():
            details.evaluate("details => details.open = true")
        assert page.evaluate("document.documentElement.scrollWidth") == width, path
        assert page.evaluate(CONTRAST) == [], path
        assert page.evaluate(STRUCTURE) == [], path
        assert page.evaluate(SIDEWAYS) == [], path
        assert page.evaluate(PATTERNS) == [], path
        assert page.locator("main script, main img").count() == 0
        assert violations(page) == [], path


def violations(page: Page) -> list[str]:
    """What axe-core finds."""
    findings = AXE.run(page, options={"rules": NAMED}).response["violations"]
    return [
        f"{finding['id']}: {finding['help']}: {node['html'][:200]}" for finding in findings for node in finding["nodes"]
    ]


def test_axe_finds_what_is_wrong(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ROOT, "status")
    page.evaluate("document.querySelector('#main').append(document.createElement('input'))")
    assert [violation.partition(":")[0] for violation in violations(page)] == ["label"]


def test_strangers_can_read_the_login_and_the_state(inventory: Site, visits: Visits) -> None:
    page = visits.browser.new_context(viewport={"width": 360, "height": 900}, color_scheme="dark").new_page()
    visits.pages.append(page)
    for path in ("login", "status", "runners", f"job?id={RUNNING.id}", "gone"):
        page.goto(f"{inventory.url}{path}")
        assert page.evaluate("document.documentElement.scrollWidth") == 360, path
        assert violations(page) == [], path


def test_all_pages_are_in_one_row(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ROOT, "status", width=1280)
    links = page.get_by_role("navigation", name="Pages").get_by_role("link")
    assert links.count() == 11
    assert len({box["y"] for link in links.all() if (box := link.bounding_box())}) == 1
    expect(page.get_by_role("button", name="Menu")).to_be_hidden()


def test_on_a_phone_all_pages_are_in_a_menu_that_keys_open(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ROOT, "status", width=360)
    box = page.locator("header").bounding_box()
    assert box is not None
    assert box["height"] < 80
    menu, link = page.get_by_role("button", name="Menu"), page.get_by_role("link", name="Runners")
    expect(link).to_be_hidden()
    menu.focus()
    page.keyboard.press("Enter")
    expect(link).to_be_visible()
    expect(page.get_by_role("link", name="Status")).to_have_attribute("aria-current", "page")
    assert violations(page) == []
    page.keyboard.press("Escape")
    expect(link).to_be_hidden()
    expect(menu).to_be_focused()
    menu.click()
    page.get_by_role("button", name="Close").click()
    expect(link).to_be_hidden()
    menu.click()
    link.click()
    expect(page).to_have_url(re.compile("/runners$"))


def test_who_may_not_see_a_page_is_led_on(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ADA, "mine", width=360, scheme="dark")
    page.goto(f"{inventory.url}health")
    expect(page.get_by_role("alert")).to_contain_text("Only admins can quarantine GPUs")
    assert violations(page) == []
    page.get_by_role("button", name="Menu").click()
    page.get_by_role("link", name="My GPUs").click()
    expect(page).to_have_url(re.compile("/mine$"))


def test_a_gpus_page_has_all_that_is_known_of_it(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ROOT, "gpu?name=gpu-1/0000:a3:00.0")
    main = page.locator("main")
    for name in ("Health", "Hardware", "Reserved from now on", "How it was used", "Record"):
        expect(main.get_by_role("region", name=name, exact=True)).to_be_visible()
    hardware = main.get_by_role("region", name="Hardware")
    for fact in ("Tesla V100 PCIe 16GB", "10de:1db4", "alone in its group", "CUSTOM_GPU_V100"):
        expect(hardware).to_contain_text(fact)
    expect(main.get_by_role("link", name="Host gpu-1")).to_be_visible()
    server = main.locator("section").first
    expect(server).to_contain_text("training")
    expect(server).to_contain_text("ada in physics")
    expect(server).to_contain_text("used 0 % over the last 60 min, has done nothing for 1 h, 12 % of its memory, 41 °C")
    expect(main.get_by_role("img", name=re.compile("The last 7 days: "))).to_be_visible()
    expect(main.locator("#past tbody tr").first).to_contain_text("goes on")
    page.goto(f"{inventory.url}gpu?name=gpu-1/0000:c3:00.0")
    reserved = main.get_by_role("region", name="Reserved from now on")
    expect(reserved).to_contain_text("new riser card")
    expect(reserved).to_contain_text("hold")
    expect(main.get_by_role("region", name="Health", exact=True)).to_contain_text("asked the vendor for another one")
    page.goto(f"{inventory.url}gpu?name=gpu-1/0000:27:00.0")
    expect(hardware).to_contain_text("With it in its IOMMU group:")
    expect(hardware.get_by_role("link", name="0000:28:00.0")).to_be_visible()


def test_a_hosts_page_has_all_that_is_known_of_it(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ROOT, "host?name=gpu-1")
    main = page.locator("main")
    facts = main.locator("dl.facts").first
    for fact in ("6.12.9", "AMI 2.4", "8.2.2", "AMD EPYC 7763, 128 CPUs", "1024 GiB", "quiet iommu=pt", "5 free of 6"):
        expect(facts).to_contain_text(fact)
    expect(main.get_by_text("It runs kernel 6.12.9; the site file was recorded with 6.1.0.")).to_be_visible()
    reported = main.get_by_role("region", name="What the host last reported of its GPUs")
    expect(reported.get_by_role("row", name="0000:27:00.0")).to_contain_text("its link has 4 of 16 lanes")
    checks = main.get_by_role("region", name="Checks")
    expect(checks.get_by_role("row", name="iommu", exact=False).first).to_be_visible()
    page.goto(f"{inventory.url}host?name=gpu-2")
    expect(main.get_by_role("region", name="Maintenance")).to_contain_text("power supply")


def test_a_table_is_searched_with_keys(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ADA, "gpus")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(8)
    page.get_by_role("searchbox", name="Search").press_sequentially("training")
    page.keyboard.press("Enter")
    expect(page).to_have_url(re.compile("q=training"))
    expect(rows).to_have_count(1)
    page.get_by_role("link", name="0000:a3:00.0").click()
    expect(page.get_by_role("heading", name="gpu-1/0000:a3:00.0")).to_be_visible()
    page.get_by_role("link", name="Host gpu-1").click()
    expect(page.locator(".gpu")).to_have_count(6)
    page.locator(".gpu a.address").first.click()
    expect(page.get_by_role("img", name="The last 7 days: ")).to_be_visible()


def test_what_a_chart_shows_is_said_and_in_a_table(inventory: Site, visits: Visits) -> None:
    page = visits.enter(inventory, ADA, "overview")
    chart = page.get_by_role("region", name="t4 33 % of the observed time in use")
    expect(chart.get_by_role("img")).to_have_accessible_name(re.compile("^t4 over time: booked use "))
    chart.get_by_text("As a table").click()
    expect(chart.get_by_role("columnheader", name="booked use", exact=True)).to_be_visible()
    fills = chart.locator("svg.chart path[fill]").evaluate_all("all => all.map((e) => e.getAttribute('fill'))")
    assert len(set(fills)) == len(fills) > 3
    page.get_by_role("navigation", name="Time").get_by_role("link", name="30 days").click()
    expect(page.get_by_role("navigation", name="Time").locator("[aria-current]")).to_have_text("30 days")


def test_strangers_read_the_state_of_the_site_and_find_the_login(inventory: Site, visits: Visits) -> None:
    page: Page = visits.browser.new_context().new_page()
    visits.pages.append(page)
    page.goto(f"{inventory.url}status")
    expect(page.get_by_role("heading", name="Some GPUs are out of use")).to_be_visible()
    expect(page.get_by_role("link", name="Status")).to_have_attribute("aria-current", "page")
    expect(page.locator("main")).not_to_contain_text("gpu-1")
    page.get_by_role("link", name="Log in").click()
    expect(page.get_by_label("Password")).to_be_visible()


def test_a_page_keeps_itself_current(inventory: Site, visits: Visits, portal: HealthPortal) -> None:
    page = visits.enter(inventory, ADA, "mine")
    expect(page.get_by_text("training, last run")).to_be_visible()
    portal.ledger.cancel("b1", ADA)
    page.evaluate("document.dispatchEvent(new Event('visibilitychange'))")
    expect(page.get_by_text("training, last run")).to_have_count(0)
    expect(page.get_by_text("for the poster")).to_be_visible()
