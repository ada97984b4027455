"""The state machine of a GPU between tenants: which states follow which, and why. Pure.

TRANSITIONS is the whole table, and `become` refuses any other step. Every step makes a line of the GPU's record.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from gpuyard.health.baseline import for_card
from gpuyard.health.records import UUIDS, GpuHealth, HealthEvent, HealthState
from gpuyard.model.errors import BlockedError
from gpuyard.model.signals import Source

TRANSITIONS: dict[tuple[HealthState, HealthState], str] = {
    (HealthState.FINE, HealthState.IN_USE): "a server got it",
    (HealthState.FINE, HealthState.RETURNED): "Nova keeps it reserved after a use",
    (HealthState.IN_USE, HealthState.RETURNED): "its server is gone",
    (HealthState.RETURNED, HealthState.SCRUBBING): "its host was asked to reset it",
    (HealthState.RETURNED, HealthState.FINE): "it is not used once only, and its host sees nothing wrong with it",
    (HealthState.RETURNED, HealthState.IN_USE): "a server got it: it is not used once only",
    (HealthState.SCRUBBING, HealthState.CHECKED): "it was reset, and came back clean",
    (HealthState.SCRUBBING, HealthState.RETURNED): "nobody knows what came of the reset: it is asked for again",
    (HealthState.SCRUBBING, HealthState.IN_USE): "somebody else released it, and a server got it",
    (HealthState.CHECKED, HealthState.IN_USE): "a server got it",
    (HealthState.CHECKED, HealthState.FINE): "Placement gives it away again",
    (HealthState.CHECKED, HealthState.RETURNED): "it was reserved anew before it was released",
    (HealthState.SUSPECT, HealthState.FINE): "nothing more was seen for as long as it was to wait",
    (HealthState.SUSPECT, HealthState.RETURNED): "nothing more was seen, and it was not clean yet",
    (HealthState.SUSPECT, HealthState.TO_ACCEPT): "its server lost it while an alarm of its guest stood",
    (HealthState.QUARANTINED, HealthState.IN_REPAIR): "somebody looks after it",
    (HealthState.QUARANTINED, HealthState.TO_ACCEPT): "somebody says that it is well",
    (HealthState.QUARANTINED, HealthState.FINE): "somebody says that it is well, and nothing is to be accepted here",
    (HealthState.IN_REPAIR, HealthState.TO_ACCEPT): "it was repaired",
    (HealthState.IN_REPAIR, HealthState.FINE): "it was repaired, and nothing is to be accepted here",
    (HealthState.IN_REPAIR, HealthState.QUARANTINED): "nobody looks after it any more",
    (HealthState.TO_ACCEPT, HealthState.FINE): "somebody has accepted it",
    (
        HealthState.TO_ACCEPT,
        HealthState.RETURNED,
    ): "Nova keeps it reserved after a use: it is scrubbed before it is accepted",
    (HealthState.SCRUBBING, HealthState.TO_ACCEPT): "it came back clean, and is still to be accepted",
    **{
        (state, HealthState.SUSPECT): "something was seen that may pass"
        for state in (
            HealthState.FINE,
            HealthState.IN_USE,
            HealthState.RETURNED,
            HealthState.SCRUBBING,
            HealthState.CHECKED,
        )
    },
    **{
        (state, HealthState.QUARANTINED): "something was seen that does not pass, or too often"
        for state in (
            HealthState.FINE,
            HealthState.IN_USE,
            HealthState.RETURNED,
            HealthState.SCRUBBING,
            HealthState.CHECKED,
            HealthState.SUSPECT,
            HealthState.TO_ACCEPT,
        )
    },
    **{
        (state, HealthState.TO_ACCEPT): "it is new, or its host has changed since it was accepted"
        for state in (HealthState.FINE, HealthState.RETURNED, HealthState.CHECKED)
    },
}
"""From, to: what makes it happen."""


class HealthLifeError(BlockedError):
    """A GPU cannot go where it was asked to."""


def with_card(gpu: GpuHealth, card: str) -> GpuHealth:
    """Return the GPU with this card in its slot. Another card than before loses the baseline and the facts of the old
    one. A serial number after a UUID, or a UUID after a serial number, is another name of the same card."""
    if gpu.card and gpu.card != card and gpu.card.startswith(UUIDS) == card.startswith(UUIDS):
        return replace(gpu, card=card, shown={}, baseline=None)
    return replace(gpu, card=card, baseline=for_card(gpu.baseline, card))


def become(
    gpu: GpuHealth, to: HealthState, now: datetime, cause: str, *,
    signal: str = "", evidence: str = "", by: str = "", source: Source | None = None,
) -> tuple[GpuHealth, HealthEvent]:  # fmt: skip
    """Return the GPU in another state, and the line of its record that says so. Raises HealthLifeError."""
    if (gpu.state, to) not in TRANSITIONS:
        raise HealthLifeError(f"GPU {gpu.name} is {gpu.state.value} and cannot become {to.value}")
    event = HealthEvent(
        gpu.host, gpu.address, gpu.card, now, gpu.state, to, cause, signal, evidence, by, source
    )  # fmt: skip
    return replace(gpu, state=to, since=now, cause=cause, signal=signal, by=by), event
