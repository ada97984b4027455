"""The life of a GPU between tenants: which states follow which, and why. Pure."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpuyard.health.records import GpuHealth, HealthEvent, HealthState, Source
from gpuyard.model.errors import BlockedError

S = HealthState

TRANSITIONS: dict[tuple[HealthState, HealthState], str] = {
    (S.FINE, S.IN_USE): "a server got it",
    (S.FINE, S.RETURNED): "Nova keeps it reserved after a use",
    (S.IN_USE, S.RETURNED): "its server is gone",
    (S.RETURNED, S.SCRUBBING): "its host was asked to reset it",
    (S.RETURNED, S.FINE): "it is not used once only, and its host sees nothing wrong with it",
    (S.RETURNED, S.IN_USE): "a server got it: it is not used once only",
    (S.SCRUBBING, S.CHECKED): "it was reset, and came back clean",
    (S.SCRUBBING, S.RETURNED): "nobody knows what came of the reset: it is asked for again",
    (S.SCRUBBING, S.IN_USE): "somebody else released it, and a server got it",
    (S.CHECKED, S.IN_USE): "a server got it",
    (S.CHECKED, S.FINE): "Placement gives it away again",
    (S.CHECKED, S.RETURNED): "it was reserved anew before it was released",
    (S.SUSPECT, S.FINE): "nothing more was seen for as long as it was to wait",
    (S.SUSPECT, S.RETURNED): "nothing more was seen, and it was not clean yet",
    (S.QUARANTINED, S.IN_REPAIR): "somebody looks after it",
    (S.QUARANTINED, S.TO_ACCEPT): "somebody says that it is well",
    (S.QUARANTINED, S.FINE): "somebody says that it is well, and nothing is to be accepted here",
    (S.IN_REPAIR, S.TO_ACCEPT): "it was repaired",
    (S.IN_REPAIR, S.FINE): "it was repaired, and nothing is to be accepted here",
    (S.IN_REPAIR, S.QUARANTINED): "nobody looks after it any more",
    (S.TO_ACCEPT, S.FINE): "somebody has accepted it",
    **{
        (state, S.SUSPECT): "something was seen that may pass"
        for state in (S.FINE, S.IN_USE, S.RETURNED, S.SCRUBBING, S.CHECKED)
    },
    **{
        (state, S.QUARANTINED): "something was seen that does not pass, or too often"
        for state in (S.FINE, S.IN_USE, S.RETURNED, S.SCRUBBING, S.CHECKED, S.SUSPECT, S.TO_ACCEPT)
    },
    **{
        (state, S.TO_ACCEPT): "it is new, or its host has changed since it was accepted"
        for state in (S.FINE, S.RETURNED, S.CHECKED)
    },
}  # fmt: skip
"""From, to: what makes it happen."""


class HealthLifeError(BlockedError):
    """A GPU cannot go where it was asked to."""


def become(
    gpu: GpuHealth, to: HealthState, now: datetime, cause: str, *,
    signal: str = "", evidence: str = "", by: str = "", source: Source | None = None,
) -> tuple[GpuHealth, HealthEvent]:  # fmt: skip
    """The GPU in another state, and the line of its record that says so. Raises HealthLifeError."""
    if (gpu.state, to) not in TRANSITIONS:
        raise HealthLifeError(f"GPU {gpu.name} is {gpu.state.value} and cannot become {to.value}")
    event = HealthEvent(
        gpu.host, gpu.address, gpu.card, now, gpu.state, to, cause, signal, evidence, by, source
    )  # fmt: skip
    return replace(gpu, state=to, since=now, cause=cause, signal=signal, by=by), event
