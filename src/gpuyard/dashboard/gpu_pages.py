"""The table of all GPUs, the page of one GPU, and that of a host. Made on the server; runners.js loads them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Annotated

from fastapi import FastAPI, Query, Request
from fastapi.responses import HTMLResponse
from pydantic import Field

from gpuyard.bookings.web.booking_documents import BookingRow, BookingRows
from gpuyard.dashboard.gpu_presenter import GpuFacts, check_rows, free_of, gpu_facts, gpu_table, host_seen, service_line
from gpuyard.dashboard.sources import Sources
from gpuyard.dashboard.use_presenter import Timeline, timeline
from gpuyard.health.controllers.health_service import NoSuchGpuError
from gpuyard.health.web.card_use import CardUses, UseLine
from gpuyard.health.web.health_presenter import HealthCard, RecordLine, health_card, marks_of, record_lines
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.health.web.maintenance_documents import maintenance_row
from gpuyard.health.web.maintenance_presenter import MaintenanceCard, maintenance_card
from gpuyard.inventory.controllers.cache import InventoryView
from gpuyard.inventory.web.api import GpuFilter, refuse_unknown
from gpuyard.inventory.web.presenter import gpu_href, present
from gpuyard.inventory.web.shown_servers import view_for
from gpuyard.model.gpu import GpuState, GpuStatus
from gpuyard.model.rights import Verb, may
from gpuyard.usage.store import Which
from gpuyard.usage.web.shown_use import use_visibility
from gpuyard.web.assets import render
from gpuyard.web.navigation import navigation
from gpuyard.web.people import Visitor, find_visitor
from gpuyard.web.problems import Refusal, no_data_yet

LINES = 200
"""Lines of a GPU's record on its page; the API has all."""
AHEAD = timedelta(days=60)
MOST_INTERVALS = 1000
"""Intervals of a timeline, at most."""
MOST_BOOKINGS = 50
"""Bookings on the page of a GPU, at most."""
MOST_MAINTENANCES = 20
"""Maintenances on the page of a host, at most."""
Name = Annotated[str, Query(max_length=300)]


class GpuSearch(GpuFilter):
    """What the page of all GPUs is asked for."""

    page: int = Field(1, ge=1, le=100_000)


@dataclass(frozen=True)
class HealthOfGpu:
    """The health section on the page of a GPU whose health is followed."""

    card: HealthCard
    lines: Sequence[RecordLine]
    older: bool


def install(
    app: FastAPI,
    sources: Sources,
    rows: BookingRows | None = None,
    book: HealthReader | None = None,
    uses: CardUses | None = None,
) -> None:
    """Add the pages. `rows`: where GPUs can be booked; `book`: where their health is followed; `uses`: where people log
    in."""
    GpuPages(sources, rows, book, uses).install(app)


