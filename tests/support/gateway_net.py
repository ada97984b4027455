"""A gateway between the internet and a cloud behind a VPN, in network namespaces: real nginx, and a real tunnel.

Three machines: `client` on the internet, `gateway`, and `cloud`, whose firewall lets nothing in. What listens at the
cloud's addresses are relays to the lab and the portal on this machine's loopback; they remember the first bytes of each
connection, so that a test sees what nginx has made of a request. It takes root.
"""

from __future__ import annotations

import ctypes
import os
import re
import shlex
import shutil
import signal
import socket
import ssl
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tests.support.certificates import certificate

CLONE_NEWNET = 0x40000000
PATIENCE_S = 30.0
CLIENT, CLIENT6, GATEWAY, GATEWAY6 = "198.51.100.10", "2001:db8:51::10", "198.51.100.1", "2001:db8:51::1"
CLIENTS = [f"198.51.100.{number}" for number in range(10, 40)]
"""Addresses of the client's machine: what one does is not held against another."""
OPERATOR = "198.51.100.99"
VIP, VPN_GATEWAY, VPN_CLOUD = "10.20.0.250", "203.0.113.1", "203.0.113.2"
PROGRAMS = {
    "nginx": "nginx", "wg": "wireguard-tools", "wireguard-go": "wireguard-go", "nft": "nftables", "ip": "iproute2",
    "sshd": "openssh-server", "ssh": "openssh-client", "openssl": "openssl", "setpriv": "util-linux",
}  # fmt: skip
NOBODY = "65534"
LIBC = ctypes.CDLL(None, use_errno=True)


def until(true: Callable[[], bool], what: str, patience: float = PATIENCE_S) -> None:
    deadline = time.monotonic() + patience
    while not true():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


