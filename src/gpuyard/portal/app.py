"""The web app: what is served where. Without bookings every endpoint reads, and none changes anything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gpuyard import __version__
from gpuyard.cloud.people import People
from gpuyard.history.reading import History
from gpuyard.keeper.accounting import AccountingDesk
from gpuyard.keeper.agent_desk import AgentDesk
from gpuyard.keeper.bootable import BootableDesk
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.health_desk import HealthDesk
from gpuyard.keeper.host_looks import HostLooks
from gpuyard.keeper.yard import Yard
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.finding import Finding
from gpuyard.model.gpu import Gpu
from gpuyard.model.host import HostFacts
from gpuyard.portal import (
    acceptance_api,
    agents_api,
    api,
    booking_problems,
    bookings_api,
    calendar_api,
    calendar_pages,
    documentation,
    feeds,
    flavor_pages,
    flavors_api,
    freshness,
    github_webhook,
    gpu_pages,
    health_api,
    health_intake,
    health_pages,
    login,
    maintenance_api,
    me,
    metrics,
    mine_pages,
    operators_api,
    pages,
    problems,
    project_pages,
    runner_pages,
    runners_api,
    scrub_intake,
    sessions_api,
    status_pages,
    usage_api,
    use_pages,
    uses_api,
)
from gpuyard.portal.agent_intake import AgentIntake
from gpuyard.portal.agent_metrics import AgentCollector
from gpuyard.portal.booking_documents import BookingRows
from gpuyard.portal.card_use import CardUses
from gpuyard.portal.csv_tables import CsvTables
from gpuyard.portal.doorman import Doorman
from gpuyard.portal.front import Front
from gpuyard.portal.gate import PUBLIC, STATUS, Gate
from gpuyard.portal.github_webhook import Intake
from gpuyard.portal.health_api import FaultReports
from gpuyard.portal.health_book import HealthBook
from gpuyard.portal.health_metrics import HealthCollector
from gpuyard.portal.history_metrics import HistoryCollector
from gpuyard.portal.live import LiveFeed
from gpuyard.portal.operation_metrics import LedgerCollector, RequestCollector
from gpuyard.portal.outcomes import Outcomes
from gpuyard.portal.page_tables import PageTables
from gpuyard.portal.problem_pages import ProblemPages
from gpuyard.portal.request_limits import Limited
from gpuyard.portal.requests import Numbered, RequestCounts
from gpuyard.portal.runner_metrics import RunnerCollector
from gpuyard.portal.security import LOOPBACK_NAMES, Protected
from gpuyard.portal.settings import PortalSettings
from gpuyard.portal.sources import RunnerSources, Sources, Tallies, utc_now
from gpuyard.portal.store import PortalStore
from gpuyard.runners.hook_secrets import HookSecrets
from gpuyard.site.objects import FlavorObject

BOOKING_TAGS = ("bookings", "calendar", "feeds", "people")
RUNNER_TAGS = ("runners",)
HEALTH_TAGS = ("health",)


def create_app(
    yard: Yard,
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
    health: HealthDesk | None = None,
    agents: AgentDesk | None = None,
    tallies: Tallies | None = None,
    facts: Mapping[str, HostFacts] | None = None,
    checks: Callable[[str], Sequence[Finding]] | None = None,
    bootable: BootableDesk | None = None,
    history: History | None = None,
    accounting: AccountingDesk | None = None,
) -> FastAPI:
    """The app; its feed, which whoever runs it must close to end open streams, is `app.state.feed`.

    `allowed_hosts` are the names in Host headers that are answered: a page of a foreign site can make a browser
    send requests to an address it likes (DNS rebinding), but not with a name of ours. ``*`` is any.

    With a `ledger` GPUs can be booked, and all but the addresses that gate.py names needs somebody whom `people` knows;
    `store` remembers who is logged in, and `flavors` are what its servers can have. With `runners` webhooks of GitHub
    are taken; a site that has runners has bookings. With `health` it is told how GPUs are, and taken what people say of
    them; a site that follows it has bookings too. `tallies` are shown as metrics. `facts`: what was recorded of hosts.
    `bootable` says what could be started now. `history`: who had which GPU when, of a site that has bookings;
    `accounting`: what that amounts to.
    """
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
        version=__version__,
        summary=f"The GPUs of {site_name}: which are free, who has the others, and why.",
        openapi_tags=[{"name": name} for name in tags],
        docs_url=None,  # these pages load their scripts from elsewhere; documentation.py has that address
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    sources = Sources(
        yard,
        driver,
        site_name,
        gpus,
        now,
        ledger,
        people,
        settings,
        runners,
        health,
        facts or {},
        bootable,
        history,
        accounting,
        checks,
    )
    app.state.feed, app.state.runners, app.state.health = LiveFeed(sources), runners is not None, health is not None
    app.state.login, app.state.public_status = ledger is not None, settings.public_status
    app.state.history, app.state.bootable = history is not None, bootable is not None
    app.state.public_runners = runners is not None and runners.site.public
    heard: list[Outcomes] = []
    doorman: Doorman | None = None
    # The one that is added last sees a request first.
    if ledger is not None:
        assert people is not None, "bookings need people who make them"
        assert store is not None, "people need sessions"
        rows = BookingRows(ledger, gpus, flavors, settings.others)
        doorman = Doorman(people, store, settings, now, knows=lambda project: ledger.book.knows(project))
        uses_api.install(app, ledger, agents)
        if accounting is not None:
            usage_api.install(app, accounting, settings.others)
        heard += _install_booking(app, sources, ledger, doorman, rows, CardUses(agents))
    if bootable is not None:
        flavors_api.install(app, sources, bootable, doorman)
        if doorman is not None:
            flavor_pages.install(app, sources, bootable, doorman)
    intake = _intake(sources, runners) if runners is not None else None
    collectors: list[Collector] = []
    if runners is not None and intake is not None:
        collectors.append(_install_runners(app, sources, runners, intake))
    app.add_middleware(CsvTables)
    app.add_middleware(PageTables)
    app.add_middleware(ProblemPages, site=site_name)
    # Leaves event streams alone. The last two percent of a long list would take four times as long, for all.
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=6)
    if ledger is None:
        gpu_pages.install(app, sources)
    if intake is not None:
        app.add_middleware(Front, doors=github_webhook.doors(intake))
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
    app: FastAPI, sources: Sources, ledger: Ledger, doorman: Doorman, rows: BookingRows, uses: CardUses
) -> list[Outcomes]:
    """Returns what becomes of what hosts send."""
    heard: list[Outcomes] = []
    public = [*([PUBLIC] if app.state.public_runners else []), *([STATUS] if app.state.public_status else [])]
    app.add_middleware(Gate, doorman=doorman, public=public)
    login.install(app, sources, doorman)
    me.install(app)
    faults, book = None, None
    if sources.health is not None:
        book = HealthBook(sources, sources.health, ledger)
        faults = FaultReports(book, sources.health)
        health_api.install(app, book, sources.health, faults, doorman.people, rows)
        acceptance_api.install(app, sources.health)
        health_pages.install(app, sources, book, sources.health)
        if sources.health.maintenance is not None:
            maintenance_api.install(app, sources.health.maintenance)
        hosts = HostLooks(sources.health, {gpu.host for gpu in sources.gpus})
        heard.append(health_intake.install(app, sources, hosts, sources.health.store, ledger))
        if sources.health.scrubs is not None:
            heard.append(scrub_intake.install(app, sources, sources.health.scrubs, sources.health.store))
    bookings_api.install(app, ledger, doorman, rows, faults.report if faults else None)
    operators_api.install(app, ledger, rows)
    calendar_api.install(app, sources, ledger, doorman, rows)
    feeds.install(app, sources, ledger, doorman)
    sessions_api.install(app, sources, ledger, doorman)
    calendar_pages.install(app, sources)
    mine_pages.install(app, sources, ledger, rows, uses, book)
    gpu_pages.install(app, sources, rows, book, uses)
    if sources.history is not None:
        use_pages.install(app, sources, sources.history, ledger, rows)
        project_pages.install(app, sources, sources.history, ledger, rows, doorman, uses)
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
    runners_api.install(app, runners, sources.now)
    runner_pages.install(app, sources, runners)
    details = runners.site.public or sources.settings.anonymous_details
    return RunnerCollector(runners, intake.outcomes, sources.now, details, (gpu.pool for gpu in sources.gpus))


def _install_agents(app: FastAPI, agents: AgentDesk, settings: PortalSettings) -> Sequence[Outcomes]:
    """Guests say how GPUs are, before all other layers; what they have said is for those whose servers they are.
    Returns what becomes of it."""
    intake = AgentIntake(agents, settings.trusted_gateways)
    app.add_middleware(Front, doors=intake.doors)
    agents_api.install(app, agents, intake)
    return intake.outcomes


def _install_operation(app: FastAPI, sources: Sources, feed: LiveFeed, collectors: Sequence[Collector]) -> None:
    """For those who keep gpuyard running. `collectors`: of further metrics."""
    # Without bookings nobody logs in: whoever gets here may see all.
    details = sources.ledger is None or sources.settings.anonymous_details
    registry = metrics.registry(sources, feed, details, *collectors)

    @app.get("/healthz", tags=["operation"], response_class=PlainTextResponse)
    async def alive() -> str:  # in the event loop: also when all threads wait for somebody
        """The process answers."""
        return "ok\n"

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "What is shown may be out of date."}})
    def ready() -> JSONResponse:
        """The cloud was seen, and no loop is late; else 503 and the reasons. What a loop failed with is in the log."""
        reasons = freshness.unready(sources.yard.latest(), sources.driver.statuses(), details)
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    def prometheus() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
