"""Builds the web app of a site from its capabilities. Without bookings every endpoint reads, and none changes anything.

The routes and pages of each capability come first, then the layers that requests pass, the metrics and the endpoints
for operation. The layer that is added last sees a request first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client.registry import Collector
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gpuyard import installed_version
from gpuyard.dashboard.live import LiveFeed
from gpuyard.dashboard.sources import Sources
from gpuyard.inventory.web import freshness, metrics
from gpuyard.server.capabilities import SiteCapabilities, capabilities_of
from gpuyard.server.operation_metrics import LedgerCollector, RequestCollector
from gpuyard.server.tallies import Tallies
from gpuyard.web import documentation, login, me, problems, sessions_api
from gpuyard.web.access import PUBLIC, STATUS, AccessMiddleware
from gpuyard.web.csv_tables import CsvTables
from gpuyard.web.fast_path import FastPath
from gpuyard.web.open_reads import OpenReadsMiddleware
from gpuyard.web.page_tables import PageTables
from gpuyard.web.prepared_body import LEVEL
from gpuyard.web.problem_pages import ProblemPages
from gpuyard.web.request_sizes import Limited
from gpuyard.web.requests import Numbered, RequestCounts
from gpuyard.web.security import LOOPBACK_NAMES, Protected


def create_app(
    sources: Sources, allowed_hosts: Sequence[str] = LOOPBACK_NAMES, tallies: Tallies | None = None
) -> FastAPI:
    """Return the app; its feed, which the caller must close to end open streams, is `app.state.feed`.

    `allowed_hosts` are the names in Host headers that are answered: a page of a foreign site can make a browser
    send requests to an address it likes (DNS rebinding), but not with a name of ours. ``*`` is any. `tallies` are shown
    as metrics.
    """
    capabilities, requests, tallies = capabilities_of(sources), RequestCounts(), tallies or Tallies()
    tags = [*(tag for capability in capabilities.all for tag in capability.tags), "operation"]
    app = FastAPI(
        title="gpuyard",
        version=installed_version(),
        summary=f"The GPUs of {sources.site_name}: which are free, who has the others, and why.",
        openapi_tags=[{"name": name} for name in tags],
        openapi_url=None,  # documentation.py serves it
        docs_url=None,  # these pages load their scripts from elsewhere; documentation.py has that address
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    _set_state(app, sources, capabilities)
    if sources.ledger is not None and capabilities.authenticator is not None:
        login.install(app, sources, capabilities.authenticator)
        me.install(app)
        sessions_api.install(app, sources.now, sources.ledger.note, capabilities.authenticator)
    for capability in capabilities.all:
        capability.install(app)
    problems.install(app)
    documentation.install(app)
    _add_layers(app, sources, capabilities, allowed_hosts)
    app.add_middleware(Numbered, counts=requests, routes=app.router.routes)
    collectors = [*_collectors(sources, requests, tallies)]
    collectors += [collector for capability in capabilities.all for collector in capability.collectors()]
    _install_operation(app, sources, capabilities.dashboard.feed, collectors)
    return app


def _set_state(app: FastAPI, sources: Sources, capabilities: SiteCapabilities) -> None:
    """What pages' frames and layers ask for, of whichever page."""
    runners, state = sources.runners, app.state
    state.feed = capabilities.dashboard.feed
    state.runners, state.health = runners is not None, sources.health is not None
    state.login, state.public_status = sources.ledger is not None, sources.settings.public_status
    state.launches = sources.clouds is not None
    state.history, state.bootable = sources.history is not None, sources.bootable is not None
    state.public_runners = runners is not None and runners.site.public


def _add_layers(app: FastAPI, sources: Sources, capabilities: SiteCapabilities, allowed_hosts: Sequence[str]) -> None:
    """What stands before all routes. The layer that is added last sees a request first."""
    fast_paths = {
        path: fast_path for capability in capabilities.all for path, fast_path in capability.fast_paths.items()
    }
    first = {
        path: fast_path for capability in capabilities.all for path, fast_path in capability.first_fast_paths.items()
    }
    if capabilities.authenticator is not None:
        public = [*([PUBLIC] if app.state.public_runners else []), *([STATUS] if app.state.public_status else [])]
        app.add_middleware(AccessMiddleware, authenticator=capabilities.authenticator, public=public)
    app.add_middleware(CsvTables)
    app.add_middleware(PageTables)
    app.add_middleware(ProblemPages, site=sources.site_name)
    # Leaves event streams alone, and what is compressed already.
    app.add_middleware(GZipMiddleware, minimum_size=2000, compresslevel=LEVEL)
    if capabilities.authenticator is None:
        app.add_middleware(OpenReadsMiddleware, gateways=sources.settings.trusted_gateways)
    if fast_paths:
        app.add_middleware(FastPath, fast_paths=fast_paths)
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    app.add_middleware(Limited)
    app.add_middleware(Protected)
    if first:
        app.add_middleware(FastPath, fast_paths=first)


def _collectors(sources: Sources, requests: RequestCounts, tallies: Tallies) -> Iterator[Collector]:
    """Metrics of the process itself."""
    yield RequestCollector(requests, tallies)
    if sources.ledger is not None:
        yield LedgerCollector(sources, sources.ledger, tallies, sources.settings.anonymous_details)


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
