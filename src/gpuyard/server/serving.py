"""The process behind ``gpuyard serve``: the portal of one site file, and the control loops of its parts
(site_parts.py).

When the site file changes, a new process object is built beside the running one and takes over the socket; if it
cannot be built, the change is refused and the old one goes on.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from urllib.parse import urlsplit

from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.capacity.read import CapacityReader
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.health.web.host_checks import RecordedChecks
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.inventory.controllers.sync import sync_loop
from gpuyard.model.text import counted
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.personal import KeystonePersonalClouds
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.provisioning.read import read_objects
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.runtime.control_loops import Driver, Loop
from gpuyard.server.app import create_app
from gpuyard.server.server import bind, refuse_no_gateway, refuse_public, run
from gpuyard.server.site_parts import PartOptions, open_parts
from gpuyard.server.site_watch import SiteWatch
from gpuyard.server.tallies import Tallies
from gpuyard.site.booking_rules import SiteBooking
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import LoadedSite
from gpuyard.site.plan import plan_site
from gpuyard.web.notify import Manager
from gpuyard.web.security import LOOPBACK_NAMES
from gpuyard.web.settings import OthersShown, PortalSettings
from gpuyard.web.store import PortalStore

WATCH_PERIOD = 5.0
"""Seconds between checks of the site file."""
WATCH_REST = 20.0
"""Seconds of rest after a check. One takes long only while a change waits for an apply, and must not keep the cloud
busy."""


@dataclass(frozen=True)
class ServeOptions:
    """The operator's options besides the site file."""

    host: str
    port: int
    period: float
    """Seconds between observations of the cloud."""
    database: str
    """URL of the database; empty is the site's own in the state folder."""
    public: bool
    settings: PortalSettings
    upgrade: bool = True
    """Whether to upgrade the tables of an older release; otherwise they are refused."""


def answered_names(options: ServeOptions) -> list[str]:
    """Return the names in Host headers that the portal answers to: this machine's and its gateway's, or all."""
    name = urlsplit(options.settings.public_url).hostname
    return ["*"] if options.public else [*LOOPBACK_NAMES, *([name] if name else [])]


def with_rules_of(booking: SiteBooking | None, settings: PortalSettings) -> PortalSettings:
    """Return the settings with those that the site file has, which may change while the portal is served."""
    if booking is None:
        return replace(
            settings, anonymous_details=False, public_status=True, keeps_tokens=False, others=OthersShown.NAMES
        )
    return replace(
        settings,
        anonymous_details=booking.anonymous_details,
        public_status=booking.public_status,
        keeps_tokens=booking.start,
        others=OthersShown(booking.others),
    )


class Process:
    """The parts, loops and portal of one site file. Raises GpuyardError when they cannot be served."""

    def __init__(
        self,
        loaded: LoadedSite,
        api: CloudApi,
        options: ServeOptions,
        inventory: InventoryCache,
        manager: Manager | None = None,
    ) -> None:
        booked = loaded.site.booking is not None
        options = replace(options, settings=with_rules_of(loaded.site.booking, options.settings))
        if not options.public:
            refuse_public(options.host, login=booked)
        if booked:
            refuse_no_gateway(options.settings)
        self._loaded, self._api, self._options, self._inventory = loaded, api, options, inventory
        self._manager = manager or Manager()
        self._driver, self._ends = Driver(), threading.Event()
        self._next: Process | None = None
        part_options = PartOptions(options.database, options.settings.public_url, options.upgrade)
        self._parts = open_parts(loaded.compiled, api, part_options, os.environ, _now) if booked else None
        for loop in self._parts.loops if self._parts else ():
            self._driver.register(loop)
        self._driver.register(self._sync_loop())
        self._watch = SiteWatch(loaded, self._left_to_apply, self._take_over)
        self._watching = self._driver.register(
            Loop("site", "Reads the site file again when it has changed.", WATCH_PERIOD, self._look, WATCH_REST)
        )

    def _sync_loop(self) -> Loop:
        """The loop that observes the cloud for the inventory, which pages and API show."""
        compiled, parts = self._loaded.compiled, self._parts
        taker = SnapshotTaker(self._api, compiled.gpus, compiled.flavors, parts.seated if parts else None)
        words = (lambda: parts.bookings.words) if parts else None
        return sync_loop(taker, compiled, self._inventory, self._options.period, _now, words)

    def _sources(self) -> Sources:
        """What the portal shows."""
        loaded = self._loaded
        sources = Sources(
            site_name=loaded.site.site, settings=self._options.settings, inventory=self._inventory,
            driver=self._driver, gpus=loaded.compiled.gpus, flavors=loaded.compiled.flavors,
            bootable=CapacityService(
                CapacityReader(self._api, loaded), _now, self._parts.ledger if self._parts else None
            ),
            facts={name: inventory.facts for name, inventory in loaded.inventories.items()},
            checks=RecordedChecks(loaded).of,
        )  # fmt: skip
        if self._parts is None:
            return sources
        parts, runners = self._parts, self._parts.runners
        return replace(
            sources, ledger=parts.ledger, sessions=PortalStore(parts.ledger.database), people=KeystonePeople(self._api),
            clouds=KeystonePersonalClouds(self._api) if self._options.settings.keeps_tokens else None,
            runners=RunnerSources(
                runners.site.runners, runners.ports.store, runners.controller.overview,
                lambda: runners.webhook_stored("a webhook"),
            ) if runners else None,
            health=parts.health.services if parts.health else None,
            agents=parts.health.agents.service if parts.health and parts.health.agents else None,
            accounting=parts.accounting, history=parts.accounting.history,
        )  # fmt: skip

    def run(self, listener: socket.socket) -> Process | None:
        """Serve until a signal ends it, or another process takes over, which is returned."""
        options, gpus = self._options, self._loaded.compiled.gpus
        hosts = counted(len({gpu.host for gpu in gpus}), "host")
        about = f"{self._loaded.site.site}, {counted(len(gpus), 'GPU')} on {hosts}"
        try:
            tallies = self._parts.tallies if self._parts else Tallies(cloud=self._api.counted)
            app = create_app(self._sources(), answered_names(options), tallies)
            replaced = run(app, self._driver, listener, about, self._ends, self._manager)
        finally:
            self.close()
        if self._next is not None and not replaced:
            self._next.close()
        return self._next if replaced else None

    def close(self) -> None:
        if self._parts is not None:
            self._parts.close()

    def read_again(self) -> None:
        """Have the site file read again soon, even while changes are left to apply to the cloud."""
        self._manager.reloading()
        self._watch.forced = True
        self._watching.wake("SIGHUP")

    def _look(self) -> None:
        """Whoever asked for it hears that it is done, also when the file was refused: the log says so."""
        forced = self._watch.forced
        try:
            self._watch.look()
        finally:
            if forced:
                self._manager.ready()

    def _left_to_apply(self, compiled: CompiledSite) -> list[str]:
        plan = plan_site(compiled, read_objects(self._api, compiled))
        return [*map(str, plan.steps), *plan.refusals]

    def _take_over(self, loaded: LoadedSite) -> None:
        self._next = Process(loaded, self._api, self._options, self._inventory, self._manager)
        self._ends.set()


def serve(options: ServeOptions, loaded: LoadedSite, api: CloudApi) -> None:
    """Serve the site until SIGINT or SIGTERM; SIGHUP reads the site file again."""
    first = Process(loaded, api, options, InventoryCache())
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
