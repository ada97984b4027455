"""Runs ``gpuyard host scrub``: fetches orders from the portal, carries them out, and sends the results.

One order at a time, each in a process of its own: a reset that hangs in the kernel cannot be ended, only left behind.
"""

from __future__ import annotations

import json
import os
import re
import select
import signal
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any, Callable, Dict, Mapping, Optional, Protocol, Tuple
from urllib.parse import quote

from gpuyard.host import scrub_journal
from gpuyard.host.local_host import HostAccess, LocalHost
from gpuyard.host.portal_client import PortalAwayError, PortalReportClient
from gpuyard.host.preparation.wishes import full_address
from gpuyard.host.scrub import NotCleanError, group_of, link_widths, scrub
from gpuyard.host.scrub_journal import ScrubJournal
from gpuyard.host.units import scrub_unit
from gpuyard.host.watch_loop import keep_watching
from gpuyard.model.errors import BlockedError, GpuyardError, UsageError
from gpuyard.model.pci import ADDRESS
from gpuyard.model.scrub import ScrubOrder, ScrubOutcome, ScrubResult
from gpuyard.model.text import printable

SECONDS = 180.0
"""For one scrub. The kernel itself waits up to a minute for a function that does not come back."""
EVERY = 5.0
"""Seconds between two questions."""
ORDER_ID = re.compile(r"[0-9A-Za-z-]{1,64}")
MOST_ORDERS = 64
MOST_DESCRIPTORS = 1024
LOCK = "scrub"
"""Of the one unit that works through orders."""


@dataclass(frozen=True)
class ScrubOptions:
    """What the command line said."""

    root: str = "/"
    url: str = ""
    token_file: str = ""
    ca_file: Optional[str] = None
    host: str = ""
    """Name of the host in the site file; empty: its own."""
    once: str = ""
    """Scrub the group of this GPU now, by hand, and end."""
    json: bool = False
    unit: bool = False
    """Print the systemd unit that does it."""


Scrub = Callable[[ScrubOrder, Mapping[str, int]], ScrubResult]


class Asks(Protocol):
    """As PortalReportClient."""

    def post(self, path: str, document: Mapping[str, Any]) -> Dict[str, Any]:
        """Raises PortalRefusedError, PortalAwayError."""


def run(options: ScrubOptions) -> int:
    """Scrub by hand, or do what the portal asks for, for ever; the exit code. Raises GpuyardError where it cannot
    begin."""
    if options.unit:
        if not options.url:
            raise UsageError("say where the unit shall ask: --url URL")
        PortalReportClient(options.url, options.token_file)
        print(scrub_unit(options.url, options.host, options.ca_file or ""), end="")
        return 0
    if options.root != "/":
        raise UsageError("a reset is of this machine: --root is for what only looks")
    host = LocalHost()
    if options.once:
        return _by_hand(once(host, full_address(options.once)), options.json)
    if options.json:
        raise UsageError("--json prints one result: say --once ADDRESS too")
    if not options.url or not options.token_file:
        raise UsageError("say where to and by which right: --url URL --token-file FILE; or --once ADDRESS, by hand")
    name = options.host or (host.tree.read("proc/sys/kernel/hostname") or "").strip()
    unit = ScrubUnit(host, PortalReportClient(options.url, options.token_file, options.ca_file), name, by_order(host))
    with host.lock(LOCK):
        unit.start()
        keep_watching(unit.work, EVERY)
    return 0


def _by_hand(result: ScrubResult, json_wanted: bool) -> int:
    code = 0 if result.outcome is ScrubOutcome.CLEAN else BlockedError.exit_code
    if json_wanted:
        print(json.dumps({"event": "result", "verb": "scrub", "exit": code, **result.as_dict()}), flush=True)
        return code
    print("\n".join(map(printable, result.evidence)))
    took = f"{result.seconds:.1f} s, of which the reset took {result.reset_seconds:.1f} s"
    print(printable(f"{result.outcome.value}: {result.reason or ', '.join(result.functions)} ({took})"), flush=True)
    return code


def once(host: HostAccess, address: str, seconds: float = SECONDS) -> ScrubResult:
    """A scrub by hand. Raises GpuyardError when another gpuyard is changing the host."""
    with host.lock():
        return in_a_process(host, ScrubOrder("", address), {}, seconds)


