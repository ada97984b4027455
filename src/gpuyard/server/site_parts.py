"""Opens what a site with bookings has: its ledger and controllers, and the control loops that run them.

Parts are opened in the order in which they need each other, and each is whole when it is made. What happens in one
wakes the loops of others by signals:

    a booking changed          -> bookings
    the cloud was observed     -> health
    a GPU was observed         -> health
    other GPUs are kept back   -> held at once, then bookings, then runners
    a GPU came back clean      -> bookings
    an acceptance is asked for -> acceptance
    a role comes free          -> bookings, or runners
    a webhook was stored       -> the intake of jobs (runners/controllers/runner_loops.py)

A lost signal costs one period, never truth: every loop reads the ledger again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, closing
from dataclasses import dataclass
from datetime import datetime

from gpuyard.bookings.controllers.bookings import BookingController, bookings_loop
from gpuyard.bookings.controllers.enforcement_service import open_enforcement
from gpuyard.bookings.controllers.site_ledger import database_url, open_ledger
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.health.controllers.health import Watched, open_health
from gpuyard.notifications.delivery import message_loops
from gpuyard.openstack.api import CloudApi
from gpuyard.openstack.snapshot import SnapshotTaker
from gpuyard.openstack.units import Seated
from gpuyard.runners.controllers.runner_loops import Runners, open_runners
from gpuyard.runtime.control_loops import Loop
from gpuyard.runtime.leader_roles import BOOKINGS, RUNNERS
from gpuyard.server.database_upkeep import refuse_old_tables
from gpuyard.server.tallies import Tallies
from gpuyard.site.compile import CompiledSite
from gpuyard.usage.controllers.accounting import AccountingService, accounting_loop
from gpuyard.usage.controllers.history import HistoryController, history_loop, last_seated, open_history
from gpuyard.usage.store import HistoryStore

PERIOD = 5.0
"""Seconds between runs of the loops of bookings, history, health and acceptance. Signals wake all but that of history
at once."""


@dataclass(frozen=True)
class PartOptions:
    """The operator's options for the parts, besides the site file."""

    database: str
    """URL of the database; empty is the site's own in the state folder."""
    portal: str
    """Address of the portal for people and guests; empty: not known."""
    upgrade: bool = True
    """Whether to upgrade the tables of an older release; otherwise they are refused."""


@dataclass(frozen=True)
class SiteParts:
    """The parts of one site with bookings, and their loops, which nobody has started yet."""

    ledger: Ledger
    seated: Seated
    """The servers that were last seen on units: all readers of the cloud share it."""
    bookings: BookingController
    health: Watched | None
    """None: the site does not follow the health of its GPUs."""
    accounting: AccountingService
    runners: Runners | None
    """None: the site has no runners."""
    tallies: Tallies
    loops: tuple[Loop, ...]

    def close(self) -> None:
        """Close everything after the loops have ended; the ledger last, since the others write to it."""
        if self.runners is not None:
            self.runners.close()
        if self.health is not None:
            self.health.close()
        self.ledger.close()


def open_parts(
    compiled: CompiledSite,
    api: CloudApi,
    options: PartOptions,
    environment: Mapping[str, str],
    now: Callable[[], datetime],
) -> SiteParts:
    """Open the parts of a site with bookings. `environment` has the secrets of channels and services; `now` is UTC.
    Raises GpuyardError; nothing is left open then."""
    database = database_url(options.database, compiled.site.site, environment)
    if not options.upgrade:
        refuse_old_tables(database)
    with ExitStack() as opened:
        ledger = opened.enter_context(closing(open_ledger(compiled, database, now)))
        parts = _open_on(ledger, opened, compiled, api, options, environment, now)
        opened.pop_all()  # from here on `SiteParts.close` does it
    return parts


def _open_on(
    ledger: Ledger,
    opened: ExitStack,
    compiled: CompiledSite,
    api: CloudApi,
    options: PartOptions,
    environment: Mapping[str, str],
    now: Callable[[], datetime],
) -> SiteParts:
    seated = Seated(last_seated(HistoryStore(ledger.database)))
    taker = SnapshotTaker(api, compiled.gpus, compiled.flavors, seated)
    rules = compiled.site.health
    health = open_health(compiled, rules, api, ledger, taker, now, portal=options.portal) if rules else None
    bookings = health.bookings if health else BookingController(api, compiled, ledger, taker, now)
    history = open_history(compiled, api, ledger, bookings, now)
    tallies = Tallies(cloud=api.counted, reclaims=bookings.overstays.counted)
    accounting = AccountingService(compiled.site, ledger, history.history, now)
    loops = [
        *_booking_loops(ledger, bookings, history, health),
        accounting_loop(accounting),
    ]
    enforcement = open_enforcement(compiled, ledger, api.auth_url, environment, now)
    loops += [enforcement.loop] if enforcement else []
    loops += message_loops(
        ledger, compiled.site, environment, now, portal=options.portal, outcome_counts=tallies.told,
        more=[enforcement.channel] if enforcement else [],
    )  # fmt: skip
    runners = None
    if compiled.site.runners is not None:
        service = health.service if health else None
        runners = opened.enter_context(
            closing(open_runners(compiled, api, ledger, now, portal=options.portal, health=service))
        )
        loops += _runner_loops(runners, ledger, health)
    return SiteParts(ledger, seated, bookings, health, accounting, runners, tallies, tuple(loops))


def _booking_loops(
    ledger: Ledger, bookings: BookingController, history: HistoryController, health: Watched | None
) -> Iterator[Loop]:
    loop = bookings_loop(bookings, PERIOD)
    ledger.upkeep.on_change(lambda: loop.wake("a booking changed"))
    ledger.upkeep.leadership.on_free(BOOKINGS, lambda: loop.wake("no process leads bookings"))
    yield loop
    yield history_loop(history, PERIOD)
    if health is not None:
        yield from health.loops(PERIOD, loop)


def _runner_loops(runners: Runners, ledger: Ledger, health: Watched | None) -> list[Loop]:
    main, *others = runners.loops()
    ledger.upkeep.leadership.on_free(RUNNERS, lambda: main.wake("no process leads runners"))
    if health is not None:
        health.holds_changed.listen(main.wake)
    return [main, *others]