@contextmanager
def entered(namespace: str) -> Iterator[None]:
    """For this thread: sockets that are made now are that machine's for good."""
    with open("/proc/thread-self/ns/net") as home, open(f"/run/netns/{namespace}") as target:
        assert LIBC.setns(target.fileno(), CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        try:
            yield
        finally:
            assert LIBC.setns(home.fileno(), CLONE_NEWNET) == 0


@dataclass
class Relay:
    """Listens at an address of the cloud, and passes on to a port of this machine's loopback."""

    listener: socket.socket
    to: int
    heads: list[bytes] = field(default_factory=list)
    """Of each connection, up to the end of the headers."""
    received: int = 0
    """Bytes of all connections."""

    def serve(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._connected, args=(connection,), daemon=True).start()

    def _connected(self, connection: socket.socket) -> None:
        number, head = len(self.heads), b""
        self.heads.append(head)
        with connection, suppress(OSError), socket.create_connection(("127.0.0.1", self.to)) as other:
            back = threading.Thread(target=_pour, args=(other, connection), daemon=True)
            back.start()
            while data := connection.recv(65536):
                self.received += len(data)
                if b"\r\n\r\n" not in head:
                    head += data
                    self.heads[number] = head.partition(b"\r\n\r\n")[0]
                other.sendall(data)
            with suppress(OSError):
                other.shutdown(socket.SHUT_WR)
            back.join()


def _pour(source: socket.socket, into: socket.socket) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            into.sendall(data)
    with suppress(OSError):
        into.shutdown(socket.SHUT_WR)


@dataclass(frozen=True)
class Answer:
    """What came back; status 0: the connection was closed without an answer."""

    status: int
    headers: dict[str, str]
    """Names in lower case; cookies one a line."""
    body: bytes


@dataclass
class Net:
    """The machines, once they are up."""

    folder: Path
    prefix: str
    authority: Path
    relays: dict[int, Relay] = field(default_factory=dict)
    """By the port of the VIP."""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def name(self, machine: str) -> str:
        return f"{self.prefix}-{machine}"

    def end_nginx(self) -> None:
        for name in ("nginx.pid", "nginx.pid.oldbin"):
            with suppress(FileNotFoundError, ProcessLookupError):
                os.kill(int((self.folder / "state" / name).read_text()), signal.SIGTERM)

    def command(self, machine: str, *words: str) -> list[str]:
        return ["ip", "netns", "exec", self.name(machine), *words]

    def run(self, machine: str, *words: str, **more: object) -> str:
        """What it says. Raises AssertionError with what went wrong."""
        done = subprocess.run(self.command(machine, *words), capture_output=True, text=True, check=False, **more)  # type: ignore[call-overload]
        assert done.returncode == 0, f"{words}: {done.stdout[-3000:]}{done.stderr[-3000:]}"
        return str(done.stdout)

    def start(self, name: str, machine: str, *words: str) -> subprocess.Popen[bytes]:
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.command(machine, *words), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        self.processes[name] = process
        return process

    def end(self, name: str) -> None:
        process = self.processes.pop(name, None)
        if process is not None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(5)
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def end_all(self) -> None:
        for name in list(self.processes):
            self.end(name)

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text(errors="replace")

    def plain(
        self, port: int, source: str = CLIENT, machine: str = "client", to: str = "", timeout: float = 60
    ) -> socket.socket:
        """A connection from one machine to another."""
        with entered(self.name(machine)):
            connection = socket.socket(socket.AF_INET6 if ":" in (to or source) else socket.AF_INET)
        try:
            connection.settimeout(timeout)
            if machine == "client":
                connection.bind((source, 0))
            connection.connect((to or (GATEWAY6 if ":" in source else GATEWAY), port))
        except OSError:
            connection.close()
            raise
        return connection

    def tls(
        self, name: str, port: int = 443, source: str = CLIENT, timeout: float = 60, **more: object
    ) -> ssl.SSLSocket:
        """By a name, with its certificate looked at."""
        context = ssl.create_default_context(cafile=str(self.authority))
        for key, value in more.items():
            setattr(context, key, value)
        line = self.plain(port, source, timeout=timeout)
        try:
            return context.wrap_socket(line, server_hostname=name or None)
        except OSError:
            line.close()
            raise

    def ask(self, name: str, port: int, raw: bytes, source: str = CLIENT) -> Answer:
        """Send bytes as they are, and take one answer."""
        with self.tls(name, port, source) as line:
            with suppress(OSError):  # it may have refused before it has all
                line.sendall(raw)
            return answer_on(line)

    def http(
        self,
        method: str,
        name: str,
        port: int,
        path: str,
        source: str = CLIENT,
        body: bytes = b"",
        auth: str = "",
        **headers: str,
    ) -> Answer:
        """As a client does it."""
        host = name if port == 443 else f"{name}:{port}"
        lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close"]
        lines += [f"{key.replace('_', '-')}: {value}" for key, value in headers.items()]
        lines += [f"X-Auth-Token: {auth}"] if auth else []
        lines += [f"Content-Length: {len(body)}"] if body else []
        return self.ask(name, port, "\r\n".join([*lines, "", ""]).encode() + body, source)


def answer_on(line: socket.socket) -> Answer:
    """The next one."""
    file = line.makefile("rb")
    try:
        first = file.readline()
    except OSError:
        return Answer(0, {}, b"")
    if not first.startswith(b"HTTP/1."):
        return Answer(0, {}, first)
    if first.split()[1] == b"100":
        file.readline()
        first = file.readline()
    headers: dict[str, str] = {}
    while text := file.readline().decode("latin-1").strip():
        key, _, value = text.partition(":")
        before = f"{headers[name]}\n" if (name := key.lower()) == "set-cookie" and name in headers else ""
        headers[name] = before + value.strip()
    if "content-length" in headers:
        body = file.read(int(headers["content-length"]))
    elif headers.get("transfer-encoding") == "chunked":
        body = b""
        while size := int(file.readline().strip() or b"0", 16):
            body += file.read(size)
            file.readline()
    else:
        body = file.read() if headers.get("connection") == "close" else b""
    return Answer(int(first.split()[1]), headers, body)


@contextmanager
def machines(folder: Path, names: Sequence[str]) -> Iterator[Net]:
    """The three, and a certificate for some names. The folder must be one that all users can get to."""
    authority = certificate(folder, GATEWAY, names=names)
    net = Net(folder, f"gpuyard-{os.getpid()}", authority.authority)
    hosts = Path("/etc/netns") / net.name("client")
    with ExitStack() as stack:
        for machine in ("client", "gateway", "cloud"):
            subprocess.run(["ip", "netns", "add", net.name(machine)], check=True)
            stack.callback(subprocess.run, ["ip", "netns", "delete", net.name(machine)], check=False)
        stack.callback(net.end_all)
        stack.callback(net.end_nginx)
        hosts.mkdir(parents=True)
        stack.callback(shutil.rmtree, hosts)
        (hosts / "hosts").write_text(f"127.0.0.1 localhost\n{GATEWAY} {' '.join(names)}\n")
        _wire(net)
        yield net
        for relay in net.relays.values():
            relay.listener.close()


def _wire(net: Net) -> None:
    client, gateway, cloud = (net.name(machine) for machine in ("client", "gateway", "cloud"))
    commands = [
        f"link add c0 netns {client} type veth peer name g0 netns {gateway}",
        f"link add g1 netns {gateway} type veth peer name v0 netns {cloud}",
        *(f"-n {client} address add {address}/24 dev c0" for address in (*CLIENTS, OPERATOR)),
        f"-n {client} address add {CLIENT6}/64 dev c0 nodad",
        f"-n {gateway} address add {GATEWAY}/24 dev g0",
        f"-n {gateway} address add {GATEWAY6}/64 dev g0 nodad",
        f"-n {gateway} address add {VPN_GATEWAY}/24 dev g1",
        f"-n {cloud} address add {VPN_CLOUD}/24 dev v0",
        f"-n {cloud} address add {VIP}/32 dev lo",
    ]
    for name, links in ((client, ("lo", "c0")), (gateway, ("lo", "g0", "g1")), (cloud, ("lo", "v0"))):
        commands += [f"-n {name} link set {link} up" for link in links]
    for command in commands:
        subprocess.run(["ip", *command.split()], check=True)
    firewall = "add table inet vpn; add chain inet vpn input { type filter hook input priority 0; policy accept; }; "
    net.run("cloud", "nft", firewall + 'add rule inet vpn input iifname "v0" ct state new drop')


def relay(net: Net, port: int, to: int) -> None:
    """Have something of this machine's loopback be at a port of the VIP."""
    with entered(net.name("cloud")):
        listener = socket.create_server((VIP, port), backlog=128)
    net.relays[port] = Relay(listener, to)
    threading.Thread(target=net.relays[port].serve, daemon=True).start()


def write_tree(folder: Path, files: Mapping[str, str]) -> None:
    """As `gpuyard gateway render -o` does."""
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)


