"""Counts calls to OpenStack by service and outcome, for metrics."""

from __future__ import annotations

from collections.abc import Mapping

from gpuyard.model.counts import Counts, Durations

SERVICES = ("compute", "placement", "identity", "image", "network")
OUTCOMES = ("good", "refused", "failed", "unanswered")
"""Statuses below 400, 4xx, 5xx, and no answer at all."""


class CloudCalls:
    """Calls to one cloud since the process began. Calls that the client libraries make by themselves, for tokens and
    versions of services, are not counted. Safe to use from several threads."""

    def __init__(self) -> None:
        self._outcomes = Counts((service, outcome) for service in SERVICES for outcome in OUTCOMES)
        self._seconds = {service: Durations() for service in SERVICES}

    def add(self, service: str, status: int | None, seconds: float) -> None:
        """Count a call. `status` of the answer; None: there was none. `seconds` until it came, or until it was clear
        that none would."""
        self._outcomes.add(service, outcome_of(status))
        self._seconds[service].add(seconds)

    def outcomes(self) -> Mapping[tuple[str, ...], int]:
        """Return (service, one of OUTCOMES) -> how many."""
        return self._outcomes.all()

    def seconds(self) -> Mapping[str, Durations]:
        """Return the durations by service."""
        return self._seconds


def outcome_of(status: int | None) -> str:
    if status is None:
        return "unanswered"
    return "good" if status < 400 else "refused" if status < 500 else "failed"
