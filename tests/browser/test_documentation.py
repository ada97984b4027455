"""The documentation as a site: it builds without a warning, and the portal serves it as it is."""

from __future__ import annotations

import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fastapi import FastAPI
from playwright.sync_api import Browser, expect
from starlette.testclient import TestClient
from tools.docs_site import ROOT, build, hashes_of_scripts, pack

from gpuyard.server.app import create_app
from gpuyard.web import documentation, problems
from gpuyard.web.security import Protected
from tests.support.inventories import plain_sources
from tests.support.served import serving

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documentation") / "site"
    assert build(folder) == 0, "a page warns: make docs-site says what of"
    return folder


@pytest.fixture(scope="module")
def archive(site: Path) -> Path:
    packed = site.parent / "documentation.tar.xz"
    pack(site, packed)
    return packed


def portal(archive: Path) -> FastAPI:
    app = FastAPI(docs_url=None, redoc_url=None)
    app.add_middleware(Protected)
    problems.install(app)
    documentation.install(app, archive)
    app.state.feed = create_app(plain_sources()).state.feed  # whoever serves an app ends its feed
    return app


def test_every_page_of_the_repository_is_in_it(site: Path) -> None:
    pages = {path.relative_to(ROOT / "docs").with_suffix(".html") for path in (ROOT / "docs").rglob("*.md")}
    assert {page for page in pages if not (site / page).exists()} == set()
    for name in ("site.schema.json", "inventory.schema.json"):
        assert list(site.rglob(name)), "what a page links to comes along"


def test_packed_it_has_the_same_bytes_each_time(site: Path, archive: Path, tmp_path: Path) -> None:
    pack(site, tmp_path / "again")
    assert archive.read_bytes() == (tmp_path / "again").read_bytes()
    assert archive.stat().st_size < 700_000, "wheels carry it, and are to stay below 2 MB"
    with tarfile.open(archive) as file:
        assert not [name for name in file.getnames() if name.startswith((".", "/"))]


def test_it_is_served_with_the_scripts_that_it_has_and_no_others(archive: Path) -> None:
    client = TestClient(portal(archive))
    assert client.get("/docs", follow_redirects=False).headers["location"] == "docs/"
    index = client.get("/docs/")
    assert index.headers["content-type"] == "text/html; charset=utf-8"
    (allowed,) = re.findall(r"script-src ([^;]+)", index.headers["content-security-policy"])
    assert allowed.split() == ["'self'", *(f"'{name}'" for name in hashes_of_scripts([index.text]))]
    assert 'href="../">To the portal</a>' in index.text
    page = client.get("/docs/how-to/book-a-gpu.html")
    assert page.status_code == 200
    assert 'href="../../">To the portal</a>' in page.text
    for path in ("nothing", "how-to", "../security.py", "%2e%2e/security.py", "/etc/passwd"):
        assert client.get(f"/docs/{path}").json()["code"] == "not_found"


def test_without_it_the_portal_says_so(tmp_path: Path) -> None:
    answer = TestClient(portal(tmp_path / "none")).get("/docs/")
    assert answer.status_code == 404
    assert answer.json()["detail"] == "This gpuyard was built without its documentation."


@pytest.fixture
def url(archive: Path) -> Iterator[str]:
    with serving(portal(archive)) as address:
        yield address.rstrip("/")


def test_a_reader_finds_a_page_by_searching(url: str, chromium: Browser) -> None:
    page = chromium.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text) if message.type == "error" else None)
    page.on("requestfailed", lambda request: complaints.append(request.url))
    page.goto(f"{url}/docs/")
    expect(page.get_by_role("heading", name="gpuyard", exact=True)).to_be_visible()
    box = page.get_by_role("textbox", name="Search").first
    box.fill("stranded")
    box.press("Enter")
    page.locator("#search-results a", has_text="Leader and peers: all GPUs, and no group split").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("Leader and peers")
    page.get_by_role("link", name="IOMMU groups", exact=True).first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("IOMMU groups")
    box = page.get_by_role("textbox", name="Search").first
    box.fill("least privilege")
    box.press("Enter")
    page.locator("#search-results a", has_text="without the role admin").first.click()
    expect(page.get_by_role("heading", level=1)).to_contain_text("least privilege")
    back = page.get_by_role("link", name="To the portal")
    assert back.evaluate("link => link.href") == f"{url}/", "whatever path a gateway serves it under"
    page.set_viewport_size({"width": 360, "height": 740})
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    page.goto(f"{url}/docs/how-to/what-can-i-start.html")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    table = page.get_by_role("group", name="Table").nth(2)  # of four columns
    table.focus()
    page.keyboard.press("ArrowRight")
    expect(table).not_to_have_js_property("scrollLeft", 0)
    page.close()
    assert complaints == []
