"""Consoles of servers through the gateway: real nginx, and nova-novncproxy and nova-serialproxy of the installed Nova.

In the place of QEMU's VNC server is one that speaks RFB 3.8 (RFC 6143, section 7.1) up to the screen and then says
again what it hears. What a browser does is what noVNC and Horizon do: they open the page that Nova names, and then the
WebSocket that the page's query names.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import signal
import socket
import socketserver
import ssl
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from gpuyard.deployment.gateway.tree import tree
from tests.integration.test_gateway_attacks import CLOUD, logged_on, need_root, raw, tunnel
from tests.support import gateway_net as nets
from tests.support.gateway_net import CLIENTS, VIP, Net, answer_on, until
from tests.support.nova_consoles import nova_conf
from tests.support.ports import free_port_base
from tests.support.sites import site

pytestmark = pytest.mark.slow

DASHBOARD = "dashboard.example.org"
NOVNC, SERIAL = 6080, 6083
MODULE = "export default 1;\n"
IDLE_S = 2
"""Seconds after which this gateway gives up on what is not a console."""
CONSOLES = 4
"""Open ones of one address."""
ACCEPTED = b"\0\0\0\0"


class Screen(socketserver.BaseRequestHandler):
    """RFB's greeting for novnc; a serial console has none."""

    def handle(self) -> None:
        line: socket.socket = self.request
        with suppress(OSError):
            line.settimeout(60)
            if self.server.rfb:  # type: ignore[attr-defined]
                line.sendall(b"RFB 003.008\n")
                assert line.recv(12) == b"RFB 003.008\n"
                line.sendall(b"\x01\x01")
                assert line.recv(1) == b"\x01"
                line.sendall(ACCEPTED)
            while data := line.recv(65536):
                line.sendall(data)


class WebSocket:
    """As a browser opens one: RFC 6455, with binary messages."""

    def __init__(self, line: ssl.SSLSocket, host: str, path: str, origin: str, version: str = "13") -> None:
        key = base64.b64encode(os.urandom(16)).decode()
        self.line, self.data = line, b""
        more = f"Upgrade: websocket\r\nConnection: Upgrade\r\nOrigin: {origin}\r\nSec-WebSocket-Key: {key}\r\n"
        more += f"Sec-WebSocket-Version: {version}\r\nSec-WebSocket-Protocol: binary\r\nCookie: a=b\r\n"
        line.sendall(raw(path, more, host=host))
        head = b""
        while not head.endswith(b"\r\n\r\n") and (byte := line.recv(1)):
            head += byte
        self.status = int(head.split()[1]) if head else 0
        if self.status == 101:
            text = f"{key}258EAFA5-E914-47DA-95CA-C5AB0DC85B11".encode()
            assert base64.b64encode(hashlib.sha1(text).digest()) in head

    def send(self, data: bytes) -> None:
        mask, size = os.urandom(4), len(data)
        length = bytes([0x80 | size]) if size < 126 else b"\xfe" + size.to_bytes(2, "big")
        self.line.sendall(b"\x82" + length + mask + bytes(byte ^ mask[at % 4] for at, byte in enumerate(data)))

    def receive(self, size: int) -> bytes:
        """Less when it is closed."""
        while len(self.data) < size:
            try:
                first, length = self._exactly(2)
                if length in (126, 127):
                    length = int.from_bytes(self._exactly(2 if length == 126 else 8), "big")
                payload = self._exactly(length)
            except (EOFError, OSError):
                break
            if first & 0xF == 8:
                break
            self.data += payload
        received, self.data = self.data[:size], self.data[size:]
        return received

    def _exactly(self, size: int) -> bytes:
        received = b""
        while len(received) < size:
            more = self.line.recv(size - len(received))
            if not more:
                raise EOFError
            received += more
        return received

    def greet(self) -> bool:
        """RFB's handshake, as noVNC does it. Whether there is a screen."""
        if self.receive(12) != b"RFB 003.008\n":
            return False
        self.send(b"RFB 003.008\n")
        assert self.receive(2) == b"\x01\x01"
        self.send(b"\x01")
        return self.receive(4) == ACCEPTED

    def echoes(self, data: bytes) -> bool:
        self.send(data)
        return self.receive(len(data)) == data


@dataclass
class Consoles:
    net: Net
    urls: dict[str, list[str]]
    """By kind, as Nova gives them to people; each is taken once."""
    state: Path
    log: socket.socket

    def take(self, kind: str) -> tuple[str, str]:
        """A URL, and the path of its WebSocket."""
        url = self.urls[kind].pop()
        parts = urlsplit(url)
        return url, f"/{parse_qs(parts.query)['path'][0]}" if kind == "novnc" else f"{parts.path}?{parts.query}"

    @contextmanager
    def opened(
        self, port: int, path: str, source: str, origin: str = f"https://{CLOUD}:{NOVNC}", **more: str
    ) -> Iterator[WebSocket]:
        with self.net.tls(CLOUD, port, source) as line:
            yield WebSocket(line, f"{CLOUD}:{port}", path, origin, **more)


