"""Plays the guests of the lab: each server with user data of gpuyard's, as long as its folder is there."""

from __future__ import annotations

import json
from contextlib import suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from gpuyard_lab.acceptance_guest import AcceptGuest, places_of
from gpuyard_lab.github.faults import Faults
from gpuyard_lab.github.guest import BOOT, Answer, Guest, UserDataUnreadError
from gpuyard_lab.machine import CONSOLE, OFF, PLACE, USER_DATA

LOOK_S = 0.1
HOSTS = "hosts"
TIMEOUT_S = 5.0
MOST_CONSOLE = 8 * 1024 * 1024
_OPENER = build_opener(ProxyHandler({}))


def ask_over_http(method: str, url: str, token: str, body: dict[str, Any] | None = None) -> Answer:
    """Send a request, as a ``github.guest.Ask``."""
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    try:
        with _OPENER.open(Request(url, data, headers, method=method), timeout=TIMEOUT_S) as answer:
            text = answer.read()
            return answer.status, json.loads(text) if text else {}
    except HTTPError as error:
        with error:
            return (0 if error.code >= 500 else error.code), {}
    except Exception:  # a machine is not ended by what its network does
        return 0, {}


class Guests:
    """Plays the guests of all servers of a folder."""

    def __init__(
        self, folder: Path, faults: Faults | None = None, boot: timedelta = BOOT, hosts: Path | None = None
    ) -> None:
        """`hosts`: the folder with the trees of the lab's hosts; beside `folder` when left out."""
        self.folder, self.faults, self.boot = folder, faults or Faults(), boot
        self._hosts = hosts or folder.with_name(HOSTS)
        self._guests: dict[str, Guest | AcceptGuest | None] = {}
        """By id of the server; None: nobody's that is known here, or over."""

    def step(self, now: datetime) -> None:
        """Take up servers that are new, forget those that are gone, move the others on."""
        server_ids = {entry.name for entry in self.folder.iterdir() if (entry / USER_DATA).exists()}
        for gone in self._guests.keys() - server_ids:
            del self._guests[gone]
        for new in sorted(server_ids - self._guests.keys()):
            self._guests[new] = self._taken_up(new, now)
        for id, guest in list(self._guests.items()):
            if guest is not None:
                guest.step(now)
                if guest.off:
                    self._guests[id] = None
                    self._touch_off(id)

    def _taken_up(self, id: str, now: datetime) -> Guest | AcceptGuest | None:
        folder = self.folder / id
        if (folder / OFF).exists():
            return None

        def write(text: str) -> None:
            # The folder goes when the server is deleted.
            with suppress(FileNotFoundError), open(folder / CONSOLE, "ab") as console:
                if console.tell() < MOST_CONSOLE:
                    console.write(text.encode())

        try:
            user_data = (folder / USER_DATA).read_text(encoding="utf-8")
            with suppress(UserDataUnreadError):
                return Guest(user_data, now, ask_over_http, write, self.faults, self.boot)
            place = json.loads((folder / PLACE).read_text(encoding="utf-8"))
            return AcceptGuest(user_data, now, places_of(place, self._hosts), write, self.boot)
        except (UserDataUnreadError, FileNotFoundError, UnicodeDecodeError, ValueError):
            return None

    def _touch_off(self, id: str) -> None:
        with suppress(FileNotFoundError):
            (self.folder / id / OFF).touch()
