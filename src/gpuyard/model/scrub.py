"""Messages of a scrub: the order to a host between two tenants of a GPU, and the host's result."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, Dict, Tuple


class ScrubOutcome(str, Enum):
    """What came of one scrub."""

    CLEAN = "clean"
    """Reset, and everything that could be probed answered after it."""
    FAILED = "failed"
    """The reset did not work, or what came back is not as it was."""
    REFUSED = "refused"
    """Nothing was touched, and asking again does not help before somebody has done something on the host."""
    BUSY = "busy"
    """Nothing was touched: somebody has it open, or another gpuyard is changing the host."""
    UNKNOWN = "unknown"
    """The host was interrupted. Whether it was reset is not known."""


@dataclass(frozen=True)
class ScrubOrder:
    """The order to reset and probe the IOMMU group that a GPU is in."""

    id: str
    address: str


@dataclass(frozen=True)
class ScrubResult:
    """The result of one order."""

    order: str
    """Id of the order; empty for a scrub by hand."""
    address: str
    outcome: ScrubOutcome
    reason: str = ""
    """The reason why it is not clean, a sentence; empty for one that is."""
    functions: Tuple[str, ...] = ()
    """All functions that were reset and probed."""
    method: str = ""
    """``bus`` for a whole slot or bus, else the function's own: ``flr``, ..."""
    seconds: float = 0.0
    """Duration of the scrub, by the host's steady clock."""
    reset_seconds: float = 0.0
    """Time that the kernel took for the resets."""
    evidence: Tuple[str, ...] = ()
    """Observations, a line each."""

    def as_dict(self) -> Dict[str, Any]:
        """Return it as JSON is sent."""
        return {**asdict(self), "outcome": self.outcome.value}
