"""Logging in at a real OpenID provider, through mod_auth_openidc and the lab's Keystone, in a browser."""

from __future__ import annotations

import json
import os
import re
import secrets
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, quote

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, Playwright, Route, expect

from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.records import Query
from gpuyard.dashboard.sources import Sources
from gpuyard.model.moments import iso_text
from gpuyard.openstack.api import CloudApi, CloudError, connect
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.personal import KeystonePersonalClouds
from gpuyard.server.app import create_app
from gpuyard.web.portal_context import utc_now
from gpuyard.web.store import PortalStore
from gpuyard_lab.clients import ADMIN_CLOUD
from tests.integration.conftest import RunningLab
from tests.integration.test_portal_bookings import Visitors
from tests.support import browser as browsers
from tests.support import single_sign_on as sso
from tests.support.inventories import GPUS, driver, filled
from tests.support.kolla import NoKolla, install
from tests.support.ledgers import open_ledger
from tests.support.portals import ROOMY
from tests.support.served import RealClock, serving
from tests.virtual_hypervisor.build import Missing

pytestmark = [pytest.mark.lab, pytest.mark.browser, pytest.mark.slow]

PROVIDER = "/OS-FEDERATION/identity_providers/campus"


def person(name: str, email: str, groups: tuple[str, ...] = (), verified: bool = True) -> dict[str, Any]:
    claims = {"preferred_username": name, "email": email, "email_verified": verified, "groups": list(groups)}
    return {"user": name, "password": sso.PASSWORD, "claims": claims}


PEOPLE = {
    "sub-1": person("demo", "demo@example.org", ("gpu-physics",)),  # as a local user of the lab is called
    "sub-2": person("visitor", "visitor@example.org", ("staff",)),
    "sub-3": person("stranger", "stranger@example.net", ("gpu-physics",)),
    "sub-4": person("claimer", "claimer@example.org", ("gpu-physics",), verified=False),
    "sub-5": person("tricky", "tricky@example.org.example.net", ("gpu-physics",)),
    "sub-6": person("Jörg; admin", "joerg@example.org", ("gpu-physics",)),
}


@dataclass
class Site:
    at: sso.Addresses
    ledger: Ledger
    people: KeystonePeople
    project: str

    def keystone_page(self, origin: str) -> str:
        path = "auth/OS-FEDERATION/identity_providers/campus/protocols/openid/websso"
        return f"{self.at.keystone}/v3/{path}?origin={quote(origin, safe='')}"

    def portal(self, path: str = "") -> str:
        return f"{self.at.portal}/{path}"


@pytest.fixture(scope="module")
def site(lab: RunningLab, operator: CloudApi) -> Iterator[Site]:
    must = os.environ.get("CI") == "true"
    try:
        sso.install(must and os.geteuid() == 0)
        kolla = install()
    except (Missing, NoKolla) as error:
        (pytest.fail if must else pytest.skip)(str(error))
    visitors = Visitors(operator)
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-sso-") as folder,
        sso.single_sign_on(lab.lab, Path(folder), kolla, PEOPLE) as at,
    ):
        project = registered(visitors, at)
        try:
            api = connect(ADMIN_CLOUD, sso.clouds_file(lab.lab, Path(folder), at))
            with portal(api, Path(folder), at) as ledger:
                yield Site(at, ledger, KeystonePeople(api), project)
        finally:
            visitors.clear()
            leave_nothing(operator)


def registered(visitors: Visitors, at: sso.Addresses) -> str:
    """What kolla-ansible registers in Keystone by the page's settings, the page's group and its project."""
    leave_nothing(visitors.operator)
    project, group = f"physics-{secrets.token_hex(4)}", visitors.make("group", "gpu-physics", domain_id="default")
    visitors.grant(visitors.make("project", project, domain_id="default"), f"groups/{group}", "member")
    campus = {"domain": {"name": "campus"}}
    domain = visitors.operator.request("POST", "identity", "/domains", campus)["domain"]["id"]
    provider = {"enabled": True, "remote_ids": [at.provider], "domain_id": domain}
    for path, body in (
        (PROVIDER, {"identity_provider": provider}),
        ("/OS-FEDERATION/mappings/campus", {"mapping": {"rules": json.loads(sso.blocks("json")[0])}}),
        (f"{PROVIDER}/protocols/openid", {"protocol": {"mapping_id": "campus"}}),
    ):
        visitors.operator.request("PUT", "identity", path, body)
    return project


