"""What does not come through the gateway, by real nginx and a real tunnel between machines that are network namespaces.

Behind it is a program that takes whatever it gets; test_gateway.py has the real services there.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from gpuyard.deployment.gateway.tree import tree
from tests.support import gateway_net as nets
from tests.support.gateway_net import CLIENTS, OPERATOR, VIP, VPN_CLOUD, Answer, Net, answer_on, until
from tests.support.gateways import WIREGUARD
from tests.support.sites import flavor, site
from tests.virtual_hypervisor.build import Missing, need_commands

pytestmark = pytest.mark.slow

CLOUD, PORTAL, DASHBOARD = "cloud.example.org", "gpus.example.org", "dashboard.example.org"
NOVA, GLANCE, PLACEMENT, HORIZON = 8774, 9292, 8780, 80
GET = "GET {} HTTP/1.1\r\nHost: cloud.example.org:8774\r\n{}\r\n"


def need_root() -> None:
    must = os.environ.get("CI") == "true"
    try:
        if os.geteuid() != 0:
            raise Missing("network namespaces take root")
        need_commands(nets.PROGRAMS, install=must)
    except Missing as error:
        (pytest.fail if must else pytest.skip)(str(error))


@dataclass
class Backend:
    """Answers everything, with what it got; what is below /hold it answers when it is told to."""

    seen: list[dict[str, Any]] = field(default_factory=list)
    release: threading.Event = field(default_factory=threading.Event)
    tell: threading.Event = field(default_factory=threading.Event)

    def handler(self) -> type[BaseHTTPRequestHandler]:
        backend = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def answer(self) -> None:
                body = self._body()
                got = {"method": self.command, "path": self.path, "headers": dict(self.headers.items())}
                backend.seen.append({**got, "length": len(body)})
                if self.path == "/events":
                    self._stream()
                    return
                if "hold" in self.path:
                    backend.release.wait(60)
                text = json.dumps(got).encode()
                self.send_response(200)
                self.send_header("X-Openstack-Request-Id", "req-of-the-service")
                self.send_header("Strict-Transport-Security", "max-age=1")
                self.send_header("Set-Cookie", "sessionid=x; HttpOnly; Path=/; SameSite=Lax")
                self.send_header("Set-Cookie", "csrftoken=y; Path=/")
                self.send_header("X-Accel-Redirect", "/v2.1/os-services")
                self.send_header("Content-Length", str(len(text)))
                self.end_headers()
                self.wfile.write(text)

            do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = do_HEAD = do_OPTIONS = do_TRACE = answer  # noqa: N815

            def _body(self) -> bytes:
                if self.headers.get("Transfer-Encoding") == "chunked":
                    body = b""
                    while size := int(self.rfile.readline().strip() or b"0", 16):
                        body += self.rfile.read(size)
                        self.rfile.readline()
                    return body
                return self.rfile.read(int(self.headers.get("Content-Length", "0")))

            def _stream(self) -> None:
                self.send_response(200)
                self.send_header("Content-Type", "text/event-stream")
                self.send_header("Connection", "close")
                self.end_headers()
                with suppress(OSError):
                    self.wfile.write(b"data: first\n\n")
                    backend.tell.wait(60)
                    self.wfile.write(b"data: second\n\n")

            def log_message(self, format: str, *args: object) -> None:
                pass

        return Handler


@dataclass
class World:
    net: Net
    backend: Backend
    state: Path
    """The folder that nginx was started in."""
    log: socket.socket
    slow: dict[str, Future[float]]

    def pid(self) -> int:
        return int((self.state / "nginx.pid").read_text())

    def logged(self) -> list[dict[str, Any]]:
        """Lines of the access log since the last call."""
        return logged_on(self.log)


def logged_on(log: socket.socket) -> list[dict[str, Any]]:
    """Lines that nginx has written there, which does not block, since the last call."""
    lines = []
    with suppress(BlockingIOError):
        while True:
            lines.append(json.loads(log.recv(65536).decode().partition(": ")[2]))
    return lines


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    need_root()
    backend = Backend()
    server = ThreadingHTTPServer(("127.0.0.1", 0), backend.handler())
    threading.Thread(target=server.serve_forever, daemon=True).start()
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-gateway-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        log.bind(str(folder / "log"))
        log.setblocking(False)
        (folder / "log").chmod(0o666)
        with nets.machines(folder, [CLOUD, PORTAL, DASHBOARD]) as net:
            for port in (NOVA, GLANCE, PLACEMENT, HORIZON, 8080, 22):
                nets.relay(net, port, server.server_address[1])
            keys = {end: subprocess.check_output(["wg", "genkey"], text=True).strip() for end in ("gateway", "cloud")}
            write_gateway(net, keys)
            nets.wireguard_up(net, folder, keys)
            state = nets.nginx_up(net, folder, folder / "log")
            with ThreadPoolExecutor() as pool:
                slow = {name: pool.submit(trickle, net, sent) for name, sent in SLOW.items()}
                yield World(net, backend, state, log, slow)
            backend.release.set()
            backend.tell.set()
    server.shutdown()
    server.server_close()


def tunnel(keys: dict[str, str]) -> dict[str, Any]:
    """WireGuard between the two, by their private keys."""

    def public(end: str) -> str:
        return subprocess.check_output(["wg", "pubkey"], input=keys[end], text=True).strip()

    return {
        "endpoint": f"{nets.VPN_GATEWAY}:51820",
        "gateway": {**WIREGUARD["gateway"], "key": public("gateway")},
        "cloud": {**WIREGUARD["cloud"], "key": public("cloud")},
    }


def write_gateway(net: Net, keys: dict[str, str]) -> None:
    ports = {"compute": NOVA, "image": GLANCE, "placement": PLACEMENT}
    services = {name: {"public": f"{CLOUD}:{port}", "behind": f"{VIP}:{port}"} for name, port in ports.items()}
    document = {
        "portal": {"public": PORTAL, "behind": f"{VIP}:8080"},
        "dashboard": {"public": DASHBOARD, "behind": f"{VIP}:{HORIZON}"}, "services": services, "wireguard": tunnel(keys),
        "operators": [OPERATOR], "webhooks_from": [CLIENTS[1]],
        "limits": {"requests": 50, "streams": 30},
    }  # fmt: skip
    runners = {"project": "ci", "enrolments": [{"organization": "x", "token_file": "t", "webhook_secrets_file": "s"}]}
    loaded = site(
        net.folder,
        {"gateway": document, "booking": {}, "runners": runners, "flavors": {"one": flavor(gpus={"v100": 1})}},
    )
    nets.write_tree(net.folder, tree(loaded.site))


def raw(
    path: str = "/v2.1/servers", more: str = "", method: str = "GET", host: str = "cloud.example.org:8774"
) -> bytes:
    return f"{method} {path} HTTP/1.1\r\nHost: {host}\r\n{more}\r\n".encode("latin-1")


LONG = "a" * 9000
CHUNKED = "Transfer-Encoding: chunked\r\n"
SMUGGLED = "0\r\n\r\nGET /v2.1/os-services HTTP/1.1\r\nHost: x\r\n\r\n"
# ruff: noqa: E501 - tables of attacks
ATTACKS: dict[str, tuple[bytes, set[int]]] = {
    # Paths that one reader takes for another than the next one does.
    **{
        f"path {path}": (raw(path), {400, 403})
        for path in (
            "//v2.1/servers", "/v2.1//servers", "/v2.1/./servers", "/v2.1/servers/../os-services",
            "/v2.1/servers/%2e%2e/os-services", "/v2.1/servers/.%2e/os-services", "/v2.1/servers/..;/os-services",
            "/v2.1/servers;/os-services", "/v2.1/servers%2f..%2fos-services", "/v2.1/servers/..%5cos-services",
            "/v2.1/servers\\..\\os-services", "/v2.1/%73ervers", "/v2.1/servers/%00", "/v2.1/servers%0d%0aX:%20y",
            "/v2.1/servers/%c0%ae%c0%ae/os-services", "/v2.1/servers/%252e%252e/os-services", "/v2.1/servers#/os-services",
            "/../v2.1/servers", "/.%2e/.%2e/etc/passwd", "/v2.1/servers/\xfc", "/v2.1/servers/a\tb", "/v2.1/servers?a=\x01",
        )
    },
    # Names.
    "absolute, another host": (raw("http://169.254.169.254/latest/meta-data"), {400, 421}),
    "absolute, another of ours": (raw("https://gpus.example.org/"), {421}),
    "wrong host": (raw(host="evil.example.com"), {421}),
    "another of ours": (raw(host="gpus.example.org"), {421}),
    "host of the cloud": (raw(host="10.20.0.250:8774"), {421}),
    "no host": (b"GET /v2.1/servers HTTP/1.1\r\n\r\n", {400}),
    "two hosts": (raw(more="Host: evil.example.com\r\n"), {400}),
    "a host with a path": (raw(host="cloud.example.org/../x"), {400, 421}),
    "a host with a user": (raw(host="cloud.example.org@evil.example.com"), {400, 421}),
    # Two readings of where a request ends.
    "length and chunks": (raw(more=f"Content-Length: 5\r\n{CHUNKED}", method="POST") + SMUGGLED.encode(), {400}),
    "chunks and length": (raw(more=f"{CHUNKED}Content-Length: 60\r\n", method="POST") + SMUGGLED.encode(), {400}),
    "two lengths": (raw(more="Content-Length: 5\r\nContent-Length: 50\r\n", method="POST"), {400}),
    "the same length twice": (raw(more="Content-Length: 5\r\nContent-Length: 5\r\n", method="POST") + b"aaaaa", {400}),
    "a list of lengths": (raw(more="Content-Length: 5, 5\r\n", method="POST") + b"aaaaa", {400}),
    "a length with a sign": (raw(more="Content-Length: +5\r\n", method="POST") + b"aaaaa", {400}),
    "a negative length": (raw(more="Content-Length: -1\r\n", method="POST"), {400}),
    "a length in hexadecimal": (raw(more="Content-Length: 0x5\r\n", method="POST") + b"aaaaa", {400}),
    "an endless length": (raw(more=f"Content-Length: {'9' * 40}\r\n", method="POST"), {400, 413}),
    "encoding by another name": (raw(more="Transfer-Encoding: xchunked\r\n", method="POST"), {400, 501}),
    "two encodings": (raw(more="Transfer-Encoding: gzip, chunked\r\n", method="POST"), {400, 501}),
    "encoding twice": (raw(more=f"{CHUNKED}Transfer-Encoding: identity\r\n", method="POST") + b"0\r\n\r\n", {400, 501}),
    "encoding with a tab": (raw(more="Transfer-Encoding:\tchunked\x0b\r\n", method="POST"), {400, 501}),
    "encoding of HTTP/1.0": (b"POST /v2.1/servers HTTP/1.0\r\nHost: cloud.example.org\r\n" + CHUNKED.encode() + b"\r\n0\r\n\r\n", {400}),
    "a space before the colon": (raw(more="Content-Length : 5\r\n", method="POST") + b"aaaaa", {400}),
    "a chunk of nonsense": (raw(more=CHUNKED, method="POST") + b"zz\r\n", {400}),
    "an endless chunk": (raw(more=CHUNKED, method="POST") + b"f" * 17 + b"\r\n", {400, 413}),
    "a line that goes on": (raw(more="X-A: b\r\n Content-Length: 5\r\n"), {400}),
    "NUL in a header": (raw(more="X-Auth-Token: a\0b\r\n"), {400}),
    "CR in a header": (raw(more="X-Auth-Token: a\rX-B: c\r\n"), {400}),
    # Too much.
    "a long path": (raw("/v2.1/servers?" + "a" * 40_000), {400, 414}),
    "a long header": (raw(more=f"X-Auth-Token: {LONG}\r\n"), {400, 431}),
    "many headers": (raw(more="".join(f"X-{n}: {'a' * 1000}\r\n" for n in range(60))), {400, 431}),
    "a large body": (raw(more=f"Content-Length: {2 << 20}\r\n", method="POST"), {413}),
    "a large body in chunks": (raw(more=CHUNKED, method="POST") + b"100000\r\n" + b"a" * (1 << 20) + b"\r\n2\r\naa\r\n", {413}),
    "a length and nothing": (raw(more="Content-Length: 99999999999\r\n", method="POST"), {413}),
    # Methods.
    "TRACE": (raw(method="TRACE"), {403, 405}),
    "TRACK": (raw(method="TRACK"), {400, 403, 405}),
    "CONNECT": (b"CONNECT 10.20.0.250:22 HTTP/1.1\r\nHost: cloud.example.org\r\n\r\n", {400, 405}),
    "OPTIONS": (raw(method="OPTIONS"), {403}),
    "OPTIONS *": (raw("*", method="OPTIONS"), {400, 403}),
    "a method in lower case": (raw(method="get"), {400, 403}),
    "no method": (raw(method="FROB"), {400, 403}),
    "PUT": (raw(method="PUT"), {403}),
    "another method in a header": (raw("/v2.1/os-services", more="X-HTTP-Method-Override: GET\r\n", method="DELETE"), {403}),
    "another path in a header": (raw("/v2.1/os-services", more="X-Original-URL: /v2.1/servers\r\n"), {403}),
    "HTTP/0.9": (b"GET /v2.1/servers\r\n", {0, 400}),
    "HTTP/2 at once": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", {0, 400}),
    "HTTP/3.7": (b"GET /v2.1/servers HTTP/3.7\r\nHost: cloud.example.org\r\n\r\n", {0, 400, 505}),
    "nonsense": (bytes(range(256)), {0, 400}),
    # What clients do not need.
    **{
        f"closed {path}": (raw(path), {403})
        for path in (
            "/v2.1/os-services", "/v2.1/os-hypervisors/detail", "/v2.1/os-aggregates", "/v2.1/os-server-external-events",
            "/v2.1/servers/x/migrations", "/v2/servers", "/v2.1/os-services?/v2.1/servers", "/favicon.ico",
        )
    },
}  # fmt: skip


@pytest.mark.parametrize("name", ATTACKS)
def test_it_does_not_come_through(world: World, name: str) -> None:
    sent, allowed = ATTACKS[name]
    before = len(world.net.relays[NOVA].heads)
    answer = world.net.ask(CLOUD, NOVA, sent, CLIENTS[2])
    assert answer.status in allowed, answer
    assert len(world.net.relays[NOVA].heads) == before, world.net.relays[NOVA].heads[before:]
    assert b"10.20.0" not in answer.body
    assert "nginx/" not in answer.headers.get("server", "")


def test_a_second_request_in_a_body_is_a_body(world: World) -> None:
    inside = b"GET /v2.1/os-services HTTP/1.1\r\nHost: cloud.example.org\r\n\r\n"
    for sent in (
        raw(more=f"Content-Length: {len(inside)}\r\n", method="POST") + inside,
        raw(more=CHUNKED, method="POST") + f"{len(inside):x}\r\n".encode() + inside + b"\r\n0\r\n\r\n",
        raw(more=f"Content-Length: {len(inside)}\r\n") + inside,
    ):
        before = len(world.backend.seen)
        assert world.net.ask(CLOUD, NOVA, sent, CLIENTS[3]).status == 200
        assert [request["path"] for request in world.backend.seen[before:]] == ["/v2.1/servers"]
        assert world.backend.seen[-1]["length"] == len(inside)
    # And what comes after one is looked at like any other.
    with world.net.tls(CLOUD, NOVA, CLIENTS[3]) as line:
        line.sendall(raw() + raw("/v2.1/os-services"))
        assert [answer_on(line).status] == [200]
    assert not [request for request in world.backend.seen if request["path"] == "/v2.1/os-services"]


def test_an_absolute_address_of_ours_is_passed_on_as_a_path(world: World) -> None:
    answer = world.net.ask(CLOUD, NOVA, raw(f"https://{CLOUD}:{NOVA}/v2.1/servers?limit=1"), CLIENTS[4])
    assert answer.status == 200
    assert world.net.relays[NOVA].heads[-1].splitlines()[0] == b"GET /v2.1/servers?limit=1 HTTP/1.1"


def test_only_the_gateway_says_who_asks(world: World) -> None:
    lies = {
        "X-Forwarded-For": "10.0.0.1", "X-Forwarded-Proto": "http", "X-Forwarded-Host": "evil.example.com",
        "X-Forwarded-Prefix": "/evil", "Forwarded": "for=10.0.0.1;host=evil.example.com", "X-Real-IP": "10.0.0.1",
        "X-Original-URL": "/v2.1/os-services", "X-Rewrite-URL": "/v2.1/os-services", "X-Identity-Status": "Confirmed",
        "X-User-Id": "root", "X-Roles": "admin", "X-Service-Token": "x", "X-Remote-User": "admin", "OIDC-sub": "admin",
        "Via": "1.1 evil", "Cookie": "a=b", "X_Auth_Token": "x", "Upgrade": "h2c", "HTTP2-Settings": "AAMAAABk",
        "Connection": "close, X-Auth-Token, Forwarded, Host", "TE": "trailers", "Proxy": "http://evil", "Range": "bytes=0-1",
        "X-Forwarded-for": "10.0.0.2", "X-Accel-Redirect": "/", "Expect": "100-continue",
    }  # fmt: skip
    more = "".join(f"{name}: {value}\r\n" for name, value in lies.items()) + "X-Auth-Token: mine\r\n"
    answer = world.net.ask(CLOUD, NOVA, raw(more=more), CLIENTS[5])
    assert answer.status == 200
    got = {name.lower(): value for name, value in json.loads(answer.body)["headers"].items()}
    id = got.pop("x-openstack-request-id")
    assert got == {
        "host": "cloud.example.org:8774",
        "forwarded": f"for={CLIENTS[5]};proto=https;host=cloud.example.org:8774",
        "x-forwarded-for": CLIENTS[5],
        "x-forwarded-proto": "https",
        "x-forwarded-host": "cloud.example.org:8774",
        "x-request-id": id,
        "x-auth-token": "mine",
        "range": "bytes=0-1",
        "connection": "close",
    }
    assert answer.headers["strict-transport-security"] == "max-age=63072000"
    assert answer.headers["x-openstack-request-id"] == "req-of-the-service"


def test_a_request_keeps_its_id_or_gets_one(world: World) -> None:
    def came_through(sent: str) -> str:
        answer = world.net.http("GET", CLOUD, NOVA, "/v2.1/servers", CLIENTS[6], X_Openstack_Request_Id=sent)
        return str(json.loads(answer.body)["headers"]["X-Request-ID"])

    good = "req-0123abcd-0123-4567-89ab-0123456789ab"
    assert came_through(good) == good
    made = [came_through(bad) for bad in ("", "x", good.upper(), good + "0", f"{good}, {good}", "req-" + "a" * 36)]
    assert all(re.fullmatch(r"req-[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}", request_id) for request_id in made)
    assert len(set(made)) == len(made)


def test_no_name_but_ours_is_answered(world: World) -> None:
    for name in ("evil.example.com", ""):
        with pytest.raises(ssl.SSLError):
            world.net.tls(name, NOVA, CLIENTS[7], check_hostname=False)
    with world.net.plain(NOVA, CLIENTS[7]) as line:  # no TLS at all
        line.sendall(raw())
        assert answer_on(line).status == 400
    for old in (ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1):
        with pytest.raises((ssl.SSLError, ConnectionError)), pytest.warns(DeprecationWarning, match="TLS"):
            world.net.tls(CLOUD, NOVA, CLIENTS[7], minimum_version=old, maximum_version=old)
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        with world.net.tls(
            "Cloud.Example.ORG", NOVA, CLIENTS[7], minimum_version=version, maximum_version=version
        ) as line:
            line.sendall(raw(host="CLOUD.example.org"))
            assert answer_on(line).status == 200


def test_port_80_leads_to_tls(world: World) -> None:
    def ask(path: str, host: str) -> Answer:
        with world.net.plain(80, CLIENTS[7]) as line:
            line.sendall(f"GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
            return answer_on(line)

    answer = ask("/gpus?pool=t4", PORTAL)
    assert (answer.status, answer.headers["location"]) == (301, "https://gpus.example.org/gpus?pool=t4")
    assert ask("//evil.example.com", PORTAL).headers["location"] == "https://gpus.example.org//evil.example.com"
    assert ask("/v3", CLOUD).status == 404
    assert ask("/", "evil.example.com").status == 0
    assert ask("/.well-known/acme-challenge/word", CLOUD).body == b"of the authority"
    assert ask("/.well-known/acme-challenge/../../../nginx.pid", CLOUD).status in (400, 404)


def test_operators_have_all_of_an_api_and_nobody_else(world: World) -> None:
    for path, port in (("/v2.1/os-services", NOVA), ("/resource_providers", PLACEMENT)):
        assert world.net.http("GET", CLOUD, port, path, OPERATOR, auth="somebody").status == 200
        refused = world.net.http("GET", CLOUD, port, path, CLIENTS[8], auth="somebody")
        assert refused.status == 403
        assert "passes on what clients of the cloud need" in json.loads(refused.body)["error"]["message"]
    assert world.net.http("GET", CLOUD, NOVA, "/v2.1//os-services", OPERATOR).status == 403
    assert world.net.http("GET", PORTAL, 443, "/metrics", OPERATOR).status == 403


def test_webhooks_come_from_github_alone_and_may_be_large(world: World) -> None:
    hook, body = "/v1/github/webhook", b"a" * (3 << 20)
    assert world.net.http("POST", PORTAL, 443, hook, CLIENTS[1], body, X_Hub_Signature_256="sha256=0").status == 200
    assert world.backend.seen[-1]["headers"]["X-Hub-Signature-256"] == "sha256=0"
    assert world.net.http("POST", PORTAL, 443, hook, CLIENTS[9], b"{}").status == 403
    assert world.net.http("POST", PORTAL, 443, "/v1/bookings", CLIENTS[1], body).status == 413


def test_horizon_hears_from_the_gateway_alone_that_it_is_asked_by_tls(world: World) -> None:
    """Its settings of README.txt: SECURE_PROXY_SSL_HEADER; cookies without Secure, as Kolla's settings leave them."""
    more = (
        "X-Forwarded-Ssl: off\r\nX_Forwarded_Ssl: off\r\nX-Forwarded-Host: evil.example.com\r\nX-Remote-User: admin\r\n"
    )
    more += "X-CSRFToken: y\r\nX-Requested-With: XMLHttpRequest\r\nCookie: sessionid=x\r\nX-Auth-Token: z\r\n"
    with world.net.tls(DASHBOARD, 443, CLIENTS[23]) as line:
        line.sendall(raw("/project/instances/", f"{more}Origin: https://{DASHBOARD}\r\n", host=DASHBOARD))
        head = line.recv(65536).decode()
    got = {name.lower(): value for name, value in world.backend.seen[-1]["headers"].items()}
    id = got.pop("x-openstack-request-id")
    assert got == {
        "host": DASHBOARD,
        "forwarded": f"for={CLIENTS[23]};proto=https;host={DASHBOARD}",
        "x-forwarded-for": CLIENTS[23],
        "x-forwarded-proto": "https",
        "x-forwarded-host": DASHBOARD,
        "x-forwarded-ssl": "on",
        "x-request-id": id,
        "x-csrftoken": "y",
        "x-requested-with": "XMLHttpRequest",
        "cookie": "sessionid=x",
        "origin": f"https://{DASHBOARD}",
        "connection": "close",
    }
    cookies = re.findall(r"^Set-Cookie: (.*?)\r$", head, re.MULTILINE)
    assert len(cookies) == 2
    assert all("; Secure" in cookie for cookie in cookies)
    assert "; HttpOnly" in cookies[0]


