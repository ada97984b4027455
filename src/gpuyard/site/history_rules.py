"""Schema of ``history`` in ``site.yaml``: how long intervals of use are kept."""

from __future__ import annotations

from datetime import timedelta

from pydantic import Field

from gpuyard.site.booking_rules import SomeTime
from gpuyard.site.strict import Strict

KEEP = timedelta(days=400)


class SiteHistory(Strict):
    """How long what is known of who had which GPU is kept."""

    keep: SomeTime = Field(
        KEEP,
        description="Intervals of single GPUs are kept for so long, and at least until their day has its sums; sums by "
        "day, month and hour are kept for good.",
    )
