"""The web app: what is served where. Without bookings every endpoint reads, and none changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.registry import Collector
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gpuyard import installed_version
from gpuyard.bookings.ledger.ledger import Ledger
from gpuyard.bookings.web import booking_problems, bookings_api, calendar_api, calendar_pages, feeds, operators_api
from gpuyard.bookings.web.booking_documents import BookingRows
from gpuyard.dashboard import gpu_pages, mine_pages, pages, project_pages, status_pages, use_pages
from gpuyard.dashboard.live import LiveFeed
from gpuyard.dashboard.sources import Sources
from gpuyard.diagnosis.controllers.capacity import CapacityService
from gpuyard.diagnosis.web import flavor_pages, flavors_api
from gpuyard.health.controllers.agent_service import AgentService
from gpuyard.health.controllers.health_service import HealthService
from gpuyard.health.controllers.host_report_intake import HostReportIntake
from gpuyard.health.web import (
    acceptance_api,
    agents_api,
    health_api,
    health_intake,
    health_pages,
    maintenance_api,
    scrub_intake,
    uses_api,
)
from gpuyard.health.web.agent_intake import AgentIntake
from gpuyard.health.web.agent_metrics import AgentCollector
from gpuyard.health.web.card_use import CardUses
from gpuyard.health.web.health_api import FaultReports
from gpuyard.health.web.health_metrics import HealthCollector
from gpuyard.health.web.health_reader import HealthReader
from gpuyard.inventory.controllers.cache import InventoryCache
from gpuyard.inventory.web import api, freshness, metrics
from gpuyard.model.finding import Finding
from gpuyard.model.gpu import Gpu
from gpuyard.model.host import HostFacts
from gpuyard.openstack.people import People
from gpuyard.runners.hook_secrets import HookSecrets
from gpuyard.runners.web import github_webhook, runner_pages, runners_api
from gpuyard.runners.web.github_webhook import Intake
from gpuyard.runners.web.runner_metrics import RunnerCollector
from gpuyard.runners.web.runner_sources import RunnerSources
from gpuyard.runtime.control_loops import Driver
from gpuyard.server.operation_metrics import LedgerCollector, RequestCollector
from gpuyard.server.tallies import Tallies
from gpuyard.site.objects import FlavorObject
from gpuyard.usage.controllers.accounting import AccountingService
from gpuyard.usage.controllers.reading import History
from gpuyard.usage.web import usage_api
from gpuyard.usage.web.history_metrics import HistoryCollector
from gpuyard.web import documentation, login, me, problems, sessions_api
from gpuyard.web.access import PUBLIC, STATUS, AccessMiddleware
from gpuyard.web.authenticator import Authenticator
from gpuyard.web.csv_tables import CsvTables
from gpuyard.web.fast_path import FastPath
from gpuyard.web.open_reads import OpenReadsMiddleware
from gpuyard.web.outcomes import Outcomes
from gpuyard.web.page_tables import PageTables
from gpuyard.web.portal_context import utc_now
from gpuyard.web.prepared_body import LEVEL
from gpuyard.web.problem_pages import ProblemPages
from gpuyard.web.request_limits import Limited
from gpuyard.web.requests import Numbered, RequestCounts
from gpuyard.web.security import LOOPBACK_NAMES, Protected
from gpuyard.web.settings import PortalSettings
from gpuyard.web.store import PortalStore

BOOKING_TAGS = ("bookings", "calendar", "feeds", "people")
RUNNER_TAGS = ("runners",)
HEALTH_TAGS = ("health",)


def create_app(
    inventory: InventoryCache,
    driver: Driver,
    site_name: str,
    gpus: Sequence[Gpu],
    allowed_hosts: Sequence[str] = LOOPBACK_NAMES,
    now: Callable[[], datetime] = utc_now,
    *,
    ledger: Ledger | None = None,
    store: PortalStore | None = None,
    people: People | None = None,
    settings: PortalSettings | None = None,
    flavors: Sequence[FlavorObject] = (),
    runners: RunnerSources | None = None,
    health: HealthService | None = None,
    agents: AgentService | None = None,
    tallies: Tallies | None = None,
    facts: Mapping[str, HostFacts] | None = None,
    checks: Callable[[str], Sequence[Finding]] | None = None,
    bootable: CapacityService | None = None,
    history: History | None = None,
    accounting: AccountingService | None = None,
) -> FastAPI:
    """The app; its feed, which whoever runs it must close to end open streams, is `app.state.feed`.

    `allowed_hosts` are the names in Host headers that are answered: a page of a foreign site can make a browser
    send requests to an address it likes (DNS rebinding), but not with a name of ours. ``*`` is any.

    With a `ledger` GPUs can be booked, and all but the addresses that web/access.py names needs somebody whom `people`
    knows; `store` remembers who is logged in, and `flavors` are what its servers can have. With `runners` webhooks of
    GitHub are taken; a site that has runners has bookings. With `health` it is told how GPUs are, and taken what people
    say of them; a site that follows it has bookings too. `tallies` are shown as metrics. `facts`: what was recorded of
    hosts. `bootable` says what could be started now. `history`: who had which GPU when, of a site that has bookings;
    `accounting`: what that amounts to."""
    settings = settings or PortalSettings()
    tags = (
        *(BOOKING_TAGS if ledger else ()),
        *(RUNNER_TAGS if runners else ()),
        *(HEALTH_TAGS if health else ()),
        *((usage_api.TAG,) if accounting else ()),
        "gpus",
        "about",
        "status",
        "operation",
    )
    app = FastAPI(
        title="gpuyard",
        version=installed_version(),
        summary=f"The GPUs of {site_name}: which are free, who has the others, and why.",
        openapi_tags=[{"name": name} for name in tags],
        openapi_url=None,  # documentation.py serves it
        docs_url=None,  # these pages load their scripts from elsewhere; documentation.py has that address
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    sources = Sources(
        inventory=inventory,
        driver=driver,
        site_name=site_name,
        gpus=gpus,
        now=now,
        ledger=ledger,
        people=people,
        settings=settings,
        runners=runners,
        health=health,
        facts=facts or {},
        bootable=bootable,
        history=history,
        accounting=accounting,
        checks=checks,
    )
    app.state.feed, app.state.runners, app.state.health = LiveFeed(sources), runners is not None, health is not None
    app.state.login, app.state.public_status = ledger is not None, settings.public_status
    app.state.history, app.state.bootable = history is not None, bootable is not None
    app.state.public_runners = runners is not None and runners.site.public
    heard: list[Outcomes] = []
    authenticator: Authenticator | None = None
    # The one that is added last sees a request first.
    if ledger is not None:
        assert people is not None, "bookings need people who make them"
        assert store is not None, "people need sessions"
        rows = BookingRows(ledger, gpus, flavors, settings.others)
        authenticator = Authenticator(people, store, settings, now, knows=lambda project: ledger.book.knows(project))
        uses_api.install(app, ledger, agents)
        if accounting is not None:
            usage_api.install(app, accounting, settings.others)
        heard += _install_booking(app, sources, ledger, authenticator, rows, CardUses(agents))
    if bootable is not None:
        flavors_api.install(app, sources, bootable, authenticator)
        if authenticator is not None:
            flavor_pages.install(app, sources, bootable, authenticator)
    intake = _intake(sources, runners) if runners is not None else None
    collectors: list[Collector] = []
    if runners is not None and intake is not None:
        collectors.append(_install_runners(app, sources, runners, intake))
    app.add_middleware(CsvTables)
    app.add_middleware(PageTables)
    app.add_middleware(ProblemPages, site=site_name)
    # Leaves event streams alone, and what is compressed already.
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=LEVEL)
    if ledger is None:
        gpu_pages.install(app, sources)
        app.add_middleware(OpenReadsMiddleware, gateways=settings.trusted_gateways)
    if intake is not None:
        app.add_middleware(FastPath, doors=github_webhook.doors(intake))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    app.add_middleware(Limited)
    app.add_middleware(Protected)
    if agents is not None:
        heard += _install_agents(app, agents, settings)
    requests, tallies = RequestCounts(), tallies or Tallies()
    app.add_middleware(Numbered, counts=requests, routes=app.router.routes)
    collectors.append(RequestCollector(requests, tallies))
    if ledger is not None:
        collectors.append(LedgerCollector(sources, ledger, tallies, settings.anonymous_details))
    if history is not None:
        collectors.append(HistoryCollector(history, accounting, sorted({gpu.pool for gpu in gpus})))
    if health is not None:
        collectors.append(HealthCollector(health, settings.anonymous_details, heard))
    if agents is not None:
        collectors.append(AgentCollector(agents, gpus, settings.anonymous_details))
    problems.install(app)
    pages.install(app, sources, app.state.feed)
    documentation.install(app)
    api.install(app, sources)
    status_pages.install(app, sources)
    _install_operation(app, sources, app.state.feed, collectors)
    return app


def _install_booking(
    app: FastAPI, sources: Sources, ledger: Ledger, authenticator: Authenticator, rows: BookingRows, uses: CardUses
) -> list[Outcomes]:
    """Returns what becomes of what hosts send."""
    heard: list[Outcomes] = []
    public = [*([PUBLIC] if app.state.public_runners else []), *([STATUS] if app.state.public_status else [])]
    app.add_middleware(AccessMiddleware, authenticator=authenticator, public=public)
    login.install(app, sources, authenticator)
    me.install(app)
    faults, book = None, None
    if sources.health is not None:
        book = HealthReader(sources, sources.health, ledger)
        faults = FaultReports(book, sources.health)
        health_api.install(app, book, sources.health, faults, authenticator.people, rows)
        acceptance_api.install(app, sources.health)
        health_pages.install(app, sources, book, sources.health)
        if sources.health.maintenance is not None:
            maintenance_api.install(app, sources.health.maintenance)
        hosts = HostReportIntake(sources.health, {gpu.host for gpu in sources.gpus})
        heard.append(health_intake.install(app, sources, hosts, sources.health.store, ledger))
        if sources.health.scrubs is not None:
            heard.append(scrub_intake.install(app, sources, sources.health.scrubs, sources.health.store))
    bookings_api.install(app, ledger, authenticator, rows, faults.report if faults else None)
    operators_api.install(app, ledger, rows)
    calendar_api.install(app, sources, ledger, authenticator, rows)
    feeds.install(app, sources, ledger, authenticator)
    sessions_api.install(app, sources.now, ledger.note, authenticator)
    calendar_pages.install(app, sources, list(ledger.book.pools))
    mine_pages.install(app, sources, ledger, rows, uses, book)
    gpu_pages.install(app, sources, rows, book, uses)
    if sources.history is not None:
        use_pages.install(app, sources, sources.history, ledger, rows)
        project_pages.install(app, sources, sources.history, ledger, rows, authenticator, uses)
    booking_problems.install(app, rows)
    return heard


def _intake(sources: Sources, runners: RunnerSources) -> Intake:
    return Intake(
        runners.store.keep_deliveries,
        HookSecrets(runners.site.enrolments),
        runners.site.enrolments,
        sources.now,
        runners.kept,
        sources.settings.trusted_gateways,
    )


def _install_runners(app: FastAPI, sources: Sources, runners: RunnerSources, intake: Intake) -> Collector:
    """What is served of runners; returns their metrics."""
    github_webhook.install(app, intake)
    runners_api.install(app, runners, sources.now, sources.settings.others)
    runner_pages.install(app, sources, runners)
    details = runners.site.public or sources.settings.anonymous_details
    return RunnerCollector(runners, intake.outcomes, sources.now, details, (gpu.pool for gpu in sources.gpus))


def _install_agents(app: FastAPI, agents: AgentService, settings: PortalSettings) -> Sequence[Outcomes]:
    """Guests say how GPUs are, before all other layers; what they have said is for those whose servers they are.
    Returns what becomes of it."""
    intake = AgentIntake(agents, settings.trusted_gateways)
    app.add_middleware(FastPath, doors=intake.doors)
    agents_api.install(app, agents, intake)
    return intake.outcomes


def _install_operation(app: FastAPI, sources: Sources, feed: LiveFeed, collectors: Sequence[Collector]) -> None:
    """For those who keep gpuyard running. `collectors`: of further metrics."""
    # Without bookings nobody logs in: whoever gets here may see all.
    details = sources.ledger is None or sources.settings.anonymous_details
    registry = metrics.registry(sources, lambda: feed.streams, details, *collectors)
    exposition = metrics.Exposition(registry, sources.settings.metrics_age)

    @app.get("/healthz", tags=["operation"], response_class=PlainTextResponse)
    async def alive() -> str:  # in the event loop: also when all threads wait for somebody
        """The process answers."""
        return "ok\n"

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "What is shown may be out of date."}})
    def ready() -> JSONResponse:
        """The cloud was seen, and no loop is late that the portal cannot serve without; else 503 and the reasons.
        `degraded` names the other late loops. What a loop failed with is in the log."""
        loops = sources.driver.statuses()
        reasons = freshness.unready(sources.inventory.latest(), loops, details)
        answer = {"ready": not reasons, "reasons": reasons, "degraded": freshness.degraded(loops, details)}
        return JSONResponse(answer, 503 if reasons else 200)

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    async def prometheus(request: Request) -> Response:
        """Metrics in the Prometheus text format, at most a second old."""
        return (await exposition.latest()).response(request)
