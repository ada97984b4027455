"""A real OpenSSH server on the loopback, with keys and a client configuration of its own."""

from __future__ import annotations

import getpass
import os
import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic, sleep

SERVER = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
PRIVILEGE_SEPARATION = Path("/run/sshd")
"""A server that root starts insists on this empty folder."""
PATIENCE = 10


@dataclass(frozen=True)
class Sshd:
    """A server that runs, and how to reach it: ``ssh -F configuration ALIAS``."""

    port: int
    configuration: Path

    @property
    def ssh(self) -> tuple[str, ...]:
        return ("ssh", "-F", str(self.configuration))


def missing() -> str:
    """Why the tests that need a server cannot run; empty when they can."""
    return "" if SERVER else "sshd is not there; install openssh-server (it need not be started)"


@contextmanager
def running(folder: Path, aliases: Sequence[str] = ("gpu1",), settings: str = "") -> Iterator[Sshd]:
    """Start a server in a folder and end it. `settings` are further lines of sshd_config.

    Every alias leads to it; what runs there finds the one that it was called by in HOST_ALIAS.
    """
    assert SERVER, missing()
    for name in ("host_key", "user_key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = free_port()
    (folder / "sshd_config").write_text(_server(folder, port) + settings)
    server = Sshd(port, folder / "ssh_config")
    server.configuration.write_text(_client(folder, port, aliases))
    with _privilege_separation(), (folder / "sshd.log").open("wb") as log:
        command = [SERVER, "-D", "-e", "-f", str(folder / "sshd_config")]
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=log) as process:
            try:
                _wait(process, port, folder / "sshd.log")
                yield server
            finally:
                process.terminate()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _server(folder: Path, port: int) -> str:
    return f"""\
ListenAddress 127.0.0.1:{port}
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
AcceptEnv HOST_ALIAS
# As many at once as the tests like; the default lets ten in and then drops some.
MaxStartups 200
"""


def _client(folder: Path, port: int, aliases: Sequence[str]) -> str:
    key = (folder / "host_key.pub").read_text().split()
    (folder / "known_hosts").write_text(f"[127.0.0.1]:{port} {key[0]} {key[1]}\n")
    hosts = "".join(f"Host {alias}\n    Port {port}\n    SetEnv HOST_ALIAS={alias}\n" for alias in aliases)
    return f"""\
{hosts}Host *
    HostName 127.0.0.1
    User {getpass.getuser()}
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
"""


@contextmanager
def _privilege_separation() -> Iterator[None]:
    ours = os.geteuid() == 0 and not PRIVILEGE_SEPARATION.exists()
    if ours:
        PRIVILEGE_SEPARATION.mkdir(mode=0o755)
    try:
        yield
    finally:
        if ours:
            PRIVILEGE_SEPARATION.rmdir()


def _wait(process: subprocess.Popen[bytes], port: int, log: Path) -> None:
    end = monotonic() + PATIENCE
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            assert process.poll() is None, log.read_text()
            assert monotonic() < end, log.read_text()
            sleep(0.05)
