"""The context that every page and endpoint of a portal needs: the site's name, the clock, the settings."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from gpuyard.web.settings import PortalSettings


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True, kw_only=True)
class PortalContext:
    """The portal of one site. Capabilities add what they show things from: `InventoryContext`, and for pages that show
    several capabilities `Sources` of the dashboard."""

    site_name: str
    now: Callable[[], datetime] = utc_now
    """The clock, in UTC; tests set it."""
    settings: PortalSettings = field(default_factory=PortalSettings)
