"""The web app: what is served where. Every endpoint reads; none changes anything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime

from fastapi import FastAPI
from fastapi.responses import JSONResponse, PlainTextResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from gpuyard import __version__
from gpuyard.keeper.driver import Driver
from gpuyard.keeper.yard import Yard
from gpuyard.model.gpu import Gpu
from gpuyard.portal import api, health, metrics, pages, problems
from gpuyard.portal.live import Feed
from gpuyard.portal.security import LOOPBACK_NAMES, Protected
from gpuyard.portal.sources import Sources, utc_now


def create_app(
    yard: Yard,
    driver: Driver,
    site_name: str,
    gpus: Sequence[Gpu],
    allowed_hosts: Sequence[str] = LOOPBACK_NAMES,
    now: Callable[[], datetime] = utc_now,
) -> FastAPI:
    """The app; its feed, which whoever runs it must close to end open streams, is `app.state.feed`.

    `allowed_hosts` are the names in Host headers that are answered: a page of a foreign site can make a browser
    send requests to an address it likes (DNS rebinding), but not with a name of ours. ``*`` is any.
    """
    app = FastAPI(
        title="gpuyard",
        version=__version__,
        summary=f"The GPUs of {site_name}: which are free, who has the others, and why.",
        openapi_tags=[{"name": "gpus"}, {"name": "about"}, {"name": "operation"}],
        docs_url=None,  # these pages load their scripts from elsewhere
        redoc_url=None,
        telemetry={"tracing": False, "metrics": False, "logs": False},
    )
    sources = Sources(yard, driver, site_name, gpus, now)
    app.state.feed = Feed(sources)
    # The one that is added last sees a request first.
    app.add_middleware(GZipMiddleware, minimum_size=2000)  # leaves event streams alone
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=list(allowed_hosts), www_redirect=False)
    app.add_middleware(Protected)
    problems.install(app)
    pages.install(app, sources, app.state.feed)
    api.install(app, sources)
    _install_operation(app, sources, app.state.feed)
    return app


def _install_operation(app: FastAPI, sources: Sources, feed: Feed) -> None:
    """For those who keep gpuyard running."""
    registry = metrics.registry(sources, feed)

    @app.get("/healthz", tags=["operation"], response_class=PlainTextResponse)
    def alive() -> str:
        """The process answers."""
        return "ok\n"

    @app.get("/readyz", tags=["operation"], responses={503: {"description": "What is shown may be out of date."}})
    def ready() -> JSONResponse:
        """The cloud was seen, and no loop is late; else 503 and the reasons."""
        reasons = health.unready(sources.yard.latest(), sources.driver.statuses(), sources.now())
        return JSONResponse({"ready": not reasons, "reasons": reasons}, 503 if reasons else 200)

    @app.get("/metrics", tags=["operation"], response_class=PlainTextResponse)
    def prometheus() -> Response:
        """Metrics in the Prometheus text format."""
        return Response(generate_latest(registry), headers={"Content-Type": CONTENT_TYPE_LATEST})
