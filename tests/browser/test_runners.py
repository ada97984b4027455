"""The pages of runners in a real browser: what they show of hostile names and logs, and how they stay current."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from tests.browser.calendars import Site, Visits
from tests.browser.test_map import CONTRAST, STRUCTURE
from tests.support.ledgers import ADA, ROOT
from tests.support.runner_portals import BOARD, BUSY, EVIL, NASTY_JOB, RUNNING, RunnerPortal, fill, runner_portal
from tests.support.served import serving

pytestmark = pytest.mark.browser

PAGES = ("runners", f"job?id={RUNNING.id}", f"job?id={NASTY_JOB.id}")
LOOK = "document.dispatchEvent(new Event('visibilitychange'))"
"""The page loads itself again now and then, and when somebody comes back to it."""


@pytest.fixture
def portal(tmp_path: Path) -> RunnerPortal:
    made = runner_portal(tmp_path, public=True)
    fill(made)
    return made


@pytest.fixture
def runners(portal: RunnerPortal) -> Iterator[Site]:
    with serving(portal.app) as url:
        yield Site(f"{url}/", portal.ledger, portal.clock)


@pytest.mark.parametrize(("width", "scheme"), [(360, "dark"), (1280, "light")])
def test_nothing_hostile_runs_or_breaks_the_page(runners: Site, visits: Visits, width: int, scheme: str) -> None:
    page = visits.enter(runners, ROOT, "runners", width=width, scheme=scheme)
    page.on("dialog", lambda dialog: visits.errors.append(f"a dialog: {dialog.message}"))
    for path in PAGES:
        page.goto(f"{runners.url}{path}")
        expect(page.locator("main")).to_contain_text(EVIL)
        assert page.locator("main script, main img").count() == 0
        assert page.evaluate("document.documentElement.scrollWidth") == width
        assert page.evaluate(CONTRAST) == []
        assert page.evaluate(STRUCTURE) == []


def test_a_log_is_shown_as_it_is(runners: Site, visits: Visits) -> None:
    page = visits.enter(runners, ADA, "runners")
    page.get_by_role("link", name="CI / train").click()
    log = page.locator("pre.log")
    expect(log).to_contain_text(EVIL)
    expect(log).to_contain_text("Job test completed with result: Failed")
    expect(page.locator(".timeline li")).to_have_count(4)


def test_the_page_keeps_itself_current(runners: Site, visits: Visits, portal: RunnerPortal) -> None:
    page = visits.enter(runners, ADA, "runners")
    running = page.locator("section", has=page.get_by_role("heading", name="Running"))
    expect(running).to_contain_text("CI / train")
    held = page.get_by_role("link", name="CI / train").element_handle()
    portal.overview.publish(replace(BOARD, queue=()))
    page.evaluate(LOOK)
    expect(page.locator("main")).not_to_contain_text("all 6 GPUs of v100 are taken")
    assert held.evaluate("link => link.isConnected"), "what did not change stays where it is"
    portal.overview.publish(replace(BOARD, jobs=(), runners=(BUSY,), queue=()))
    page.evaluate(LOOK)
    expect(page.locator("main")).to_contain_text("No job is waiting.")
    expect(running).to_contain_text("No job is running.")


def test_a_page_that_cannot_be_loaded_again_says_so(runners: Site, visits: Visits) -> None:
    page = visits.enter(runners, ADA, "runners")
    page.route("**/runners", lambda route: route.abort())
    page.evaluate(LOOK)
    expect(page.locator("#lost")).to_be_visible()
    page.unroute("**/runners")
    page.evaluate(LOOK)
    expect(page.locator("#lost")).to_be_hidden()
    visits.errors[:] = [error for error in visits.errors if "ERR_FAILED" not in error]


def test_everybody_sees_a_public_site(runners: Site, visits: Visits) -> None:
    page: Page = visits.browser.new_context().new_page()
    visits.pages.append(page)
    page.goto(f"{runners.url}runners")
    expect(page.get_by_role("link", name="CI / train")).to_be_visible()
    page.get_by_role("link", name="CI / train").click()
    expect(page.locator("main")).to_contain_text("to see it")
    expect(page.locator("pre.log")).to_have_count(0)
    page.get_by_role("link", name="Log in").first.click()
    expect(page.get_by_label("Password")).to_be_visible()