@pytest.mark.parametrize("path", [
    "/admin/", "/admin", "//admin/", "/project/../admin/", "/project/%2e%2e/admin/", "/project;/../admin/", "/Admin/",
    "/project/instances\\..\\..\\admin/", "/%61dmin/", "/identity/domains/", "/api/keystone/users/", "/api//settings/",
    "/api/x/keystone/users/", "/static/../admin/", "/static/%2e%2e/admin/", "/.git/config", "/metrics", "/server-status",
    "/auth/switch_system_scope/", "/auth/websso/", "/project/%00", "/project/a%0d%0aSet-Cookie:%20x=y",
])  # fmt: skip
def test_what_horizon_has_for_administrators_is_for_operators(world: World, path: str) -> None:
    before = len(world.net.relays[HORIZON].heads)
    answer = world.net.ask(DASHBOARD, 443, raw(path, "Cookie: sessionid=x\r\n", host=DASHBOARD), CLIENTS[24])
    assert answer.status in (400, 403)
    assert len(world.net.relays[HORIZON].heads) == before
    if path in ("/admin/", "/identity/domains/", "/api/keystone/users/"):
        assert world.net.http("GET", DASHBOARD, 443, path, OPERATOR, Cookie="sessionid=x").status == 200
    elif ".." in path or "//" in path:
        assert world.net.ask(DASHBOARD, 443, raw(path, host=DASHBOARD), OPERATOR).status in (400, 403)


