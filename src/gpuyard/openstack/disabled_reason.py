"""What Nova is told as the reason for which a host is closed: that it was us, why, since when, and how it was before.

It is all that is written down. So whoever goes on, or gives the host back, knows what is ours to undo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from gpuyard.model.moments import ISO, iso_text

LONGEST = 255
"""What Nova keeps of a reason."""
FORCED = ", forced down"
BEFORE = "; before: "
PATTERN = re.compile(
    r"gpuyard: (?P<purpose>drain|evacuate|maintenance) since (?P<since>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
    rf"(?P<forced>{FORCED})?(?:{BEFORE}(?P<before>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class ClosedTag:
    """That gpuyard has closed a host."""

    purpose: Purpose
    since: datetime
    """Whole seconds, by the cloud's clock."""
    forced: bool = False
    """gpuyard has also told Nova that it is down."""
    before: str | None = None
    """Why it was disabled before; None: it was not."""

    def __str__(self) -> str:
        text = f"gpuyard: {self.purpose.value} since {iso_text(self.since)}"
        text += FORCED if self.forced else ""
        return (text if self.before is None else f"{text}{BEFORE}{self.before}")[:LONGEST]


def tag_of(reason: str) -> ClosedTag | None:
    """None where somebody else wrote it."""
    found = PATTERN.fullmatch(reason)
    if found is None:
        return None
    since = datetime.strptime(found["since"], ISO).replace(tzinfo=UTC)
    return ClosedTag(Purpose(found["purpose"]), since, bool(found["forced"]), found["before"])


class Purpose(StrEnum):
    """Why a host is emptied."""

    DRAIN = "drain"
    """It runs, and is to be worked on."""
    EVACUATE = "evacuate"
    """It is dead."""
    MAINTENANCE = "maintenance"
    """A maintenance keeps new servers away, and moves none itself."""
