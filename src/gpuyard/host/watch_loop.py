"""Runs ``gpuyard host watch``: sends a report of the host's GPUs to the portal every few seconds.

Nothing is kept on the host. A report that did not arrive is not sent again, because the next one says what is true
then; only lines of the kernel's log wait until they are sent.
"""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from datetime import datetime, timezone
from typing import Callable, Optional, Tuple
from urllib.parse import quote

from gpuyard.host import watch
from gpuyard.host.checks.software import QEMU_PROGRAMS, qemu_version, text_of
from gpuyard.host.kernel_log import MOST_LINES, KernelLog, open_log
from gpuyard.host.portal_client import PortalAwayError, PortalRefusedError, PortalReportClient
from gpuyard.host.scan import DEVICES
from gpuyard.host.tree import Tree, open_tree
from gpuyard.host.units import watch_unit
from gpuyard.model.backoff import backoff
from gpuyard.model.errors import GpuyardError, UsageError
from gpuyard.model.host_report import HostReport, LogLine

EVERY = 10.0
"""Seconds between looks."""
SHORTEST, LONGEST = 1.0, 3600.0
LONGEST_WAIT = 300.0
"""Seconds between tries while the portal does not take what is sent."""
SOFTWARE_EVERY = 600.0
"""Seconds between looks at which QEMU there is: the list of packages is long."""
PERIOD = re.compile(r"([0-9]{1,5}(?:\.[0-9]{1,3})?) ?(s|min|)", re.ASCII)
VERSION = re.compile(r"version ([0-9]{1,9}(?:\.[0-9]{1,9}){0,4})", re.ASCII)


@dataclass(frozen=True)
class WatchOptions:
    """What the command line said."""

    root: str = "/"
    url: str = ""
    token_file: str = ""
    ca_file: Optional[str] = None
    host: str = ""
    """Name of the host in the site file; empty: its own."""
    every: float = EVERY
    once: bool = False
    json: bool = False
    """Print the look instead of sending it."""
    unit: bool = False
    """Print the systemd unit that does all this."""


def seconds(text: str) -> float:
    """``10s``, ``2 min`` or a number. Raises UsageError."""
    match = PERIOD.fullmatch(text.strip())
    value = float(match[1]) * (60 if match[2] == "min" else 1) if match else 0.0
    if not SHORTEST <= value <= LONGEST:
        raise UsageError(f"--every {text}: write a time from {SHORTEST:g} s to {LONGEST:g} s, as in 10s")
    return value


class Watcher:
    """Makes one look after the other."""

    def __init__(self, tree: Tree, log: KernelLog, qemu: Callable[[], str], host: str = "") -> None:
        self._tree, self._log, self._qemu, self._host = tree, log, qemu, host
        self._before: Optional[HostReport] = None
        self._waiting: Tuple[LogLine, ...] = ()

    def look(self, number: int, time: str) -> HostReport:
        """`number` must rise from call to call. Lines of the kernel's log come again until `arrived` was called."""
        names = watch.names(self._tree, watch.watched(self._tree, self._before))
        self._waiting = (*self._waiting, *self._log.lines(names))[-MOST_LINES:]
        report = watch.look(
            self._tree, self._before,
            number=number, time=time, host=self._host, qemu=self._qemu(), log=self._waiting,
        )  # fmt: skip
        self._before = replace(report, log=())
        return report

    def arrived(self) -> None:
        """The last look was taken."""
        self._waiting = ()


def run(options: WatchOptions) -> int:
    """Look and send, for ever or once; the exit code. Raises GpuyardError where it cannot begin."""
    if options.unit:
        if not options.url:
            raise UsageError("say where the unit shall send to: --url URL")
        PortalReportClient(options.url, options.token_file)
        print(watch_unit(options.url, options.host, options.ca_file or "", f"{options.every:g}s"), end="")
        return 0
    tree = open_tree(options.root)
    if not tree.names(DEVICES):
        raise UsageError(f"there is no PCI bus below {options.root}: {DEVICES} is empty")
    if options.json and not options.once:
        raise UsageError("--json prints one look: say --once too")
    is_local = options.root == "/"
    log = open_log() if is_local else KernelLog(lambda: None)
    watcher = Watcher(tree, log, Qemu(tree, ask=is_local).version, options.host)
    if options.json:
        document = {"event": "result", "verb": "watch", "exit": 0, "look": watcher.look(_number(), _now()).as_dict()}
        print(json.dumps(document), flush=True)
        return 0
    if not options.url or not options.token_file:
        raise UsageError("say where to and by which right: --url URL --token-file FILE")
    client = PortalReportClient(options.url, options.token_file, options.ca_file)
    if options.once:
        _send(client, watcher)
        return 0
    keep_watching(lambda: _send(client, watcher), options.every)
    return 0


def keep_watching(
    send: Callable[[], None],
    every: float,
    sleep: Callable[[float], None] = time.sleep,
    clock: Callable[[], float] = time.monotonic,
    chance: Callable[[], float] = random.random,
) -> None:
    """Send until somebody ends it, however often it fails: the waits grow, and differ from host to host, so that not
    all come back to a portal at once."""
    failures, last_error = 0, ""
    while True:
        began = clock()
        try:
            send()
        except GpuyardError as error:
            failures += 1
            if str(error) != last_error:
                last_error = str(error)
                print(f"gpuyard-host: {last_error}", file=sys.stderr, flush=True)
            retry_after = error.wait if isinstance(error, PortalAwayError) else 0.0
            steep = 4 if isinstance(error, PortalRefusedError) else 2
            wait = backoff(every, failures + 1, LONGEST_WAIT, steep) * (0.5 + chance() / 2)
            sleep(max(wait, retry_after, every / 2))
            continue
        if last_error:
            print("gpuyard-host: the portal takes it again", file=sys.stderr, flush=True)
        failures, last_error = 0, ""
        sleep(max(every - (clock() - began), SHORTEST / 2))


def _send(client: PortalReportClient, watcher: Watcher) -> None:
    report = watcher.look(_number(), _now())
    client.post(f"/v1/hosts/{quote(report.host, safe='')}/looks", report.as_dict())
    watcher.arrived()


class Qemu:
    """Which QEMU the host has: by its list of packages, else by asking it, which is done once."""

    def __init__(self, tree: Tree, ask: bool, clock: Callable[[], float] = time.monotonic) -> None:
        """`ask`: whether programs of the tree can be run."""
        self._tree, self._ask, self._clock = tree, ask, clock
        self._known, self._until = "", float("-inf")
        self._answer: Optional[str] = None

    def version(self) -> str:
        if self._clock() >= self._until:
            self._until = self._clock() + SOFTWARE_EVERY
            version = qemu_version(self._tree)
            self._known = text_of(version) if version else self._asked()
        return self._known

    def _asked(self) -> str:
        if self._answer is None:
            programs = [f"/{folder}/{name}" for folder, name in QEMU_PROGRAMS if name in self._tree.names(folder)]
            self._answer = _version_of(programs[0]) if programs and self._ask else ""
        return self._answer


def _version_of(program: str) -> str:
    try:
        done = subprocess.run([program, "--version"], stdin=subprocess.DEVNULL, capture_output=True, timeout=10)
    except (OSError, subprocess.SubprocessError):
        return ""
    match = VERSION.search(done.stdout[:1000].decode("utf-8", "replace"))
    return match[1] if match else ""


def _number() -> int:
    """Milliseconds since the boot: it rises, also when the watch is started anew, and needs no file for that."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