def test_whoever_tries_passwords_at_horizon_is_slowed_down(world: World) -> None:
    statuses = flood(world, DASHBOARD, 443, "/auth/login/", CLIENTS[25], 120, Cookie="sessionid=x")
    assert set(statuses) == {200, 429}
    assert set(flood(world, DASHBOARD, 443, "/static/dashboard/a.css", CLIENTS[26], 120)) == {200}
    assert set(flood(world, DASHBOARD, 443, "/project/", CLIENTS[27], 120, Cookie="sessionid=x")) == {200}


def test_a_page_of_horizon_may_ask_whether_it_may_upload_an_image(world: World) -> None:
    """oslo.middleware 8, cors.py, answers by Origin and Access-Control-Request-*; Kolla names Horizon's address there."""
    origin = {"Origin": f"https://{DASHBOARD}", "Access_Control_Request_Method": "PUT"}
    origin["Access_Control_Request_Headers"] = "x-auth-token,content-type"
    answer = world.net.http("OPTIONS", CLOUD, GLANCE, "/v2/images/one/file", CLIENTS[28], b"", **origin)
    assert answer.status == 200
    got = {name.lower(): value for name, value in json.loads(answer.body)["headers"].items()}
    assert {name.lower().replace("_", "-"): value for name, value in origin.items()}.items() <= got.items()
    assert world.net.http("OPTIONS", CLOUD, GLANCE, "/v2/images", CLIENTS[28], b"", **origin).status == 403
    assert world.net.http("OPTIONS", CLOUD, NOVA, "/v2.1/servers", CLIENTS[28], b"", **origin).status == 403


