"""An installed Debian that stays on, is reached by ssh over a port of this machine's loopback, and comes back when it
is rebooted, as a server does.

sshd and its libraries are this machine's own, copied to the disk at the first boot: both are Debian 12.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.sshd import SERVER, free_port
from tests.virtual_hypervisor import machine
from tests.virtual_hypervisor.board import Board
from tests.virtual_hypervisor.build import Build
from tests.virtual_hypervisor.topology import VirtualHost, server

UPLINK = "user,id=uplink,restrict=on,ipv6=off"
"""As topology.server() has it: forwarding of a port is beside the restriction."""
ADDRESS = "192.0.2.10"
"""Of its network card, by its own configuration."""
JOB = """\
#!/bin/bash -e
hostname {name}
echo {name} >/etc/hostname
if [ ! -x /opt/sshd/sshd ]; then
    mkdir -p /opt/sshd.new /root/.ssh
{copies}    cp $JOB/host_key $JOB/sshd_config /opt/sshd.new
    chmod 600 /opt/sshd.new/host_key
    cp $JOB/authorized_keys /root/.ssh/authorized_keys
    chmod -R go= /root /root/.ssh
    chown -R root:root /root /opt/sshd.new
    echo 'sshd:x:105:65534::/run/sshd:/usr/sbin/nologin' >>/etc/passwd
    mv /opt/sshd.new /opt/sshd
fi
mkdir -p /run/sshd
LD_LIBRARY_PATH=/opt/sshd exec /opt/sshd/sshd -D -e -f /opt/sshd/sshd_config
"""
CONFIGURATION = """\
HostKey /opt/sshd/host_key
AuthorizedKeysFile /root/.ssh/authorized_keys
PidFile none
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
PrintMotd no
"""


def plain_host() -> VirtualHost:
    """A server without GPUs."""
    board = Board()
    server(board)
    return VirtualHost("plain", "plain", "Intel(R) Xeon(R) CPU E5-2620 v3 @ 2.40GHz", 900, board, (), "no GPU")


@dataclass
class SshMachine:
    """`folder` is made, with a copy of the disk."""

    name: str
    build: Build
    image: Path
    host: VirtualHost
    folder: Path
    keys: Path
    """A folder with host_key and user_key.pub, the same for all."""
    port: int = field(default_factory=free_port)
    boots: int = 0

    def __post_init__(self) -> None:
        assert SERVER is not None
        self.disk, self.job = self.folder / "disk", self.folder / "job"
        self.job.mkdir(parents=True)
        subprocess.run(["cp", "--sparse=always", str(self.image), str(self.disk)], check=True)
        linked = subprocess.check_output(["ldd", SERVER], text=True)
        files = [SERVER, *re.findall(r"=> (/\S+)", linked)]
        # Under the names by which the loader looks for them, whatever links lead to.
        copies = "".join(
            f"    cp $SOURCE{os.path.realpath(path)} /opt/sshd.new/{Path(path).name}\n"
            for path in files
            if not Path(path).name.startswith(("ld-linux", "libc.so"))
        )
        text = JOB.format(name=self.name, copies=copies)
        (self.job / "job").write_text(text)
        (self.job / "job").chmod(0o755)
        shutil.copy(self.keys / "host_key", self.job)
        shutil.copy(self.keys / "user_key.pub", self.job / "authorized_keys")
        (self.job / "sshd_config").write_text(CONFIGURATION)
        self._stopping = False
        self._process: subprocess.Popen[bytes] | None = None
        self._thread = threading.Thread(target=self._stay_on, daemon=True)

    def __enter__(self) -> SshMachine:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopping = True
        while self._thread.is_alive():  # it may be about to start another one
            if self._process is not None:
                self._process.kill()
            self._thread.join(0.5)

    @property
    def console(self) -> str:
        """Of the last boot."""
        return (self.folder / f"console-{self.boots}").read_text(errors="replace")

    def _stay_on(self) -> None:
        """QEMU ends when the machine resets, and is started again."""
        environment = {**os.environ, "LD_PRELOAD": str(self.build.shim), "VHOST_MODELS": self.host.board.shim_models()}
        while not self._stopping:
            self.boots += 1
            with (self.folder / f"console-{self.boots}").open("wb") as console:
                self._process = subprocess.Popen(
                    self._qemu(), env=environment, stdin=subprocess.DEVNULL, stdout=console, stderr=subprocess.STDOUT
                )
                self._process.wait()

    def _qemu(self) -> Sequence[str]:
        forwarded = f"{UPLINK},net=192.0.2.0/24,host=192.0.2.1,dhcpstart=192.0.2.100"
        forwarded += f",hostfwd=tcp:127.0.0.1:{self.port}-{ADDRESS}:22"
        board = self.host.board.arguments()
        assert UPLINK in board
        return [
            *("qemu-system-x86_64", "-accel", "tcg,thread=multi", "-cpu", f"qemu64,model-id={self.host.cpu_model}"),
            *("-nodefaults", "-display", "none", "-monitor", "none", "-serial", "stdio", "-no-reboot"),
            *(forwarded if word == UPLINK else word for word in board),
            *machine.share("root", "/", 0x1B, "readonly=on,multidevs=remap"),
            *machine.share("job", str(self.job.resolve()), 0x1D, "readonly=off"),
            *("-drive", f"id=root-disk,if=none,format=raw,cache=unsafe,file={self.disk}"),
        ]


def ssh_configuration(machines: Sequence[SshMachine], folder: Path) -> Path:
    """For a client: each by its name."""
    key = (folder / "host_key.pub").read_text().split()
    known_hosts = "".join(f"[127.0.0.1]:{machine.port} {key[0]} {key[1]}\n" for machine in machines)
    (folder / "known_hosts").write_text(known_hosts)
    hosts = "".join(f"Host {machine.name}\n    Port {machine.port}\n" for machine in machines)
    path = folder / "ssh_config"
    path.write_text(f"""\
{hosts}Host *
    HostName 127.0.0.1
    User root
    IdentityFile {folder}/user_key
    IdentitiesOnly yes
    IdentityAgent none
    UserKnownHostsFile {folder}/known_hosts
    GlobalKnownHostsFile none
    StrictHostKeyChecking yes
""")
    return path
