"""The process behind ``gpuyard serve``: the portal, and the loops that keep bookings and cloud in step.

All of it follows from the site file. When that changes, a new process object is built beside the running one, and
takes over the socket; if it cannot be built, the change is refused and the old one goes on.
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

from gpuyard.bookings.controllers.bookings import BookingController, bookings_loop
from gpuyard.bookings.controllers.enforcement_service import open_enforcement
from gpuyard.bookings.controllers.site_ledger import database_url, open_ledger
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.capacity.read import CapacityReader
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.health.controllers.acceptance import acceptance_loop, open_acceptance
from gpuyard.health.controllers.agent_controller import AgentController, agents_loop, open_agents
from gpuyard.health.controllers.health import Watched, open_health
from gpuyard.health.web.host_checks import RecordedChecks
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.inventory.controllers.sync import sync_loop
from gpuyard.model.text import counted
from gpuyard.notifications.delivery import message_loops
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.people import KeystonePeople
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.openstack.units import Seated
from gpuyard.provisioning.read import read_objects
from gpuyard.runners.controllers.runner_loops import Runners, open_runners
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.runtime.control_loops import Driver, Loop
from gpuyard.runtime.leader_roles import BOOKINGS, RUNNERS
from gpuyard.server.app import create_app
from gpuyard.server.database_upkeep import refuse_old_tables
from gpuyard.server.server import bind, refuse_no_gateway, refuse_public, run
from gpuyard.server.site_watch import SiteWatch
from gpuyard.server.tallies import Tallies
from gpuyard.site.compile import CompiledSite
from gpuyard.site.load import LoadedSite
from gpuyard.site.plan import plan_site
from gpuyard.usage.controllers.accounting import AccountingService, accounting_loop
from gpuyard.usage.controllers.history import history_loop, open_history
from gpuyard.web.notify import Manager
from gpuyard.web.security import LOOPBACK_NAMES
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore

BOOKINGS_PERIOD = 5.0
"""Seconds between runs of the loop of bookings; a change wakes it at once."""
HEALTH_PERIOD = 5.0
"""Seconds between runs of the loops of health; an observation wakes them at once."""
HISTORY_PERIOD = 5.0
"""Seconds between recordings of what the loop of bookings has observed."""
ACCEPTANCE_PERIOD = 5.0
"""Seconds between runs of the loop of acceptance; a request wakes it at once."""
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


class Process:
    """The ledger, loops and portal of one site file. Raises GpuyardError when they cannot be served."""

    def __init__(
        self,
        loaded: LoadedSite,
        api: CloudApi,
        options: ServeOptions,
        inventory: InventoryCache,
        manager: Manager | None = None,
    ) -> None:
        booked = loaded.site.booking is not None
        if not options.public:
            refuse_public(options.host, login=booked)
        if booked:
            refuse_no_gateway(options.settings)
        self._loaded, self._api, self._options, self._inventory = loaded, api, options, inventory
        self._manager = manager or Manager()
        self._driver, self._ends = Driver(), threading.Event()
        self._ledger: Ledger | None = None
        self._runners: Runners | None = None
        self._health: Watched | None = None
        self._agents: AgentController | None = None
        self._accounting: AccountingService | None = None
        self._next: Process | None = None
        self._tallies = Tallies(cloud=api.counted)
        self._seated = Seated()
        try:
            controller = self._keep_bookings() if booked else None
            self._keep_runners()
        except BaseException:
            self.close()
            raise
        taker = SnapshotTaker(api, loaded.compiled.gpus, loaded.compiled.flavors, self._seated)
        words = (lambda: controller.words) if controller else None
        self._driver.register(sync_loop(taker, loaded.compiled, inventory, options.period, _now, words))
        self._watch = SiteWatch(loaded, self._left_to_apply, self._take_over)
        self._watching = self._driver.register(
            Loop("site", "Reads the site file again when it has changed.", WATCH_PERIOD, self._look, WATCH_REST)
        )

    def _keep_bookings(self) -> BookingController:
        """The ledger of a site that has bookings, and its loops."""
        compiled, options = self._loaded.compiled, self._options
        database = database_url(options.database, compiled.site.site, os.environ)
        if not options.upgrade:
            refuse_old_tables(database)
        ledger = self._ledger = open_ledger(compiled, database, _now)
        taker = SnapshotTaker(self._api, compiled.gpus, compiled.flavors, self._seated)
        rules = compiled.site.health
        health = self._health = open_health(compiled, rules, self._api, ledger, taker, _now) if rules else None
        controller = health.bookings if health else BookingController(self._api, compiled, ledger, taker, _now)
        loop = self._driver.register(bookings_loop(controller, BOOKINGS_PERIOD))
        ledger.upkeep.on_change(lambda: loop.wake("a booking changed"))
        ledger.upkeep.turns.on_free(BOOKINGS, lambda: loop.wake("nobody keeps the bookings"))
        past = open_history(compiled, self._api, ledger, controller, _now)
        self._seated.holders = past.seats()
        self._driver.register(history_loop(past, HISTORY_PERIOD))
        if health is not None:
            self._driver.register(health.loop(HEALTH_PERIOD, loop))
            self._driver.register(health.scrubs_loop(HEALTH_PERIOD, loop))
            self._driver.register(health.maintenance_loop(HEALTH_PERIOD))
            self._keep_agents(health, ledger)
            self._keep_acceptance(health, ledger)
        self._tallies = tallies = Tallies(cloud=self._api.counted, reclaims=controller.cases.counted)
        self._accounting = AccountingService(compiled.site, ledger, past.history, _now)
        self._driver.register(accounting_loop(self._accounting))
        outside = open_enforcement(compiled, ledger, self._api.auth_url, os.environ, _now)
        if outside is not None:
            self._driver.register(outside.loop)
        for messages in message_loops(
            ledger, compiled.site, os.environ, _now, portal=options.settings.public_url, told=tallies.told,
            more=[outside.channel] if outside else [],
        ):  # fmt: skip
            self._driver.register(messages)
        return controller

    def _keep_agents(self, health: Watched, ledger: Ledger) -> None:
        """Guests say how their GPUs are, where the site asks them."""
        if health.service.rules.agent is None:
            return
        gpus, portal, sight = self._loaded.compiled.gpus, self._options.settings.public_url, health.bookings
        seen = lambda: sight.sight.snapshot if sight.sight else None  # noqa: E731
        self._agents = open_agents(health.service, ledger, gpus, self._api, seen, portal, _now)
        self._driver.register(agents_loop(self._agents))
        sight.cases.idle = self._agents.service.idle_servers

    def _keep_acceptance(self, health: Watched, ledger: Ledger) -> None:
        """Servers are started on GPUs that are to be accepted, where the site has a project for them."""
        sight = health.bookings
        controller = open_acceptance(
            self._loaded.compiled, self._api, health.service, ledger, lambda: sight.sight, _now
        )
        if controller is not None and health.service.acceptance is not None:
            health.service.acceptance.wake = self._driver.register(acceptance_loop(controller, ACCEPTANCE_PERIOD)).wake

    def _keep_runners(self) -> None:
        """GitHub's jobs get servers, where the site has runners."""
        compiled, ledger = self._loaded.compiled, self._ledger
        if compiled.site.runners is None or ledger is None:
            return
        runners = self._runners = open_runners(
            compiled,
            self._api,
            ledger,
            _now,
            portal=self._options.settings.public_url,
            health=self._health.service if self._health else None,
        )
        loops = [self._driver.register(loop) for loop in runners.loops()]
        ledger.upkeep.turns.on_free(RUNNERS, lambda: loops[0].wake("nobody keeps the runners"))
        if self._health is not None:
            self._health.on_kept = loops[0].wake

    def _sources(self) -> Sources:
        """What the portal shows."""
        loaded, ledger, runners, accounting = self._loaded, self._ledger, self._runners, self._accounting
        return Sources(
            site_name=loaded.site.site, settings=self._options.settings, inventory=self._inventory,
            driver=self._driver, gpus=loaded.compiled.gpus, flavors=loaded.compiled.flavors, ledger=ledger,
            sessions=PortalStore(ledger.database) if ledger else None,
            people=KeystonePeople(self._api) if ledger else None,
            runners=RunnerSources(
                runners.site.runners, runners.doors.store, runners.controller.overview, lambda: runners.wake_intake()
            ) if runners else None,
            health=self._health.service if self._health else None,
            agents=self._agents.service if self._agents else None,
            accounting=accounting, history=accounting.history if accounting else None,
            bootable=CapacityService(CapacityReader(self._api, loaded), _now, ledger),
            facts={name: inventory.facts for name, inventory in loaded.inventories.items()},
            checks=RecordedChecks(loaded).of,
        )  # fmt: skip

    def run(self, listener: socket.socket) -> Process | None:
        """Serve until a signal ends it, or another process takes over, which is returned."""
        options, gpus = self._options, self._loaded.compiled.gpus
        hosts = counted(len({gpu.host for gpu in gpus}), "host")
        about = f"{self._loaded.site.site}, {counted(len(gpus), 'GPU')} on {hosts}"
        try:
            app = create_app(self._sources(), answered_names(options), self._tallies)
            replaced = run(app, self._driver, listener, about, self._ends, self._manager)
        finally:
            self.close()
        if self._next is not None and not replaced:
            self._next.close()
        return self._next if replaced else None

    def close(self) -> None:
        if self._runners is not None:
            self._runners.close()
        if self._agents is not None:
            self._agents.close()
        if self._ledger is not None:
            self._ledger.close()

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
