"""Portals as processes of their own on one database, and who has which turn of them."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from gpuyard_lab.clients import ADMIN_CLOUD
from gpuyard_lab.http import call

PATIENCE = 90.0
"""Seconds, on a busy machine."""


def until(true: Callable[[], bool], pause: float = 0.1) -> None:
    """Ask again and again."""
    deadline = monotonic() + PATIENCE
    while not true():
        assert monotonic() < deadline, "it did not happen"
        sleep(pause)


class Portal:
    """``gpuyard serve``; it can be ended and started again, at the same port."""

    def __init__(self, site: Path, clouds: Path, database: str, log: Path, cloud: str = ADMIN_CLOUD) -> None:
        self._site, self.log, self._cloud = site, log, cloud
        self._environment = {**os.environ, "OS_CLIENT_CONFIG_FILE": str(clouds), "GPUYARD_DATABASE": database}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port: int = probe.getsockname()[1]
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Does not wait until it serves."""
        command = [sys.executable, "-m", "gpuyard.cli.main", "serve", "--os-cloud", self._cloud]
        command += ["--port", str(self.port), "--site", str(self._site)]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(command, env=self._environment, stdout=log, stderr=log)

    def signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)
        if number is signal.SIGKILL:
            self.process.wait()
            self.process = None

    def end(self) -> None:
        if self.process is None:
            return
        self.process.send_signal(signal.SIGCONT)
        self.process.terminate()
        try:
            self.process.wait(60)
        finally:
            self.process.kill()
            self.process = None

    def ask(
        self, method: str, path: str, body: bytes = b"", headers: dict[str, str] | None = None, timeout: float = 60
    ) -> tuple[int, dict[str, str], bytes]:
        """Status, headers with names in lower case, and what it said. Raises OSError when nobody answers."""
        line = HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            line.request(method, path, body or None, headers or {})
            answer = line.getresponse()
            return answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read()
        except HTTPException as error:  # it was killed in the middle
            raise ConnectionError(str(error)) from None
        finally:
            line.close()

    def is_ready(self) -> bool:
        try:
            return self.ask("GET", "/readyz")[0] == 200
        except OSError:
            return False

    def keeps(self, turn: str = "bookings") -> bool:
        """Whether it says so; one that does not answer at once says nothing."""
        try:
            status, _, text = self.ask("GET", "/metrics", timeout=2)
        except OSError:
            return False
        return status == 200 and re.search(rf'^gpuyard_turn{{turn="{turn}"}} 1.0$', text.decode(), re.M) is not None


@contextmanager
def portals(
    number: int, folder: Path, clouds: Path, database: str, cloud: str = ADMIN_CLOUD
) -> Iterator[Sequence[Portal]]:
    """So many, that are ready. `folder` has site.yaml; `cloud` is one of the file `clouds`."""
    made = [Portal(folder / "site.yaml", clouds, database, folder / f"portal-{n}.log", cloud) for n in range(number)]
    try:
        for portal in made:
            portal.start()
        for portal in made:
            until(portal.is_ready)
        yield made
    finally:
        for portal in made:
            portal.end()


def leader_of(portals: Sequence[Portal]) -> Portal:
    """The one that has the turn, as soon as one has it."""
    leaders: list[Portal] = []

    def somebody() -> bool:
        leaders[:] = [portal for portal in portals if portal.process is not None and portal.keeps()]
        return bool(leaders)

    until(somebody)
    return leaders[0]


def token_of(keystone: str, user: str, password: str, project: str) -> str:
    """A new token of somebody's."""
    domain: dict[str, Any] = {"id": "default"}
    who = {"name": user, "domain": domain, "password": password}
    identity = {"methods": ["password"], "password": {"user": who}}
    scope = {"project": {"name": project, "domain": domain}}
    token = call("POST", f"{keystone}/auth/tokens", {"auth": {"identity": identity, "scope": scope}}).token
    assert token
    return token