class ScrubUnit:
    """Of one host. Only one may run there."""

    def __init__(self, host: HostAccess, portal: Asks, name: str, scrub: Scrub) -> None:
        """`name`: of the host, as the portal knows it."""
        self._host, self._portal, self._scrub = host, portal, scrub
        self._path = f"/v1/hosts/{quote(name, safe='')}/scrubs"

    def start(self) -> None:
        """After a start: what was begun before is known to nobody any more."""
        self._save(scrub_journal.load(self._host).interrupted())

    def work(self) -> None:
        """All that the portal has to do now. Raises PortalRefusedError, PortalAwayError, GpuyardError."""
        while self.step():
            pass

    def step(self) -> bool:
        """Say what came of the last order, and carry the next one out; whether there was one. Raises as `work`."""
        journal = scrub_journal.load(self._host)
        results = journal.results
        answer = self._portal.post(self._path, {"results": [result.as_dict() for result in results]})
        if results:
            journal = self._save(journal.taken(results))
        orders = _orders(answer)
        for order in orders[:1]:  # the portal tells of the next one when this one is done
            self._carry_out(journal, order)
        return bool(orders)

    def _carry_out(self, journal: ScrubJournal, order: ScrubOrder) -> None:
        try:
            widths = link_widths(self._host.tree, group_of(self._host.tree, order.address)[1])
        except NotCleanError:  # the scrub itself says so
            widths = {}
        journal = self._save(journal.begin(order, widths))
        result = self._scrub(order, {address: journal.widths[address] for address in widths})
        self._save(journal.end(result, widths))

    def _save(self, journal: ScrubJournal) -> ScrubJournal:
        scrub_journal.save(self._host, journal)
        return journal


def _orders(answer: Mapping[str, Any]) -> Tuple[ScrubOrder, ...]:
    """Raises PortalAwayError for what is no list of orders: nothing of it is done then."""
    rows = answer.get("orders")
    if not isinstance(rows, list) or len(rows) > MOST_ORDERS:
        raise PortalAwayError("the portal answers with something that is no list of orders")
    orders = []
    for row in rows:
        id, address = (row.get("id"), row.get("address")) if isinstance(row, dict) else (None, None)
        if not (isinstance(id, str) and ORDER_ID.fullmatch(id)):
            raise PortalAwayError("the portal answers with an order that cannot be read")
        if not (isinstance(address, str) and ADDRESS.fullmatch(address)):
            raise PortalAwayError("the portal answers with an order that cannot be read")
        orders.append(ScrubOrder(id, address))
    return tuple(orders)


def by_order(host: HostAccess) -> Scrub:
    """A scrub while no other gpuyard changes the host."""

    def carry_out(order: ScrubOrder, widths: Mapping[str, int]) -> ScrubResult:
        try:
            with host.lock():
                return in_a_process(host, order, widths)
        except GpuyardError as error:
            return ScrubResult(order.id, order.address, ScrubOutcome.BUSY, str(error))

    return carry_out


def in_a_process(
    host: HostAccess, order: ScrubOrder, widths: Mapping[str, int], seconds: float = SECONDS,
    scrub: Callable[..., ScrubResult] = scrub,
) -> ScrubResult:  # fmt: skip
    """Scrub in a child process, and leave it behind when it has not ended in time."""
    begin = time.monotonic()
    reader, writer = os.pipe()
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _child(reader, writer, lambda: scrub(host.tree, order.address, order.id, own_pid=os.getpid(), widths=widths))
    os.close(writer)
    with open(reader, "rb", buffering=0) as pipe:
        text = _all_of(pipe.fileno(), begin + seconds)
    took = time.monotonic() - begin
    if text is None:
        with suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        reason = f"the reset has not returned after {seconds:g} s: dmesg says more"
        return ScrubResult(order.id, order.address, ScrubOutcome.FAILED, reason, seconds=took)
    os.waitpid(child, 0)
    try:
        return replace(scrub_journal.result_of(json.loads(text)), seconds=took)
    except (ValueError, KeyError, TypeError):
        reason = "the process that did it has died: what came of it is not known"
        return ScrubResult(order.id, order.address, ScrubOutcome.UNKNOWN, reason, seconds=took)


def _child(reader: int, writer: int, work: Callable[[], ScrubResult]) -> None:
    """Never returns."""
    try:
        os.close(reader)
        # A child that is left behind must not keep the locks of its parent.
        os.closerange(3, writer)
        os.closerange(writer + 1, MOST_DESCRIPTORS)
        with open(writer, "wb") as pipe:
            pipe.write(json.dumps(work().as_dict()).encode())
    finally:
        os._exit(0)


def _all_of(descriptor: int, deadline: float) -> Optional[bytes]:
    """What comes out of a pipe until it is closed; None when it is not closed in time."""
    data = b""
    while True:
        ready, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return None
        part = os.read(descriptor, 65536)
        if not part:
            return data
        data += part