def wireguard_up(net: Net, tree: Path, keys: Mapping[str, str]) -> None:
    """Both ends, by the commands of their units. Where the kernel has no WireGuard, wireguard-go is it."""
    for machine in ("gateway", "cloud"):
        folder = tree / machine / "etc/gpuyard/tunnel"
        (folder / "key").touch(mode=0o600)
        (folder / "key").write_text(keys[machine] + "\n")
        unit = (tree / machine / "etc/systemd/system/gpuyard-tunnel.service").read_text()
        lines = ["set -e", "mkdir -p /run/wireguard", "mount -t tmpfs none /run/wireguard"]
        for command in re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE):
            line = command.replace("/etc/gpuyard/tunnel", str(folder)).replace("${CREDENTIALS_DIRECTORY}", str(folder))
            if "type wireguard" in line:
                line = f"{line} 2>/dev/null || {{ {WIREGUARD_GO}; }}"
            lines.append(line)
        lines += ["echo up", "exec sleep infinity"]
        name = f"wireguard-{machine}"
        net.start(name, machine, "sh", "-c", "\n".join(lines))
        until(partial(_says, net, name, "up"), f"no tunnel at {machine}")
    until(lambda: listens(net, VIP, next(iter(net.relays))), "nothing comes through the tunnel")


