"""Table of the ends of NVIDIA's driver branches: after that, holes that become known stay open.

Sources, as of November 2026: NVIDIA's "Supported Drivers and CUDA Toolkit Versions"
(docs.nvidia.com/datacenter/tesla/ drivers, the edition of branch 615), which gives months, and says that branches
below its newest that it does not list have ended; for branches before 2022, its edition of March 2021
(NVIDIA_CUDA_Drivers_Support.pdf). That 470 and 390 are "no longer being maintained" is in NVIDIA's list of current
releases. A new edition is one new line here.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date

ENDS = {
    418: date(2022, 4, 1),
    440: date(2020, 12, 1),
    450: date(2023, 8, 1),
    460: date(2022, 2, 1),
    535: date(2026, 7, 1),
    570: date(2026, 3, 1),
    580: date(2028, 7, 1),
    595: date(2027, 4, 1),
    610: date(2026, 9, 1),
}
"""Branch -> the first day without support, which is that after the month of NVIDIA's list."""
NEWEST = max(ENDS)
"""The newest branch of the list. One above it may have come after the list was read."""


@dataclass(frozen=True)
class BranchEnd:
    """The end of a branch, as far as it is known."""

    known: bool
    """False for a branch that is newer than the list."""
    day: date | None = None
    """The first day without support; None when nobody wrote down when that was, or it is not known."""

    def __str__(self) -> str:
        return str(self.day or ("over" if self.known else "unknown"))

    def over(self, today: date) -> bool:
        """Return whether NVIDIA no longer fixes anything in it."""
        return self.known and (self.day is None or self.day <= today)


def end_of(branch: str) -> BranchEnd:
    """Return the end of a branch, such as '580'."""
    number = int(branch)
    return BranchEnd(number <= NEWEST, ENDS.get(number))
