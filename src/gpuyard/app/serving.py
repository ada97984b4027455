"""The process behind ``gpuyard serve``: the portal, and the loops that keep bookings and cloud together.

All of it follows from the site file. When that changes, everything is made anew beside what runs, and takes over the
socket; what cannot be made is refused, and the old goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

from gpuyard.app.site_watch import SiteWatch
from gpuyard.cloud.api import CloudApi
from gpuyard.cloud.observe.objects import read_objects
from gpuyard.cloud.observe.snapshot import SnapshotTaker
from gpuyard.cloud.people import KeystonePeople
from gpuyard.keeper.bookings import BookingsKeeper, bookings_loop
from gpuyard.keeper.driver import Driver, Loop
from gpuyard.keeper.messages import message_loops
from gpuyard.keeper.runner_loops import Runners, open_runners
from gpuyard.keeper.site_ledger import default_database, open_ledger
from gpuyard.keeper.sync import sync_loop
from gpuyard.keeper.yard import Yard
from gpuyard.ledger.ledger import Ledger
from gpuyard.portal.server import bind, refuse_public, run
from gpuyard.portal.settings import PortalSettings
from gpuyard.portal.sources import RunnerSources
from gpuyard.portal.store import PortalStore
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import LoadedSite
from gpuyard.site.plan import plan_site

BOOKINGS_PERIOD = 5.0
"""Seconds between looks at bookings; a change wakes the loop at once."""
WATCH_PERIOD = 5.0
"""Seconds between looks at the site file."""
WATCH_REST = 20.0
"""A look takes long only while a change waits for an apply, and then it shall not keep the cloud busy."""


@dataclass(frozen=True)
class ServeOptions:
    """What the operator says besides the site file."""

    host: str
    port: int
    period: float
    """Seconds between looks at the cloud."""
    database: str
    """URL; empty is the site's own in the state folder."""
    public: bool
    settings: PortalSettings


class Process:
    """What is made of one site file. Raises GpuyardError when it cannot be served."""

    def __init__(self, loaded: LoadedSite, api: CloudApi, options: ServeOptions, yard: Yard) -> None:
        booked = loaded.site.booking is not None
        if not options.public:
            refuse_public(options.host, login=booked)
        self._loaded, self._api, self._options, self._yard = loaded, api, options, yard
        self._driver, self._ends = Driver(), threading.Event()
        self._ledger: Ledger | None = None
        self._runners: Runners | None = None
        self._next: Process | None = None
        try:
            keeper = self._keep_bookings() if booked else None
            self._keep_runners()
        except BaseException:
            self.close()
            raise
        taker = SnapshotTaker(api, loaded.compiled.gpus, loaded.compiled.flavors)
        words = (lambda: keeper.words) if keeper else None
        self._driver.register(sync_loop(taker, loaded.compiled, yard, options.period, _now, words))
        self._watch = SiteWatch(loaded, self._left_to_apply, self._take_over)
        self._watching = self._driver.register(
            Loop("site", "Reads the site file again when it has changed.", WATCH_PERIOD, self._watch.look, WATCH_REST)
        )

    def _keep_bookings(self) -> BookingsKeeper:
        """The ledger of a site that has bookings, and its loops."""
        compiled, options = self._loaded.compiled, self._options
        database = options.database or default_database(compiled.site.site, os.environ)
        ledger = self._ledger = open_ledger(compiled, database, _now)
        taker = SnapshotTaker(self._api, compiled.gpus, compiled.flavors)
        keeper = BookingsKeeper(self._api, compiled, ledger, taker, _now)
        loop = self._driver.register(bookings_loop(keeper, BOOKINGS_PERIOD))
        ledger.upkeep.on_change(lambda: loop.wake("a booking changed"))
        for messages in message_loops(ledger, compiled.site, os.environ, _now, portal=options.settings.public_url):
            self._driver.register(messages)
        return keeper

    def _keep_runners(self) -> None:
        """GitHub's jobs get servers, where the site has runners."""
        compiled, ledger = self._loaded.compiled, self._ledger
        if compiled.site.runners is None or ledger is None:
            return
        runners = self._runners = open_runners(
            compiled, self._api, ledger, _now, portal=self._options.settings.public_url
        )
        for loop in runners.loops():
            self._driver.register(loop)

    def _runner_sources(self) -> RunnerSources | None:
        runners = self._runners
        if runners is None:
            return None
        return RunnerSources(
            runners.site.runners, runners.doors.store, runners.keeper.yard, lambda: runners.wake_intake()
        )

    def run(self, listener: socket.socket) -> Process | None:
        """Serve until a signal ends it, or another process takes over, which is the answer."""
        options, ledger = self._options, self._ledger
        name = urlsplit(options.settings.public_url).hostname
        try:
            replaced = run(
                self._loaded, self._yard, self._driver, options.host, options.port,
                public=options.public, names=[name] if name else [], ledger=ledger,
                store=PortalStore(ledger.database) if ledger else None,
                people=KeystonePeople(self._api) if ledger else None,
                settings=options.settings, listener=listener, ends=self._ends, runners=self._runner_sources(),
            )  # fmt: skip
        finally:
            self.close()
        if self._next is not None and not replaced:
            self._next.close()
        return self._next if replaced else None

    def close(self) -> None:
        if self._runners is not None:
            self._runners.close()
        if self._ledger is not None:
            self._ledger.close()

    def read_again(self) -> None:
        """Soon, whatever the cloud is like."""
        self._watch.forced = True
        self._watching.wake("SIGHUP")

    def _left_to_apply(self, compiled: CompiledSite) -> list[str]:
        plan = plan_site(compiled, read_objects(self._api, compiled))
        return [*map(str, plan.steps), *plan.refusals]

    def _take_over(self, loaded: LoadedSite) -> None:
        self._next = Process(loaded, self._api, self._options, self._yard)
        self._ends.set()


def serve(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> None:
    """Serve the site until SIGINT or SIGTERM; SIGHUP reads the site file again."""
    first = Process(loaded, api, options, Yard())
    try:
        listener = bind(options.host, options.port)
    except BaseException:
        first.close()
        raise
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # while one takes over from another; each has its own
    current: Process | None = first
    with listener:
        while current is not None:
            signal.signal(signal.SIGHUP, partial(_hang_up, current))
            current = current.run(listener)


def _hang_up(process: Process, *_: object) -> None:
    process.read_again()


def _now() -> datetime:
    return datetime.now(UTC)
