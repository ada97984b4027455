"""Horizon through the gateway: the released one, with the lab's Keystone and Nova behind it, as a browser uses it."""

from __future__ import annotations

import html
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlencode, urlsplit

import pytest

from gpuyard.deployment.gateway.steps import HORIZON_SETTINGS
from gpuyard.deployment.gateway.tree import tree
from gpuyard_lab.credentials import DEMO, passwords
from tests.integration.conftest import RunningLab
from tests.integration.test_gateway_attacks import DASHBOARD, need_root, tunnel
from tests.support import gateway_net as nets
from tests.support.gateway_net import CLIENTS, OPERATOR, VIP, Answer, Net
from tests.support.horizon import NoHorizon, horizon
from tests.support.on_request import only_by
from tests.support.sites import site

pytestmark = [pytest.mark.lab, pytest.mark.slow, only_by("dashboard", "three minutes")]

FORM = "application/x-www-form-urlencoded"


@dataclass
class Browser:
    """Cookies and the address of the page, as browsers keep and send them."""

    net: Net
    source: str
    cookies: dict[str, str] = field(default_factory=dict)
    flags: dict[str, str] = field(default_factory=dict)

    def ask(self, method: str, path: str, body: bytes = b"", origin: str = "", **headers: str) -> Answer:
        headers["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method != "GET":
            headers["Origin"] = origin or f"https://{DASHBOARD}"
        answer = self.net.http(method, DASHBOARD, 443, path, self.source, body, **headers)
        for name, value, flags in re.findall(r"([\w-]+)=([^;]*)((?:; [^\n;]+)*)", answer.headers.get("set-cookie", "")):
            self.cookies[name], self.flags[name] = value.strip('"'), flags.lower()
        return answer

    def log_in(self, user: str, password: str, origin: str = "") -> Answer:
        page = self.ask("GET", "/auth/login/")
        assert page.status == 200, page
        token = re.findall(rb'name="csrfmiddlewaretoken" value="([^"]+)"', page.body)[0].decode()
        form = {"username": user, "password": password, "region": "default", "csrfmiddlewaretoken": token}
        return self.ask("POST", "/auth/login/", urlencode(form).encode(), origin, Content_Type=FORM)


@pytest.fixture(scope="module")
def net(lab: RunningLab) -> Iterator[Net]:
    need_root()
    with tempfile.TemporaryDirectory(prefix="gpuyard-dashboard-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        (folder / "horizon").mkdir()
        keys = {end: subprocess.check_output(["wg", "genkey"], text=True).strip() for end in ("gateway", "cloud")}
        door = {"public": DASHBOARD, "behind": f"{VIP}:80"}
        loaded = site(folder, {"gateway": {"dashboard": door, "wireguard": tunnel(keys), "operators": [OPERATOR]}})
        keystone = f"{lab.lab.url('keystone')}/v3"
        try:
            with (
                horizon(folder / "horizon", keystone, HORIZON_SETTINGS) as port,
                nets.machines(folder, [DASHBOARD]) as net,
            ):
                nets.relay(net, 80, port)
                nets.write_tree(folder, tree(loaded.site))
                nets.wireguard_up(net, folder, keys)
                nets.nginx_up(net, folder, folder / "log")
                yield net
        except NoHorizon as error:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)(str(error))


@pytest.fixture(scope="module")
def demo(net: Net, lab: RunningLab) -> Browser:
    browser = Browser(net, CLIENTS[0])
    entered = browser.log_in(DEMO, passwords(lab.lab)[DEMO])
    assert entered.status == 302, entered
    assert urlsplit(entered.headers["location"]).path == "/"
    return browser


def test_somebody_logs_in_and_sees_the_project(demo: Browser) -> None:
    assert {"csrftoken", "sessionid"} <= demo.cookies.keys()
    assert all("; secure" in flags for flags in demo.flags.values()), demo.flags
    assert "; httponly" in demo.flags["sessionid"]
    page = demo.ask("GET", "/project/instances/")
    assert page.status == 200, page.body[-500:]
    assert DEMO.encode() in page.body


def test_whoever_is_not_logged_in_is_led_to_the_login_by_tls(net: Net) -> None:
    stranger = Browser(net, CLIENTS[1])
    led = stranger.ask("GET", "/project/instances/")
    assert led.status == 302
    assert led.headers["location"].startswith((f"https://{DASHBOARD}/auth/login/", "/auth/login/"))
    refused = stranger.ask("GET", "/project/instances/", X_Requested_With="XMLHttpRequest")
    assert refused.status == 401
    assert refused.headers["x-horizon-location"].startswith((f"https://{DASHBOARD}/auth/login/", "/auth/login/"))


def test_a_form_of_another_page_is_refused_by_horizon(net: Net, lab: RunningLab) -> None:
    browser = Browser(net, CLIENTS[2])
    refused = browser.log_in(DEMO, passwords(lab.lab)[DEMO], origin="https://evil.example.org")
    assert "sessionid" not in browser.cookies
    assert "csrf_failure" in refused.headers.get("location", "") or refused.status == 403


def test_what_a_page_names_comes_through(demo: Browser) -> None:
    """Scripts, styles and pictures of the login and of a page."""
    for browser, page in ((Browser(demo.net, CLIENTS[3]), "/auth/login/"), (demo, "/project/instances/")):
        text = browser.ask("GET", page).body.decode()
        named = {
            html.unescape(path) for path in re.findall(r"""<(?:script|link|img)[^>]+(?:src|href)=["'](/[^"']+)""", text)
        }
        assert len(named) > 5
        wrong = {path: status for path in sorted(named) if (status := browser.ask("GET", path).status) != 200}
        assert not wrong


def test_the_calls_of_pages_come_through(demo: Browser) -> None:
    token = {"X_CSRFToken": demo.cookies["csrftoken"], "X_Requested_With": "XMLHttpRequest"}
    for path in ("/api/settings/", "/api/keystone/user-session/", "/api/nova/servers/", "/api/nova/flavors/"):
        answer = demo.ask("GET", path, b"", **token)
        assert answer.status == 200, (path, answer.body[:300])
        assert json.loads(answer.body)
    rules = json.dumps({"rules": [["compute", "os_compute_api:servers:create"]]}).encode()
    policy_answer = demo.ask("POST", "/api/policy/", rules, "", Content_Type="application/json", **token)
    assert json.loads(policy_answer.body) == {"allowed": True}


def test_what_administrators_have_ends_at_the_gateway(demo: Browser) -> None:
    for path in ("/admin/", "/identity/domains/", "/api/keystone/users/", "/api/nova/services/"):
        assert b"passes on what clients" in demo.ask("GET", path).body
    operator = Browser(demo.net, OPERATOR, dict(demo.cookies))
    answer = operator.ask("GET", "/admin/")
    assert b"passes on what clients" not in answer.body  # what follows is Horizon's to say
    assert answer.status in (302, 403, 404)


def test_a_project_is_left(demo: Browser) -> None:
    """It is the last one."""
    form = urlencode({"csrfmiddlewaretoken": demo.cookies["csrftoken"]}).encode()
    assert demo.ask("POST", "/auth/logout/", form, Content_Type=FORM).status == 302
    assert demo.ask("GET", "/project/instances/").status == 302
