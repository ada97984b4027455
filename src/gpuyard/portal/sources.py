"""What the portal shows things from."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from gpuyard.keeper.driver import Driver
from gpuyard.keeper.yard import Yard
from gpuyard.model.gpu import Gpu


def utc_now() -> datetime:
    return datetime.now(UTC)


@dataclass(frozen=True)
class Sources:
    yard: Yard
    driver: Driver
    site_name: str
    gpus: Sequence[Gpu]
    """Every GPU of the site, so that filters and metrics know all pools and hosts before the cloud was seen."""
    now: Callable[[], datetime] = utc_now
    """UTC; tests set it."""
