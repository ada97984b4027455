"""The web app: what is served where. Without bookings every endpoint reads, and none changes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gpuyard import __version__
from gpuyard.cloud.people import People
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.yard import Yard
from gpuyard.ledger.ledger import Ledger
from gpuyard.model.gpu import Gpu
from gpuyard.portal import (
    api,
    booking_problems,
    bookings_api,
    calendar_api,
    calendar_pages,
    feeds,
    github_webhook,
    health,
    login,
    me,
    metrics,
    operators_api,
    pages,
    problems,
    runner_pages,
    runners_api,
    sessions_api,
)
from gpuyard.portal.booking_documents import BookingRows
from gpuyard.portal.doorman import Doorman
from gpuyard.portal.gate import PUBLIC, Gate
from gpuyard.portal.github_webhook import Intake
from gpuyard.portal.live import LiveFeed
from gpuyard.portal.problem_pages import ProblemPages
from gpuyard.portal.request_limits import Limited
from gpuyard.portal.runner_metrics import RunnerCollector
from gpuyard.portal.security import LOOPBACK_NAMES, Protected
from gpuyard.portal.settings import PortalSettings
from gpuyard.portal.sources import RunnerSources, Sources, utc_now
from gpuyard.portal.store import PortalStore
from gpuyard.runners.hook_secrets import HookSecrets
from gpuyard.site.objects import FlavorObject

BOOKING_TAGS = ("bookings", "calendar", "feeds", "people")
RUNNER_TAGS = ("runners",)


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
) -> FastAPI:
    """The app; its feed, which whoever runs it must close to end open streams, is `app.state.feed`.

    `allowed_hosts` are the names in Host headers that are answered: a page of a foreign site can make a browser
    send requests to an address it likes (DNS rebinding), but not with a name of ours. ``*`` is any.

    With a `ledger` GPUs can be booked, and all but the addresses that gate.py names needs somebody whom `people` knows;
    `store` remembers who is logged in, and `flavors` are what its servers can have. With `runners` webhooks of GitHub
    are taken; a site that has runners has bookings.
    """
    settings = settings or PortalSettings()
    tags = *(BOOKING_TAGS if ledger else ()), *(RUNNER_TAGS if runners else ()), "gpus", "about", "operation"
    app = FastAPI(
        title="gpuyard",
        version=__version__,
        summary=f"The GPUs of {site_name}: which are free, who has the others, and why.",
        openapi_tags=[{"name": name} for name in tags],
        docs_url=None,  # these pages load their scripts from elsewhere
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    sources = Sources(yard, driver, site_name, gpus, now, ledger, people, settings, runners)
    app.state.feed, app.state.runners = LiveFeed(sources), runners is not None
    # The one that is added last sees a request first.
    if ledger is not None:
        assert people is not None, "bookings need people who make them"
        assert store is not None, "people need sessions"
        rows = BookingRows(ledger, gpus, flavors, settings.others)
        doorman = Doorman(people, store, settings, now, knows=lambda project: ledger.book.knows(project))
        _install_booking(app, sources, ledger, doorman, rows, public=runners is not None and runners.site.public)
    collectors = [_install_runners(app, sources, runners)] if runners is not None else []
    app.add_middleware(ProblemPages, site=site_name)
    app.add_middleware(GZipMiddleware, minimum_size=2000)  # leaves event streams alone
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    app.add_middleware(Limited)
    app.add_middleware(Protected)
    problems.install(app)
    pages.install(app, sources, app.state.feed)
    api.install(app, sources)
    _install_operation(app, sources, app.state.feed, collectors)
    return app


def _install_booking(
    app: FastAPI, sources: Sources, ledger: Ledger, doorman: Doorman, rows: BookingRows, public: bool
) -> None:
    """`public`: whether who has not logged in sees the runners."""
    app.add_middleware(Gate, doorman=doorman, public=PUBLIC if public else None)
    login.install(app, sources, doorman)
    me.install(app)
    bookings_api.install(app, ledger, doorman, rows)
    operators_api.install(app, ledger, rows)
    calendar_api.install(app, sources, ledger, doorman, rows)
    feeds.install(app, sources, ledger, doorman)
    sessions_api.install(app, sources, ledger, doorman)
    calendar_pages.install(app, sources)
    booking_problems.install(app, rows)


def _install_runners(app: FastAPI, sources: Sources, runners: RunnerSources) -> Collector:
    """What is served of runners; returns their metrics."""
    intake = Intake(
        runners.store.keep_deliveries,
        HookSecrets(runners.site.enrolments),
        runners.site.enrolments,
        sources.now,
        runners.kept,
        sources.settings.trusted_gateways,
    )
    github_webhook.install(app, intake)
    runners_api.install(app, runners)
    runner_pages.install(app, sources, runners)
    details = runners.site.public or sources.settings.anonymous_details
    return RunnerCollector(runners, intake.outcomes, sources.now, details)


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
        reasons = health.unready(sources.yard.latest(), sources.driver.statuses(), details)
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    def prometheus() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