@contextmanager
def screen(rfb: bool) -> Iterator[int]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Screen) as server:
        server.daemon_threads, server.rfb = True, rfb  # type: ignore[attr-defined]
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@contextmanager
def proxies(folder: Path, loaded: Any) -> Iterator[tuple[dict[str, int], dict[str, list[str]]]]:
    """Nova's two, and the URLs of consoles. Options are those that the site file means for every Nova service."""
    (folder / "novnc/core").mkdir(parents=True)
    (folder / "novnc/vnc_lite.html").write_text("<title>noVNC</title>")
    for number in range(80):
        (folder / f"novnc/core/module{number}.js").write_text(MODULE)
    options = {(option.section, option.key): option.value for option in loaded.compiled.options[0].options}
    console_options = {
        place: value for place, value in options.items() if place[0] in ("vnc", "serial_console", "console")
    }
    first = free_port_base()
    ports = {"novnc": first, "serial": first + 1}
    conf = nova_conf(folder, ports, console_options)
    program = [sys.executable, "-m", "tests.support.nova_consoles"]
    with ExitStack() as stack:
        at = [f"{kind}={stack.enter_context(screen(kind == 'novnc'))}" for kind in ports]
        done = subprocess.run([*program, "make", conf, *at], capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        urls: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
        for kind in ports:
            log = stack.enter_context((folder / f"{kind}.log").open("wb"))
            process = subprocess.Popen([*program, kind, conf], stdout=log, stderr=log)
            stack.callback(process.wait)
            stack.callback(process.terminate)
        for kind, port in ports.items():
            until(lambda port=port: _listens(port), f"nova's proxy of {kind} does not start")  # type: ignore[misc]
        yield ports, urls


def _listens(port: int) -> bool:
    with suppress(OSError):
        socket.create_connection(("127.0.0.1", port), 1).close()
        return True
    return False


@pytest.fixture(scope="module")
def consoles() -> Iterator[Consoles]:
    need_root()
    with (
        tempfile.TemporaryDirectory(prefix="gpuyard-consoles-") as name,
        socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as log,
    ):
        folder = Path(name)
        folder.chmod(0o755)
        log.bind(str(folder / "log"))
        log.setblocking(False)
        (folder / "log").chmod(0o666)
        keys = {end: subprocess.check_output(["wg", "genkey"], text=True).strip() for end in ("gateway", "cloud")}
        doors = {
            kind: {"public": f"{CLOUD}:{port}", "behind": f"{VIP}:{port}"}
            for kind, port in (("novnc", NOVNC), ("serial", SERIAL))
        }
        document = {
            "dashboard": {"public": DASHBOARD, "behind": f"{VIP}:80"}, "consoles": doors,
            "wireguard": tunnel(keys), "limits": {"streams": CONSOLES},
        }  # fmt: skip
        loaded = site(folder, {"gateway": document})
        (folder / "nova").mkdir()
        with proxies(folder / "nova", loaded) as (ports, urls), nets.machines(folder, [CLOUD, DASHBOARD]) as net:
            nets.relay(net, NOVNC, ports["novnc"])
            nets.relay(net, SERIAL, ports["serial"])
            nets.write_tree(folder, tree(loaded.site))
            conf = folder / "gateway/etc/gpuyard/gateway/nginx.conf"
            text = conf.read_text()
            assert text.count("    proxy_read_timeout 120s;") == 1
            conf.write_text(text.replace("    proxy_read_timeout 120s;", f"    proxy_read_timeout {IDLE_S}s;"))
            nets.wireguard_up(net, folder, keys)
            yield Consoles(net, urls, nets.nginx_up(net, folder, folder / "log"), log)


def test_a_screen_is_seen_and_used_and_stays_when_nothing_happens(consoles: Consoles) -> None:
    url, path = consoles.take("novnc")
    assert url.startswith(f"https://{CLOUD}:{NOVNC}/vnc_lite.html?path=%3Ftoken%3D")
    page = consoles.net.http("GET", CLOUD, NOVNC, url.partition(str(NOVNC))[2], CLIENTS[0])
    assert (page.status, page.body) == (200, b"<title>noVNC</title>")
    assert page.headers["strict-transport-security"]
    with consoles.opened(NOVNC, path, CLIENTS[0]) as console:
        assert console.status == 101
        assert console.greet()
        assert console.echoes(b"a key")
        time.sleep(IDLE_S + 1.5)
        assert console.echoes(os.urandom(40_000))


def test_a_page_of_many_files_is_no_flood(consoles: Consoles) -> None:
    """noVNC 1.6 has 60 modules, which a browser asks for at once; the limit of strangers is 50."""
    for number in range(80):
        answer = consoles.net.http("GET", CLOUD, NOVNC, f"/core/module{number}.js", CLIENTS[1])
        assert (answer.status, answer.body.decode()) == (200, MODULE)


@pytest.mark.parametrize("origin", ["https://evil.example.org", f"http://{CLOUD}:{NOVNC}", f"https://{DASHBOARD}"])
def test_nova_sees_from_which_page_a_console_is_opened(consoles: Consoles, origin: str) -> None:
    """nova 34, console/websocketproxy.py: host and protocol of Origin are held against Host, [console]allowed_origins
    and the address that was given to people; X-Forwarded-Proto, which the gateway sends, wins over Origin's."""
    _, path = consoles.take("novnc")
    with consoles.opened(NOVNC, path, CLIENTS[2], origin) as console:
        assert console.greet() == (urlsplit(origin).hostname in (CLOUD, DASHBOARD))


def test_a_token_that_is_none_shows_no_screen(consoles: Consoles) -> None:
    for path in ("/?token=6f1d7e1c-0a55-4a39-8a3b-000000000000", "/", "/websockify?token="):
        with consoles.opened(NOVNC, path, CLIENTS[3]) as console:
            assert not console.greet()


def test_a_page_of_horizon_opens_a_serial_console(consoles: Consoles) -> None:
    url, path = consoles.take("serial")
    assert url.startswith(f"wss://{CLOUD}:{SERIAL}/?token=")
    with consoles.opened(SERIAL, path, CLIENTS[4], f"https://{DASHBOARD}") as console:
        assert console.status == 101
        assert console.echoes(b"ls\r")
    _, path = consoles.take("serial")
    with consoles.opened(SERIAL, path, CLIENTS[4], "https://evil.example.org") as console:
        assert not console.echoes(b"ls\r")


def test_tokens_are_in_no_log_of_the_gateway(consoles: Consoles) -> None:
    logged_on(consoles.log)
    url, path = consoles.take("novnc")
    token = path.partition("token=")[2]
    consoles.net.http("GET", CLOUD, NOVNC, url.partition(str(NOVNC))[2], CLIENTS[5], Referer=url)
    with consoles.opened(NOVNC, path, CLIENTS[5]) as console:
        assert console.greet()
    lines: list[dict[str, Any]] = []

    def written() -> bool:
        lines.extend(line for line in logged_on(consoles.log) if line["from"] == CLIENTS[5])
        return len(lines) == 2

    until(written, "nothing is logged")
    assert [(line["path"], line["status"]) for line in lines] == [("/vnc_lite.html", 200), ("/", 101)]
    assert token not in json.dumps(lines) + consoles.net.log("nginx")


def test_a_websocket_is_nowhere_else_and_leads_to_one_place(consoles: Consoles) -> None:
    net = consoles.net
    with consoles.opened(NOVNC, "/vnc_lite.html", CLIENTS[6]) as console:
        assert console.status == 200  # a file, since nobody hears of the WebSocket
    head = net.relays[NOVNC].heads[-1].lower()
    assert b"upgrade" not in head
    assert b"cookie" not in head
    for method, path in (("POST", "/"), ("GET", "/../etc/passwd"), ("GET", "/core/%2e%2e/nova.conf"), ("GET", "//")):
        assert net.ask(CLOUD, NOVNC, raw(path, method=method, host=f"{CLOUD}:{NOVNC}")).status in (400, 403)
    # What is refused opens no way past the gateway: the next request is looked at like any other.
    with net.tls(CLOUD, NOVNC, CLIENTS[6]) as line:
        refused = WebSocket(line, f"{CLOUD}:{NOVNC}", "/?token=x", f"https://{CLOUD}", version="99")
        assert refused.status == 400
        with suppress(OSError):
            line.sendall(raw("/secret", method="DELETE", host=f"{CLOUD}:{NOVNC}"))
    assert not [head for head in net.relays[NOVNC].heads if b"DELETE" in head]


def test_open_consoles_are_counted_and_outlive_a_reload(consoles: Consoles) -> None:
    with ExitStack() as stack:
        paths = [consoles.take("serial")[1] for _ in range(CONSOLES)]
        opened = [
            stack.enter_context(consoles.opened(SERIAL, path, CLIENTS[8], f"https://{DASHBOARD}")) for path in paths
        ]
        assert all(console.echoes(b"x") for console in opened)
        with consoles.opened(SERIAL, "/?token=x", CLIENTS[8], f"https://{DASHBOARD}") as one_more:
            assert one_more.status == 429
        os.kill(int((consoles.state / "nginx.pid").read_text()), signal.SIGHUP)
        until(lambda: consoles.net.http("GET", CLOUD, NOVNC, "/vnc_lite.html").status == 200, "it does not answer")
        assert all(console.echoes(b"y") for console in opened)


def test_where_no_proxy_is_people_are_told_so(consoles: Consoles) -> None:
    """It is the last one: the relay to Nova's proxy ends."""
    consoles.net.relays[SERIAL].to = 1
    with consoles.net.tls(CLOUD, SERIAL, CLIENTS[9]) as line:
        line.sendall(raw("/?token=x", "Upgrade: websocket\r\nConnection: Upgrade\r\n", host=f"{CLOUD}:{SERIAL}"))
        answer = answer_on(line)
    assert answer.status == 502
    assert b"does not reach the cloud" in answer.body
