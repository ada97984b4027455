"""What a capability adds to the portal, as one object. `server/capabilities.py` has the list of those that a site has,
and `server/app.py` puts them together: first the routes and pages of each, then the layers that requests pass, then
their metrics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fastapi import FastAPI
from prometheus_client.registry import Collector
from starlette.types import ASGIApp


class Capability:
    """Adds nothing, where a subclass does not say otherwise."""

    tags: Sequence[str] = ()
    """Of its operations, in the order in which the documentation of the API lists them."""

    @property
    def doors(self) -> Mapping[str, ASGIApp]:
        """What answers POST by path before pages' layers do, but behind the limits of requests: see FastPath."""
        return {}

    @property
    def first_doors(self) -> Mapping[str, ASGIApp]:
        """The same before all other layers, which look after nothing of it then."""
        return {}

    def install(self, app: FastAPI) -> None:
        """Add its routes and pages. Called once."""

    def collectors(self) -> Iterable[Collector]:
        """Its metrics. Called once, after `install`."""
        return ()
