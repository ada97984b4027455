"""The GPU map in a real browser: what people see, with and without scripts, and how it stays current."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import Any, Literal

import pytest
from playwright.sync_api import Browser, ConsoleMessage, Dialog, Page, Playwright, Request, expect

from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.inventory.web.presenter import duration
from gpuyard.model.gpu import Gpu, GpuRole, GpuState, GpuStatus
from gpuyard.runtime.control_loops import Driver
from tests.support.browser import CHROMIUM
from tests.support.inventories import LONE, NASTY, NOON, STATUSES, changed, claim, driver, filled, t4, v100
from tests.unit.server.test_portal_server import Running, running, until

pytestmark = pytest.mark.browser

WIDTHS = (360, 768, 1280, 1920)


@pytest.fixture
def page_without_scripts(driven: Playwright) -> Iterator[Page]:
    """Scripts are off in the settings of the browser. In a context alone, <noscript> would stay out of effect."""
    arguments = ["--no-sandbox", "--blink-settings=scriptEnabled=false"]
    with driven.chromium.launch(executable_path=CHROMIUM, args=arguments) as browser:
        yield browser.new_page()


@dataclass
class Opened:
    page: Page
    url: str
    errors: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)


Open = Callable[..., Opened]


@pytest.fixture
def visit(chromium: Browser) -> Iterator[Open]:
    """Opens pages of a server. Afterwards: no page has complained, and none has asked anybody else for anything."""
    opened: list[Opened] = []

    def visit(
        server: Running,
        width: int = 1280,
        scheme: Literal["light", "dark"] = "light",
        motion: Literal["reduce", "no-preference"] = "no-preference",
    ) -> Opened:
        context = chromium.new_context(
            viewport={"width": width, "height": 800},
            color_scheme=scheme,
            reduced_motion=motion,
        )
        visitor = Opened(context.new_page(), f"http://127.0.0.1:{server.port}/")
        opened.append(visitor)
        page = visitor.page

        def heard(message: ConsoleMessage) -> None:
            if message.type in ("error", "warning"):
                visitor.errors.append(message.text)

        def asked(request: Request) -> None:
            visitor.requests.append(request.url)

        page.on("console", heard)
        page.on("pageerror", lambda error: visitor.errors.append(str(error)))
        page.on("request", asked)
        page.goto(visitor.url)
        expect(page.locator("#link")).not_to_have_text("connecting")
        return visitor

    yield visit
    for visitor in opened:
        assert visitor.errors == []
        assert [url for url in visitor.requests if not url.startswith(visitor.url)] == []
        visitor.page.context.close()


@pytest.fixture
def server() -> Iterator[Running]:
    with running() as subject:
        yield subject


def box(page: Page, gpu: Gpu) -> Any:
    return page.locator(f'[id="gpu-{gpu.host}-{gpu.address}"]')


def test_hosts_slots_and_pairs_are_there(server: Running, visit: Open) -> None:
    page = visit(server).page
    expect(page).to_have_title("test · GPU map")
    expect(page.locator(".host h3")).to_have_text(["epyc", "node10", "node2"])
    host = page.locator(".host", has=page.get_by_text("epyc", exact=True))
    expect(host.locator(".slot")).to_have_count(4)
    expect(host.locator(".slot-label").first).to_have_text("IOMMU group 19 · pair A")
    expect(page.locator(".gpu")).to_have_count(len(STATUSES))
    expect(page.locator(".pool").nth(0)).to_contain_text("v100")
    expect(page.locator(".pool").nth(0)).to_contain_text("2 free of 6")
    expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#seen")).to_have_text("as of 12:03:10 UTC")


def test_a_pair_is_one_frame_around_a_marked_leader_and_its_peer(server: Running, visit: Open) -> None:
    page = visit(server).page
    frame = page.locator(".slot.pair").first
    leader, peer = frame.locator(".gpu").nth(0), frame.locator(".gpu").nth(1)
    expect(leader.locator(".role")).to_have_text("leader")
    expect(peer.locator(".role")).to_have_text("peer")
    outer, left, right = (part.bounding_box() for part in (frame, leader, peer))
    assert outer
    assert left
    assert right
    assert outer["x"] < left["x"] < left["x"] + left["width"] < right["x"]
    assert right["x"] + right["width"] < outer["x"] + outer["width"]
    assert left["y"] == right["y"]

    def border(selector: str) -> object:
        return page.locator(selector).first.evaluate("element => getComputedStyle(element).borderTopColor")

    assert border(".slot.pair") != border(".slot.lone") == "rgba(0, 0, 0, 0)"


def test_the_state_is_said_in_words_in_every_box(server: Running, visit: Open) -> None:
    page = visit(server).page
    for status in STATUSES:
        expect(box(page, status.gpu).locator(".chip")).to_have_text(status.state.value)


def test_a_change_arrives_without_a_reload(server: Running, visit: Open) -> None:
    page = visit(server).page
    page.evaluate("window.same = true")
    page.evaluate("window.untouched = document.querySelectorAll('.gpu')[0]")
    began = monotonic()
    server.inventory.publish(NOON, changed(LONE, GpuState.CLAIMED, "", claim("fresh-server")))
    expect(box(page, LONE)).to_contain_text("fresh-server", timeout=2000)
    assert monotonic() - began < 2
    expect(page.locator("#news")).to_have_text("0000:44:00.0 on epyc is claimed")
    expect(page.locator(".pool").nth(0)).to_contain_text("1 free of 6")
    expect(box(page, LONE)).to_have_class("gpu is-claimed changed")
    assert page.evaluate("window.same")
    assert page.evaluate("window.untouched.isConnected")  # what has not changed is not touched
    expect(page.locator("#map")).to_have_attribute("data-generation", "2")


def test_many_changes_are_announced_in_short(server: Running, visit: Open) -> None:
    page = visit(server).page
    server.inventory.publish(NOON, [GpuStatus(status.gpu, GpuState.HELD) for status in STATUSES])
    expect(page.locator("#news")).to_have_text("9 GPUs changed")


def test_the_place_where_one_reads_and_the_focus_stay(server: Running, visit: Open) -> None:
    page = visit(server, width=360).page
    page.locator("footer a").first.focus()
    footer = "document.querySelector('footer').getBoundingClientRect().top"
    page.evaluate("scrollTo(0, document.body.scrollHeight)")
    before = page.evaluate(footer)
    server.inventory.publish(NOON, changed(LONE, GpuState.HELD, "a reason that needs some lines " * 10))
    expect(box(page, LONE)).to_contain_text("a reason")
    page.wait_for_timeout(100)
    assert abs(page.evaluate(footer) - before) <= 1
    assert page.evaluate("document.activeElement.textContent") == "API"


def test_a_gpu_that_comes_and_one_that_goes(server: Running, visit: Open) -> None:
    page = visit(server).page
    new = t4("0000:99:00.0", 99, "node99")
    server.inventory.publish(NOON, [*STATUSES[1:], GpuStatus(new, GpuState.FREE)])
    expect(box(page, new)).to_be_visible()
    expect(box(page, STATUSES[0].gpu)).to_have_count(0)


def test_the_page_without_scripts_shows_the_same(server: Running, page_without_scripts: Page) -> None:
    page = page_without_scripts
    page.goto(f"http://127.0.0.1:{server.port}/")
    expect(page.locator(".gpu")).to_have_count(len(STATUSES))
    expect(page.locator("#link")).to_have_text("loads again every 30 s", use_inner_text=True)
    expect(page.locator("#seen")).to_have_text("as of 12:03:10 UTC")
    expect(page.locator("#lost")).to_be_hidden()


def test_the_page_without_scripts_fills_itself_too(page_without_scripts: Page) -> None:
    with running(InventoryCache(), driver(runs=0)) as server:
        page = page_without_scripts
        page.goto(f"http://127.0.0.1:{server.port}/")
        expect(page.locator("#link")).to_have_text("loads again every 5 s", use_inner_text=True)
        server.inventory.publish(NOON, STATUSES)
        expect(page.locator(".gpu")).to_have_count(len(STATUSES), timeout=10_000)
        page.close()


def test_the_page_fills_itself(visit: Open) -> None:
    with running(InventoryCache(), driver(runs=0)) as server:
        page = visit(server).page
        expect(page.get_by_text("Looking at the cloud")).to_be_visible()
        expect(page.locator("#link")).to_have_text("connected")
        server.inventory.publish(NOON, STATUSES)
        expect(page.locator(".gpu")).to_have_count(len(STATUSES), timeout=2000)
        expect(page.locator("#link")).to_have_text("live")
        page.close()


@contextmanager
def failing() -> Iterator[tuple[Running, Driver]]:
    loops = driver()
    with running(filled(), loops) as server:
        yield server, loops


def test_a_cloud_that_does_not_answer_is_told_and_forgotten(visit: Open) -> None:
    with failing() as (server, loops):
        page = visit(server).page
        expect(page.locator(".notice:visible")).to_have_count(0)
        work, loops.loops[0]._run = loops.loops[0]._run, lambda: 1 / 0
        loops.loops[0].run_once("timer")
        expect(page.locator("#troubles")).to_contain_text("The cloud has not answered since", timeout=2000)
        expect(page.locator("#troubles")).to_contain_text("ZeroDivisionError")
        expect(page.locator("#link")).to_have_text("behind")
        loops.loops[0]._run = work
        loops.loops[0].run_once("timer")
        expect(page.locator(".notice:visible")).to_have_count(0, timeout=2000)
        expect(page.locator("#link")).to_have_text("live")
        page.close()


def test_a_lost_connection_is_told_and_found_again(visit: Open) -> None:
    with running() as server:
        visitor = visit(server)
        page, port = visitor.page, server.port
        expect(page.locator("#link")).to_have_text("live")
    expect(page.locator("#link")).to_have_text("not connected")
    expect(page.locator("#lost")).to_be_visible()
    expect(page.locator("#lost")).to_contain_text("The connection to gpuyard was lost at ")
    with running(port=port) as server:
        server.inventory.publish(NOON, changed(LONE, GpuState.HELD, "meanwhile"))
        expect(page.locator("#link")).to_have_text("live", timeout=10_000)
        expect(page.locator("#lost")).to_be_hidden()
        expect(box(page, LONE)).to_contain_text("meanwhile")
        page.close()
    assert all("ERR_CONNECTION_REFUSED" in error or "ERR_INCOMPLETE" in error for error in visitor.errors)
    visitor.errors.clear()


def test_a_hidden_tab_keeps_no_connection(server: Running, visit: Open) -> None:
    page = visit(server).page
    until(lambda: server.feed.streams == 1)
    hide = """hidden => {
        Object.defineProperty(document, 'hidden', {value: hidden, configurable: true});
        document.dispatchEvent(new Event('visibilitychange'));
    }"""
    page.evaluate(hide, True)
    until(lambda: server.feed.streams == 0)
    server.inventory.publish(NOON, changed(LONE, GpuState.HELD, "unseen"))
    page.evaluate(hide, False)
    expect(box(page, LONE)).to_contain_text("unseen")


def test_an_open_page_loads_itself_again_after_an_upgrade(server: Running, visit: Open) -> None:
    page = visit(server).page
    page.evaluate("document.documentElement.dataset.build = 'older'; window.same = true")
    server.inventory.publish(NOON, changed(LONE, GpuState.HELD))
    expect(page.locator("html")).not_to_have_attribute("data-build", "older")
    assert not page.evaluate("window.same")


def test_names_that_users_choose_do_not_run(server: Running, visit: Open) -> None:
    page = visit(server).page
    dialogs: list[str] = []

    def shown(dialog: Dialog) -> None:
        dialogs.append(dialog.message)
        dialog.dismiss()

    page.on("dialog", shown)
    server.inventory.publish(
        NOON, changed(LONE, GpuState.CLAIMED, f"<img src=x onerror=alert(1)>{NASTY}", claim(NASTY))
    )
    expect(box(page, LONE)).to_contain_text(NASTY)
    assert dialogs == []


@pytest.mark.parametrize("seconds", [-5, 0, 59, 119, 3599, 3600, 172799, 172800, 40_000_000])
def test_browser_and_server_count_time_alike(server: Running, visit: Open, seconds: int) -> None:
    assert visit(server).page.evaluate(f"duration({seconds})") == duration(seconds)


# How it looks


def crowded() -> InventoryCache:
    """Long names, and a site that is drawn dense."""
    inventory = InventoryCache()
    long = claim("a-server-name-without-any-place-to-break-it-in-two-" * 3, "SHUTOFF")
    gpus = [
        v100(f"0000:{n:02x}:00.0", n // 2, (GpuRole.LEADER, GpuRole.PEER)[n % 2], "A", f"node{host}.rack.example.org")
        for host in range(8)
        for n in range(8)
    ]
    inventory.publish(NOON, [GpuStatus(gpu, GpuState.CLAIMED, "reason" * 20, long) for gpu in gpus])
    return inventory


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("make", [filled, crowded])
def test_nothing_is_wider_than_the_window(visit: Open, width: int, make: Callable[[], InventoryCache]) -> None:
    with running(make(), driver("refused " * 30)) as server:
        page = visit(server, width).page
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        spilled = page.evaluate(
            """() => [...document.querySelectorAll('.gpu, .pool, .host, .slot')]
                .filter((e) => e.scrollWidth > e.clientWidth + 1).map((e) => e.id || e.className)"""
        )
        assert spilled == []
        page.close()


CONTRAST = """() => {
  const canvas = document.createElement('canvas').getContext('2d', {willReadFrequently: true});
  const rgba = (color) => {
    canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = color; canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const luminance = (c) => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => {
    const v = c[i] / 255; return sum + weight * (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4); }, 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const color = rgba(getComputedStyle(e).backgroundColor);
      if (color[3] === 255) return color;
      if (color[3]) throw new Error('half transparent background: ' + e.className);
    }
    return [255, 255, 255, 255];
  };
  const poor = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const element = walker.currentNode.parentElement;
    if (!walker.currentNode.data.trim() || !element.checkVisibility()) continue;
    const [a, b] = [rgba(getComputedStyle(element).color), behind(element)].map(luminance);
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) poor.push(`${walker.currentNode.data.trim()} in .${element.className}: ${ratio.toFixed(2)}`);
  }
  return poor;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_stands_out_enough_to_be_read(visit: Open, scheme: Literal["light", "dark"]) -> None:
    """WCAG 2 AA: a contrast of 4.5 to 1, in every state and both colour schemes."""
    for loops in (driver(), driver("refused"), driver("refused", runs=0)):
        with running(filled(), loops) as server:
            page = visit(server, scheme=scheme).page
            assert page.evaluate(CONTRAST) == []
            page.close()