def trickle(net: Net, sent: bytes) -> float:
    """Seconds until it is over with who sends a byte now and then, or nothing."""
    begun = time.monotonic()
    with suppress(OSError), net.tls(CLOUD, NOVA, CLIENTS[10]) if sent else net.plain(NOVA, CLIENTS[10]) as line:
        line.sendall(sent)
        line.settimeout(0.5)
        while time.monotonic() < begun + 60:
            with suppress(TimeoutError):
                if not line.recv(1000):
                    break
            if sent and b"Content-Length" not in sent:
                line.sendall(b"X-A: b\r\n")
    return time.monotonic() - begun


SLOW = {
    "nothing": b"",
    "header": raw("/v2.1/servers/slow")[:-2],
    "body": raw("/v2.1/servers/slow", "Content-Length: 1000\r\n", "POST") + b"a",
}


def flood(world: World, name: str, port: int, path: str, source: str, number: int, **headers: str) -> list[int]:
    """Statuses of requests on one connection after another, several at a time."""
    with ThreadPoolExecutor(8) as pool:
        ways = [pool.submit(world.net.http, "GET", name, port, path, source, b"", **headers) for _ in range(number)]
        return [way.result().status for way in ways]


def test_too_many_requests_are_refused_and_those_of_others_are_not(world: World) -> None:
    statuses = flood(world, CLOUD, NOVA, "/v2.1", CLIENTS[11], 120)
    assert set(statuses) == {200, 429}
    assert statuses.count(200) >= 50
    assert world.net.http("GET", CLOUD, NOVA, "/v2.1", CLIENTS[12]).status == 200
    refused = [world.net.http("GET", CLOUD, NOVA, "/v2.1", CLIENTS[11]) for _ in range(30)]
    limited = next(answer for answer in refused if answer.status == 429)
    assert limited.headers["retry-after"] == "1"
    assert "Too many requests" in json.loads(limited.body)["error"]["message"]
    # With a token there may be more; logging in counts as without one, whatever token is shown.
    assert set(flood(world, CLOUD, NOVA, "/v2.1", CLIENTS[13], 120, auth="somebody")) == {200}
    assert set(flood(world, PORTAL, 443, "/static/pages.css", CLIENTS[22], 120)) == {200}
    assert 429 in flood(world, PORTAL, 443, "/login", CLIENTS[14], 120, auth="somebody")