def leave_nothing(operator: CloudApi) -> None:
    """Of what these tests register, also before them: a run may have been killed."""
    for path in (f"{PROVIDER}/protocols/openid", PROVIDER, "/OS-FEDERATION/mappings/campus"):
        with suppress(CloudError):
            operator.request("DELETE", "identity", path)
    for domain in operator.get("identity", "/domains", name="campus")["domains"]:
        operator.request("PATCH", "identity", f"/domains/{domain['id']}", {"domain": {"enabled": False}})
        operator.request("DELETE", "identity", f"/domains/{domain['id']}")
    for group in operator.get("identity", "/groups", name="gpu-physics")["groups"]:
        operator.request("DELETE", "identity", f"/groups/{group['id']}")


@contextmanager
def portal(api: CloudApi, folder: Path, at: sso.Addresses) -> Iterator[Ledger]:
    """A portal whose sessions keep the tokens that single sign-on posts."""
    ledger = open_ledger(folder, clock=RealClock())
    (logout,) = re.findall(r"--websso-logout '(.*?)'", at.here(sso.PAGE.read_text(encoding="utf-8")))
    app = create_app(
        Sources(
            inventory=filled(),
            driver=driver(),
            site_name="lab",
            gpus=GPUS,
            ledger=ledger,
            sessions=PortalStore(ledger.database),
            people=KeystonePeople(api),
            clouds=KeystonePersonalClouds(api),
            settings=replace(
                ROOMY,
                keeps_tokens=True,
                public_url=at.portal,
                websso="campus/openid",
                websso_url=at.keystone,
                websso_logout=logout,
            ),
        ),
        ["gpus.example.org"],
    )
    with serving(app, int(at.portal.rpartition(":")[2])):
        yield ledger


@pytest.fixture(scope="module")
def window(driven: Playwright) -> Iterator[Browser]:
    """A browser for which the names of the documentation are this machine."""
    options = ["--no-sandbox", sso.RESOLVER]
    with driven.chromium.launch(executable_path=browsers.CHROMIUM, args=options) as launched:
        yield launched


@pytest.fixture
def context(window: Browser) -> Iterator[BrowserContext]:
    with window.new_context() as made:
        made.set_default_timeout(15_000)
        yield made


def sign_in(page: Page, name: str, password: str = sso.PASSWORD) -> None:
    """At the provider's own page."""
    page.get_by_label("User").fill(name)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()


def enter(page: Page, name: str) -> None:
    """From the portal's login page."""
    page.get_by_role("link", name="Log in with single sign-on").click()
    expect(page).to_have_title("Identity provider")
    sign_in(page, name)


def book(page: Page, csrf: str) -> dict[str, Any]:
    """A T4 of tomorrow; the API's answer."""
    start = utc_now() + timedelta(days=1)
    wish = {"pool": "t4", "start": iso_text(start), "end": iso_text(start + timedelta(hours=2))}
    ask = "async ([body, csrf]) => await (await fetch('/v1/bookings', {method: 'POST', body, headers: {"
    ask += "'Content-Type': 'application/json', 'X-CSRF-Token': csrf}})).json()"
    answer: dict[str, Any] = page.evaluate(ask, [json.dumps(wish), csrf])
    return answer


def me(page: Page) -> dict[str, Any]:
    """Who is logged in."""
    answer: dict[str, Any] = page.evaluate("async () => await (await fetch('/v1/me')).json()")
    return answer


def test_somebody_logs_in_at_the_provider_books_and_logs_out(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.portal("calendar"))
    enter(page, "demo")
    page.wait_for_url(site.portal())
    account = me(page)
    assert (account["user"]["name"], account["user"]["email"]) == ("demo@campus", "demo@example.org")
    assert [(project["name"], project["roles"]) for project in account["projects"]] == [
        (site.project, ["member", "reader"])
    ]
    assert book(page, account["csrf"])["state"] == "confirmed"
    (booking,) = site.ledger.find(Query())
    assert (booking.user, booking.project) == ("demo@campus", site.project)
    assert booking.user_id not in list(site.people.users("demo"))
    page.goto(site.portal("launch?flavor=no-such-flavor"))
    expect(page.locator("main")).to_contain_text("Your project sees no flavor")  # so Nova was asked in their name
    page.goto(site.portal())

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("alert")).to_contain_text("Single sign-on still knows this browser")
    assert me(page)["code"] == "unauthorized"
    # Which is true: the provider asks for no password.
    page.goto(site.portal("login"))
    page.get_by_role("link", name="Log in with single sign-on").click()
    page.wait_for_url(site.portal())
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("link", name="Log out of single sign-on").click()
    page.get_by_role("button", name="Yes, sign me out").click()
    page.wait_for_url(site.portal("login*"))
    page.get_by_role("link", name="Log in with single sign-on").click()
    expect(page).to_have_title("Identity provider")