class GpuPages:
    def __init__(
        self, sources: Sources, rows: BookingRows | None, book: HealthReader | None, uses: CardUses | None
    ) -> None:
        self._sources, self._rows, self._book, self._uses = sources, rows, book, uses

    def install(self, app: FastAPI) -> None:
        @app.get("/gpus", include_in_schema=False)
        def all_gpus(request: Request, search: Annotated[GpuSearch, Query()]) -> HTMLResponse:
            refuse_unknown(search, self._sources.gpus)
            matches = [status for status in self._view(request).statuses if search.matches(status)]
            marks = marks_of(self._sources.health) or {}
            shown = gpu_table(matches, search, search.page, self._sources.now(), marks)
            gpus = self._sources.gpus
            return self._page(
                request, "gpus.html", page=shown, wanted=search, pools=sorted({gpu.pool for gpu in gpus}),
                states=[state.value for state in GpuState], hosts=list(dict.fromkeys(gpu.host for gpu in gpus)),
            )  # fmt: skip

        @app.get("/gpu", include_in_schema=False)
        def one_gpu(request: Request, name: Name, days: Annotated[int, Query(ge=1, le=90)] = 7) -> HTMLResponse:
            who = find_visitor(request)
            return self._page(
                request, "gpu_page.html", gpu=self._facts(request, name), health=self._health(name, who),
                past=self._past(name, who, days), use=self._use(name, who), flavor=self._flavor_for(name, who),
            )  # fmt: skip

        @app.get("/host", include_in_schema=False)
        def one_host(request: Request, name: Name) -> HTMLResponse:
            return self._host_page(request, name)

    def _page(self, request: Request, template: str, **values: object) -> HTMLResponse:
        nav = navigation(request)
        base = "health_base.html" if nav.user else "runner_page.html"
        html = render(template, site=self._sources.site_name, nav=nav, base=base, **values)
        # The token of the session is in it.
        return HTMLResponse(html, headers={"Cache-Control": "no-store"})

    def _view(self, request: Request) -> InventoryView:
        """As who looks may see it. Raises Refusal 503."""
        view = self._sources.inventory.latest()
        if view is None:
            raise no_data_yet()
        return view_for(view, self._sources.settings.others, find_visitor(request))

    def _facts(self, request: Request, name: str) -> GpuFacts:
        """Of ``host/address``. Raises Refusal 404."""
        host, _, address = name.partition("/")
        mine = [status for status in self._view(request).statuses if status.gpu.host == host]
        gpu_status = next((status for status in mine if status.gpu.address == address.lower()), None)
        if gpu_status is None:
            raise _no_such(f"there is no GPU {name!r}; name one as in host/0000:3b:00.0")
        slot = [mate for mate in mine if mate.gpu.group is not None and mate.gpu.group == gpu_status.gpu.group]
        now = self._sources.now()
        return gpu_facts(gpu_status, slot, self._bookings(gpu_status, find_visitor(request), now), now, None)

    def _bookings(self, status: GpuStatus, who: Visitor | None, now: datetime) -> list[BookingRow]:
        """What keeps its slot from now on."""
        ledger, gpu = self._sources.ledger, status.gpu
        if ledger is None or self._rows is None or who is None:
            return []
        lane = next(
            (lane for lane in ledger.lanes(gpu.pool) if lane.host == gpu.host and gpu.address in lane.addresses), None
        )
        if lane is None:
            return []
        taken = sorted(
            (occupied.start, occupied.booking)
            for occupied in ledger.occupied(gpu.pool, now, now + AHEAD)
            if occupied.lane == lane.id
        )
        row = self._rows.of(who, gpu.pool)
        return [row(ledger.get(id)) for id in list(dict.fromkeys(id for _, id in taken))[:MOST_BOOKINGS]]

    def _health(self, name: str, who: Visitor | None) -> HealthOfGpu | None:
        """None where it is not followed, or not yet."""
        if self._book is None or who is None:
            return None
        now = self._sources.now()
        try:
            card = health_card(self._book.row(name, who), now)
        except NoSuchGpuError:
            return None
        events, older = self._book.record(name, who, LINES)
        return HealthOfGpu(card, record_lines(events, now), older is not None)

    def _use(self, name: str, who: Visitor | None) -> UseLine | None:
        """What it does, where its server says it and `who` may know."""
        view = self._sources.inventory.latest()
        if self._uses is None or who is None or view is None:
            return None
        claims = {f"{status.gpu.host}/{status.gpu.address}": status.claim for status in view.statuses}
        claim = claims.get(name)
        return self._uses.of([claim.server_id], who).get(name) if claim is not None else None

    def _flavor_for(self, name: str, who: Visitor | None) -> str:
        """Return the flavor to start a server with on a free GPU of the same pool; empty when there is none."""
        host, _, address = name.partition("/")
        view = self._sources.inventory.latest()
        free = {status.gpu.pool for status in view.statuses if (status.gpu.host, status.gpu.address) == (host, address)
                and status.state is GpuState.FREE} if view else set()  # fmt: skip
        if who is None or not free:
            return ""
        own = [
            flavor
            for flavor in self._sources.flavors
            if flavor.pool in free and flavor.gpus and not flavor.variant_of and not flavor.set_letter
            if flavor.public or who.person.project in flavor.projects
        ]  # fmt: skip
        return min(own, key=lambda flavor: (flavor.gpus, flavor.ram, flavor.name)).name if own else ""

    def _past(self, name: str, who: Visitor | None, days: int) -> Timeline | None:
        """What it was there for; None where that is not kept."""
        history, now = self._sources.history, self._sources.now()
        if history is None or who is None:
            return None
        host, _, address = name.partition("/")
        start = now - timedelta(days=days)
        which = Which(host=host, address=address.lower())
        intervals = history.intervals(start, now, which, MOST_INTERVALS)
        extent, href = history.extent(), gpu_href(host, address)
        shown = [*map(use_visibility(self._sources.settings.others, who).interval, intervals)]
        return timeline(shown, extent, start, now, days, href, cut=len(intervals) == MOST_INTERVALS)

    # A host

    def _host_page(self, request: Request, name: str) -> HTMLResponse:
        view, now, who = self._view(request), self._sources.now(), find_visitor(request)
        mine = tuple(status for status in view.statuses if status.gpu.host == name)
        if not mine:
            raise _no_such(f"there is no host {name!r} with GPUs of the site")
        marks = marks_of(self._sources.health)
        # Without login whoever gets here may see all.
        admin = self._sources.ledger is None or (who is not None and bool(may(who.person, Verb.REPAIR)))
        (shown,) = present(InventoryView(view.generation, view.taken_at, mine), now, marks).hosts
        health, gpus = self._sources.health, [status.gpu for status in mine]
        word = health.gpus.store.host(name) if health is not None else None
        return self._page(
            request, "host_page.html", host=shown, free=free_of(mine), name=name, admin=admin,
            service=service_line(view.services.get(name), details=admin),
            seen=host_seen(gpus, self._sources.facts.get(name), word, now) if admin else None,
            followed=health is not None,
            checks=check_rows(self._sources.checks(name)) if admin and self._sources.checks else [],
            maintenances=self._maintenances(name, now, admin),
        )  # fmt: skip

    def _maintenances(self, host: str, now: datetime, admin: bool) -> list[MaintenanceCard]:
        """Those that are not over, for admins with buttons and who is in the way; and for admins those that were."""
        service = self._sources.health.maintenance if self._sources.health is not None else None
        if service is None:
            return []
        views = service.views(host, past=admin)[:MOST_MAINTENANCES]
        cards = [maintenance_card(maintenance_row(view), now) for view in views]
        return cards if admin else [card.for_all() for card in cards]


def _no_such(text: str) -> Refusal:
    return Refusal(404, "not_found", f"{text[0].upper()}{text[1:]}.")