def test_of_ipv6_a_client_has_a_whole_network(world: World) -> None:
    more = [f"2001:db8:51::{number:x}" for number in range(0x20, 0x24)]
    for address in more:
        world.net.run("client", "ip", "address", "add", f"{address}/64", "dev", "c0", "nodad")
    statuses = [status for address in more for status in flood(world, CLOUD, NOVA, "/v2.1", address, 30)]
    assert 429 in statuses
    assert world.backend.seen[-1]["headers"]["X-Forwarded-For"].startswith("2001:db8:51::2")


def test_open_pages_are_counted_and_events_come_at_once(world: World) -> None:
    world.backend.tell.clear()
    with ExitStack() as open_pages:
        for _ in range(30):
            line = open_pages.enter_context(world.net.tls(PORTAL, 443, CLIENTS[15]))
            line.sendall(raw("/events", host=PORTAL, more="Cookie: a=b\r\n"))
            assert _until_text(line, b"data: first")
        assert world.net.http("GET", PORTAL, 443, "/events", CLIENTS[15], Cookie="a=b").status == 429
        world.backend.tell.set()
        assert _until_text(line, b"data: second")


def _until_text(line: ssl.SSLSocket, words: bytes) -> bool:
    received = b""
    line.settimeout(10)
    while words not in received:
        data = line.recv(65536)
        if not data:
            return False
        received += data
    return True