def test_who_has_no_role_is_told(site: Site, context: BrowserContext) -> None:
    """The mapping lets him in, and puts him into no group."""
    page = context.new_page()
    page.goto(site.portal("login"))
    enter(page, "visitor")
    expect(page.get_by_role("alert")).to_contain_text("none of the roles reader, member and admin")
    assert me(page)["code"] == "unauthorized"


@pytest.mark.parametrize("name", ["stranger", "claimer", "tricky"])
def test_whom_the_mapping_does_not_take_is_told_so_by_the_portal(
    site: Site, context: BrowserContext, name: str
) -> None:
    page = context.new_page()
    page.goto(site.portal("login"))
    enter(page, name)
    page.wait_for_url(site.portal("login?sso=refused"))
    expect(page.get_by_role("alert")).to_contain_text("Keystone does not let you in")
    assert me(page)["code"] == "unauthorized"


def test_keystone_gives_tokens_to_no_other_page(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    for origin in ("http://evil.example.com/login/sso", site.portal("login"), f"{site.portal('login/sso')}/x"):
        page.goto(site.keystone_page(origin))
        if page.title() == "Identity provider":
            sign_in(page, "demo")
        expect(page.locator("body")).to_contain_text("Unauthorized")
        assert page.url.startswith(site.at.keystone)
        assert "token" not in page.content()


def caught_token(site: Site, page: Page, name: str) -> str:
    """What Keystone's page would have posted to the portal."""
    caught: list[str] = []

    def catch(route: Route) -> None:
        caught.append(parse_qs(route.request.post_data or "")["token"][0])
        route.fulfill(body="caught")

    page.route(site.portal("login/sso"), catch)
    page.goto(site.portal("login"))
    enter(page, name)
    expect(page.locator("body")).to_have_text("caught")
    page.unroute_all()
    return caught[0]


def posted(site: Site, token: str) -> int:
    headers = {"Host": site.at.portal.removeprefix("http://"), "Origin": site.at.keystone}
    port = site.at.portal.rpartition(":")[2]
    return httpx2.post(f"http://127.0.0.1:{port}/login/sso", data={"token": token}, headers=headers).status_code


@pytest.mark.parametrize("kind", ["OIDC-", "OIDC_", "oidc-"])
def test_nobody_says_himself_who_he_is(site: Site, kind: str) -> None:
    """What mod_auth_openidc tells Keystone is not taken from a browser."""
    claims = {"iss": site.at.provider, "sub": "sub-1", "preferred_username": "demo", "email": "demo@example.org"}
    claims |= {"email_verified": "1", "groups": "gpu-physics"}
    headers = {f"{kind}{name}": value for name, value in claims.items()} | {"X-Remote-User": "demo"}
    for path in (
        "auth/OS-FEDERATION/websso/openid",
        "auth/OS-FEDERATION/identity_providers/campus/protocols/openid/websso",
        "auth//OS-FEDERATION/identity_providers/campus/protocols/openid/%77ebsso",
        "OS-FEDERATION/identity_providers/campus/protocols/openid/auth",
        "OS-FEDERATION//identity_providers/campus/protocols/%6fpenid/auth",
        "OS-FEDERATION/identity_providers/campus/protocols/openid/auth/",
    ):
        for port in (site.at.base + 1, site.at.base + 4):  # Apache's, and around it
            url = f"http://127.0.0.1:{port}/v3/{path}"
            answer = httpx2.get(url, params={"origin": site.portal("login/sso")}, headers=headers)
            assert 'name="token"' not in answer.text, url
            assert "x-subject-token" not in answer.headers, url


def test_a_posted_token_opens_one_session_from_keystones_page_alone(site: Site, context: BrowserContext) -> None:
    token = caught_token(site, context.new_page(), "demo")
    evil = context.new_page()
    fields = f"<input name=token value={token}><button>go</button>"
    form = f"<form method=post action={site.portal('login/sso')}>{fields}</form>"
    evil.route("http://evil.example.com/", lambda route: route.fulfill(content_type="text/html", body=form))
    evil.goto("http://evil.example.com/")
    evil.get_by_role("button").click()
    expect(evil.get_by_role("alert")).to_contain_text("did not come from Keystone's page")
    assert me(evil)["code"] == "unauthorized"

    # A program says whatever it likes: the first to come is in, and nobody after him.
    assert [posted(site, token), posted(site, token)] == [303, 403]
    assert site.people.token(token) is not None, "the session keeps it, until somebody logs out"


def test_nobody_is_sent_elsewhere_after_logging_in(site: Site, context: BrowserContext) -> None:
    page = context.new_page()
    page.goto(site.portal("login?next=//evil.example.com/&sso=//evil.example.com"))
    enter(page, "demo")
    page.wait_for_url(site.portal())
