"""What a look for drift finds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from gpuyard.model.plan import Step


class Level(StrEnum):
    ALARM = "alarm"
    """Servers are in danger, or get what is not theirs."""
    DRIFT = "drift"
    """Not as the site file says."""
    NOTE = "note"
    """To know; nothing needs to be done."""


@dataclass(frozen=True)
class Drift:
    """One difference between the site and the cloud."""

    level: Level
    kind: str
    """Stable id, for scripts: ``gpu-lost``."""
    object: str
    seen: str
    """What is."""
    wanted: str
    """What should be."""
    effect: str
    """What it means for users."""
    remedy: str
    steps: tuple[Step, ...] = ()
    """What mends it safely, if anything does."""


LEVELS = list(Level)


def by_weight(finding: Drift) -> tuple[int, str, str]:
    """Key to sort by: alarms first."""
    return LEVELS.index(finding.level), finding.kind, finding.object