def test_images_are_passed_on_as_they_come(world: World) -> None:
    """Not kept on the gateway's disk, of which a small machine has little."""
    size, before = 64 << 20, world.net.relays[GLANCE].received
    head = raw("/v2/images/one/file", f"Content-Length: {size}\r\nX-Auth-Token: x\r\n", "PUT", f"{CLOUD}:{GLANCE}")
    piece = b"a" * (1 << 20)
    with world.net.tls(CLOUD, GLANCE, CLIENTS[16]) as line:
        line.sendall(head)
        for _ in range(32):
            line.sendall(piece)
        until(lambda: world.net.relays[GLANCE].received - before > 30 << 20, "nothing arrives before all is sent")
        assert not [path for path in (world.state / "body").rglob("*") if path.is_file()]
        for _ in range(32):
            line.sendall(piece)
        assert answer_on(line).status == 200
    assert world.backend.seen[-1]["length"] == size
    chunks = b"".join(b"100000\r\n" + piece + b"\r\n" for _ in range(3)) + b"0\r\n\r\n"
    head = raw("/v2/images/one/file", CHUNKED, "PUT", f"{CLOUD}:{GLANCE}")
    assert world.net.ask(CLOUD, GLANCE, head + chunks, CLIENTS[16]).status == 200
    assert world.backend.seen[-1]["length"] == 3 << 20
    assert world.net.http("POST", CLOUD, GLANCE, "/v2/images", CLIENTS[16], b"a" * (2 << 20)).status == 413


