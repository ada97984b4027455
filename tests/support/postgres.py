"""A PostgreSQL of our own: the embedded server, for as long as a block lasts."""

from __future__ import annotations

import getpass
import os
import pwd
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from uuid import uuid4

import psycopg
from psycopg import sql

from gpuyard.lab.postgres import NOBODY, programs, unprivileged

PATIENCE_S = 60
QUICK = {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
"""Data does not survive a crash of the machine."""


class Server:
    """A running server."""

    def __init__(self, socket: str) -> None:
        self._socket = socket

    def database(self, prefix: str = "test") -> str:
        """A new database; SQLAlchemy's URL of it."""
        name = f"{prefix}_{uuid4().hex[:12]}"
        with psycopg.connect(self._dsn("postgres"), autocommit=True) as connection:
            connection.execute(sql.SQL("create database {}").format(sql.Identifier(name)))
        return f"postgresql+psycopg://postgres@/{name}?host={self._socket}"

    def answers(self) -> bool:
        try:
            psycopg.connect(self._dsn("postgres")).close()
        except psycopg.OperationalError:
            return False
        return True

    def _dsn(self, name: str) -> str:
        return f"host={self._socket} user=postgres dbname={name}"


@contextmanager
def server(folder: Path, *, durable: bool = False) -> Iterator[Server]:
    """Start it, with its files in an empty folder. `durable`: as somebody would run it, else quick."""
    with TemporaryDirectory(prefix="gpuyard-pg-") as socket:  # short, as a socket's path must be
        yield from _serve(folder, socket, durable)


def _serve(folder: Path, socket: str, durable: bool) -> Iterator[Server]:
    data = folder / "data"
    data.mkdir(mode=0o700)
    if os.geteuid() == 0:
        nobody = pwd.getpwnam(NOBODY)
        os.chown(data, nobody.pw_uid, nobody.pw_gid)
    log = folder / "log"
    with log.open("wb") as output:
        flags = ["--auth=peer", "--username=postgres", "--no-sync", "--locale=C.UTF-8", "--encoding=UTF8"]
        initdb = unprivileged([str(programs() / "initdb"), *flags, "-D", str(data)])
        subprocess.run(initdb, cwd="/", stdout=output, stderr=output, check=True)
        (data / "pg_hba.conf").write_text("local all postgres peer map=test\n")
        (data / "pg_ident.conf").write_text(f'test "{getpass.getuser()}" postgres\n')
        settings = {"listen_addresses": "", "unix_socket_directories": socket, "max_connections": "400"}
        settings |= {"shared_buffers": "128MB", "dynamic_shared_memory_type": "posix", "io_method": "sync"}
        settings |= {} if durable else QUICK
        options = [f"--{name}={value}" for name, value in settings.items()]
        command = unprivileged([str(programs() / "postgres"), "-D", str(data), *options])
        process = subprocess.Popen(command, cwd="/", stdout=output, stderr=output)
    try:
        running = Server(socket)
        _wait(running, process, log)
        yield running
    finally:
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _wait(running: Server, process: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + PATIENCE_S
    while not running.answers():
        if process.poll() is not None or time.monotonic() > until:
            raise RuntimeError(f"PostgreSQL did not start: {log.read_text()}")
        time.sleep(0.05)