def _says(net: Net, log: str, line: str) -> bool:
    return line in net.log(log).splitlines()


WIREGUARD_GO = (
    "wireguard-go -f gpuyard0 & "
    "until ip link show gpuyard0 >/dev/null 2>&1 && test -S /run/wireguard/gpuyard0.sock; do sleep 0.05; done"
)


def ssh_up(net: Net, tree: Path, key: Path, host_key: Path) -> None:
    """The gateway's sshd and the cloud's ssh, as root in place of the users that are made for them."""

    def here(path: str) -> Path:
        text = (tree / path).read_text().replace("gpuyard-tunnel\n", "root\n")
        end = path.partition("/")[0]
        (tree / path).write_text(text.replace("/etc/gpuyard/tunnel", f"{tree}/{end}/etc/gpuyard/tunnel"))
        return tree / path

    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    server = tree / "sshd_config"
    server.write_text(
        f"ListenAddress {VPN_GATEWAY}:22\nHostKey {host_key}\nPidFile none\nStrictModes no\nUsePAM no\n"
        "PermitRootLogin prohibit-password\nPasswordAuthentication no\n"
        + here("gateway/etc/ssh/sshd_config.d/50-gpuyard-tunnel.conf").read_text()
    )
    program = shutil.which("sshd", path="/usr/sbin:/usr/bin")
    assert program
    net.start("sshd", "gateway", program, "-D", "-e", "-f", str(server))
    client = here("cloud/etc/gpuyard/tunnel/ssh_config")
    unit = (tree / "cloud/etc/systemd/system/gpuyard-tunnel.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    words = shlex.split(command.replace("${CREDENTIALS_DIRECTORY}/key", str(key)))
    words[words.index("-F") + 1] = str(client)
    until(lambda: listens(net, VPN_GATEWAY, 22), "sshd does not start")
    net.start("ssh", "cloud", *words)
    first = re.findall(r"RemoteForward 127.0.0.1:(\d+)", client.read_text())[0]
    until(lambda: listens(net, "127.0.0.1", int(first)), "nothing comes through the tunnel")


def listens(net: Net, address: str, port: int, machine: str = "gateway") -> bool:
    with entered(net.name(machine)), suppress(OSError):
        socket.create_connection((address, port), 1).close()
        return True
    return False


def nginx_up(net: Net, tree: Path, log: Path) -> Path:
    """As its unit starts it: nobody, with the right to have ports below 1024. Gives the folder it is started in."""
    conf, state = tree / "gateway/etc/gpuyard/gateway", net.folder / "state"
    (conf / "tls").mkdir()
    (conf / "tls/fullchain.pem").write_bytes(net.authority.read_bytes())
    (conf / "tls/privkey.pem").write_bytes((net.folder / "key.pem").read_bytes())
    (state / "acme/.well-known/acme-challenge").mkdir(parents=True)
    (state / "acme/.well-known/acme-challenge/word").write_text("of the authority")
    text = (conf / "nginx.conf").read_text()
    assert "unix:/dev/log" in text
    (conf / "nginx.conf").write_text(text.replace("unix:/dev/log", f"unix:{log}"))
    for path in (state, *state.rglob("*"), conf / "tls/privkey.pem"):
        os.chown(path, int(NOBODY), int(NOBODY))
    unit = (tree / "gateway/etc/systemd/system/gpuyard-gateway.service").read_text()
    (command,) = re.findall(r"^ExecStart=(.*)$", unit, re.MULTILINE)
    words = command.replace("/var/lib/gpuyard-gateway/", f"{state}/").replace("/etc/gpuyard/gateway", str(conf)).split()
    rights = "-all,+net_bind_service"
    nobody = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", f"--inh-caps={rights}"]
    nobody += [f"--ambient-caps={rights}", f"--bounding-set={rights}", "--no-new-privs"]
    process = net.start("nginx", "gateway", *nobody, *words)
    assert process.wait(PATIENCE_S) == 0, net.log("nginx")
    until(lambda: listens(net, GATEWAY, 80), "nginx does not start")
    return state