def test_the_log_says_who_asked_what_and_no_secrets(world: World) -> None:
    world.logged()
    world.net.http("GET", PORTAL, 443, "/ical/SECRET.ics?token=SECRET", CLIENTS[17], auth="SECRET", Cookie="SECRET")
    world.net.http("GET", PORTAL, 443, "/gpus?secret=SECRET", CLIENTS[17], User_Agent='a"b\\c')
    world.net.http("GET", PORTAL, 443, "/../SECRET", CLIENTS[17])
    lines: list[dict[str, Any]] = []

    def written() -> bool:  # which is after the answer
        lines.extend(line for line in world.logged() if line["from"] == CLIENTS[17])
        return len(lines) == 3

    until(written, "nothing is logged")
    (feed, page, _), text = lines, world.net.log("nginx")
    assert (feed["from"], feed["path"], feed["status"]) == (CLIENTS[17], "/ical/...", 200)
    assert re.fullmatch(r"req-[0-9a-f-]{36}", feed["request_id"])
    assert (page["path"], page["agent"]) == ("/gpus", 'a"b\\c')
    assert "SECRET" not in json.dumps([feed, page]) + text  # a path that is none is logged as it was sent


def test_the_tunnel_leads_to_the_doors_alone(world: World) -> None:
    """Whoever has the gateway has these ports, and no other port or machine of the cloud."""

    def reaches(address: str, port: int) -> bool:
        with suppress(OSError):
            world.net.plain(port, machine="gateway", to=address, timeout=1.5).close()
            return True
        return False

    assert reaches(VIP, NOVA)
    assert not reaches(VIP, 22), "a relay listens there"
    assert not reaches("10.99.0.2", NOVA)
    assert not reaches("10.20.0.251", NOVA)
    assert not reaches(VPN_CLOUD, NOVA), "the VPN lets nothing in"


def test_who_is_slow_is_not_waited_for(world: World) -> None:
    """They began when nginx did. A byte now and then keeps nothing open, and whoever sends none of a body takes nobody's
    time behind."""
    assert world.slow["nothing"].result() < 25
    assert world.slow["header"].result() < 25
    assert world.slow["body"].result() < 45
    assert not [head for head in world.net.relays[NOVA].heads if b"slow" in head]


