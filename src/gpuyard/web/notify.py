"""Notifies the service manager that the portal is ready, reloads its site file, is alive or stops (sd_notify(3))."""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Mapping

LOG = logging.getLogger(__name__)


class Manager:
    """systemd, where it has started this process and asks for notifications; otherwise nothing is sent."""

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        variables = os.environ if environment is None else environment
        self._address = variables.get("NOTIFY_SOCKET", "")
        mine = variables.get("WATCHDOG_PID", "") in ("", str(os.getpid()))
        microseconds = variables.get("WATCHDOG_USEC", "")
        self.watchdog = int(microseconds) / 1e6 if self._address and mine and microseconds.isdecimal() else 0.0
        """Seconds after which it takes this process for dead if it has not heard `alive`; 0: it does not wait for
        that."""

    def ready(self, words: str = "") -> None:
        """Notify that the portal serves; also after `reloading`."""
        self._tell("READY=1", *([f"STATUS={words}"] if words else []))

    def reloading(self) -> None:
        self._tell("RELOADING=1", f"MONOTONIC_USEC={time.monotonic_ns() // 1000}")

    def stopping(self) -> None:
        self._tell("STOPPING=1", "STATUS=finishes what it has begun")

    def alive(self) -> None:
        self._tell("WATCHDOG=1")

    def _tell(self, *lines: str) -> None:
        if not self._address:
            return
        # A name that begins with @ is one in the abstract namespace, which has a NUL there.
        address = "\0" + self._address[1:] if self._address.startswith("@") else self._address
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as notify_socket:
                notify_socket.settimeout(1)
                notify_socket.sendto("\n".join(lines).encode(), address)
        except OSError as error:
            LOG.warning("the service manager at %s cannot be told %s: %s", self._address, lines[0], error)
