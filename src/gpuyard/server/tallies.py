"""Counts that other parts of the process have made since it began, for metrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from gpuyard.model.counts import Counts
from gpuyard.openstack.calls import CloudCalls


@dataclass(frozen=True)
class Tallies:
    """Counts since the process began; zeros where nobody counts."""

    cloud: CloudCalls = field(default_factory=CloudCalls)
    told: Counts = field(default_factory=Counts)
    """Messages, as notifications/delivery.py counts them."""
    reclaims: Counts = field(default_factory=Counts)
    """Steps, as bookings/controllers/overstays.py counts them."""
