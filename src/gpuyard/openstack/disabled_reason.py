"""Format of the reason that Nova has for a host that gpuyard closed: the purpose, the time, and the state before.

Nothing else is stored about it. So a later run, or a person who opens the host, knows what gpuyard has to undo.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from gpuyard.model.moments import ISO, iso_text

LONGEST = 255
"""Characters of a reason that Nova keeps."""
FORCED = ", forced down"
BEFORE = "; before: "
PATTERN = re.compile(
    r"gpuyard: (?P<purpose>drain|evacuate|maintenance) since (?P<since>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ)"
    rf"(?P<forced>{FORCED})?(?:{BEFORE}(?P<before>.*))?",
    re.DOTALL,
)


@dataclass(frozen=True)
class ClosedTag:
    """The record that gpuyard has closed a host."""

    purpose: Purpose
    since: datetime
    """Time when it was closed, in whole seconds, by the cloud's clock."""
    forced: bool = False
    """Whether gpuyard has also told Nova that it is down."""
    before: str | None = None
    """Its reason when it was disabled before; None: it was enabled."""

    def __str__(self) -> str:
        text = f"gpuyard: {self.purpose.value} since {iso_text(self.since)}"
        text += FORCED if self.forced else ""
        return (text if self.before is None else f"{text}{BEFORE}{self.before}")[:LONGEST]


def tag_of(reason: str) -> ClosedTag | None:
    """Parse a reason; None where somebody else wrote it."""
    match = PATTERN.fullmatch(reason)
    if match is None:
        return None
    since = datetime.strptime(match["since"], ISO).replace(tzinfo=UTC)
    return ClosedTag(Purpose(match["purpose"]), since, bool(match["forced"]), match["before"])


class Purpose(StrEnum):
    """The purpose for which a host is closed."""

    DRAIN = "drain"
    """It runs, and is to be worked on."""
    EVACUATE = "evacuate"
    """It is dead."""
    MAINTENANCE = "maintenance"
    """A maintenance keeps new servers away, and moves none itself."""
