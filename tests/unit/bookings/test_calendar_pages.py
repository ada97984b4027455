"""The pages about bookings, without a browser: who gets them, and what they are made of."""

from __future__ import annotations

import re
from importlib.resources import files
from pathlib import Path

import pytest

from gpuyard.model.booking import Person
from gpuyard.web.assets import assets, templates
from tests.support.ledgers import ADA, BOB, EVE, ROOT
from tests.support.portals import BookingPortal, booking_portal

PAGES = ("/calendar", "/bookings", "/admin")


@pytest.fixture(scope="module")
def portal(tmp_path_factory: pytest.TempPathFactory) -> BookingPortal:
    return booking_portal(tmp_path_factory.mktemp("portal"))


def page(portal: BookingPortal, path: str, person: Person = ROOT) -> str:
    answer = portal.browser(person).client.get(path)
    assert answer.status_code == 200
    return answer.text


@pytest.mark.parametrize("path", PAGES)
def test_nobody_is_sent_to_the_login_and_comes_back(portal: BookingPortal, path: str) -> None:
    answer = portal.browser().client.get(path)
    assert answer.status_code == 303
    assert answer.headers["location"] == f"./login?next={path}"


def test_the_admin_page_is_for_admins(portal: BookingPortal) -> None:
    answer = portal.browser(ADA).client.get("/admin")
    assert answer.status_code == 403
    assert "role admin" in answer.json()["detail"]
    assert "Admin" not in page(portal, "/calendar", ADA)
    assert 'href="./admin" aria-current=page' in page(portal, "/admin")


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


def test_a_person_who_is_refused_gets_a_page_and_a_program_a_document(portal: BookingPortal) -> None:
    ada = portal.browser(ADA).client
    for path, status, words in (("/admin", 403, "role admin"), ("/no/where", 404, "There is nothing at /no/where.")):
        answer = ada.get(path, headers=BROWSER)
        assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
        assert words in answer.text
        assert f'href="{"../" * (path.count("/") - 1) or "./"}"' in answer.text
        assert "content-security-policy" in answer.headers
        assert ada.get(path).headers["content-type"] == "application/problem+json"
    assert ada.get("/v1/bookings/none", headers=BROWSER).headers["content-type"] == "application/problem+json"
    answer = ada.get("/<script>alert(1)", headers=BROWSER)
    assert "<script>" not in answer.text
    assert "&lt;script&gt;alert(1)" in answer.text
    assert ada.head("/admin", headers=BROWSER).status_code == 403


def test_a_page_that_refuses_leads_on_and_says_what_to_do(tmp_path: Path) -> None:
    portal = booking_portal(tmp_path)
    ada = portal.browser(ADA)
    text = ada.client.get("/admin", headers=BROWSER).text
    assert 'aria-label="Pages"' in text
    assert 'href="./calendar"' in text
    assert "If you need this, ask an administrator of this site." in text
    assert 'name="next" value="/admin"' in text  # she has two projects
    deep = ada.client.get("/no/where", headers=BROWSER).text
    assert 'href="../calendar"' in deep
    assert 'action="../logout"' in deep
    portal.people.users_by_id[BOB.user_id].roles["p-physics"] = frozenset({"admin"})
    text = portal.browser(BOB).client.get("/admin", headers=BROWSER).text
    assert "You are an admin in project physics: switch to it, at the top or in the menu, and this page opens." in text
    forged = ada.client.post("/project", data={"project": "p-biology"}, headers=BROWSER | {"X-CSRF-Token": "x"})
    assert forged.status_code == 403
    assert "load the page again" in forged.text
    nowhere = ada.client.get("/docs/nothing", headers=BROWSER).text
    assert "Log in" not in nowhere  # who asks is not looked for there


@pytest.mark.parametrize("path", PAGES)
def test_pages_are_kept_by_nobody(portal: BookingPortal, path: str) -> None:
    browser = portal.browser(ROOT)
    answer = browser.client.get(path)
    assert answer.headers["cache-control"] == "no-store"
    assert f'data-csrf="{browser.csrf}"' in answer.text


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_inline_and_all_that_is_named_is_there(portal: BookingPortal, path: str) -> None:
    text = page(portal, path)
    assert not re.search(r"<style|\sstyle=|\son[a-z]+=|javascript:", text)
    assert re.findall(r"<script(?![^>]*\ssrc=)", text) == []
    named = set(re.findall(r'static/([^?"]+)', text))
    assert "client.js" in named
    assert named <= set(assets())


def test_every_file_of_the_pages_is_served() -> None:
    folder = files("gpuyard.web") / "static"
    assert {entry.name for entry in folder.iterdir() if entry.is_file()} == set(assets())


def test_scripts_never_read_text_as_html() -> None:
    """live.js swaps in what the server has made of templates; all others make elements."""
    for name, asset in assets().items():
        if name.endswith(".js") and name != "live.js":
            text = asset.content.decode()
            assert not re.search(
                r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", text
            ), name


def test_every_element_that_scripts_look_for_is_in_a_page() -> None:
    folder = Path(str(files("gpuyard.web"))) / "templates"
    ids = {
        id for name in templates().list_templates() for id in re.findall(r'id="([^"{]+)"', (folder / name).read_text())
    }
    for name in ("calendar.js", "bookings.js", "admin.js", "form.js", "actions.js", "client.js"):
        script_ids = set(re.findall(r'byId\("([^"]+)"\)', assets()[name].content.decode()))
        assert script_ids <= ids, name


def test_projects_to_book_for_are_those_with_a_role_for_it(portal: BookingPortal) -> None:
    chosen = re.compile(r'<option value="([^"]*)">')
    for person, expected in ((ADA, ["p-physics"]), (BOB, ["p-biology"]), (EVE, []), (ROOT, ["p-admin"])):
        text = page(portal, "/calendar", person)
        select = re.search(r'<select name="project">(.*?)</select>', text, re.S)
        assert select
        assert chosen.findall(select.group(1)) == expected
        assert ("data-may-book" in text) is bool(expected)


def test_the_map_has_the_navigation_too(portal: BookingPortal) -> None:
    assert 'href="./" aria-current=page>Map' in page(portal, "/")
