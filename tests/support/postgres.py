"""A PostgreSQL of our own: the embedded server, for as long as a block lasts."""

from __future__ import annotations

import getpass
import os
import pwd
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
from psycopg import sql

from gpuyard_lab.postgres import NOBODY, programs, unprivileged

PATIENCE_S = 60
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Data does not survive a crash of the machine."""


PEOPLE = "local all,replication postgres peer map=test\n"


class Server:
    """A server, running or not; `start` and what ends it may be called again and again."""

    def __init__(self, data: Path, socket: str, *, durable: bool, **more: str) -> None:
        """`data`: its files, or where `initialize` makes them. `more`: further settings."""
        self.data, self.socket = data, socket
        self._log = data.with_suffix(".log")
        settings = {"listen_addresses": "", "unix_socket_directories": socket, "max_connections": "400"}
        settings |= {"shared_buffers": "128MB", "dynamic_shared_memory_type": "posix", "io_method": "sync"}
        settings |= ({} if durable else QUICK) | more
        self._options = [f"--{name}={value}" for name, value in settings.items()]
        self._process: subprocess.Popen[bytes] | None = None

    def initialize(self) -> None:
        flags = ["--auth=peer", "--username=postgres", "--no-sync", "--locale=C.UTF-8", "--encoding=UTF8"]
        self._run("initdb", *flags, "-D", str(self.data))
        (self.data / "pg_hba.conf").write_text(PEOPLE)
        users = {getpass.getuser(), pwd.getpwuid(os.stat(self.data).st_uid).pw_name}
        (self.data / "pg_ident.conf").write_text("".join(f'test "{user}" postgres\n' for user in users))

    def follow(self, other: Server) -> None:
        """Become a standby of it: a copy that is streamed to."""
        self._run("pg_basebackup", "-D", str(self.data), "-d", other.dsn("postgres"), "-R", "-c", "fast", "--no-sync")

    def _run(self, program: str, *arguments: str) -> None:
        self.data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            nobody = pwd.getpwnam(NOBODY)
            os.chown(self.data, nobody.pw_uid, nobody.pw_gid)
        with self._log.open("ab") as output:
            command = unprivileged([str(programs() / program), *arguments])
            subprocess.run(command, cwd="/", stdout=output, stderr=output, check=True)

    def start(self) -> None:
        command = unprivileged([str(programs() / "postgres"), "-D", str(self.data), *self._options])
        with self._log.open("ab") as output:
            self._process = subprocess.Popen(command, cwd="/", stdout=output, stderr=output)
        until = time.monotonic() + PATIENCE_S
        while not self.answers():
            if self._process.poll() is not None or time.monotonic() > until:
                raise RuntimeError(f"PostgreSQL did not start: {self._log.read_text()}")
            time.sleep(0.05)

    def end(self, how: signal.Signals = signal.SIGINT) -> None:
        """SIGINT: a fast shutdown, SIGQUIT: an immediate one, SIGKILL: as if its machine had gone."""
        if self._process is None:
            return
        self._process.send_signal(how)
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def promote(self) -> None:
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute("select pg_promote()")

    def database(self, prefix: str = "test") -> str:
        """A new database; SQLAlchemy's URL of it."""
        name = f"{prefix}_{uuid4().hex[:12]}"
        with psycopg.connect(self.dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return f"postgresql+psycopg://postgres@/{name}?host={self.socket}"

    def answers(self) -> bool:
        try:
            psycopg.connect(self.dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def dsn(self, name: str) -> str:
        """Of a database, for psycopg itself."""
        return f"host={self.socket} user=postgres dbname={name}"


@contextmanager
def server(folder: Path, *, durable: bool = False, **more: str) -> Iterator[Server]:
    """Start it, with its files in an empty folder. `durable`: as one would run it, else quick. `more`: settings."""
    with TemporaryDirectory(prefix="gpuyard-pg-") as socket:  # short, as a socket's path must be
        running = Server(folder / "data", socket, durable=durable, **more)
        running.initialize()
        yield from _while(running)


@contextmanager
def standby(folder: Path, primary: Server) -> Iterator[Server]:
    """One that follows another one, until it is promoted."""
    with TemporaryDirectory(prefix="gpuyard-pg-") as socket:
        running = Server(folder / "standby", socket, durable=True)
        running.follow(primary)
        yield from _while(running)


def _while(running: Server) -> Iterator[Server]:
    try:
        running.start()
        yield running
    finally:
        running.end()
