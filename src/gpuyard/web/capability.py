"""Base class of a capability's part of the portal: its routes, pages, fast paths and metrics.

`server/capabilities.py` has the list of those that a site has, and `server/app.py` puts them together: first the
routes and pages of each, then the layers that requests pass, then their metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.types import ASGIApp


class Capability:
    """Base class that adds nothing; subclasses override what they add."""

    tags: Sequence[str] = ()
    """Tags of its operations, in the order in which the documentation of the API lists them."""

    @property
    def fast_paths(self) -> Mapping[str, ASGIApp]:
        """Apps that answer POST by path before the pages' layers, but behind the limits of requests: see FastPath."""
        return {}

    @property
    def first_fast_paths(self) -> Mapping[str, ASGIApp]:
        """Apps that answer POST by path before all layers but the one that numbers requests; the others then do
        nothing for them."""
        return {}

    def install(self, app: FastAPI) -> None:
        """Add its routes and pages. Called once."""

    def collectors(self) -> Iterable[Collector]:
        """Return its metrics. Called once, after `install`."""
        return ()
