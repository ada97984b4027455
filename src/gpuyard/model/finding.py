"""What a check of a host found: one rung of the ladder from a bare machine to one that can give its GPUs away."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Level(str, Enum):
    OK = "ok"
    WARNING = "warning"
    """GPUs can be given away, but the operator should know."""
    BLOCKED = "blocked"
    """As long as this is so, something cannot be given away."""


@dataclass(frozen=True)
class Finding:
    """One answer of one check."""

    check: str
    """Name of the check, as in ``gpuyard host check -c Check``."""
    level: Level
    reason: str
    """What is so, with the object it is about."""
    remedy: str = ""
    """What to do about it; empty when nothing needs to be done."""