STRUCTURE = """() => {
  const problems = [], all = (selector) => [...document.querySelectorAll(selector)];
  const ids = all('[id]').map((e) => e.id);
  if (new Set(ids).size !== ids.length) problems.push('ids are not unique');
  if (!document.documentElement.lang) problems.push('no language');
  for (const [selector, count] of [['h1', 1], ['main', 1], ['body > header', 1], ['body > footer', 1]])
    if (all(selector).length !== count) problems.push(`${all(selector).length} of ${selector}`);
  let level = 0;
  for (const heading of all('h1, h2, h3, h4')) {
    const own = Number(heading.tagName[1]);
    if (own > level + 1) problems.push(`${heading.textContent}: a level was left out`);
    level = own;
  }
  for (const image of all('img')) if (!image.hasAttribute('alt')) problems.push(`no alt: ${image.src}`);
  if (all('svg:not([aria-hidden=true]):not([role=img][aria-label])').length) problems.push('a drawing without words');
  for (const e of all('section, nav, [role=group], article')) {
    const by = document.getElementById(e.getAttribute('aria-labelledby'));
    const name = e.getAttribute('aria-label') || by?.textContent;
    if (!name) problems.push(`no name: ${e.className}`);
  }
  for (const e of all('a')) if (!e.textContent.trim()) problems.push('a link without words');
  for (const e of all('a[href^="#"]')) if (!document.querySelector(e.hash)) problems.push('a dead link');
  return problems;
}"""


def test_the_page_makes_sense_to_those_who_do_not_see_it(server: Running, visit: Open) -> None:
    page = visit(server).page
    assert page.evaluate(STRUCTURE) == []
    assert page.locator("[aria-live=polite]").count() == 2  # troubles and news, but not the map
    expect(page.get_by_role("article", name="0000:44:00.0 on epyc")).to_contain_text("free")
    expect(page.get_by_role("group", name="IOMMU group 19 · pair A")).to_be_visible()
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the map")).to_be_focused()


def test_nothing_moves_for_those_who_do_not_want_it(server: Running, visit: Open) -> None:
    page = visit(server, motion="reduce").page
    server.inventory.publish(NOON, changed(LONE, GpuState.HELD))
    expect(page.locator(".gpu.changed")).to_have_count(1)
    assert page.evaluate("document.getAnimations().length") == 0


def test_links_lead_somewhere(server: Running, visit: Open) -> None:
    page = visit(server).page
    addresses = page.eval_on_selector_all("footer a", "links => links.map((link) => link.href)")
    assert len(addresses) == 3
    for address in addresses:
        assert page.request.get(address).ok