@dataclass
class Visits:
    """Somebody who asks all the time, each time on a new connection."""

    world: World
    source: str
    failures: list[object] = field(default_factory=list)
    number: int = 0
    over: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        while not self.over.wait(0.02):
            try:
                status = self.world.net.http("GET", CLOUD, NOVA, "/v2.1", self.source, auth="somebody").status
                self.failures += [status] if status != 200 else []
            except OSError as error:
                self.failures.append(error)
            self.number += 1


def held(world: World, source: str, lines: ExitStack) -> Callable[[], int]:
    """A request that is answered when the backend is told to; gives how to get its status."""
    line, before = lines.enter_context(world.net.tls(CLOUD, NOVA, source)), len(world.backend.seen)
    line.sendall(raw("/v2.1/servers/hold"))
    until(lambda: any("hold" in request["path"] for request in world.backend.seen[before:]), "it did not arrive")
    return lambda: answer_on(line).status


def workers(pid: int) -> set[int]:
    return {int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()}


def upgrade(world: World) -> None:
    """As the how-to says it."""
    old = world.pid()
    os.kill(old, signal.SIGUSR2)
    files = [world.state / name for name in ("nginx.pid.oldbin", "nginx.pid")]
    until(lambda: all(file.exists() and file.stat().st_size for file in files), "no second nginx")
    until(lambda: bool(workers(world.pid())), "it has no workers")
    os.kill(old, signal.SIGQUIT)


@pytest.mark.parametrize("how", ["reload", "upgrade"])
def test_nothing_is_lost_when_nginx_begins_anew(world: World, how: str) -> None:
    world.backend.release.clear()
    world.backend.tell.clear()
    visits = Visits(world, CLIENTS[18])
    visitor = threading.Thread(target=visits.run)
    visitor.start()
    try:
        with ExitStack() as lines:
            page = lines.enter_context(world.net.tls(PORTAL, 443, CLIENTS[19]))
            page.sendall(raw("/events", host=PORTAL))
            assert _until_text(page, b"data: first")
            answer = held(world, CLIENTS[19], lines)
            size = 4 << 20
            upload = lines.enter_context(world.net.tls(CLOUD, GLANCE, CLIENTS[19]))
            upload.sendall(raw("/v2/images/one/file", f"Content-Length: {size}\r\n", "PUT", f"{CLOUD}:{GLANCE}"))
            upload.sendall(b"a" * (size // 2))
            old = workers(world.pid())
            os.kill(world.pid(), signal.SIGHUP) if how == "reload" else upgrade(world)
            until(lambda: bool(workers(world.pid()) - old), "no new workers")
            before = visits.number
            until(lambda: visits.number > before + 20, "nobody is answered")
            world.backend.release.set()
            world.backend.tell.set()
            upload.sendall(b"a" * (size - size // 2))
            assert (answer(), answer_on(upload).status) == (200, 200)
            assert _until_text(page, b"data: second")
            until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in old), "the old workers do not end")
    finally:
        visits.over.set()
        visitor.join()
    assert visits.failures == []


def test_a_wrong_configuration_changes_nothing(world: World) -> None:
    conf = world.net.folder / "gateway/etc/gpuyard/gateway/nginx.conf"
    good, before = conf.read_text(), workers(world.pid())
    try:
        conf.write_text(good.replace("keepalive_timeout", "nonsense"))
        os.kill(world.pid(), signal.SIGHUP)
        until(lambda: "nonsense" in world.net.log("nginx"), "it has not looked")
        assert before <= workers(world.pid())
        assert world.net.http("GET", CLOUD, NOVA, "/v2.1", CLIENTS[20]).status == 200
    finally:
        conf.write_text(good)


def test_what_is_being_answered_is_finished_when_nginx_is_stopped(world: World) -> None:
    """New ones are refused meanwhile: the how-to says so. It ends what the tests before it use."""
    world.backend.release.clear()
    pid = world.pid()

    def refused() -> bool:
        try:
            world.net.plain(NOVA, CLIENTS[21]).close()
        except ConnectionRefusedError:
            return True
        return False

    with ExitStack() as lines:
        answer = held(world, CLIENTS[21], lines)
        os.kill(pid, signal.SIGQUIT)
        until(refused, "it takes new ones")
        world.backend.release.set()
        assert answer() == 200
    until(lambda: not Path(f"/proc/{pid}").exists(), "it does not end")


def test_without_the_tunnel_nothing_takes_another_way(world: World) -> None:
    """The gateway has a way to everywhere, and what is meant for the cloud is not to be seen there. It is the last test."""
    world.net.run("gateway", "ip", "route", "add", "default", "dev", "g0")
    command = ("ip", "route", "get", VIP)
    assert "dev gpuyard0" in world.net.run("gateway", *command)
    world.net.run("gateway", "ip", "link", "delete", "dev", "gpuyard0")
    done = subprocess.run(world.net.command("gateway", *command), capture_output=True, text=True, check=False)
    assert done.returncode != 0, done.stdout
    assert "dev g0" in world.net.run("gateway", "ip", "route", "get", "10.20.0.251")
